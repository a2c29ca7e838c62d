//! Visits clusters one after another: which lists to scan, and when to stop (OrchANN §5.3).
//!
//! In `barrier` mode lists take effect in the order of their ranks, and the stop is decided when the first list of a
//! cluster would take effect; lists read beyond it are not used. So neither the resident lists nor the width decides
//! which lists are scanned.
//!
//! No vector is read meanwhile: whether a cluster is fruitless shows in its codes. A cluster that is a graph is
//! searched in [`super::local_graph`] instead.

use super::batch;
use super::likelihood;
use super::local_graph;
use super::scan::{codes_of, scan, scan_read};
use super::{FILE, HybridIvf, QueuedLists, ReadKind, Scratch, State, Visit, bound_estimator};
use crate::exact::{BoundEstimator, Bounds};
use crate::format::directory::LocalKind;
use crate::format::inverted_list::ListCodes;
use crate::kinds::kind::StepContext;
use crate::order::order_key;
use crate::place::Reach;
use crate::route::to_centroid;
use crate::search::{Extent, Mode, Tag};

/// Most candidates that are kept. With more, some are read before further lists are scanned: their distances prune
/// others.
pub const CANDIDATES_MAX: usize = 2048;

/// Most lists that wait for those before them.
const QUEUE_MAX: usize = 64;

/// Whether clusters are left to visit, or lists of those that have begun.
pub(super) fn is_scanning(cx: &StepContext<'_, HybridIvf>) -> bool {
    let own = &*cx.own;
    !own.lists.is_empty()
        || !own.queue.is_empty()
        || !own.batch.lists.is_empty()
        || own.local.is_on
        || has_clusters(cx)
}

pub(super) fn has_clusters(cx: &StepContext<'_, HybridIvf>) -> bool {
    (cx.own.begun as usize) < cx.own.ranked.len() && !is_fruitless(cx)
}

/// Whether enough clusters in a row were fruitless to end the visits.
fn is_fruitless(cx: &StepContext<'_, HybridIvf>) -> bool {
    // Where the rows of a sieve lie far from the query, the first clusters say nothing of those that follow.
    let is_widened = cx.own.ranked.len() > cx.params.visits_max(cx.view.directory.clusters()) as usize;
    !is_widened && cx.own.fruitless >= cx.params.fruitless_limit(cx.own.ranked.len())
}

/// Scans resident lists, and asks for others until `width` reads are under way. `None` when the budget allows no more
/// reads, or a list is inconsistent.
pub(super) fn choose(cx: &mut StepContext<'_, HybridIvf>) -> Option<()> {
    let mut asked = false;
    // With many candidates lists may have to be read a second time, so few are read ahead.
    let width = if cx.own.candidates.len() > CANDIDATES_MAX / 2 { 1 } else { cx.q.width };
    while cx.q.io.pending.len() < width as usize
        && cx.own.candidates.len() <= CANDIDATES_MAX
        && cx.own.queue.len() < QUEUE_MAX
    {
        if batch::is_used(cx) {
            match batch::choose(cx)? {
                batch::Next::Waits => break,
                batch::Next::Settled => continue,
                batch::Next::None => {}
            }
        }
        if cx.own.local.codes.lists_left > 0 {
            // The codes of a graph are read before it is searched.
            let Some(list) = cx.own.lists.pop() else { break };
            ask_for_list(cx, list)?;
            asked = true;
            continue;
        }
        if cx.own.local.is_on {
            match local_graph::choose(cx)? {
                local_graph::Next::Asked => asked = true,
                local_graph::Next::Waits => break,
                local_graph::Next::Ended => end_part(cx, cx.own.local.cluster),
            }
            continue;
        }
        if cx.own.lists.is_empty() {
            // A read under way may end the visits; with one read at a time it is waited for.
            if !has_clusters(cx) || (asked && width == 1) || !begin_cluster(cx)? {
                break;
            }
            continue;
        }
        let Some(list) = cx.own.lists.pop() else { break };
        if !has_rows(cx, list) {
            end_list(cx, list);
            continue;
        }
        match reach(cx, list) {
            Reach::Here => {}
            Reach::Remote => {
                cx.own.lists.push(list);
                want_elsewhere(cx);
                break;
            }
            Reach::Nowhere => {
                cx.q.give_up(list);
                end_list(cx, list);
                continue;
            }
        }
        if cx.params.bounds == Bounds::Off {
            begin_visit(cx, cx.view.directory.cluster_of(list));
            asked |= ask_for_members(cx, list)?;
        } else if cx.view.resident_codes(list).is_none() {
            ask_for_list(cx, list)?;
            asked = true;
        } else if cx.own.queue.is_empty() {
            scan_resident(cx, list)?;
        } else {
            cx.own.queue.push(QueuedLists { first: list, count: 1, tag: None });
        }
    }
    Some(())
}

