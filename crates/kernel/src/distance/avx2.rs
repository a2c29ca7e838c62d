//! AVX2 forms: two registers are the 16 lanes.
//!
//! Every function requires AVX2, FMA and F16C, which [`crate::isa::best`] checks.

use super::forms::{Forms, Kernels, Narrow, STRIP, TILE, unroll};
use super::narrow::GROUP;
use super::scalar::LANES;
use std::arch::x86_64::*;

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
    narrow: Some(Narrow {
        l2: [narrow::<false, 4>, narrow::<false, 8>, narrow::<false, 16>],
        dot: [narrow::<true, 4>, narrow::<true, 8>, narrow::<true, 16>],
    }),
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

/// Lanes 0 to 7 and 8 to 15.
type Lanes = [__m256; 2];

/// 16 components from component `i` of a row.
///
/// # Safety
/// `row` must have 16 components from `i` on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load<const HALF: bool>(row: *const u8, i: usize) -> Lanes {
    // SAFETY: the caller vouches for the components; alignment is not required.
    unsafe {
        if HALF {
            let p: *const __m128i = row.add(2 * i).cast();
            [_mm256_cvtph_ps(_mm_loadu_si128(p)), _mm256_cvtph_ps(_mm_loadu_si128(p.add(1)))]
        } else {
            let p: *const f32 = row.add(4 * i).cast();
            [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))]
        }
    }
}

/// The last `count` < 16 components of a row, from component `i` on; the others are zero.
///
/// # Safety
/// `row` must have `count` components from `i` on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_tail<const HALF: bool>(row: *const u8, i: usize, count: usize) -> Lanes {
    if !HALF {
        let p: *const f32 = row.wrapping_add(4 * i).cast();
        let [low, high] = first(count);
        // SAFETY: masked-off components are not accessed, and the caller vouches for the first `count`.
        return unsafe { [_mm256_maskload_ps(p, low), _mm256_maskload_ps(p.wrapping_add(8), high)] };
    }
    let mut padded = [0u8; 2 * LANES];
    // SAFETY: the caller vouches for count components; at most 16 go into the buffer, which is loaded as a whole.
    unsafe {
        std::ptr::copy_nonoverlapping(row.add(2 * i), padded.as_mut_ptr(), 2 * count.min(LANES));
        load::<true>(padded.as_ptr(), 0)
    }
}

/// All bits set in the first `count` lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn first(count: usize) -> [__m256i; 2] {
    let count = _mm256_set1_epi32(count as i32);
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    let high = _mm256_add_epi32(lanes, _mm256_set1_epi32(8));
    [_mm256_cmpgt_epi32(count, lanes), _mm256_cmpgt_epi32(count, high)]
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn step<const DOT: bool>(acc: __m256, q: __m256, x: __m256) -> __m256 {
    if DOT {
        _mm256_fmadd_ps(q, x, acc)
    } else {
        let diff = _mm256_sub_ps(q, x);
        _mm256_fmadd_ps(diff, diff, acc)
    }
}

/// The lanes of QN × RN distances over `dim` components.
///
/// # Safety
/// Every pointer must have `dim` components of its type.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn float_lanes<const DOT: bool, const HALF: bool, const QN: usize, const RN: usize>(
    queries: [*const u8; QN],
    rows: [*const u8; RN],
    dim: usize,
) -> [[Lanes; RN]; QN] {
    let mut acc = [[[_mm256_setzero_ps(); 2]; RN]; QN];
    let mut x = [[_mm256_setzero_ps(); 2]; RN];
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
                unroll!(h < 2, {
                    acc[q][r][h] = step::<DOT>(acc[q][r][h], query[h], x[r][h]);
                });
            });
        });
    }
    if whole == dim {
        return acc;
    }
    let [low, high] = first(dim - whole);
    let mask = [_mm256_castsi256_ps(low), _mm256_castsi256_ps(high)];
    unroll!(r < RN, {
        // SAFETY: whole + (dim - whole) = dim.
        x[r] = unsafe { load_tail::<HALF>(rows[r], whole, dim - whole) };
    });
    unroll!(q < QN, {
        // SAFETY: whole + (dim - whole) = dim.
        let query = unsafe { load_tail::<false>(queries[q], whole, dim - whole) };
        unroll!(r < RN, {
            unroll!(h < 2, {
                // Lanes past the end stay as they are: adding zero would turn -0 into +0.
                let next = step::<DOT>(acc[q][r][h], query[h], x[r][h]);
                acc[q][r][h] = _mm256_blendv_ps(acc[q][r][h], next, mask[h]);
            });
        });
    });
    acc
}

