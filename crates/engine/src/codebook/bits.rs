//! Makes the coder of codes of bits: centroids, and where it pays the directions in which residuals vary.

use stratann_kernel::bits::{Allocation, BITS_MAX, BitCoder, CENTROIDS_MAX, Layout};
use stratann_storage::{Error, Progress, Result};

use super::principal_axes::{group_of, principal_axes};
use super::{DECOMPOSITION_NS, MULTIPLY_NS, PAIR_NS, subtract_nearest};
use crate::clusterings::kmeans::{kmeans, mean};

/// Rows that centroids and directions are found with, at most, and rows of each centroid at least.
pub const SAMPLE_ROWS: usize = 16_384;
const ROWS_PER_CENTROID: usize = 24;
/// Rows from which on their directions are worth finding.
const ROWS_LEAST: usize = 64;
/// Rounds of k-means for the centroids: only their places count, not the last bit of them.
const ROUNDS: usize = 8;
/// Bits of a dimension from which on directions are not worth the product with a matrix that each query pays for them.
const EVEN_BITS: usize = 4;
/// Components of all centroids then: each query is compared with all of them, and fine codes gain little.
const EVEN_CENTROIDS_COMPONENTS: usize = 24_576;
/// Most dimensions whose directions the smallest sample of a budget finds at once, and most that any sample does
/// ([`group_of`]).
const WHOLE_DIM: usize = 404;
const GROUP_MAX: usize = 809;
/// Bytes of the smallest code.
const LEAST_BYTES: usize = 6;

/// The least and the most bytes of codes of `dim` components.
pub(crate) fn code_bytes(dim: usize) -> (usize, usize) {
    let used = |bytes| Layout::within(dim, bytes, true).map_or(0, |layout| layout.code_bytes());
    (used(LEAST_BYTES), used(dim + 2 * LEAST_BYTES))
}

/// Bytes for each row of the sample: the row, what k-means notes of it, and where its directions are found in groups of
/// components, those of a group and its share of the matrices, which are as large as the sample is.
pub(crate) fn row_bytes(dim: usize) -> u64 {
    let grouped = if dim > WHOLE_DIM { 4 * dim.min(GROUP_MAX) + 20 * 40 } else { 0 };
    (4 * dim + grouped + 64) as u64
}

/// Bytes independent of the sample: centroids as they are found and as they are placed, products of a tile of rows with
/// them, directions and the basis that they become, and where they are found at once, matrices of f64.
pub(crate) fn fixed_bytes(dim: usize) -> u64 {
    let matrices = if dim > WHOLE_DIM { 0 } else { 20 * dim * dim };
    (4 * CENTROIDS_MAX * dim * 4 + 4 * dim * (dim + dim.min(GROUP_MAX)) + matrices) as u64
}

/// Seconds on a current machine for a sample of these rows of `dim` components.
pub(crate) fn seconds(rows: f64, dim: f64, threads: f64) -> f64 {
    let rows = rows.min(SAMPLE_ROWS as f64);
    let pairs = rows * CENTROIDS_MAX as f64 * ROUNDS as f64 * (PAIR_NS + dim * MULTIPLY_NS);
    let group = (group_of(rows as usize, dim as usize) as f64).min(dim);
    let products = rows * dim * group * MULTIPLY_NS;
    ((pairs + products) / threads + dim * group * group * DECOMPOSITION_NS) * 1e-9
}

