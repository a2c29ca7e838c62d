//! The search of a few rows: the codes of all that may be returned are compared, and the nearest are read until none
//! that is left can be among the results.
//!
//! It costs the same wherever the rows lie. A walk has to pass all rows that are nearer to the query and may not be
//! returned.

use super::source::{self, Source};
use super::{Codes, DiskGraph, walk};
use crate::exact::{STEP_COMPARISONS, score_block};
use crate::format::block::Block;
use crate::kinds::kind::{Ordered, StepContext};
use crate::search::{Outcome, Progress, key};

/// Rows whose codes are compared together.
const AT_ONCE: usize = 1024;

/// Uses what arrived, compares codes until all are compared, and then reads the nearest rows.
pub(super) fn step(cx: &mut StepContext<'_, DiskGraph>, arrived: Ordered<'_>) {
    walk::rescore(cx);
    cx.q.started = true;
    let layout = cx.view.block;
    cx.take_in(arrived, |cx, _, bytes| {
        use_block(cx, &Block::open(layout, bytes).ok()?);
        Some(())
    });
    if cx.q.outcome == Outcome::Running && compare_codes(cx) {
        source::go_on(cx, walk::choose, use_block);
    }
}

/// Compares the next codes, and offers the nearest of them to the beam. Returns whether all are compared.
fn compare_codes(cx: &mut StepContext<'_, DiskGraph>) -> bool {
    let Codes::All(codes) = cx.view.codes else { return true };
    let until = cx.q.stats.code_comparisons.saturating_add(STEP_COMPARISONS);
    let mut ids = core::mem::take(&mut cx.scratch.ids);
    let rows = cx.base.nodes;
    while cx.own.scan.next_row < rows && cx.q.stats.code_comparisons < until {
        ids.clear();
        let left = cx.own.scan.next_row..rows;
        match cx.base.sieve {
            Some(sieve) => ids.extend(sieve.iter_in(left).take(AT_ONCE)),
            None => ids.extend(left.take(AT_ONCE)),
        }
        cx.own.scan.next_row = ids.last().filter(|_| ids.len() == AT_ONCE).map_or(rows, |last| last + 1);
        ids.retain(|&id| cx.q.exists(id));
        let scratch = &mut *cx.scratch;
        scratch.query.coded.distances(codes, &ids, &mut scratch.distances);
        cx.q.stats.code_comparisons += ids.len() as u64;
        let threshold = cx.own.beam.threshold();
        let near = ids.iter().zip(&scratch.distances).filter(|&(_, &distance)| distance < threshold);
        scratch.keys.clear();
        scratch.keys.extend(near.map(|(&id, &distance)| key(distance, id)));
        // No more than the beam holds, before they are sorted.
        let most = cx.own.beam.capacity();
        if scratch.keys.len() > most {
            scratch.keys.select_nth_unstable(most);
            scratch.keys.truncate(most);
        }
        cx.own.beam.offer_all(&mut scratch.keys, &mut scratch.moved);
        scratch.keys.clear();
    }
    ids.clear();
    cx.scratch.ids = ids;
    cx.own.scan.next_row >= rows
}

/// Compares the rows of a block that may be returned.
fn use_block(cx: &mut StepContext<'_, DiskGraph>, block: &impl Source) {
    score_block(cx.q, cx.exact, cx.base.sieve, &mut cx.scratch.blocks, block);
    for at in 0..cx.own.beam.entries().len() {
        let slot = cx.own.beam.entries()[at].id.wrapping_sub(block.first_id());
        if (slot as usize) < block.count() {
            cx.own.beam.mark(at, Progress::Expanded);
        }
    }
}