/// Folds the lanes of four accumulators.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fold_4(v: [Lanes; 4]) -> __m128 {
    let four = |a: Lanes, b: Lanes| {
        let (a, b) = (_mm256_add_ps(a[0], a[1]), _mm256_add_ps(b[0], b[1]));
        _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b))
    };
    let (ab, cd) = (four(v[0], v[1]), four(v[2], v[3]));
    let two =
        _mm256_add_ps(_mm256_shuffle_ps::<0b01_00_01_00>(ab, cd), _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd));
    let one = _mm256_add_ps(two, _mm256_permute_ps::<0b10_11_00_01>(two));
    // Blocks: a a c c, b b d d.
    let (ac, bd) = (_mm256_castps256_ps128(one), _mm256_extractf128_ps::<1>(one));
    _mm_movelh_ps(_mm_unpacklo_ps(ac, bd), _mm_unpackhi_ps(ac, bd))
}

#[target_feature(enable = "avx2,fma,f16c")]
fn float_pair<const DOT: bool, const HALF: bool>(query: &[f32], row: &[u8]) -> f32 {
    let dim = query.len().min(row.len() / if HALF { 2 } else { 4 });
    // SAFETY: both have dim components.
    let [[lanes]] = unsafe { float_lanes::<DOT, HALF, 1, 1>([query.as_ptr().cast()], [row.as_ptr()], dim) };
    let eight = _mm256_add_ps(lanes[0], lanes[1]);
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

#[target_feature(enable = "avx2,fma,f16c")]
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
    // SAFETY: out has 16 floats.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), fold_4(acc)) };
}

#[target_feature(enable = "avx2,fma,f16c")]
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
    let [[a, b], [c, d]] = unsafe { float_lanes::<DOT, HALF, Q, R>(queries, rows, dim) };
    // SAFETY: out has 16 floats.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), fold_4([a, b, c, d])) };
}

/// The form that [`Group`](super::narrow::Group) describes; W is the width.
#[target_feature(enable = "avx2,fma,f16c")]
fn narrow<const DOT: bool, const W: usize>(
    queries: &[f32],
    columns: &[f32],
    count: usize,
    out: &mut [f32],
    stride: usize,
) {
    assert!(columns.len() >= W * GROUP && count <= GROUP);
    let zero = _mm256_setzero_ps();
    for h in (0..count).step_by(GROUP / 2) {
        let mut x = [zero; W];
        for (i, x) in x.iter_mut().enumerate() {
            // SAFETY: columns has W × 16 floats; h is 0 or 8.
            *x = unsafe { _mm256_loadu_ps(columns.as_ptr().add(i * GROUP + h)) };
        }
        for (q, query) in queries.chunks_exact(W).enumerate() {
            let mut lanes = [zero; W];
            for i in 0..W {
                lanes[i] = step::<DOT>(zero, _mm256_set1_ps(query[i]), x[i]);
                if W < LANES {
                    // The lanes that are not there are added as zeros: this turns -0 into +0.
                    lanes[i] = _mm256_add_ps(lanes[i], zero);
                }
            }
            let mut half = W / 2;
            while half > 0 {
                for i in 0..half {
                    lanes[i] = _mm256_add_ps(lanes[i], lanes[i + half]);
                }
                half /= 2;
            }
            let mut results = [0f32; GROUP / 2];
            // SAFETY: results has 8 floats.
            unsafe { _mm256_storeu_ps(results.as_mut_ptr(), lanes[0]) };
            let out = &mut out[q * stride + h..][..(count - h).min(GROUP / 2)];
            match out.first_chunk_mut() {
                Some(out) => *out = results,
                None => out.copy_from_slice(&results[..out.len()]),
            }
        }
    }
}

