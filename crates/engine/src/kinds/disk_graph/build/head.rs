//! The head graph: a Vamana graph over a sample of the rows.

use stratann_core::build::{Lists, hash};
use stratann_core::route::HeadGraph;
use stratann_storage::{Progress, Result};

use crate::dataset::Reader;
use crate::stages::space::Space;
use crate::stages::vamana::{self, VamanaOptions};

/// Neighbours of a node in the head graph.
pub(crate) const HEAD_DEGREE: usize = 20;
pub(crate) const HEAD_LIST: usize = 64;
/// Fewest nodes of a useful head graph.
const HEAD_MIN: usize = 32;

/// Returns the number of nodes of the head graph for a share of `rows`.
pub(crate) fn head_count(rows: usize, share: f64) -> usize {
    ((rows as f64 * share).ceil() as usize).clamp(HEAD_MIN.min(rows), rows)
}

/// Builds the head graph over `count` of the rows `live`, drawn by hash. `id_of_row` gives their ids in the index.
pub(crate) fn build(
    reader: &Reader,
    space: &Space,
    live: &[u32],
    id_of_row: &[u32],
    count: usize,
    seed: u64,
    progress: &dyn Progress,
) -> Result<HeadGraph> {
    progress.stage("head graph", 2 * count as u64, "nodes");
    let mut drawn: Vec<(u64, u32)> = live.iter().map(|&row| (hash(seed, 7, u64::from(row)), row)).collect();
    if count < drawn.len() {
        drawn.select_nth_unstable(count);
        drawn.truncate(count);
    }
    let mut rows: Vec<u32> = drawn.into_iter().map(|d| d.1).collect();
    rows.sort_unstable();
    let points = space.load(reader, &rows, progress)?;
    let entry = points.medoid();
    let options = VamanaOptions { degree: HEAD_DEGREE, list: HEAD_LIST, alpha: 1.2, passes: 1, seed };
    let graph = vamana::build(&points, entry, &options, progress)?;
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
    for at in 0..rows.len() as u32 {
        let local = number(at);
        head.ids.push(id_of_row[rows[local as usize] as usize]);
        head.neighbours.extend(graph.list(local).iter().map(|&n| number(n)));
        head.starts.push(head.neighbours.len() as u32);
    }
    Ok(head)
}
