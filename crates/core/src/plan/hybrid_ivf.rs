//! `hybrid-ivf`: OrchANN (Huan et al.): clusters on disk under a small memory, searched by not reading.
//!
//! route = [`crate::route::NavGraph`], whose nodes vote for clusters · access = [`crate::access::lists`] scans codes, `access::local_graph` walks
//! through graphs, and [`crate::access::records`] reads what survives · verify = [`crate::verify::bounds`] before the reads, exact distances after

use alloc::vec::Vec;

use super::{ClusterView, IndexView, in_order};
use crate::access::{lists, local_graph, records};
use crate::query::{Arrival, Arrived, Loss, Outcome, QueryState, Reading, Scratch};
use crate::route;

pub(super) fn step(
    state: &mut QueryState,
    view: &IndexView<'_>,
    clusters: &ClusterView<'_>,
    scratch: &mut Scratch,
    arrived: &[Arrival<'_>],
) {
    if !state.started {
        state.started = true;
        route::navigate(state, view, clusters, scratch);
    }
    take_in(state, view, clusters, scratch, arrived);
    if state.outcome == Outcome::Running {
        choose(state, view, clusters, scratch);
    }
}

fn take_in(
    state: &mut QueryState,
    view: &IndexView<'_>,
    clusters: &ClusterView<'_>,
    scratch: &mut Scratch,
    arrived: &[Arrival<'_>],
) {
    let order = in_order(scratch, arrived);
    for &i in &order {
        let arrival = &arrived[i as usize];
        let Some(at) = state.outstanding.iter().position(|o| o.tag == arrival.tag) else { continue };
        let read = state.outstanding.swap_remove(at);
        let taken = match arrival.what {
            Arrived::Lost(loss) => Err(loss),
            Arrived::Bytes(bytes) => match read.reading {
                Reading::Block => None,
                Reading::Lists(first, count) => {
                    lists::take(state, view, clusters, scratch, (read.tag, first, count), bytes)
                }
                Reading::Records => records::take(state, clusters, scratch, (read.tag, read.block), bytes),
                Reading::Edges => local_graph::take(state, view, clusters, scratch, read.block, bytes),
                Reading::Run(from, count) => lists::take_run(state, clusters, scratch, (from, count), bytes),
            }
            .ok_or(Loss::Damaged),
        };
        if let Err(loss) = taken {
            state.finish(Outcome::Lost { block: read.block, loss });
            break;
        }
    }
    scratch.order = order;
}

/// Scans as long as there is something to scan, then reads what survived; ends when nothing has.
fn choose(state: &mut QueryState, view: &IndexView<'_>, clusters: &ClusterView<'_>, scratch: &mut Scratch) {
    let chosen = loop {
        let chosen = lists::choose(state, view, clusters, scratch).and_then(|()| {
            let has_scanned = !lists::is_scanning(state) && state.probing.visits.is_empty();
            let at_most = if has_scanned { 0 } else { lists::SURVIVORS_MAX };
            let may_read = has_scanned || state.probing.survivors.len() > at_most;
            if may_read { records::choose(state, view, clusters, scratch, at_most) } else { Some(()) }
        });
        // What was to be read may all have been discarded, or lie in RAM, before everything is scanned.
        if chosen.is_none() || !state.outstanding.is_empty() || !lists::is_scanning(state) {
            break chosen;
        }
    };
    if chosen.is_none() || (!state.wants.is_empty() && state.budget.hops == 0) {
        return state.finish(Outcome::OutOfBudget);
    }
    if !state.wants.is_empty() {
        state.stats.hops += 1;
        state.budget.hops -= 1;
    } else if state.outstanding.is_empty() {
        count_result_clusters(state, clusters);
        state.finish(Outcome::Complete);
    }
}

/// Of the clusters visited, those that hold a result: what a perfect choice would have visited.
fn count_result_clusters(state: &mut QueryState, clusters: &ClusterView<'_>) {
    let worst = state.worst().map_or(f32::NEG_INFINITY, |w| w.0);
    let cluster = |id: u32| clusters.directory.cluster_of(clusters.directory.list_of(id));
    let mut found: Vec<u32> =
        state.probing.read.iter().filter(|r| r.1 <= worst).map(|r| cluster(r.0)).collect();
    found.sort_unstable();
    found.dedup();
    let visited = &state.probing.clusters[..state.probing.begun as usize];
    found.retain(|cluster| visited.contains(cluster));
    state.stats.result_clusters += found.len() as u64;
}
