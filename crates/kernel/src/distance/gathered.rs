//! One query against rows that lie anywhere among others.

use super::forms::{self, STRIP};

/// Squared Euclidean distances of unsigned bytes from `query` to the rows with these numbers, exact.
///
/// `rows` has as many bytes a row as `query` has. `out` is cleared, then gets one distance for each number, as f32.
///
/// # Panics
/// If a row is not in `rows`.
pub fn l2_u8_gathered(query: &[u8], rows: &[u8], numbers: &[u32], out: &mut Vec<f32>) {
    let row = |number: u32| &rows[number as usize * query.len()..][..query.len()];
    let kernels = forms::current();
    out.clear();
    let strips = numbers.chunks_exact(STRIP);
    let rest = strips.remainder();
    for numbers in strips {
        let rows = std::array::from_fn(|at| row(numbers[at]));
        // SAFETY: a table in use is one that this machine can run.
        out.extend(unsafe { (kernels.l2_u8_strip)(query, rows) }.map(|distance| distance as f32));
    }
    // SAFETY: as above.
    out.extend(rest.iter().map(|&number| unsafe { (kernels.l2_u8)(query, row(number)) } as f32));
}
