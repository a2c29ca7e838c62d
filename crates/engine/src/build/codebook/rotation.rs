//! The rotation of OPQ (Ge et al., "Optimized Product Quantization", PAMI 2014): a start from PCA (§4.2), and
//! refinement (§4.1).
//!
//! Matrices are multiplied by the kernels, not by a library that chooses by the processor: the rotation has the same
//! bits on every machine.

use std::ops::Range;

use nalgebra::{DMatrix, SymmetricEigen};
use rayon::prelude::*;

use stratann_core::build::costs::ln;
use stratann_kernel::codes::Codebook;
use stratann_kernel::product::{add_product_f32, add_product_f64};

/// Columns of a product that one task computes.
const COLUMNS: usize = 64;
/// Rows that pass through a cache at once.
const TILE: usize = 512;
/// Weight of the present rotation, relative to the mean singular value: determines directions without data.
const INERTIA: f64 = 1e-4;
/// Newton–Schulz steps that refine the polar factor; each doubles the correct digits.
const POLISH: usize = 2;

/// PCA of centred `rows` (n × `dim`), the components given to the subspaces `starts` so that the products of variances
/// are balanced. Returns `dim × dim`, row-major.
pub(super) fn pca(rows: &[f32], dim: usize, starts: &[u32]) -> Vec<f32> {
    let covariance = cross_product(
        rows.len() / dim,
        dim,
        dim,
        &|range, columns, out: &mut [f32]| {
            for (row, out) in rows[range.start * dim..range.end * dim]
                .chunks_exact(dim)
                .zip(out.chunks_exact_mut(columns.len()))
            {
                out.copy_from_slice(&row[columns.clone()]);
            }
        },
        rows,
    );
    let eigen = SymmetricEigen::new(covariance);
    let mut order: Vec<usize> = (0..dim).collect();
    order.sort_by(|&a, &b| eigen.eigenvalues[b].total_cmp(&eigen.eigenvalues[a]).then(a.cmp(&b)));
    let sorted: Vec<f64> = order.iter().map(|&i| eigen.eigenvalues[i]).collect();
    let mut out = Vec::with_capacity(dim * dim);
    for at in allocate(&sorted, starts) {
        out.extend(eigen.eigenvectors.column(order[at]).iter().map(|&x| x as f32));
    }
    out
}

/// Assigns the eigenvalues (descending) to rotated components: each goes to the subspace with free components whose
/// product is smallest so far.
fn allocate(eigenvalues: &[f64], starts: &[u32]) -> Vec<usize> {
    let largest = eigenvalues.first().copied().unwrap_or(0.0).max(f64::MIN_POSITIVE);
    // Scaled so that every logarithm is positive and a subspace grows by taking one.
    let smallest = eigenvalues.iter().fold(largest, |s, &e| s.min(e.max(largest * 1e-10)));
    let mut taken: Vec<Vec<usize>> = vec![Vec::new(); starts.len().saturating_sub(1)];
    let mut products = vec![0f64; taken.len()];
    for (at, &e) in eigenvalues.iter().enumerate() {
        let room = |j: &usize| taken[*j].len() < (starts[*j + 1] - starts[*j]) as usize;
        let least = (0..taken.len())
            .filter(room)
            .min_by(|&a, &b| products[a].total_cmp(&products[b]).then(a.cmp(&b)));
        if let Some(j) = least {
            products[j] += ln(e.max(smallest) / smallest) + 1e-9;
            taken[j].push(at);
        }
    }
    taken.into_iter().flatten().collect()
}

/// Refines the rotation such that `rotated` rows (n × dim) come nearest to the decoded `codes`: by the polar factor of
/// ŶᵀZ, which is returned (`dim × dim`, row-major) to rotate the rows in the same way.
pub(super) fn refine(book: &mut Codebook, rotated: &[f32], codes: &[u8]) -> Option<Vec<f32>> {
    let (dim, size) = (book.dim, book.code_bytes());
    let mut product = cross_product(
        rotated.len() / dim,
        dim,
        dim,
        &|range, columns, out: &mut [f32]| {
            let mut decoded = vec![0f32; dim];
            for (i, out) in range.zip(out.chunks_exact_mut(columns.len())) {
                book.decode_rotated(&codes[i * size..(i + 1) * size], &mut decoded);
                out.copy_from_slice(&decoded[columns.clone()]);
            }
        },
        rotated,
    );
    // The trace of the product is about the sum of its singular values.
    let inertia = INERTIA * product.trace().abs() / dim as f64;
    add_to_diagonal(&mut product, inertia);
    let turn = polar(product)?;
    let before: Vec<f64> = book.rotation.iter().map(|&x| f64::from(x)).collect();
    let mut turned = vec![0f64; dim * dim];
    add_product_f64(turn.as_slice(), dim, &before, dim, &mut turned);
    book.rotation = turned.iter().map(|&x| x as f32).collect();
    Some(turn.transpose().iter().map(|&x| x as f32).collect())
}

