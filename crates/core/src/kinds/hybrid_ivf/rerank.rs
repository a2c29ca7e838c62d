//! Re-ranks candidates by their vectors: those with the smallest estimates first, near ones in one read.
//!
//! Over servers the rounds are the same. A server that holds only a part of a round scores what it has, also of later
//! rounds, and hands the query over.

use alloc::vec::Vec;
use core::ops::Range;

use super::batch;
use super::scan::{estimate_limit, prune_candidates};
use super::visit::fetch;
use super::{HybridIvf, ReadKind, Scored, Scratch, Unread, View};
use crate::exact::score_record;
use crate::format::inverted_list::Record;
use crate::kinds::kind::StepContext;
use crate::place::Reach;
use crate::search::{Hit, Mode, Pending};

/// Asks for the candidates with the smallest estimates until at most `at_most` are left, `width` reads at a time.
/// `None` when the budget allows no more reads.
///
/// A round is `width` groups of near candidates, which become results together. A group whose records are in RAM, or
/// came with their list, needs no read; nothing else changes, so the answer does not depend on resident vectors.
pub(super) fn choose(cx: &mut StepContext<'_, HybridIvf>, at_most: usize) -> Option<()> {
    let width = cx.q.width as usize;
    prune_candidates(cx);
    while cx.own.candidates.len() > at_most && cx.q.io.pending.len() < width {
        // The smallest estimate last, to be taken from the end.
        cx.own.candidates.sort_unstable_by(|a, b| b.estimate.total_cmp(&a.estimate).then(b.id.cmp(&a.id)));
        if cx.base.here.is_some() && has_elsewhere(cx, width) {
            if cx.params.scores_remotely() {
                cx.scratch.elsewhere.clear();
                batch::ask_records(cx)?;
            }
            return read_ahead(cx, width);
        }
        let mut asked = false;
        for _ in cx.q.io.pending.len()..width {
            let Some(candidate) = cx.own.candidates.pop() else { break };
            asked |= ask(cx, candidate)?;
        }
        if asked && cx.q.mode == Mode::Barrier {
            break;
        }
        keep_round(cx)?;
    }
    Some(())
}

/// Whether the next round needs records of other servers. Notes their lists, and what of the round can be read here.
/// Candidates that no server can read are dropped.
fn has_elsewhere(cx: &mut StepContext<'_, HybridIvf>, width: usize) -> bool {
    let directory = cx.view.directory;
    let mut candidates = core::mem::take(&mut cx.own.candidates);
    candidates.retain(|c| {
        let list = directory.list_of(c.id);
        let is_lost = !is_known(cx, c.id) && cx.reach(list) == Reach::Nowhere;
        if is_lost {
            cx.q.give_up(list);
        }
        !is_lost
    });
    let Scratch { left, group, here, remote, .. } = &mut *cx.scratch;
    let [mut left, mut group, mut here, mut remote] = [left, group, here, remote].map(core::mem::take);
    let noted = cx.scratch.elsewhere.len();
    left.clone_from(&candidates);
    here.clear();
    remote.clear();
    for _ in cx.q.io.pending.len()..width {
        let Some(candidate) = left.pop() else { break };
        let limit = estimate_limit(cx);
        take_group(cx.view, candidate, (2 * cx.q.top.k as usize, limit), &mut left, &mut group, |_| true);
        for &c in &group {
            let list = directory.list_of(c.id);
            match cx.reach(list) {
                _ if is_scored(cx, c.id) => {}
                // In RAM here, and perhaps not on the next server.
                _ if cx.view.record_in_ram(c.id).is_some() => here.push(c),
                Reach::Here => here.push(c),
                Reach::Remote | Reach::Nowhere => {
                    remote.push(c);
                    cx.scratch.elsewhere.push(list);
                }
            }
        }
    }
    cx.own.candidates = candidates;
    (cx.scratch.left, cx.scratch.group) = (left, group);
    (cx.scratch.here, cx.scratch.remote) = (here, remote);
    cx.scratch.elsewhere.len() > noted
}

