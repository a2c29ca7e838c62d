//! Many queries against many rows, in tiles that stay in registers.

use super::forms::{self, Forms, STRIP, TILE};
use super::narrow::{self, Group};
use super::scalar::LANES;

/// Size of a panel of queries, which the level-2 cache of a core holds while all rows are read.
const PANEL_BYTES: usize = 256 << 10;

/// Least queries for which transposing the rows is faster.
const NARROW_FROM: usize = 4;

/// Squared Euclidean distances of every query to every row.
///
/// `queries` is `nq × dim`, `rows` is `nr × dim`, `out` is `nq × nr`, all row-major; surplus components at an end are
/// ignored. Each result has the bits of [`l2_f32`](super::l2_f32).
///
/// # Panics
/// If `out` has fewer than `nq × nr` elements.
pub fn block_l2_f32(queries: &[f32], rows: &[f32], dim: usize, out: &mut [f32]) {
    let kernels = forms::current();
    block_f32(&kernels.l2_f32, kernels.narrow.as_ref().map(|n| &n.l2), queries, rows, dim, out);
}

/// Inner products of every query with every row: `queries · rowsᵀ`. Shapes and panics as [`block_l2_f32`].
pub fn block_dot_f32(queries: &[f32], rows: &[f32], dim: usize, out: &mut [f32]) {
    let kernels = forms::current();
    block_f32(&kernels.dot_f32, kernels.narrow.as_ref().map(|n| &n.dot), queries, rows, dim, out);
}

/// Inner products of unsigned bytes, exact. Shapes and panics as [`block_l2_f32`].
pub fn block_dot_u8(queries: &[u8], rows: &[u8], dim: usize, out: &mut [u32]) {
    block(&forms::current().dot_u8, queries, rows, dim, dim, out);
}

/// Inner products of signed bytes (given as their bit patterns), exact. Shapes and panics as [`block_l2_f32`].
pub fn block_dot_i8(queries: &[u8], rows: &[u8], dim: usize, out: &mut [i32]) {
    block(&forms::current().dot_i8, queries, rows, dim, dim, bytemuck::cast_slice_mut(out));
}

/// Squared Euclidean distances of unsigned bytes, exact. Shapes and panics as [`block_l2_f32`].
pub fn block_l2_u8(queries: &[u8], rows: &[u8], dim: usize, out: &mut [u32]) {
    block_l2_bytes(&forms::current().dot_u8, queries, rows, dim, out);
}

/// Squared Euclidean distances of signed bytes (given as their bit patterns), exact. Shapes and panics as
/// [`block_l2_f32`].
pub fn block_l2_i8(queries: &[u8], rows: &[u8], dim: usize, out: &mut [u32]) {
    block_l2_bytes(&forms::current().dot_i8, queries, rows, dim, out);
}

pub(super) fn block_f32(
    forms: &Forms<f32, f32>,
    groups: Option<&[Group; 3]>,
    queries: &[f32],
    rows: &[f32],
    dim: usize,
    out: &mut [f32],
) {
    match groups {
        Some(groups) if (1..=LANES).contains(&dim) && queries.len() >= NARROW_FROM * dim => {
            narrow::block(groups, queries, rows, dim, out);
        }
        _ => block(forms, queries, bytemuck::cast_slice(rows), dim, 4 * dim, out),
    }
}

/// ‖q‖² + ‖x‖² − 2⟨q, x⟩, exact modulo 2³² and therefore exact.
pub(super) fn block_l2_bytes(
    forms: &Forms<u8, u32>,
    queries: &[u8],
    rows: &[u8],
    dim: usize,
    out: &mut [u32],
) {
    if dim == 0 {
        return;
    }
    block(forms, queries, rows, dim, dim, out);
    // SAFETY: a table in use is one that this machine can run.
    let square = |x: &[u8]| unsafe { (forms.pair)(x, x) };
    let squares: Vec<u32> = rows.chunks_exact(dim).map(square).collect();
    if squares.is_empty() {
        return;
    }
    for (query, out) in queries.chunks_exact(dim).zip(out.chunks_exact_mut(squares.len())) {
        let q = square(query);
        for (out, x) in out.iter_mut().zip(&squares) {
            *out = q.wrapping_add(*x).wrapping_sub(out.wrapping_mul(2));
        }
    }
}

/// All pairs; `row_bytes` are the bytes of one row.
pub(super) fn block<Q, T: Copy + Default>(
    forms: &Forms<Q, T>,
    queries: &[Q],
    rows: &[u8],
    dim: usize,
    row_bytes: usize,
    out: &mut [T],
) {
    if dim == 0 {
        return;
    }
    let (nq, nr) = (queries.len() / dim, rows.len() / row_bytes);
    assert!(out.len() >= nq * nr, "a block of {nq} x {nr} results does not fit into {}", out.len());
    if nr == 0 {
        return;
    }
    let tile = forms.shape.0;
    let panel = (PANEL_BYTES / (dim * size_of::<Q>())).max(tile).next_multiple_of(tile);
    let queries = &queries[..nq * dim];
    for (queries, out) in queries.chunks(panel * dim).zip(out.chunks_mut(panel * nr)) {
        block_panel(forms, queries, &rows[..nr * row_bytes], dim, row_bytes, out);
    }
}

fn block_panel<Q, T: Copy + Default>(
    forms: &Forms<Q, T>,
    queries: &[Q],
    rows: &[u8],
    dim: usize,
    row_bytes: usize,
    out: &mut [T],
) {
    let (nq, nr) = (queries.len() / dim, rows.len() / row_bytes);
    let (tile_q, tile_r) = forms.shape;
    let (whole_q, whole_r) = (nq - nq % tile_q, nr - nr % tile_r);
    let mut results = [T::default(); TILE];
    for r in (0..whole_r).step_by(tile_r) {
        let tile_rows = &rows[r * row_bytes..(r + tile_r) * row_bytes];
        for q in (0..whole_q).step_by(tile_q) {
            // SAFETY: a table in use is one that this machine can run.
            unsafe { (forms.tile)(&queries[q * dim..(q + tile_q) * dim], tile_rows, dim, &mut results) };
            for (i, results) in results.chunks_exact(tile_r).take(tile_q).enumerate() {
                out[(q + i) * nr + r..][..tile_r].copy_from_slice(results);
            }
        }
    }
    for (q, (query, out)) in queries.chunks_exact(dim).zip(out.chunks_exact_mut(nr)).enumerate() {
        let done = if q < whole_q { whole_r } else { 0 };
        one_to_many(forms, query, &rows[done * row_bytes..], row_bytes, &mut out[done..]);
    }
}

/// One query against contiguous rows, as many as `out` has elements.
pub(super) fn one_to_many<Q, T: Copy + Default>(
    forms: &Forms<Q, T>,
    query: &[Q],
    rows: &[u8],
    row_bytes: usize,
    out: &mut [T],
) {
    let strip_bytes = STRIP * row_bytes;
    let mut results = [T::default(); TILE];
    let mut strips = rows.chunks_exact(strip_bytes);
    let mut outs = out.chunks_exact_mut(STRIP);
    for (rows, out) in strips.by_ref().zip(outs.by_ref()) {
        // SAFETY: a table in use is one that this machine can run.
        unsafe { (forms.strip)(query, rows, query.len(), &mut results) };
        out.copy_from_slice(&results[..STRIP]);
    }
    for (row, out) in strips.remainder().chunks_exact(row_bytes).zip(outs.into_remainder()) {
        // SAFETY: as above.
        *out = unsafe { (forms.pair)(query, row) };
    }
}
