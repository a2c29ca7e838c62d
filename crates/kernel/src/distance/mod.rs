//! Distances between a query and rows, for every element type and metric.
//!
//! A row is `dim` components as little-endian bytes, unaligned. Both arguments must have the same number of components
//! (at most [`MAX_DIM`]); surplus components of the longer one are ignored.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod block;
mod forms;
mod gathered;
mod narrow;
#[cfg(target_arch = "aarch64")]
mod neon;
pub mod scalar;
#[cfg(test)]
mod tests;

use crate::{DType, Metric};

/// Dimensions up to which integer sums cannot overflow (65,536 × 255² < 2³²).
pub const MAX_DIM: usize = 65_536;

pub use block::{block_dot_f32, block_dot_i8, block_dot_u8, block_l2_f32, block_l2_i8, block_l2_u8};
#[cfg(target_arch = "x86_64")]
pub(crate) use forms::unroll;
pub use gathered::l2_u8_gathered;

/// Squared Euclidean distance; `row` is f32 as bytes.
#[inline]
pub fn l2_f32(query: &[f32], row: &[u8]) -> f32 {
    // SAFETY: the current table is one that this machine can run.
    unsafe { (forms::current().l2_f32.pair)(query, row) }
}

/// Inner product; `row` is f32 as bytes.
#[inline]
pub fn dot_f32(query: &[f32], row: &[u8]) -> f32 {
    // SAFETY: the current table is one that this machine can run.
    unsafe { (forms::current().dot_f32.pair)(query, row) }
}

/// Squared Euclidean distance; `row` is f16 as bytes.
#[inline]
pub fn l2_f16(query: &[f32], row: &[u8]) -> f32 {
    // SAFETY: the current table is one that this machine can run.
    unsafe { (forms::current().l2_f16.pair)(query, row) }
}

/// Inner product; `row` is f16 as bytes.
#[inline]
pub fn dot_f16(query: &[f32], row: &[u8]) -> f32 {
    // SAFETY: the current table is one that this machine can run.
    unsafe { (forms::current().dot_f16.pair)(query, row) }
}

/// Squared Euclidean distance of unsigned bytes, exact.
#[inline]
pub fn l2_u8(a: &[u8], b: &[u8]) -> u32 {
    // SAFETY: the current table is one that this machine can run.
    unsafe { (forms::current().l2_u8)(a, b) }
}

/// Squared Euclidean distances of unsigned bytes to four rows, exact.
#[inline]
pub(crate) fn l2_u8_strip(query: &[u8], rows: [&[u8]; 4]) -> [u32; 4] {
    // SAFETY: a table in use is one that this machine can run.
    unsafe { (forms::current().l2_u8_strip)(query, rows) }
}

/// Inner product of unsigned bytes, exact.
#[inline]
pub fn dot_u8(a: &[u8], b: &[u8]) -> u32 {
    // SAFETY: the current table is one that this machine can run.
    unsafe { (forms::current().dot_u8.pair)(a, b) }
}

/// Squared Euclidean distance of signed bytes (given as their bit patterns), exact.
#[inline]
pub fn l2_i8(a: &[u8], b: &[u8]) -> u32 {
    // SAFETY: the current table is one that this machine can run.
    unsafe { (forms::current().l2_i8)(a, b) }
}

/// Inner product of signed bytes (given as their bit patterns), exact.
#[inline]
pub fn dot_i8(a: &[u8], b: &[u8]) -> i32 {
    // SAFETY: the current table is one that this machine can run.
    unsafe { (forms::current().dot_i8.pair)(a, b) as i32 }
}

/// Widens f16 (as bytes) to f32, as many components as both slices have.
#[inline]
pub(crate) fn widen_f16(row: &[u8], out: &mut [f32]) {
    // SAFETY: the current table is one that this machine can run.
    unsafe { (forms::current().widen_f16)(row, out) }
}

/// A query prepared for exact distances to stored rows.
#[derive(Clone, Debug, Default)]
pub struct Exact {
    metric: Option<Metric>,
    dtype: Option<DType>,
    floats: Vec<f32>,
    bytes: Vec<u8>,
    inverse_norm: f32,
}

impl Exact {
    /// Prepares `query` (`dim` components of `dtype`, as bytes) for distances to rows of the same type.
    ///
    /// Surplus bytes are ignored, missing ones are zeros.
    pub fn set(&mut self, metric: Metric, dtype: DType, dim: usize, query: &[u8]) {
        self.metric = Some(metric);
        self.dtype = Some(dtype);
        self.bytes.clear();
        self.bytes.extend_from_slice(&query[..query.len().min(dim * dtype.size())]);
        self.bytes.resize(dim * dtype.size(), 0);
        self.floats.clear();
        self.floats.resize(dim, 0.0);
        crate::element::widen(dtype, &self.bytes, &mut self.floats);
        self.inverse_norm = inverse_norm(dtype, &self.bytes);
        if metric == Metric::Cosine {
            self.inverse_norm = balance(&mut self.floats, self.inverse_norm);
        }
    }

