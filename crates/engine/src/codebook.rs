//! Codes of an index: what prepares them, and the encoding of many rows.

pub mod bits;
pub(crate) mod principal_axes;

use stratann_kernel::bits::BitCoder;
use stratann_kernel::coder::Coder;
use stratann_storage::{Error, Progress, Result};

use crate::clusterings::kmeans::assign_until;
use crate::parallel;

/// Checks the bytes of a code that a user gave for vectors of `dim` components.
///
/// # Errors
/// A number out of range.
pub(crate) fn check_code_bytes(given: Option<usize>, dim: usize) -> Result<()> {
    let (least, most) = bits::code_bytes(dim);
    match given {
        Some(bytes) if bytes < least || bytes > most => Err(Error::bad_input(format!(
            "--code-bytes is {bytes}; use {least} to {most} for {dim} dimensions"
        ))),
        _ => Ok(()),
    }
}

/// Bytes of a query of `dim` components that is prepared for codes of bits: a byte for each component, the components
/// of which terms are made, and terms of 256 centroids.
pub(crate) fn bit_query_bytes(dim: u64) -> u64 {
    5 * dim + (2 << 10)
}

/// Rows that are encoded at once, and their bytes as f32.
const TILE: usize = 256;
const TILE_BYTES: usize = 512 << 10;

/// Nanoseconds on a current processor: of a multiplication within a product of matrices, of a pair of vectors beside
/// its multiplications, and of a decomposition, by the cube of its components, on one thread.
pub(crate) const MULTIPLY_NS: f64 = 0.027;
pub(crate) const PAIR_NS: f64 = 2.8;
const DECOMPOSITION_NS: f64 = 3.5;

fn tile(dim: usize) -> usize {
    (TILE_BYTES / (dim * 4)).clamp(1, TILE)
}

/// Subtracts from each row the nearest of `centroids`.
///
/// # Errors
/// An interruption.
fn subtract_nearest(rows: &mut [f32], dim: usize, centroids: &[f32], progress: &dyn Progress) -> Result<()> {
    let numbers = assign_until(rows, dim, centroids, progress)?;
    let tile = tile(dim);
    parallel::for_each(rows.chunks_mut(tile * dim).zip(numbers.chunks(tile)), |(rows, numbers)| {
        for (row, &c) in rows.chunks_exact_mut(dim).zip(numbers) {
            row.iter_mut().zip(&centroids[c as usize * dim..]).for_each(|(x, c)| *x -= c);
        }
    });
    Ok(())
}

/// Encodes `rows` (n × `dim`, row-major, f32, not rotated) into `out` (n × `code_bytes`), in parallel.
///
/// The code of a row depends neither on other rows nor on the machine. Surplus rows or codes are not changed.
pub fn encode_rows(coder: &BitCoder, rows: &[f32], out: &mut [u8]) {
    let (dim, size) = (coder.layout().dim(), coder.layout().code_bytes());
    if dim == 0 || size == 0 {
        return;
    }
    let tiles = out.chunks_mut(tile(dim) * size).zip(rows.chunks(tile(dim) * dim));
    parallel::for_each(tiles, |(codes, rows)| {
        let mut placed = rows.to_vec();
        coder.place(&mut placed);
        for (placed, code) in placed.chunks_exact_mut(dim).zip(codes.chunks_exact_mut(size)) {
            coder.encode(placed, code);
        }
    });
}

/// The root mean square length of vectors with these codes.
pub(crate) fn root_mean_square_norm<'a>(coder: &Coder, codes: impl Iterator<Item = &'a [u8]>) -> f32 {
    let mut decoded = vec![0f32; coder.dim()];
    let (mut sum, mut count) = (0f64, 0u32);
    for code in codes {
        coder.decode_rotated(code, &mut decoded);
        sum += decoded.iter().map(|x| f64::from(x * x)).sum::<f64>();
        count += 1;
    }
    (sum / f64::from(count.max(1))).sqrt() as f32
}
