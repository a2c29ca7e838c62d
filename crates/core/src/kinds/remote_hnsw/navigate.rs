//! Chooses the clusters of a query by the meta-HNSW, and asks for all of them.

use alloc::vec::Vec;

use stratann_kernel::distance::Exact;

use super::trace::Visit;
use super::view::{self, BASE, FRESH};
use super::{RemoteHnsw, Scratch, Tables};
use crate::access::hnsw::{HnswCost, Walk, is_scan_faster};
use crate::format::hnsw::SubHnsw;
use crate::kinds::kind::StepContext;
use crate::route::lists_to_visit;
use crate::search::{Extent, Outcome};
use crate::sieve::{IdSieve, Sieve};

/// Shortest beam in the meta-HNSW.
const BEAM_MIN: usize = 64;
/// Without scans of small clusters, all representatives are compared where the beam is one part in so many of them.
const SCAN_PART: usize = 4;
/// Half a cluster: so much less than `nprobe` whole ones is enough.
const SLACK: u64 = WHOLE / 2;
/// The next clusters count as having lost all but one row in so many at most.
const LOST_MOST: u64 = 64;
/// See [`view::WHOLE`].
const WHOLE: u64 = view::WHOLE as u64;

/// Asks for the `nprobe` nearest clusters, counted by the shares of their rows that are left.
pub(super) fn choose(cx: &mut StepContext<'_, RemoteHnsw>) {
    if cx.view.id_sieve.is_some_and(IdSieve::is_empty) {
        return cx.end_round(&[]);
    }
    let all = cx.view.clusters.len();
    let wanted = if cx.params.exact { all } else { all.min(cx.params.nprobe as usize) };
    if let Some(sieve) = rows_sieve(cx) {
        choose_matching(cx, sieve);
    } else if cx.view.shares.is_empty() {
        rank(cx, wanted, |_| true);
    } else {
        let mut sum = 0;
        let (view, enough) = (cx.view, u64::from(cx.params.nprobe) * WHOLE - SLACK);
        let is_exact = cx.params.exact;
        rank(cx, all, |(_, cluster)| {
            let share = view.share(cluster);
            let is_chosen = share > 0 && (is_exact || sum < enough);
            sum += if is_chosen { u64::from(share) } else { 0 };
            is_chosen
        });
    }
    ask(cx, 0);
}

/// The sieve of a query that names rows by their numbers.
fn rows_sieve<'a>(cx: &StepContext<'a, RemoteHnsw>) -> Option<&'a Sieve> {
    cx.base.sieve.filter(|_| cx.view.id_sieve.is_none())
}

/// Chooses the nearest clusters that have rows of the sieve: as many as their share there asks for, and so many that
/// they have k of them.
fn choose_matching(cx: &mut StepContext<'_, RemoteHnsw>, sieve: &Sieve) {
    let (view, rows) = (cx.view, cx.base.nodes);
    let mut ranked = core::mem::take(&mut cx.scratch.tables.ranked);
    ranked.clear();
    rank(cx, view.clusters.len(), |near| {
        ranked.push(near);
        false
    });
    let nearest = ranked.iter().map(|&(_, cluster)| view.rows_of(cluster, rows));
    let exact = cx.params.exact;
    let wanted = if exact {
        u32::MAX
    } else {
        let nprobe = (cx.params.nprobe, cx.q.far_tenths);
        lists_to_visit(sieve, nprobe, cx.q.top.k, nearest).unwrap_or(u32::MAX)
    };
    let with_match = ranked.iter().filter(|near| sieve.has_any(view.rows_of(near.1, rows)));
    with_match.take(wanted as usize).for_each(|&near| note(cx, near));
    cx.scratch.tables.ranked = ranked;
}

/// Whether what was searched has too few rows: because of deletions, or of a filter by ids, which only the clusters
/// themselves show. With fewer results than k all clusters have been searched.
pub(super) fn needs_more(cx: &StepContext<'_, RemoteHnsw>) -> bool {
    let has_more = cx.own.clusters.len() < cx.view.clusters.len() && !cx.params.exact;
    let is_short = cx.own.found.len() < cx.q.top.k as usize;
    match cx.view.id_sieve {
        Some(ids) => {
            has_more && (is_short || cx.own.missing_matching((cx.params.nprobe, cx.q.far_tenths), ids) > 0)
        }
        None => has_more && cx.view.is_thinned() && (is_short || missing(cx) > 0),
    }
}

/// Number of whole clusters less than `nprobe` that were searched, in parts of [`WHOLE`].
fn missing(cx: &StepContext<'_, RemoteHnsw>) -> u64 {
    (u64::from(cx.params.nprobe) * WHOLE).saturating_sub(SLACK + cx.own.searched)
}

