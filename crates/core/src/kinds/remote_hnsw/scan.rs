//! Searches a cluster that has arrived.

use super::found::{Found, offer};
use super::view::FRESH;
use super::{Params, RemoteHnsw, Scratch, State};
use crate::access::hnsw::{HnswCost, is_scan_faster};
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
    let cost = match (marked > 0, view.tombstones.is_empty()) {
        (false, true) => take_members(cx, (cluster, clock), &own, |_| false),
        (true, true) => take_members(cx, (cluster, clock), &own, is_marked),
        (_, false) => {
            take_members(cx, (cluster, clock), &own, |member| is_marked(member) || is_hidden(member))
        }
    };
    // Of the visited members, the share that is not deleted stands for all. Headers have counted the marked ones.
    let visited = cost.visited.max(1);
    let (live, members) = (visited.saturating_sub(cost.dead), u64::from(own.members()));
    let share = u128::from(view.share(cluster)) * u128::from(live * members);
    let known = u128::from(visited * (members - marked)).max(1);
    cx.own.searched += (share / known).min(view.share(cluster).into()) as u64;
    if let Some(visit) = cx.scratch.trace.as_mut().and_then(|trace| trace.visit(cluster)) {
        (visit.members, visit.bytes) = (own.members(), bytes.len() as u32);
        visit.comparisons += cost.comparisons;
        visit.expanded += cost.expanded;
    }
    Some(())
}

/// Takes the nearest members that are not deleted: by a scan of a small cluster, otherwise by its graph.
fn take_members(
    cx: &mut StepContext<'_, RemoteHnsw>,
    (cluster, clock): (u32, u64),
    own: &SubHnsw<'_>,
    is_dead: impl Fn(u32) -> bool,
) -> HnswCost {
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
    // Where rows are deleted, k of those that are left are found.
    let ef = if cx.view.is_thinned() { (ef as usize).max(k) } else { ef as usize };
    let cost = if exact || (scan_clusters && is_scan_faster(own, ef)) {
        // The row of a made query may be one of those found. An exact search takes ties by id, so it sees all of them.
        let wanted = if exact { own.members() as usize } else { k + 1 };
        let (cost, nearest) = tables.0.nearest(own, cx.exact, wanted, is_dead);
        nearest.for_each(&mut see);
        cost
    } else {
        let (cost, nearest) = tables.0.search(own, cx.exact, (ef, absent), is_dead);
        nearest.for_each(&mut see);
        cost
    };
    q.stats.full_comparisons += cost.comparisons;
    q.stats.expanded += cost.expanded;
    cost
}

/// Compares some fresh records of a cluster. A slot without a record is passed over: it was reserved, and not written
/// yet.
fn take_fresh(cx: &mut StepContext<'_, RemoteHnsw>, read: &Read, bytes: &[u8]) -> Option<()> {
    let (k, cluster, record_bytes) = (cx.q.top.k as usize, read.unit, cx.view.record_bytes());
    let located = cx.view.clusters.get(cluster as usize)?;
    let marks = cx.view.marks_of(located);
    let before = read.at.offset.saturating_sub(located.fresh.offset) / record_bytes as u64;
    let mut compared = 0;
    for (slot, mark) in bytes.chunks_exact(record_bytes).zip(located.first_marks[1] + before..) {
        let record = FreshRecord::of_masked(cx.view.layout.vector_bytes, slot);
        let Some(record) = record.filter(|record| record.cluster == cluster) else { continue };
        if has_bit(marks, mark) || cx.view.is_hidden(record.id, record.clock) {
            continue;
        }
        compared += 1;
        let distance = cx.exact.distance(record.vector, record.inverse_norm);
        offer(&mut cx.own.found, k, Found { distance, id: record.id, clock: record.clock });
    }
    cx.q.stats.full_comparisons += u64::from(compared);
    if let Some(visit) = cx.scratch.trace.as_mut().and_then(|trace| trace.visit(cluster)) {
        visit.fresh += compared;
        visit.fresh_bytes += bytes.len() as u32;
    }
    Some(())
}