/// Makes the coder of codes of at most `code_bytes` bytes for vectors like those of `sample` (n × `dim`, row-major,
/// f32). A small sample has no centroids but its mean, and no directions.
///
/// `progress` advances by 100 in all.
///
/// # Errors
/// Fewer bytes than a code needs; an interruption.
pub fn bit_coder(
    mut sample: Vec<f32>,
    dim: usize,
    ip: bool,
    (code_bytes, seed): (usize, u64),
    progress: &dyn Progress,
) -> Result<BitCoder> {
    let rows = sample.len() / dim.max(1);
    let is_fine = |layout: &Layout| layout.segments().iter().all(|segment| segment.bits >= EVEN_BITS);
    let is_even = Layout::within(dim, code_bytes, true).is_some_and(|layout| is_fine(&layout));
    let most = if is_even { (EVEN_CENTROIDS_COMPONENTS / dim).min(CENTROIDS_MAX) } else { CENTROIDS_MAX };
    let count = (rows / ROWS_PER_CENTROID).min(most);
    let numbered = count > 1;
    let layout = Layout::within(dim, code_bytes, numbered).ok_or_else(|| {
        Error::bad_input(format!("--code-bytes {code_bytes} is too small for {dim} dimensions"))
    })?;
    let mut centre = vec![0f32; dim];
    mean(sample.chunks_exact(dim), &mut centre);
    let centroids = if numbered { kmeans(&sample, dim, count, ROUNDS, seed, progress)? } else { Vec::new() };
    progress.advance(50);
    if is_even || rows < ROWS_LEAST || dim <= BITS_MAX {
        progress.advance(50);
        return Ok(BitCoder::new(layout, seed, &centre, &centroids, ip));
    }
    subtract_nearest(&mut sample, dim, if numbered { &centroids } else { &centre }, progress)?;
    let found = directions(&sample, dim, (code_bytes, numbered), progress)?;
    progress.advance(50);
    Ok(match found {
        Some((allocation, basis)) => BitCoder::of_basis(&allocation, seed, basis, (&centre, &centroids), ip),
        None => BitCoder::new(layout, seed, &centre, &centroids, ip),
    })
}

/// Makes the coder of residuals like those of `sample` (n × `dim`, row-major, f32), whose codes have exactly as many
/// bytes as those of `layout`.
///
/// # Errors
/// An interruption.
pub(crate) fn residual_coder(
    sample: &[f32],
    layout: Layout,
    seed: u64,
    progress: &dyn Progress,
) -> Result<BitCoder> {
    let (dim, bytes) = (layout.dim(), layout.code_bytes());
    let is_worth = sample.len() >= ROWS_LEAST * dim && dim > BITS_MAX;
    let found = if is_worth { directions(sample, dim, (bytes, false), progress)? } else { None };
    progress.advance(100);
    Ok(match found {
        Some((mut allocation, basis)) => {
            allocation.layout = allocation.layout.padded(bytes);
            BitCoder::of_residuals_by(&allocation, seed, basis)
        }
        None => BitCoder::of_residuals(layout, seed),
    })
}

/// The directions in which `residuals` vary, those in which they vary most first, as a basis, and the bits that each of
/// them gets of a code of so many bytes, which may have a number.
fn directions(
    residuals: &[f32],
    dim: usize,
    (code_bytes, numbered): (usize, bool),
    progress: &dyn Progress,
) -> Result<Option<(Allocation, Vec<f32>)>> {
    let group = group_of(residuals.len() / dim, dim);
    let axes = principal_axes(residuals, dim, group, progress)?;
    let variances: Vec<f64> = axes.iter().map(|axis| axis.variance.max(0.0)).collect();
    let mut basis = vec![0f32; dim * dim];
    for (row, axis) in basis.chunks_exact_mut(dim).zip(&axes) {
        row[axis.first..axis.first + axis.components.len()].copy_from_slice(&axis.components);
    }
    let is_sound = basis.iter().all(|x| x.is_finite());
    Ok(Allocation::of(&variances, code_bytes, numbered).filter(|_| is_sound).map(|found| (found, basis)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_of_the_largest_and_the_smallest_sample() {
        let group = |rows: usize| group_of(rows, 4096);
        assert_eq!(group(SAMPLE_ROWS), GROUP_MAX);
        // The smallest sample of a plan.
        assert_eq!(group(4096), WHOLE_DIM);
    }
}
