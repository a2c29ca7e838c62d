//! Products of matrices, with the same bits on every instruction set.
//!
//! An element of a product is a sum in the order of the rows, of fused multiply-adds, in runs of [`RUN`] rows that
//! are added up. The loops are plain Rust that the compiler vectorises, once for each instruction set.

use crate::isa::for_each_isa;

/// Rows of one run of a sum.
const RUN: usize = 256;
/// Rows of a tile of the result.
const TILE: usize = 6;

/// Columns of a tile of the result.
const LANES: usize = 16;

for_each_isa! {
    /// Adds the product of two matrices.
    ///
    /// `out += AᵀB` for `a` (rows × `m`), `b` (rows × `n`) and `out` (`m` × `n`), all row-major. Rows that only one of
    /// them has, and rows of `out` that are missing, are left out.
    pub fn add_product_f32(a: &[f32], m: usize, b: &[f32], n: usize, out: &mut [f32]) = product_body
}

#[inline(always)]
fn product_body(a: &[f32], m: usize, b: &[f32], n: usize, out: &mut [f32]) {
    if m == 0 || n == 0 {
        return;
    }
    let mut packed_a = vec![[0.0; TILE]; m.div_ceil(TILE) * RUN];
    let mut packed_b = [[0.0; LANES]; RUN];
    for (a, b) in a.chunks(RUN * m).zip(b.chunks(RUN * n)) {
        let rows = (a.len() / m).min(b.len() / n);
        for (i, tile) in packed_a.chunks_exact_mut(RUN).enumerate() {
            let width = TILE.min(m - i * TILE);
            for (packed, row) in tile.iter_mut().zip(a.chunks_exact(m)).take(rows) {
                packed[..width].copy_from_slice(&row[i * TILE..][..width]);
            }
        }
        for j in (0..n).step_by(LANES) {
            let width = LANES.min(n - j);
            for (packed, row) in packed_b.iter_mut().zip(b.chunks_exact(n)).take(rows) {
                packed[..width].copy_from_slice(&row[j..][..width]);
            }
            for (tile, out) in packed_a.chunks_exact(RUN).zip(out.chunks_mut(TILE * n)) {
                let mut sums = [[0.0; LANES]; TILE];
                for (a, b) in tile.iter().zip(&packed_b).take(rows) {
                    for (sums, &a) in sums.iter_mut().zip(a) {
                        for (sum, &b) in sums.iter_mut().zip(b) {
                            *sum = f32::mul_add(a, b, *sum);
                        }
                    }
                }
                for (out, sums) in out.chunks_exact_mut(n).zip(&sums) {
                    out[j..j + width].iter_mut().zip(sums).for_each(|(o, s)| *o += s);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(count: usize, seed: u32) -> Vec<f32> {
        let next = |x: u32| x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let numbers = std::iter::successors(Some(seed), |&x| Some(next(x)));
        numbers.skip(1).take(count).map(|x| (x >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
    }

    /// The definition, element by element.
    fn naive(a: &[f64], m: usize, b: &[f64], n: usize, out: &mut [f64]) {
        for (i, out) in out.chunks_exact_mut(n).enumerate() {
            for (j, out) in out.iter_mut().enumerate() {
                for (a, b) in a.chunks(RUN * m).zip(b.chunks(RUN * n)) {
                    let rows = a.chunks_exact(m).zip(b.chunks_exact(n));
                    *out += rows.fold(0.0, |sum, (a, b)| f64::mul_add(a[i], b[j], sum));
                }
            }
        }
    }

    #[test]
    fn every_element_is_the_sum_of_its_definition() {
        for (rows, m, n) in [(0, 3, 3), (1, 1, 1), (5, 7, 17), (255, 6, 16), (257, 13, 8), (600, 20, 33)] {
            let (a, b) = (values(rows * m, 1), values(rows * n, 2));
            let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
            let mut expected = vec![0.5; m * n];
            naive(&wide(&a), m, &wide(&b), n, &mut expected);
            let mut plain = vec![0.5; m * n];
            product_body(&a, m, &b, n, &mut plain);
            let mut found = vec![0.5; m * n];
            add_product_f32(&a, m, &b, n, &mut found);
            assert_eq!(found, plain, "{rows} {m} {n}");
            let near = |(&f, &e): (&f32, &f64)| (f64::from(f) - e).abs() < 1e-3;
            assert!(found.iter().zip(&expected).all(near), "{rows} {m} {n}");
        }
    }
}
