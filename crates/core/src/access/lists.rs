//! Clusters, one after another: which lists to scan, and when to stop (OrchANN §5.3).
//!
//! In `barrier` mode lists take effect in the order of their ranks, and the stop is decided where the next cluster would take effect: lists beyond
//! it were read in vain. So neither what lies in RAM nor the width decides what is scanned.
//!
//! A visit scans the codes of a cluster's lists, which lie in RAM or are read, and keeps of the members those that may be among the best. No
//! vector is read meanwhile: that a cluster brings nothing shows in the codes. A cluster that is a graph is walked through instead, see [`super::local_graph`].

use super::{local_graph, records};
use crate::format::directory::{LocalKind, Pages};
use crate::format::inverted_list::{ListCodes, Record};
use crate::likelihood;
use crate::plan::{ClusterView, IndexView};
use crate::query::{
    Mode, Probing, QueryState, QueuedLists, Reading, ScannedList, Scratch, Survivor, Tag, Visit,
};
use crate::route::to_centroid;
use crate::verify::bounds::{Ruler, Span};
use crate::verify::keep_record;

/// Members that are kept in mind at a time. With more, some are read before further lists are scanned: what is read makes the others' chances worse.
pub const SURVIVORS_MAX: usize = 2048;

/// Whether clusters are left to visit, or lists of those that have begun.
pub(crate) fn is_scanning(state: &QueryState) -> bool {
    let probing = &state.probing;
    !probing.lists.is_empty() || !probing.queue.is_empty() || probing.walk.is_on || has_clusters(state)
}

fn has_clusters(state: &QueryState) -> bool {
    (state.probing.begun as usize) < state.probing.clusters.len() && !is_fruitless(state)
}

/// Whether so many clusters in a row brought nothing that no other begins.
fn is_fruitless(state: &QueryState) -> bool {
    state.probing.fruitless >= state.params.probe.patience(state.probing.clusters.len())
}

/// Most lists that wait for those before them.
const QUEUE_MAX: usize = 64;

/// Scans lists in RAM, and asks for those on disk until `width` reads are under way. `None` when the budget allows no more, or a list makes no sense.
pub(crate) fn choose(
    state: &mut QueryState,
    view: &IndexView<'_>,
    clusters: &ClusterView<'_>,
    scratch: &mut Scratch,
) -> Option<()> {
    let mut asked = false;
    // Lists that find too many survivors are read once more.
    let width = if state.probing.survivors.len() > SURVIVORS_MAX / 2 { 1 } else { state.params.width };
    while state.outstanding.len() < width as usize
        && state.probing.survivors.len() <= SURVIVORS_MAX
        && state.probing.queue.len() < QUEUE_MAX
    {
        if state.probing.walk.is_on {
            match local_graph::choose(state, view, clusters)? {
                local_graph::Next::Asked => asked = true,
                local_graph::Next::Waits => break,
                local_graph::Next::Ended => end_part(state, state.probing.walk.cluster),
            }
            continue;
        }
        if state.probing.lists.is_empty() {
            // What is under way may show that no cluster more is worth a visit; with one read at a time it always does.
            if !has_clusters(state)
                || (asked && width == 1)
                || !begin_cluster(state, view, clusters, scratch)?
            {
                break;
            }
            continue;
        }
        let Some(list) = state.probing.lists.pop() else { break };
        if state.params.probe.bounds == crate::query::Bounds::Off {
            begin_visit(state, view, clusters, scratch, clusters.directory.cluster_of(list));
            asked |= ask_for_members(state, view, clusters, list)?;
        } else if clusters.resident_head(list).is_none() {
            ask_for_list(state, view, clusters, list)?;
            asked = true;
        } else if state.probing.queue.is_empty() {
            scan_resident(state, view, clusters, scratch, list)?;
        } else {
            state.probing.queue.push(QueuedLists { first: list, count: 1, tag: None });
        }
    }
    Some(())
}

