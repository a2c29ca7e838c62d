//! Best-first search over a graph whose nodes lie in blocks (BatANN algorithm 1, with blocks in the place of nodes).
//!
//! A block is read at most once per query: when it arrives each of its nodes is either expanded or refused by a full beam, and
//! what a full beam refused never comes back (see [`crate::query::Beam`]).

use alloc::vec::Vec;

use crate::format::block::Block;
use crate::place::bit;
use crate::plan::{Codes, GraphView, IndexView};
use crate::query::{Candidate, Outcome, Progress, QueryState, Scratch};
use crate::verify;

/// Computes the distances of a beam that came without: codes and tables are the same on every server, so they are those that were left out.
pub(crate) fn rescore(
    state: &mut QueryState,
    view: &IndexView<'_>,
    graph: &GraphView<'_>,
    scratch: &mut Scratch,
) {
    if core::mem::replace(&mut state.is_scored, true) {
        return;
    }
    let Codes::All(codes) = graph.codes else {
        // The candidates' codes are in blocks that are elsewhere. Such a state is refused at the door; what comes through all the same
        // looks again from the start.
        scratch.seen.clear(view.nodes);
        return state.begin_anew();
    };
    scratch.ids.clear();
    // A state from outside may name what is not there; it does no harm as a neighbour of the last node.
    let last = view.nodes.saturating_sub(1);
    scratch.ids.extend(state.beam.entries().iter().map(|c| c.id.min(last)));
    scratch.table.distances(codes, &scratch.ids, &mut scratch.distances);
    state.beam.rescore(&scratch.distances);
    scratch.seen.keep_new(&mut scratch.ids);
    state.stats.rescored += scratch.ids.len() as u64;
}

/// Follows the neighbours of every useful node of a block that arrived: those in the beam, and those that the beam would take.
///
/// `None` when a list makes no sense.
pub(crate) fn expand_block(
    state: &mut QueryState,
    graph: &GraphView<'_>,
    scratch: &mut Scratch,
    block: &Block<'_>,
) -> Option<()> {
    let first = block.first_id();
    score_own(graph, scratch, block)?;
    let mut mates = core::mem::take(&mut scratch.order_of_mates);
    mates.clear();
    state.stats.code_comparisons += scratch.distances.len() as u64;
    mates.extend((0..).zip(&scratch.distances).map(|(slot, &d)| (d, first.wrapping_add(slot))));
    // Closest first: it tightens the beam before the others are judged.
    mates.sort_unstable();
    let mut ok = Some(());
    for &(distance, id) in &mates {
        if id == state.params.exclude || !claim(state, distance, id) {
            continue;
        }
        let slot = id.wrapping_sub(first) as usize;
        if !state.params.whole_blocks {
            verify::score_slot(state, scratch, block, slot);
        }
        ok = offer_neighbours(state, graph, scratch, block, slot);
        if ok.is_none() {
            break;
        }
    }
    scratch.order_of_mates = mates;
    ok
}

/// Scores the nodes of a block by their codes. `None` when the block's codes make no sense.
fn score_own(graph: &GraphView<'_>, scratch: &mut Scratch, block: &Block<'_>) -> Option<()> {
    let Scratch { ids, coded, table, distances, .. } = scratch;
    let first = block.first_id();
    ids.clear();
    match graph.codes {
        Codes::All(codes) => {
            ids.extend((0..block.count() as u32).map(|slot| first.wrapping_add(slot)));
            table.distances(codes, ids, distances);
        }
        Codes::Head(_) => {
            block.coded_ids(coded)?;
            let own = coded.partition_point(|&id| id < first) as u32;
            ids.extend(own..own + block.count() as u32);
            table.distances(block.codes(), ids, distances);
        }
    }
    Some(())
}

/// Whether this node of a block at hand is to be expanded now; marks it so.
fn claim(state: &mut QueryState, distance: u32, id: u32) -> bool {
    if let Some(at) = state.beam.position(distance, id) {
        if state.beam.entries()[at].progress == Progress::Expanded {
            return false;
        }
        state.beam.mark(at, Progress::Expanded);
        return true;
    }
    state.params.whole_blocks && state.beam.offer(distance, id, Progress::Expanded)
}

/// Scores those neighbours of a node that were not met before by their codes and offers them to the beam. Where codes are in the block,
/// [`score_own`] has learned whose they are. `None` when the list makes no sense.
fn offer_neighbours(
    state: &mut QueryState,
    graph: &GraphView<'_>,
    scratch: &mut Scratch,
    block: &Block<'_>,
    slot: usize,
) -> Option<()> {
    let Scratch { ids, coded, ranks, seen, table, distances, .. } = scratch;
    ids.clear();
    match graph.codes {
        Codes::All(codes) => {
            block.neighbours(slot, ids)?;
            state.stats.repeats += seen.keep_new(ids) as u64;
            table.distances(codes, ids, distances);
        }
        Codes::Head(_) => {
            ranks.clear();
            block.ranks(slot, ranks)?;
            state.stats.repeats += seen.keep_new_of(coded, ranks) as u64;
            ids.extend(ranks.iter().map(|&rank| coded[rank as usize]));
            table.distances(block.codes(), ranks, distances);
        }
    }
    state.stats.expanded += 1;
    state.stats.code_comparisons += ids.len() as u64;
    for (&id, &distance) in ids.iter().zip(distances.iter()) {
        if distance < state.beam.threshold() && id != state.params.exclude {
            state.beam.offer(distance, id, Progress::Fresh);
        }
    }
    Some(())
}

