//! Rows of a delta that lie together.

use std::sync::Arc;

use stratann_core::delta::row_bytes;
use stratann_kernel::Metric;
use stratann_kernel::distance::inverse_norm;

use crate::collections::point::{Place, PointBytes};
use crate::collections::spec::Spec;
use crate::rows::ExternalId;

/// Bytes of the vectors of a block, about. A change copies at most one block, which a search may still be reading.
const BLOCK_BYTES: usize = 64 << 10;
/// Most rows of a block, so that a set of them is a few words.
const BLOCK_ROWS_MAX: usize = 256;

/// What a point is beside its id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content<'a> {
    /// Its components.
    pub(crate) vector: &'a [u8],
    /// Its payload as compact JSON.
    pub(crate) payload: Option<&'a Arc<[u8]>>,
}

/// Rows, only ever appended.
#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    ids: Vec<ExternalId>,
    places: Vec<Place>,
    pub(super) vectors: Vec<u8>,
    /// One for each row under cosine, else none.
    pub(super) inverse_norms: Vec<f32>,
    /// Payloads as compact JSON; none beyond the last row that has one.
    payloads: Vec<Option<Arc<[u8]>>>,
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
            payloads: Vec::new(),
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.ids.len()
    }

    pub(super) fn push(&mut self, spec: &Spec, (id, place): (&ExternalId, Place), content: Content<'_>) {
        let Content { vector, payload } = content;
        if let Some(payload) = payload {
            self.payloads.resize(self.rows(), None);
            self.payloads.push(Some(payload.clone()));
        }
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

    /// Compact JSON; `None` of a row without a payload.
    pub(super) fn payload(&self, row: usize) -> Option<&Arc<[u8]>> {
        self.payloads.get(row)?.as_ref()
    }

    /// Vector and payload of a row.
    pub(super) fn content(&self, row: usize) -> Option<Content<'_>> {
        Some(Content { vector: self.vector(row)?, payload: self.payload(row) })
    }

    /// Bytes of id and payload of a row.
    pub(super) fn bytes_of(&self, row: usize) -> PointBytes {
        let payload = self.payload(row).map(|json| &**json);
        self.id(row).map_or(PointBytes::default(), |id| PointBytes::of(id, payload))
    }

    pub(super) fn vector(&self, row: usize) -> Option<&[u8]> {
        let bytes = self.vectors.len().checked_div(self.rows())?;
        self.vectors.get(row * bytes..(row + 1) * bytes)
    }
}

/// Some rows of a block: a bit each.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RowBits([u64; BLOCK_ROWS_MAX / 64]);

impl RowBits {
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
/// Memory of a payload besides its bytes, and of its place in a block.
const PAYLOAD_BYTES: u64 = 48;

/// Most memory of a delta of so many rows, dead ones included, whose ids and payloads have so many bytes, without
/// centroids. While dead rows are removed, a copy of the others takes half as much again; it shares the payloads.
pub(crate) fn memory_bytes(spec: &Spec, rows: u64, bytes: PointBytes) -> u64 {
    let PointBytes { ids, payloads } = bytes;
    let point = spec.row_bytes() as u64 + POINT_BYTES + row_bytes(spec.dim);
    let points = rows.saturating_mul(point).saturating_add(ids.saturating_mul(2));
    let of_payloads =
        if payloads > 0 { payloads.saturating_add(rows.saturating_mul(PAYLOAD_BYTES)) } else { 0 };
    let points = points.saturating_add(points / 2).saturating_add(2 * Block::rows_max(spec) as u64 * point);
    points.saturating_add(of_payloads)
}
