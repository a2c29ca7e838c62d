//! AVX-512 forms: one register is the 16 lanes.
//!
//! Bytes use VNNI's unsigned × signed product. A second accumulator against the constant 0x80 takes back the offset of
//! 128 by which an operand is moved into the range that the instruction wants; all of it is exact modulo 2³².
//!
//! Every function requires AVX-512 F, BW, VL and VNNI, which [`crate::isa::best`] checks.

use super::forms::{Forms, Kernels, Narrow, STRIP, TILE, unroll};
use super::narrow::GROUP;
use super::scalar::LANES;
use std::arch::x86_64::*;

const Q: usize = 4;
const R: usize = 4;
const BYTES: usize = 64;

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

/// 16 components from component `i` of a row; only those in `mask` are read, the others are zero.
///
/// # Safety
/// `row` must have the components of `mask` from `i` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn load<const HALF: bool>(row: *const u8, i: usize, mask: __mmask16) -> __m512 {
    // SAFETY: masked-off components are not accessed, and the caller vouches for the others; alignment is not required.
    unsafe {
        if HALF {
            _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, row.add(2 * i).cast()))
        } else {
            _mm512_maskz_loadu_ps(mask, row.add(4 * i).cast())
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn step<const DOT: bool>(acc: __m512, q: __m512, x: __m512) -> __m512 {
    if DOT {
        _mm512_fmadd_ps(q, x, acc)
    } else {
        let diff = _mm512_sub_ps(q, x);
        _mm512_fmadd_ps(diff, diff, acc)
    }
}

/// The lanes of QN × RN distances over `dim` components.
///
/// # Safety
/// Every pointer must have `dim` components of its type.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn float_lanes<const DOT: bool, const HALF: bool, const QN: usize, const RN: usize>(
    queries: [*const u8; QN],
    rows: [*const u8; RN],
    dim: usize,
) -> [[__m512; RN]; QN] {
    let mut acc = [[_mm512_setzero_ps(); RN]; QN];
    let mut x = [_mm512_setzero_ps(); RN];
    let whole = dim - dim % LANES;
    for i in (0..whole).step_by(LANES) {
        unroll!(r < RN, {
            // SAFETY: i + 16 <= dim.
            x[r] = unsafe { load::<HALF>(rows[r], i, !0) };
        });
        unroll!(q < QN, {
            // SAFETY: i + 16 <= dim.
            let query = unsafe { load::<false>(queries[q], i, !0) };
            unroll!(r < RN, {
                acc[q][r] = step::<DOT>(acc[q][r], query, x[r]);
            });
        });
    }
    if whole == dim {
        return acc;
    }
    let mask = (1u16 << (dim - whole)) - 1;
    unroll!(r < RN, {
        // SAFETY: the mask ends at dim.
        x[r] = unsafe { load::<HALF>(rows[r], whole, mask) };
    });
    unroll!(q < QN, {
        // SAFETY: the mask ends at dim.
        let query = unsafe { load::<false>(queries[q], whole, mask) };
        unroll!(r < RN, {
            // Lanes outside the mask stay as they are: adding zero would turn -0 into +0.
            acc[q][r] = _mm512_mask_mov_ps(acc[q][r], mask, step::<DOT>(acc[q][r], query, x[r]));
        });
    });
    acc
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn add<const INT: bool>(a: __m512, b: __m512) -> __m512 {
    if INT {
        _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)))
    } else {
        _mm512_add_ps(a, b)
    }
}

/// Folds 8 apart, then 4 apart: block b of the result holds the four lanes that remain of `v[b]`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn fold_to_4<const INT: bool>(v: [__m512; 4]) -> __m512 {
    let eight = |a, b| {
        add::<INT>(_mm512_shuffle_f32x4::<0b01_00_01_00>(a, b), _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b))
    };
    let (a, b) = (eight(v[0], v[1]), eight(v[2], v[3]));
    add::<INT>(_mm512_shuffle_f32x4::<0b10_00_10_00>(a, b), _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b))
}

