//! Exact distances, and bounds of them.

mod bounds;
mod perpendicular;

use alloc::vec::Vec;

use stratann_kernel::distance::Exact;

use crate::format::block::Block;
use crate::format::inverted_list::Record;
use crate::search::Query;

pub use bounds::Bounds;
pub(crate) use bounds::{BoundEstimator, Cut, DistanceBounds};

/// Reusable buffers for scoring blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockScratch {
    norms: Vec<f32>,
    distances: Vec<f32>,
}

/// Scores every vector of a block and keeps the best k.
pub(crate) fn score_block(q: &mut Query, exact: &Exact, scratch: &mut BlockScratch, block: &Block<'_>) {
    let BlockScratch { norms, distances } = scratch;
    norms.clear();
    if block.has_norms() {
        norms.extend((0..block.count()).map(|slot| block.inverse_norm(slot)));
    }
    exact.distances(block.vectors(), norms, distances);
    for (slot, &distance) in distances.iter().enumerate() {
        if q.admits(block.first_id().wrapping_add(slot as u32)) {
            q.stats.full_comparisons += 1;
            q.top.offer(distance, || block.external_id(slot));
        }
    }
}

/// Scores one vector of a block.
pub(crate) fn score_slot(q: &mut Query, exact: &Exact, block: &Block<'_>, slot: usize) {
    let distance = exact.distance(block.vector(slot), block.inverse_norm(slot));
    q.stats.full_comparisons += 1;
    q.top.offer(distance, || block.external_id(slot));
}

/// Computes the distance of a record.
pub(crate) fn score_record(q: &mut Query, exact: &Exact, record: &Record<'_>) -> f32 {
    q.stats.full_comparisons += 1;
    exact.distance(record.vector(), record.inverse_norm())
}