/// Whether some member of a list may be returned.
fn has_rows(cx: &StepContext<'_, HybridIvf>, list: u32) -> bool {
    let ids = &cx.view.directory.ids;
    cx.may_return_any(&(ids[list as usize]..ids[list as usize + 1]))
}

/// Place where a list can be scanned: here where its codes are resident, if they are all that is needed.
fn reach(cx: &StepContext<'_, HybridIvf>, list: u32) -> Reach {
    let is_resident = cx.params.bounds != Bounds::Off && cx.view.resident_codes(list).is_some();
    if is_resident { Reach::Here } else { cx.reach(list) }
}

/// Lists beside the next one that decide between its replicas.
const LOOK_AHEAD: usize = 8;

/// Notes the next lists, of which the first is on another server.
fn want_elsewhere(cx: &mut StepContext<'_, HybridIvf>) {
    let State { lists, ranked, begun, .. } = &*cx.own;
    let later = ranked.iter().skip(*begun as usize).flat_map(|&cluster| cx.view.directory.lists_of(cluster));
    cx.scratch.elsewhere.extend(lists.iter().rev().copied().chain(later).take(LOOK_AHEAD));
}

/// Place where a cluster can be searched that is a graph: all its lists and edges are in one place.
fn reach_of_graph(cx: &StepContext<'_, HybridIvf>, cluster: u32) -> Reach {
    let mut lists = cx.view.directory.lists_of(cluster);
    let first = lists.next().map_or(Reach::Here, |list| cx.reach(list));
    let is_whole = first != Reach::Here || lists.all(|list| cx.reach(list) == Reach::Here);
    if is_whole { first } else { Reach::Nowhere }
}

/// Puts the lists of the next cluster on the stack, or begins a local search of it. Returns false when the local
/// search has to wait until the lists before it have taken effect, or is to be made on another server.
pub(super) fn begin_cluster(cx: &mut StepContext<'_, HybridIvf>) -> Option<bool> {
    let Some(&cluster) = cx.own.ranked.get(cx.own.begun as usize) else { return Some(false) };
    // The codes of a graph are read in any case. Where few members may be returned, all of them are compared: a search
    // of the graph ends among those that may not.
    let is_searched = !cx.params.exact && cx.base.sieve.is_none();
    let is_local = is_searched && cx.view.directory.has_edges(cluster);
    if is_local && !cx.own.queue.is_empty() {
        return Some(false);
    }
    if is_local {
        match reach_of_graph(cx, cluster) {
            Reach::Here => {}
            Reach::Remote => {
                want_elsewhere(cx);
                return Some(false);
            }
            Reach::Nowhere => {
                cx.q.give_up(cx.view.directory.lists_of(cluster).start);
                cx.own.begun += 1;
                return Some(true);
            }
        }
    }
    cx.own.begun += 1;
    let first = cx.own.lists.len();
    match cx.view.directory.kinds[cluster as usize] {
        LocalKind::Ivf if !cx.params.exact => push_nearest_lists(cx, cluster),
        LocalKind::Ivf | LocalKind::Flat | LocalKind::Graph => {
            cx.own.lists.extend(cx.view.directory.lists_of(cluster).rev());
        }
    }
    let lists_left = if is_local { 1 } else { (cx.own.lists.len() - first) as u32 };
    cx.own.visits.push(Visit { cluster, lists_left, has_begun: false, fruitful: false, weight: 1.0 });
    if is_local {
        begin_visit(cx, cluster);
        if local_graph::open(cx, cluster)? {
            cx.own.lists.clear();
            local_graph::begin(cx, cluster)?;
        }
    }
    Some(true)
}

/// Begins a visit: the first list of the cluster takes effect, or its local search begins.
pub(super) fn begin_visit(cx: &mut StepContext<'_, HybridIvf>, cluster: u32) {
    let Some(at) = cx.own.visits.iter().position(|v| v.cluster == cluster && !v.has_begun) else { return };
    let weight = weight_of(cx, cluster);
    cx.own.visits[at] = Visit { has_begun: true, weight, ..cx.own.visits[at] };
    cx.q.stats.clusters += 1;
}

