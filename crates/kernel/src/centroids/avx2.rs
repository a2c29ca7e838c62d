//! AVX2 form: two registers are the 16 centroids of a group, and half a tile of rows stays in registers.

use super::scores::{GROUP, Scores, TILE};
use crate::distance::unroll;
use std::arch::x86_64::*;

const ROWS: usize = 4;

#[target_feature(enable = "avx2")]
pub(super) fn tile(rows: &[i16], group: &[i16], width: usize, halves: &[i32; GROUP]) -> Scores {
    assert!(width.is_multiple_of(2) && rows.len() >= TILE * width && group.len() >= GROUP * width);
    let mut scores = [[0; GROUP]; TILE];
    for (rows, scores) in rows.chunks_exact(ROWS * width).zip(scores.chunks_exact_mut(ROWS)) {
        let mut acc = [[_mm256_setzero_si256(); 2]; ROWS];
        for i in (0..width).step_by(2) {
            // SAFETY: the group has 32 integers from 16 i on, as i + 2 <= width.
            let (low, high) = unsafe {
                let pairs: *const __m256i = group.as_ptr().add(GROUP * i).cast();
                (_mm256_loadu_si256(pairs), _mm256_loadu_si256(pairs.add(1)))
            };
            unroll!(r < ROWS, {
                // SAFETY: each of the rows has two integers from i on.
                let pair = unsafe { rows.as_ptr().add(r * width + i).cast::<i32>().read_unaligned() };
                let x = _mm256_set1_epi32(pair);
                acc[r][0] = _mm256_add_epi32(acc[r][0], _mm256_madd_epi16(x, low));
                acc[r][1] = _mm256_add_epi32(acc[r][1], _mm256_madd_epi16(x, high));
            });
        }
        unroll!(r < ROWS, {
            unroll!(h < 2, {
                // SAFETY: both arrays have 16 integers.
                unsafe {
                    let half = _mm256_loadu_si256(halves.as_ptr().add(8 * h).cast());
                    let score = _mm256_sub_epi32(half, acc[r][h]);
                    _mm256_storeu_si256(scores[r].as_mut_ptr().add(8 * h).cast(), score);
                }
            });
        });
    }
    scores
}
