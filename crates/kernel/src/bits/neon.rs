//! NEON forms.

use std::arch::aarch64::*;

use super::layout::Plane;
use super::query::{FOUR, form};

form!("neon");

/// Bytes of a register.
const STEP: usize = 16;

/// Σ of levels times components, of each code.
#[inline]
#[target_feature(enable = "neon")]
fn several(planes: &[Plane], codes: [&[u8]; FOUR], components: &[i8]) -> [i32; FOUR] {
    codes.map(|code| {
        let mut total = 0;
        for plane in planes {
            let bytes = &code[plane.first..][..plane.bytes];
            let components = &components[plane.start..];
            let sum = match plane.width {
                8 => of_bytes(bytes, components),
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
#[target_feature(enable = "neon")]
fn one<const WIDTH: i32, const GROUPS: usize>(
    plane: &Plane,
    codes: [&[u8]; FOUR],
    components: &[i8],
) -> [i32; FOUR] {
    codes.map(|code| {
        let bytes = &code[plane.first..][..plane.bytes];
        if WIDTH == 8 { of_bytes(bytes, components) } else { of_plane::<WIDTH, GROUPS>(bytes, components) }
    })
}

/// 16 bytes of a plane from byte `at` on; zeros beyond its end.
#[inline]
#[target_feature(enable = "neon")]
fn load(bytes: &[u8], at: usize) -> uint8x16_t {
    let rest = &bytes[at..];
    let mut last = [0u8; STEP];
    let from = match rest.first_chunk::<STEP>() {
        Some(whole) => whole,
        None => {
            last[..rest.len()].copy_from_slice(rest);
            &last
        }
    };
    // SAFETY: `from` has 16 bytes; alignment is not required.
    unsafe { vld1q_u8(from.as_ptr()) }
}

/// 16 components from `at` on. Queries end with as much padding as that needs.
#[inline]
#[target_feature(enable = "neon")]
fn load_components(components: &[i8], at: usize) -> int8x16_t {
    match components.get(at..).and_then(<[i8]>::first_chunk::<STEP>) {
        // SAFETY: `from` has 16 components; alignment is not required.
        Some(from) => unsafe { vld1q_s8(from.as_ptr()) },
        None => vdupq_n_s8(0),
    }
}

/// A plane of `WIDTH` bits in `GROUPS` groups: levels are small enough to be signed.
#[inline]
#[target_feature(enable = "neon")]
fn of_plane<const WIDTH: i32, const GROUPS: usize>(bytes: &[u8], components: &[i8]) -> i32 {
    let mask = vdupq_n_u8(((1u32 << WIDTH) - 1) as u8);
    let mut total = vdupq_n_s32(0);
    for at in (0..bytes.len()).step_by(STEP) {
        let mut packed = load(bytes, at);
        for group in 0..GROUPS {
            let levels = vreinterpretq_s8_u8(vandq_u8(packed, mask));
            let query = load_components(components, group * bytes.len() + at);
            total = vpadalq_s16(total, vmull_s8(vget_low_s8(levels), vget_low_s8(query)));
            total = vpadalq_s16(total, vmull_high_s8(levels, query));
            packed = vshrq_n_u8::<WIDTH>(packed);
        }
    }
    vaddvq_s32(total)
}

/// A plane of whole bytes, which are widened first.
#[inline]
#[target_feature(enable = "neon")]
fn of_bytes(bytes: &[u8], components: &[i8]) -> i32 {
    let mut total = vdupq_n_s32(0);
    for at in (0..bytes.len()).step_by(STEP) {
        let (levels, query) = (load(bytes, at), load_components(components, at));
        let low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(levels)));
        let high = vreinterpretq_s16_u16(vmovl_high_u8(levels));
        let (first, last) = (vmovl_s8(vget_low_s8(query)), vmovl_high_s8(query));
        total = vmlal_s16(total, vget_low_s16(low), vget_low_s16(first));
        total = vmlal_high_s16(total, low, first);
        total = vmlal_s16(total, vget_low_s16(high), vget_low_s16(last));
        total = vmlal_high_s16(total, high, last);
    }
    vaddvq_s32(total)
}
