//! Exact distances, and bounds of them.

mod bounds;
mod perpendicular;
mod resident_rows;

use alloc::vec::Vec;

use stratann_kernel::distance::Exact;

use crate::format::block::Block;
use crate::format::inverted_list::Record;
use crate::search::Query;
use crate::sieve::Sieve;

pub use bounds::Bounds;
pub(crate) use bounds::{BoundEstimator, Cut, DistanceBounds};
pub(crate) use resident_rows::ResidentBlock;
pub use resident_rows::{ResidentRows, STEP_COMPARISONS};

/// Reusable buffers for scoring blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockScratch {
    norms: Vec<f32>,
    distances: Vec<f32>,
    slots: Vec<u32>,
}

/// The rows of a block, wherever they lie: their ids are consecutive.
pub(crate) trait BlockRows {
    /// Number of rows.
    fn count(&self) -> usize;
    /// Id of the first row.
    fn first_id(&self) -> u32;
    /// The vectors, one after another.
    fn vectors(&self) -> &[u8];
    /// 1 / ‖vector‖ of each row, in `room` where they must be gathered; none where norms are not stored.
    fn inverse_norms<'n>(&'n self, room: &'n mut Vec<f32>) -> &'n [f32];
    /// The vector in `slot`, and 1 / ‖vector‖; 1 where norms are not stored.
    fn row(&self, slot: usize) -> (&[u8], f32);
    /// The external id in `slot`.
    fn external_id(&self, slot: usize) -> u64;
}

impl BlockRows for Block<'_> {
    fn count(&self) -> usize {
        Block::count(self)
    }

    fn first_id(&self) -> u32 {
        Block::first_id(self)
    }

    fn vectors(&self) -> &[u8] {
        Block::vectors(self)
    }

    fn inverse_norms<'n>(&'n self, room: &'n mut Vec<f32>) -> &'n [f32] {
        room.clear();
        if self.has_norms() {
            room.extend((0..self.count()).map(|slot| self.inverse_norm(slot)));
        }
        room
    }

    fn row(&self, slot: usize) -> (&[u8], f32) {
        (self.vector(slot), self.inverse_norm(slot))
    }

    fn external_id(&self, slot: usize) -> u64 {
        Block::external_id(self, slot)
    }
}

/// Scores the vectors of a block that the sieve has, or all, and keeps the best k.
pub(crate) fn score_block(
    q: &mut Query,
    exact: &Exact,
    sieve: Option<&Sieve>,
    scratch: &mut BlockScratch,
    block: &impl BlockRows,
) {
    let first = block.first_id();
    let rows = first..first.saturating_add(block.count() as u32);
    if let Some(sieve) = sieve.filter(|sieve| sieve.count_in(rows.clone()) < rows.len() as u32) {
        scratch.slots.clear();
        scratch.slots.extend(sieve.iter_in(rows).filter(|&id| q.exists(id)).map(|id| id - first));
        return score_slots(q, exact, scratch, block);
    }
    let BlockScratch { norms, distances, .. } = scratch;
    exact.distances(block.vectors(), block.inverse_norms(norms), distances);
    for (slot, &distance) in distances.iter().enumerate() {
        if q.exists(first.wrapping_add(slot as u32)) {
            q.stats.full_comparisons += 1;
            q.top.offer(distance, || block.external_id(slot));
        }
    }
}

/// Scores the vectors of a block in the slots of `scratch`.
fn score_slots(q: &mut Query, exact: &Exact, scratch: &mut BlockScratch, block: &impl BlockRows) {
    let BlockScratch { norms, distances, slots } = scratch;
    let norms = block.inverse_norms(norms);
    let norm = |slot: u32| norms.get(slot as usize).copied().unwrap_or(1.0);
    exact.distances_of(block.vectors(), slots, norm, distances);
    q.stats.full_comparisons += slots.len() as u64;
    for (&slot, &distance) in slots.iter().zip(&*distances) {
        q.top.offer(distance, || block.external_id(slot as usize));
    }
}

/// Scores the vectors of these nodes, which lie in memory.
pub(crate) fn score_resident(
    q: &mut Query,
    exact: &Exact,
    scratch: &mut BlockScratch,
    rows: &ResidentRows,
    nodes: &[u32],
) {
    rows.distances(exact, nodes, &mut scratch.distances);
    q.stats.full_comparisons += nodes.len() as u64;
    for (&node, &distance) in nodes.iter().zip(&scratch.distances) {
        q.top.offer(distance, || rows.external_id(node));
    }
}

/// Scores one vector of a block.
pub(crate) fn score_slot(q: &mut Query, exact: &Exact, block: &impl BlockRows, slot: usize) {
    let (vector, inverse_norm) = block.row(slot);
    let distance = exact.distance(vector, inverse_norm);
    q.stats.full_comparisons += 1;
    q.top.offer(distance, || block.external_id(slot));
}

/// Computes the distance of a record.
pub(crate) fn score_record(q: &mut Query, exact: &Exact, record: &Record<'_>) -> f32 {
    q.stats.full_comparisons += 1;
    exact.distance(record.vector(), record.inverse_norm())
}