/// Before the query leaves for records of other servers: scores or asks for those of this one that the round needs, and
/// that later rounds are likely to need, so that it need not come back. What is scored waits for its round.
pub(super) fn read_ahead(cx: &mut StepContext<'_, HybridIvf>, width: usize) -> Option<()> {
    let directory = cx.view.directory;
    let mut here = core::mem::take(&mut cx.scratch.here);
    let mut group = core::mem::take(&mut cx.scratch.group);
    let limit = estimate_limit(cx);
    // Those of the round last, to be taken from the end.
    let of_round = here.len();
    for candidate in cx.own.candidates.iter().filter(|c| c.lower <= limit) {
        if here[..of_round].iter().all(|c| c.id != candidate.id) {
            here.push(*candidate);
        }
    }
    here.rotate_left(of_round);
    for &Unread { id, .. } in &here {
        let in_ram = cx.view.record_in_ram(id).filter(|_| !is_scored(cx, id));
        if let Some(record) = in_ram.and_then(|bytes| Record::open(&cx.view.shape, bytes)) {
            let scored = score_in_ram(cx, id, &record);
            keep_ahead(cx, scored);
        }
    }
    here.retain(|c| {
        let is_awaited = cx.own.awaited.iter().any(|a| a.1 == c.id);
        !is_awaited && !is_known(cx, c.id) && cx.reach(directory.list_of(c.id)) == Reach::Here
    });
    let mut asked = Some(());
    while asked.is_some() && cx.q.io.pending.len() < width {
        let Some(candidate) = here.pop() else { break };
        let list = directory.list_of(candidate.id);
        take_group(cx.view, candidate, (usize::MAX, limit), &mut here, &mut group, |c| {
            directory.list_of(c.id) == list
        });
        if cx.q.mode == Mode::Eager {
            cx.own.candidates.retain(|c| group.iter().all(|g| g.id != c.id));
        }
        asked = read_group(cx, &group).map(|_| ());
    }
    (cx.scratch.here, cx.scratch.group) = (here, group);
    asked
}

/// Makes results of the candidates of a round.
pub(super) fn keep_round(cx: &mut StepContext<'_, HybridIvf>) -> Option<()> {
    if cx.own.round.is_empty() {
        return Some(());
    }
    let mut round = core::mem::take(&mut cx.own.round);
    for id in round.drain(..) {
        let scored = match cx.own.scored.binary_search_by_key(&id, |s| s.id) {
            Ok(at) => cx.own.scored.remove(at),
            Err(_) => score_in_ram(cx, id, &Record::open(&cx.view.shape, cx.view.record_in_ram(id)?)?),
        };
        keep(cx, scored);
    }
    cx.own.round = round;
    prune_candidates(cx);
    Some(())
}

/// Scores a record that is in RAM.
fn score_in_ram(cx: &mut StepContext<'_, HybridIvf>, id: u32, record: &Record<'_>) -> Scored {
    match cx.view.is_resident(id) {
        true => cx.q.stats.resident_hits += 1,
        false => cx.q.stats.pinned_hits += 1,
    }
    score(cx, id, record)
}

pub(super) fn score(cx: &mut StepContext<'_, HybridIvf>, id: u32, record: &Record<'_>) -> Scored {
    let distance = score_record(cx.q, cx.exact, record);
    Scored { id, distance, external_id: record.external_id() }
}

/// Offers a candidate to the results, and keeps its distance for learning.
fn keep(cx: &mut StepContext<'_, HybridIvf>, scored: Scored) {
    offer(cx, scored);
    if cx.own.read.len() < READ_MAX {
        cx.own.read.push((scored.id, scored.distance));
    }
}

/// Offers a scored member to the results.
pub(super) fn offer(cx: &mut StepContext<'_, HybridIvf>, scored: Scored) {
    if !cx.q.top.offer(scored.distance, || scored.external_id) {
        return;
    }
    cx.own.results.push(scored);
    if cx.own.results.len() > 2 * cx.q.top.k as usize {
        keep_results(cx);
    }
}

