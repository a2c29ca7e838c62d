//! AVX2 forms.
//!
//! Every function requires AVX2, which [`crate::isa::best`] checks.

use std::arch::x86_64::*;

use super::layout::Plane;
use super::query::{FOUR, form};
use super::registers::in_registers;

in_registers!("avx2");

/// Adds products of the lowest `WIDTH` bits of each byte and components: of fewer than eight bits in pairs of 16 bits,
/// which up to eight groups of 1 bit, or two of 15 × 127, do not exceed. Those of bytes are in 32 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn multiplied<const WIDTH: i32>(sums: __m256i, packed: __m256i, query: __m256i) -> __m256i {
    if WIDTH == 8 {
        return _mm256_add_epi32(sums, of_bytes(packed, query));
    }
    let mask = _mm256_set1_epi8(((1u32 << WIDTH) - 1) as i8);
    _mm256_add_epi16(sums, _mm256_maddubs_epi16(_mm256_and_si256(packed, mask), query))
}

/// Sums of pairs in 32 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn widened<const WIDTH: i32>(pairs: __m256i) -> __m256i {
    if WIDTH == 8 { pairs } else { _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)) }
}

/// Products of bytes and components. In pairs they would not fit 16 bits; those of the halves of bytes do.
#[inline]
#[target_feature(enable = "avx2")]
fn of_bytes(levels: __m256i, query: __m256i) -> __m256i {
    let mask = _mm256_set1_epi8(15);
    let low = _mm256_maddubs_epi16(_mm256_and_si256(levels, mask), query);
    let high = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16::<4>(levels), mask), query);
    let (ones, sixteens) = (_mm256_set1_epi16(1), _mm256_set1_epi16(16));
    _mm256_add_epi32(_mm256_madd_epi16(low, ones), _mm256_madd_epi16(high, sixteens))
}
