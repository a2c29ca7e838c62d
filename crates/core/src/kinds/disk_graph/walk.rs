//! Best-first search over a graph whose nodes lie in blocks (BatANN algorithm 1, with blocks in the place of nodes).
//!
//! A block is read at most once per query: when it arrives each of its nodes is either expanded or refused by a full
//! beam, and what a full beam refused never comes back (see [`crate::search::Beam`]).

use alloc::vec::Vec;

use super::source::{self, Source};
use super::stop::Seen;
use super::{Codes, DiskGraph, Scratch, View, enter, forget_visited, restart};
use crate::exact;
use crate::format::block::Block;
use crate::kinds::kind::{Ordered, StepContext};
use crate::place::Reach;
use crate::search::{Candidate, Outcome, Progress};

/// Uses what arrived, and reads the blocks of the best candidates.
pub(super) fn step(cx: &mut StepContext<'_, DiskGraph>, arrived: Ordered<'_>) {
    rescore(cx);
    if !cx.q.started {
        cx.q.started = true;
        enter::enter(cx);
    }
    // A server reads what it holds of the best W. While something better is unread on another server, a read that
    // changes nothing does not show that the search has nothing left to find.
    let counts = cx.base.here.is_none() || !cx.own.beam.awaits_behind_fresh();
    let layout = cx.view.block;
    cx.take_in(arrived, |cx, _, bytes| use_block(cx, &Block::open(layout, bytes).ok()?, counts));
    let choose_round = |cx: &mut StepContext<'_, DiskGraph>| {
        if !super::gives_way(cx) {
            choose(cx);
        }
    };
    source::go_on(cx, choose_round, |cx, block| {
        // Lists in memory are consistent.
        let _ = use_block(cx, block, true);
    });
}

/// Computes the distances of a beam that was decoded without them. Codes and tables are the same on every server, so
/// the distances are, too.
pub(crate) fn rescore(cx: &mut StepContext<'_, DiskGraph>) {
    if core::mem::replace(&mut cx.own.is_scored, true) {
        return;
    }
    let Codes::All(codes) = cx.view.codes else {
        // The codes of the candidates are in blocks of other servers. Such a state is refused on arrival; one that
        // was not begins again.
        forget_visited(cx.base, cx.scratch);
        return restart(cx);
    };
    cx.scratch.ids.clear();
    // A state from outside may name nodes that do not exist; they are scored as the last node.
    let last = cx.base.nodes.saturating_sub(1);
    cx.scratch.ids.extend(cx.own.beam.entries().iter().map(|c| c.id.min(last)));
    cx.scratch.query.coded.distances(codes, &cx.scratch.ids, &mut cx.scratch.distances);
    cx.own.beam.rescore(&cx.scratch.distances);
    cx.scratch.visited.keep_new(&mut cx.scratch.ids);
    cx.q.stats.rescored += cx.scratch.ids.len() as u64;
}

/// Compares the vectors of a block and follows its nodes, as far as the search uses them. Where it `counts`, it is
/// noted whether the results have changed.
///
/// `None` when an adjacency list is inconsistent.
pub(super) fn use_block(
    cx: &mut StepContext<'_, DiskGraph>,
    block: &impl Source,
    counts: bool,
) -> Option<()> {
    let before = cx.q.last_useful();
    if cx.params.whole_blocks {
        exact::score_block(cx.q, cx.exact, cx.base.sieve, &mut cx.scratch.blocks, block);
    }
    // A block that could not change the results says nothing of those that are left.
    let first = block.first_id();
    let is_vain = !cx.may_return_any(&(first..first.saturating_add(block.count() as u32)));
    cx.q.stats.vain_blocks += u64::from(is_vain);
    let counts = counts && !is_vain;
    let expanded = expand_block(cx, block);
    let changed = cx.q.last_useful() != before;
    let reads = cx.own.reads_without_change;
    cx.own.reads_without_change = if changed { 0 } else { reads.saturating_add(u32::from(counts)) };
    expanded
}

/// Follows the neighbours of every useful node of a block: those in the beam, and those that the beam would take.
///
/// `None` when an adjacency list is inconsistent.
fn expand_block(cx: &mut StepContext<'_, DiskGraph>, block: &impl Source) -> Option<()> {
    let first = block.first_id();
    score_own(cx.view, cx.scratch, block)?;
    let mut nodes = core::mem::take(&mut cx.scratch.block_nodes);
    nodes.clear();
    cx.q.stats.code_comparisons += cx.scratch.distances.len() as u64;
    nodes.extend((0..).zip(&cx.scratch.distances).map(|(slot, &d)| (d, first.wrapping_add(slot))));
    // Closest first: it tightens the beam before the others are judged.
    nodes.sort_unstable();
    let mut ok = Some(());
    for &(distance, id) in &nodes {
        if !is_followed(cx, id) || !claim(cx, distance, id) {
            continue;
        }
        let slot = id.wrapping_sub(first) as usize;
        if !cx.params.whole_blocks && cx.may_return(id) {
            exact::score_slot(cx.q, cx.exact, block, slot);
        }
        ok = offer_neighbours(cx, block, slot);
        if ok.is_none() {
            break;
        }
    }
    cx.scratch.block_nodes = nodes;
    ok
}