/// Weight of this cluster when it is fruitless.
fn weight_of(cx: &StepContext<'_, HybridIvf>, cluster: u32) -> f32 {
    if !cx.params.weighed {
        return 1.0;
    }
    let estimator = bound_estimator(cx);
    let threshold = estimator.code_scale(cx.own.estimates.kth());
    if threshold == f32::INFINITY {
        return 0.0;
    }
    let base = to_centroid(cx.base.metric, &cx.scratch.query.wide, cx.view.centroid(cluster));
    likelihood::fruitless_weight(likelihood::cosine(&estimator, base, cx.view.spread(cluster), threshold))
}

/// Puts the nearest lists of a divided cluster on the stack, by the codes of their centroids.
fn push_nearest_lists(cx: &mut StepContext<'_, HybridIvf>, cluster: u32) {
    let lists = cx.view.directory.lists_of(cluster);
    let base = to_centroid(cx.base.metric, &cx.scratch.query.wide, cx.view.centroid(cluster));
    let Scratch { ids, query, distances, nearest_lists, .. } = &mut *cx.scratch;
    let coded = &query.coded;
    let first = cx.view.sublists.first[cluster as usize];
    ids.clear();
    ids.extend((first..).take(lists.len()));
    coded.distances(&cx.view.sublists.codes, ids, distances);
    cx.q.stats.code_comparisons += lists.len() as u64;
    nearest_lists.clear();
    for ((&entry, &code_distance), list) in ids.iter().zip(distances.iter()).zip(lists) {
        let ids = &cx.view.directory.ids;
        let rows = ids[list as usize]..ids[list as usize + 1];
        if cx.base.sieve.is_some_and(|sieve| !sieve.has_any(rows)) {
            continue;
        }
        let cross = coded.to_float(code_distance);
        let term = cx.view.sublists.terms.get(entry as usize).copied().unwrap_or(0.0);
        let distance = BoundEstimator::to_point(cx.base.metric, base, term, cross);
        nearest_lists.push((order_key(distance), list));
    }
    nearest_lists.sort_unstable();
    let scanned = match cx.params.local_lists {
        0 => cx.view.lists_planned.get(cluster as usize).copied().unwrap_or(1),
        asked => asked,
    };
    nearest_lists.truncate(scanned as usize);
    cx.own.lists.extend(nearest_lists.iter().rev().map(|&(_, list)| list));
}

/// Asks for a list, and in the same read for the next ones on the stack as long as they follow it in the file.
fn ask_for_list(cx: &mut StepContext<'_, HybridIvf>, list: u32) -> Option<()> {
    let start = cx.view.directory.codes[list as usize];
    let mut end = cx.view.list_end(list);
    let mut last = list;
    while let Some(&next) = cx.own.lists.last() {
        let is_next = next == last + 1 && has_rows(cx, next) && cx.view.directory.codes[next as usize] == end;
        // Lists that do not follow may lie before this one.
        let is_short = is_next && cx.view.list_end(next) - start <= u64::from(cx.view.read_max);
        if !is_short || cx.view.resident_codes(next).is_some() || cx.reach(next) != Reach::Here {
            break;
        }
        cx.own.lists.pop();
        (last, end) = (next, cx.view.list_end(next));
    }
    let count = last + 1 - list;
    let tag = fetch(cx, start, end - start, ReadKind::Lists { first: list, count })?;
    if cx.q.mode == Mode::Barrier && cx.own.local.codes.lists_left == 0 {
        cx.own.queue.push(QueuedLists { first: list, count, tag: Some(tag) });
    }
    Some(())
}

/// Without bounds: asks for all members of a list, in reads of limited length. Returns whether any was asked for.
fn ask_for_members(cx: &mut StepContext<'_, HybridIvf>, list: u32) -> Option<bool> {
    let ids = cx.view.directory.ids[list as usize]..cx.view.directory.ids[list as usize + 1];
    // Those that the navigation found are among them, and not to be read twice.
    cx.own.candidates.retain(|c| !ids.contains(&c.id));
    let size = cx.view.shape.record_bytes() as u64;
    let each = (u64::from(cx.view.read_max) / size).max(1) as u32;
    let mut asked = false;
    for from in ids.clone().step_by(each as usize) {
        let count = each.min(ids.end - from);
        let at = cx.view.directory.records[list as usize] + u64::from(from - ids.start) * size;
        fetch(cx, at, u64::from(count) * size, ReadKind::Run { first: from, count })?;
        asked = true;
    }
    end_list(cx, list);
    Some(asked)
}

