//! Searches a cluster that is a graph of its own: by codes, which are resident or read before, along adjacency lists,
//! which are read (OrchANN §5.1, §5.3).
//!
//! The path depends on codes and edges alone, so no bound changes it: a pruned member is never read, but its edges
//! are followed.

use super::scan::{mark_fruitful, prune_candidates, weigh};
use super::visit::fetch;
use super::{HybridIvf, LocalCodes, LocalSearch, ReadKind, Scratch, Unread, View, bound_estimator};
use crate::PAGE;
use crate::exact::{BoundEstimator, DistanceBounds};
use crate::format::edges::Edges;
use crate::format::inverted_list::{ListCodes, MemberBounds};
use crate::kinds::kind::StepContext;
use crate::order::order_key;
use crate::route::to_centroid;
use crate::search::{Candidate, Mode, Pending, Progress};

/// The candidates whose edges are followed although other clusters hold nearer ones: this share of the beam, and at
/// least so many.
const LEAD_SHARE: usize = 8;
const LEAD_LEAST: usize = 8;

/// A member by its number within the cluster, and the bounds of the length of the edge to it.
pub(super) type Edge = (u32, (f32, f32));

/// The bounds of an edge of unknown length.
const ANY_LENGTH: (f32, f32) = (0.0, f32::INFINITY);

/// The next step of the search of a cluster.
pub(super) enum Next {
    /// Edges were asked for.
    Asked,
    /// The search waits for reads under way.
    Waits,
    /// The edges of all candidates were followed.
    Ended,
}

/// Opens a cluster that is a graph. Returns whether its codes are resident. If not, they are read before the search,
/// which is the same then.
pub(super) fn open(cx: &mut StepContext<'_, HybridIvf>, cluster: u32) -> Option<bool> {
    let (directory, shape) = (cx.view.directory, &cx.view.shape);
    let list = cx.params.local_list.max(cx.q.top.k);
    let local = &mut cx.own.local;
    local.begin(cluster, directory.members_of(cluster).len() as u32, list as usize);
    let lists = directory.lists_of(cluster);
    if lists.clone().all(|list| cx.view.resident_codes(list).is_some()) {
        return Some(true);
    }
    let mut bytes = 0;
    for list in lists.clone() {
        local.codes.starts.push(u32::try_from(bytes).ok()?);
        bytes += shape.list_codes_bytes(directory.members(list) as usize);
    }
    local.codes.bytes.resize(bytes, 0);
    local.codes.lists_left = lists.len() as u32;
    Some(false)
}

/// Keeps codes that were read for the search. Begins it with the last of them.
pub(super) fn take_codes(cx: &mut StepContext<'_, HybridIvf>, list: u32, own: &[u8]) -> Option<()> {
    let LocalSearch { cluster, codes, .. } = &mut cx.own.local;
    let cluster = *cluster;
    let at = list.checked_sub(cx.view.directory.lists_of(cluster).start)?;
    let start = *codes.starts.get(at as usize)? as usize;
    codes.bytes.get_mut(start..start + own.len())?.copy_from_slice(own);
    codes.lists_left = codes.lists_left.checked_sub(1)?;
    if codes.lists_left > 0 { Some(()) } else { begin(cx, cluster) }
}

/// Enters a cluster at the members that the navigation found, and at its entry.
pub(super) fn begin(cx: &mut StepContext<'_, HybridIvf>, cluster: u32) -> Option<()> {
    let members = cx.view.directory.members_of(cluster);
    if members.is_empty() {
        return Some(());
    }
    let search = ClusterSearch::new(cx, cluster);
    let known = &cx.own.navigated;
    let known =
        known.partition_point(|&id| id < members.start)..known.partition_point(|&id| id < members.end);
    for at in known {
        // The navigation has offered its bounds already.
        let number = cx.own.navigated[at] - members.start;
        let bounds = search.bounds(cx, &cx.own.local.codes, number)?.0;
        cx.own.local.visit(number)?;
        offer(cx, number, bounds.estimate);
        cx.q.stats.code_comparisons += 1;
        cx.scratch.trace_local(cluster, 1, 0, false);
    }
    let mut entry = cx.view.directory.entries[cluster as usize];
    if !cx.q.exists(members.start + entry) {
        entry = (entry + 1) % members.len() as u32;
    }
    cx.scratch.edges.clear();
    if cx.own.local.visit(entry)? {
        cx.scratch.edges.push((entry, ANY_LENGTH));
    }
    search.score(cx, None)
}

