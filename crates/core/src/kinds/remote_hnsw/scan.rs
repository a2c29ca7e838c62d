//! Searches a cluster that has arrived.

use super::found::{Found, offer};
use super::sieved::Matches;
use super::view::FRESH;
use super::{Params, RemoteHnsw, Scratch, State};
use crate::access::hnsw::{HnswCost, Walk, comparisons_of_scan, is_match_scan_faster};
use crate::format::fresh::FreshRecord;
use crate::format::hnsw::SubHnsw;
use crate::format::region::{count_bits, has_bit};
use crate::kinds::kind::StepContext;
use crate::search::Read;

/// Takes the vectors of a cluster that are near. `None` for bytes that make no sense.
pub(super) fn take(cx: &mut StepContext<'_, RemoteHnsw>, read: &Read, bytes: &[u8]) -> Option<()> {
    if read.note == FRESH { take_fresh(cx, read, bytes) } else { take_base(cx, read.unit, bytes) }
}

/// Searches a sub-HNSW by itself, so that its results depend on nothing else.
fn take_base(cx: &mut StepContext<'_, RemoteHnsw>, cluster: u32, bytes: &[u8]) -> Option<()> {
    let own = SubHnsw::open(cx.view.layout, bytes)?;
    let (view, located) = (cx.view, cx.view.clusters.get(cluster as usize)?);
    let (clock, marks, first) = (located.clock, view.marks_of(located), located.first_marks[0]);
    let marked = count_bits(marks, first, own.members().into());
    let is_marked = |member: u32| has_bit(marks, first + u64::from(member));
    let is_hidden = |member: u32| view.is_hidden(own.external_id(member), clock);
    let is_dead = |member: u32| is_marked(member) || is_hidden(member);
    let (matches, left) = (Matches::of(cx.base, view, cluster), u64::from(own.members()) - marked);
    let members = Members { cluster, clock, own, matches: own.members(), is_sieved: false };
    let cost = if matches.is_all() {
        let cost = match (marked > 0, view.tombstones.is_empty()) {
            (false, true) => take_members(cx, &members, |_| false),
            (true, true) => take_members(cx, &members, is_marked),
            (_, false) => take_members(cx, &members, is_dead),
        };
        cx.own.searched += share_searched(view.share(cluster), &cost, (own.members().into(), left));
        cost
    } else {
        let count = matches.count(&own, view.is_thinned().then_some(is_dead));
        cx.own.see(cluster, (count, left as u32));
        cx.q.stats.vain_blocks += u64::from(count == 0);
        let members = Members { matches: count, is_sieved: true, ..members };
        take_members(cx, &members, |member| !matches.has(&own, member) || is_dead(member))
    };
    if let Some(visit) = cx.scratch.trace.as_mut().and_then(|trace| trace.visit(cluster)) {
        (visit.members, visit.bytes) = (own.members(), bytes.len() as u32);
        visit.comparisons += cost.comparisons;
        visit.expanded += cost.expanded;
    }
    Some(())
}

/// The part of the share of a cluster that was searched: of the visited members, the share that is not deleted stands
/// for all. Headers have counted those that have marks; so many are `left`.
fn share_searched(share: u32, cost: &HnswCost, (members, left): (u64, u64)) -> u64 {
    let visited = cost.visited.max(1);
    let live = visited.saturating_sub(cost.dead);
    let part = u128::from(share) * u128::from(live * members);
    (part / u128::from(visited * left).max(1)).min(share.into()) as u64
}

/// A cluster that is searched.
struct Members<'a> {
    cluster: u32,
    clock: u64,
    own: SubHnsw<'a>,
    /// Members that may be results; with a filter exactly, otherwise deleted ones are among them.
    matches: u32,
    is_sieved: bool,
}

