//! Blocks of f32 of at most 16 components: the subspaces of product quantisation.
//!
//! Here every lane has one term at most, and folding would dominate. So the block is transposed: a
//! register holds one component of 16 rows, and folding adds whole registers, in the order of
//! [`scalar::fold`](super::scalar::fold).

use super::scalar::LANES;

/// Rows that are scored together.
pub(super) const GROUP: usize = 16;

/// Components are padded with zeros to the first of these that is large enough.
const WIDTHS: [usize; 3] = [4, 8, 16];

/// Bytes of results that are computed over all rows before the next queries.
const PANEL_BYTES: usize = 256 << 10;

/// Scores `queries` (`width` components each) against the first `count` <= 16 rows of a group, component by component
/// in `columns` (`width × 16`). Row q of the results starts at `out[q × stride]`. Panics where a slice is too short.
/// Unsafe: the machine must have the table's instruction set.
pub(super) type Group =
    unsafe fn(queries: &[f32], columns: &[f32], count: usize, out: &mut [f32], stride: usize);

/// As [`block`](super::block::block); `groups` are the forms for each of the widths. 1 <= `dim` <= 16.
pub(super) fn block(groups: &[Group; 3], queries: &[f32], rows: &[f32], dim: usize, out: &mut [f32]) {
    let (nq, nr) = (queries.len() / dim, rows.len() / dim);
    assert!(out.len() >= nq * nr, "a block of {nq} x {nr} results does not fit into {}", out.len());
    if nr == 0 {
        return;
    }
    let Some((&width, &group)) = WIDTHS.iter().zip(groups).find(|(width, _)| dim <= **width) else { return };
    let mut columns = vec![0f32; nr.next_multiple_of(GROUP) * width];
    for (r, row) in rows.chunks_exact(dim).enumerate() {
        let start = r / GROUP * GROUP * width + r % GROUP;
        row.iter().enumerate().for_each(|(i, &x)| columns[start + i * GROUP] = x);
    }
    let panel = (PANEL_BYTES / (4 * nr)).max(LANES);
    let mut padded = Vec::new();
    for (queries, out) in queries[..nq * dim].chunks(panel * dim).zip(out.chunks_mut(panel * nr)) {
        let queries = if dim == width { queries } else { pad(queries, dim, width, &mut padded) };
        for (g, columns) in columns.chunks_exact(GROUP * width).enumerate() {
            let count = (nr - g * GROUP).min(GROUP);
            // SAFETY: a table in use is one that this machine can run.
            unsafe { group(queries, columns, count, &mut out[g * GROUP..], nr) };
        }
    }
}

fn pad<'a>(queries: &[f32], dim: usize, width: usize, padded: &'a mut Vec<f32>) -> &'a [f32] {
    padded.clear();
    padded.resize(queries.len() / dim * width, 0.0);
    for (wide, query) in padded.chunks_exact_mut(width).zip(queries.chunks_exact(dim)) {
        wide[..dim].copy_from_slice(query);
    }
    padded
}
