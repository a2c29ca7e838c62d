//! Exact distances of many queries to many rows, a tile at a time: rows are loaded from memory once for all queries of
//! a tile.
//!
//! Distances are those of [`Exact::distance`](stratann_kernel::distance::Exact::distance), bit for bit.

use std::ops::Range;

use stratann_kernel::distance::{
    balance, block_dot_f32, block_dot_i8, block_dot_u8, block_l2_f32, block_l2_i8, block_l2_u8, inverse_norm,
};
use stratann_kernel::element::widen;
use stratann_kernel::topk::{Scored, TopK};
use stratann_kernel::{DType, Metric};

use crate::parallel;

/// Queries of a tile.
pub(crate) const TILE: usize = 32;
/// Bytes of the rows that a tile is scored against at a time; they stay in the core's own cache.
const STRIP_BYTES: usize = 128 << 10;
/// Most distances per thread are [`TILE`] times this.
pub(crate) const STRIP_ROWS: usize = 1024;
/// Bytes of the distances of a strip, as floats and as integers.
pub(crate) const STRIP_SCRATCH_BYTES: usize = TILE * STRIP_ROWS * 8;

/// Form of the vectors on both sides. Where one side has f16 and the other f32, either type says the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    pub(crate) dtype: DType,
    pub(crate) metric: Metric,
    pub(crate) dim: usize,
}

/// Vectors ready to be scored: all floats as f32, since widening is exact and done once for all queries.
#[derive(Default)]
pub(crate) struct Matrix {
    floats: Vec<f32>,
    bytes: Vec<u8>,
    /// Inverse norm of every vector, under cosine.
    inverse_norms: Vec<f32>,
}

/// Scratch of a thread for one strip.
#[derive(Default)]
pub(crate) struct Scratch {
    distances: Vec<f32>,
    integers: Vec<u32>,
}

/// Some rows as they come, and the places of their floats, where they have any, and of their inverse norms.
struct Part<'a> {
    rows: &'a [u8],
    wide: &'a mut [f32],
    inverse_norms: &'a mut [f32],
}

impl Part<'_> {
    fn fill(self, Form { dtype, metric, dim }: Form) {
        let is_cosine = metric == Metric::Cosine;
        let mut wide = self.wide.chunks_exact_mut(dim);
        let rows = self.rows.chunks_exact(dim * dtype.size());
        for (row, inverse) in rows.zip(self.inverse_norms) {
            if is_cosine {
                *inverse = inverse_norm(dtype, row);
            }
            let Some(wide) = wide.next() else { continue };
            widen(dtype, row, wide);
            if is_cosine {
                *inverse = balance(wide, *inverse);
            }
        }
    }
}

impl Matrix {
    /// Takes the vectors in `raw`, on the threads that are shared by builds, and leaves a buffer there for reuse.
    pub(crate) fn fill(&mut self, form: Form, raw: &mut Vec<u8>) {
        self.fill_by(form, raw, |parts, fill| parallel::for_each(parts, fill));
    }

    /// The same on this thread alone: in a child that is forked there are no others.
    pub(crate) fn fill_here(&mut self, form: Form, raw: &mut Vec<u8>) {
        self.fill_by(form, raw, |parts, fill| parts.into_iter().for_each(fill));
    }

    fn fill_by(
        &mut self,
        form: Form,
        raw: &mut Vec<u8>,
        each: impl FnOnce(Vec<Part<'_>>, &(dyn Fn(Part<'_>) + Sync)),
    ) {
        let Form { dtype, dim, .. } = form;
        let row_bytes = dim * dtype.size();
        let count = raw.len() / row_bytes;
        self.inverse_norms.clear();
        self.inverse_norms.resize(count, 0.0);
        self.floats.resize(if dtype.is_float() { count * dim } else { 0 }, 0.0);
        let mut wide = self.floats.chunks_mut(TILE * dim);
        let rows = raw.chunks(TILE * row_bytes).zip(self.inverse_norms.chunks_mut(TILE));
        let parts = rows.map(|(rows, inverse_norms)| Part {
            rows,
            wide: wide.next().unwrap_or_default(),
            inverse_norms,
        });
        each(parts.collect(), &|part| part.fill(form));
        if !dtype.is_float() {
            std::mem::swap(&mut self.bytes, raw);
        }
    }

    /// Takes rows of an index, whose inverse norms are known, on this thread alone.
    pub(crate) fn fill_known(&mut self, form: Form, raw: &[u8], inverse_norms: &[f32]) {
        let Form { dtype, dim, .. } = form;
        self.inverse_norms.clear();
        self.inverse_norms.extend_from_slice(inverse_norms);
        if dtype.is_float() {
            let count = raw.len() / (dim * dtype.size());
            self.inverse_norms.resize(count, 0.0);
            self.floats.resize(count * dim, 0.0);
            widen(dtype, raw, &mut self.floats);
        } else {
            self.bytes.clear();
            self.bytes.extend_from_slice(raw);
        }
    }
}

