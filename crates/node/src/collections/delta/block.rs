//! Rows of a delta that lie together.

use stratann_core::delta::row_bytes;
use stratann_kernel::Metric;
use stratann_kernel::distance::inverse_norm;

use crate::collections::point::{Place, id_bytes};
use crate::collections::spec::Spec;
use crate::rows::ExternalId;

/// Bytes of the vectors of a block, about. A change copies at most one block, which a search may still be reading.
const BLOCK_BYTES: usize = 64 << 10;
/// Most rows of a block, so that its dead rows are a few words.
const BLOCK_ROWS_MAX: usize = 256;

/// Rows, only ever appended.
#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    ids: Vec<ExternalId>,
    places: Vec<Place>,
    pub(super) vectors: Vec<u8>,
    /// One for each row under cosine, else none.
    pub(super) inverse_norms: Vec<f32>,
}

impl Block {
    pub(super) fn rows_max(spec: &Spec) -> usize {
        (BLOCK_BYTES / spec.row_bytes().max(1)).clamp(1, BLOCK_ROWS_MAX)
    }

    /// A block with room for all its rows.
    pub(super) fn empty(spec: &Spec) -> Block {
        let rows = Block::rows_max(spec);
        Block {
            ids: Vec::with_capacity(rows),
            places: Vec::with_capacity(rows),
            vectors: Vec::with_capacity(rows * spec.row_bytes()),
            inverse_norms: Vec::new(),
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.ids.len()
    }

    pub(super) fn push(&mut self, spec: &Spec, id: &ExternalId, place: Place, vector: &[u8]) {
        self.ids.push(id.clone());
        self.places.push(place);
        self.vectors.extend(vector);
        if spec.metric == Metric::Cosine {
            self.inverse_norms.push(inverse_norm(spec.dtype, vector));
        }
    }

    pub(super) fn id(&self, row: usize) -> Option<&ExternalId> {
        self.ids.get(row)
    }

    pub(super) fn place(&self, row: usize) -> Option<Place> {
        self.places.get(row).copied()
    }

    pub(super) fn vector(&self, row: usize) -> Option<&[u8]> {
        let bytes = self.vectors.len().checked_div(self.rows())?;
        self.vectors.get(row * bytes..(row + 1) * bytes)
    }
}

/// Dead rows of a block: a bit each.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Dead([u64; BLOCK_ROWS_MAX / 64]);

impl Dead {
    pub(super) fn has(&self, row: usize) -> bool {
        self.0.get(row / 64).is_some_and(|word| word >> (row % 64) & 1 == 1)
    }

    pub(super) fn insert(&mut self, row: usize) {
        if let Some(word) = self.0.get_mut(row / 64) {
            *word |= 1 << (row % 64);
        }
    }

    pub(super) fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
}

/// Memory of a point besides its vector, its code and its id: places, norms, and its share of the index by ids.
const POINT_BYTES: u64 = 176;

/// Most memory of a delta of so many rows, dead ones included, whose ids have so many bytes, without centroids. While
/// dead rows are removed, a copy of the others takes half as much again.
pub(crate) fn memory_bytes(spec: &Spec, rows: u64, ids: u64) -> u64 {
    let point = spec.row_bytes() as u64 + POINT_BYTES + row_bytes(spec.dim);
    let points = rows.saturating_mul(point).saturating_add(ids.saturating_mul(2));
    points.saturating_add(points / 2).saturating_add(2 * Block::rows_max(spec) as u64 * point)
}

/// Bytes of an id, as [`memory_bytes`] counts them.
pub(super) fn counted(id: &ExternalId) -> u64 {
    id_bytes(id) as u64
}
