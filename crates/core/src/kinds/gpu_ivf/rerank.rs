//! Re-ranks candidates by their vectors, mini-batch after mini-batch (FusionANNS §4.2 and §4.3).
//!
//! A block is read once: candidates of the same mini-batch share the read, and candidates of later ones are scored with
//! it and wait. Mini-batches go on until the [`Rule`] stops them. The text of the paper stops below ε for more than β
//! mini-batches, its algorithm at ε and below for β of them: this is the algorithm.

use super::trace::{BatchTrace, Found};
use super::view::Place;
use super::{GpuIvf, Rule, Scored, Scratch, Turn};
use crate::exact::BlockRows;
use crate::format::block::Block;
use crate::kinds::kind::StepContext;
use crate::search::{Hit, Pending};

/// Takes in the mini-batch that has ended and begins the next. Those of vectors in memory follow each other. `None`
/// when the budget allows no more reads.
pub(super) fn choose(cx: &mut StepContext<'_, GpuIvf>) -> Option<Turn> {
    let until = cx.q.stats.full_comparisons.saturating_add(super::step_comparisons(cx));
    while cx.q.io.pending.is_empty() {
        let has_batch = cx.own.batch.1 > cx.own.batch.0;
        let ends = has_batch && end_batch(cx);
        cx.own.batch.0 = cx.own.batch.1;
        if ends || !begin(cx)? {
            cx.own.batch.0 = cx.own.candidates.len() as u32;
            cx.own.batch.1 = cx.own.batch.0;
            break;
        }
        let is_used = super::use_round(cx, |cx, asker, block| {
            // The block of a candidate holds it.
            let _ = score_here(cx, asker as usize, None, block);
        });
        if is_used && cx.q.stats.full_comparisons >= until {
            return Some(Turn::Yields);
        }
    }
    Some(Turn::Ends)
}

/// Begins a mini-batch. Returns false when there is none.
fn begin(cx: &mut StepContext<'_, GpuIvf>) -> Option<bool> {
    let from = cx.own.batch.0 as usize;
    let most = (from + cx.params.batch as usize).min(cx.own.candidates.len());
    let to = from + cx.own.candidates[from..most].iter().take_while(|c| is_likely(cx, c.0)).count();
    if to == from {
        cx.q.stats.bounded += if cx.q.is_limit_smaller() { (most - to) as u64 } else { 0 };
        return Some(false);
    }
    if cx.q.budget.hops == 0 {
        return None;
    }
    cx.own.batch = (from as u32, to as u32);
    cx.q.stats.mini_batches += 1;
    let mut trace = BatchTrace { candidates: (to - from) as u32, ..BatchTrace::default() };
    cx.scratch.wanted.clear();
    for at in from..to {
        let id = cx.own.candidates[at].1;
        if is_scored(cx, id) {
            cx.q.stats.reads_saved_across += 1;
            trace.known += 1;
            continue;
        }
        let place = place(cx, id);
        if cx.params.merge && cx.scratch.wanted.contains(&place.number) {
            cx.q.stats.reads_saved_in_batch += 1;
            trace.shared += 1;
            continue;
        }
        cx.scratch.wanted.push(place.number);
        super::ask(cx, (place.extent, place.number), at as u32)?;
        trace.reads += 1;
    }
    if let Some(all) = &mut cx.scratch.trace {
        all.batches.push(trace);
    }
    Some(true)
}

/// Place of the vector of a candidate.
fn place<'a>(cx: &StepContext<'a, GpuIvf>, id: u32) -> Place<'a> {
    #[cfg(feature = "lab")]
    {
        super::baseline::place(cx.view, cx.params.compared, id)
    }
    #[cfg(not(feature = "lab"))]
    {
        cx.view.place(id)
    }
}

/// Whether a candidate with this code distance may be a result.
fn is_likely(cx: &StepContext<'_, GpuIvf>, code_distance: u32) -> bool {
    let stops = cx.params.rule == Rule::Margin && cx.params.margin < f32::INFINITY;
    let Scratch { query, expected, .. } = &*cx.scratch;
    let is_within = |worst: Option<f32>, margin: f32| {
        worst.filter(|_| stops).is_none_or(|worst| {
            let limit = match cx.view.coder.is_unbiased() {
                true => expected.at_most(query, worst, margin),
                false => expected.within(query, worst, margin),
            };
            expected.estimate(query, code_distance) <= limit
        })
    };
    let margin = cx.params.margin;
    // The margin is that of a k-th result which falls from round to round; a limit from elsewhere is there at once.
    let is_limited = cx.q.is_limit_smaller();
    is_within(cx.q.kth(), margin) && (!is_limited || is_within(cx.q.limit(), margin.max(LIMIT_MARGIN)))
}

/// Least margin of a limit by results of other indexes, in standard errors.
const LIMIT_MARGIN: f32 = 2.0;

fn is_scored(cx: &StepContext<'_, GpuIvf>, id: u32) -> bool {
    cx.own.scored.binary_search_by_key(&id, |s| s.id).is_ok()
}

