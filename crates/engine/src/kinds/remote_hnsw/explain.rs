//! The trace of one `remote-hnsw` query, for `explain`: its clusters, and what each of them cost.

use std::collections::BTreeMap;

use serde::Serialize;
use stratann_core::plan::{IndexView, KindView};
use stratann_core::query::{Extent, Outcome, Params, QueryState, QueryStats, Scratch, StoreId, run};
use stratann_storage::Result;
use stratann_storage::cache::ExtentCache;

use super::live::LiveRegion;
use super::open::RemoteIndex;
use crate::base::Base;
use crate::exec::GatherOptions;

/// One cluster that was searched.
#[derive(Clone, Debug, Serialize)]
pub struct ClusterVisit {
    /// Its number.
    pub cluster: u32,
    /// Its group.
    pub group: u32,
    /// From the query to its representative.
    pub distance: f32,
    /// Vectors in its sub-HNSW.
    pub members: u32,
    /// Bytes of its sub-HNSW.
    pub bytes: u32,
    /// Fresh records that were compared.
    pub fresh: u32,
    /// Bytes of its fresh records.
    pub fresh_bytes: u32,
    /// Distances to its vectors.
    pub comparisons: u64,
    /// Nodes whose neighbours were followed.
    pub expanded: u64,
}

/// What a batch reads before its first query.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Headers {
    /// Round trips.
    pub round_trips: u64,
    /// Bytes.
    pub bytes: u64,
}

/// One result.
#[derive(Clone, Debug, Serialize)]
pub struct FoundResult {
    /// Its id.
    pub id: u64,
    /// Its distance.
    pub distance: f32,
}

/// The trace of one query.
#[derive(Clone, Debug, Serialize)]
pub struct RemoteTrace {
    /// Results wanted.
    pub k: u32,
    /// Clusters searched at most.
    pub nprobe: u32,
    /// Length of the beam in each.
    pub ef: u32,
    /// Distances to representatives.
    pub meta_comparisons: u64,
    /// The clusters, the nearest first.
    pub clusters: Vec<ClusterVisit>,
    /// Reads of clusters and of their fresh records that were made.
    pub loads: u64,
    /// Bytes of these.
    pub loaded_bytes: u64,
    /// Most reads of a doorbell.
    pub doorbell: usize,
    /// Doorbells of reads, a round trip to each node that has some of them; without those of `headers`.
    pub round_trips: u64,
    /// Reads that the cache had.
    pub cache_hits: u64,
    /// What reading the headers of an index in memory nodes cost.
    pub headers: Option<Headers>,
    /// Whether the query ended as it should.
    pub complete: bool,
    /// The results.
    pub results: Vec<FoundResult>,
    /// What it cost.
    #[serde(skip)]
    pub stats: QueryStats,
}

/// What the reads of a query cost.
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
    base: &Base,
    (index, cache): (&RemoteIndex, Option<&ExtentCache>),
    query: &[u8],
    params: Params,
) -> Result<RemoteTrace> {
    let mut view = IndexView { base: base.view(), kind: KindView::RemoteHnsw(index.view()) };
    let begun = index.live.as_ref().map(LiveRegion::begin_alone).transpose()?;
    if let Some((clusters, _)) = &begun
        && let KindView::RemoteHnsw(own) = &mut view.kind
    {
        clusters.apply_to(own);
    }
    let headers =
        begun.as_ref().map(|(_, cost)| Headers { round_trips: cost.round_trips, bytes: cost.bytes_read });
    let mut loads = Loads::default();
    let mut state = QueryState::new(params, view.budget());
    let mut scratch = Scratch::default();
    scratch.prepare(&view, query);
    scratch.trace_lists();
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
    let results = state.results().iter();
    let doorbell = GatherOptions::default().doorbell;
    Ok(RemoteTrace {
        k: params.k,
        nprobe: own.map_or(0, |own| own.nprobe),
        ef: own.map_or(0, |own| own.ef),
        meta_comparisons: trace.meta_comparisons,
        clusters: clusters.collect(),
        loads: loads.loads,
        loaded_bytes: loads.bytes,
        doorbell,
        round_trips: loads.round_trips(doorbell),
        cache_hits: loads.cache_hits,
        headers,
        complete: state.outcome() == Outcome::Complete,
        results: results.map(|hit| FoundResult { id: hit.external_id, distance: hit.distance }).collect(),
        stats: *state.stats(),
    })
}
