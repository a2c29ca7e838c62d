//! Adjacency lists of a graph in memory, beside its rows: what is there need not be read.

use alloc::vec::Vec;
use core::mem::MaybeUninit;

use crate::exact::ResidentRows;
use crate::format::block::Block;

/// The parts of a graph that are in memory beside its codes.
#[derive(Clone, Copy, Debug)]
pub struct Resident<'a> {
    /// Adjacency lists of all nodes.
    pub lists: &'a ResidentLists,
    /// Vectors and ids of all nodes; `None` where they are read with their blocks.
    pub rows: Option<&'a ResidentRows>,
    /// Comparisons after which a step ends with nothing to wait for, so that other queries have their turns.
    pub step_comparisons: u64,
}

/// Adjacency lists, one after another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResidentLists {
    // The start of each list in `neighbours`, and the end of the last.
    starts: Vec<u32>,
    neighbours: Vec<u32>,
}

impl ResidentLists {
    /// No lists, with room for those of so many nodes with so many neighbours in all.
    pub fn with_room(nodes: usize, neighbours: usize) -> ResidentLists {
        let mut starts = Vec::with_capacity(nodes + 1);
        starts.push(0);
        let mut room = Vec::new();
        // Where so much is refused, it grows as it is needed.
        let _ = room.try_reserve_exact(neighbours);
        ResidentLists { starts, neighbours: room }
    }

    /// Memory that will hold neighbours, to be advised before it is used.
    pub fn room(&mut self) -> &mut [MaybeUninit<u32>] {
        self.neighbours.spare_capacity_mut()
    }

    /// Appends the lists of a block. `None` when they are inconsistent, or too long in all.
    pub fn push(&mut self, block: &Block<'_>) -> Option<()> {
        for slot in 0..block.count() {
            block.neighbours(slot, &mut self.neighbours)?;
            self.starts.push(u32::try_from(self.neighbours.len()).ok()?);
        }
        Some(())
    }

    /// Memory of so many lists without neighbours, bytes.
    pub fn least_bytes(nodes: u64) -> u64 {
        size_of::<u32>() as u64 * (nodes + 1)
    }

    /// Gives back memory beyond what the lists need.
    pub fn shrink(&mut self) {
        self.neighbours.shrink_to_fit();
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Memory in use, bytes.
    pub fn bytes(&self) -> usize {
        size_of::<u32>() * (self.starts.len() + self.neighbours.len())
    }

    /// The neighbours of a node; none of a node that does not exist.
    #[inline]
    pub fn of(&self, node: u32) -> &[u32] {
        let at = node as usize;
        match self.starts.get(at..at + 2) {
            Some(&[from, to]) => self.neighbours.get(from as usize..to as usize).unwrap_or(&[]),
            _ => &[],
        }
    }
}
