//! Exact distances, and the best k of them.

use crate::format::block::Block;
use crate::query::{Hit, QueryState, Scratch};

/// Scores every node of a block that was paid for and keeps the best k.
pub(crate) fn score_block(state: &mut QueryState, scratch: &Scratch, block: &Block<'_>) {
    let excluded = state.params.exclude.wrapping_sub(block.first_id()) as usize;
    for slot in (0..block.count()).filter(|&slot| slot != excluded) {
        score_slot(state, scratch, block, slot);
    }
}

/// Scores one node of a block.
pub(crate) fn score_slot(state: &mut QueryState, scratch: &Scratch, block: &Block<'_>, slot: usize) {
    let distance = scratch.exact.distance(block.vector(slot), block.inverse_norm(slot));
    state.stats.full_comparisons += 1;
    keep(&mut state.results, state.params.k as usize, Hit { distance, external_id: block.external_id(slot) });
}

/// Inserts a hit among the best k, which are sorted by `(distance, external id)`.
fn keep(results: &mut alloc::vec::Vec<Hit>, k: usize, hit: Hit) {
    let before = |a: &Hit| a.distance.total_cmp(&hit.distance).then(a.external_id.cmp(&hit.external_id)).is_lt();
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
