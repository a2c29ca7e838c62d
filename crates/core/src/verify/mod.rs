//! Exact distances, and the best k of them.

use crate::format::block::Block;
use crate::query::{Hit, QueryState, Scratch};

/// Scores every node of a block that was paid for and keeps the best k.
pub(crate) fn score_block(state: &mut QueryState, scratch: &mut Scratch, block: &Block<'_>) {
    let Scratch { exact, norms, exact_distances, .. } = scratch;
    norms.clear();
    if block.has_norms() {
        norms.extend((0..block.count()).map(|slot| block.inverse_norm(slot)));
    }
    exact.distances(block.vectors(), norms, exact_distances);
    let excluded = state.params.exclude.wrapping_sub(block.first_id()) as usize;
    for (slot, &distance) in exact_distances.iter().enumerate().filter(|(slot, _)| *slot != excluded) {
        state.stats.full_comparisons += 1;
        keep(state, distance, block, slot);
    }
}

/// Scores one node of a block.
pub(crate) fn score_slot(state: &mut QueryState, scratch: &Scratch, block: &Block<'_>, slot: usize) {
    let distance = scratch.exact.distance(block.vector(slot), block.inverse_norm(slot));
    state.stats.full_comparisons += 1;
    keep(state, distance, block, slot);
}

/// Takes a node among the best k, which are sorted by `(distance, external id)`.
fn keep(state: &mut QueryState, distance: f32, block: &Block<'_>, slot: usize) {
    let (results, k) = (&mut state.results, state.params.k as usize);
    if results.len() >= k && results.last().is_none_or(|worst| worst.distance.total_cmp(&distance).is_lt()) {
        return;
    }
    let hit = Hit { distance, external_id: block.external_id(slot) };
    let before =
        |a: &Hit| a.distance.total_cmp(&hit.distance).then(a.external_id.cmp(&hit.external_id)).is_lt();
    if results.len() >= k && results.last().is_none_or(before) {
        return;
    }
    let at = results.partition_point(before);
    if results.get(at).is_some_and(|h| h.external_id == hit.external_id) {
        return;
    }
    if results.len() >= k {
        results.pop();
    }
    results.insert(at, hit);
}
