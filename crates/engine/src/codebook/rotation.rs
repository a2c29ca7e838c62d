//! The rotation of OPQ (Ge et al., "Optimized Product Quantization", PAMI 2014): a start from PCA (§4.2), and
//! refinement (§4.1).
//!
//! Matrices are multiplied by the kernels, not by a library that chooses by the processor: the rotation has the same
//! bits on every machine.

use std::ops::Range;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use nalgebra::{DMatrix, Dyn, SymmetricEigen};

use stratann_core::build::costs::ln;
use stratann_kernel::codes::Codebook;
use stratann_kernel::product::{add_product_f32, add_product_f64};
use stratann_storage::{Error, ErrorKind, Progress, Result};

use crate::parallel;

/// Columns of a product that one task computes.
const COLUMNS: usize = 64;
/// Rows that pass through a cache at once.
const TILE: usize = 512;
/// Weight of the present rotation, relative to the mean singular value: determines directions without data.
const INERTIA: f64 = 1e-4;
/// Newton–Schulz steps that refine the polar factor; each doubles the correct digits.
const POLISH: usize = 2;

/// Amount of work that a rotation is worth, by the rows that it is learned from: an eigendecomposition takes some dim³
/// steps whatever their number, and encoding the sample once takes rows × dim × 256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RotationWork {
    /// Components whose correlations PCA looks at together.
    pub(crate) group: usize,
    /// Rounds of refinement at most.
    pub(super) rounds: usize,
}

impl RotationWork {
    /// A full sample of 65,536 rows has one group up to 1619 components, and 12 rounds up to 1024.
    pub(crate) fn of(rows: usize, dim: usize) -> RotationWork {
        let whole = 40 * rows >= dim * dim;
        let group = if whole { dim } else { ((40 * rows) as f64).sqrt() as usize };
        RotationWork { group: group.clamp(1, dim.max(1)), rounds: 200 * rows / (dim * dim).max(1) }
    }
}

/// PCA of centred `rows` (n × `dim`), the components given to the subspaces `starts` so that the products of variances
/// are balanced. Returns `dim × dim`, row-major.
///
/// Components are taken in consecutive groups of at most `group`, each with its own PCA: with one group this is PCA.
///
/// # Errors
/// An interruption.
pub(super) fn pca(
    rows: &[f32],
    dim: usize,
    starts: &[u32],
    group: usize,
    progress: &dyn Progress,
) -> Result<Vec<f32>> {
    let all = principal_axes(rows, dim, group, progress)?;
    let sorted: Vec<f64> = all.iter().map(|axis| axis.variance).collect();
    let mut out = vec![0f32; dim * dim];
    for (row, at) in out.chunks_exact_mut(dim.max(1)).zip(allocate(&sorted, starts)) {
        let PrincipalAxis { first, components, .. } = &all[at];
        row[*first..first + components.len()].copy_from_slice(components);
    }
    Ok(out)
}

/// A principal axis.
pub(crate) struct PrincipalAxis {
    pub(crate) variance: f64,
    /// The first component that it has.
    pub(crate) first: usize,
    /// Components of the axis from the first on.
    pub(crate) components: Vec<f32>,
}

/// The principal axes of `rows` (n × `dim`), the one of the largest variance first. Rows are not centred here.
///
/// Components are taken in consecutive groups of at most `group`, each with its own PCA.
///
/// # Errors
/// An interruption.
pub(crate) fn principal_axes(
    rows: &[f32],
    dim: usize,
    group: usize,
    progress: &dyn Progress,
) -> Result<Vec<PrincipalAxis>> {
    let groups = dim.div_ceil(group).max(1);
    let mut all: Vec<PrincipalAxis> = Vec::with_capacity(dim);
    for number in 0..groups {
        let own = number * dim / groups..(number + 1) * dim / groups;
        let eigen = eigen(covariance(rows, dim, &own), progress)?;
        let vectors = eigen.eigenvalues.iter().zip(eigen.eigenvectors.column_iter());
        all.extend(vectors.map(|(&variance, vector)| {
            let components = vector.iter().map(|&x| x as f32).collect();
            PrincipalAxis { variance, first: own.start, components }
        }));
    }
    all.sort_by(|a, b| b.variance.total_cmp(&a.variance));
    Ok(all)
}

