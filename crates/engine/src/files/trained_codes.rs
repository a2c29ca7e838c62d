//! Files of codes that older versions trained. Nothing writes them any more.

use stratann_kernel::trained_codes::Codebook;

use super::Words;

/// Bytes of a codebook's file, which are those that it takes in memory.
pub(super) fn bytes(c: &Codebook) -> u64 {
    4 * (8 + c.rotation.len() + c.coarse.len() + c.starts.len() + c.centroids.len()) as u64
}

/// Reads a codebook; `None` of a file that holds none.
pub(super) fn decode(bytes: &[u8]) -> Option<Codebook> {
    let mut words = Words(bytes);
    let [dim, ip, rotation, coarse, starts, centroids] = words.array()?;
    let [low, step] = words.array::<2>()?.map(f32::from_bits);
    let codebook = Codebook {
        dim: dim as usize,
        ip: ip != 0,
        rotation: words.floats(rotation)?,
        coarse: words.floats(coarse)?,
        starts: words.take(starts)?,
        centroids: words.floats(centroids)?,
        correction_low: low,
        correction_step: step,
    };
    (words.0.is_empty() && codebook.is_consistent()).then_some(codebook)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file as older versions wrote it.
    fn file(c: &Codebook) -> Vec<u8> {
        let counts =
            [c.dim, usize::from(c.ip), c.rotation.len(), c.coarse.len(), c.starts.len(), c.centroids.len()];
        let mut out: Vec<u8> = counts.iter().flat_map(|&x| (x as u32).to_le_bytes()).collect();
        out.extend([c.correction_low, c.correction_step].iter().flat_map(|x| x.to_le_bytes()));
        out.extend(c.rotation.iter().chain(&c.coarse).flat_map(|x| x.to_le_bytes()));
        out.extend(c.starts.iter().flat_map(|x| x.to_le_bytes()));
        out.extend(c.centroids.iter().flat_map(|x| x.to_le_bytes()));
        out
    }

    #[test]
    fn codebooks_are_read_and_nonsense_is_refused() {
        let codebook = Codebook {
            dim: 2,
            coarse: vec![0.5, 1.0],
            starts: vec![0, 1, 2],
            centroids: (0..512).map(|i| i as f32).collect(),
            correction_step: 0.25,
            ..Codebook::default()
        };
        let file = file(&codebook);
        assert_eq!(bytes(&codebook), file.len() as u64);
        assert_eq!(decode(&file), Some(codebook));
        for cut in 0..40 {
            assert_eq!(decode(&file[..cut]), None);
        }
    }
}
