//! `disk-graph`: BatANN's single-server search (PVLDB 14, §4.1–4.4), after DiskANN, with whole blocks scored as in Starling and
//! PageANN, and PipeANN's eager mode.
//!
//! route = [`crate::route::HeadGraph`] over codes · access = [`crate::access::graph_walk`] · verify = [`crate::verify`]

use super::{GraphView, IndexView, take_in};
use crate::access::graph_walk;
use crate::query::{Arrival, QueryState, Scratch};
use crate::{route, verify};

pub(super) fn step(
    state: &mut QueryState,
    view: &IndexView<'_>,
    graph: &GraphView<'_>,
    scratch: &mut Scratch,
    arrived: &[Arrival<'_>],
) {
    graph_walk::rescore(state, view, graph, scratch);
    if !state.started {
        state.started = true;
        route::enter(state, graph, scratch);
    }
    // A server reads what it holds of the best W. While something better is unread elsewhere, that such a read changed nothing does not mean
    // that the search has nothing left to find.
    let is_told = view.here.is_none() || !state.beam.awaits_behind_fresh();
    take_in(state, view, scratch, arrived, |state, scratch, block| {
        let before = state.worst();
        if state.params.whole_blocks {
            verify::score_block(state, scratch, block);
        }
        let read = graph_walk::expand_block(state, graph, scratch, block);
        let changed = state.worst() != before;
        state.fruitless = if changed { 0 } else { state.fruitless.saturating_add(u32::from(is_told)) };
        read
    });
    graph_walk::choose(state, view, graph, scratch);
}
