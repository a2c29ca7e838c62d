//! Chooses the clusters of a query by the meta-HNSW, and asks for all of them.

use alloc::vec::Vec;

use stratann_kernel::distance::Exact;

use super::trace::Visit;
use super::view::{BASE, FRESH};
use super::{Marker, Scratch, Tables};
use crate::access::hnsw::HnswCost;
use crate::format::hnsw::SubHnsw;
use crate::plan::Cx;
use crate::search::{Extent, Outcome};

/// Shortest beam in the meta-HNSW.
const BEAM_MIN: usize = 64;
/// A beam of one part in so many of all clusters, or longer, is no faster than a scan of all representatives.
const SCAN_PART: usize = 4;

/// Asks for the `nprobe` nearest clusters.
pub(super) fn choose(cx: &mut Cx<'_, Marker>) {
    rank(cx);
    cx.q.stats.clusters += cx.own.clusters.len() as u64;
    for at in 0..cx.own.clusters.len() {
        let cluster = cx.own.clusters[at];
        let Some(&located) = cx.view.clusters.get(cluster as usize) else { continue };
        let fresh = located.fresh_parts(cluster as usize % 2, cx.view.record_bytes());
        let mut wanted = core::iter::once((located.base, BASE)).chain(fresh.map(|part| (part, FRESH)));
        let is_in_budget = wanted.all(|(extent, note): (Extent, u64)| {
            extent.bytes == 0 || cx.fetch(extent, cluster, note).is_some()
        });
        if !is_in_budget {
            return cx.q.finish(Outcome::OutOfBudget);
        }
    }
    cx.settle(&[]);
}

/// Sets the clusters of the query, the nearest first. Where all of them are asked for none is left out, whatever the
/// graph.
fn rank(cx: &mut Cx<'_, Marker>) {
    let Some(meta) = SubHnsw::open(cx.view.layout, cx.view.meta) else { return };
    let all = cx.view.clusters.len();
    let wanted = if cx.params.exact { all } else { all.min(cx.params.nprobe as usize) };
    let Scratch { tables, trace } = &mut *cx.scratch;
    let clusters = &mut cx.own.clusters;
    let mut visits = Vec::new();
    let is_traced = trace.is_some();
    let mut note = |(distance, cluster): (f32, u32)| {
        clusters.push(cluster);
        if is_traced {
            visits.push(Visit { cluster, distance, ..Visit::default() });
        }
    };
    let cost = each_nearest(tables, &meta, cx.exact, (all, wanted), &mut note);
    cx.q.stats.full_comparisons += cost.comparisons;
    cx.q.stats.expanded += cost.expanded;
    if let Some(trace) = trace {
        trace.meta_comparisons += cost.comparisons;
        trace.visits = visits;
    }
}

/// Passes the `wanted` nearest of `all` clusters to `note`, ascending by distance.
pub(super) fn each_nearest(
    tables: &mut Tables,
    meta: &SubHnsw<'_>,
    exact: &Exact,
    (all, wanted): (usize, usize),
    note: &mut dyn FnMut((f32, u32)),
) -> HnswCost {
    let beam = wanted.max(BEAM_MIN);
    if SCAN_PART * beam >= all {
        let (cost, nearest) = tables.0.nearest(meta, exact, wanted);
        nearest.for_each(note);
        return cost;
    }
    let (cost, nearest) = tables.0.search(meta, exact, beam, None);
    nearest.take(wanted).for_each(note);
    cost
}