/// Puts the lists of the next cluster on the stack, or begins a walk through it. False when the walk has to wait until what was asked for has
/// taken effect.
fn begin_cluster(
    state: &mut QueryState,
    view: &IndexView<'_>,
    clusters: &ClusterView<'_>,
    scratch: &mut Scratch,
) -> Option<bool> {
    let at = state.probing.begun as usize;
    let Some(&cluster) = state.probing.clusters.get(at) else { return Some(false) };
    let is_walked = local_graph::can_walk(clusters, cluster);
    if is_walked && !state.probing.queue.is_empty() {
        return Some(false);
    }
    state.probing.begun += 1;
    let first = state.probing.lists.len();
    match clusters.directory.kinds[cluster as usize] {
        _ if is_walked => {}
        LocalKind::Ivf => nearest_lists(state, view, clusters, scratch, cluster),
        LocalKind::Flat | LocalKind::Graph => {
            state.probing.lists.extend(clusters.directory.lists_of(cluster).rev());
        }
    }
    let lists_left = if is_walked { 1 } else { (state.probing.lists.len() - first) as u32 };
    state.probing.visits.push(Visit { cluster, lists_left, has_begun: false, fruitful: false, weight: 1.0 });
    if is_walked {
        begin_visit(state, view, clusters, scratch, cluster);
        local_graph::begin(state, view, clusters, scratch, cluster)?;
    }
    Some(true)
}

/// The first list of a cluster takes effect, or its walk begins.
fn begin_visit(
    state: &mut QueryState,
    view: &IndexView<'_>,
    clusters: &ClusterView<'_>,
    scratch: &Scratch,
    cluster: u32,
) {
    let Some(at) = state.probing.visits.iter().position(|v| v.cluster == cluster && !v.has_begun) else {
        return;
    };
    let weight = weight_of(state, view, clusters, scratch, cluster);
    state.probing.visits[at] = Visit { has_begun: true, weight, ..state.probing.visits[at] };
    state.stats.clusters += 1;
}

/// What it counts when this cluster brings nothing.
fn weight_of(
    state: &QueryState,
    view: &IndexView<'_>,
    clusters: &ClusterView<'_>,
    scratch: &Scratch,
    cluster: u32,
) -> f32 {
    if !state.params.probe.weighed {
        return 1.0;
    }
    let ruler = Ruler::new(state, view, scratch);
    let threshold = ruler.code_scale(state.probing.estimates.kth());
    if threshold == f32::INFINITY {
        return 0.0;
    }
    let base = to_centroid(view.metric, &scratch.wide, clusters.centroid(cluster));
    likelihood::fruitless_weight(ruler.cosine(base, clusters.spread(cluster), threshold))
}

/// The nearest lists of a cluster that is divided, by what is known of their own centroids.
fn nearest_lists(
    state: &mut QueryState,
    view: &IndexView<'_>,
    clusters: &ClusterView<'_>,
    scratch: &mut Scratch,
    cluster: u32,
) {
    let lists = clusters.directory.lists_of(cluster);
    let base = to_centroid(view.metric, &scratch.wide, clusters.centroid(cluster));
    let Scratch { ids, table, distances, order_of_mates, .. } = scratch;
    let first = clusters.sublists.first[cluster as usize];
    ids.clear();
    ids.extend((first..).take(lists.len()));
    table.distances(&clusters.sublists.codes, ids, distances);
    state.stats.code_comparisons += lists.len() as u64;
    order_of_mates.clear();
    for ((&entry, &code_distance), list) in ids.iter().zip(distances.iter()).zip(lists) {
        let cross = table.to_float(code_distance);
        let term = clusters.sublists.terms.get(entry as usize).copied().unwrap_or(0.0);
        let distance = Ruler::to_point(view.metric, base, term, cross);
        order_of_mates.push((crate::route::order_key(distance), list));
    }
    order_of_mates.sort_unstable();
    let scanned = match state.params.probe.local_lists {
        0 => clusters.lists_planned.get(cluster as usize).copied().unwrap_or(1),
        asked => asked,
    };
    order_of_mates.truncate(scanned as usize);
    state.probing.lists.extend(order_of_mates.iter().rev().map(|&(_, list)| list));
}