    /// Computes the distances to contiguous rows, each with the bits of [`distance`](Self::distance).
    ///
    /// `out` is cleared, then gets one distance per whole row in `rows`. For cosine, `inverse_norms` has an
    /// [`inverse_norm`] per row (a missing one counts as 0); the other metrics do not read it.
    pub fn distances(&self, rows: &[u8], inverse_norms: &[f32], out: &mut Vec<f32>) {
        out.clear();
        let (Some(metric), Some(dtype)) = (self.metric, self.dtype) else { return };
        let row_bytes = self.bytes.len();
        if row_bytes == 0 {
            return;
        }
        out.resize(rows.len() / row_bytes, 0.0);
        let kernels = forms::current();
        match (metric, dtype) {
            (Metric::L2, DType::F32) => self.floats_to(&kernels.l2_f32, rows, out),
            (Metric::L2, DType::F16) => self.floats_to(&kernels.l2_f16, rows, out),
            (_, DType::F32) => self.floats_to(&kernels.dot_f32, rows, out),
            (_, DType::F16) => self.floats_to(&kernels.dot_f16, rows, out),
            (Metric::L2, DType::U8) => self.bytes_to(rows, out, |q, x| l2_u8(q, x) as f32),
            (Metric::L2, DType::I8) => self.bytes_to(rows, out, |q, x| l2_i8(q, x) as f32),
            (_, DType::U8) => self.bytes_to(rows, out, |q, x| dot_u8(q, x) as f32),
            (_, DType::I8) => self.bytes_to(rows, out, |q, x| dot_i8(q, x) as f32),
        }
        match metric {
            Metric::L2 => {}
            Metric::Ip => out.iter_mut().for_each(|o| *o = -*o),
            Metric::Cosine => {
                let norms = inverse_norms.iter().copied().chain(std::iter::repeat(0.0));
                out.iter_mut().zip(norms).for_each(|(o, norm)| *o = self.cosine(*o, norm));
            }
        }
    }

    /// Computes the distances to the rows with these numbers, each with the bits of [`distance`](Self::distance).
    ///
    /// `out` is cleared, then gets one distance for each number; that of a row that is not in `rows` is infinite.
    /// `norm` gives the [`inverse_norm`] of a row, under cosine alone. Rows are prefetched ahead of their turn.
    pub fn distances_of(&self, rows: &[u8], numbers: &[u32], norm: impl Fn(u32) -> f32, out: &mut Vec<f32>) {
        out.clear();
        let (Some(metric), Some(dtype)) = (self.metric, self.dtype) else { return };
        let kernels = forms::current();
        let (floats, bytes) = (&self.floats[..], &self.bytes[..]);
        // SAFETY: the current table is one that this machine can run.
        match (metric, dtype) {
            (Metric::L2, DType::F32) => {
                // SAFETY: as above.
                self.each_row(rows, numbers, out, |x| unsafe { (kernels.l2_f32.pair)(floats, x) })
            }
            (Metric::L2, DType::F16) => {
                // SAFETY: as above.
                self.each_row(rows, numbers, out, |x| unsafe { (kernels.l2_f16.pair)(floats, x) })
            }
            (Metric::L2, DType::U8) => {
                // SAFETY: as above.
                self.each_row(rows, numbers, out, |x| unsafe { (kernels.l2_u8)(bytes, x) as f32 })
            }
            (Metric::L2, DType::I8) => {
                // SAFETY: as above.
                self.each_row(rows, numbers, out, |x| unsafe { (kernels.l2_i8)(bytes, x) as f32 })
            }
            (_, DType::F32) => {
                // SAFETY: as above.
                self.each_row(rows, numbers, out, |x| unsafe { (kernels.dot_f32.pair)(floats, x) })
            }
            (_, DType::F16) => {
                // SAFETY: as above.
                self.each_row(rows, numbers, out, |x| unsafe { (kernels.dot_f16.pair)(floats, x) })
            }
            (_, DType::U8) => {
                // SAFETY: as above.
                self.each_row(rows, numbers, out, |x| unsafe { (kernels.dot_u8.pair)(bytes, x) as f32 });
            }
            (_, DType::I8) => {
                // SAFETY: as above.
                self.each_row(rows, numbers, out, |x| unsafe {
                    (kernels.dot_i8.pair)(bytes, x) as i32 as f32
                });
            }
        }
        match metric {
            Metric::L2 => {}
            Metric::Ip => out.iter_mut().for_each(|o| *o = -*o),
            Metric::Cosine => {
                out.iter_mut().zip(numbers).for_each(|(o, &number)| *o = self.cosine(*o, norm(number)));
            }
        }
    }

