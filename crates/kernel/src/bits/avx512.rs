//! AVX-512 forms with VNNI: products of four unsigned and signed bytes are added in 32 bits.
//!
//! Every function requires AVX-512 F, BW, VL and VNNI, which [`crate::isa::best`] checks.

use std::arch::x86_64::*;

use super::layout::Plane;
use super::query::{FOUR, form};

form!("avx512f,avx512bw,avx512vl,avx512vnni");

/// Bytes of a register.
const STEP: usize = 64;

/// Σ of levels times components, of each code.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn several(planes: &[Plane], codes: [&[u8]; FOUR], components: &[i8]) -> [i32; FOUR] {
    codes.map(|code| {
        let mut total = 0;
        for plane in planes {
            let bytes = &code[plane.first..][..plane.bytes];
            let components = &components[plane.start..];
            let sum = match plane.width {
                8 => of_plane::<8, 1>(bytes, components),
                4 => of_plane::<4, 2>(bytes, components),
                2 => of_plane::<2, 4>(bytes, components),
                _ => of_plane::<1, 8>(bytes, components),
            };
            total += sum << plane.shift;
        }
        total
    })
}

/// As [`several`], of a single plane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn one<const WIDTH: u32, const GROUPS: usize>(
    plane: &Plane,
    codes: [&[u8]; FOUR],
    components: &[i8],
) -> [i32; FOUR] {
    codes.map(|code| {
        let bytes = &code[plane.first..][..plane.bytes];
        of_plane::<WIDTH, GROUPS>(bytes, components)
    })
}

/// A plane of `WIDTH` bits in `GROUPS` groups. A short plane takes half a register.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn of_plane<const WIDTH: u32, const GROUPS: usize>(bytes: &[u8], components: &[i8]) -> i32 {
    if bytes.len() <= STEP / 2 {
        return of_short_plane::<WIDTH, GROUPS>(bytes, components);
    }
    let mask = _mm512_set1_epi8(((1u32 << WIDTH) - 1) as i8);
    let (mut even, mut odd) = (_mm512_setzero_si512(), _mm512_setzero_si512());
    for at in (0..bytes.len()).step_by(STEP) {
        let rest = &bytes[at..];
        let present = if rest.len() >= STEP { u64::MAX } else { (1 << rest.len()) - 1 };
        // SAFETY: bytes that are not present are not read.
        let mut packed = unsafe { _mm512_maskz_loadu_epi8(present, rest.as_ptr().cast()) };
        for group in 0..GROUPS {
            let levels = if WIDTH == 8 { packed } else { _mm512_and_si512(packed, mask) };
            let query = match components.get(group * bytes.len() + at..).and_then(<[i8]>::first_chunk::<STEP>)
            {
                // SAFETY: `from` has 64 components; alignment is not required.
                Some(from) => unsafe { _mm512_loadu_si512(from.as_ptr().cast()) },
                None => _mm512_setzero_si512(),
            };
            match group % 2 {
                0 => even = _mm512_dpbusd_epi32(even, levels, query),
                _ => odd = _mm512_dpbusd_epi32(odd, levels, query),
            }
            packed = _mm512_srl_epi16(packed, _mm_cvtsi32_si128(WIDTH as i32));
        }
    }
    _mm512_reduce_add_epi32(_mm512_add_epi32(even, odd))
}

/// As [`of_plane`], for at most 32 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn of_short_plane<const WIDTH: u32, const GROUPS: usize>(bytes: &[u8], components: &[i8]) -> i32 {
    const HALF: usize = STEP / 2;
    let mask = _mm256_set1_epi8(((1u32 << WIDTH) - 1) as i8);
    let present = if bytes.len() >= HALF { u32::MAX } else { (1 << bytes.len()) - 1 };
    // SAFETY: bytes that are not present are not read.
    let mut packed = unsafe { _mm256_maskz_loadu_epi8(present, bytes.as_ptr().cast()) };
    let (mut even, mut odd) = (_mm256_setzero_si256(), _mm256_setzero_si256());
    for group in 0..GROUPS {
        let levels = if WIDTH == 8 { packed } else { _mm256_and_si256(packed, mask) };
        let query = match components.get(group * bytes.len()..).and_then(<[i8]>::first_chunk::<HALF>) {
            // SAFETY: `from` has 32 components; alignment is not required.
            Some(from) => unsafe { _mm256_loadu_si256(from.as_ptr().cast()) },
            None => _mm256_setzero_si256(),
        };
        match group % 2 {
            0 => even = _mm256_dpbusd_epi32(even, levels, query),
            _ => odd = _mm256_dpbusd_epi32(odd, levels, query),
        }
        packed = _mm256_srl_epi16(packed, _mm_cvtsi32_si128(WIDTH as i32));
    }
    let sums = _mm256_add_epi32(even, odd);
    let halves = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
    let quarters = _mm_add_epi32(halves, _mm_shuffle_epi32::<0b01_00_11_10>(halves));
    let eighths = _mm_add_epi32(quarters, _mm_shuffle_epi32::<0b10_11_00_01>(quarters));
    _mm_cvtsi128_si32(eighths)
}
