//! Finds the lists with the nearest centroids, and the ids of their members (FusionANNS §3, steps 2 and 3).

use core::ops::Range;

use stratann_kernel::prefetch;

use super::{GpuIvf, Scratch};
use crate::kinds::kind::StepContext;
use crate::order::{from_order_key, order_key};
use crate::route::{lists_to_visit, to_centroid, walk};
use crate::search::{Beam, Progress, ScorerId, key as beam_key};

/// The beam is at least this long: shorter ones miss the nearest centroid.
const BEAM_MIN: u32 = 32;

/// The part of the lists for which a query with a sieve has more room, for those that it passes over.
const PASSED_OVER_PART: u32 = 4;

/// Centroids between that which is compared and that which is prefetched.
const PREFETCH_AHEAD: usize = 3;

/// Where few of the nearest lists have a row of the sieve, all lists have to be ranked. The codes of all its rows are
/// compared instead where these are no more than so many for each list: to rank a list takes as long as four codes, and
/// codes of the lists to visit come on top.
const ROWS_PER_LIST: u32 = 8;

/// Lists that are sorted rather than put into the beam one after another.
const SORTED_LISTS: usize = 1024;

/// Whether all rows of a sieve are ranked: then no lists are.
fn takes_all(cx: &StepContext<'_, GpuIvf>) -> bool {
    cx.base.sieve.is_some() && cx.params.nprobe >= cx.view.lists.count()
}

/// Ranks the lists to visit, the nearest first.
pub(super) fn rank_lists(cx: &mut StepContext<'_, GpuIvf>) {
    if takes_all(cx) {
        return cx.own.lists.clear();
    }
    let mut beams = [core::mem::take(&mut cx.scratch.beam)];
    let mut nodes = core::mem::take(&mut cx.scratch.nodes);
    let count = cx.view.lists.count();
    let wanted = cx.params.nprobe.min(count);
    let passed_over = if cx.base.sieve.is_some() { wanted / PASSED_OVER_PART + BEAM_MIN } else { 0 };
    beams[0].reset((wanted.max(BEAM_MIN) + passed_over) as usize);
    cx.scratch.visited.clear(count);
    walk(cx.view.nav, &mut nodes, &mut beams, |nodes, [beam]| score(cx, nodes, beam));
    let (mut wanted, mut are_all_ranked) = (wanted, false);
    if let Some(sieve) = cx.base.sieve {
        let to_visit = |cx: &StepContext<'_, GpuIvf>, beam: &Beam| {
            let nearest = beam.entries().iter().map(|entry| rows_of(cx, entry.id));
            lists_to_visit(sieve, (wanted, cx.q.far_tenths), cx.q.top.k, nearest)
        };
        let mut of_sieve = to_visit(cx, &beams[0]);
        let ranks_all = of_sieve.is_none_or(|lists| lists as usize > beams[0].entries().len());
        if ranks_all && sieve.count() <= count.saturating_mul(ROWS_PER_LIST) {
            cx.q.stats.gave_way += 1;
            [cx.scratch.beam] = beams;
            cx.scratch.nodes = nodes;
            return cx.own.lists.clear();
        }
        if of_sieve.is_none() {
            // Only the order of all lists tells how far away the rows are.
            nodes.clear();
            nodes.extend(0..count);
            beams[0].reset(count as usize);
            cx.scratch.visited.clear(count);
            score(cx, &mut nodes, &mut beams[0]);
            (of_sieve, are_all_ranked) = (to_visit(cx, &beams[0]), true);
        }
        wanted = wanted.max(of_sieve.unwrap_or(u32::MAX)).min(count);
        beams[0].retain(|list| cx.may_return_any(&rows_of(cx, list)));
    }
    if beams[0].entries().len() < wanted as usize && !are_all_ranked {
        // Some centroids cannot be reached in the graph, or have no list with a row that may be returned.
        nodes.clear();
        nodes.extend((0..count).filter(|&list| cx.may_return_any(&rows_of(cx, list))));
        if cx.base.sieve.is_some() {
            beams[0].reset(wanted as usize);
            cx.scratch.visited.clear(count);
        }
        score(cx, &mut nodes, &mut beams[0]);
    }
    cx.own.lists.clear();
    cx.own.lists.extend(beams[0].entries().iter().take(wanted as usize).map(|entry| entry.id));
    if let Some(trace) = &mut cx.scratch.trace {
        let distance = |entry: &crate::search::Candidate| from_order_key(entry.distance);
        trace.lists.extend(beams[0].entries().iter().take(wanted as usize).map(|e| (e.id, distance(e))));
    }
    [cx.scratch.beam] = beams;
    cx.scratch.nodes = nodes;
}

