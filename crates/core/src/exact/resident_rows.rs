//! Rows of blocks in memory: what is there need not be read.

use alloc::vec::Vec;
use core::mem::MaybeUninit;
use core::ops::Range;

use stratann_kernel::distance::Exact;

use super::BlockRows;
use crate::format::block::{Block, BlockLayout};

/// Comparisons after which a step with nothing to wait for usually ends, so that other queries have their turns: some
/// 100 µs of work.
pub const STEP_COMPARISONS: u64 = 2048;

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

    /// The distances to the vectors of these nodes; infinite for nodes that do not exist.
    pub(crate) fn distances(&self, exact: &Exact, nodes: &[u32], out: &mut Vec<f32>) {
        let norm = |node: u32| self.inverse_norms.get(node as usize).copied().unwrap_or(1.0);
        exact.distances_of(&self.vectors, nodes, norm, out);
    }

    /// The rows of a block, which has these nodes. `None` where one of them does not exist.
    pub(crate) fn block(&self, nodes: &Range<u32>) -> Option<ResidentBlock<'_>> {
        let (first, end) = (nodes.start as usize, nodes.end as usize);
        let vectors = self.vectors.get(first * self.vector_bytes..end * self.vector_bytes)?;
        let inverse_norms =
            if self.inverse_norms.is_empty() { &[] } else { self.inverse_norms.get(first..end)? };
        Some(ResidentBlock { rows: self, first_id: nodes.start, count: nodes.len(), vectors, inverse_norms })
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

/// A block whose rows are in memory.
pub(crate) struct ResidentBlock<'a> {
    rows: &'a ResidentRows,
    first_id: u32,
    count: usize,
    vectors: &'a [u8],
    inverse_norms: &'a [f32],
}

impl ResidentBlock<'_> {
    /// The id of the row in `slot`.
    pub(crate) fn id(&self, slot: usize) -> u32 {
        self.first_id.wrapping_add(slot as u32)
    }
}

impl BlockRows for ResidentBlock<'_> {
    fn count(&self) -> usize {
        self.count
    }

    fn first_id(&self) -> u32 {
        self.first_id
    }

    fn vectors(&self) -> &[u8] {
        self.vectors
    }

    fn inverse_norms<'n>(&'n self, _: &'n mut Vec<f32>) -> &'n [f32] {
        self.inverse_norms
    }

    fn row(&self, slot: usize) -> (&[u8], f32) {
        self.rows.vector(self.id(slot)).unwrap_or((&[], 1.0))
    }

    fn external_id(&self, slot: usize) -> u64 {
        self.rows.external_id(self.id(slot))
    }
}
