//! AVX2 forms.
//!
//! Every function requires AVX2, which [`crate::isa::best`] checks.

use std::arch::x86_64::*;

use super::Plane;
use super::query::{FOUR, forms};

forms!("avx2");

/// Bytes of a register.
const STEP: usize = 32;

/// Σ of levels times components, of each code.
#[inline]
#[target_feature(enable = "avx2")]
fn several(planes: &[Plane], codes: [&[u8]; FOUR], components: &[i8]) -> [i32; FOUR] {
    let mut total = _mm_setzero_si128();
    for plane in planes {
        let bytes = within(plane, codes);
        let sums = match plane.width {
            8 => of_bytes(bytes, components),
            4 => of_planes::<4, 2>(bytes, components),
            2 => of_planes::<2, 4>(bytes, components),
            _ => of_planes::<1, 8>(bytes, components),
        };
        total = _mm_add_epi32(total, _mm_sll_epi32(sums, _mm_cvtsi32_si128(plane.shift as i32)));
    }
    stored(total)
}

/// As [`several`], of a single plane.
#[inline]
#[target_feature(enable = "avx2")]
fn one<const WIDTH: i32, const GROUPS: usize>(
    plane: &Plane,
    codes: [&[u8]; FOUR],
    components: &[i8],
) -> [i32; FOUR] {
    let bytes = within(plane, codes);
    stored(if WIDTH == 8 {
        of_bytes(bytes, components)
    } else {
        of_planes::<WIDTH, GROUPS>(bytes, components)
    })
}

#[inline]
#[target_feature(enable = "avx2")]
fn stored(sums: __m128i) -> [i32; FOUR] {
    let mut out = [0i32; FOUR];
    // SAFETY: `out` has 16 bytes; alignment is not required.
    unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), sums) };
    out
}

/// The bytes of a plane in each code.
#[inline]
#[target_feature(enable = "avx2")]
fn within<'a>(plane: &Plane, codes: [&'a [u8]; FOUR]) -> [&'a [u8]; FOUR] {
    let range = plane.first..plane.first + plane.bytes;
    [&codes[0][range.clone()], &codes[1][range.clone()], &codes[2][range.clone()], &codes[3][range]]
}

// Arrays of registers are written out: `map` of an array is compiled without AVX2, and passes them through memory.

/// 32 bytes of each plane from byte `at` on, which all have.
#[inline]
#[target_feature(enable = "avx2")]
fn load(planes: [&[u8]; FOUR], at: usize) -> [__m256i; FOUR] {
    let mut loaded = [_mm256_setzero_si256(); FOUR];
    for i in 0..FOUR {
        // SAFETY: the slice has 32 bytes; alignment is not required.
        loaded[i] = unsafe { _mm256_loadu_si256(planes[i][at..at + STEP].as_ptr().cast()) };
    }
    loaded
}

/// The bytes of each plane from `at` on, fewer than 32, and zeros behind them.
#[inline]
#[target_feature(enable = "avx2")]
fn load_last(planes: [&[u8]; FOUR], at: usize) -> [__m256i; FOUR] {
    let mut last = [[0u8; STEP]; FOUR];
    for (last, plane) in last.iter_mut().zip(planes) {
        // A loop, not a copy of unknown length, which is a call.
        last.iter_mut().zip(&plane[at..]).for_each(|(out, &byte)| *out = byte);
    }
    load([&last[0], &last[1], &last[2], &last[3]], 0)
}

/// 32 components from `at` on. Queries end with as much padding as that needs.
#[inline]
#[target_feature(enable = "avx2")]
fn load_components(components: &[i8], at: usize) -> __m256i {
    match components.get(at..).and_then(<[i8]>::first_chunk::<STEP>) {
        // SAFETY: `from` has 32 components; alignment is not required.
        Some(from) => unsafe { _mm256_loadu_si256(from.as_ptr().cast()) },
        None => _mm256_setzero_si256(),
    }
}