/// Computes the orthonormal matrix nearest to `a`; `None` if `a` is singular or not finite.
///
/// At most three matrices of this size exist at any time; budgets rely on it.
fn polar(mut a: DMatrix<f64>) -> Option<DMatrix<f64>> {
    let scale = a.norm();
    if !(scale.is_finite() && scale > 0.0) {
        return None;
    }
    a /= scale;
    let SymmetricEigen { eigenvalues, eigenvectors: mut w } = SymmetricEigen::new(a.tr_mul(&a));
    let largest = eigenvalues.max();
    if eigenvalues.min() <= largest * 1e-13 {
        return None;
    }
    // A (AᵀA)^(−1/2), the root as W Wᵀ with W = V diag(λ^(−1/4)).
    for (mut column, e) in w.column_iter_mut().zip(eigenvalues.iter()) {
        column /= e.sqrt().sqrt();
    }
    let mut u = times_symmetric(a, &by_its_transpose(w));
    for _ in 0..POLISH {
        let mut correction = u.tr_mul(&u);
        correction *= -0.5;
        add_to_diagonal(&mut correction, 1.5);
        u = times_symmetric(u, &correction);
    }
    u.iter().all(|x| x.is_finite()).then_some(u)
}

/// `W Wᵀ`.
fn by_its_transpose(w: DMatrix<f64>) -> DMatrix<f64> {
    let mut out = DMatrix::zeros(w.nrows(), w.nrows());
    // A column-major matrix is the transpose of a row-major one.
    add_product_f64(w.as_slice(), w.nrows(), w.as_slice(), w.nrows(), out.as_mut_slice());
    out
}

/// `A S` for a symmetric S.
fn times_symmetric(a: DMatrix<f64>, s: &DMatrix<f64>) -> DMatrix<f64> {
    let mut out = DMatrix::zeros(a.nrows(), s.ncols());
    add_product_f64(s.as_slice(), s.ncols(), a.as_slice(), a.nrows(), out.as_mut_slice());
    out
}

fn add_to_diagonal(a: &mut DMatrix<f64>, x: f64) {
    (0..a.nrows().min(a.ncols())).for_each(|i| a[(i, i)] += x);
}

/// Fills in a range of rows of a matrix, of which only a range of columns is needed.
type Left<'a> = dyn Fn(Range<usize>, Range<usize>, &mut [f32]) + Sync + 'a;

/// Computes `LᵀX` (`width × dim`) for `rows` X (n × dim, row-major) and L (n × `width`), whose rows and columns `left`
/// fills in.
///
/// Tasks share the columns of L and each sums all rows in order, so the result does not depend on the number of
/// threads.
fn cross_product(n: usize, width: usize, dim: usize, left: &Left, rows: &[f32]) -> DMatrix<f64> {
    // Row-major `width × dim`, that is, the column-major transpose.
    let mut out = vec![0f32; width * dim];
    out.par_chunks_mut(COLUMNS * dim).enumerate().for_each(|(block, out)| {
        let count = out.len() / dim;
        let columns = block * COLUMNS..block * COLUMNS + count;
        let mut tile = vec![0f32; TILE * count];
        for start in (0..n).step_by(TILE) {
            let range = start..(start + TILE).min(n);
            let tile = &mut tile[..range.len() * count];
            left(range.clone(), columns.clone(), tile);
            add_product_f32(tile, count, &rows[range.start * dim..range.end * dim], dim, out);
        }
    });
    DMatrix::from_row_iterator(width, dim, out.iter().map(|&x| f64::from(x)))
}