/// Takes the nearest members that may be results: by a scan of a small cluster, or of few, otherwise by its graph.
fn take_members(
    cx: &mut StepContext<'_, RemoteHnsw>,
    &Members { cluster, clock, ref own, matches, is_sieved }: &Members<'_>,
    is_dead: impl Fn(u32) -> bool,
) -> HnswCost {
    if is_sieved && matches == 0 {
        return HnswCost::default();
    }
    let first = cx.view.first.get(cluster as usize).copied();
    let k = cx.q.top.k as usize;
    let Scratch { tables, .. } = &mut *cx.scratch;
    let State { found, .. } = &mut *cx.own;
    let q = &mut *cx.q;
    // The row of a made query leads to its own neighbours: a search of a vector that is not there has no such step.
    let absent =
        first.and_then(|first| q.exclude.checked_sub(first)).filter(|&member| member < own.members());
    let mut left = k;
    let mut see = |(distance, member): (f32, u32)| {
        let is_out = first.is_some_and(|first| !q.exists(first.wrapping_add(member)));
        if left > 0 && !is_out {
            left -= 1;
            offer(found, k, Found { distance, id: own.external_id(member), clock });
        }
    };
    let Params { ef, exact, scan_clusters, .. } = *cx.params;
    // Of rows that are left, or that match, k are found.
    let ef = if cx.view.is_thinned() || is_sieved { (ef as usize).max(k) } else { ef as usize };
    // The row of a made query may be one of those found. An exact search takes ties by id, so it sees all of them.
    let wanted = if exact { own.members() as usize } else { k + 1 };
    let mut cost = HnswCost::default();
    let mut is_scanned = exact || (scan_clusters && is_match_scan_faster(own, matches, ef));
    if !is_scanned {
        let is_part = scan_clusters && matches < own.members() && is_sieved;
        let comparisons_max = if is_part { comparisons_of_scan(own, matches) } else { u64::MAX };
        let walk = Walk { ef, absent, comparisons_max };
        let (of_walk, nearest) = tables.hnsw.search(own, cx.exact, walk, &is_dead);
        (cost, is_scanned) = (of_walk, of_walk.gave_way);
        if !is_scanned {
            nearest.for_each(&mut see);
        }
    }
    if is_scanned {
        let (of_scan, nearest) = tables.hnsw.nearest(own, cx.exact, wanted, is_dead);
        nearest.for_each(&mut see);
        q.stats.gave_way += u64::from(cost.gave_way);
        cost = HnswCost {
            comparisons: cost.comparisons + of_scan.comparisons,
            expanded: cost.expanded,
            ..of_scan
        };
    }
    q.stats.full_comparisons += cost.comparisons;
    q.stats.expanded += cost.expanded;
    cost
}

/// Compares some fresh records of a cluster. A slot without a record is passed over: it was reserved, and not written
/// yet.
fn take_fresh(cx: &mut StepContext<'_, RemoteHnsw>, read: &Read, bytes: &[u8]) -> Option<()> {
    let (k, cluster, record_bytes) = (cx.q.top.k as usize, read.unit, cx.view.record_bytes());
    let located = cx.view.clusters.get(cluster as usize)?;
    let (marks, matches) = (cx.view.marks_of(located), Matches::of(cx.base, cx.view, cluster));
    let before = read.at.offset.saturating_sub(located.fresh.offset) / record_bytes as u64;
    let (mut compared, mut records) = (0, 0);
    for (slot, mark) in bytes.chunks_exact(record_bytes).zip(located.first_marks[1] + before..) {
        let record = FreshRecord::of_masked(cx.view.layout.vector_bytes, slot);
        let Some(record) = record.filter(|record| record.cluster == cluster) else { continue };
        records += 1;
        let is_match = matches.has_fresh(record.id);
        if !is_match || has_bit(marks, mark) || cx.view.is_hidden(record.id, record.clock) {
            continue;
        }
        compared += 1;
        let distance = cx.exact.distance(record.vector, record.inverse_norm);
        offer(&mut cx.own.found, k, Found { distance, id: record.id, clock: record.clock });
    }
    if !matches.is_all() {
        cx.own.see(cluster, (compared, records));
    }
    cx.q.stats.full_comparisons += u64::from(compared);
    if let Some(visit) = cx.scratch.trace.as_mut().and_then(|trace| trace.visit(cluster)) {
        visit.fresh += compared;
        visit.fresh_bytes += bytes.len() as u32;
    }
    Some(())
}
