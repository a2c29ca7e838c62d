//! The trace of one `remote-hnsw` query, for `explain`: its clusters, and what each of them cost.

use serde::Serialize;
use stratann_core::query::{Outcome, Params, QueryState, QueryStats, Scratch, run};

use crate::base::Base;
use crate::kinds::KindIndex;

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
    /// Whether the query ended as it should.
    pub complete: bool,
    /// The results.
    pub results: Vec<FoundResult>,
    /// What it cost.
    #[serde(skip)]
    pub stats: QueryStats,
}

/// Runs one query on its own and records it.
pub(crate) fn explain(base: &Base, kind: &KindIndex, query: &[u8], params: Params) -> RemoteTrace {
    let view = kind.view(base);
    let mut state = QueryState::new(params, view.budget());
    let mut scratch = Scratch::default();
    scratch.prepare(&view, query);
    scratch.trace_lists();
    run(&mut state, &view, &mut scratch, |at| {
        let mut bytes = Vec::new();
        base.read_extent(kind.stores(), at, &mut bytes).map(|()| bytes)
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
    RemoteTrace {
        k: params.k,
        nprobe: own.map_or(0, |own| own.nprobe),
        ef: own.map_or(0, |own| own.ef),
        meta_comparisons: trace.meta_comparisons,
        clusters: clusters.collect(),
        complete: state.outcome() == Outcome::Complete,
        results: results.map(|hit| FoundResult { id: hit.external_id, distance: hit.distance }).collect(),
        stats: *state.stats(),
    }
}