/// Planes of `WIDTH` bits in `GROUPS` groups, of four codes.
#[inline]
#[target_feature(enable = "avx2")]
fn of_planes<const WIDTH: i32, const GROUPS: usize>(planes: [&[u8]; FOUR], components: &[i8]) -> __m128i {
    let mut totals = [_mm256_setzero_si256(); FOUR];
    let bytes = planes[0].len();
    let whole = bytes / STEP * STEP;
    for at in (0..whole).step_by(STEP) {
        let sums = step::<WIDTH, GROUPS>(load(planes, at), components, (bytes, at));
        totals = added(totals, sums);
    }
    if whole < bytes {
        let sums = step::<WIDTH, GROUPS>(load_last(planes, whole), components, (bytes, whole));
        totals = added(totals, sums);
    }
    folded(totals)
}

/// 32 bytes of each plane, of `bytes` bytes, from byte `at` on. Products of up to 15 × 127 in pairs, of up to eight
/// groups of fewer bits, do not overflow 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn step<const WIDTH: i32, const GROUPS: usize>(
    mut packed: [__m256i; FOUR],
    components: &[i8],
    (bytes, at): (usize, usize),
) -> [__m256i; FOUR] {
    let mask = _mm256_set1_epi8(((1u32 << WIDTH) - 1) as i8);
    let mut pairs = [_mm256_setzero_si256(); FOUR];
    for group in 0..GROUPS {
        let query = load_components(components, group * bytes + at);
        for i in 0..FOUR {
            let levels = _mm256_and_si256(packed[i], mask);
            pairs[i] = _mm256_add_epi16(pairs[i], _mm256_maddubs_epi16(levels, query));
            packed[i] = _mm256_srli_epi16::<WIDTH>(packed[i]);
        }
    }
    let ones = _mm256_set1_epi16(1);
    for pairs in &mut pairs {
        *pairs = _mm256_madd_epi16(*pairs, ones);
    }
    pairs
}

/// Planes of whole bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn of_bytes(planes: [&[u8]; FOUR], components: &[i8]) -> __m128i {
    let mut totals = [_mm256_setzero_si256(); FOUR];
    let bytes = planes[0].len();
    let whole = bytes / STEP * STEP;
    for at in (0..whole).step_by(STEP) {
        totals = added(totals, byte_step(load(planes, at), components, at));
    }
    if whole < bytes {
        totals = added(totals, byte_step(load_last(planes, whole), components, whole));
    }
    folded(totals)
}

/// 32 bytes of each plane. Their products are too large for 16 bits: both factors are widened first.
#[inline]
#[target_feature(enable = "avx2")]
fn byte_step(mut levels: [__m256i; FOUR], components: &[i8], at: usize) -> [__m256i; FOUR] {
    let query = load_components(components, at);
    let low_query = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(query));
    let high_query = _mm256_cvtepi8_epi16(_mm256_extracti128_si256::<1>(query));
    for levels in &mut levels {
        let low = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(*levels));
        let high = _mm256_cvtepu8_epi16(_mm256_extracti128_si256::<1>(*levels));
        *levels = _mm256_add_epi32(_mm256_madd_epi16(low, low_query), _mm256_madd_epi16(high, high_query));
    }
    levels
}

#[inline]
#[target_feature(enable = "avx2")]
fn added(mut totals: [__m256i; FOUR], sums: [__m256i; FOUR]) -> [__m256i; FOUR] {
    for i in 0..FOUR {
        totals[i] = _mm256_add_epi32(totals[i], sums[i]);
    }
    totals
}

/// The sum of the lanes of each register.
#[inline]
#[target_feature(enable = "avx2")]
fn folded(totals: [__m256i; FOUR]) -> __m128i {
    let pairs = [_mm256_hadd_epi32(totals[0], totals[1]), _mm256_hadd_epi32(totals[2], totals[3])];
    let fours = _mm256_hadd_epi32(pairs[0], pairs[1]);
    _mm_add_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256::<1>(fours))
}
