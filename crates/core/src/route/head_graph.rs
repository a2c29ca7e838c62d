//! The head graph: a small proximity graph over a sample of the nodes, in RAM (BatANN §4.2).
//!
//! It is walked by code distance, with the codes that are in RAM anyway, so a head node costs its list and its id alone; a sample several times as
//! large as one with full vectors then fits in the same memory. Where blocks carry the codes, those of the head nodes are in RAM. What the
//! walk finds is the first content of the beam.

use alloc::vec::Vec;

use crate::plan::{Codes, GraphView};
use crate::query::{Beam, Progress, QueryState, Scratch};

/// Adjacency of the sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeadGraph {
    /// Node of the index for each head node; the first is the entry of the walk.
    pub ids: Vec<u32>,
    /// Where the list of each head node begins in `neighbours`, and the end of the last.
    pub starts: Vec<u32>,
    /// Numbers of head nodes.
    pub neighbours: Vec<u32>,
}

impl HeadGraph {
    /// True when all numbers are within their ranges; a head graph from a file must be checked before use.
    pub fn is_consistent(&self, nodes: u32) -> bool {
        self.starts.len() == self.ids.len() + 1
            && !self.ids.is_empty()
            && self.ids.iter().all(|&id| id < nodes)
            && self.starts[0] == 0
            && self.starts.windows(2).all(|w| w[0] <= w[1])
            && self.starts.last() == Some(&(self.neighbours.len() as u32))
            && self.neighbours.iter().all(|&h| (h as usize) < self.ids.len())
    }

    /// Bytes held in memory.
    pub fn bytes(&self) -> usize {
        4 * (self.ids.len() + self.starts.len() + self.neighbours.len())
    }

    fn list(&self, head: u32) -> &[u32] {
        let at = head as usize;
        match (self.starts.get(at), self.starts.get(at + 1)) {
            (Some(&a), Some(&b)) => self.neighbours.get(a as usize..b as usize).unwrap_or(&[]),
            _ => &[],
        }
    }
}

/// Fills the beam of a query that begins.
pub(crate) fn enter(state: &mut QueryState, graph: &GraphView<'_>, scratch: &mut Scratch) {
    let mut walk = core::mem::take(&mut scratch.head_beam);
    walk.reset(if state.params.head { state.params.head_list as usize } else { 1 });
    // The walk's candidates are numbered by head node, not by node.
    scratch.heads.clear();
    scratch.heads.push(0);
    loop {
        score_heads(state, graph, scratch, &mut walk);
        if !state.params.head {
            break;
        }
        let Some(at) = walk.next_fresh(0) else { break };
        walk.mark(at, Progress::Expanded);
        scratch.heads.clear();
        scratch.heads.extend_from_slice(graph.head.list(walk.entries()[at].id));
    }
    // From here on it is of nodes, not of head nodes.
    scratch.seen.clear(graph.map.nodes());
    for candidate in walk.entries() {
        let Some(&id) = graph.head.ids.get(candidate.id as usize) else { continue };
        if id != state.params.exclude {
            state.beam.offer(candidate.distance, id, Progress::Fresh);
        }
    }
    scratch.head_beam = walk;
}

fn score_heads(state: &mut QueryState, graph: &GraphView<'_>, scratch: &mut Scratch, walk: &mut Beam) {
    state.stats.repeats += scratch.seen.keep_new(&mut scratch.heads) as u64;
    let Scratch { heads, ids, table, distances, .. } = scratch;
    match graph.codes {
        Codes::All(codes) => {
            ids.clear();
            let id = |&h: &u32| graph.head.ids.get(h as usize).copied().unwrap_or(u32::MAX);
            ids.extend(heads.iter().map(id));
            table.distances(codes, ids, distances);
        }
        Codes::Head(codes) => table.distances(codes, heads, distances),
    }
    state.stats.code_comparisons += heads.len() as u64;
    for (&head, &distance) in scratch.heads.iter().zip(&scratch.distances) {
        if distance < walk.threshold() {
            walk.offer(distance, head, Progress::Fresh);
        }
    }
}
