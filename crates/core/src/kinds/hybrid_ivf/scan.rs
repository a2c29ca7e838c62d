//! Scans list codes: prunes members by bounds, and keeps the others as candidates.

use super::rerank;
use super::{HybridIvf, ScannedList, State, Unread, View, bound_estimator};
use crate::exact::{BoundEstimator, Cut, DistanceBounds};
use crate::format::inverted_list::{ListCodes, MemberBounds, Record};
use crate::kinds::kind::StepContext;
use crate::route::to_centroid;

/// Scans one of the lists that a read from list `first` on brought.
pub(super) fn scan_read(
    cx: &mut StepContext<'_, HybridIvf>,
    (first, list): (u32, u32),
    bytes: &[u8],
) -> Option<()> {
    let (codes, after) = codes_of(cx.view, (first, list), bytes)?;
    let records = cx.view.directory.is_whole(&cx.view.shape, list).then_some(after);
    scan(cx, &ListCodes::open(&cx.view.shape, list, codes)?, records)
}

/// The codes of one of the lists that a read from list `first` on brought, and the bytes after them.
pub(super) fn codes_of<'a>(
    view: &View<'_>,
    (first, list): (u32, u32),
    bytes: &'a [u8],
) -> Option<(&'a [u8], &'a [u8])> {
    let directory = view.directory;
    let start = *directory.codes.get(first as usize)?;
    let at = directory.codes.get(list as usize)?.checked_sub(start)? as usize;
    bytes.get(at..)?.split_at_checked(view.shape.list_codes_bytes(directory.members(list) as usize))
}

/// Scans the codes of a list. Members that are not pruned become candidates, or are scored where their records came
/// along.
pub(super) fn scan(
    cx: &mut StepContext<'_, HybridIvf>,
    codes: &ListCodes<'_>,
    records: Option<&[u8]>,
) -> Option<()> {
    let estimator = bound_estimator(cx);
    let first = codes.first_id();
    let mut fruitful = false;
    let before = cx.own.candidates.len();
    let (pruned, is_bounded) = (cx.q.stats.pruned, is_bounded(cx));
    let cut = estimator.cut(threshold(cx), estimate_limit(cx));
    let done = each_member(cx, codes, (&estimator, cut), |cx, slot, bounds, by_pivot| {
        let (is_among_best, lower) = weigh(cx, &estimator, &bounds, by_pivot);
        fruitful |= is_among_best;
        let Some(lower) = lower else { return Some(()) };
        let id = first.wrapping_add(slot);
        cx.own.candidates.push(Unread { estimate: bounds.estimate, lower, id });
        records.map_or(Some(()), |bytes| score_whole(cx, id, slot, bytes))
    });
    if fruitful {
        let directory = cx.view.directory;
        mark_fruitful(cx, directory.cluster_of(directory.list_of(first)));
    }
    let list = cx.view.directory.list_of(first);
    let kept = (cx.own.candidates.len() - before) as u32;
    cx.scratch.trace_scanned(|| ScannedList {
        cluster: cx.view.directory.cluster_of(list),
        list: Some(list),
        members: codes.count() as u32,
        kept,
        fruitful,
        in_ram: cx.view.resident_codes(list).is_some(),
    });
    prune_candidates(cx);
    cx.q.stats.bounded += if is_bounded { cx.q.stats.pruned - pruned } else { 0 };
    done
}