/// The covariances of some components of centred `rows`.
fn covariance(rows: &[f32], dim: usize, own: &Range<usize>) -> DMatrix<f64> {
    let narrow: Vec<f32>;
    let (rows, dim) = if own.len() == dim {
        (rows, dim)
    } else {
        narrow = rows.chunks_exact(dim).flat_map(|row| &row[own.clone()]).copied().collect();
        (&narrow[..], own.len())
    };
    let left = |range: Range<usize>, columns: Range<usize>, out: &mut [f32]| {
        let rows = rows[range.start * dim..range.end * dim].chunks_exact(dim);
        for (row, out) in rows.zip(out.chunks_exact_mut(columns.len())) {
            out.copy_from_slice(&row[columns.clone()]);
        }
    };
    cross_product(rows.len() / dim, dim, dim, &left, rows)
}

/// Largest matrix that is decomposed at once; larger ones take longer than a user waits for an interruption.
const SHORT_DIM: usize = 256;
/// Interval of questions whether to stop.
const LOOK: Duration = Duration::from_millis(50);

/// Decomposes a symmetric matrix.
///
/// # Errors
/// An interruption: the decomposition, which cannot be stopped, ends unheeded on its thread.
fn eigen(a: DMatrix<f64>, progress: &dyn Progress) -> Result<SymmetricEigen<f64, Dyn>> {
    if a.nrows() <= SHORT_DIM {
        return Ok(SymmetricEigen::new(a));
    }
    let (sender, receiver) = channel();
    let decompose = move || {
        // The receiver is gone after an interruption.
        let _ = sender.send(SymmetricEigen::new(a));
    };
    std::thread::Builder::new().name("eigen".into()).spawn(decompose).map_err(|e| Error {
        kind: ErrorKind::Io,
        message: format!("starting a thread: {e}; raise the limit of threads"),
    })?;
    loop {
        match receiver.recv_timeout(LOOK) {
            Ok(eigen) => return Ok(eigen),
            Err(_) if progress.interrupted() => return Err(Error::interrupted()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::corrupt("a matrix could not be decomposed; please report this"));
            }
        }
    }
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
/// ŶᵀZ, which is returned (`dim × dim`, row-major) to rotate the rows in the same way; `None` where there is none.
///
/// # Errors
/// An interruption.
pub(super) fn refine(
    book: &mut Codebook,
    rotated: &[f32],
    codes: &[u8],
    progress: &dyn Progress,
) -> Result<Option<Vec<f32>>> {
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
    let Some(turn) = polar(product, progress)? else { return Ok(None) };
    let before: Vec<f64> = book.rotation.iter().map(|&x| f64::from(x)).collect();
    let mut turned = vec![0f64; dim * dim];
    add_product_f64(turn.as_slice(), dim, &before, dim, &mut turned);
    book.rotation = turned.iter().map(|&x| x as f32).collect();
    Ok(Some(turn.transpose().iter().map(|&x| x as f32).collect()))
}

/// Computes the orthonormal matrix nearest to `a`; `None` if `a` is singular or not finite.
///
/// At most three matrices of this size exist at any time; budgets rely on it.
///
/// # Errors
/// An interruption.
fn polar(mut a: DMatrix<f64>, progress: &dyn Progress) -> Result<Option<DMatrix<f64>>> {
    let scale = a.norm();
    if !(scale.is_finite() && scale > 0.0) {
        return Ok(None);
    }
    a /= scale;
    let SymmetricEigen { eigenvalues, eigenvectors: mut w } = eigen(a.tr_mul(&a), progress)?;
    let largest = eigenvalues.max();
    if eigenvalues.min() <= largest * 1e-13 {
        return Ok(None);
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
    Ok(u.iter().all(|x| x.is_finite()).then_some(u))
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
    parallel::for_each(out.chunks_mut(COLUMNS * dim).enumerate(), |(block, out)| {
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
