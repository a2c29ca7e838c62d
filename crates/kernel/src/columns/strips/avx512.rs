//! AVX-512 form: a register is a component of a strip.

use std::arch::x86_64::*;

use super::registers::in_registers;

type Floats = __m512;
const WIDTH: usize = 16;

in_registers!("avx512f,avx512bw,avx512dq,avx512vl");

/// # Safety
/// 16 floats must begin here.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn load(from: *const f32) -> Floats {
    // SAFETY: as the caller vouches; alignment is not required.
    unsafe { _mm512_loadu_ps(from) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn splat(x: f32) -> Floats {
    _mm512_set1_ps(x)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn plus(a: Floats, b: Floats) -> Floats {
    _mm512_add_ps(a, b)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn less(a: Floats, b: Floats) -> Floats {
    _mm512_sub_ps(a, b)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn fused(a: Floats, b: Floats, sum: Floats) -> Floats {
    _mm512_fmadd_ps(a, b, sum)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn fused_less(a: Floats, b: Floats, sum: Floats) -> Floats {
    _mm512_fnmadd_ps(a, b, sum)
}

/// Rounds to units, the even one of two that are as near, and adds.
///
/// # Safety
/// 16 sums must begin at `sums`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn add_units(found: Floats, scale: f32, sums: *mut f64) {
    const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    let units = _mm512_roundscale_ps::<NEAREST>(_mm512_mul_ps(found, _mm512_set1_ps(scale)));
    let low = _mm512_cvtps_pd(_mm512_castps512_ps256(units));
    let high = _mm512_cvtps_pd(_mm512_extractf32x8_ps::<1>(units));
    // SAFETY: as the caller vouches; alignment is not required.
    unsafe {
        _mm512_storeu_pd(sums, _mm512_add_pd(_mm512_loadu_pd(sums), low));
        _mm512_storeu_pd(sums.add(8), _mm512_add_pd(_mm512_loadu_pd(sums.add(8)), high));
    }
}