    #[inline(always)]
    fn each_row(&self, rows: &[u8], numbers: &[u32], out: &mut Vec<f32>, pair: impl Fn(&[u8]) -> f32) {
        // Long rows keep the memory busy by themselves.
        const AHEAD_BYTES: usize = 2048;
        let size = self.bytes.len();
        let rows_ahead = (AHEAD_BYTES / size.max(1)).clamp(2, 16);
        let row = |number: u32| rows.get(number as usize * size..(number as usize + 1) * size);
        numbers.iter().take(rows_ahead).filter_map(|&number| row(number)).for_each(crate::prefetch);
        for (at, &number) in numbers.iter().enumerate() {
            if let Some(next) = numbers.get(at + rows_ahead).and_then(|&number| row(number)) {
                crate::prefetch(next);
            }
            out.push(row(number).map_or(f32::INFINITY, &pair));
        }
    }

    fn floats_to(&self, forms: &forms::Forms<f32, f32>, rows: &[u8], out: &mut [f32]) {
        block::one_to_many(forms, &self.floats, rows, self.bytes.len(), out);
    }

    fn bytes_to(&self, rows: &[u8], out: &mut [f32], pair: impl Fn(&[u8], &[u8]) -> f32) {
        for (out, row) in out.iter_mut().zip(rows.chunks_exact(self.bytes.len())) {
            *out = pair(&self.bytes, row);
        }
    }

    fn cosine(&self, dot: f32, row_inverse_norm: f32) -> f32 {
        1.0 - dot * self.inverse_norm * row_inverse_norm
    }

    /// Computes the distance to one row; `row_inverse_norm` is [`inverse_norm`] of the row, used by cosine only.
    pub fn distance(&self, row: &[u8], row_inverse_norm: f32) -> f32 {
        let (Some(metric), Some(dtype)) = (self.metric, self.dtype) else { return f32::INFINITY };
        match metric {
            Metric::L2 => match dtype {
                DType::F32 => l2_f32(&self.floats, row),
                DType::F16 => l2_f16(&self.floats, row),
                DType::U8 => l2_u8(&self.bytes, row) as f32,
                DType::I8 => l2_i8(&self.bytes, row) as f32,
            },
            Metric::Ip => -self.dot(dtype, row),
            Metric::Cosine => self.cosine(self.dot(dtype, row), row_inverse_norm),
        }
    }

    fn dot(&self, dtype: DType, row: &[u8]) -> f32 {
        match dtype {
            DType::F32 => dot_f32(&self.floats, row),
            DType::F16 => dot_f16(&self.floats, row),
            DType::U8 => dot_u8(&self.bytes, row) as f32,
            DType::I8 => dot_i8(&self.bytes, row) as f32,
        }
    }
}

/// Squared norms beyond these bounds lose digits as f32, or have none.
const SQUARED_NORMS: core::ops::RangeInclusive<f32> = 1e-30..=1e30;

/// 1 / ‖row‖, or 0 for a zero row. Right for rows whose squared norm is no f32, too.
pub fn inverse_norm(dtype: DType, row: &[u8]) -> f32 {
    let squared = match dtype {
        DType::F32 if let Ok(aligned) = bytemuck::try_cast_slice(row) => dot_f32(aligned, row),
        DType::F32 | DType::F16 => {
            let mut wide = vec![0f32; row.len() / dtype.size()];
            crate::element::widen(dtype, row, &mut wide);
            dot_f32(&wide, bytemuck::cast_slice(&wide))
        }
        DType::U8 => dot_u8(row, row) as f32,
        DType::I8 => dot_i8(row, row) as f32,
    };
    if SQUARED_NORMS.contains(&squared) {
        return 1.0 / squared.sqrt();
    }
    let mut wide = vec![0f32; row.len() / dtype.size()];
    crate::element::widen(dtype, row, &mut wide);
    let squared: f64 = wide.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    if squared > 0.0 { ((1.0 / squared.sqrt()) as f32).min(f32::MAX) } else { 0.0 }
}

/// Scales a vector by a power of two to a length near 1, unless its squared length is a good f32 already. Returns the
/// inverse of its length, given that of before. Products of very long or very short vectors keep their digits.
pub fn balance(vector: &mut [f32], inverse_norm: f32) -> f32 {
    let squared = 1.0 / (inverse_norm * inverse_norm);
    if inverse_norm == 0.0 || SQUARED_NORMS.contains(&squared) {
        return inverse_norm;
    }
    // Halves of the exponent, since the whole of it may be no f32.
    let half = 2f32.powi((inverse_norm.log2() / 2.0).round() as i32);
    vector.iter_mut().for_each(|x| *x = *x * half * half);
    inverse_norm / half / half
}
