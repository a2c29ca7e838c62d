//! Arm Advanced SIMD forms: four registers are the 16 lanes. Every aarch64 machine that Rust's standard targets name
//! has it.

use super::forms::{Forms, Kernels, STRIP, TILE, unroll};
use super::scalar::LANES;
use std::arch::aarch64::*;

const Q: usize = 2;
const R: usize = 2;
const BYTES: usize = 16;

pub(super) static KERNELS: Kernels = Kernels {
    l2_f32: floats::<false, false>(),
    dot_f32: floats::<true, false>(),
    l2_f16: floats::<false, true>(),
    dot_f16: floats::<true, true>(),
    dot_u8: bytes::<false>(),
    dot_i8: bytes::<true>(),
    l2_u8: byte_l2::<false>,
    l2_i8: byte_l2::<true>,
    l2_u8_strip: byte_l2_strip,
    narrow: None,
    widen_f16,
};

const fn floats<const DOT: bool, const HALF: bool>() -> Forms<f32, f32> {
    Forms {
        pair: float_pair::<DOT, HALF>,
        strip: float_strip::<DOT, HALF>,
        tile: float_tile::<DOT, HALF>,
        shape: (Q, R),
    }
}

const fn bytes<const SIGNED: bool>() -> Forms<u8, u32> {
    Forms { pair: byte_pair::<SIGNED>, strip: byte_strip::<SIGNED>, tile: byte_tile::<SIGNED>, shape: (Q, R) }
}

/// Lanes 0 to 3, 4 to 7, 8 to 11 and 12 to 15.
type Lanes = [float32x4_t; 4];

/// Four f16 (as bits) to f32: moving the bits into place leaves an exponent that is too small by 112.
#[inline]
#[target_feature(enable = "neon")]
fn widen_4(halves: uint16x4_t) -> float32x4_t {
    let wide = vmovl_u16(halves);
    let magnitude = vandq_u32(wide, vdupq_n_u32(0x7fff));
    let scaled =
        vmulq_n_f32(vreinterpretq_f32_u32(vshlq_n_u32::<13>(magnitude)), f32::from_bits((127 + 112) << 23));
    let special = vandq_u32(vcgeq_u32(magnitude, vdupq_n_u32(0x7c00)), vdupq_n_u32(0x7f80_0000));
    let sign = vshlq_n_u32::<16>(vandq_u32(wide, vdupq_n_u32(0x8000)));
    vreinterpretq_f32_u32(vorrq_u32(vorrq_u32(vreinterpretq_u32_f32(scaled), special), sign))
}

/// 16 components from component `i` of a row.
///
/// # Safety
/// `row` must have 16 components from `i` on.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn load<const HALF: bool>(row: *const u8, i: usize) -> Lanes {
    // SAFETY: the caller vouches for the components; loads of bytes need no alignment.
    unsafe {
        if HALF {
            let p = row.add(2 * i);
            let (a, b) = (vreinterpretq_u16_u8(vld1q_u8(p)), vreinterpretq_u16_u8(vld1q_u8(p.add(16))));
            [
                widen_4(vget_low_u16(a)),
                widen_4(vget_high_u16(a)),
                widen_4(vget_low_u16(b)),
                widen_4(vget_high_u16(b)),
            ]
        } else {
            let p = row.add(4 * i);
            [
                vreinterpretq_f32_u8(vld1q_u8(p)),
                vreinterpretq_f32_u8(vld1q_u8(p.add(16))),
                vreinterpretq_f32_u8(vld1q_u8(p.add(32))),
                vreinterpretq_f32_u8(vld1q_u8(p.add(48))),
            ]
        }
    }
}

