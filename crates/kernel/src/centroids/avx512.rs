//! AVX-512 form: one register is the 16 centroids of a group.

use super::scores::{GROUP, Scores, TILE};
use crate::distance::unroll;
use std::arch::x86_64::*;

const HALF: usize = TILE / 2;

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn tile(rows: &[i16], group: &[i16], width: usize, halves: &[i32; GROUP]) -> Scores {
    assert!(width.is_multiple_of(2) && rows.len() >= TILE * width && group.len() >= GROUP * width);
    let zero = _mm512_setzero_si512();
    let mut acc = [[zero; HALF]; 2];
    for i in (0..width).step_by(2) {
        // SAFETY: the group has 32 integers from 16 i on, as i + 2 <= width.
        let pairs = unsafe { _mm512_loadu_si512(group.as_ptr().add(GROUP * i).cast()) };
        unroll!(h < 2, {
            unroll!(r < HALF, {
                // SAFETY: each of the rows has two integers from i on.
                let pair =
                    unsafe { rows.as_ptr().add((h * HALF + r) * width + i).cast::<i32>().read_unaligned() };
                acc[h][r] = _mm512_dpwssd_epi32(acc[h][r], _mm512_set1_epi32(pair), pairs);
            });
        });
    }
    let mut scores = [[0; GROUP]; TILE];
    // SAFETY: the array has 16 integers.
    let half = unsafe { _mm512_loadu_si512(halves.as_ptr().cast()) };
    for (scores, acc) in scores.iter_mut().zip(acc.as_flattened()) {
        // SAFETY: a row of scores has 16 integers.
        unsafe { _mm512_storeu_si512(scores.as_mut_ptr().cast(), _mm512_sub_epi32(half, *acc)) };
    }
    scores
}
