//! The head graph: a Vamana graph over a sample of the rows.

use stratann_core::build::Lists;
use stratann_core::route::HeadGraph;
use stratann_storage::{Progress, Result};

use crate::clusterings::drawn;
use crate::dataset::Reader;
use crate::stages::space::Space;
use crate::stages::vamana::{self, VamanaOptions};

/// Neighbours of a node in the head graph.
pub(crate) const HEAD_DEGREE: usize = 20;
pub(crate) const HEAD_LIST: usize = 64;
/// The stream of random numbers that nodes are drawn with.
const DRAW: u64 = 7;
/// Fewest nodes of a useful head graph.
const HEAD_MIN: usize = 32;

/// Returns the number of nodes of the head graph for a share of `rows`.
pub(crate) fn head_count(rows: usize, share: f64) -> usize {
    ((rows as f64 * share).ceil() as usize).clamp(HEAD_MIN.min(rows), rows)
}

/// Bytes of a node of the head graph while it is built, of points of so many bytes: first the points and their lists,
/// then the lists twice, and then the graph as it is written, with codes.
pub(crate) fn node_bytes(point_bytes: u64, code_bytes: u64) -> u64 {
    let (lists, written) = (vamana::Graph::bytes(1, HEAD_DEGREE), 4 * (HEAD_DEGREE as u64 + 2));
    // Its row, its id, and the state of its insertion.
    (point_bytes + lists).max(lists + written).max(2 * written + 2 * code_bytes) + 24
}

/// Builds the head graph over `count` of the rows `live`. `ids_of` gives the ids of some rows (ascending) in the index.
pub(crate) fn build(
    reader: &Reader,
    space: &Space,
    (live, count): (impl Iterator<Item = u32>, usize),
    ids_of: impl Fn(&[u32]) -> Result<Vec<u32>>,
    seed: u64,
    progress: &dyn Progress,
) -> Result<HeadGraph> {
    progress.stage("head graph", 2 * count as u64, "nodes");
    let rows = drawn(live, count, (seed, DRAW));
    let points = space.load(reader, &rows, progress)?;
    let entry = points.medoid();
    let options = VamanaOptions { degree: HEAD_DEGREE, list: HEAD_LIST, alpha: 1.2, passes: 1, seed };
    let graph = vamana::build(&points, entry, &options, progress)?;
    drop(points);
    let ids = ids_of(&rows)?;
    // The entry comes first.
    let number = |local: u32| {
        if local == entry {
            0
        } else if local == 0 {
            entry
        } else {
            local
        }
    };
    let mut head = HeadGraph { ids: Vec::new(), starts: vec![0], neighbours: Vec::new() };
    for at in 0..ids.len() as u32 {
        let local = number(at);
        head.ids.push(ids[local as usize]);
        head.neighbours.extend(graph.list(local).iter().map(|&n| number(n)));
        head.starts.push(head.neighbours.len() as u32);
    }
    Ok(head)
}
