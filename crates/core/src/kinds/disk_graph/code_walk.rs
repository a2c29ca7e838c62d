//! The search by codes: the walk follows codes alone, and the exact distances of the nearest candidates decide.
//!
//! A round follows the best fresh candidates, as many as the width allows, before any of their neighbours is offered to
//! the beam. So results depend on the parameters alone, not on what is in memory or which block comes first. Adjacency
//! lists and vectors that are in memory are used at once, within a step. Others are read with their blocks, in the same
//! rounds.

use alloc::vec::Vec;

use stratann_kernel::prefetch;

use super::resident::Resident;
use super::{Codes, DiskGraph, Scratch, enter, source, walk};
use crate::exact::ResidentRows;
use crate::format::block::Block;
use crate::kinds::kind::{Ordered, StepContext};
use crate::place::Reach;
use crate::search::{Outcome, Progress, key};

/// Most reads of candidates under way: all of them may be made at once.
pub const RERANK_READS: usize = 16;

/// Rows whose vectors are prefetched before one is compared.
const ROWS_AHEAD: usize = 4;

/// A node whose exact distance became known when its block was read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ScoredNode {
    pub(super) node: u32,
    pub(super) distance: f32,
    pub(super) external_id: u64,
}

/// Progress of a search by codes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CodeWalk {
    /// Whether the walk has ended, so that candidates are compared.
    pub(super) has_ended: bool,
    /// Nodes whose blocks were read.
    pub(super) scored: Vec<ScoredNode>,
}

impl CodeWalk {
    /// Memory beside the struct itself, bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.scored.capacity() * size_of::<ScoredNode>()
    }
}

/// Uses what arrived, walks on, and compares candidates once the walk has ended.
pub(super) fn step(cx: &mut StepContext<'_, DiskGraph>, arrived: Ordered<'_>) {
    walk::rescore(cx);
    if !cx.q.started {
        cx.q.started = true;
        enter::enter(cx);
    }
    let layout = cx.view.block;
    cx.scratch.keys.clear();
    cx.take_in(arrived, |cx, _, bytes| {
        let block = Block::open(layout, bytes).ok()?;
        if cx.own.walk.has_ended {
            score_candidates(cx, &block);
            return Some(());
        }
        expand_awaited(cx, &block)
    });
    offer_selected(cx);
    if cx.q.outcome == Outcome::Running && !cx.own.walk.has_ended && !super::gives_way(cx) {
        match &cx.view.resident {
            Some(resident) if cx.base.here.is_none() => walk_in_memory(cx, resident),
            _ => choose(cx),
        }
    }
    if cx.q.outcome == Outcome::Running && cx.own.walk.has_ended && !cx.own.gave_way {
        rerank(cx);
    }
}

/// Follows lists in memory until the walk has ended, or the step is long enough.
fn walk_in_memory(cx: &mut StepContext<'_, DiskGraph>, resident: &Resident<'_>) {
    let until = cx.q.stats.code_comparisons.saturating_add(resident.step_comparisons);
    let mut round = core::mem::take(&mut cx.scratch.round);
    while cx.q.stats.code_comparisons < until && !super::gives_way(cx) {
        round.clear();
        if !begin_round(cx, &mut round) {
            break;
        }
        // The list after those of this round is often the next one.
        if let Some(at) = cx.own.beam.next_fresh(0) {
            prefetch_list(resident, cx.own.beam.entries()[at].id);
        }
        follow(cx, resident, &round);
        offer_selected(cx);
    }
    // Another way, to which this one may give way, begins with no blocks in it.
    round.clear();
    cx.scratch.round = round;
}

/// Picks the best fresh candidates, in the order in which their blocks would be read. Returns false where the walk has
/// ended, or may not go on.
fn begin_round(cx: &mut StepContext<'_, DiskGraph>, round: &mut Vec<u32>) -> bool {
    let (width, mut from) = (walk::width(cx), 0);
    while round.len() < width {
        let Some(at) = cx.own.beam.next_fresh(from) else { break };
        from = at + 1;
        cx.own.beam.mark(at, Progress::Expanded);
        round.push(cx.own.beam.entries()[at].id);
    }
    if round.is_empty() {
        cx.own.walk.has_ended = true;
        return false;
    }
    if cx.q.budget.hops == 0 {
        cx.q.finish(Outcome::OutOfBudget);
        return false;
    }
    if round.len() > 1 {
        order_by_block(cx, round);
    }
    cx.q.count_hop();
    true
}

/// Brings candidates of one block together, behind the first of them.
fn order_by_block(cx: &mut StepContext<'_, DiskGraph>, round: &mut [u32]) {
    let map = cx.view.map;
    let blocks = &mut cx.scratch.remote_blocks;
    blocks.clear();
    for &id in round.iter() {
        let block = map.block_of(id);
        if !blocks.contains(&block) {
            blocks.push(block);
        }
    }
    round.sort_by_key(|&id| blocks.iter().position(|&block| block == map.block_of(id)));
}