fn is_followed(cx: &StepContext<'_, DiskGraph>, id: u32) -> bool {
    if cx.own.among > 0 { cx.may_return(id) } else { cx.q.exists(id) }
}

/// Scores the nodes of a block by their codes. `None` when the block's codes are inconsistent.
fn score_own(view: &View<'_>, scratch: &mut Scratch, block: &impl Source) -> Option<()> {
    let Scratch { ids, coded, query, distances, .. } = scratch;
    let of_query = &query.coded;
    let first = block.first_id();
    ids.clear();
    match view.codes {
        Codes::All(codes) => {
            ids.extend((0..block.count() as u32).map(|slot| first.wrapping_add(slot)));
            of_query.distances(codes, ids, distances);
        }
        Codes::Head(_) => {
            let block = block.as_read()?;
            block.coded_ids(coded)?;
            let own = coded.partition_point(|&id| id < first) as u32;
            ids.extend(own..own + block.count() as u32);
            of_query.distances(block.codes(), ids, distances);
        }
    }
    Some(())
}

/// Whether this node of the block is to be expanded now; marks it as expanded.
fn claim(cx: &mut StepContext<'_, DiskGraph>, distance: u32, id: u32) -> bool {
    if let Some(at) = cx.own.beam.position(distance, id) {
        if cx.own.beam.entries()[at].progress == Progress::Expanded {
            return false;
        }
        cx.own.beam.mark(at, Progress::Expanded);
        return true;
    }
    cx.params.whole_blocks && cx.own.beam.offer(distance, id, Progress::Expanded)
}

/// Scores the neighbours of a node that were not visited before by their codes and offers them to the beam. Where
/// codes are in the block, [`score_own`] has read whose they are. `None` when the adjacency list is inconsistent.
fn offer_neighbours(cx: &mut StepContext<'_, DiskGraph>, block: &impl Source, slot: usize) -> Option<()> {
    score_neighbours(cx, block, slot)?;
    let Scratch { ids, distances, .. } = &mut *cx.scratch;
    for (&id, &distance) in ids.iter().zip(distances.iter()) {
        if distance < cx.own.beam.threshold() && cx.q.exists(id) {
            cx.own.beam.offer(distance, id, Progress::Fresh);
        }
    }
    Some(())
}

/// Scores the neighbours of a node that were not visited before by their codes. Where codes are in the block, `coded`
/// has whose they are. `None` when the adjacency list is inconsistent.
pub(super) fn score_neighbours(
    cx: &mut StepContext<'_, DiskGraph>,
    block: &impl Source,
    slot: usize,
) -> Option<()> {
    let Scratch { ids, coded, ranks, visited, query, distances, .. } = &mut *cx.scratch;
    ids.clear();
    match cx.view.codes {
        Codes::All(codes) => {
            cx.q.stats.repeats += block.new_neighbours(slot, visited, ids)? as u64;
            cx.q.stats.repeats += super::keep_followed(cx.base.sieve, cx.own.among, ids);
            query.coded.distances(codes, ids, distances);
        }
        Codes::Head(_) => {
            let block = block.as_read()?;
            ranks.clear();
            block.ranks(slot, ranks)?;
            cx.q.stats.repeats += visited.keep_new_of(coded, ranks) as u64;
            ids.extend(ranks.iter().map(|&rank| coded[rank as usize]));
            query.coded.distances(block.codes(), ranks, distances);
        }
    }
    cx.q.stats.expanded += 1;
    cx.q.stats.code_comparisons += ids.len() as u64;
    Some(())
}

