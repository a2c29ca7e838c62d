//! Re-ranks candidates by their vectors: those with the smallest estimates first, near ones in one read.

use super::scan::{prune_candidates, threshold};
use super::visit::fetch;
use super::{Marker, ReadKind, Scored, Unread};
use crate::format::inverted_list::Record;
use crate::plan::Cx;
use crate::search::{Pending, Tag};
use crate::verify::score_record;

/// Settles the candidates with the smallest estimates, and asks for the next ones until `width` reads are under way. `None` when the
/// budget allows no more reads.
///
/// Candidates become results in the order of their estimates, whatever is read first, so the answer depends neither on resident vectors
/// nor on the width. At most `at_most` candidates are left to be settled later.
pub(super) fn choose(cx: &mut Cx<'_, Marker>, at_most: usize) -> Option<()> {
    prune_candidates(cx);
    // The smallest estimate last, to be taken from the end.
    cx.own.candidates.sort_unstable_by(|a, b| b.estimate.total_cmp(&a.estimate).then(b.id.cmp(&a.id)));
    settle(cx, at_most)?;
    if cx.own.candidates.len() <= at_most {
        return Some(());
    }
    while cx.q.io.pending.len() < cx.q.width as usize {
        let Some(next) = cx.own.candidates.iter().rposition(|c| is_on_disk(cx, c.id)) else { break };
        let candidate = cx.own.candidates.remove(next);
        ask(cx, candidate)?;
    }
    Some(())
}

/// Makes results of the candidates with the smallest estimates, one after another, until `at_most` are left or the distance of the next
/// one is not known.
fn settle(cx: &mut Cx<'_, Marker>, at_most: usize) -> Option<()> {
    let mut limit = threshold(cx);
    while cx.own.candidates.len() > at_most {
        let Some(&Unread { id, .. }) = cx.own.candidates.last() else { break };
        let scored = match cx.own.scored.binary_search_by_key(&id, |s| s.id) {
            Ok(at) => cx.own.scored.remove(at),
            Err(_) => {
                let Some(bytes) = cx.view.record_in_ram(id) else { break };
                score_in_ram(cx, id, &Record::open(&cx.view.shape, bytes)?)
            }
        };
        cx.own.candidates.pop();
        cx.q.top.offer(scored.distance, || scored.external_id);
        if cx.own.read.len() < READ_MAX {
            cx.own.read.push((id, scored.distance));
        }
        if threshold(cx) < limit {
            limit = threshold(cx);
            prune_candidates(cx);
        }
    }
    Some(())
}

/// Scores a record that is in RAM.
fn score_in_ram(cx: &mut Cx<'_, Marker>, id: u32, record: &Record<'_>) -> Scored {
    match cx.view.is_resident(id) {
        true => cx.q.stats.resident_hits += 1,
        false => cx.q.stats.pinned_hits += 1,
    }
    let distance = score_record(cx.q, cx.exact, record);
    Scored { id, distance, external_id: record.external_id() }
}

/// Whether the distance of a candidate takes a read.
fn is_on_disk(cx: &Cx<'_, Marker>, id: u32) -> bool {
    cx.own.scored.binary_search_by_key(&id, |s| s.id).is_err() && cx.view.record_in_ram(id).is_none()
}

/// Asks for one candidate, and in the same read for others near it in the file that are likely to be read anyway.
fn ask(cx: &mut Cx<'_, Marker>, candidate: Unread) -> Option<()> {
    let size = cx.view.shape.record_bytes() as u64;
    let view = cx.view;
    let at = |c: &Unread| view.directory.record_at(&view.shape, c.id);
    let (mut start, mut end) = (at(&candidate), at(&candidate) + size);
    let (gap, longest) = (u64::from(cx.view.gap_max), u64::from(cx.view.read_max));
    let tag = Tag(cx.q.io.next_tag);
    let mut first = candidate.id;
    cx.own.awaited.push((tag, candidate));
    let likely = cx.own.candidates.len().saturating_sub(2 * cx.q.top.k as usize);
    let mut i = cx.own.candidates.len();
    while i > likely {
        i -= 1;
        let other = cx.own.candidates[i];
        let from = at(&other);
        let (low, high) = (start.min(from), end.max(from + size));
        let is_near = from <= end + gap && from + size + gap >= start;
        if is_near && high - low <= longest && is_on_disk(cx, other.id) {
            if low < start {
                first = other.id;
            }
            (start, end) = (low, high);
            cx.own.candidates.remove(i);
            cx.own.awaited.push((tag, other));
            // One that was too far from the first may be near to this one.
            i = cx.own.candidates.len();
        }
    }
    fetch(cx, start, end - start, ReadKind::Records { first }).map(|_| ())
}

/// Most members read by a query that are kept for learning.
const READ_MAX: usize = 1024;

/// Scores a candidate that was read. It becomes a result when those with smaller estimates have.
pub(super) fn score(cx: &mut Cx<'_, Marker>, candidate: Unread, record: &Record<'_>) {
    let distance = score_record(cx.q, cx.exact, record);
    let scored = Scored { id: candidate.id, distance, external_id: record.external_id() };
    let at = cx.own.scored.partition_point(|s| s.id < scored.id);
    cx.own.scored.insert(at, scored);
    cx.own.candidates.push(candidate);
}

/// Scores the candidates of a read.
pub(super) fn take(cx: &mut Cx<'_, Marker>, pending: &Pending, bytes: &[u8]) -> Option<()> {
    let mut awaited = core::mem::take(&mut cx.own.awaited);
    let mut ok = Some(());
    for &(_, candidate) in awaited.iter().filter(|(tag, _)| *tag == pending.tag) {
        let at =
            cx.view.directory.record_at(&cx.view.shape, candidate.id).checked_sub(pending.read.at.offset);
        let record =
            at.and_then(|at| bytes.get(at as usize..)).and_then(|bytes| Record::open(&cx.view.shape, bytes));
        match record {
            Some(record) => score(cx, candidate, &record),
            None => ok = None,
        }
    }
    awaited.retain(|(tag, _)| *tag != pending.tag);
    cx.own.awaited = awaited;
    ok
}
