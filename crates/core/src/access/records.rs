//! Reads of the members that may be among the best, the likeliest first, near ones together.

use crate::format::directory::Pages;
use crate::format::inverted_list::Record;
use crate::plan::{ClusterView, IndexView};
use crate::query::{QueryState, Reading, Scored, Scratch, Survivor, Tag};
use crate::verify::{keep, score_record};

use super::lists::{drop_hopeless, threshold};

/// Settles the likeliest survivors, and asks for the next ones until `width` reads are under way. `None` when the budget allows no more.
///
/// Survivors become results in the order of their estimates, whatever is read first: the answer depends neither on what lies in RAM nor on
/// the width. At most `at_most` survivors are left to be settled later.
pub(crate) fn choose(
    state: &mut QueryState,
    view: &IndexView<'_>,
    clusters: &ClusterView<'_>,
    scratch: &Scratch,
    at_most: usize,
) -> Option<()> {
    drop_hopeless(state);
    // The likeliest last, to be taken from the end.
    state.probing.survivors.sort_unstable_by(|a, b| b.estimate.total_cmp(&a.estimate).then(b.id.cmp(&a.id)));
    settle(state, clusters, scratch, at_most)?;
    if state.probing.survivors.len() <= at_most {
        return Some(());
    }
    while state.outstanding.len() < state.params.width as usize {
        let next = state.probing.survivors.iter().rposition(|s| is_on_disk(state, clusters, s.id));
        let Some(next) = next else { break };
        let survivor = state.probing.survivors.remove(next);
        ask(state, view, clusters, survivor)?;
    }
    Some(())
}

/// Makes results of the likeliest survivors, one after another, until `at_most` are left or the distance of the next one is not known.
fn settle(
    state: &mut QueryState,
    clusters: &ClusterView<'_>,
    scratch: &Scratch,
    at_most: usize,
) -> Option<()> {
    let mut limit = threshold(state);
    while state.probing.survivors.len() > at_most {
        let Some(&Survivor { id, .. }) = state.probing.survivors.last() else { break };
        let scored = match state.probing.scored.binary_search_by_key(&id, |s| s.id) {
            Ok(at) => state.probing.scored.remove(at),
            Err(_) => {
                let Some(bytes) = clusters.record_in_ram(id) else { break };
                let record = Record::verify(&clusters.shape, id, bytes)?;
                state.stats.pinned_hits += 1;
                let distance = score_record(state, scratch, &record);
                Scored { id, distance, external_id: record.external_id() }
            }
        };
        state.probing.survivors.pop();
        keep(state, scored.distance, || scored.external_id);
        if state.probing.read.len() < READ_MAX {
            state.probing.read.push((id, scored.distance));
        }
        if threshold(state) < limit {
            limit = threshold(state);
            drop_hopeless(state);
        }
    }
    Some(())
}

/// Whether the distance of a survivor takes a read.
fn is_on_disk(state: &QueryState, clusters: &ClusterView<'_>, id: u32) -> bool {
    state.probing.scored.binary_search_by_key(&id, |s| s.id).is_err() && clusters.record_in_ram(id).is_none()
}

/// Asks for one survivor, and in the same read for others that lie near it and are likely to be read anyway.
fn ask(
    state: &mut QueryState,
    view: &IndexView<'_>,
    clusters: &ClusterView<'_>,
    survivor: Survivor,
) -> Option<()> {
    let size = clusters.shape.record_bytes() as u64;
    let at = |s: &Survivor| clusters.directory.record_at(&clusters.shape, s.id);
    let (mut start, mut end) = (at(&survivor), at(&survivor) + size);
    let (gap, longest) = (u64::from(clusters.gap_max), u64::from(clusters.read_max));
    let tag_of_read = state.next_tag;
    state.probing.awaited.push((Tag(tag_of_read), survivor));
    let likely = state.probing.survivors.len().saturating_sub(2 * state.params.k as usize);
    let mut i = state.probing.survivors.len();
    while i > likely {
        i -= 1;
        let other = state.probing.survivors[i];
        let from = at(&other);
        let (low, high) = (start.min(from), end.max(from + size));
        let is_near = from <= end + gap && from + size + gap >= start;
        if is_near && high - low <= longest && is_on_disk(state, clusters, other.id) {
            (start, end) = (low, high);
            state.probing.survivors.remove(i);
            state.probing.awaited.push((Tag(tag_of_read), other));
            // One that was too far from the first may be near to this one.
            i = state.probing.survivors.len();
        }
    }
    let pages = Pages::of(start, end - start);
    state.fetch_as(view, pages.first, pages.count, Reading::Records).map(|_| ())
}

/// Members read by a query that are remembered to learn from.
const READ_MAX: usize = 1024;

/// Scores a survivor, which becomes a result when those that are likelier have.
pub(crate) fn score(state: &mut QueryState, scratch: &Scratch, survivor: Survivor, record: &Record<'_>) {
    let distance = score_record(state, scratch, record);
    let scored = Scored { id: survivor.id, distance, external_id: record.external_id() };
    let at = state.probing.scored.partition_point(|s| s.id < scored.id);
    state.probing.scored.insert(at, scored);
    state.probing.survivors.push(survivor);
}

/// Scores what was waited for.
pub(crate) fn take(
    state: &mut QueryState,
    clusters: &ClusterView<'_>,
    scratch: &mut Scratch,
    (tag, first_page): (Tag, u32),
    bytes: &[u8],
) -> Option<()> {
    let start = u64::from(first_page) * crate::PAGE as u64;
    let mut awaited = core::mem::take(&mut state.probing.awaited);
    let mut ok = Some(());
    for &(_, survivor) in awaited.iter().filter(|(t, _)| *t == tag) {
        let at = clusters.directory.record_at(&clusters.shape, survivor.id).checked_sub(start);
        let record = at
            .and_then(|at| bytes.get(at as usize..))
            .and_then(|b| Record::verify(&clusters.shape, survivor.id, b));
        match record {
            Some(record) => score(state, scratch, survivor, &record),
            None => ok = None,
        }
    }
    awaited.retain(|(t, _)| *t != tag);
    state.probing.awaited = awaited;
    ok
}