/// Picks the blocks of the best fresh candidates, up to the width of the phase, or sends the query on, or ends it.
///
/// In memory they are a round, which is used within the step. In a cluster the width counts blocks on any server
/// (BatANN algorithm 2). Local ones are read. When none is local and nothing is under way, the query goes to a replica
/// of the first. A read that fails is made at another replica, once at each.
pub(super) fn choose(cx: &mut StepContext<'_, DiskGraph>) {
    let width = width(cx);
    let mut remote_blocks = core::mem::take(&mut cx.scratch.remote_blocks);
    remote_blocks.clear();
    let (mut from, mut is_bounded) = (0, false);
    let is_near = cx.own.beam.next_fresh(0).is_some_and(|at| at >= APPROACHED);
    while let Some(at) = cx.own.beam.next_fresh(from) {
        let candidate = cx.own.beam.entries()[at];
        if is_beyond(cx, &candidate, cx.q.kth()) {
            break;
        }
        // While the search approaches, candidates are beyond every limit for being far from the query.
        if is_near && cx.q.is_limit_smaller() && is_beyond(cx, &candidate, cx.q.limit()) {
            is_bounded = true;
            break;
        }
        from = at + 1;
        let block = cx.view.map.block_of(candidate.id);
        let is_new = !source::is_asked(cx, block) && !remote_blocks.contains(&block);
        let is_full = source::asked(cx) + remote_blocks.len() >= width;
        match cx.reach(block) {
            Reach::Nowhere => {
                cx.q.give_up(block);
                cx.own.beam.mark(at, Progress::Expanded);
            }
            _ if is_new && is_full => break,
            Reach::Remote if is_new => remote_blocks.push(block),
            Reach::Remote => {}
            Reach::Here if is_new && !source::ask(cx, block) => {
                cx.q.finish(Outcome::OutOfBudget);
                break;
            }
            Reach::Here => cx.own.beam.mark(at, Progress::Awaited),
        }
    }
    if cx.q.outcome == Outcome::Running {
        if !remote_blocks.is_empty() && cx.q.io.pending.is_empty() {
            look_ahead(cx, &mut remote_blocks);
        }
        source::end_round(cx, &remote_blocks);
    }
    if is_bounded && cx.q.outcome != Outcome::Running {
        let fresh = cx.own.beam.entries().iter().filter(|c| c.progress == Progress::Fresh);
        cx.q.stats.bounded += fresh.count() as u64;
    }
    cx.scratch.remote_blocks = remote_blocks;
}

/// The nearest candidates that a walk has followed before results of other indexes may end it.
const APPROACHED: usize = 1;

/// Unread blocks that decide between the replicas of the first.
const LOOK_AHEAD: usize = 8;

/// Adds the next unread blocks after those of the width.
fn look_ahead(cx: &mut StepContext<'_, DiskGraph>, blocks: &mut Vec<u32>) {
    let mut from = 0;
    while let Some(at) = cx.own.beam.next_fresh(from).filter(|_| blocks.len() < LOOK_AHEAD) {
        from = at + 1;
        let block = cx.view.map.block_of(cx.own.beam.entries()[at].id);
        if !blocks.contains(&block) {
            blocks.push(block);
        }
    }
}

/// Narrow while the search approaches, wide once it settles: from then on nearly all that is in the beam will be read
/// anyway.
///
/// It settles when the best fresh candidate is no longer among the first k of the beam.
pub(super) fn width(cx: &mut StepContext<'_, DiskGraph>) -> usize {
    let settled = cx.own.beam.next_fresh(0).is_none_or(|at| at >= cx.q.top.k as usize);
    if settled { cx.q.width as usize } else { cx.q.approach_width as usize }
}

/// The adaptive stop: a candidate whose code distance lies beyond the worst result that is of use by more than codes
/// err is not read, nor is any after it. An easy query stops early, a hard one late.
fn is_beyond(cx: &StepContext<'_, DiskGraph>, candidate: &Candidate, worst: Option<f32>) -> bool {
    // Among rows far from the query many lie at nearly the same distance, in all directions: there the beam ends it.
    let Some(worst) = worst.filter(|_| cx.own.among == 0) else { return false };
    let estimate = cx.scratch.estimate(candidate.distance);
    let is_farther = |slack: f32| {
        slack < f32::INFINITY && estimate > cx.scratch.expected.at_most(&cx.scratch.query, worst, slack)
    };
    if super::scans_codes(cx) {
        return is_farther(cx.params.sieving.slack);
    }
    if cx.params.patience > 0 && cx.own.reads_without_change >= cx.params.patience {
        return true;
    }
    if cx.params.stop_margin < f32::INFINITY {
        let seen = Seen {
            candidate: estimate,
            limit: cx.scratch.expected.within(&cx.scratch.query, worst, cx.params.stop_margin),
            reads: (cx.q.stats.reads_asked() + u64::from(cx.own.blocks_in_memory))
                .saturating_sub(cx.q.stats.vain_blocks),
            reads_without_change: cx.own.reads_without_change,
        };
        if seen.is_final(cx.params.idle_share) {
            return true;
        }
    }
    is_farther(cx.params.stop_slack)
}