/// The members of a list. Its replicas are members of another one, too.
fn rows_of(cx: &StepContext<'_, GpuIvf>, list: u32) -> Range<u32> {
    let (first, count) = cx.view.lists.own(list);
    first..first + count
}

fn score(cx: &mut StepContext<'_, GpuIvf>, nodes: &mut alloc::vec::Vec<u32>, beam: &mut Beam) {
    let Scratch { query, visited, keys, moved, .. } = &mut *cx.scratch;
    cx.q.stats.repeats += visited.keep_new(nodes) as u64;
    cx.q.stats.code_comparisons += nodes.len() as u64;
    let is_sorted = nodes.len() > SORTED_LISTS;
    keys.clear();
    for (at, &node) in nodes.iter().enumerate() {
        if let Some(&ahead) = nodes.get(at + PREFETCH_AHEAD) {
            prefetch(cx.view.centroid(ahead));
        }
        let key = order_key(to_centroid(cx.base.metric, &query.wide, cx.view.centroid(node)));
        if key >= beam.threshold() {
            continue;
        }
        match is_sorted {
            true => keys.push(beam_key(key, node)),
            false => drop(beam.offer(key, node, Progress::Fresh)),
        }
    }
    beam.offer_all(keys, moved);
}

/// Collects the members of the ranked lists that may be returned, as a job for the scorer of codes. `None` when a list
/// is damaged.
pub(super) fn collect(cx: &mut StepContext<'_, GpuIvf>) -> Option<()> {
    // With a sieve some list is ranked, unless all rows are.
    let takes_all = cx.own.lists.is_empty();
    let Scratch { ranges, ids, .. } = &mut *cx.scratch;
    ranges.clear();
    ids.clear();
    if let Some(sieve) = cx.base.sieve.filter(|_| takes_all) {
        ids.extend(sieve.iter());
        return Some(());
    }
    for &list in &cx.own.lists {
        let own = cx.view.lists.own(list);
        match cx.base.sieve {
            Some(sieve) if sieve.count_in(own.0..own.0 + own.1) < own.1 => {
                ids.extend(sieve.iter_in(own.0..own.0 + own.1));
            }
            _ if own.1 > 0 => ranges.push(own),
            _ => {}
        }
        let replicas = ids.len();
        cx.view.lists.replicas_of(list, ids)?;
        if let Some(sieve) = cx.base.sieve {
            let kept = ids.split_off(replicas).into_iter().filter(|&id| sieve.has(id));
            ids.extend(kept);
        }
    }
    Some(())
}

/// Asks the scorer of codes for the nearest of the members. Only their ids are sent.
pub(super) fn ask(cx: &mut StepContext<'_, GpuIvf>) -> Option<()> {
    collect(cx)?;
    cx.scratch.keep = cx.params.candidates;
    cx.scratch.exclude = cx.q.exclude;
    let job = super::code_job(cx.scratch);
    cx.q.stats.gpu_bytes += job.sent_bytes();
    // Those that are scored are taken off when they are known.
    cx.q.stats.duplicates += job.count();
    cx.q.stats.lists += cx.own.lists.len() as u64;
    cx.q.io.score(ScorerId::Codes);
    Some(())
}