/// Asks for the next nearest clusters: for as many as are missing, if those have lost as many rows as the others; for
/// twice as many as before where there are too few results. With a filter by ids, for as many as it lacks, but for no
/// more than before: matches may lie just behind. Returns false where no other cluster has rows.
pub(super) fn choose_more(cx: &mut StepContext<'_, RemoteHnsw>) -> bool {
    let before = cx.own.clusters.len();
    let mut known = cx.own.clusters.clone();
    known.sort_unstable();
    let view = cx.view;
    let shares: u64 = known.iter().map(|&cluster| u64::from(view.share(cluster))).sum();
    let is_short = cx.own.found.len() < cx.q.top.k as usize;
    let searched = cx.own.searched.max(shares / LOST_MOST);
    let wanted = match view.id_sieve {
        Some(_) => 0,
        None => (u128::from(missing(cx)) * u128::from(shares)).div_ceil(u128::from(searched.max(1))),
    };
    let missing = view
        .id_sieve
        .map_or(0, |ids| cx.own.missing_matching((cx.params.nprobe, cx.q.far_tenths), ids) as usize);
    let most = if is_short { before.max(1) } else { missing.min(before.max(1)) };
    let (mut sum, mut count) = (0, 0);
    rank(cx, view.clusters.len(), |(_, cluster)| {
        let share = view.share(cluster);
        let is_wanted = sum < wanted || count < most;
        let is_chosen = is_wanted && share > 0 && known.binary_search(&cluster).is_err();
        (sum, count) = (sum + if is_chosen { u128::from(share) } else { 0 }, count + usize::from(is_chosen));
        is_chosen
    });
    let has_more = cx.own.clusters.len() > before;
    if has_more {
        ask(cx, before);
    }
    has_more
}

/// Asks for the clusters of the query from this one on.
fn ask(cx: &mut StepContext<'_, RemoteHnsw>, from: usize) {
    cx.q.stats.clusters += (cx.own.clusters.len() - from) as u64;
    for at in from..cx.own.clusters.len() {
        let cluster = cx.own.clusters[at];
        let Some(&located) = cx.view.clusters.get(cluster as usize) else { continue };
        if located.base.bytes == 0 {
            cx.own.searched += u64::from(cx.view.share(cluster));
        }
        let fresh = located.fresh_parts(cluster as usize % 2, cx.view.record_bytes());
        let mut wanted = core::iter::once((located.base, BASE)).chain(fresh.map(|part| (part, FRESH)));
        let is_in_budget = wanted.all(|(extent, note): (Extent, u64)| {
            extent.bytes == 0 || cx.fetch(extent, cluster, note).is_some()
        });
        if !is_in_budget {
            return cx.q.finish(Outcome::OutOfBudget);
        }
    }
    cx.end_round(&[]);
}

/// Appends a cluster to those of the query.
fn note(cx: &mut StepContext<'_, RemoteHnsw>, (distance, cluster): (f32, u32)) {
    cx.own.clusters.push(cluster);
    if let Some(trace) = &mut cx.scratch.trace {
        trace.visits.push(Visit { cluster, distance, ..Visit::default() });
    }
}

/// Appends to the clusters of the query those that `is_chosen` takes of the `wanted` nearest, the nearest first. Where
/// all of them are asked for none is left out, whatever the graph.
fn rank(cx: &mut StepContext<'_, RemoteHnsw>, wanted: usize, mut is_chosen: impl FnMut((f32, u32)) -> bool) {
    let Some(meta) = SubHnsw::open(cx.view.layout, cx.view.meta) else { return };
    let all = cx.view.clusters.len();
    let Scratch { tables, trace } = &mut *cx.scratch;
    let clusters = &mut cx.own.clusters;
    let mut visits = Vec::new();
    let is_traced = trace.is_some();
    let mut note = |(distance, cluster): (f32, u32)| {
        if !is_chosen((distance, cluster)) {
            return;
        }
        clusters.push(cluster);
        if is_traced {
            visits.push(Visit { cluster, distance, ..Visit::default() });
        }
    };
    let scans = cx.params.scan_clusters;
    let cost = each_nearest(tables, &meta, cx.exact, (all, wanted, scans), &mut note);
    cx.q.stats.full_comparisons += cost.comparisons;
    cx.q.stats.expanded += cost.expanded;
    if let Some(trace) = trace {
        trace.meta_comparisons += cost.comparisons;
        trace.visits.extend(visits);
    }
}

/// Passes the `wanted` nearest of `all` clusters to `note`, ascending by distance. With `scans`, all representatives
/// are compared where that is faster than a search of their graph.
pub(super) fn each_nearest(
    tables: &mut Tables,
    meta: &SubHnsw<'_>,
    exact: &Exact,
    (all, wanted, scans): (usize, usize, bool),
    note: &mut dyn FnMut((f32, u32)),
) -> HnswCost {
    let beam = wanted.max(BEAM_MIN);
    if SCAN_PART * beam >= all || (scans && is_scan_faster(meta, beam)) {
        let (cost, nearest) = tables.hnsw.nearest(meta, exact, wanted, |_| false);
        nearest.for_each(note);
        return cost;
    }
    let (cost, nearest) = tables.hnsw.search(meta, exact, Walk::new(beam), |_| false);
    nearest.take(wanted).for_each(note);
    cost
}