/// Asks for the adjacency lists of the nearest fresh candidates, with those of other candidates in the same pages.
pub(super) fn choose(cx: &mut StepContext<'_, HybridIvf>) -> Option<Next> {
    let room = match cx.q.mode {
        // Other reads under way must not decide the path.
        Mode::Barrier if !cx.q.io.pending.is_empty() => 0,
        _ => (cx.q.width as usize).saturating_sub(cx.q.io.pending.len()),
    };
    let cluster = cx.own.local.cluster;
    let mut asked = false;
    for _ in 0..room {
        let Some(at) = cx.own.local.beam.next_fresh(0) else { break };
        if !is_worthwhile(&cx.own.local, at) {
            break;
        }
        let page_of = |number: u32| cx.view.directory.edges_at(cluster, number).first;
        let local = &mut cx.own.local;
        let page = page_of(local.beam.entries()[at].id);
        for at in at..local.beam.entries().len() {
            let entry = local.beam.entries()[at];
            if entry.progress == Progress::Fresh && page_of(entry.id) == page && is_worthwhile(local, at) {
                local.beam.mark(at, Progress::Awaited);
            }
        }
        let extent = cx.view.edges_extent(cluster, page)?;
        fetch(cx, extent.offset, extent.bytes.into(), ReadKind::Edges { cluster })?;
        asked = true;
    }
    let waits = room == 0 || cx.q.io.pending.iter().any(is_of_edges);
    Some(match (asked, waits) {
        (true, _) => Next::Asked,
        (false, true) => Next::Waits,
        (false, false) => {
            cx.own.local.is_on = false;
            Next::Ended
        }
    })
}

fn is_of_edges(pending: &Pending) -> bool {
    matches!(ReadKind::of(&pending.read), Some(ReadKind::Edges { .. }))
}

/// Whether the edges of a candidate are to be followed. Those of the nearest of a beam always are, so that the search
/// reaches the nearest part of the cluster; those of others only while they are among the nearest of all clusters
/// searched so far.
fn is_worthwhile(local: &LocalSearch, at: usize) -> bool {
    let is_near = |e: &Candidate| e.distance <= order_key(local.nearest.kth());
    at < LEAD_LEAST.max(local.beam.capacity() / LEAD_SHARE)
        || local.beam.entries().get(at).is_some_and(is_near)
}

fn offer(cx: &mut StepContext<'_, HybridIvf>, number: u32, estimate: f32) {
    cx.own.local.nearest.offer(estimate);
    cx.own.local.beam.offer(order_key(estimate), number, Progress::Fresh);
}

/// Follows the edges of all candidates whose adjacency lists are in a page that was read from this offset on.
pub(super) fn take(cx: &mut StepContext<'_, HybridIvf>, offset: u64, bytes: &[u8]) -> Option<()> {
    let page = u32::try_from(offset / PAGE as u64).ok()?;
    let skipped = (offset % PAGE as u64) as u32;
    let cluster = cx.own.local.cluster;
    let search = ClusterSearch::new(cx, cluster);
    loop {
        let place = |number: u32| cx.view.directory.edges_at(cluster, number);
        let is_next = |(at, e): (usize, &Candidate)| {
            let is_due = match e.progress {
                Progress::Fresh => is_worthwhile(&cx.own.local, at),
                Progress::Awaited => true,
                Progress::Expanded => false,
            };
            is_due && place(e.id).first == page
        };
        let Some(at) = cx.own.local.beam.entries().iter().enumerate().position(is_next) else { break };
        let number = cx.own.local.beam.entries()[at].id;
        cx.own.local.beam.mark(at, Progress::Expanded);
        let own = bytes.get(place(number).skip.checked_sub(skipped)? as usize..)?;
        let edges = Edges::open(cx.view.directory.degree as usize, own)?;
        cx.q.stats.expanded += 1;
        cx.scratch.edges.clear();
        for edge in edges.neighbours() {
            if cx.own.local.visit(edge.0)? {
                cx.scratch.edges.push(edge);
            } else {
                cx.q.stats.repeats += 1;
            }
        }
        let pivot = if search.estimator.uses_pivots() { Some(search.pivot(cx, number)?) } else { None };
        search.score(cx, pivot.as_ref())?;
    }
    prune_candidates(cx);
    Some(())
}

/// The part that all members of the cluster that is searched have in common.
struct ClusterSearch {
    estimator: BoundEstimator,
    cluster: u32,
    /// Id of the cluster's first member.
    first: u32,
    /// The query's distance to the centroid.
    base: f32,
}

impl ClusterSearch {
    fn new(cx: &StepContext<'_, HybridIvf>, cluster: u32) -> ClusterSearch {
        ClusterSearch {
            estimator: bound_estimator(cx),
            cluster,
            first: cx.view.directory.members_of(cluster).start,
            base: to_centroid(cx.base.metric, &cx.scratch.query.wide, cx.view.centroid(cluster)),
        }
    }