/// The last `count` < 16 components of a row, from component `i` on; the others are zero.
///
/// # Safety
/// `row` must have `count` components from `i` on.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn load_tail<const HALF: bool>(row: *const u8, i: usize, count: usize) -> Lanes {
    let size = if HALF { 2 } else { 4 };
    let mut padded = [0u8; 4 * LANES];
    // SAFETY: the caller vouches for count components; at most 16 go into the buffer, which is loaded as a whole.
    unsafe {
        std::ptr::copy_nonoverlapping(row.add(size * i), padded.as_mut_ptr(), size * count.min(LANES));
        load::<HALF>(padded.as_ptr(), 0)
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn step<const DOT: bool>(acc: float32x4_t, q: float32x4_t, x: float32x4_t) -> float32x4_t {
    if DOT {
        vfmaq_f32(acc, q, x)
    } else {
        let diff = vsubq_f32(q, x);
        vfmaq_f32(acc, diff, diff)
    }
}

/// The lanes of QN × RN distances over `dim` components.
///
/// # Safety
/// Every pointer must have `dim` components of its type.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn float_lanes<const DOT: bool, const HALF: bool, const QN: usize, const RN: usize>(
    queries: [*const u8; QN],
    rows: [*const u8; RN],
    dim: usize,
) -> [[Lanes; RN]; QN] {
    let mut acc = [[[vdupq_n_f32(0.0); 4]; RN]; QN];
    let mut x = [[vdupq_n_f32(0.0); 4]; RN];
    let whole = dim - dim % LANES;
    for i in (0..whole).step_by(LANES) {
        unroll!(r < RN, {
            // SAFETY: i + 16 <= dim.
            x[r] = unsafe { load::<HALF>(rows[r], i) };
        });
        unroll!(q < QN, {
            // SAFETY: i + 16 <= dim.
            let query = unsafe { load::<false>(queries[q], i) };
            unroll!(r < RN, {
                unroll!(h < 4, {
                    acc[q][r][h] = step::<DOT>(acc[q][r][h], query[h], x[r][h]);
                });
            });
        });
    }
    if whole == dim {
        return acc;
    }
    let mut present = [0u32; LANES];
    present[..dim - whole].fill(!0);
    unroll!(r < RN, {
        // SAFETY: whole + (dim - whole) = dim.
        x[r] = unsafe { load_tail::<HALF>(rows[r], whole, dim - whole) };
    });
    unroll!(q < QN, {
        // SAFETY: whole + (dim - whole) = dim.
        let query = unsafe { load_tail::<false>(queries[q], whole, dim - whole) };
        unroll!(r < RN, {
            unroll!(h < 4, {
                // Lanes past the end stay as they are: adding zero would turn -0 into +0.
                let next = step::<DOT>(acc[q][r][h], query[h], x[r][h]);
                // SAFETY: `present` has 16 elements, h < 4.
                let mask = unsafe { vld1q_u32(present.as_ptr().add(4 * h)) };
                acc[q][r][h] = vbslq_f32(mask, next, acc[q][r][h]);
            });
        });
    });
    acc
}

#[inline]
#[target_feature(enable = "neon")]
fn fold(v: Lanes) -> f32 {
    let four = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
    let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
}

#[target_feature(enable = "neon")]
fn float_pair<const DOT: bool, const HALF: bool>(query: &[f32], row: &[u8]) -> f32 {
    let dim = query.len().min(row.len() / if HALF { 2 } else { 4 });
    // SAFETY: both have dim components.
    let [[lanes]] = unsafe { float_lanes::<DOT, HALF, 1, 1>([query.as_ptr().cast()], [row.as_ptr()], dim) };
    fold(lanes)
}

#[target_feature(enable = "neon")]
fn float_strip<const DOT: bool, const HALF: bool>(
    query: &[f32],
    rows: &[u8],
    dim: usize,
    out: &mut [f32; TILE],
) {
    let row_bytes = dim * if HALF { 2 } else { 4 };
    assert!(query.len() >= dim && rows.len() >= STRIP * row_bytes);
    let p = rows.as_ptr();
    let rows = [p, p.wrapping_add(row_bytes), p.wrapping_add(2 * row_bytes), p.wrapping_add(3 * row_bytes)];
    // SAFETY: the lengths were checked above.
    let [acc] = unsafe { float_lanes::<DOT, HALF, 1, STRIP>([query.as_ptr().cast()], rows, dim) };
    unroll!(r < STRIP, {
        out[r] = fold(acc[r]);
    });
}

#[target_feature(enable = "neon")]
fn float_tile<const DOT: bool, const HALF: bool>(
    queries: &[f32],
    rows: &[u8],
    dim: usize,
    out: &mut [f32; TILE],
) {
    let row_bytes = dim * if HALF { 2 } else { 4 };
    assert!(queries.len() >= Q * dim && rows.len() >= R * row_bytes);
    let (q, p): (*const u8, _) = (queries.as_ptr().cast(), rows.as_ptr());
    let (queries, rows) = ([q, q.wrapping_add(4 * dim)], [p, p.wrapping_add(row_bytes)]);
    // SAFETY: the lengths were checked above.
    let acc = unsafe { float_lanes::<DOT, HALF, Q, R>(queries, rows, dim) };
    unroll!(q < Q, {
        unroll!(r < R, {
            out[q * R + r] = fold(acc[q][r]);
        });
    });
}

/// `count` <= 16 bytes from byte `i` of a row, then zeros.
///
/// # Safety
/// `row` must have `count` bytes from `i` on.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn load_bytes(row: *const u8, i: usize, count: usize) -> uint8x16_t {
    // SAFETY: the caller vouches for count bytes; at most 16 go into the buffer.
    unsafe {
        if count >= BYTES {
            return vld1q_u8(row.add(i));
        }
        let mut padded = [0u8; BYTES];
        std::ptr::copy_nonoverlapping(row.add(i), padded.as_mut_ptr(), count);
        vld1q_u8(padded.as_ptr())
    }
}

/// Adds 16 products to four 32-bit sums.
#[inline]
#[target_feature(enable = "neon")]
fn byte_step<const SIGNED: bool>(acc: uint32x4_t, a: uint8x16_t, b: uint8x16_t) -> uint32x4_t {
    if SIGNED {
        let (acc, a, b) = (vreinterpretq_s32_u32(acc), vreinterpretq_s8_u8(a), vreinterpretq_s8_u8(b));
        let acc = vpadalq_s16(acc, vmull_s8(vget_low_s8(a), vget_low_s8(b)));
        vreinterpretq_u32_s32(vpadalq_s16(acc, vmull_high_s8(a, b)))
    } else {
        let acc = vpadalq_u16(acc, vmull_u8(vget_low_u8(a), vget_low_u8(b)));
        vpadalq_u16(acc, vmull_high_u8(a, b))
    }
}

