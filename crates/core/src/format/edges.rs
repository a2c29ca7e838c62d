//! Edges of a member in its local graph. They are stored apart from the vector, so that a search can follow the edges
//! of a pruned member without reading its vector. The length of an edge is stored with it and bounds distances (pivots,
//! OrchANN §5.3).
//!
//! The edges of a cluster are contiguous, in the order of its members. The edges of a member never cross a page
//! boundary.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 4 | checksum of all that follows and of the member's id, with the seed of the build |
//! | 4 | 4 | number of neighbours n |
//! | 8 | 4 | f32: least length |
//! | 12 | 4 | f32: quantisation step of the lengths |
//! | 16 | degree × 4 | neighbours as member numbers within the cluster, ascending; zeros from n on |
//! | … | degree | lengths ‖u − v‖ in steps above the least, rounded down; zeros from n on |
//! | … | | padding up to a multiple of 4 |
//!
//! Lengths are Euclidean for every metric; under cosine they are between unit vectors.

use alloc::vec::Vec;

use super::directory::Pages;
use super::inverted_list::{float, range, step_up, steps_down, sum_with, word};
use crate::PAGE;

/// Most neighbours of a member.
pub const MAX_DEGREE: usize = 255;
/// Bytes before the neighbours.
const HEADER: usize = 16;

/// Bytes of the edges of one member.
pub const fn edge_bytes(degree: usize) -> usize {
    HEADER + (5 * degree).next_multiple_of(4)
}

const _: () = assert!(edge_bytes(MAX_DEGREE) <= PAGE);

/// Number of members whose edges fit in one page.
pub const fn per_page(degree: usize) -> u32 {
    (PAGE / edge_bytes(degree)) as u32
}

/// Returns the first offset from `offset` on at which the edges of a cluster may start.
pub const fn start_after(degree: usize, offset: u64) -> u64 {
    let (page, size) = (PAGE as u64, edge_bytes(degree) as u64);
    let place = (offset % page).div_ceil(size);
    if place < per_page(degree) as u64 {
        offset / page * page + place * size
    } else {
        (offset / page + 1) * page
    }
}

/// Returns whether the edges of a cluster may start at `offset`.
pub const fn is_start(degree: usize, offset: u64) -> bool {
    degree <= MAX_DEGREE && start_after(degree, offset) == offset
}

/// Returns the pages with the edges of the `number`-th member of a cluster whose edges start at `start`.
pub const fn place(degree: usize, start: u64, number: u32) -> Pages {
    let (page, size) = (PAGE as u64, edge_bytes(degree) as u64);
    let slot = start % page / size + number as u64;
    let per_page = per_page(degree) as u64;
    Pages { first: (start / page + slot / per_page) as u32, count: 1, skip: (slot % per_page * size) as u32 }
}

/// Returns the end of the edges of `members` members.
pub const fn end_of(degree: usize, start: u64, members: u32) -> u64 {
    if members == 0 {
        return start;
    }
    let last = place(degree, start, members - 1);
    last.first as u64 * PAGE as u64 + last.skip as u64 + edge_bytes(degree) as u64
}

/// Appends the edges of member `id` to `out`: at most `degree` neighbours with their lengths. `seed` is that of the
/// checksums of the build.
pub fn write_edges(degree: usize, seed: u64, id: u32, neighbours: &[(u32, f32)], out: &mut Vec<u8>) {
    let start = out.len();
    let neighbours = &neighbours[..neighbours.len().min(degree)];
    let lengths = || neighbours.iter().map(|n| n.1);
    let low = lengths().fold(f32::MAX, f32::min);
    let step = step_up(lengths().fold(0.0, f32::max) - low).min(f32::MAX);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&(neighbours.len() as u32).to_le_bytes());
    out.extend_from_slice(&low.to_le_bytes());
    out.extend_from_slice(&step.to_le_bytes());
    neighbours.iter().for_each(|n| out.extend_from_slice(&n.0.to_le_bytes()));
    out.resize(start + HEADER + 4 * degree, 0);
    out.extend(lengths().map(|length| steps_down(length - low, step)));
    out.resize(start + edge_bytes(degree), 0);
    let sum = sum_with(seed, id, &out[start + 4..]);
    out[start..start + 4].copy_from_slice(&sum.to_le_bytes());
}

/// Changes the checksum of the verified edges of member `id` to that of a build with this seed.
pub fn reseal_edges(seed: u64, id: u32, bytes: &mut [u8]) {
    if let Some((sum, content)) = bytes.split_at_mut_checked(4) {
        sum.copy_from_slice(&sum_with(seed, id, content).to_le_bytes());
    }
}