/// 16 bytes from byte `i` of a row, or the `count` < 16 that are there and then zeros.
///
/// # Safety
/// `row` must have 16 or `count` bytes from `i` on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_bytes<const TAIL: bool>(row: *const u8, i: usize, count: usize) -> __m128i {
    // SAFETY: the caller vouches for the bytes; at most 16 go into the buffer.
    unsafe {
        if !TAIL {
            return _mm_loadu_si128(row.add(i).cast());
        }
        let mut padded = [0u8; BYTES];
        std::ptr::copy_nonoverlapping(row.add(i), padded.as_mut_ptr(), count.min(BYTES));
        _mm_loadu_si128(padded.as_ptr().cast())
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn widen_bytes<const SIGNED: bool>(x: __m128i) -> __m256i {
    if SIGNED { _mm256_cvtepi8_epi16(x) } else { _mm256_cvtepu8_epi16(x) }
}

/// Adds the products of the bytes from `i` on: 16, or the last `count` < 16.
///
/// # Safety
/// Every pointer must have those bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn byte_step<const SIGNED: bool, const TAIL: bool, const QN: usize, const RN: usize>(
    acc: &mut [[__m256i; RN]; QN],
    queries: [*const u8; QN],
    rows: [*const u8; RN],
    i: usize,
    count: usize,
) {
    let mut x = [_mm256_setzero_si256(); RN];
    unroll!(r < RN, {
        // SAFETY: as the caller vouches.
        x[r] = widen_bytes::<SIGNED>(unsafe { load_bytes::<TAIL>(rows[r], i, count) });
    });
    unroll!(q < QN, {
        // SAFETY: as the caller vouches.
        let query = widen_bytes::<SIGNED>(unsafe { load_bytes::<TAIL>(queries[q], i, count) });
        unroll!(r < RN, {
            acc[q][r] = _mm256_add_epi32(acc[q][r], _mm256_madd_epi16(query, x[r]));
        });
    });
}

/// 32-bit partial sums of QN × RN inner products of bytes, with 16-bit factors.
///
/// # Safety
/// Every pointer must have `dim` bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn byte_lanes<const SIGNED: bool, const QN: usize, const RN: usize>(
    queries: [*const u8; QN],
    rows: [*const u8; RN],
    dim: usize,
) -> [[__m256i; RN]; QN] {
    let mut acc = [[_mm256_setzero_si256(); RN]; QN];
    let whole = dim - dim % BYTES;
    for i in (0..whole).step_by(BYTES) {
        // SAFETY: i + 16 <= dim.
        unsafe { byte_step::<SIGNED, false, QN, RN>(&mut acc, queries, rows, i, BYTES) };
    }
    if whole < dim {
        // SAFETY: whole + (dim - whole) = dim.
        unsafe { byte_step::<SIGNED, true, QN, RN>(&mut acc, queries, rows, whole, dim - whole) };
    }
    acc
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum(v: __m256i) -> u32 {
    let four = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
    let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
    let one = _mm_add_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two));
    _mm_cvtsi128_si32(one) as u32
}

#[target_feature(enable = "avx2,fma,f16c")]
fn byte_pair<const SIGNED: bool>(query: &[u8], row: &[u8]) -> u32 {
    let dim = query.len().min(row.len());
    // SAFETY: both have dim bytes.
    let [[acc]] = unsafe { byte_lanes::<SIGNED, 1, 1>([query.as_ptr()], [row.as_ptr()], dim) };
    sum(acc)
}

#[target_feature(enable = "avx2,fma,f16c")]
fn byte_strip<const SIGNED: bool>(query: &[u8], rows: &[u8], dim: usize, out: &mut [u32; TILE]) {
    assert!(query.len() >= dim && rows.len() >= STRIP * dim);
    let p = rows.as_ptr();
    let rows = [p, p.wrapping_add(dim), p.wrapping_add(2 * dim), p.wrapping_add(3 * dim)];
    // SAFETY: the lengths were checked above.
    let [acc] = unsafe { byte_lanes::<SIGNED, 1, STRIP>([query.as_ptr()], rows, dim) };
    out.iter_mut().zip(acc).for_each(|(o, acc)| *o = sum(acc));
}

#[target_feature(enable = "avx2,fma,f16c")]
fn byte_tile<const SIGNED: bool>(queries: &[u8], rows: &[u8], dim: usize, out: &mut [u32; TILE]) {
    assert!(queries.len() >= Q * dim && rows.len() >= R * dim);
    let (q, p) = (queries.as_ptr(), rows.as_ptr());
    let (queries, rows) = ([q, q.wrapping_add(dim)], [p, p.wrapping_add(dim)]);
    // SAFETY: the lengths were checked above.
    let [[a, b], [c, d]] = unsafe { byte_lanes::<SIGNED, Q, R>(queries, rows, dim) };
    [out[0], out[1], out[2], out[3]] = [sum(a), sum(b), sum(c), sum(d)];
}

