//! The trace of one `gpu-ivf` query, for `explain`: the lists, the mini-batches, and how each result was found.

use serde::Serialize;
use stratann_core::plan::gpu_ivf::{Found, Rule};
use stratann_core::plan::{IndexView, KindView};
use stratann_core::query::{Outcome, Params, QueryState, QueryStats, Scratch, run};

use super::open::GpuIndex;
use crate::base::Base;

/// One list that was visited.
#[derive(Clone, Debug, Serialize)]
pub struct ListVisit {
    /// Its number.
    pub list: u32,
    /// From the query to its centroid: squared l2, of unit vectors under cosine; minus the product under ip.
    pub centroid_distance: f32,
    /// Its own members.
    pub own: u32,
    /// Members whose nearest centroid is another.
    pub replicas: u32,
}

/// One mini-batch.
#[derive(Clone, Debug, Serialize)]
pub struct MiniBatch {
    /// Candidates.
    pub candidates: u32,
    /// Blocks that were read.
    pub reads: u32,
    /// Candidates whose block was read for another one of the mini-batch.
    pub shared: u32,
    /// Candidates whose block an earlier mini-batch had read.
    pub known: u32,
    /// Results that were new.
    pub changed: u32,
}

/// One result.
#[derive(Clone, Debug, Serialize)]
pub struct FoundResult {
    /// Its id.
    pub id: u64,
    /// Its distance.
    pub distance: f32,
    /// Its place among the candidates of the scorer; absent for a vector that was in a block with one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub candidate: Option<u32>,
    /// The mini-batch that found it.
    pub batch: Option<u32>,
}

/// The trace of a query.
#[derive(Clone, Debug, Serialize)]
pub struct GpuTrace {
    /// Results asked for.
    pub k: u32,
    /// Lists that were visited.
    pub nprobe: u32,
    /// Candidates that the scorer returned at most.
    pub candidates: u32,
    /// What ended re-ranking.
    pub rule: &'static str,
    /// The lists in the order of their centroids.
    pub lists: Vec<ListVisit>,
    /// Ids that the lists name more than once.
    pub duplicates: u64,
    /// Bytes to the scorer and back.
    pub gpu_bytes: u64,
    /// The mini-batches.
    pub batches: Vec<MiniBatch>,
    /// Whether the answer is whole.
    pub complete: bool,
    /// The results.
    pub results: Vec<FoundResult>,
    /// Sums over the query.
    #[serde(skip)]
    pub stats: QueryStats,
}

/// Runs `query` on its own, and records it.
pub(crate) fn explain(base: &Base, index: &GpuIndex, query: &[u8], params: Params) -> GpuTrace {
    let view = IndexView { base: base.view(), kind: KindView::GpuIvf(index.view(base)) };
    let mut state = QueryState::new(params, view.budget());
    let mut scratch = Scratch::default();
    scratch.prepare(&view, query);
    scratch.trace_lists();
    run(&mut state, &view, &mut scratch, |at| {
        let mut bytes = Vec::new();
        base.read_extent(index.stores(), at, &mut bytes).map(|()| bytes)
    });
    let trace = scratch.gpu_ivf().and_then(|own| own.traced()).cloned().unwrap_or_default();
    let lists = view.kind.gpu_ivf().map(|own| own.lists);
    let own = params.kind.gpu_ivf().copied();
    let visit = |&(list, centroid_distance): &(u32, f32)| {
        let mut ids = Vec::new();
        let (_, count) = lists.map_or((0, 0), |lists| lists.own(list));
        let _ = lists.and_then(|lists| lists.replicas_of(list, &mut ids));
        ListVisit { list, centroid_distance, own: count, replicas: ids.len() as u32 }
    };
    let result = |hit: &stratann_core::query::Hit| {
        let found = trace.found.iter().find(|found| found.0 == hit.external_id).map(|found| found.1);
        let (candidate, batch) = match found {
            Some(Found::Candidate { rank, batch }) => (Some(rank), Some(batch)),
            Some(Found::SameBlock { batch }) => (None, Some(batch)),
            None => (None, None),
        };
        FoundResult { id: hit.external_id, distance: hit.distance, candidate, batch }
    };
    let stats = *state.stats();
    GpuTrace {
        k: params.k,
        nprobe: own.map_or(0, |own| own.nprobe),
        candidates: own.map_or(0, |own| own.candidates),
        rule: own.map_or(Rule::default(), |own| own.rule).name(),
        lists: trace.lists.iter().map(visit).collect(),
        duplicates: stats.duplicates,
        gpu_bytes: stats.gpu_bytes,
        batches: trace
            .batches
            .iter()
            .map(|b| MiniBatch {
                candidates: b.candidates,
                reads: b.reads,
                shared: b.shared,
                known: b.known,
                changed: b.changed,
            })
            .collect(),
        complete: state.outcome() == Outcome::Complete,
        results: state.results().iter().map(result).collect(),
        stats,
    }
}
