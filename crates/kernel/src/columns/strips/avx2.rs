//! AVX2 form: a register is half a component of a strip.

use std::arch::x86_64::*;

use super::registers::in_registers;

type Floats = __m256;
const WIDTH: usize = 8;

in_registers!("avx2,fma");

/// # Safety
/// Eight floats must begin here.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn load(from: *const f32) -> Floats {
    // SAFETY: as the caller vouches; alignment is not required.
    unsafe { _mm256_loadu_ps(from) }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn splat(x: f32) -> Floats {
    _mm256_set1_ps(x)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn plus(a: Floats, b: Floats) -> Floats {
    _mm256_add_ps(a, b)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn less(a: Floats, b: Floats) -> Floats {
    _mm256_sub_ps(a, b)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn fused(a: Floats, b: Floats, sum: Floats) -> Floats {
    _mm256_fmadd_ps(a, b, sum)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn fused_less(a: Floats, b: Floats, sum: Floats) -> Floats {
    _mm256_fnmadd_ps(a, b, sum)
}

/// Rounds to units, the even one of two that are as near, and adds.
///
/// # Safety
/// Eight sums must begin at `sums`.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn add_units(found: Floats, scale: f32, sums: *mut f64) {
    const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    let units = _mm256_round_ps::<NEAREST>(_mm256_mul_ps(found, _mm256_set1_ps(scale)));
    let low = _mm256_cvtps_pd(_mm256_castps256_ps128(units));
    let high = _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(units));
    // SAFETY: as the caller vouches; alignment is not required.
    unsafe {
        _mm256_storeu_pd(sums, _mm256_add_pd(_mm256_loadu_pd(sums), low));
        _mm256_storeu_pd(sums.add(4), _mm256_add_pd(_mm256_loadu_pd(sums.add(4)), high));
    }
}