/// Picks the blocks of the best fresh candidates, up to the width of the phase, or sends the query on, or ends it.
///
/// In a cluster the width counts blocks wherever they lie (BatANN algorithm 2): those of them at hand are read; only when none is, and
/// nothing is under way, does the query go to a home of the first. There it is read, so every hand-over is followed by a read, and a
/// query cannot be passed around for ever. A read that fails is made at another home, once at each.
pub(crate) fn choose(
    state: &mut QueryState,
    view: &IndexView<'_>,
    graph: &GraphView<'_>,
    scratch: &mut Scratch,
) {
    if state.outcome != Outcome::Running {
        return;
    }
    let width = width(state);
    let mut elsewhere = core::mem::take(&mut scratch.elsewhere);
    elsewhere.clear();
    let mut from = 0;
    while let Some(at) = state.beam.next_fresh(from) {
        let candidate = state.beam.entries()[at];
        if is_beyond(state, scratch, &candidate) {
            break;
        }
        from = at + 1;
        let block = graph.map.block_of(candidate.id);
        let is_new = !state.outstanding.iter().any(|o| o.block == block) && !elsewhere.contains(&block);
        let is_full = state.outstanding.len() + elsewhere.len() >= width;
        // Where it can be read, when not here: a home that tried in vain is not asked again.
        let homes =
            view.here.as_ref().map(|here| (here.server, here.live_homes(block) & !state.tried(block)));
        match homes.filter(|(server, homes)| homes & bit(*server) == 0) {
            Some((_, 0)) => {
                state.give_up(block);
                state.beam.mark(at, Progress::Expanded);
            }
            _ if is_new && is_full => break,
            Some(_) if is_new => elsewhere.push(block),
            Some(_) => {}
            None if is_new && (state.budget.hops == 0 || !state.fetch(view, block)) => {
                state.finish(Outcome::OutOfBudget);
                break;
            }
            None => state.beam.mark(at, Progress::Awaited),
        }
    }
    if state.outcome == Outcome::Running {
        settle(state, view, graph, &mut elsewhere);
    }
    scratch.elsewhere = elsewhere;
}

/// What the choice comes to: a round of reads, a hand-over, or the end.
fn settle(state: &mut QueryState, view: &IndexView<'_>, graph: &GraphView<'_>, elsewhere: &mut Vec<u32>) {
    if !state.wants.is_empty() {
        state.stats.hops += 1;
        state.budget.hops -= 1;
        return;
    }
    if !state.outstanding.is_empty() {
        return;
    }
    let Some(here) = view.here.as_ref().filter(|_| !elsewhere.is_empty()) else {
        let partial = state.stats.unreachable > 0;
        return state.finish(if partial { Outcome::Partial } else { Outcome::Complete });
    };
    look_ahead(state, graph, elsewhere);
    let tried = elsewhere.first().map_or(0, |&block| state.tried(block));
    match here.next(elsewhere, tried) {
        Some(server) if state.budget.hand_overs > 0 => {
            state.next_server = Some(server);
            state.budget.hand_overs -= 1;
            state.stats.hand_overs += 1;
        }
        _ => state.finish(Outcome::OutOfBudget),
    }
}

/// Unread blocks that are looked at to choose between the homes of the first.
const LOOK_AHEAD: usize = 8;

/// Adds the blocks that come after those of the width.
fn look_ahead(state: &mut QueryState, graph: &GraphView<'_>, blocks: &mut Vec<u32>) {
    let mut from = 0;
    while let Some(at) = state.beam.next_fresh(from).filter(|_| blocks.len() < LOOK_AHEAD) {
        from = at + 1;
        let block = graph.map.block_of(state.beam.entries()[at].id);
        if !blocks.contains(&block) {
            blocks.push(block);
        }
    }
}

/// Narrow while the search approaches, wide once it settles: from then on nearly all that is in the beam will be read anyway.
///
/// It settles when the best fresh candidate is no longer among the first k of the beam.
fn width(state: &mut QueryState) -> usize {
    let settled = state.beam.next_fresh(0).is_none_or(|at| at >= state.params.k as usize);
    if settled { state.params.width as usize } else { state.params.approach_width as usize }
}

/// The adaptive stop: with k results at hand, a candidate whose code says that it lies beyond the k-th of them, by more than codes err,
/// is not worth a read, nor is any after it. An easy query meets this early, a hard one late.
fn is_beyond(state: &QueryState, scratch: &Scratch, candidate: &Candidate) -> bool {
    if !state.is_full() {
        return false;
    }
    if state.params.patience > 0 && state.fruitless >= state.params.patience {
        return true;
    }
    let Some((worst, _)) = state.worst() else { return false };
    state.params.stop_slack < f32::INFINITY
        && scratch.estimate(candidate.distance) > scratch.expected_at_most(worst, state.params.stop_slack)
}
