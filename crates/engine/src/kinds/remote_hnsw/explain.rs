//! The trace of one `remote-hnsw` query, for `explain`: its clusters, and what each of them cost.

use std::collections::BTreeMap;

use stratann_core::kinds::{IndexView, KindView};
use stratann_core::query::{Extent, Params, StoreId, run};
use stratann_core::sieve::Sieve;
use stratann_core::view;
use stratann_storage::Result;
use stratann_storage::cache::ExtentCache;

use super::live::LiveRegion;
use super::open::RemoteIndex;
use crate::base::Base;
use crate::exec::BatchOptions;
use crate::trace::{ClusterChoice, ClusterLoads, ClusterVisit, Headers, Results, Trace, traced};

/// Costs of the reads of a query.
#[derive(Default)]
struct Loads {
    loads: u64,
    bytes: u64,
    cache_hits: u64,
    nodes: BTreeMap<StoreId, usize>,
}

impl Loads {
    fn load(&mut self, at: Extent) {
        self.loads += 1;
        self.bytes += u64::from(at.bytes);
        *self.nodes.entry(at.store).or_default() += 1;
    }

    fn round_trips(&self, doorbell: usize) -> u64 {
        self.nodes.values().map(|reads| reads.div_ceil(doorbell) as u64).sum()
    }
}

/// Runs one query as a batch of its own and records it. What the cache has is not read.
///
/// # Errors
/// Headers in memory nodes that cannot be read.
pub(crate) fn explain(
    (base, sieve): (&Base, Option<&Sieve>),
    (index, cache): (&RemoteIndex, Option<&ExtentCache>),
    query: &[u8],
    params: Params,
) -> Result<Trace> {
    let mut view =
        IndexView { base: view::Base { sieve, ..base.view() }, kind: KindView::RemoteHnsw(index.view()) };
    let begun = index.live.as_ref().map(LiveRegion::begin_alone).transpose()?;
    if let Some((clusters, _)) = &begun
        && let KindView::RemoteHnsw(own) = &mut view.kind
    {
        clusters.apply_to(own);
    }
    let headers =
        begun.as_ref().map(|(_, cost)| Headers { round_trips: cost.round_trips, bytes: cost.bytes_read });
    let mut loads = Loads::default();
    let (mut state, mut scratch) = traced(&view, query, params);
    run(&mut state, &view, &mut scratch, |at| {
        if let Some(bytes) = cache.and_then(|cache| cache.get(at)) {
            loads.cache_hits += 1;
            return Ok(bytes.to_vec());
        }
        loads.load(at);
        let mut bytes = Vec::new();
        base.read_extent(&[], at, &mut bytes).map(|()| bytes)
    });
    let trace = scratch.remote_hnsw().and_then(|own| own.traced()).cloned().unwrap_or_default();
    let located = view.kind.remote_hnsw().map_or(&[][..], |own| own.clusters);
    let own = params.kind.remote_hnsw().copied();
    let clusters = trace.visits.iter().map(|visit| ClusterVisit {
        cluster: visit.cluster,
        group: located.get(visit.cluster as usize).map_or(0, |located| located.group),
        distance: visit.distance,
        members: visit.members,
        bytes: visit.bytes,
        fresh: visit.fresh,
        fresh_bytes: visit.fresh_bytes,
        comparisons: visit.comparisons,
        expanded: visit.expanded,
    });
    let doorbell = BatchOptions::default().doorbell;
    let choice = ClusterChoice {
        nprobe: own.map_or(0, |own| own.nprobe),
        ef: own.map_or(0, |own| own.ef),
        meta_comparisons: trace.meta_comparisons,
        clusters: clusters.collect(),
    };
    let cost = ClusterLoads {
        loads: loads.loads,
        loaded_bytes: loads.bytes,
        doorbell,
        round_trips: loads.round_trips(doorbell),
        cache_hits: loads.cache_hits,
        headers,
    };
    let lost = "a cluster could not be read, or is damaged; run `stratann verify`";
    let all = Trace::of(&state, vec![choice.into(), cost.into()], lost);
    Ok(Trace { results: Results::Rows(all.results.all().to_vec()), ..all })
}
