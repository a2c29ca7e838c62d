//! AVX2 forms.
//!
//! Every function requires AVX2, which [`crate::isa::best`] checks.

use std::arch::x86_64::*;

use super::layout::Plane;
use super::query::{FOUR, forms};

forms!("avx2");

/// Bytes of a register: of one code, where a plane has as many.
const WIDE: usize = 32;
/// Bytes of each of four codes that share a register: at the end of a plane.
const NARROW: usize = 8;

/// Sums of four codes in lanes: of wide steps in a register for each code, of narrow ones in a quarter of one.
#[derive(Clone, Copy)]
struct Lanes {
    wide: [__m256i; FOUR],
    narrow: __m256i,
}

/// Σ of levels times components, of each code.
#[inline]
#[target_feature(enable = "avx2")]
fn several(planes: &[Plane], codes: [&[u8]; FOUR], components: &[i8]) -> [i32; FOUR] {
    let mut total = none();
    for plane in planes {
        let lanes = match plane.width {
            8 => of_bytes(plane, codes, components),
            4 => of_plane::<4, 2>(plane, codes, components),
            2 => of_plane::<2, 4>(plane, codes, components),
            _ => of_plane::<1, 8>(plane, codes, components),
        };
        let shift = _mm_cvtsi32_si128(plane.shift as i32);
        for i in 0..FOUR {
            total.wide[i] = _mm256_add_epi32(total.wide[i], _mm256_sll_epi32(lanes.wide[i], shift));
        }
        total.narrow = _mm256_add_epi32(total.narrow, _mm256_sll_epi32(lanes.narrow, shift));
    }
    folded(total)
}

/// As [`several`], of a single plane without a shift.
#[inline]
#[target_feature(enable = "avx2")]
fn one<const WIDTH: i32, const GROUPS: usize>(
    plane: &Plane,
    codes: [&[u8]; FOUR],
    components: &[i8],
) -> [i32; FOUR] {
    folded(if WIDTH == 8 {
        of_bytes(plane, codes, components)
    } else {
        of_plane::<WIDTH, GROUPS>(plane, codes, components)
    })
}

#[inline]
#[target_feature(enable = "avx2")]
fn none() -> Lanes {
    let zero = _mm256_setzero_si256();
    Lanes { wide: [zero; FOUR], narrow: zero }
}

// Arrays of registers are written out: `map` of an array is compiled without AVX2, and passes them through memory.

/// 32 bytes of each code from byte `at` on, which all have.
#[inline]
#[target_feature(enable = "avx2")]
fn load(codes: [&[u8]; FOUR], at: usize) -> [__m256i; FOUR] {
    let mut loaded = [_mm256_setzero_si256(); FOUR];
    for i in 0..FOUR {
        // SAFETY: the slice has 32 bytes; alignment is not required.
        loaded[i] = unsafe { _mm256_loadu_si256(codes[i][at..at + WIDE].as_ptr().cast()) };
    }
    loaded
}

/// The last `count` bytes, up to eight, of the first `end` of each code, and zeros behind them.
#[inline]
#[target_feature(enable = "avx2")]
fn load_narrow(codes: [&[u8]; FOUR], end: usize, count: usize) -> __m256i {
    let mut words = [0u64; FOUR];
    for i in 0..FOUR {
        // What lies before these bytes is shifted out.
        let word = codes[i][..end].last_chunk::<NARROW>().map(|last| u64::from_le_bytes(*last));
        words[i] = word.map_or_else(|| short(&codes[i][end - count..end]), |w| w >> (8 * (NARROW - count)));
    }
    _mm256_set_epi64x(words[3] as i64, words[2] as i64, words[1] as i64, words[0] as i64)
}

