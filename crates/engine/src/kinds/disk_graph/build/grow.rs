//! The graph of an index that is there, as the beginning of a larger one: rows that are new are inserted, and those
//! that are gone are passed over.
//!
//! Source: FreshDiskANN (2021). Its algorithm 4 makes the neighbours of a node that is gone candidates of those that
//! had it as a neighbour.

use std::collections::HashMap;

use stratann_core::build::Points;
use stratann_kernel::Metric;
use stratann_storage::{Error, Result};

use crate::stages::build::Build;
use crate::stages::older_graph::GrowFrom;
use crate::stages::space::LoadedPoints;
use crate::stages::vamana::{self, Graph, VamanaOptions};

/// A graph of fewer nodes is no help.
const NODES_MIN: u64 = 1000;
/// Of an index in which more than one in so many rows is gone nothing is taken over.
const GONE_SHARE: u64 = 5;
/// Lists that are set at once.
const LISTS_AT_ONCE: usize = 4096;
const NONE: u32 = u32::MAX;

/// A graph of some nodes, and the others.
pub(super) struct Begun {
    pub(super) graph: Graph,
    /// Nodes that are to be inserted, ascending.
    pub(super) rest: Vec<u32>,
}

/// The index that a graph of this build can grow from.
pub(super) fn source<'a>(build: &'a Build<'_>) -> Option<&'a GrowFrom> {
    let own = build.options.grow_from.as_ref()?;
    let (rows, left) = (own.rows.len() as u64, own.rows_left());
    let is_whole = own.graph.nodes() == Some(rows);
    // Under inner product who are neighbours depends on the longest row of all.
    let is_same = own.graph.metric() == Some(build.options.metric) && build.options.metric != Metric::Ip;
    (is_whole && is_same && left >= NODES_MIN && (rows - left) * GONE_SHARE <= rows).then_some(own)
}

/// Rows of the index whose lists are in memory besides those of the new graph.
pub(super) fn gone(from: &GrowFrom) -> u64 {
    from.rows.len() as u64 - from.rows_left()
}

/// Takes the lists of an index over. `live` are the rows of the nodes, ascending.
///
/// # Errors
/// A damaged index, a disk that fails, an interruption.
pub(super) fn begin(
    build: &Build<'_>,
    from: &GrowFrom,
    (points, live): (&LoadedPoints, &[u32]),
    options: &VamanaOptions,
) -> Result<Begun> {
    let node_of = |row: &u32| match live.get(*row as usize) {
        Some(own) if own == row => *row,
        _ => live.binary_search(row).map_or(NONE, |node| node as u32),
    };
    let nodes: Vec<u32> = from.rows.iter().map(node_of).collect();
    let node = |number: u32| nodes.get(number as usize).copied().filter(|node| *node != NONE);
    let mut gone: HashMap<u32, Vec<u32>> = HashMap::new();
    if nodes.contains(&NONE) {
        from.graph.for_each_list(build.progress, &mut |number, list| {
            if node(number).is_none() {
                gone.insert(number, list.iter().filter_map(|own| node(*own)).collect());
            }
        })?;
    }
    let mut graph = Graph::new(live.len(), options.degree, entry(points, &nodes)?);
    let (mut lists, mut has_list) = (Vec::with_capacity(LISTS_AT_ONCE), vec![false; live.len()]);
    from.graph.for_each_list(build.progress, &mut |number, list| {
        let Some(own) = node(number) else { return };
        let mut near: Vec<u32> = Vec::with_capacity(list.len());
        for other in list {
            match node(*other) {
                Some(other) => near.push(other),
                None => near.extend(gone.get(other).into_iter().flatten()),
            }
        }
        near.sort_unstable();
        near.dedup();
        near.retain(|other| *other != own);
        if let Some(has) = has_list.get_mut(own as usize) {
            *has = true;
        }
        lists.push((own, near));
        if lists.len() == LISTS_AT_ONCE {
            vamana::set_lists(points, &mut graph, &lists, options);
            lists.clear();
        }
    })?;
    vamana::set_lists(points, &mut graph, &lists, options);
    let rest = (0..live.len() as u32).filter(|node| !has_list[*node as usize]).collect();
    Ok(Begun { graph, rest })
}

/// The node of those that are taken over that is nearest to the middle.
fn entry(points: &LoadedPoints, nodes: &[u32]) -> Result<u32> {
    let middle = points.medoid();
    let known = nodes.iter().copied().filter(|node| *node != NONE);
    let to_middle = |node: u32| (points.distance(middle, node), node);
    let nearest = known.map(to_middle).min_by(|one, two| one.0.total_cmp(&two.0).then(one.1.cmp(&two.1)));
    nearest
        .map(|(_, node)| node)
        .ok_or_else(|| Error::corrupt("a graph to grow from has no node that is left"))
}
