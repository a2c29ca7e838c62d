//! The trace of one `grid-ivf` query, for `explain`: the lists that it visited, and where vectors dropped out.

use serde::Serialize;
use stratann_core::plan::IndexView;
use stratann_core::plan::grid_ivf::Trace;
use stratann_core::query::{Outcome, Params, QueryState, QueryStats, Scratch};

/// One list that was scanned.
#[derive(Clone, Debug, Serialize)]
pub struct ScanTrace {
    /// Its number.
    pub list: u32,
    /// From the query to its centroid: squared l2, of unit vectors under cosine; minus the product under ip.
    pub centroid_distance: f32,
    /// Its members.
    pub members: u32,
    /// Members that were compared in all components.
    pub finished: u32,
    /// Components that were compared.
    pub components: u64,
}

/// How many vectors were left after a group of components.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Left {
    /// Components up to the end of the group; 0 for the pilot.
    pub components: u32,
    /// Vectors that were left, those that were scored first excluded.
    pub vectors: u64,
}

/// The trace of a query.
#[derive(Clone, Debug, Serialize)]
pub struct GridTrace {
    /// Results asked for.
    pub k: u32,
    /// Lists that were to be visited.
    pub nprobe: u32,
    /// Components that were compared before the lists, of the vectors that gave the first threshold.
    pub prewarmed_components: u64,
    /// The lists in the order of their visits.
    pub lists: Vec<ScanTrace>,
    /// How many vectors were left after each group of components, and before them after the pilot, where there is one.
    pub left: Vec<Left>,
    /// Whether the answer is whole.
    pub complete: bool,
    /// Ids of the results.
    pub ids: Vec<u64>,
    /// Their distances.
    pub distances: Vec<f32>,
    /// Sums over the query.
    #[serde(skip)]
    pub stats: QueryStats,
}

/// Runs `query` on its own, and records it.
pub(crate) fn explain(view: &IndexView<'_>, query: &[u8], params: Params) -> GridTrace {
    let mut state = QueryState::new(params, view.budget());
    let mut scratch = Scratch::default();
    scratch.prepare(view, query);
    scratch.trace_lists();
    state.step(view, &mut scratch, &[]);
    let trace = scratch.grid_ivf().and_then(|own| own.scanned()).cloned().unwrap_or_default();
    let lists: Vec<ScanTrace> = trace
        .lists
        .iter()
        .map(|scan| ScanTrace {
            list: scan.list,
            centroid_distance: scan.centroid_distance,
            members: scan.members,
            finished: scan.finished,
            components: scan.components,
        })
        .collect();
    let stats = *state.stats();
    GridTrace {
        k: params.k,
        nprobe: params.kind.grid_ivf().map_or(0, |own| own.nprobe),
        prewarmed_components: stats.components - lists.iter().map(|list| list.components).sum::<u64>(),
        lists,
        left: left(view, &trace),
        complete: state.outcome() == Outcome::Complete,
        ids: state.results().iter().map(|hit| hit.external_id).collect(),
        distances: state.results().iter().map(|hit| hit.distance).collect(),
        stats,
    }
}

fn left(view: &IndexView<'_>, trace: &Trace) -> Vec<Left> {
    let Some(grid) = view.kind.grid_ivf() else { return Vec::new() };
    let pilot = grid.pilot.map(|_| Left { components: 0, vectors: trace.after_pilot });
    let groups = grid.layout.edges[1..].iter().zip(&trace.after_group);
    let groups = groups.map(|(&components, &vectors)| Left { components, vectors });
    pilot.into_iter().chain(groups).collect()
}