/// Edges of a member in memory.
#[derive(Clone, Copy, Debug)]
pub struct Edges<'a> {
    numbers: &'a [u8],
    steps: &'a [u8],
    low: f32,
    step: f32,
}

impl<'a> Edges<'a> {
    /// Verifies and opens the edges of member `id`. `None` when the bytes are too few, damaged or another member's.
    pub fn verify(degree: usize, seed: u64, id: u32, bytes: &'a [u8]) -> Option<Edges<'a>> {
        let (sum, content) = bytes.get(..edge_bytes(degree))?.split_at(4);
        let is_sound = u32::from_le_bytes(word(sum, 0)) == sum_with(seed, id, content);
        if is_sound { Edges::open(degree, bytes) } else { None }
    }

    /// Opens edges from bytes that were verified when they entered memory. `None` when they are too few or
    /// inconsistent.
    pub fn open(degree: usize, bytes: &'a [u8]) -> Option<Edges<'a>> {
        let bytes = bytes.get(..edge_bytes(degree))?;
        let count = u32::from_le_bytes(word(bytes, 4)) as usize;
        if count > degree {
            return None;
        }
        let steps_at = HEADER + 4 * degree;
        Some(Edges {
            numbers: &bytes[HEADER..HEADER + 4 * count],
            steps: &bytes[steps_at..steps_at + count],
            low: float(bytes, 8),
            step: float(bytes, 12),
        })
    }

    /// Number of neighbours.
    pub fn count(&self) -> usize {
        self.steps.len()
    }

    /// Each neighbour as a member number within the cluster, with the lower and upper bound of the edge's length.
    pub fn neighbours(&self) -> impl Iterator<Item = (u32, (f32, f32))> + use<'a> {
        let (low, step) = (self.low, self.step);
        self.numbers
            .chunks_exact(4)
            .zip(self.steps)
            .map(move |(number, &steps)| (u32::from_le_bytes(word(number, 0)), range(low, step, steps)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn edges_round_trip_and_lengths_are_within_bounds(
            neighbours in prop::collection::vec((any::<u32>(), 0f32..1e4), 0..40),
            id in any::<u32>(),
            more in 0usize..20,
        ) {
            let degree = neighbours.len() + more;
            let mut bytes = vec![9; 3];
            write_edges(degree, 7, id, &neighbours, &mut bytes);
            prop_assert_eq!(bytes.len(), 3 + edge_bytes(degree));
            let edges = Edges::verify(degree, 7, id, &bytes[3..]).unwrap();
            prop_assert_eq!(edges.count(), neighbours.len());
            for ((number, (least, most)), &(expected, length)) in edges.neighbours().zip(&neighbours) {
                prop_assert_eq!(number, expected);
                prop_assert!(least <= length && length <= most && most - least < 50.0, "{least} {length} {most}");
            }
            prop_assert!(Edges::verify(degree, 7, id ^ 1, &bytes[3..]).is_none());
            prop_assert!(Edges::verify(degree, 8, id, &bytes[3..]).is_none());
            let mut other = bytes[3..].to_vec();
            reseal_edges(8, id, &mut other);
            prop_assert!(Edges::verify(degree, 8, id, &other).is_some());
            let at = 3 + (bytes.len() - 3) / 2;
            bytes[at] ^= 4;
            prop_assert!(Edges::verify(degree, 7, id, &bytes[3..]).is_none());
        }

        #[test]
        fn random_bytes_are_refused_or_harmless(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200),
            id in any::<u32>(),
            degree in 0usize..30,
            has_valid_sum in any::<bool>(),
        ) {
            if has_valid_sum && bytes.len() >= edge_bytes(degree) {
                let sum = sum_with(7, id, &bytes[4..edge_bytes(degree)]);
                bytes[..4].copy_from_slice(&sum.to_le_bytes());
            }
            if let Some(edges) = Edges::verify(degree, 7, id, &bytes) {
                prop_assert!(has_valid_sum && edges.count() <= degree);
                prop_assert_eq!(edges.neighbours().count(), edges.count());
            }
        }

        #[test]
        fn edges_neither_cross_pages_nor_overlap(
            degree in 0usize..=MAX_DEGREE,
            offset in 0u64..100_000,
            members in 1u32..200,
        ) {
            let start = start_after(degree, offset);
            prop_assert!(start >= offset && is_start(degree, start));
            let mut end = start;
            for number in 0..members {
                let at = place(degree, start, number);
                prop_assert!(at.skip as usize + edge_bytes(degree) <= PAGE);
                let from = u64::from(at.first) * PAGE as u64 + u64::from(at.skip);
                prop_assert!(from >= end);
                end = from + edge_bytes(degree) as u64;
                prop_assert_eq!(end_of(degree, start, number + 1), end);
            }
        }
    }
}
