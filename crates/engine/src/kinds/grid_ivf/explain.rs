//! The trace of one `grid-ivf` query, for `explain`: the lists that it visited, and where vectors dropped out.

use stratann_core::kinds::IndexView;
use stratann_core::kinds::grid_ivf;
use stratann_core::query::Params;

use crate::trace::{Left, Scan, Scans, Trace, traced};

/// Runs `query` on its own, and records it.
pub(crate) fn explain(view: &IndexView<'_>, query: &[u8], params: Params) -> Trace {
    let (mut state, mut scratch) = traced(view, query, params);
    state.step(view, &mut scratch, &[]);
    let trace = scratch.grid_ivf().and_then(|own| own.scanned()).cloned().unwrap_or_default();
    let lists: Vec<Scan> = trace
        .lists
        .iter()
        .map(|scan| Scan {
            list: scan.list,
            centroid_distance: scan.centroid_distance,
            members: scan.members,
            finished: scan.finished,
            components: scan.components,
        })
        .collect();
    let scans = Scans {
        nprobe: params.kind.grid_ivf().map_or(0, |own| own.nprobe),
        prewarmed_components: state.stats().components
            - lists.iter().map(|list| list.components).sum::<u64>(),
        lists,
        left: left(view, &trace),
    };
    Trace::of(&state, vec![scans.into()], "all lists were scanned")
}

fn left(view: &IndexView<'_>, trace: &grid_ivf::Trace) -> Vec<Left> {
    let Some(grid) = view.kind.grid_ivf() else { return Vec::new() };
    let has_early = grid.pilot.is_some() || grid.codes.is_some();
    let early = has_early.then_some(Left { components: 0, vectors: trace.after_pilot });
    let groups = grid.layout.edges[1..].iter().zip(&trace.after_group);
    let groups = groups.map(|(&components, &vectors)| Left { components, vectors });
    early.into_iter().chain(groups).collect()
}