/// Asks for a list, and in the same read for those after it that are wanted next and lie next.
fn ask_for_list(
    state: &mut QueryState,
    view: &IndexView<'_>,
    clusters: &ClusterView<'_>,
    list: u32,
) -> Option<()> {
    let start = clusters.directory.codes[list as usize];
    let mut end = clusters.list_end(list);
    let mut last = list;
    while let Some(&next) = state.probing.lists.last() {
        let is_next = next == last + 1 && clusters.directory.codes[next as usize] == end;
        // Lists that are not next may lie before this one.
        let is_short = is_next && clusters.list_end(next) - start <= u64::from(clusters.read_max);
        if !is_short || clusters.resident_head(next).is_some() {
            break;
        }
        state.probing.lists.pop();
        (last, end) = (next, clusters.list_end(next));
    }
    let pages = Pages::of(start, end - start);
    let count = last + 1 - list;
    let tag = state.fetch_as(view, pages.first, pages.count, Reading::Lists(list, count))?;
    if state.params.mode == Mode::Barrier {
        state.probing.queue.push(QueuedLists { first: list, count, tag: Some(tag) });
    }
    Some(())
}

/// Without bounds: asks for all members of a list, in reads of a bearable length.
fn ask_for_members(
    state: &mut QueryState,
    view: &IndexView<'_>,
    clusters: &ClusterView<'_>,
    list: u32,
) -> Option<bool> {
    let ids = clusters.directory.ids[list as usize]..clusters.directory.ids[list as usize + 1];
    forget_found(state, &ids);
    let size = clusters.shape.record_bytes() as u64;
    let each = (u64::from(clusters.read_max) / size).max(1) as u32;
    let mut asked = false;
    for from in ids.clone().step_by(each as usize) {
        let count = each.min(ids.end - from);
        let at = clusters.directory.records[list as usize] + u64::from(from - ids.start) * size;
        let pages = Pages::of(at, u64::from(count) * size);
        state.fetch_as(view, pages.first, pages.count, Reading::Run(from, count))?;
        asked = true;
    }
    end_list(state, clusters, list);
    Some(asked)
}

/// Takes the bytes of lists that were asked for. In `barrier` mode the reads come in the order of their ranks; lists in RAM follow those before them.
pub(crate) fn take(
    state: &mut QueryState,
    view: &IndexView<'_>,
    clusters: &ClusterView<'_>,
    scratch: &mut Scratch,
    (tag, first, count): (Tag, u32, u32),
    bytes: &[u8],
) -> Option<()> {
    if state.params.mode == Mode::Barrier {
        if state.probing.queue.first().is_none_or(|lists| lists.tag != Some(tag)) {
            // It was read in vain.
            return Some(());
        }
        state.probing.queue.remove(0);
    }
    for list in first..first + count {
        if !may_scan(state, clusters, list, first + count) {
            return Some(());
        }
        scan_read(state, view, clusters, scratch, (first, list), bytes)?;
    }
    while let Some(&QueuedLists { first, tag: None, .. }) = state.probing.queue.first() {
        state.probing.queue.remove(0);
        if !may_scan(state, clusters, first, first + 1) {
            break;
        }
        scan_resident(state, view, clusters, scratch, first)?;
    }
    Some(())
}

/// Whether the next list by rank is scanned now. Where it is not, it and those after it, the first of them up to `end`, are left for later, or, where
/// its cluster is not worth a visit, for good.
fn may_scan(state: &mut QueryState, clusters: &ClusterView<'_>, list: u32, end: u32) -> bool {
    if state.params.mode == Mode::Eager {
        return true;
    }
    let cluster = clusters.directory.cluster_of(list);
    let has_begun = state.probing.visits.iter().any(|v| v.cluster == cluster && v.has_begun);
    if !has_begun && is_fruitless(state) {
        let visited = state.probing.clusters.iter().position(|&c| c == cluster).unwrap_or(0);
        state.probing.clusters.truncate(visited);
        state.probing.begun = visited as u32;
        state.probing.lists.clear();
        state.probing.queue.clear();
        state.probing.visits.clear();
        return false;
    }
    if state.probing.survivors.len() > SURVIVORS_MAX {
        let Probing { lists, queue, .. } = &mut state.probing;
        lists.extend(queue.drain(..).rev().flat_map(|q| (q.first..q.first + q.count).rev()));
        lists.extend((list..end).rev());
        return false;
    }
    true
}

