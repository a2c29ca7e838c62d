//! The head graph: a small proximity graph over a sample of the nodes, in RAM (BatANN §4.2).
//!
//! A search of it uses the codes that are in RAM anyway, so a head node costs only its adjacency list and its id. In
//! the memory of a sample with full vectors fits one several times as large. Where blocks carry the codes, those of
//! the head nodes are in RAM.

use alloc::vec::Vec;

/// Adjacency of the sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeadGraph {
    /// Node of the index for each head node; a search enters at the first.
    pub ids: Vec<u32>,
    /// Start of the adjacency list of each head node in `neighbours`, and the end of the last.
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

    /// The neighbours of a head node.
    pub(crate) fn list(&self, head: u32) -> &[u32] {
        let at = head as usize;
        match (self.starts.get(at), self.starts.get(at + 1)) {
            (Some(&a), Some(&b)) => self.neighbours.get(a as usize..b as usize).unwrap_or(&[]),
            _ => &[],
        }
    }
}