/// Scores the neighbours of these nodes that were not met before, by their codes, and selects those that are near
/// enough.
fn follow(cx: &mut StepContext<'_, DiskGraph>, resident: &Resident<'_>, nodes: &[u32]) {
    let Codes::All(codes) = cx.view.codes else { return };
    let Scratch { ids, visited, query, distances, .. } = &mut *cx.scratch;
    ids.clear();
    let mut met = 0;
    for &node in nodes {
        let list = resident.lists.of(node);
        visited.append_new(list, ids);
        met += list.len();
    }
    super::keep_followed(cx.base.sieve, cx.own.among, ids);
    cx.q.stats.repeats += (met - ids.len()) as u64;
    query.coded.distances(codes, ids, distances);
    cx.q.stats.expanded += nodes.len() as u64;
    cx.q.stats.code_comparisons += ids.len() as u64;
    if let Some(nearest) = select(cx) {
        prefetch_list(resident, nearest);
    }
}

/// Selects the scored neighbours that are near enough for the beam. Returns the nearest.
fn select(cx: &mut StepContext<'_, DiskGraph>) -> Option<u32> {
    let Scratch { ids, distances, keys, .. } = &mut *cx.scratch;
    let (threshold, exclude) = (cx.own.beam.threshold(), cx.q.exclude);
    let first = keys.len();
    keys.resize(first + ids.len(), 0);
    let (mut kept, mut least) = (first, u64::MAX);
    // Without branches: which are near enough cannot be foreseen.
    for (&id, &distance) in ids.iter().zip(distances.iter()) {
        let is_near = distance < threshold && id != exclude;
        let key = key(distance, id);
        keys[kept] = key;
        kept += usize::from(is_near);
        least = least.min(if is_near { key } else { u64::MAX });
    }
    keys.truncate(kept);
    (kept > first).then_some(least as u32)
}

/// Offers the neighbours that a round has selected.
fn offer_selected(cx: &mut StepContext<'_, DiskGraph>) {
    let Scratch { keys, moved, .. } = &mut *cx.scratch;
    match keys[..] {
        [] => {}
        [key] => {
            cx.own.beam.offer((key >> 32) as u32, key as u32, Progress::Fresh);
        }
        _ => cx.own.beam.offer_all(keys, moved),
    }
    keys.clear();
}

fn prefetch_list(resident: &Resident<'_>, node: u32) {
    prefetch(bytemuck::cast_slice(resident.lists.of(node)));
}

/// Follows the awaited candidates of a block that arrived. `None` when an adjacency list is inconsistent.
fn expand_awaited(cx: &mut StepContext<'_, DiskGraph>, block: &Block<'_>) -> Option<()> {
    let first = block.first_id();
    if let Codes::Head(_) = cx.view.codes {
        block.coded_ids(&mut cx.scratch.coded)?;
    }
    for at in 0..cx.own.beam.entries().len() {
        let candidate = cx.own.beam.entries()[at];
        let slot = candidate.id.wrapping_sub(first) as usize;
        if candidate.progress != Progress::Awaited || slot >= block.count() {
            continue;
        }
        cx.own.beam.mark(at, Progress::Expanded);
        note(cx, block, slot);
        walk::score_neighbours(cx, block, slot)?;
        select(cx);
    }
    Some(())
}

/// Notes the exact distance of a node of a block.
fn note(cx: &mut StepContext<'_, DiskGraph>, block: &Block<'_>, slot: usize) {
    let distance = cx.exact.distance(block.vector(slot), block.inverse_norm(slot));
    let (node, external_id) = (block.first_id().wrapping_add(slot as u32), block.external_id(slot));
    cx.own.walk.scored.push(ScoredNode { node, distance, external_id });
}

/// Reads the blocks of the best fresh candidates, as many as the width allows, or sends the query on. The walk ends
/// where none is left and nothing is under way.
fn choose(cx: &mut StepContext<'_, DiskGraph>) {
    let width = walk::width(cx);
    let mut remote_blocks = core::mem::take(&mut cx.scratch.remote_blocks);
    remote_blocks.clear();
    let (mut chosen, mut from) = (cx.q.io.pending.len(), 0);
    while chosen < width
        && let Some(at) = cx.own.beam.next_fresh(from)
    {
        from = at + 1;
        let block = cx.view.map.block_of(cx.own.beam.entries()[at].id);
        match cx.reach(block) {
            Reach::Nowhere => {
                cx.q.give_up(block);
                cx.own.beam.mark(at, Progress::Expanded);
                continue;
            }
            Reach::Remote if !remote_blocks.contains(&block) => remote_blocks.push(block),
            Reach::Remote => {}
            Reach::Here => {
                if !cx.q.io.is_pending(block) && !source::read(cx, block) {
                    cx.q.finish(Outcome::OutOfBudget);
                    break;
                }
                cx.own.beam.mark(at, Progress::Awaited);
            }
        }
        chosen += 1;
    }
    if cx.q.outcome == Outcome::Running {
        let is_last = cx.q.io.pending.is_empty() && remote_blocks.is_empty();
        match is_last {
            true => cx.own.walk.has_ended = true,
            false => cx.end_round(&remote_blocks),
        }
    }
    cx.scratch.remote_blocks = remote_blocks;
}