/// Fewer than eight bytes at the beginning of a code.
#[cold]
fn short(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// 32 components from `at` on. Queries end with as much padding as that needs.
#[inline]
#[target_feature(enable = "avx2")]
fn load_components(components: &[i8], at: usize) -> __m256i {
    match components.get(at..).and_then(<[i8]>::first_chunk::<WIDE>) {
        // SAFETY: `from` has 32 components; alignment is not required.
        Some(from) => unsafe { _mm256_loadu_si256(from.as_ptr().cast()) },
        None => _mm256_setzero_si256(),
    }
}

/// Eight components from `at` on, four times.
#[inline]
#[target_feature(enable = "avx2")]
fn load_narrow_components(components: &[i8], at: usize) -> __m256i {
    let from = components.get(at..).and_then(<[i8]>::first_chunk::<NARROW>);
    _mm256_set1_epi64x(from.map_or(0, |from| i64::from_le_bytes(bytemuck::cast(*from))))
}

/// A plane of `WIDTH` bits in `GROUPS` groups.
#[inline]
#[target_feature(enable = "avx2")]
fn of_plane<const WIDTH: i32, const GROUPS: usize>(
    plane: &Plane,
    codes: [&[u8]; FOUR],
    components: &[i8],
) -> Lanes {
    let mut lanes = none();
    let ones = _mm256_set1_epi16(1);
    let mask = _mm256_set1_epi8(((1u32 << WIDTH) - 1) as i8);
    let mut at = 0;
    // Products of up to 15 × 127 in pairs, of up to eight groups of fewer bits, do not overflow 16 bits.
    while at + WIDE <= plane.bytes {
        let mut packed = load(codes, plane.first + at);
        let mut pairs = [_mm256_setzero_si256(); FOUR];
        for group in 0..GROUPS {
            let query = load_components(components, plane.start + group * plane.bytes + at);
            for i in 0..FOUR {
                let levels = _mm256_and_si256(packed[i], mask);
                pairs[i] = _mm256_add_epi16(pairs[i], _mm256_maddubs_epi16(levels, query));
                packed[i] = _mm256_srli_epi16::<WIDTH>(packed[i]);
            }
        }
        for i in 0..FOUR {
            lanes.wide[i] = _mm256_add_epi32(lanes.wide[i], _mm256_madd_epi16(pairs[i], ones));
        }
        at += WIDE;
    }
    while at < plane.bytes {
        let count = NARROW.min(plane.bytes - at);
        let mut packed = load_narrow(codes, plane.first + at + count, count);
        let mut pairs = _mm256_setzero_si256();
        for group in 0..GROUPS {
            let query = load_narrow_components(components, plane.start + group * plane.bytes + at);
            pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(_mm256_and_si256(packed, mask), query));
            packed = _mm256_srli_epi16::<WIDTH>(packed);
        }
        lanes.narrow = _mm256_add_epi32(lanes.narrow, _mm256_madd_epi16(pairs, ones));
        at += NARROW;
    }
    lanes
}

/// A plane of whole bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn of_bytes(plane: &Plane, codes: [&[u8]; FOUR], components: &[i8]) -> Lanes {
    let mut lanes = none();
    let mut at = 0;
    while at + WIDE <= plane.bytes {
        let levels = load(codes, plane.first + at);
        let query = load_components(components, plane.start + at);
        for i in 0..FOUR {
            lanes.wide[i] = _mm256_add_epi32(lanes.wide[i], of_halves(levels[i], query));
        }
        at += WIDE;
    }
    while at < plane.bytes {
        let count = NARROW.min(plane.bytes - at);
        let levels = load_narrow(codes, plane.first + at + count, count);
        let query = load_narrow_components(components, plane.start + at);
        lanes.narrow = _mm256_add_epi32(lanes.narrow, of_halves(levels, query));
        at += NARROW;
    }
    lanes
}

/// Products of bytes and components. In pairs they would not fit 16 bits; those of the halves of bytes do.
#[inline]
#[target_feature(enable = "avx2")]
fn of_halves(levels: __m256i, query: __m256i) -> __m256i {
    let mask = _mm256_set1_epi8(15);
    let low = _mm256_maddubs_epi16(_mm256_and_si256(levels, mask), query);
    let high = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16::<4>(levels), mask), query);
    let (ones, sixteens) = (_mm256_set1_epi16(1), _mm256_set1_epi16(16));
    _mm256_add_epi32(_mm256_madd_epi16(low, ones), _mm256_madd_epi16(high, sixteens))
}

/// The sum of the lanes of each code.
#[inline]
#[target_feature(enable = "avx2")]
fn folded(lanes: Lanes) -> [i32; FOUR] {
    let Lanes { wide, narrow } = lanes;
    let pairs = [_mm256_hadd_epi32(wide[0], wide[1]), _mm256_hadd_epi32(wide[2], wide[3])];
    let fours = _mm256_hadd_epi32(pairs[0], pairs[1]);
    let wide = _mm_add_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256::<1>(fours));
    let twos = _mm256_hadd_epi32(narrow, narrow);
    let narrow = _mm_unpacklo_epi64(_mm256_castsi256_si128(twos), _mm256_extracti128_si256::<1>(twos));
    let mut out = [0i32; FOUR];
    // SAFETY: `out` has 16 bytes; alignment is not required.
    unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), _mm_add_epi32(wide, narrow)) };
    out
}
