//! The head graph: a Vamana graph over a sample of the rows.

use std::collections::BinaryHeap;

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

/// Bytes of a node of the head graph while it is built, of points of so many bytes: first the points and their lists,
/// then the lists twice, and then the graph as it is written, with codes.
pub(crate) fn node_bytes(point_bytes: u64, code_bytes: u64) -> u64 {
    let (lists, written) = (vamana::Graph::bytes(1, HEAD_DEGREE), 4 * (HEAD_DEGREE as u64 + 2));
    // Its row, its id, and the state of its insertion.
    (point_bytes + lists).max(lists + written).max(2 * written + 2 * code_bytes) + 24
}

/// Draws `count` of the rows `live`, by hash, and returns them ascending.
fn draw(live: impl Iterator<Item = u32>, count: usize, seed: u64) -> Vec<u32> {
    // The largest of the heap is replaced first.
    let mut held = BinaryHeap::with_capacity(count + 1);
    for row in live {
        let drawn = (hash(seed, 7, u64::from(row)), row);
        if held.len() < count {
            held.push(drawn);
        } else if held.peek().is_some_and(|largest| drawn < *largest) {
            held.pop();
            held.push(drawn);
        }
    }
    let mut rows: Vec<u32> = held.into_iter().map(|drawn| drawn.1).collect();
    rows.sort_unstable();
    rows
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
    let rows = draw(live, count, seed);
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rows_of_the_least_hashes_are_drawn(rows in 1u32..2000, share in 0.0f64..=1.0, seed: u64) {
            let count = head_count(rows as usize, share);
            let mut all: Vec<(u64, u32)> = (0..rows).map(|row| (hash(seed, 7, row.into()), row)).collect();
            all.sort_unstable();
            let mut expected: Vec<u32> = all[..count].iter().map(|drawn| drawn.1).collect();
            expected.sort_unstable();
            prop_assert_eq!(draw(0..rows, count, seed), expected);
        }
    }
}