/// 32-bit partial sums of QN × RN inner products of bytes.
///
/// # Safety
/// Every pointer must have `dim` bytes.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn byte_lanes<const SIGNED: bool, const QN: usize, const RN: usize>(
    queries: [*const u8; QN],
    rows: [*const u8; RN],
    dim: usize,
) -> [[uint32x4_t; RN]; QN] {
    let mut acc = [[vdupq_n_u32(0); RN]; QN];
    let mut x = [vdupq_n_u8(0); RN];
    for i in (0..dim).step_by(BYTES) {
        unroll!(r < RN, {
            // SAFETY: the bytes end at dim.
            x[r] = unsafe { load_bytes(rows[r], i, dim - i) };
        });
        unroll!(q < QN, {
            // SAFETY: the bytes end at dim.
            let query = unsafe { load_bytes(queries[q], i, dim - i) };
            unroll!(r < RN, {
                acc[q][r] = byte_step::<SIGNED>(acc[q][r], query, x[r]);
            });
        });
    }
    acc
}

#[target_feature(enable = "neon")]
fn byte_pair<const SIGNED: bool>(query: &[u8], row: &[u8]) -> u32 {
    let dim = query.len().min(row.len());
    // SAFETY: both have dim bytes.
    let [[acc]] = unsafe { byte_lanes::<SIGNED, 1, 1>([query.as_ptr()], [row.as_ptr()], dim) };
    vaddvq_u32(acc)
}

#[target_feature(enable = "neon")]
fn byte_strip<const SIGNED: bool>(query: &[u8], rows: &[u8], dim: usize, out: &mut [u32; TILE]) {
    assert!(query.len() >= dim && rows.len() >= STRIP * dim);
    let p = rows.as_ptr();
    let rows = [p, p.wrapping_add(dim), p.wrapping_add(2 * dim), p.wrapping_add(3 * dim)];
    // SAFETY: the lengths were checked above.
    let [acc] = unsafe { byte_lanes::<SIGNED, 1, STRIP>([query.as_ptr()], rows, dim) };
    unroll!(r < STRIP, {
        out[r] = vaddvq_u32(acc[r]);
    });
}

#[target_feature(enable = "neon")]
fn byte_tile<const SIGNED: bool>(queries: &[u8], rows: &[u8], dim: usize, out: &mut [u32; TILE]) {
    assert!(queries.len() >= Q * dim && rows.len() >= R * dim);
    let (q, p) = (queries.as_ptr(), rows.as_ptr());
    let (queries, rows) = ([q, q.wrapping_add(dim)], [p, p.wrapping_add(dim)]);
    // SAFETY: the lengths were checked above.
    let acc = unsafe { byte_lanes::<SIGNED, Q, R>(queries, rows, dim) };
    unroll!(q < Q, {
        unroll!(r < R, {
            out[q * R + r] = vaddvq_u32(acc[q][r]);
        });
    });
}

#[target_feature(enable = "neon")]
fn byte_l2<const SIGNED: bool>(a: &[u8], b: &[u8]) -> u32 {
    let dim = a.len().min(b.len());
    let (a, b) = (a.as_ptr(), b.as_ptr());
    let mut acc = vdupq_n_u32(0);
    for i in (0..dim).step_by(BYTES) {
        // SAFETY: the bytes end at dim, which both have.
        let (x, y) = unsafe { (load_bytes(a, i, dim - i), load_bytes(b, i, dim - i)) };
        let diff = if SIGNED {
            vreinterpretq_u8_s8(vabdq_s8(vreinterpretq_s8_u8(x), vreinterpretq_s8_u8(y)))
        } else {
            vabdq_u8(x, y)
        };
        acc = byte_step::<false>(acc, diff, diff);
    }
    vaddvq_u32(acc)
}

#[target_feature(enable = "neon")]
fn byte_l2_strip(query: &[u8], rows: [&[u8]; STRIP]) -> [u32; STRIP] {
    rows.map(|row| byte_l2::<false>(query, row))
}

#[target_feature(enable = "neon")]
fn widen_f16(row: &[u8], out: &mut [f32]) {
    let dim = out.len().min(row.len() / 2);
    for i in (0..dim).step_by(LANES) {
        let count = (dim - i).min(LANES);
        // SAFETY: count components are left in the row.
        let lanes = unsafe {
            if count == LANES {
                load::<true>(row.as_ptr(), i)
            } else {
                load_tail::<true>(row.as_ptr(), i, count)
            }
        };
        let mut wide = [0f32; LANES];
        unroll!(h < 4, {
            // SAFETY: `wide` has 16 elements, h < 4.
            unsafe { vst1q_f32(wide.as_mut_ptr().add(4 * h), lanes[h]) };
        });
        out[i..i + count].copy_from_slice(&wide[..count]);
    }
}