/// Forgets the members that are no longer among the results.
pub(super) fn keep_results(cx: &mut StepContext<'_, HybridIvf>) {
    let hits = &cx.q.top.hits;
    let hit = |scored: &Scored| Hit { distance: scored.distance, external_id: scored.external_id };
    cx.own.results.retain(|scored| hits.binary_search_by(|h| h.order(&hit(scored))).is_ok());
}

/// Adds a candidate, and others near it in the file that are likely to be read anyway, to the round. Asks for those
/// whose distances are not known. Returns whether there are any.
fn ask(cx: &mut StepContext<'_, HybridIvf>, candidate: Unread) -> Option<bool> {
    let mut group = core::mem::take(&mut cx.scratch.group);
    let limit = estimate_limit(cx);
    take_group(
        cx.view,
        candidate,
        (2 * cx.q.top.k as usize, limit),
        &mut cx.own.candidates,
        &mut group,
        |_| true,
    );
    for candidate in &group {
        if cx.q.mode == Mode::Barrier || is_known(cx, candidate.id) {
            cx.own.round.push(candidate.id);
        }
    }
    group.retain(|candidate| !is_known(cx, candidate.id));
    let asked = read_group(cx, &group);
    cx.scratch.group = group;
    asked
}

/// Takes the candidates that are read with `candidate` out of the others, which are sorted: its neighbours in the file,
/// as long as one read can bring them. They are likely to be read anyway: they are among the last `likely`, or their
/// lower bound is within `limit`. A round depends on its candidates alone, not on which are known or where they are.
fn take_group(
    view: &View<'_>,
    candidate: Unread,
    (likely, limit): (usize, f32),
    candidates: &mut Vec<Unread>,
    group: &mut Vec<Unread>,
    may_join: impl Fn(&Unread) -> bool,
) {
    let near = ids_near(view, candidate.id);
    let unlikely = candidates.len().saturating_sub(likely);
    group.clear();
    group.extend(candidates.iter().enumerate().filter_map(|(i, c)| {
        let is_likely = i >= unlikely || c.lower <= limit;
        (is_likely && near.contains(&c.id) && may_join(c)).then_some(*c)
    }));
    group.push(candidate);
    group.sort_unstable_by_key(|c| view.directory.record_at(&view.shape, c.id));
    let run = run_around(view, group, candidate.id);
    group.truncate(run.end);
    group.drain(..run.start);
    if group.len() > 1 {
        candidates.retain(|c| !near.contains(&c.id) || group.iter().all(|member| member.id != c.id));
    }
}

/// The ids of all members whose records may be in one read with that of `id`, and of some others.
fn ids_near(view: &View<'_>, id: u32) -> Range<u32> {
    let (directory, longest) = (view.directory, u64::from(view.read_max));
    let (own, at) = (directory.list_of(id), directory.record_at(&view.shape, id));
    // Lists that have their records behind their codes lie apart from the others.
    let is_whole = directory.is_whole(&view.shape, own);
    let is_alike = |&list: &u32| directory.is_whole(&view.shape, list) == is_whole;
    let starts_at = |list: u32| directory.records[list as usize];
    let before = (0..own).rev().filter(is_alike).take_while(|&list| {
        at.saturating_sub(starts_at(list)) < longest + u64::from(directory.members(list)) * record_bytes(view)
    });
    let after = (own + 1..directory.list_count()).filter(is_alike);
    let after = after.take_while(|&list| starts_at(list).saturating_sub(at) < longest);
    let (first, last) = (before.last().unwrap_or(own), after.last().unwrap_or(own));
    directory.ids[first as usize]..directory.ids[last as usize + 1]
}

fn record_bytes(view: &View<'_>) -> u64 {
    view.shape.record_bytes() as u64
}

