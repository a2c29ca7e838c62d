//! Sums of table entries that the bytes of a code select: the hottest loop of a search. Sums are integers, so all forms
//! agree.

use super::CENTROIDS;

/// Σ over the bytes of `code` of the entry that the byte selects among its 256. `entries` has 256 for each byte, and
/// one more, which a 4-byte gather of the last entry may touch; 0 when it is shorter.
#[inline(always)]
pub(super) fn scalar(entries: &[u16], code: &[u8]) -> u32 {
    if !fits(entries, code) {
        return 0;
    }
    const STEP: usize = 8;
    let (words, rest) = code.as_chunks::<STEP>();
    let (blocks, _) = entries.as_chunks::<{ STEP * CENTROIDS }>();
    let mut sums = [0u32; 4];
    for (word, block) in words.iter().zip(blocks) {
        for i in 0..STEP {
            sums[i % 4] += u32::from(block[i * CENTROIDS + usize::from(word[i])]);
        }
    }
    let tail = entries[words.len() * STEP * CENTROIDS..].chunks_exact(CENTROIDS);
    let tail: u32 = rest.iter().zip(tail).map(|(&byte, block)| u32::from(block[usize::from(byte)])).sum();
    tail + sums.iter().sum::<u32>()
}

#[inline(always)]
fn fits(entries: &[u16], code: &[u8]) -> bool {
    entries.len() > code.len() * CENTROIDS
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use super::{CENTROIDS, fits, scalar};
    use std::arch::x86_64::*;

    /// [`scalar`], 8 entries at a time.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(in super::super) fn avx2(entries: &[u16], code: &[u8]) -> u32 {
        if !fits(entries, code) {
            return 0;
        }
        const STEP: usize = 8;
        const C: i32 = CENTROIDS as i32;
        let first = _mm256_setr_epi32(0, C, 2 * C, 3 * C, 4 * C, 5 * C, 6 * C, 7 * C);
        let low = _mm256_set1_epi32(0xffff);
        let mut sums = _mm256_setzero_si256();
        let (words, rest) = code.as_chunks::<STEP>();
        for (i, word) in words.iter().enumerate() {
            let bytes = _mm256_cvtepu8_epi32(_mm_set_epi64x(0, i64::from_le_bytes(*word)));
            let at = _mm256_add_epi32(bytes, first);
            // SAFETY: `fits`: all 8 bytes choose entries inside the table; the 2 bytes after an entry are inside as
            // well.
            let pairs =
                unsafe { _mm256_i32gather_epi32::<2>(entries.as_ptr().add(i * STEP * CENTROIDS).cast(), at) };
            sums = _mm256_add_epi32(sums, _mm256_and_si256(pairs, low));
        }
        let half = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
        let quarter = _mm_add_epi32(half, _mm_shuffle_epi32::<0b00_00_11_10>(half));
        let whole = _mm_add_epi32(quarter, _mm_shuffle_epi32::<0b00_00_00_01>(quarter));
        _mm_cvtsi128_si32(whole) as u32 + scalar(&entries[words.len() * STEP * CENTROIDS..], rest)
    }

    /// [`scalar`], 16 entries at a time.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(in super::super) fn avx512(entries: &[u16], code: &[u8]) -> u32 {
        if !fits(entries, code) {
            return 0;
        }
        const STEP: usize = 16;
        const C: i32 = CENTROIDS as i32;
        let steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let first = _mm512_mullo_epi32(steps, _mm512_set1_epi32(C));
        let low = _mm512_set1_epi32(0xffff);
        let mut sums = _mm512_setzero_si512();
        for (i, chunk) in code.chunks(STEP).enumerate() {
            let mask = (u32::MAX >> (32 - chunk.len())) as __mmask16;
            // SAFETY: `mask` has as many bits as `chunk` has bytes. `fits`: every byte chooses an entry inside the
            // table, and the 2 bytes after an entry are inside as well.
            let pairs = unsafe {
                let bytes = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, chunk.as_ptr().cast()));
                let base = entries.as_ptr().add(i * STEP * CENTROIDS).cast();
                let at = _mm512_add_epi32(bytes, first);
                _mm512_mask_i32gather_epi32::<2>(_mm512_setzero_si512(), mask, at, base)
            };
            sums = _mm512_add_epi32(sums, _mm512_and_si512(pairs, low));
        }
        _mm512_reduce_add_epi32(sums) as u32
    }
}
