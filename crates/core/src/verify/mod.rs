//! Exact distances, and the best k of them.

pub(crate) mod bounds;

use core::cmp::Ordering;

use crate::format::block::Block;
use crate::format::inverted_list::Record;
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
        keep(state, distance, || block.external_id(slot));
    }
}

/// Scores one node of a block.
pub(crate) fn score_slot(state: &mut QueryState, scratch: &Scratch, block: &Block<'_>, slot: usize) {
    let distance = scratch.exact.distance(block.vector(slot), block.inverse_norm(slot));
    state.stats.full_comparisons += 1;
    keep(state, distance, || block.external_id(slot));
}

/// Scores a member of a list.
pub(crate) fn keep_record(state: &mut QueryState, scratch: &Scratch, record: &Record<'_>) {
    let distance = score_record(state, scratch, record);
    keep(state, distance, || record.external_id());
}

/// The distance of a member of a list.
pub(crate) fn score_record(state: &mut QueryState, scratch: &Scratch, record: &Record<'_>) -> f32 {
    state.stats.full_comparisons += 1;
    scratch.exact.distance(record.vector(), record.inverse_norm())
}

/// Takes a node among the best k, which are sorted by `(distance, external id)`.
pub(crate) fn keep(state: &mut QueryState, distance: f32, external_id: impl FnOnce() -> u64) {
    let worst = if state.is_full() { state.worst() } else { None };
    if worst.is_some_and(|(worst, _)| worst.total_cmp(&distance).is_lt()) {
        return;
    }
    let hit = Hit { distance, external_id: external_id() };
    // Of two as far, one that the origin was told of makes room: the origin knows its id, and decides.
    let is_before = |(d, id): (f32, Option<u64>)| {
        d.total_cmp(&distance).then(id.map_or(Ordering::Greater, |id| id.cmp(&hit.external_id))).is_lt()
    };
    if worst.is_some_and(is_before) {
        return;
    }
    let at = state.results.partition_point(|h| is_before((h.distance, Some(h.external_id))));
    if state.results.get(at).is_some_and(|h| h.external_id == hit.external_id) {
        return;
    }
    if worst.is_some() {
        state.drop_worst();
    }
    state.results.insert(at, hit);
}
