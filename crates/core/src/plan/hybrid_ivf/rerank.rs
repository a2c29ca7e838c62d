//! Re-ranks candidates by their vectors: those with the smallest estimates first, near ones in one read.

use super::scan::prune_candidates;
use super::visit::fetch;
use super::{Marker, ReadKind, Unread};
use crate::format::posting::Record;
use crate::plan::Cx;
use crate::search::{Pending, Tag};
use crate::verify::score_record;

/// Asks for the candidates with the smallest estimates until `width` reads are under way. `None` when the budget allows no more reads.
///
/// Those whose vectors are in RAM are scored at once.
pub(super) fn choose(cx: &mut Cx<'_, Marker>) -> Option<()> {
    prune_candidates(cx);
    // The smallest estimate last, to be taken from the end.
    cx.own.candidates.sort_unstable_by(|a, b| b.estimate.total_cmp(&a.estimate).then(b.id.cmp(&a.id)));
    while cx.q.io.pending.len() < cx.q.width as usize {
        let Some(candidate) = cx.own.candidates.pop() else { break };
        if let Some(bytes) = cx.view.record_in_ram(candidate.id) {
            let record = Record::open(&cx.view.shape, bytes)?;
            score(cx, candidate.id, &record);
            match cx.view.is_resident(candidate.id) {
                true => cx.q.stats.resident_hits += 1,
                false => cx.q.stats.pinned_hits += 1,
            }
            prune_candidates(cx);
            continue;
        }
        ask(cx, candidate)?;
    }
    Some(())
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
        if is_near && high - low <= longest {
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
    fetch(cx, start, end - start, ReadKind::Records { first })
}

/// Most members read by a query that are kept for learning.
const READ_MAX: usize = 1024;

/// Scores one member, and keeps its distance for learning.
pub(super) fn score(cx: &mut Cx<'_, Marker>, id: u32, record: &Record<'_>) {
    let distance = score_record(cx.q, cx.exact, record);
    if cx.own.read.len() < READ_MAX {
        cx.own.read.push((id, distance));
    }
}

/// Scores the candidates of a read.
pub(super) fn take(cx: &mut Cx<'_, Marker>, pending: &Pending, bytes: &[u8]) -> Option<()> {
    let mut awaited = core::mem::take(&mut cx.own.awaited);
    let mut ok = Some(());
    for (_, candidate) in awaited.iter().filter(|(tag, _)| *tag == pending.tag) {
        let at =
            cx.view.directory.record_at(&cx.view.shape, candidate.id).checked_sub(pending.read.at.offset);
        let record =
            at.and_then(|at| bytes.get(at as usize..)).and_then(|bytes| Record::open(&cx.view.shape, bytes));
        match record {
            Some(record) => score(cx, candidate.id, &record),
            None => ok = None,
        }
    }
    awaited.retain(|(tag, _)| *tag != pending.tag);
    cx.own.awaited = awaited;
    ok
}