/// Scans one of the lists, from `first` on, that a read brought.
fn scan_read(
    state: &mut QueryState,
    view: &IndexView<'_>,
    clusters: &ClusterView<'_>,
    scratch: &mut Scratch,
    (first, list): (u32, u32),
    bytes: &[u8],
) -> Option<()> {
    let directory = clusters.directory;
    let skip = Pages::of(directory.codes[first as usize], 0).skip as u64;
    let at = (skip + directory.codes[list as usize] - directory.codes[first as usize]) as usize;
    let length = clusters.shape.list_codes_bytes(directory.members(list) as usize);
    let head = ListCodes::verify(&clusters.shape, list, bytes.get(at..at + length)?)?;
    let is_whole = directory.is_whole(&clusters.shape, list);
    let records = if is_whole { bytes.get(at + length..) } else { None };
    if head.first_id() != directory.ids[list as usize] {
        return None;
    }
    begin_visit(state, view, clusters, scratch, directory.cluster_of(list));
    scan(state, view, clusters, scratch, &head, records)?;
    end_list(state, clusters, list);
    Some(())
}

/// Scans a list in RAM.
fn scan_resident(
    state: &mut QueryState,
    view: &IndexView<'_>,
    clusters: &ClusterView<'_>,
    scratch: &mut Scratch,
    list: u32,
) -> Option<()> {
    let head = ListCodes::open(&clusters.shape, list, clusters.resident_head(list)?)?;
    begin_visit(state, view, clusters, scratch, clusters.directory.cluster_of(list));
    scan(state, view, clusters, scratch, &head, None)?;
    end_list(state, clusters, list);
    Some(())
}

/// Looks at the codes of a list. Members that may be among the best become survivors, or, where their records are at hand, are scored.
fn scan(
    state: &mut QueryState,
    view: &IndexView<'_>,
    clusters: &ClusterView<'_>,
    scratch: &mut Scratch,
    head: &ListCodes<'_>,
    own_records: Option<&[u8]>,
) -> Option<()> {
    let ruler = Ruler::new(state, view, scratch);
    let base = to_centroid(view.metric, &scratch.wide, head.centroid());
    let first = head.first_id();
    let mut distances = core::mem::take(&mut scratch.distances);
    scratch.ids.clear();
    scratch.ids.extend(0..head.count() as u32);
    scratch.table.distances(head.codes(), &scratch.ids, &mut distances);
    state.stats.code_comparisons += head.count() as u64;
    state.stats.lists += 1;
    let mut fruitful = false;
    let kept = kept_so_far(state);
    let cut = ruler.cut(threshold(state), state.probing.estimates.kth(), head.radius_max());
    let mut done = Some(());
    let members = head.terms().zip(head.radii()).zip(head.centroid_distances());
    for (((term, radius), from_centroid), (slot, &code)) in members.zip((0u32..).zip(&distances)) {
        let id = first.wrapping_add(slot);
        if id == state.params.exclude {
            continue;
        }
        let cross = scratch.table.to_float(code);
        if ruler.at_least(base, term, cross) > cut {
            state.stats.pruned += 1;
            continue;
        }
        let span = ruler.by_code(base, term, cross, radius);
        // The navigation may have found it before; whoever lies beyond what is wanted need not be looked up.
        let is_near = span.estimate < state.probing.estimates.kth() || span.floor <= threshold(state);
        if is_near && state.probing.known.binary_search(&id).is_ok() {
            continue;
        }
        let by_pivot =
            if ruler.uses_pivots() { ruler.by_centroid(base, from_centroid) } else { f32::NEG_INFINITY };
        let (is_among_best, floor) = weigh(state, &ruler, &span, by_pivot);
        fruitful |= is_among_best;
        let Some(bound) = floor else { continue };
        let survivor = Survivor { estimate: span.estimate, bound, id };
        match own_records {
            None => state.probing.survivors.push(survivor),
            Some(bytes) => {
                let size = clusters.shape.record_bytes();
                let record =
                    bytes.get(slot as usize * size..).and_then(|b| Record::verify(&clusters.shape, id, b));
                done = record.map(|record| records::score(state, scratch, survivor, &record));
                if done.is_none() {
                    break;
                }
            }
        }
    }
    scratch.distances = distances;
    if fruitful {
        let directory = clusters.directory;
        bring(state, directory.cluster_of(directory.list_of(first)));
    }
    let list = clusters.directory.list_of(first);
    scratch.note_scanned(|| ScannedList {
        cluster: clusters.directory.cluster_of(list),
        list: Some(list),
        members: head.count() as u32,
        kept: kept_so_far(state).saturating_sub(kept) as u32,
        fruitful,
        in_ram: clusters.resident_head(list).is_some(),
    });
    drop_hopeless(state);
    done
}

