//! Rows of a delta that lie together.

use std::borrow::Cow;
use std::sync::Arc;

use stratann_core::delta::row_bytes;
use stratann_kernel::Metric;
use stratann_kernel::distance::inverse_norm;

use crate::collections::point::{Place, PointBytes};
use crate::collections::spec::{Specs, VectorsOf, record};
use crate::rows::ExternalId;

/// Bytes of the vectors of a block, about. A change copies at most one block, which a search may still be reading.
const BLOCK_BYTES: usize = 64 << 10;
/// Most rows of a block, so that a set of them is a few words.
const BLOCK_ROWS_MAX: usize = 256;

/// What a point is beside its id.
#[derive(Clone, Debug)]
pub(crate) struct Content<'a> {
    /// The record of its vectors.
    pub(crate) vectors: Cow<'a, [u8]>,
    /// Its payload as compact JSON.
    pub(crate) payload: Option<&'a Arc<[u8]>>,
}

/// Vectors of one name, of the rows of a block that have one.
#[derive(Clone, Debug, Default)]
pub(super) struct Column {
    has: RowBits,
    /// How many there are.
    count: usize,
    pub(super) vectors: Vec<u8>,
    /// One for each vector under cosine, else none.
    pub(super) inverse_norms: Vec<f32>,
}

impl Column {
    fn push(&mut self, of: VectorsOf<'_>, row: usize, vector: &[u8]) {
        self.has.insert(row);
        self.count += 1;
        self.vectors.extend(vector);
        if of.spec.metric == Metric::Cosine {
            self.inverse_norms.push(inverse_norm(of.spec.dtype, vector));
        }
    }

    /// Place of the vector of a row among those that are there.
    fn place(&self, row: usize) -> Option<usize> {
        self.has.has(row).then(|| self.has.count_before(row))
    }

    /// The vector of a row, and its inverse norm, which is 0 but under cosine.
    pub(super) fn get(&self, row: usize) -> Option<(&[u8], f32)> {
        let (bytes, place) = (self.vectors.len().checked_div(self.count)?, self.place(row)?);
        let norm = self.inverse_norms.get(place).copied().unwrap_or_default();
        Some((self.vectors.get(place * bytes..(place + 1) * bytes)?, norm))
    }

    /// How many vectors there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The rows of the vectors, in their order.
    pub(super) fn rows(&self) -> impl Iterator<Item = usize> + '_ {
        (0..BLOCK_ROWS_MAX).filter(|row| self.has.has(*row))
    }
}

/// Rows, only ever appended.
#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    ids: Vec<ExternalId>,
    places: Vec<Place>,
    /// One for each name of vectors.
    columns: Vec<Column>,
    has_names: bool,
    /// Payloads as compact JSON; none beyond the last row that has one.
    payloads: Vec<Option<Arc<[u8]>>>,
}

impl Block {
    pub(super) fn rows_max(specs: &Specs) -> usize {
        (BLOCK_BYTES / specs.row_bytes().max(1)).clamp(1, BLOCK_ROWS_MAX)
    }

    /// A block with room for all its rows.
    pub(super) fn empty(specs: &Specs) -> Block {
        let rows = Block::rows_max(specs);
        // Of several names a row may lack some.
        let room = |of: VectorsOf<'_>| if specs.has_names() { 0 } else { rows * of.spec.row_bytes() };
        let column = |of| Column { vectors: Vec::with_capacity(room(of)), ..Column::default() };
        Block {
            ids: Vec::with_capacity(rows),
            places: Vec::with_capacity(rows),
            columns: specs.each().map(column).collect(),
            has_names: specs.has_names(),
            payloads: Vec::new(),
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.ids.len()
    }

    pub(super) fn push(&mut self, specs: &Specs, (id, place): (&ExternalId, Place), content: Content<'_>) {
        let Content { vectors, payload } = content;
        let row = self.rows();
        if let Some(payload) = payload {
            self.payloads.resize(row, None);
            self.payloads.push(Some(payload.clone()));
        }
        self.ids.push(id.clone());
        self.places.push(place);
        let vectors = specs.vectors_in(&vectors).unwrap_or_default();
        for ((of, column), vector) in specs.each().zip(&mut self.columns).zip(vectors) {
            vector.into_iter().for_each(|vector| column.push(of, row, vector));
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

    /// Vectors of one name.
    pub(super) fn column(&self, name: usize) -> Option<&Column> {
        self.columns.get(name)
    }

    /// Vectors and payload of a row.
    pub(super) fn content(&self, row: usize) -> Option<Content<'_>> {
        self.ids.get(row)?;
        let vectors = match &self.columns[..] {
            [one] if !self.has_names => one.get(row)?.0.into(),
            _ => record(self.has_names, &self.vectors(row).collect::<Vec<_>>()),
        };
        Some(Content { vectors, payload: self.payload(row) })
    }

    /// Bytes of id and payload of a row.
    pub(super) fn bytes_of(&self, row: usize) -> PointBytes {
        let payload = self.payload(row).map(|json| &**json);
        self.id(row).map_or(PointBytes::default(), |id| PointBytes::of(id, payload))
    }

    /// The vector of a row that has this name.
    pub(super) fn vector(&self, name: usize, row: usize) -> Option<&[u8]> {
        self.columns.get(name)?.get(row).map(|(vector, _)| vector)
    }

    /// The vectors of a row, one for each name.
    pub(super) fn vectors(&self, row: usize) -> impl Iterator<Item = Option<&[u8]>> {
        self.columns.iter().map(move |column| column.get(row).map(|(vector, _)| vector))
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

    /// How many rows before this one are in it.
    fn count_before(&self, row: usize) -> usize {
        let whole = self.0.iter().take(row / 64).map(|word| word.count_ones() as usize).sum::<usize>();
        let last =
            self.0.get(row / 64).map_or(0, |word| (word & ((1 << (row % 64)) - 1)).count_ones() as usize);
        whole + last
    }
}

/// Memory of a point besides its vector, its code and its id: places, norms, and its share of the index by ids.
const POINT_BYTES: u64 = 176;
/// Memory of a payload besides its bytes, and of its place in a block.
const PAYLOAD_BYTES: u64 = 48;

/// Most memory of a delta of so many rows with a vector of each name, dead ones included, whose ids and payloads have
/// so many bytes, without centroids. While dead rows are removed, a copy of the others takes half as much again; it
/// shares the payloads.
pub(crate) fn memory_bytes(specs: &Specs, rows: u64, bytes: PointBytes) -> u64 {
    let PointBytes { ids, payloads } = bytes;
    let codes: u64 = specs.each().map(|of| row_bytes(of.spec.dim)).sum();
    let point = specs.row_bytes() as u64 + POINT_BYTES + codes;
    let points = rows.saturating_mul(point).saturating_add(ids.saturating_mul(2));
    let of_payloads =
        if payloads > 0 { payloads.saturating_add(rows.saturating_mul(PAYLOAD_BYTES)) } else { 0 };
    let points = points.saturating_add(points / 2).saturating_add(2 * Block::rows_max(specs) as u64 * point);
    points.saturating_add(of_payloads)
}
