//! The multilevel partitioner on whole graphs, without cells: what a division of an index can reach at best.

use std::path::Path;

use rayon::prelude::*;
use stratann_core::format::block::Block;
use stratann_storage::{Error, Progress, Result};

use super::cells::part_kway;
use super::divide::Shares;
use super::source::Source;
use crate::base::shape;
use crate::manifest::Manifest;

/// Parts of a cut of all blocks, and of a cut of all nodes.
#[derive(Clone, Debug, Default)]
pub struct WholeCuts {
    /// Part of each block.
    pub blocks: Vec<u8>,
    /// Part of each node, as if each were a block of its own.
    pub nodes: Vec<u8>,
}

/// Cuts the graph of blocks and the graph of nodes of a `disk-graph` into so many parts. All edges are in memory: some
/// 40 bytes for each.
///
/// # Errors
/// An index of another kind; a damaged block; a program without METIS; an interruption.
pub fn whole_cuts(folder: &Path, servers: usize, seed: u64, progress: &dyn Progress) -> Result<WholeCuts> {
    let (_, manifest) = Manifest::read(folder)?;
    let shape = shape(folder, &manifest)?.block;
    let source = Source::open(folder, manifest, shape, progress)?;
    let firsts: Vec<u32> = source.spans().map(|span| span.0).collect();
    let nodes = source.counts.iter().map(|&count| usize::from(count)).sum();
    let (mut of_blocks, mut of_nodes) = (Edges::default(), Edges::default());
    source.stream("edges between nodes", |first, targets, bytes| {
        for (i, (targets, bytes)) in targets.iter().zip(bytes.chunks_exact(shape.block_bytes)).enumerate() {
            let number = (first + i) as u32;
            targets.iter().for_each(|&to| of_blocks.add(number, to));
            let block = Block::open(&shape, bytes).map_err(|_| source.damaged(number))?;
            let mut list = Vec::new();
            for slot in 0..block.count() {
                list.clear();
                block.neighbours(slot, &mut list).ok_or_else(|| source.damaged(number))?;
                let node = firsts[number as usize] + slot as u32;
                list.iter().for_each(|&to| of_nodes.add(node, to));
            }
        }
        Ok(())
    })?;
    progress.stage("cutting whole graphs", 2, "graphs");
    let blocks = of_blocks.cut(firsts.len(), servers, seed)?;
    progress.advance(1);
    progress.check_interrupted()?;
    let nodes = of_nodes.cut(nodes, servers, seed)?;
    Ok(WholeCuts { blocks, nodes })
}

/// Edges of a graph: the smaller end in the upper half of a number.
#[derive(Default)]
struct Edges(Vec<u64>);

impl Edges {
    fn add(&mut self, a: u32, b: u32) {
        if a != b {
            self.0.push(u64::from(a.min(b)) << 32 | u64::from(a.max(b)));
        }
    }

    /// The part of every node; an edge weighs as much as it was added times.
    fn cut(mut self, nodes: usize, servers: usize, seed: u64) -> Result<Vec<u8>> {
        if servers == 1 {
            return Ok(vec![0; nodes]);
        }
        self.0.par_sort_unstable();
        let distinct = || self.0.chunk_by(|a, b| a == b).map(|same| (ends(same[0]), same.len() as i32));
        let mut starts = vec![0i32; nodes + 1];
        for ((a, b), _) in distinct() {
            for end in [a, b] {
                let start = &mut starts[end + 1];
                *start = start.checked_add(1).ok_or_else(too_large)?;
            }
        }
        for node in 0..nodes {
            starts[node + 1] = starts[node + 1].checked_add(starts[node]).ok_or_else(too_large)?;
        }
        let mut next = starts.clone();
        let ends = starts[nodes] as usize;
        let (mut neighbours, mut weights) = (vec![0i32; ends], vec![1i32; ends]);
        for ((a, b), weight) in distinct() {
            for (from, to) in [(a, b), (b, a)] {
                let at = next[from] as usize;
                (neighbours[at], weights[at]) = (to as i32, weight);
                next[from] += 1;
            }
        }
        let parts = part_kway(
            (&starts, &neighbours),
            &weights,
            (&vec![1; nodes], 1),
            &Shares::new(&[], servers),
            seed,
        )?;
        Ok(parts.into_iter().map(|part| part.clamp(0, servers as i32 - 1) as u8).collect())
    }
}

/// Both ends of an edge.
fn ends(edge: u64) -> (usize, usize) {
    ((edge >> 32) as usize, (edge & u64::from(u32::MAX)) as usize)
}

fn too_large() -> Error {
    Error::bad_input("the index has more edges than METIS can cut; use a smaller one")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "metis")]
    #[test]
    fn a_chain_of_groups_is_cut_between_them() {
        // Four groups of 50 nodes, dense within, with one edge to the next group.
        let mut edges = Edges::default();
        for group in 0..4u32 {
            for a in 0..50 {
                (a + 1..50).for_each(|b| edges.add(50 * group + a, 50 * group + b));
            }
            edges.add(50 * group, (50 * group + 50) % 200);
        }
        let parts = edges.cut(200, 4, 1).unwrap();
        assert!(parts.chunks(50).all(|group| group.iter().all(|part| part == &group[0])), "{parts:?}");
        assert_eq!(Edges::default().cut(3, 1, 1).unwrap(), [0; 3]);
    }
}