/// Candidates of `sorted`, by their places in the file, that one read brings with the member `id`. It grows to the
/// nearer side.
fn run_around(view: &View<'_>, sorted: &[Unread], id: u32) -> Range<usize> {
    let size = record_bytes(view);
    let at = |i: usize| view.directory.record_at(&view.shape, sorted[i].id);
    let skipped = |before: usize, after: usize| at(after).saturating_sub(at(before) + size);
    let fits = |from: usize, to: usize| at(to) + size - at(from) <= u64::from(view.read_max);
    let gap = u64::from(view.gap_max);
    let own = sorted.iter().position(|c| c.id == id).unwrap_or(0);
    let (mut low, mut high) = (own, own);
    loop {
        let before = (low > 0 && fits(low - 1, high)).then(|| skipped(low - 1, low));
        let after = (high + 1 < sorted.len() && fits(low, high + 1)).then(|| skipped(high, high + 1));
        match (before.filter(|&b| b <= gap), after.filter(|&a| a <= gap)) {
            (Some(before), after) if after.is_none_or(|after| before < after) => low -= 1,
            (_, Some(_)) => high += 1,
            _ => return low..high + 1,
        }
    }
}

/// Whether a candidate is scored and waits for its round.
fn is_scored(cx: &StepContext<'_, HybridIvf>, id: u32) -> bool {
    cx.own.scored.binary_search_by_key(&id, |s| s.id).is_ok()
}

/// Whether the distance of a candidate can be had without a read.
pub(super) fn is_known(cx: &StepContext<'_, HybridIvf>, id: u32) -> bool {
    is_scored(cx, id) || cx.view.record_in_ram(id).is_some()
}

/// Asks for the records of near candidates in one read. Where other servers hold lists, each list has a read of its
/// own: the bytes between two lists may be on another server. Returns whether there are any.
fn read_group(cx: &mut StepContext<'_, HybridIvf>, group: &[Unread]) -> Option<bool> {
    let list_of = |c: &Unread| cx.base.here.map(|_| cx.view.directory.list_of(c.id));
    let lists =
        group.iter().enumerate().filter(|&(i, c)| group[..i].iter().all(|b| list_of(b) != list_of(c)));
    for list in lists.map(|(_, c)| list_of(c)) {
        let (view, size) = (cx.view, cx.view.shape.record_bytes() as u64);
        let members = || {
            group
                .iter()
                .filter(|c| list_of(c) == list)
                .map(|c| (view.directory.record_at(&view.shape, c.id), c.id))
        };
        let (start, first) = members().min()?;
        let end = members().max()?.0 + size;
        let tag = fetch(cx, start, end - start, ReadKind::Records { first })?;
        cx.own.awaited.extend(members().map(|(_, id)| (tag, id)));
    }
    Some(!group.is_empty())
}

/// Most members read by a query that are kept for learning.
const READ_MAX: usize = 1024;

/// Scores a candidate before its round.
pub(super) fn score_ahead(cx: &mut StepContext<'_, HybridIvf>, id: u32, record: &Record<'_>) {
    let scored = score(cx, id, record);
    keep_ahead(cx, scored);
}

fn keep_ahead(cx: &mut StepContext<'_, HybridIvf>, scored: Scored) {
    let at = cx.own.scored.partition_point(|s| s.id < scored.id);
    cx.own.scored.insert(at, scored);
}

/// Scores the candidates of a read.
pub(super) fn take(cx: &mut StepContext<'_, HybridIvf>, pending: &Pending, bytes: &[u8]) -> Option<()> {
    let mut awaited = core::mem::take(&mut cx.own.awaited);
    let mut ok = Some(());
    for &(_, id) in awaited.iter().filter(|(tag, _)| *tag == pending.tag) {
        let at = cx.view.directory.record_at(&cx.view.shape, id).checked_sub(pending.read.at.offset);
        let record =
            at.and_then(|at| bytes.get(at as usize..)).and_then(|bytes| Record::open(&cx.view.shape, bytes));
        match record {
            Some(record) if cx.q.mode == Mode::Barrier => score_ahead(cx, id, &record),
            Some(record) => {
                let scored = score(cx, id, &record);
                keep(cx, scored);
            }
            None => ok = None,
        }
    }
    awaited.retain(|(tag, _)| *tag != pending.tag);
    cx.own.awaited = awaited;
    ok
}