/// Makes results of the mini-batch. Returns whether it is the last.
fn end_batch(cx: &mut StepContext<'_, GpuIvf>) -> bool {
    let (from, to) = (cx.own.batch.0 as usize, cx.own.batch.1 as usize);
    let number = cx.q.stats.mini_batches as u32 - 1;
    cx.scratch.before.clone_from(&cx.q.top.hits);
    for at in from..to {
        let id = cx.own.candidates[at].1;
        let Ok(place) = cx.own.scored.binary_search_by_key(&id, |s| s.id) else { continue };
        let scored = cx.own.scored.remove(place);
        let found = Found::Candidate { rank: at as u32, batch: number };
        offer(cx, Hit { distance: scored.distance, external_id: scored.external_id }, found);
    }
    let mut others = core::mem::take(&mut cx.own.others);
    for hit in others.drain(..) {
        offer(cx, hit, Found::SameBlock { batch: number });
    }
    cx.own.others = others;
    let before = &cx.scratch.before;
    let q = &*cx.q;
    let is_of_use = |hit: &Hit| !q.is_bounded() || hit.distance <= q.known.bound;
    let is_new = |hit: &&Hit| is_of_use(hit) && before.binary_search_by(|b| b.order(hit)).is_err();
    let changed = cx.q.top.hits.iter().filter(is_new).count();
    if let Some(batch) = cx.scratch.trace.as_mut().and_then(|trace| trace.batches.last_mut()) {
        batch.changed = changed as u32;
    }
    if cx.params.rule != Rule::Changes {
        return false;
    }
    // Equation 3.
    let is_stable = changed as f32 <= cx.params.epsilon * cx.q.top.k as f32;
    cx.own.stable = if is_stable { cx.own.stable.saturating_add(1) } else { 0 };
    is_stable && cx.own.stable >= cx.params.beta
}

fn offer(cx: &mut StepContext<'_, GpuIvf>, hit: Hit, found: Found) {
    let is_result = cx.q.top.offer(hit.distance, || hit.external_id);
    if let Some(trace) = cx.scratch.trace.as_mut().filter(|_| is_result) {
        trace.found.push((hit.external_id, found));
    }
}

/// Scores the candidates in a block that was read.
pub(super) fn take(cx: &mut StepContext<'_, GpuIvf>, pending: &Pending, bytes: &[u8]) -> Option<()> {
    let asker = pending.read.note as usize;
    let place = place(cx, cx.own.candidates.get(asker)?.1);
    let block = Block::open(place.layout, bytes).ok()?;
    score_here(cx, asker, place.slot.map(|_| place.number), &block)
}

/// Scores the candidates in a block, and where all vectors count, the others too. Ids of vectors tell their slots,
/// unless the block is of another system: then `number` is its.
fn score_here(
    cx: &mut StepContext<'_, GpuIvf>,
    asker: usize,
    number: Option<u32>,
    block: &impl BlockRows,
) -> Option<()> {
    let own_id = cx.own.candidates.get(asker)?.1;
    let is_of_block = |cx: &StepContext<'_, GpuIvf>, id: u32| match number {
        Some(number) => place(cx, id).number == number,
        None => (id.wrapping_sub(block.first_id()) as usize) < block.count(),
    };
    let mut here = core::mem::take(&mut cx.scratch.here);
    here.clear();
    let left = cx.own.candidates.get(cx.own.batch.0 as usize..)?;
    here.extend(left.iter().map(|candidate| candidate.1).filter(|&id| is_of_block(cx, id)));
    if cx.params.whole_blocks && number.is_none() {
        score_others(cx, block, &here);
    }
    let (from, to) = (cx.own.batch.0 as usize, cx.own.batch.1 as usize);
    let in_batch = &cx.own.candidates[from..to];
    if !cx.params.merge {
        here.retain(|&id| id == own_id || (cx.params.reuse && in_batch.iter().all(|c| c.1 != id)));
    } else if !cx.params.reuse {
        here.retain(|&id| in_batch.iter().any(|c| c.1 == id));
    }
    let scored = here.iter().try_for_each(|&id| score(cx, id, block));
    cx.scratch.here = here;
    scored
}

/// Scores a candidate, unless that was done before. It waits for its mini-batch.
fn score(cx: &mut StepContext<'_, GpuIvf>, id: u32, block: &impl BlockRows) -> Option<()> {
    let Err(at) = cx.own.scored.binary_search_by_key(&id, |s| s.id) else { return Some(()) };
    let slot = place(cx, id).slot;
    let slot = slot.unwrap_or_else(|| id.wrapping_sub(block.first_id()) as usize);
    if slot >= block.count() {
        return None;
    }
    cx.q.stats.full_comparisons += 1;
    let (vector, inverse_norm) = block.row(slot);
    let distance = cx.exact.distance(vector, inverse_norm);
    cx.own.scored.insert(at, Scored { id, distance, external_id: block.external_id(slot) });
    Some(())
}

/// Scores the vectors of a block but for the candidates `here`. The near ones become results with the mini-batch.
fn score_others(cx: &mut StepContext<'_, GpuIvf>, block: &impl BlockRows, here: &[u32]) {
    let Scratch { exact, norms, .. } = &mut *cx.scratch;
    cx.exact.distances(block.vectors(), block.inverse_norms(norms), exact);
    let limit = cx.q.limit().unwrap_or(f32::INFINITY);
    for (slot, &distance) in exact.iter().enumerate() {
        let id = block.first_id().wrapping_add(slot as u32);
        let may_return = cx.q.exists(id) && cx.base.sieve.is_none_or(|sieve| sieve.has(id));
        if !may_return || here.contains(&id) {
            continue;
        }
        cx.q.stats.full_comparisons += 1;
        if distance <= limit && cx.own.others.len() < super::wire::OTHERS_MAX {
            cx.own.others.push(Hit { distance, external_id: block.external_id(slot) });
        }
    }
}