/// Folds one strip of accumulators.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn fold_strip<const INT: bool>(acc: [__m512; STRIP]) -> __m128 {
    let four = fold_to_4::<INT>(acc);
    let two = add::<INT>(four, _mm512_permute_ps::<0b01_00_11_10>(four));
    let one = add::<INT>(two, _mm512_permute_ps::<0b10_11_00_01>(two));
    _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, one))
}

/// Folds a tile; the result is row-major.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn fold_tile<const INT: bool>(acc: [[__m512; R]; Q]) -> __m512 {
    let column = |r: usize| fold_to_4::<INT>([acc[0][r], acc[1][r], acc[2][r], acc[3][r]]);
    let two =
        |a, b| add::<INT>(_mm512_shuffle_ps::<0b01_00_01_00>(a, b), _mm512_shuffle_ps::<0b11_10_11_10>(a, b));
    let (a, b) = (two(column(0), column(1)), two(column(2), column(3)));
    add::<INT>(_mm512_shuffle_ps::<0b10_00_10_00>(a, b), _mm512_shuffle_ps::<0b11_01_11_01>(a, b))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn float_pair<const DOT: bool, const HALF: bool>(query: &[f32], row: &[u8]) -> f32 {
    let dim = query.len().min(row.len() / if HALF { 2 } else { 4 });
    // SAFETY: both have dim components.
    let [[lanes]] = unsafe { float_lanes::<DOT, HALF, 1, 1>([query.as_ptr().cast()], [row.as_ptr()], dim) };
    let eight = _mm256_add_ps(
        _mm512_castps512_ps256(lanes),
        _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(lanes))),
    );
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
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
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), fold_strip::<false>(acc)) };
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn float_tile<const DOT: bool, const HALF: bool>(
    queries: &[f32],
    rows: &[u8],
    dim: usize,
    out: &mut [f32; TILE],
) {
    let row_bytes = dim * if HALF { 2 } else { 4 };
    assert!(queries.len() >= Q * dim && rows.len() >= R * row_bytes);
    let q: *const u8 = queries.as_ptr().cast();
    let queries = [q, q.wrapping_add(4 * dim), q.wrapping_add(8 * dim), q.wrapping_add(12 * dim)];
    let p = rows.as_ptr();
    let rows = [p, p.wrapping_add(row_bytes), p.wrapping_add(2 * row_bytes), p.wrapping_add(3 * row_bytes)];
    // SAFETY: the lengths were checked above.
    let acc = unsafe { float_lanes::<DOT, HALF, Q, R>(queries, rows, dim) };
    // SAFETY: out has 16 floats.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr(), fold_tile::<false>(acc)) };
}

/// The form that [`Group`](super::narrow::Group) describes; W is the width.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn narrow<const DOT: bool, const W: usize>(
    queries: &[f32],
    columns: &[f32],
    count: usize,
    out: &mut [f32],
    stride: usize,
) {
    assert!(columns.len() >= W * GROUP && count <= GROUP);
    let zero = _mm512_setzero_ps();
    let mask = ((1u32 << count) - 1) as __mmask16;
    let mut x = [zero; W];
    for (i, x) in x.iter_mut().enumerate() {
        // SAFETY: columns has W × 16 floats.
        *x = unsafe { _mm512_loadu_ps(columns.as_ptr().add(i * GROUP)) };
    }
    for (q, query) in queries.chunks_exact(W).enumerate() {
        let mut lanes = [zero; W];
        for i in 0..W {
            lanes[i] = step::<DOT>(zero, _mm512_set1_ps(query[i]), x[i]);
            if W < LANES {
                // The lanes that are not there are added as zeros: this turns -0 into +0.
                lanes[i] = _mm512_add_ps(lanes[i], zero);
            }
        }
        let mut half = W / 2;
        while half > 0 {
            for i in 0..half {
                lanes[i] = _mm512_add_ps(lanes[i], lanes[i + half]);
            }
            half /= 2;
        }
        let out = &mut out[q * stride..][..count];
        // SAFETY: the mask has `count` bits.
        unsafe { _mm512_mask_storeu_ps(out.as_mut_ptr(), mask, lanes[0]) };
    }
}