/// Candidates that are compared: of those that may be returned, the nearest by their codes. Far from the query many lie
/// at nearly the same distance, so there all are.
fn candidates<'c>(cx: &'c StepContext<'_, DiskGraph>) -> impl Iterator<Item = u32> + 'c {
    let ids = cx.own.beam.entries().iter().map(|candidate| candidate.id);
    let most = if cx.own.among > 0 { usize::MAX } else { cx.params.rerank as usize };
    ids.filter(|&id| cx.may_return(id)).take(most)
}

/// Calls `f` with each of [`candidates`], until it returns false.
fn each_candidate(
    cx: &mut StepContext<'_, DiskGraph>,
    mut f: impl FnMut(&mut StepContext<'_, DiskGraph>, u32) -> bool,
) {
    let mut ids = core::mem::take(&mut cx.scratch.ids);
    ids.clear();
    ids.extend(candidates(cx));
    let _ = ids.iter().all(|&id| f(cx, id));
    cx.scratch.ids = ids;
}

/// Notes the exact distances of the candidates in a block that was read for them.
fn score_candidates(cx: &mut StepContext<'_, DiskGraph>, block: &Block<'_>) {
    each_candidate(cx, |cx, id| {
        let slot = id.wrapping_sub(block.first_id()) as usize;
        if slot < block.count() {
            note(cx, block, slot);
        }
        true
    });
}

/// Compares the nearest candidates, and ends the query. Where some are not known yet, their blocks are read.
fn rerank(cx: &mut StepContext<'_, DiskGraph>) {
    let resident = cx.view.resident.filter(|_| cx.base.here.is_none());
    if let Some(rows) = resident.and_then(|resident| resident.rows) {
        compare(cx, rows);
        return cx.end_round(&[]);
    }
    if !cx.q.io.pending.is_empty() {
        return;
    }
    cx.own.walk.scored.sort_unstable_by_key(|scored| scored.node);
    let mut remote_blocks = core::mem::take(&mut cx.scratch.remote_blocks);
    remote_blocks.clear();
    find_unknown(cx, &mut remote_blocks);
    let is_waiting = cx.q.outcome != Outcome::Running || !cx.q.io.pending.is_empty();
    if !is_waiting {
        if remote_blocks.is_empty() {
            each_candidate(cx, |cx, id| {
                if let Some(scored) = known(cx, id) {
                    cx.q.stats.full_comparisons += 1;
                    cx.q.top.offer(scored.distance, || scored.external_id);
                }
                true
            });
        }
        cx.end_round(&remote_blocks);
    }
    cx.scratch.remote_blocks = remote_blocks;
}

fn known(cx: &StepContext<'_, DiskGraph>, node: u32) -> Option<ScoredNode> {
    let scored = &cx.own.walk.scored;
    scored.binary_search_by_key(&node, |scored| scored.node).ok().map(|at| scored[at])
}

/// Asks for the blocks of candidates that are not known, and collects those on other servers.
fn find_unknown(cx: &mut StepContext<'_, DiskGraph>, remote_blocks: &mut Vec<u32>) {
    each_candidate(cx, |cx, id| {
        if known(cx, id).is_some() {
            return true;
        }
        let block = cx.view.map.block_of(id);
        match cx.reach(block) {
            _ if cx.q.io.is_pending(block) || remote_blocks.contains(&block) => {}
            Reach::Nowhere => cx.q.give_up(block),
            Reach::Remote => remote_blocks.push(block),
            Reach::Here if cx.q.io.pending.len() >= RERANK_READS => return false,
            Reach::Here if source::read(cx, block) => {}
            Reach::Here => {
                cx.q.finish(Outcome::OutOfBudget);
                return false;
            }
        }
        true
    });
}

/// Compares the nearest candidates with rows in memory.
fn compare(cx: &mut StepContext<'_, DiskGraph>, rows: &ResidentRows) {
    let mut ids = core::mem::take(&mut cx.scratch.ids);
    ids.clear();
    ids.extend(candidates(cx));
    let ahead = |id: Option<&u32>| {
        if let Some((vector, _)) = id.and_then(|&id| rows.vector(id)) {
            prefetch(vector);
        }
    };
    (0..ROWS_AHEAD).for_each(|at| ahead(ids.get(at)));
    for (at, &id) in ids.iter().enumerate() {
        ahead(ids.get(at + ROWS_AHEAD));
        let Some((vector, inverse_norm)) = rows.vector(id) else { continue };
        let distance = cx.exact.distance(vector, inverse_norm);
        cx.q.stats.full_comparisons += 1;
        cx.q.top.offer(distance, || rows.external_id(id));
    }
    cx.scratch.ids = ids;
}