#[target_feature(enable = "avx2,fma,f16c")]
fn byte_l2<const SIGNED: bool>(a: &[u8], b: &[u8]) -> u32 {
    let dim = a.len().min(b.len());
    let whole = dim - dim % BYTES;
    let (a, b) = (a.as_ptr(), b.as_ptr());
    let squares = |x, y| {
        let diff = _mm256_sub_epi16(widen_bytes::<SIGNED>(x), widen_bytes::<SIGNED>(y));
        _mm256_madd_epi16(diff, diff)
    };
    let mut acc = _mm256_setzero_si256();
    for i in (0..whole).step_by(BYTES) {
        // SAFETY: i + 16 <= dim, which both have.
        let (x, y) = unsafe { (load_bytes::<false>(a, i, BYTES), load_bytes::<false>(b, i, BYTES)) };
        acc = _mm256_add_epi32(acc, squares(x, y));
    }
    if whole < dim {
        let rest = dim - whole;
        // SAFETY: whole + rest = dim, which both have.
        let (x, y) = unsafe { (load_bytes::<true>(a, whole, rest), load_bytes::<true>(b, whole, rest)) };
        acc = _mm256_add_epi32(acc, squares(x, y));
    }
    sum(acc)
}

/// Squared distances of unsigned bytes to four rows: the query is widened once for all of them.
#[target_feature(enable = "avx2,fma,f16c")]
fn byte_l2_strip(query: &[u8], rows: [&[u8]; STRIP]) -> [u32; STRIP] {
    let dim = rows.iter().fold(query.len(), |dim, row| dim.min(row.len()));
    let whole = dim - dim % BYTES;
    let (query, rows) = (query.as_ptr(), rows.map(<[u8]>::as_ptr));
    let zero = _mm256_setzero_si256();
    let mut acc = [zero; STRIP];
    for i in (0..whole).step_by(BYTES) {
        // SAFETY: i + 16 <= dim, which all have.
        let q = widen_bytes::<false>(unsafe { load_bytes::<false>(query, i, BYTES) });
        unroll!(r < STRIP, {
            // SAFETY: as above.
            let x = widen_bytes::<false>(unsafe { load_bytes::<false>(rows[r], i, BYTES) });
            let diff = _mm256_sub_epi16(q, x);
            acc[r] = _mm256_add_epi32(acc[r], _mm256_madd_epi16(diff, diff));
        });
    }
    if whole < dim {
        let rest = dim - whole;
        // SAFETY: whole + rest = dim, which all have.
        let q = widen_bytes::<false>(unsafe { load_bytes::<true>(query, whole, rest) });
        unroll!(r < STRIP, {
            // SAFETY: as above.
            let x = widen_bytes::<false>(unsafe { load_bytes::<true>(rows[r], whole, rest) });
            let diff = _mm256_sub_epi16(q, x);
            acc[r] = _mm256_add_epi32(acc[r], _mm256_madd_epi16(diff, diff));
        });
    }
    let sums = _mm256_hadd_epi32(_mm256_hadd_epi32(acc[0], acc[1]), _mm256_hadd_epi32(acc[2], acc[3]));
    let sums = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
    let mut out = [0; STRIP];
    // SAFETY: out has 16 bytes.
    unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), sums) };
    out
}

#[target_feature(enable = "avx2,fma,f16c")]
fn widen_f16(row: &[u8], out: &mut [f32]) {
    let dim = out.len().min(row.len() / 2);
    let whole = dim - dim % LANES;
    for i in (0..whole).step_by(LANES) {
        // SAFETY: i + 16 <= dim, which both slices have.
        unsafe {
            let [low, high] = load::<true>(row.as_ptr(), i);
            _mm256_storeu_ps(out.as_mut_ptr().add(i), low);
            _mm256_storeu_ps(out.as_mut_ptr().add(i + 8), high);
        }
    }
    let mut last = [0f32; LANES];
    // SAFETY: the tail ends at dim; last has 16 floats.
    unsafe {
        let [low, high] = load_tail::<true>(row.as_ptr(), whole, dim - whole);
        _mm256_storeu_ps(last.as_mut_ptr(), low);
        _mm256_storeu_ps(last.as_mut_ptr().add(8), high);
    }
    out[whole..dim].copy_from_slice(&last[..dim - whole]);
}
