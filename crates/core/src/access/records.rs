//! Reads of the members that may be among the best, the likeliest first, near ones together.

use crate::format::directory::Pages;
use crate::format::inverted_list::Record;
use crate::plan::{ClusterView, IndexView};
use crate::query::{QueryState, Reading, Scratch, Survivor, Tag};
use crate::verify::keep_record;

use super::lists::drop_hopeless;

/// Asks for the likeliest survivors until `width` reads are under way. `None` when the budget allows no more.
///
/// Those that lie in RAM are scored at once.
pub(crate) fn choose(
    state: &mut QueryState,
    view: &IndexView<'_>,
    clusters: &ClusterView<'_>,
    scratch: &Scratch,
) -> Option<()> {
    drop_hopeless(state);
    // The likeliest last, to be taken from the end.
    state.probing.survivors.sort_unstable_by(|a, b| b.estimate.total_cmp(&a.estimate).then(b.id.cmp(&a.id)));
    while state.outstanding.len() < state.params.width as usize {
        let Some(survivor) = state.probing.survivors.pop() else { break };
        if let Some(bytes) = clusters.record_in_ram(survivor.id) {
            let record = Record::verify(&clusters.shape, survivor.id, bytes)?;
            score(state, scratch, survivor.id, &record);
            state.stats.pinned_hits += 1;
            drop_hopeless(state);
            continue;
        }
        ask(state, view, clusters, survivor)?;
    }
    Some(())
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
        if is_near && high - low <= longest {
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

/// Scores a member by itself, and remembers that it was.
pub(crate) fn score(state: &mut QueryState, scratch: &Scratch, id: u32, record: &Record<'_>) {
    let distance = keep_record(state, scratch, record);
    if state.probing.read.len() < READ_MAX {
        state.probing.read.push((id, distance));
    }
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
    for (_, survivor) in awaited.iter().filter(|(t, _)| *t == tag) {
        let at = clusters.directory.record_at(&clusters.shape, survivor.id).checked_sub(start);
        let record = at
            .and_then(|at| bytes.get(at as usize..))
            .and_then(|b| Record::verify(&clusters.shape, survivor.id, b));
        match record {
            Some(record) => score(state, scratch, survivor.id, &record),
            None => ok = None,
        }
    }
    awaited.retain(|(t, _)| *t != tag);
    state.probing.awaited = awaited;
    ok
}