/// Calls `take` with the slot, the bounds and the lower bound by the centroid of each member of a list that may be
/// within the cut. Ends with the first `None`.
pub(super) fn each_member(
    cx: &mut StepContext<'_, HybridIvf>,
    codes: &ListCodes<'_>,
    (estimator, cut): (&BoundEstimator, Option<Cut>),
    mut take: impl FnMut(&mut StepContext<'_, HybridIvf>, u32, DistanceBounds, f32) -> Option<()>,
) -> Option<()> {
    let base = to_centroid(cx.base.metric, &cx.scratch.query.wide, codes.centroid());
    let first = codes.first_id();
    let radius_slack = if estimator.uses_lengths() { codes.radius_slack() } else { 0.0 };
    let mut distances = core::mem::take(&mut cx.scratch.distances);
    let mut slots = core::mem::take(&mut cx.scratch.ids);
    slots.clear();
    match cx.base.sieve {
        None => slots.extend(0..codes.count() as u32),
        Some(sieve) => {
            let members = first..first.saturating_add(codes.count() as u32);
            slots.extend(sieve.iter_in(members).map(|id| id - first));
        }
    }
    cx.scratch.query.coded.distances(codes.codes(), &slots, &mut distances);
    cx.q.stats.code_comparisons += slots.len() as u64;
    cx.q.stats.lists += 1;
    let mut done = Some(());
    let navigated = navigated_from(cx, first);
    let mut scan = ListScan { estimator, cut, base, radius_slack, first, navigated };
    if cx.base.sieve.is_none() {
        let members = codes.terms().zip(codes.radii()).zip(codes.centroid_distances());
        let keys = distances.iter().zip(codes.codes().chunks_exact(cx.view.shape.code_bytes));
        for (((term, radius), from_centroid), (slot, (&key, code))) in members.zip((0u32..).zip(keys)) {
            let known = MemberBounds { term, radius, from_centroid };
            if let Some((bounds, by_pivot)) = scan.judge(cx, (slot, key), code, &known) {
                done = take(cx, slot, bounds, by_pivot);
            }
            if done.is_none() {
                break;
            }
        }
    } else {
        for (&slot, &key) in slots.iter().zip(&distances) {
            done = member_of(cx.view, codes, slot).and_then(|(code, known)| {
                let judged = scan.judge(cx, (slot, key), code, &known);
                judged.map_or(Some(()), |(bounds, by_pivot)| take(cx, slot, bounds, by_pivot))
            });
            if done.is_none() {
                break;
            }
        }
    }
    cx.scratch.ids = slots;
    cx.scratch.distances = distances;
    done
}

/// A list whose members are judged.
struct ListScan<'e> {
    estimator: &'e BoundEstimator,
    cut: Option<Cut>,
    /// Distance to the centroid.
    base: f32,
    radius_slack: f32,
    /// Id of the first member.
    first: u32,
    /// The place in the navigation's members of the next one of this list.
    navigated: usize,
}

impl ListScan<'_> {
    /// The bounds of a member that may be within the cut, and its lower bound by the centroid.
    #[inline(always)]
    fn judge(
        &mut self,
        cx: &mut StepContext<'_, HybridIvf>,
        (slot, key): (u32, u32),
        code: &[u8],
        known: &MemberBounds,
    ) -> Option<(DistanceBounds, f32)> {
        let id = self.first.wrapping_add(slot);
        // The navigation has counted this member already.
        while cx.own.navigated.get(self.navigated).is_some_and(|&before| before < id) {
            self.navigated += 1;
        }
        if cx.own.navigated.get(self.navigated) == Some(&id) || !cx.q.exists(id) {
            return None;
        }
        let cross = self.estimator.product(&cx.scratch.query.coded, key, code);
        if self
            .cut
            .is_some_and(|cut| self.estimator.is_beyond(&cut, (self.base, known.term), cross, known.radius))
        {
            cx.q.stats.pruned += 1;
            return None;
        }
        let bounds = self.estimator.by_list(self.base, known, cross, self.radius_slack);
        let by_pivot = match self.estimator.uses_pivots() {
            true => self.estimator.lower_by_centroid(self.base, known.from_centroid),
            false => f32::NEG_INFINITY,
        };
        Some((bounds, by_pivot))
    }
}

/// The code of a member, and what is known of its bounds.
fn member_of<'c>(view: &View<'_>, codes: &'c ListCodes<'_>, slot: u32) -> Option<(&'c [u8], MemberBounds)> {
    let size = view.shape.code_bytes;
    let code = codes.codes().get(slot as usize * size..(slot as usize + 1) * size)?;
    Some((code, codes.member(slot as usize)?))
}

/// Scores a member whose record came with its list.
pub(super) fn score_whole(
    cx: &mut StepContext<'_, HybridIvf>,
    id: u32,
    slot: u32,
    records: &[u8],
) -> Option<()> {
    let at = slot as usize * cx.view.shape.record_bytes();
    let record = records.get(at..).and_then(|bytes| Record::open(&cx.view.shape, bytes))?;
    rerank::score_ahead(cx, id, &record);
    Some(())
}

