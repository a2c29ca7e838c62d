//! Directions in which vectors vary.
//!
//! Matrices are multiplied by the kernels, not by a library that chooses by the processor: directions have the same
//! bits on every machine.

use std::ops::Range;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use nalgebra::{DMatrix, Dyn, SymmetricEigen};

use stratann_kernel::product::add_product_f32;
use stratann_storage::{Error, ErrorKind, Progress, Result};

use crate::parallel;

/// Columns of a product that one task computes.
const COLUMNS: usize = 64;
/// Rows that pass through a cache at once.
const TILE: usize = 512;

/// Components whose correlations PCA looks at together, as many as a sample of `rows` is worth: an eigendecomposition
/// takes some dim³ steps whatever their number. 16,384 rows have one group up to 809 components, 65,536 up to 1619.
pub(crate) fn group_of(rows: usize, dim: usize) -> usize {
    let whole = 40 * rows >= dim * dim;
    let group = if whole { dim } else { ((40 * rows) as f64).sqrt() as usize };
    group.clamp(1, dim.max(1))
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
///
/// Tasks share the components and each sums all rows in order, so the result does not depend on the number of threads.
fn covariance(rows: &[f32], dim: usize, own: &Range<usize>) -> DMatrix<f64> {
    let narrow: Vec<f32>;
    let (rows, dim) = if own.len() == dim {
        (rows, dim)
    } else {
        narrow = rows.chunks_exact(dim).flat_map(|row| &row[own.clone()]).copied().collect();
        (&narrow[..], own.len())
    };
    // Row-major, which is the column-major transpose.
    let mut out = vec![0f32; dim * dim];
    parallel::for_each(out.chunks_mut(COLUMNS * dim).enumerate(), |(block, out)| {
        let columns = block * COLUMNS..block * COLUMNS + out.len() / dim;
        let mut tile = vec![0f32; TILE * columns.len()];
        for rows in rows.chunks(TILE * dim) {
            let tile = &mut tile[..rows.len() / dim * columns.len()];
            for (row, part) in rows.chunks_exact(dim).zip(tile.chunks_exact_mut(columns.len())) {
                part.copy_from_slice(&row[columns.clone()]);
            }
            add_product_f32(tile, columns.len(), rows, dim, out);
        }
    });
    DMatrix::from_row_iterator(dim, dim, out.iter().map(|&x| f64::from(x)))
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