    /// The list codes with a member, and its slot there. `read` are the cluster's codes where they are not resident.
    fn list_codes<'a>(
        &self,
        view: &View<'a>,
        read: &'a LocalCodes,
        number: u32,
    ) -> Option<(ListCodes<'a>, usize)> {
        let id = self.first + number;
        let list = view.directory.list_of(id);
        let bytes = if read.bytes.is_empty() {
            view.resident_codes(list)?
        } else {
            let at = list.checked_sub(view.directory.lists_of(self.cluster).start)?;
            let start = *read.starts.get(at as usize)? as usize;
            let length = view.shape.list_codes_bytes(view.directory.members(list) as usize);
            read.bytes.get(start..start.checked_add(length)?)?
        };
        let codes = ListCodes::open(&view.shape, list, bytes)?;
        Some((codes, (id - view.directory.ids[list as usize]) as usize))
    }

    /// The bounds of a member's distance by its code, and the range of its distance to the centroid.
    fn bounds(
        &self,
        cx: &StepContext<'_, HybridIvf>,
        read: &LocalCodes,
        number: u32,
    ) -> Option<(DistanceBounds, (f32, f32))> {
        let (codes, slot) = self.list_codes(cx.view, read, number)?;
        let size = cx.view.shape.code_bytes;
        let MemberBounds { term, radius, from_centroid } = codes.member(slot)?;
        let code = codes.codes().get(slot * size..(slot + 1) * size)?;
        let coded = &cx.scratch.query.coded;
        let cross = self.estimator.product(coded, coded.distance(code), code);
        Some((self.estimator.by_code(self.base, term, cross, radius), from_centroid))
    }

    /// The bounds of the distance of a member whose edges are followed; exact where it is a result or was one.
    /// Resident vectors must not change it.
    fn pivot(&self, cx: &StepContext<'_, HybridIvf>, number: u32) -> Option<DistanceBounds> {
        let id = self.first + number;
        if let Some(&(_, distance)) = cx.own.read.iter().find(|r| r.0 == id) {
            return Some(self.estimator.by_distance(self.base, distance));
        }
        self.bounds(cx, &cx.own.local.codes, number).map(|b| b.0)
    }

    /// Scores the members in `cx.scratch.edges` by their codes and offers them to the beam. They were reached from a
    /// member whose distance is within `pivot`. Those that are not pruned become candidates.
    fn score(&self, cx: &mut StepContext<'_, HybridIvf>, pivot: Option<&DistanceBounds>) -> Option<()> {
        let mut edges = core::mem::take(&mut cx.scratch.edges);
        let codes = core::mem::take(&mut cx.own.local.codes);
        let scored = self.score_all(cx, &codes, &edges, pivot);
        cx.own.local.codes = codes;
        edges.clear();
        cx.scratch.edges = edges;
        scored
    }

    fn score_all(
        &self,
        cx: &mut StepContext<'_, HybridIvf>,
        read: &LocalCodes,
        edges: &[Edge],
        pivot: Option<&DistanceBounds>,
    ) -> Option<()> {
        let (scored, before, mut fruitful) = (edges.len() as u32, cx.own.candidates.len(), false);
        cx.q.stats.code_comparisons += u64::from(scored);
        let mut rest = edges;
        while let Some(&(number, _)) = rest.first() {
            // Those of one list at once; neighbours ascend.
            let (codes, slot) = self.list_codes(cx.view, read, number)?;
            let start = self.first + number - slot as u32;
            let slots = rest.iter().map(|e| (self.first + e.0).wrapping_sub(start));
            let Scratch { ids, query, distances, .. } = &mut *cx.scratch;
            ids.clear();
            ids.extend(slots.take_while(|&slot| (slot as usize) < codes.count()));
            query.coded.distances(codes.codes(), ids, distances);
            let (run, others) = rest.split_at_checked(ids.len().max(1))?;
            for (i, edge) in run.iter().enumerate() {
                let (Some(&slot), Some(&key)) = (cx.scratch.ids.get(i), cx.scratch.distances.get(i)) else {
                    break;
                };
                let MemberBounds { term, radius, from_centroid } = codes.member(slot as usize)?;
                let code = codes.codes().chunks_exact(cx.view.shape.code_bytes).nth(slot as usize)?;
                let cross = self.estimator.product(&cx.scratch.query.coded, key, code);
                let bounds = self.estimator.by_code(self.base, term, cross, radius);
                fruitful |= self.offer_member(cx, edge, &bounds, from_centroid, pivot);
            }
            rest = others;
        }
        let kept = cx.own.candidates.len() - before;
        cx.scratch.trace_local(self.cluster, scored, kept as u32, fruitful);
        Some(())
    }

    /// Offers a member to the beam and to the candidates. Returns whether its estimate is among the best so far.
    fn offer_member(
        &self,
        cx: &mut StepContext<'_, HybridIvf>,
        &(number, length): &Edge,
        bounds: &DistanceBounds,
        from_centroid: (f32, f32),
        pivot: Option<&DistanceBounds>,
    ) -> bool {
        let id = self.first + number;
        if !cx.q.exists(id) {
            return false;
        }
        offer(cx, number, bounds.estimate);
        let mut by_pivot = f32::NEG_INFINITY;
        if self.estimator.uses_pivots() {
            by_pivot = self.estimator.lower_by_centroid(self.base, from_centroid);
            by_pivot =
                pivot.map_or(by_pivot, |pivot| by_pivot.max(self.estimator.lower_by_edge(pivot, length)));
        }
        let (is_among_best, lower) = weigh(cx, &self.estimator, bounds, by_pivot);
        if is_among_best {
            mark_fruitful(cx, self.cluster);
        }
        if let Some(lower) = lower {
            cx.own.candidates.push(Unread { estimate: bounds.estimate, lower, id });
        }
        is_among_best
    }
}
