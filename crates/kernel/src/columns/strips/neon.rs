//! NEON form: a register is a quarter of a component of a strip.

use std::arch::aarch64::*;

use super::registers::in_registers;

type Floats = float32x4_t;
const WIDTH: usize = 4;

in_registers!("neon");

/// # Safety
/// Four floats must begin here.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn load(from: *const f32) -> Floats {
    // SAFETY: as the caller vouches; alignment is not required.
    unsafe { vld1q_f32(from) }
}

#[inline]
#[target_feature(enable = "neon")]
fn splat(x: f32) -> Floats {
    vdupq_n_f32(x)
}

#[inline]
#[target_feature(enable = "neon")]
fn plus(a: Floats, b: Floats) -> Floats {
    vaddq_f32(a, b)
}

#[inline]
#[target_feature(enable = "neon")]
fn less(a: Floats, b: Floats) -> Floats {
    vsubq_f32(a, b)
}

#[inline]
#[target_feature(enable = "neon")]
fn fused(a: Floats, b: Floats, sum: Floats) -> Floats {
    vfmaq_f32(sum, a, b)
}

#[inline]
#[target_feature(enable = "neon")]
fn fused_less(a: Floats, b: Floats, sum: Floats) -> Floats {
    vfmsq_f32(sum, a, b)
}

/// Rounds to units, the even one of two that are as near, and adds.
///
/// # Safety
/// Four sums must begin at `sums`.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn add_units(found: Floats, scale: f32, sums: *mut f64) {
    let units = vrndnq_f32(vmulq_f32(found, vdupq_n_f32(scale)));
    let low = vcvt_f64_f32(vget_low_f32(units));
    let high = vcvt_high_f64_f32(units);
    // SAFETY: as the caller vouches; alignment is not required.
    unsafe {
        vst1q_f64(sums, vaddq_f64(vld1q_f64(sums), low));
        vst1q_f64(sums.add(2), vaddq_f64(vld1q_f64(sums.add(2)), high));
    }
}
