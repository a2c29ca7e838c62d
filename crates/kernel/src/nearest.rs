//! The nearest of a few vectors.

use crate::distance::block_l2_f32;

/// Most vectors among which the nearest is found.
pub const NEAREST_MAX: usize = 256;

/// Returns the nearest of the first 256 rows of `rows` (each `width` floats) to `x`, and its squared distance. Ties go
/// to the smaller number.
pub fn nearest(x: &[f32], rows: &[f32], width: usize) -> (usize, f32) {
    let mut distances = [f32::INFINITY; NEAREST_MAX];
    let rows = &rows[..rows.len().min(NEAREST_MAX * width)];
    block_l2_f32(x, rows, width, &mut distances);
    let (k, distance) = smallest(&distances);
    (k.min((rows.len() / width).saturating_sub(1)), distance)
}

/// Returns the first of the smallest of 256 squared distances, and that distance. NaN is larger than any number.
#[inline(always)]
pub(crate) fn smallest(distances: &[f32; NEAREST_MAX]) -> (usize, f32) {
    // Non-negative numbers have the order of their bits. Integers have a minimum in any order, so the compiler
    // vectorises it.
    let mut least = u32::MAX;
    for d in distances {
        least = least.min(d.to_bits());
    }
    let mut first = NEAREST_MAX as u32 - 1;
    for (k, d) in distances.iter().enumerate() {
        first = first.min(if d.to_bits() == least { k as u32 } else { u32::MAX });
    }
    (first as usize, f32::from_bits(least))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_nearest_is_the_first_of_the_smallest_distance(
            rows in prop::collection::vec(-3i8..3, 1..800), x in prop::collection::vec(-3i8..3, 3),
        ) {
            let floats = |from: &[i8]| from.iter().map(|&x| f32::from(x)).collect::<Vec<_>>();
            let rows = floats(&rows[..rows.len() / 3 * 3]);
            prop_assume!(!rows.is_empty());
            let x = floats(&x);
            let squared = |row: &[f32]| row.iter().zip(&x).map(|(a, b)| (a - b) * (a - b)).sum::<f32>();
            let distances: Vec<f32> = rows.chunks(3).take(NEAREST_MAX).map(squared).collect();
            let least = distances.iter().copied().fold(f32::INFINITY, f32::min);
            let first = distances.iter().position(|&d| d == least).unwrap();
            prop_assert_eq!(nearest(&x, &rows, 3), (first, least));
        }
    }
}
