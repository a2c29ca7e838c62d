//! The data files of an index besides its blocks: names, and small encodings. Their checksums are in the manifest.
//!
//! | file | content |
//! |---|---|
//! | `vN-blocks.bin` | blocks, see `stratann_core::format::block` |
//! | `vN-codes.bin` | one code per node, in the order of ids |
//! | `vN-codebook.bin` | u32: dim, ip, lengths of rotation, coarse, starts, centroids; f32: correction low, step; then the four arrays |
//! | `vN-map.bin` | u16 per block: number of its nodes |
//! | `vN-head.bin` | u32: head nodes h, edges e; then ids (h), starts (h + 1), neighbours (e) |

use std::path::Path;

use stratann_core::format::block_map::BlockMap;
use stratann_core::route::HeadGraph;
use stratann_kernel::codes::Codebook;

use crate::manifest::{FileEntry, Manifest};
use crate::{Error, Result};

pub(crate) const BLOCKS: &str = "blocks.bin";
pub(crate) const CODES: &str = "codes.bin";
pub(crate) const CODEBOOK: &str = "codebook.bin";
pub(crate) const MAP: &str = "map.bin";
pub(crate) const HEAD: &str = "head.bin";

/// The name of a file in version `number` of an index.
pub(crate) fn name(number: u64, role: &str) -> String {
    format!("v{number}-{role}")
}

/// The role that a name says.
pub(crate) fn role(name: &str) -> Option<&'static str> {
    let (_, role) = name.split_once('-')?;
    [BLOCKS, CODES, CODEBOOK, MAP, HEAD].into_iter().find(|r| *r == role)
}

/// The file that has this role.
pub(crate) fn find<'a>(manifest: &'a Manifest, wanted: &str) -> Result<(&'a str, &'a FileEntry)> {
    let found = manifest.files.iter().find(|(name, _)| role(name) == Some(wanted) && !name.contains('/'));
    let (name, entry) = found
        .ok_or_else(|| Error::corrupt(format!("the manifest names no {wanted}; build the index again")))?;
    Ok((name, entry))
}

pub(crate) fn senseless(path: &Path) -> Error {
    Error::corrupt(format!("the content of {} makes no sense; build the index again", path.display()))
}

pub(crate) fn codebook_bytes(c: &Codebook) -> u64 {
    4 * (8 + c.rotation.len() + c.coarse.len() + c.starts.len() + c.centroids.len()) as u64
}

pub(crate) fn encode_codebook(c: &Codebook) -> Vec<u8> {
    let mut out = Vec::with_capacity(codebook_bytes(c) as usize);
    let counts =
        [c.dim, usize::from(c.ip), c.rotation.len(), c.coarse.len(), c.starts.len(), c.centroids.len()];
    counts.iter().for_each(|&x| out.extend_from_slice(&(x as u32).to_le_bytes()));
    out.extend_from_slice(&c.correction_low.to_le_bytes());
    out.extend_from_slice(&c.correction_step.to_le_bytes());
    out.extend_from_slice(bytemuck::cast_slice(&c.rotation));
    out.extend_from_slice(bytemuck::cast_slice(&c.coarse));
    out.extend_from_slice(bytemuck::cast_slice(&c.starts));
    out.extend_from_slice(bytemuck::cast_slice(&c.centroids));
    out
}

pub(crate) fn decode_codebook(bytes: &[u8]) -> Option<Codebook> {
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

pub(crate) fn encode_head(head: &HeadGraph) -> Vec<u8> {
    let counts = [head.ids.len() as u32, head.neighbours.len() as u32];
    [&counts[..], &head.ids, &head.starts, &head.neighbours]
        .iter()
        .flat_map(|part| bytemuck::cast_slice::<u32, u8>(part))
        .copied()
        .collect()
}

pub(crate) fn decode_head(bytes: &[u8]) -> Option<HeadGraph> {
    let mut words = Words(bytes);
    let [heads, edges] = words.array()?;
    let head = HeadGraph {
        ids: words.take(heads)?,
        starts: words.take(heads.checked_add(1)?)?,
        neighbours: words.take(edges)?,
    };
    words.0.is_empty().then_some(head)
}

pub(crate) fn encode_map(counts: &[u16]) -> Vec<u8> {
    counts.iter().flat_map(|c| c.to_le_bytes()).collect()
}

pub(crate) fn decode_map(bytes: &[u8]) -> Option<BlockMap> {
    if !bytes.len().is_multiple_of(2) {
        return None;
    }
    BlockMap::from_counts(bytes.chunks_exact(2).map(|c| u32::from(u16::from_le_bytes([c[0], c[1]]))))
}

/// Little-endian words, taken from the front.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u32; N]> {
        self.take(N as u32)?.try_into().ok()
    }

    fn take(&mut self, count: u32) -> Option<Vec<u32>> {
        let (head, rest) = self.0.split_at_checked((count as usize).checked_mul(4)?)?;
        self.0 = rest;
        Some(head.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect())
    }

    fn floats(&mut self, count: u32) -> Option<Vec<f32>> {
        let words = self.take(count)?;
        Some(words.into_iter().map(f32::from_bits).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_files_come_back_and_refuse_nonsense() {
        let head = HeadGraph { ids: vec![5, 2], starts: vec![0, 1, 2], neighbours: vec![1, 0] };
        let bytes = encode_head(&head);
        assert_eq!(decode_head(&bytes), Some(head));
        assert_eq!(decode_head(&bytes[..bytes.len() - 1]), None);
        assert_eq!(decode_head(&[255; 12]), None);

        let codebook = Codebook {
            dim: 2,
            coarse: vec![0.5, 1.0],
            starts: vec![0, 1, 2],
            centroids: (0..512).map(|i| i as f32).collect(),
            correction_step: 0.25,
            ..Codebook::default()
        };
        let bytes = encode_codebook(&codebook);
        assert_eq!(decode_codebook(&bytes), Some(codebook));
        for cut in 0..40 {
            assert_eq!(decode_codebook(&bytes[..cut]), None);
        }
        assert_eq!(decode_map(&encode_map(&[3, 1])).map(|m| (m.nodes(), m.blocks())), Some((4, 2)));
        assert!(decode_map(&encode_map(&[3, 0])).is_none());
    }
}
