//! Adjacency lists and rows of a graph in memory: what is there need not be read.

use alloc::vec::Vec;
use core::mem::MaybeUninit;
use core::ops::Range;

use crate::format::block::{Block, BlockLayout};

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

/// Usual value of [`Resident::step_comparisons`]: some 100 µs of work.
pub const STEP_COMPARISONS: u64 = 2048;

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

/// Vectors, norms and external ids, one after another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResidentRows {
    vector_bytes: usize,
    id_bytes: usize,
    vectors: Vec<u8>,
    // Under cosine alone.
    inverse_norms: Vec<f32>,
    external_ids: Vec<u8>,
}

impl ResidentRows {
    /// No rows, with room for so many in blocks of this layout.
    pub fn with_room(nodes: usize, layout: &BlockLayout) -> ResidentRows {
        ResidentRows {
            vector_bytes: layout.vector_bytes,
            id_bytes: layout.id_bytes,
            vectors: Vec::with_capacity(nodes * layout.vector_bytes),
            inverse_norms: Vec::with_capacity(if layout.norms { nodes } else { 0 }),
            external_ids: Vec::with_capacity(nodes * layout.id_bytes),
        }
    }

    /// Memory that will hold vectors, to be advised before it is used.
    pub fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        self.vectors.spare_capacity_mut()
    }

    /// Memory of so many rows in blocks of this layout, bytes.
    pub fn bytes_of(nodes: u64, layout: &BlockLayout) -> u64 {
        nodes
            * (layout.vector_bytes + layout.id_bytes + if layout.norms { size_of::<f32>() } else { 0 }) as u64
    }

    /// Appends the rows of a block.
    pub fn push(&mut self, block: &Block<'_>) {
        self.vectors.extend_from_slice(block.vectors());
        for slot in 0..block.count() {
            if block.has_norms() {
                self.inverse_norms.push(block.inverse_norm(slot));
            }
            self.external_ids.extend_from_slice(&block.external_id(slot).to_le_bytes()[..self.id_bytes]);
        }
    }

    /// Number of rows.
    pub fn nodes(&self) -> usize {
        self.vectors.len() / self.vector_bytes.max(1)
    }

    /// Memory, bytes.
    pub fn bytes(&self) -> usize {
        self.vectors.capacity() + 4 * self.inverse_norms.capacity() + self.external_ids.capacity()
    }

    /// The vector of a node, and 1 / ‖vector‖ where norms are stored. `None` of a node that does not exist.
    #[inline]
    pub fn vector(&self, node: u32) -> Option<(&[u8], f32)> {
        let at = node as usize * self.vector_bytes;
        let norm = self.inverse_norms.get(node as usize).copied().unwrap_or(1.0);
        self.vectors.get(at..at + self.vector_bytes).map(|vector| (vector, norm))
    }

    /// The vectors of consecutive nodes, and 1 / ‖vector‖ of each where norms are stored. `None` where one of them does
    /// not exist.
    pub(super) fn range(&self, nodes: &Range<u32>) -> Option<(&[u8], &[f32])> {
        let (first, end) = (nodes.start as usize, nodes.end as usize);
        let vectors = self.vectors.get(first * self.vector_bytes..end * self.vector_bytes)?;
        let norms = if self.inverse_norms.is_empty() { &[] } else { self.inverse_norms.get(first..end)? };
        Some((vectors, norms))
    }

    /// The external id of a node; 0 of one that does not exist.
    pub fn external_id(&self, node: u32) -> u64 {
        let at = node as usize * self.id_bytes;
        if self.id_bytes == 4 {
            let bytes = self.external_ids.get(at..at + 4).and_then(|bytes| bytes.first_chunk());
            return bytes.map_or(0, |&id| u32::from_le_bytes(id).into());
        }
        let mut id = [0; 8];
        if let Some(bytes) = self.external_ids.get(at..at + self.id_bytes) {
            id[..self.id_bytes].copy_from_slice(bytes);
        }
        u64::from_le_bytes(id)
    }
}