/// Members that no bound has discarded.
fn kept_so_far(state: &QueryState) -> u64 {
    state.probing.survivors.len() as u64
}

/// Notes what the span of a member says of all, and whether it is among the best so far. With its floor where it may be among the results.
pub(crate) fn weigh(
    state: &mut QueryState,
    ruler: &Ruler,
    span: &Span,
    by_pivot: f32,
) -> (bool, Option<f32>) {
    let is_among_best = state.probing.estimates.offer(span.estimate);
    let mut floor = by_pivot;
    if ruler.uses_codes() {
        state.probing.ceilings.offer(span.ceiling);
        floor = floor.max(span.floor);
    }
    if floor > threshold(state) {
        state.stats.pruned += 1;
        return (is_among_best, None);
    }
    (is_among_best, Some(floor))
}

/// A visit has brought something.
pub(crate) fn bring(state: &mut QueryState, cluster: u32) {
    if let Some(visit) = state.probing.visits.iter_mut().find(|v| v.cluster == cluster) {
        visit.fruitful = true;
    }
}

/// Members of a list that is read as a whole were perhaps found by the navigation before: they are not read twice.
fn forget_found(state: &mut QueryState, ids: &core::ops::Range<u32>) {
    state.probing.survivors.retain(|s| !ids.contains(&s.id));
}

/// A list has been looked through; with the last of its cluster the cluster has brought something or nothing.
fn end_list(state: &mut QueryState, clusters: &ClusterView<'_>, list: u32) {
    end_part(state, clusters.directory.cluster_of(list));
}

fn end_part(state: &mut QueryState, cluster: u32) {
    let Some(visit) = state.probing.visits.iter_mut().find(|v| v.cluster == cluster) else { return };
    visit.lists_left = visit.lists_left.saturating_sub(1);
    if visit.lists_left > 0 {
        return;
    }
    let (fruitful, weight) = (visit.fruitful, visit.weight);
    state.probing.visits.retain(|v| v.cluster != cluster);
    state.stats.fruitful_clusters += u64::from(fruitful);
    state.probing.fruitless = if fruitful { 0.0 } else { state.probing.fruitless + weight };
}

/// Beyond this no member is wanted: the k-th best result, or what so many others are known to stay below.
pub(crate) fn threshold(state: &QueryState) -> f32 {
    let known = if state.is_full() { state.worst().map_or(f32::INFINITY, |w| w.0) } else { f32::INFINITY };
    known.min(state.probing.ceilings.kth())
}

/// Forgets survivors that the threshold has fallen below.
pub(crate) fn drop_hopeless(state: &mut QueryState) {
    let limit = threshold(state);
    let Probing { survivors, scored, .. } = &mut state.probing;
    survivors.retain(|survivor| {
        let is_kept = survivor.bound <= limit;
        if !is_kept {
            match scored.binary_search_by_key(&survivor.id, |s| s.id) {
                Ok(at) => drop(scored.remove(at)),
                Err(_) => state.stats.pruned += 1,
            }
        }
        is_kept
    });
}

/// Scores members that came in one run, whatever they are.
pub(crate) fn take_run(
    state: &mut QueryState,
    clusters: &ClusterView<'_>,
    scratch: &mut Scratch,
    (from, count): (u32, u32),
    bytes: &[u8],
) -> Option<()> {
    let size = clusters.shape.record_bytes();
    let mut at = Pages::of(clusters.directory.record_at(&clusters.shape, from), 0).skip as usize;
    let before = state.worst();
    for id in from..from + count {
        let record = Record::verify(&clusters.shape, id, bytes.get(at..)?)?;
        if id != state.params.exclude {
            keep_record(state, scratch, &record);
        }
        at += size;
    }
    let list = clusters.directory.list_of(from);
    scratch.note_scanned(|| ScannedList {
        cluster: clusters.directory.cluster_of(list),
        list: Some(list),
        members: count,
        kept: count,
        fruitful: state.worst() != before,
        in_ram: false,
    });
    if state.worst() != before {
        // Whose members these are may have ended meanwhile: its visit brought something all the same.
        state.probing.fruitless = 0.0;
    }
    Some(())
}