/// The first and the last positions of a loop over bytes, each with the mask of what is read there.
fn positions(dim: usize) -> (impl Iterator<Item = usize>, Option<(usize, __mmask64)>) {
    let whole = dim - dim % BYTES;
    let tail = (whole < dim).then(|| (whole, (1u64 << (dim - whole)) - 1));
    ((0..whole).step_by(BYTES), tail)
}

/// 64 bytes from byte `i` of a row; only those in `mask` are read, the others are zero.
///
/// # Safety
/// `row` must have the bytes of `mask` from `i` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn load_bytes(row: *const u8, i: usize, mask: __mmask64) -> __m512i {
    // SAFETY: masked-off bytes are not accessed, and the caller vouches for the others.
    unsafe { _mm512_maskz_loadu_epi8(mask, row.add(i).cast()) }
}

/// Partial sums of QN × RN inner products, and for every query the offset to subtract from them.
struct ByteSums<const QN: usize, const RN: usize> {
    acc: [[__m512i; RN]; QN],
    offset: [__m512i; QN],
}

impl<const QN: usize, const RN: usize> ByteSums<QN, RN> {
    /// Adds the products of the 64 bytes at `i`.
    ///
    /// Unsigned: Σ q·(x − 128) − Σ q·(−128). Signed: Σ (x + 128)·q − Σ 128·q.
    ///
    /// # Safety
    /// Every pointer must have the bytes of `mask` from `i` on.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn step<const SIGNED: bool>(
        &mut self,
        queries: [*const u8; QN],
        rows: [*const u8; RN],
        i: usize,
        mask: __mmask64,
    ) {
        let top = _mm512_set1_epi8(i8::MIN);
        let product = |acc, q, x| {
            if SIGNED { _mm512_dpbusd_epi32(acc, x, q) } else { _mm512_dpbusd_epi32(acc, q, x) }
        };
        let mut x = [top; RN];
        unroll!(r < RN, {
            // SAFETY: as the caller vouches.
            x[r] = _mm512_xor_si512(unsafe { load_bytes(rows[r], i, mask) }, top);
        });
        unroll!(q < QN, {
            // SAFETY: as the caller vouches. Bytes outside the mask are zero here, so that they add nothing.
            let query = unsafe { load_bytes(queries[q], i, mask) };
            self.offset[q] = product(self.offset[q], query, top);
            unroll!(r < RN, {
                self.acc[q][r] = product(self.acc[q][r], query, x[r]);
            });
        });
    }
}

