//! Re-ranks candidates by their vectors: those with the smallest estimates first, near ones in one read.

use super::scan::prune_candidates;
use super::visit::fetch;
use super::{Marker, ReadKind, Scored, Unread};
use crate::format::inverted_list::Record;
use crate::plan::Cx;
use crate::search::{Hit, Mode, Pending, Tag};
use crate::verify::score_record;

/// Asks for the candidates with the smallest estimates until at most `at_most` are left, `width` reads at a time.
/// `None` when the budget allows no more reads.
///
/// A round is `width` groups of near candidates, which become results together. A group whose records are in RAM, or
/// came with their list, needs no read; nothing else changes, so the answer does not depend on resident vectors.
pub(super) fn choose(cx: &mut Cx<'_, Marker>, at_most: usize) -> Option<()> {
    let width = cx.q.width as usize;
    prune_candidates(cx);
    while cx.own.candidates.len() > at_most && cx.q.io.pending.len() < width {
        // The smallest estimate last, to be taken from the end.
        cx.own.candidates.sort_unstable_by(|a, b| b.estimate.total_cmp(&a.estimate).then(b.id.cmp(&a.id)));
        let mut asked = false;
        for _ in cx.q.io.pending.len()..width {
            let Some(candidate) = cx.own.candidates.pop() else { break };
            asked |= ask(cx, candidate)?;
        }
        if asked && cx.q.mode == Mode::Barrier {
            break;
        }
        settle(cx)?;
    }
    Some(())
}

/// Makes results of the candidates of a round.
pub(super) fn settle(cx: &mut Cx<'_, Marker>) -> Option<()> {
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
fn score_in_ram(cx: &mut Cx<'_, Marker>, id: u32, record: &Record<'_>) -> Scored {
    match cx.view.is_resident(id) {
        true => cx.q.stats.resident_hits += 1,
        false => cx.q.stats.pinned_hits += 1,
    }
    score(cx, id, record)
}

pub(super) fn score(cx: &mut Cx<'_, Marker>, id: u32, record: &Record<'_>) -> Scored {
    let distance = score_record(cx.q, cx.exact, record);
    Scored { id, distance, external_id: record.external_id() }
}

/// Offers a candidate to the results, and keeps its distance for learning.
fn keep(cx: &mut Cx<'_, Marker>, scored: Scored) {
    offer(cx, scored);
    if cx.own.read.len() < READ_MAX {
        cx.own.read.push((scored.id, scored.distance));
    }
}

/// Offers a scored member to the results.
pub(super) fn offer(cx: &mut Cx<'_, Marker>, scored: Scored) {
    if !cx.q.top.offer(scored.distance, || scored.external_id) {
        return;
    }
    cx.own.results.push(scored);
    if cx.own.results.len() > 2 * cx.q.top.k as usize {
        keep_results(cx);
    }
}

/// Forgets the members that are no longer among the results.
pub(super) fn keep_results(cx: &mut Cx<'_, Marker>) {
    let hits = &cx.q.top.hits;
    let hit = |scored: &Scored| Hit { distance: scored.distance, external_id: scored.external_id };
    cx.own.results.retain(|scored| hits.binary_search_by(|h| h.order(&hit(scored))).is_ok());
}

/// The records of a group that have to be read: their range in the file, and the first of them.
struct Wanted {
    start: u64,
    end: u64,
    first: u32,
}

/// Adds a candidate, and others near it in the file that are likely to be read anyway, to the round. Asks in one read
/// for those whose distances are not known. Returns whether there are any.
fn ask(cx: &mut Cx<'_, Marker>, candidate: Unread) -> Option<bool> {
    let size = cx.view.shape.record_bytes() as u64;
    let view = cx.view;
    let at = |c: &Unread| view.directory.record_at(&view.shape, c.id);
    let (mut start, mut end) = (at(&candidate), at(&candidate) + size);
    let (gap, longest) = (u64::from(cx.view.gap_max), u64::from(cx.view.read_max));
    let mut wanted = Wanted { start: u64::MAX, end: 0, first: candidate.id };
    add(cx, &mut wanted, candidate.id, start);
    let likely = cx.own.candidates.len().saturating_sub(2 * cx.q.top.k as usize);
    let mut i = cx.own.candidates.len();
    while i > likely {
        i -= 1;
        let other = cx.own.candidates[i];
        let from = at(&other);
        let (low, high) = (start.min(from), end.max(from + size));
        let is_near = from <= end + gap && from + size + gap >= start;
        if is_near && high - low <= longest {
            (start, end) = (low, high);
            cx.own.candidates.remove(i);
            add(cx, &mut wanted, other.id, from);
            // One that was too far from the first may be near to this one.
            i = cx.own.candidates.len();
        }
    }
    if wanted.end == 0 {
        return Some(false);
    }
    fetch(cx, wanted.start, wanted.end - wanted.start, ReadKind::Records { first: wanted.first })?;
    Some(true)
}

/// Adds a candidate to the round, and to the next read when its distance is not known.
fn add(cx: &mut Cx<'_, Marker>, wanted: &mut Wanted, id: u32, at: u64) {
    let is_scored = cx.own.scored.binary_search_by_key(&id, |s| s.id).is_ok();
    let is_known = is_scored || cx.view.record_in_ram(id).is_some();
    if is_known || cx.q.mode == Mode::Barrier {
        cx.own.round.push(id);
    }
    if !is_known {
        cx.own.awaited.push((Tag(cx.q.io.next_tag), id));
        if at < wanted.start {
            (wanted.start, wanted.first) = (at, id);
        }
        wanted.end = wanted.end.max(at + cx.view.shape.record_bytes() as u64);
    }
}

/// Most members read by a query that are kept for learning.
const READ_MAX: usize = 1024;

/// Scores a candidate before its round.
pub(super) fn score_ahead(cx: &mut Cx<'_, Marker>, id: u32, record: &Record<'_>) {
    let scored = score(cx, id, record);
    let at = cx.own.scored.partition_point(|s| s.id < id);
    cx.own.scored.insert(at, scored);
}

/// Scores the candidates of a read.
pub(super) fn take(cx: &mut Cx<'_, Marker>, pending: &Pending, bytes: &[u8]) -> Option<()> {
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