/// Queries and rows that are scored against each other.
#[derive(Clone, Copy)]
pub(crate) struct Pairs<'a> {
    pub(crate) form: Form,
    pub(crate) queries: &'a Matrix,
    pub(crate) rows: &'a Matrix,
}

impl Pairs<'_> {
    /// Scores `rows` against the tile of queries that starts at `query`, one for each of `tops`. Distances beyond
    /// `bounds` are dropped, and so is a pair without an id: of a query in its tile, and a row. `id` is asked for those
    /// alone whose distance is good enough. Ends early where `is_interrupted`.
    pub(crate) fn score(
        self,
        (query, bounds): (usize, &[f32]),
        rows: Range<usize>,
        tops: &mut [&mut TopK],
        id: impl Fn(usize, usize) -> Option<u64>,
        is_interrupted: &dyn Fn() -> bool,
        scratch: &mut Scratch,
    ) {
        let Form { dtype, dim, .. } = self.form;
        let strip = (STRIP_BYTES / (dim * dtype.size())).clamp(16, STRIP_ROWS);
        for start in rows.clone().step_by(strip) {
            if is_interrupted() {
                return;
            }
            let strip = start..rows.end.min(start + strip);
            self.distances(query..query + tops.len(), strip.clone(), scratch);
            let lines = scratch.distances.chunks_exact(strip.len());
            for (number, ((top, &bound), line)) in tops.iter_mut().zip(bounds).zip(lines).enumerate() {
                let mut limit = bound.min(top.threshold());
                for (&distance, row) in line.iter().zip(strip.clone()) {
                    // A distance that is NaN is never <= anything.
                    if distance <= limit
                        && let Some(id) = id(number, row)
                    {
                        top.push(Scored { distance, id });
                        limit = bound.min(top.threshold());
                    }
                }
            }
        }
    }

    /// Computes `scratch.distances[q][r]` for the queries and rows at these positions.
    fn distances(&self, q: Range<usize>, r: Range<usize>, scratch: &mut Scratch) {
        let Pairs { form: Form { dtype, metric, dim }, queries, rows } = *self;
        let Scratch { distances, integers } = scratch;
        let cells = q.len() * r.len();
        distances.resize(cells, 0.0);
        let (of_q, of_r) = (q.start * dim..q.end * dim, r.start * dim..r.end * dim);
        match dtype {
            DType::F32 | DType::F16 => {
                let score = if metric == Metric::L2 { block_l2_f32 } else { block_dot_f32 };
                score(&queries.floats[of_q], &rows.floats[of_r], dim, distances);
            }
            dtype @ (DType::U8 | DType::I8) => {
                integers.resize(cells, 0);
                let (queries, rows) = (&queries.bytes[of_q], &rows.bytes[of_r]);
                let signed = dtype == DType::I8;
                match (metric, signed) {
                    (Metric::L2, false) => block_l2_u8(queries, rows, dim, integers),
                    (Metric::L2, true) => block_l2_i8(queries, rows, dim, integers),
                    (_, false) => block_dot_u8(queries, rows, dim, integers),
                    (_, true) => block_dot_i8(queries, rows, dim, bytemuck::cast_slice_mut(integers)),
                }
                if signed && metric != Metric::L2 {
                    distances.iter_mut().zip(&*integers).for_each(|(d, &i)| *d = i as i32 as f32);
                } else {
                    distances.iter_mut().zip(&*integers).for_each(|(d, &i)| *d = i as f32);
                }
            }
        }
        match metric {
            Metric::L2 => {}
            Metric::Ip => distances.iter_mut().for_each(|d| *d = -*d),
            Metric::Cosine => {
                let inverses = &rows.inverse_norms[r.clone()];
                for (line, &of_query) in distances.chunks_exact_mut(r.len()).zip(&queries.inverse_norms[q]) {
                    // The same products in the same order as the pairwise distance.
                    line.iter_mut().zip(inverses).for_each(|(d, &of_row)| *d = 1.0 - *d * of_query * of_row);
                }
            }
        }
    }
}