/// 32-bit partial sums of QN × RN inner products of bytes.
///
/// # Safety
/// Every pointer must have `dim` bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn byte_lanes<const SIGNED: bool, const QN: usize, const RN: usize>(
    queries: [*const u8; QN],
    rows: [*const u8; RN],
    dim: usize,
) -> [[__m512; RN]; QN] {
    let zero = _mm512_setzero_si512();
    let mut state = ByteSums { acc: [[zero; RN]; QN], offset: [zero; QN] };
    let (whole, tail) = positions(dim);
    for i in whole {
        // SAFETY: i + 64 <= dim.
        unsafe { state.step::<SIGNED>(queries, rows, i, !0) };
    }
    if let Some((i, mask)) = tail {
        // SAFETY: the mask ends at dim.
        unsafe { state.step::<SIGNED>(queries, rows, i, mask) };
    }
    let ByteSums { acc, offset } = state;
    let mut sums = [[_mm512_setzero_ps(); RN]; QN];
    unroll!(q < QN, {
        unroll!(r < RN, {
            sums[q][r] = _mm512_castsi512_ps(_mm512_sub_epi32(acc[q][r], offset[q]));
        });
    });
    sums
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn byte_pair<const SIGNED: bool>(query: &[u8], row: &[u8]) -> u32 {
    let dim = query.len().min(row.len());
    // SAFETY: both have dim bytes.
    let [[sums]] = unsafe { byte_lanes::<SIGNED, 1, 1>([query.as_ptr()], [row.as_ptr()], dim) };
    _mm512_reduce_add_epi32(_mm512_castps_si512(sums)) as u32
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn byte_strip<const SIGNED: bool>(query: &[u8], rows: &[u8], dim: usize, out: &mut [u32; TILE]) {
    assert!(query.len() >= dim && rows.len() >= STRIP * dim);
    let p = rows.as_ptr();
    let rows = [p, p.wrapping_add(dim), p.wrapping_add(2 * dim), p.wrapping_add(3 * dim)];
    // SAFETY: the lengths were checked above.
    let [acc] = unsafe { byte_lanes::<SIGNED, 1, STRIP>([query.as_ptr()], rows, dim) };
    // SAFETY: out has 16 integers.
    unsafe { _mm_storeu_ps(out.as_mut_ptr().cast(), fold_strip::<true>(acc)) };
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn byte_tile<const SIGNED: bool>(queries: &[u8], rows: &[u8], dim: usize, out: &mut [u32; TILE]) {
    assert!(queries.len() >= Q * dim && rows.len() >= R * dim);
    let (q, p) = (queries.as_ptr(), rows.as_ptr());
    let queries = [q, q.wrapping_add(dim), q.wrapping_add(2 * dim), q.wrapping_add(3 * dim)];
    let rows = [p, p.wrapping_add(dim), p.wrapping_add(2 * dim), p.wrapping_add(3 * dim)];
    // SAFETY: the lengths were checked above.
    let acc = unsafe { byte_lanes::<SIGNED, Q, R>(queries, rows, dim) };
    // SAFETY: out has 16 integers.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr().cast(), fold_tile::<true>(acc)) };
}

/// Adds to (sum, offset) the squares of d = |a − b|, a byte: Σ d² = Σ d·(d − 128) − Σ d·(−128).
///
/// # Safety
/// Both pointers must have the bytes of `mask` from `i` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn byte_squares<const SIGNED: bool>(
    (sum, offset): (__m512i, __m512i),
    a: *const u8,
    b: *const u8,
    i: usize,
    mask: __mmask64,
) -> (__m512i, __m512i) {
    let top = _mm512_set1_epi8(i8::MIN);
    // SAFETY: as the caller vouches.
    let (x, y) = unsafe { (load_bytes(a, i, mask), load_bytes(b, i, mask)) };
    let d = if SIGNED {
        _mm512_sub_epi8(_mm512_max_epi8(x, y), _mm512_min_epi8(x, y))
    } else {
        _mm512_sub_epi8(_mm512_max_epu8(x, y), _mm512_min_epu8(x, y))
    };
    (_mm512_dpbusd_epi32(sum, d, _mm512_xor_si512(d, top)), _mm512_dpbusd_epi32(offset, d, top))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn byte_l2<const SIGNED: bool>(a: &[u8], b: &[u8]) -> u32 {
    let (whole, tail) = positions(a.len().min(b.len()));
    let (a, b) = (a.as_ptr(), b.as_ptr());
    let mut state = (_mm512_setzero_si512(), _mm512_setzero_si512());
    for i in whole {
        // SAFETY: i + 64 <= the shorter length.
        state = unsafe { byte_squares::<SIGNED>(state, a, b, i, !0) };
    }
    if let Some((i, mask)) = tail {
        // SAFETY: the mask ends at the shorter length.
        state = unsafe { byte_squares::<SIGNED>(state, a, b, i, mask) };
    }
    _mm512_reduce_add_epi32(_mm512_sub_epi32(state.0, state.1)) as u32
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn byte_l2_strip(query: &[u8], rows: [&[u8]; STRIP]) -> [u32; STRIP] {
    rows.map(|row| byte_l2::<false>(query, row))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn widen_f16(row: &[u8], out: &mut [f32]) {
    let dim = out.len().min(row.len() / 2);
    for i in (0..dim).step_by(LANES) {
        let mask = if dim - i >= LANES { !0 } else { (1u16 << (dim - i)) - 1 };
        // SAFETY: the mask ends at dim, which both slices have.
        unsafe {
            let wide = load::<true>(row.as_ptr(), i, mask);
            _mm512_mask_storeu_ps(out.as_mut_ptr().add(i), mask, wide);
        }
    }
}
