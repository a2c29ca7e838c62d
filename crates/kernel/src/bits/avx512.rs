//! AVX-512 forms with VNNI: products of four unsigned and signed bytes are added in 32 bits.
//!
//! Every function requires AVX-512 F, BW, VL and VNNI, which [`crate::isa::best`] checks.

use std::arch::x86_64::*;

use super::layout::Plane;
use super::query::{FOUR, form};
use super::registers::in_registers;

in_registers!("avx512f,avx512bw,avx512vl,avx512vnni");

/// Adds products of the lowest `WIDTH` bits of each byte and components, in 32 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn multiplied<const WIDTH: i32>(sums: __m256i, packed: __m256i, query: __m256i) -> __m256i {
    let mask = _mm256_set1_epi8(((1u32 << WIDTH) - 1) as i8);
    let levels = if WIDTH == 8 { packed } else { _mm256_and_si256(packed, mask) };
    _mm256_dpbusd_epi32(sums, levels, query)
}

/// Sums that have 32 bits already.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn widened<const WIDTH: i32>(sums: __m256i) -> __m256i {
    sums
}
