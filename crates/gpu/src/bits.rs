//! Codes: the mirror of what `kernels/bits.cu` is given.

use stratann_kernel::bits::{BitQuery, CENTROIDS_MAX, Layout, Plane};

/// Most planes of a code.
pub(crate) const PLANES_MAX: usize = 16;

/// Bytes of `BitHeader`.
pub(crate) const BIT_HEADER_BYTES: usize = 8;

/// Bytes that the kernels read at once.
const WORD: usize = 4;

/// `Plane` of the kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct PlaneParams {
    width: u32,
    shift: u32,
    start: u32,
    first: u32,
    bytes: u32,
    components_at: u32,
}

/// The planes of a code, and the components of a query as they meet them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BitPlanes {
    pub(crate) planes: [PlaneParams; PLANES_MAX],
    pub(crate) count: u32,
    /// Bytes of the components of all planes, each arranged in whole words for every group.
    pub(crate) components_bytes: u64,
}

impl BitPlanes {
    /// The planes of a layout, of which there are at most [`PLANES_MAX`]; surplus ones are left out.
    pub(crate) fn new(layout: &Layout) -> BitPlanes {
        let mut all =
            BitPlanes { planes: [PlaneParams::default(); PLANES_MAX], count: 0, components_bytes: 0 };
        for (out, plane) in all.planes.iter_mut().zip(layout.planes()) {
            *out = PlaneParams {
                width: plane.width,
                shift: plane.shift,
                start: plane.start as u32,
                first: plane.first as u32,
                bytes: plane.bytes as u32,
                components_at: all.components_bytes as u32,
            };
            all.count += 1;
            all.components_bytes += arranged_bytes(plane);
        }
        all
    }

    /// Number of terms of a query: one for each number that a code may have.
    pub(crate) fn terms(layout: &Layout) -> usize {
        if layout.is_numbered() { CENTROIDS_MAX } else { 1 }
    }

    /// Bytes of a query as it is sent.
    pub(crate) fn query_bytes(layout: &Layout) -> u64 {
        let components = layout.dim().next_multiple_of(WORD);
        (BIT_HEADER_BYTES + 4 * BitPlanes::terms(layout) + components) as u64
    }
}

fn arranged_bytes(plane: &Plane) -> u64 {
    u64::from(8 / plane.width) * plane.bytes.next_multiple_of(WORD) as u64
}

/// A query as it is sent: `BitHeader`, the terms, the components and zeros up to a whole word.
pub(crate) fn encode(query: &BitQuery) -> Vec<u8> {
    let bytes = BitPlanes::query_bytes(query.layout()) as usize;
    let mut out = Vec::with_capacity(bytes);
    out.extend_from_slice(&query.weight().to_ne_bytes());
    out.extend_from_slice(&query.offset().to_ne_bytes());
    query.terms().for_each(|term| out.extend_from_slice(&term.to_ne_bytes()));
    let components: &[u8] = bytemuck::cast_slice(query.components());
    out.extend_from_slice(&components[..query.layout().dim().min(components.len())]);
    out.resize(bytes, 0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_counted_in_whole_words_of_every_group() {
        // Four bits of the first 5 dimensions, and planes of two bits and of one of the other 8.
        let layout = Layout::even(13, 3, 5, true).expect("a layout");
        let BitPlanes { planes, count, components_bytes } = BitPlanes::new(&layout);
        assert_eq!(count, 3);
        let places = planes.map(|plane| (plane.start, plane.components_at));
        assert_eq!((&places[..3], components_bytes), (&[(0, 0), (5, 8), (5, 24)][..], 56));
        assert_eq!(BitPlanes::query_bytes(&layout), 8 + 1024 + 16);
        let mut query = BitQuery::default();
        assert_eq!(encode(&query).len() as u64, BitPlanes::query_bytes(query.layout()));
        let coder = stratann_kernel::bits::BitCoder::new(layout, 1, &[0.0; 13], &[], false);
        query.set(&coder, &[1.0; 13], &mut Vec::new());
        assert_eq!(encode(&query).len(), 8 + 1024 + 16);
    }
}
