//! Clusters, one after another: which lists to scan, and when to stop (OrchANN §5.3).
//!
//! A visit scans the codes of a cluster's lists, which lie in RAM or are read, and keeps of the members those that may be among the best. No
//! vector is read meanwhile: that a cluster brings nothing shows in the codes. A cluster that is a graph is walked through instead, see [`super::local_graph`].

use super::{local_graph, records};
use crate::format::directory::{LocalKind, Pages};
use crate::format::inverted_list::{ListCodes, Record};
use crate::likelihood;
use crate::plan::{ClusterView, IndexView};
use crate::query::{QueryState, Reading, ScannedList, Scratch, Survivor, Visit};
use crate::route::to_centroid;
use crate::verify::bounds::{Ruler, Span};
use crate::verify::keep_record;

/// Members that are kept in mind at a time. With more, some are read before further lists are scanned: what is read makes the others' chances worse.
pub const SURVIVORS_MAX: usize = 2048;

/// Whether clusters are left to visit, or lists of those that have begun.
pub(crate) fn is_scanning(state: &QueryState) -> bool {
    !state.probing.lists.is_empty() || state.probing.walk.is_on || has_clusters(state)
}

fn has_clusters(state: &QueryState) -> bool {
    let probing = &state.probing;
    (probing.begun as usize) < probing.clusters.len()
        && probing.fruitless < state.params.probe.patience(probing.clusters.len())
}

/// Scans lists in RAM, and asks for those on disk until `width` reads are under way. `None` when the budget allows no more, or a list makes no sense.
pub(crate) fn choose(
    state: &mut QueryState,
    view: &IndexView<'_>,
    clusters: &ClusterView<'_>,
    scratch: &mut Scratch,
) -> Option<()> {
    let mut asked = false;
    while state.outstanding.len() < state.params.width as usize
        && state.probing.survivors.len() <= SURVIVORS_MAX
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
            if !has_clusters(state) || (asked && state.params.width == 1) {
                break;
            }
            begin_cluster(state, view, clusters, scratch)?;
            continue;
        }
        let Some(list) = state.probing.lists.pop() else { break };
        if state.params.probe.bounds == crate::query::Bounds::Off {
            asked |= ask_for_members(state, view, clusters, list)?;
        } else if let Some(bytes) = clusters.resident_head(list) {
            let head = ListCodes::open(&clusters.shape, list, bytes)?;
            scan(state, view, clusters, scratch, &head, None)?;
            end_list(state, clusters, list);
        } else {
            ask_for_list(state, view, clusters, list)?;
            asked = true;
        }
    }
    Some(())
}

/// Puts the lists of the next cluster on the stack, or begins a walk through it.
fn begin_cluster(
    state: &mut QueryState,
    view: &IndexView<'_>,
    clusters: &ClusterView<'_>,
    scratch: &mut Scratch,
) -> Option<()> {
    let at = state.probing.begun as usize;
    state.probing.begun += 1;
    let Some(&cluster) = state.probing.clusters.get(at) else { return Some(()) };
    let lists = clusters.directory.lists_of(cluster);
    state.stats.clusters += 1;
    let weight = weight_of(state, view, clusters, scratch, cluster);
    if local_graph::can_walk(clusters, cluster) {
        state.probing.visits.push(Visit { cluster, lists_left: 1, fruitful: false, weight });
        return local_graph::begin(state, view, clusters, scratch, cluster);
    }
    let first = state.probing.lists.len();
    match clusters.directory.kinds[cluster as usize] {
        LocalKind::Ivf => nearest_lists(state, view, clusters, scratch, cluster),
        LocalKind::Flat | LocalKind::Graph => state.probing.lists.extend(lists.rev()),
    }
    let lists_left = (state.probing.lists.len() - first) as u32;
    state.probing.visits.push(Visit { cluster, lists_left, fruitful: false, weight });
    Some(())
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
    state.fetch_as(view, pages.first, pages.count, Reading::Lists(list, last + 1 - list)).map(|_| ())
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

/// The bytes of a read of lists that arrived.
pub(crate) fn take_lists(
    state: &mut QueryState,
    view: &IndexView<'_>,
    clusters: &ClusterView<'_>,
    scratch: &mut Scratch,
    (first, count): (u32, u32),
    bytes: &[u8],
) -> Option<()> {
    let directory = clusters.directory;
    let skip = Pages::of(directory.codes[first as usize], 0).skip as u64;
    for list in first..first + count {
        let at = (skip + directory.codes[list as usize] - directory.codes[first as usize]) as usize;
        let length = clusters.shape.list_codes_bytes(directory.members(list) as usize);
        let head = ListCodes::verify(&clusters.shape, list, bytes.get(at..at + length)?)?;
        let is_whole = directory.is_whole(&clusters.shape, list);
        let records = if is_whole { bytes.get(at + length..) } else { None };
        if head.first_id() != directory.ids[list as usize] {
            return None;
        }
        scan(state, view, clusters, scratch, &head, records)?;
        end_list(state, clusters, list);
    }
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
        let Some(floor) = floor else { continue };
        match own_records {
            None => state.probing.survivors.push(Survivor { estimate: span.estimate, bound: floor, id }),
            Some(bytes) => {
                let size = clusters.shape.record_bytes();
                let record =
                    bytes.get(slot as usize * size..).and_then(|b| Record::verify(&clusters.shape, id, b));
                done = record.map(|record| records::score(state, scratch, id, &record));
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

/// Members that no bound has discarded when they were looked at.
fn kept_so_far(state: &QueryState) -> u64 {
    state.probing.survivors.len() as u64 + state.stats.full_comparisons
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
    let before = state.probing.survivors.len();
    state.probing.survivors.retain(|s| s.bound <= limit);
    state.stats.pruned += (before - state.probing.survivors.len()) as u64;
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