/// The place in the navigation's members, which ascend, of the first one from `id` on.
fn navigated_from(cx: &StepContext<'_, HybridIvf>, id: u32) -> usize {
    cx.own.navigated.partition_point(|&known| known < id)
}

/// Offers the bounds of a member to the thresholds. Returns whether its estimate is among the best so far, and its
/// lower bound unless that prunes it.
pub(super) fn weigh(
    cx: &mut StepContext<'_, HybridIvf>,
    estimator: &BoundEstimator,
    bounds: &DistanceBounds,
    by_pivot: f32,
) -> (bool, Option<f32>) {
    let is_among_best = cx.own.estimates.offer(bounds.estimate) && bounds.estimate <= nearest_expected(cx);
    let mut lower = by_pivot;
    if estimator.uses_codes() {
        cx.own.upper_bounds.offer(bounds.upper);
        lower = lower.max(bounds.lower);
    }
    if lower > threshold(cx) {
        cx.q.stats.pruned += 1;
        return (is_among_best, None);
    }
    (is_among_best, Some(lower))
}

/// Marks the visit of a cluster as fruitful.
pub(super) fn mark_fruitful(cx: &mut StepContext<'_, HybridIvf>, cluster: u32) {
    if let Some(visit) = cx.own.visits.iter_mut().find(|v| v.cluster == cluster) {
        visit.fruitful = true;
    }
}

/// The distance beyond which members are pruned: that of the k-th result, or the k-th smallest upper bound.
pub(super) fn threshold(cx: &StepContext<'_, HybridIvf>) -> f32 {
    cx.q.limit().unwrap_or(f32::INFINITY).min(cx.own.upper_bounds.kth())
}

/// The estimate beyond which a member is hardly a result: the k-th smallest, or the bound where that is smaller.
pub(super) fn estimate_limit(cx: &StepContext<'_, HybridIvf>) -> f32 {
    cx.own.estimates.kth().min(nearest_expected(cx))
}

/// The distance within which results are expected.
fn nearest_expected(cx: &StepContext<'_, HybridIvf>) -> f32 {
    cx.q.known.bound.min(cx.q.known.near)
}

/// Whether the bound decides what is pruned.
fn is_bounded(cx: &StepContext<'_, HybridIvf>) -> bool {
    cx.q.is_limit_smaller() && cx.q.limit().is_some_and(|limit| limit < cx.own.upper_bounds.kth())
}

/// Drops candidates whose lower bound is beyond the threshold.
pub(super) fn prune_candidates(cx: &mut StepContext<'_, HybridIvf>) {
    let limit = threshold(cx);
    let State { candidates, scored, .. } = &mut *cx.own;
    candidates.retain(|candidate| {
        let is_kept = candidate.lower <= limit;
        if !is_kept {
            match scored.binary_search_by_key(&candidate.id, |s| s.id) {
                Ok(at) => drop(scored.remove(at)),
                Err(_) => cx.q.stats.pruned += 1,
            }
        }
        is_kept
    });
}

/// Scores a run of members that was read without bounds.
pub(super) fn take_run(
    cx: &mut StepContext<'_, HybridIvf>,
    (from, count): (u32, u32),
    bytes: &[u8],
) -> Option<()> {
    let size = cx.view.shape.record_bytes();
    let before = cx.q.last_useful();
    for (id, bytes) in (from..from.checked_add(count)?).zip(bytes.chunks_exact(size)) {
        if cx.may_return(id) {
            let scored = rerank::score(cx, id, &Record::open(&cx.view.shape, bytes)?);
            rerank::offer(cx, scored);
        }
    }
    let list = cx.view.directory.list_of(from);
    let fruitful = cx.q.last_useful() != before;
    cx.scratch.trace_scanned(|| ScannedList {
        cluster: cx.view.directory.cluster_of(list),
        list: Some(list),
        members: count,
        kept: count,
        fruitful,
        in_ram: false,
    });
    if fruitful {
        // The visit of this cluster may have ended as fruitless meanwhile.
        cx.own.fruitless = 0.0;
    }
    Some(())
}