/// Takes lists that were read. In `barrier` mode reads come in the order of their ranks; resident lists follow those
/// before them.
pub(super) fn take(
    cx: &mut StepContext<'_, HybridIvf>,
    tag: Tag,
    (first, count): (u32, u32),
    bytes: &[u8],
) -> Option<()> {
    let end = first.checked_add(count)?;
    let local = &cx.own.local;
    if local.codes.lists_left > 0 && cx.view.directory.cluster_of(first) == local.cluster {
        return (first..end).try_for_each(|list| {
            local_graph::take_codes(cx, list, codes_of(cx.view, (first, list), bytes)?.0)
        });
    }
    if cx.q.mode == Mode::Barrier {
        if cx.own.queue.first().is_none_or(|lists| lists.tag != Some(tag)) {
            // The visits ended before this list.
            return Some(());
        }
        cx.own.queue.remove(0);
    }
    for list in first..end {
        if !may_scan(cx, list, end) {
            return Some(());
        }
        begin_visit(cx, cx.view.directory.cluster_of(list));
        scan_read(cx, (first, list), bytes)?;
        end_list(cx, list);
    }
    while let Some(&QueuedLists { first, tag: None, .. }) = cx.own.queue.first() {
        cx.own.queue.remove(0);
        if !may_scan(cx, first, first + 1) {
            break;
        }
        scan_resident(cx, first)?;
    }
    Some(())
}

/// Whether the next list by rank is scanned now. If not, it and the queued lists after it are left for later or,
/// where enough clusters were fruitless, for good. `end` is the end of the lists that were read with it.
fn may_scan(cx: &mut StepContext<'_, HybridIvf>, list: u32, end: u32) -> bool {
    if cx.q.mode == Mode::Eager {
        return true;
    }
    if stops_before(cx, list) {
        return false;
    }
    if cx.own.candidates.len() > CANDIDATES_MAX {
        let State { lists, queue, .. } = &mut *cx.own;
        lists.extend(queue.drain(..).rev().flat_map(|q| (q.first..q.first + q.count).rev()));
        lists.extend((list..end).rev());
        return false;
    }
    true
}

/// Whether the visits end before this list, the next one by rank: enough clusters were fruitless. All that was to
/// follow is dropped then.
pub(super) fn stops_before(cx: &mut StepContext<'_, HybridIvf>, list: u32) -> bool {
    let cluster = cx.view.directory.cluster_of(list);
    let has_begun = cx.own.visits.iter().any(|v| v.cluster == cluster && v.has_begun);
    if has_begun || !is_fruitless(cx) {
        return false;
    }
    let visited = cx.own.ranked.iter().position(|&c| c == cluster).unwrap_or(0);
    cx.own.ranked.truncate(visited);
    cx.own.begun = visited as u32;
    cx.own.lists.clear();
    cx.own.queue.clear();
    cx.own.visits.clear();
    true
}

/// Scans a resident list.
fn scan_resident(cx: &mut StepContext<'_, HybridIvf>, list: u32) -> Option<()> {
    let codes = ListCodes::open(&cx.view.shape, list, cx.view.resident_codes(list)?)?;
    begin_visit(cx, cx.view.directory.cluster_of(list));
    scan(cx, &codes, None)?;
    end_list(cx, list);
    Some(())
}

/// Ends a list. With the last of its cluster the visit ends.
pub(super) fn end_list(cx: &mut StepContext<'_, HybridIvf>, list: u32) {
    end_part(cx, cx.view.directory.cluster_of(list));
}

/// Ends a part of a visit. With the last one the cluster was fruitful or fruitless.
fn end_part(cx: &mut StepContext<'_, HybridIvf>, cluster: u32) {
    let Some(visit) = cx.own.visits.iter_mut().find(|v| v.cluster == cluster) else { return };
    visit.lists_left = visit.lists_left.saturating_sub(1);
    if visit.lists_left > 0 {
        return;
    }
    let (fruitful, weight) = (visit.fruitful, visit.weight);
    cx.own.visits.retain(|v| v.cluster != cluster);
    cx.q.stats.fruitful_clusters += u64::from(fruitful);
    cx.own.fruitless = if fruitful { 0.0 } else { cx.own.fruitless + weight };
}

/// Asks for `length` bytes of the file. `None` when the budget allows no more reads.
pub(super) fn fetch(
    cx: &mut StepContext<'_, HybridIvf>,
    offset: u64,
    length: u64,
    kind: ReadKind,
) -> Option<Tag> {
    let bytes = u32::try_from(length).ok().filter(|_| kind.is_short())?;
    let (unit, note) = kind.to_read(cx.view.directory);
    cx.fetch(Extent { store: FILE, offset, bytes }, unit, note)
}
