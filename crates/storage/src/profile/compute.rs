//! Measures the costs of distances on one core.

use std::hint::black_box;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use stratann_core::build::hash;
use stratann_kernel::bits::{BitCoder, BitQuery, Layout};
use stratann_kernel::distance::Exact;
use stratann_kernel::{DType, Metric};

use super::fit;
use crate::tier::Resident;
use crate::{Error, Progress, Result};

/// Cost of one kind of distance by the size of its vectors: `fixed_ns + size × ns_per_unit`, fitted by relative errors
/// and rounded to powers of √2.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DistanceCost {
    /// Fixed cost, nanoseconds.
    pub fixed_ns: f64,
    /// Cost per component, or per byte of a code, nanoseconds.
    pub ns_per_unit: f64,
    /// Measurements of the fit.
    pub measured: Vec<TimedDistance>,
}

/// Measurement of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimedDistance {
    /// Components of a vector, or bytes of a code.
    pub size: u32,
    /// Time of one distance, nanoseconds.
    pub ns: f64,
}

impl DistanceCost {
    fn fit(measured: Vec<TimedDistance>) -> DistanceCost {
        let points: Vec<(f64, f64)> = measured.iter().map(|m| (f64::from(m.size), m.ns)).collect();
        let (fixed_ns, ns_per_unit) = fit::line(&points);
        DistanceCost { fixed_ns: fit::rounded(fixed_ns), ns_per_unit: fit::rounded(ns_per_unit), measured }
    }

    /// Time of one distance, nanoseconds.
    pub fn ns(&self, size: usize) -> f64 {
        self.fixed_ns + size as f64 * self.ns_per_unit
    }

    fn is_consistent(&self) -> bool {
        [self.fixed_ns, self.ns_per_unit].iter().all(|x| x.is_finite() && *x >= 0.0) && self.ns(1) > 0.0
    }
}

/// Costs of distances on one idle core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComputeCosts {
    /// Exact l2 of f32 rows in cache: `C_vec` of OrchANN, §5.1. Sizes are components, as in the next two.
    pub full_f32: DistanceCost,
    /// Cost of distances to f16 rows.
    pub full_f16: DistanceCost,
    /// Cost of distances to u8 rows; i8 rows cost the same.
    pub full_u8: DistanceCost,
    /// Cost of distances by codes, from more data than a cache holds. Sizes are bytes of a code.
    pub codes: DistanceCost,
}

impl ComputeCosts {
    /// Cost of an exact distance of two vectors of `dim` components, nanoseconds.
    pub fn full_ns(&self, dtype: DType, dim: usize) -> f64 {
        let cost = match dtype {
            DType::F32 => &self.full_f32,
            DType::F16 => &self.full_f16,
            DType::U8 | DType::I8 => &self.full_u8,
        };
        cost.ns(dim)
    }

    /// Returns false for values from a file that cannot have been measured.
    pub(super) fn is_consistent(&self) -> bool {
        [&self.full_f32, &self.full_f16, &self.full_u8, &self.codes].iter().all(|c| c.is_consistent())
    }
}

const DIMS: [u32; 4] = [96, 128, 384, 768];
const CODE_BYTES: [u32; 3] = [32, 64, 192];
/// Rows per round; they stay in the level-2 cache.
const ROWS_BYTES: usize = 256 << 10;
/// Number of stored codes, and of codes drawn per round.
const CODES_BYTES: usize = 32 << 20;
const DRAWN: usize = 4096;

/// Measures for about `time`.
pub(super) fn measure(time: Duration, progress: &dyn Progress) -> Result<ComputeCosts> {
    let settings = 3 * DIMS.len() + CODE_BYTES.len();
    let slice = time / settings as u32;
    let codes = codes()?;
    progress.stage("timing distances", settings as u64, "settings");
    let each = |sizes: &[u32], one: &dyn Fn(u32) -> f64| -> Result<DistanceCost> {
        let mut measured = Vec::new();
        for &size in sizes {
            progress.check_interrupted()?;
            measured.push(TimedDistance { size, ns: one(size) });
            progress.advance(1);
        }
        Ok(DistanceCost::fit(measured))
    };
    Ok(ComputeCosts {
        full_f32: each(&DIMS, &|dim| time_full(DType::F32, dim as usize, slice))?,
        full_f16: each(&DIMS, &|dim| time_full(DType::F16, dim as usize, slice))?,
        full_u8: each(&DIMS, &|dim| time_full(DType::U8, dim as usize, slice))?,
        codes: each(&CODE_BYTES, &|bytes| time_codes(&codes, bytes as usize, slice))?,
    })
}

/// Runs `round` for `time`, at least twice; it returns the time of its `count` distances. Returns the time of one
/// distance in the fastest round, which other programs rarely disturb, nanoseconds.
fn fastest_ns(time: Duration, count: usize, mut round: impl FnMut() -> Duration) -> f64 {
    let (started, mut best, mut rounds) = (Instant::now(), Duration::MAX, 0);
    while rounds < 2 || started.elapsed() < time {
        best = best.min(round());
        rounds += 1;
    }
    best.as_nanos().max(1) as f64 / count as f64
}

fn time_full(dtype: DType, dim: usize, time: Duration) -> f64 {
    let row_bytes = dim * dtype.size();
    let count = ROWS_BYTES / row_bytes;
    let rows = components(dtype, count * dim);
    let (mut exact, mut out) = (Exact::default(), Vec::new());
    exact.set(Metric::L2, dtype, dim, &rows[..row_bytes]);
    fastest_ns(time, count, || {
        let started = Instant::now();
        exact.distances(black_box(&rows), &[], &mut out);
        black_box(&out);
        started.elapsed()
    })
}

/// Draws components between −1 and 1, or arbitrary bytes.
fn components(dtype: DType, count: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count * dtype.size());
    for drawn in floats(count, 1) {
        match dtype {
            DType::F32 => bytes.extend_from_slice(&drawn.to_le_bytes()),
            DType::F16 => bytes.extend_from_slice(&half::f16::from_f32(drawn).to_le_bytes()),
            DType::U8 | DType::I8 => bytes.push((drawn * 127.0) as i8 as u8),
        }
    }
    bytes
}

fn floats(count: usize, stream: u64) -> Vec<f32> {
    let draw = |i| (hash(5, stream, i) >> 40) as f32 / (1u32 << 23) as f32 - 1.0;
    (0..count as u64).map(draw).collect()
}

/// Allocates codes like those of an index: in huge pages, if available.
fn codes() -> Result<Resident> {
    let none =
        || Error::budget(format!("no memory for {CODES_BYTES} bytes of codes; free some, and measure again"));
    let mut codes = Resident::new(CODES_BYTES).ok_or_else(none)?;
    let words = codes.chunks_exact_mut(8).zip(0..);
    words.for_each(|(word, i)| word.copy_from_slice(&hash(5, 4, i).to_le_bytes()));
    Ok(codes)
}

fn time_codes(codes: &[u8], bytes: usize, time: Duration) -> f64 {
    // Two bits a dimension, as for codes with a quarter as many bytes as a vector has components; factors come to them.
    let dim = 4 * bytes;
    let Some(layout) = Layout::even(dim, 2, 0, false) else { return f64::INFINITY };
    let coder = BitCoder::new(layout, 2, &vec![0.0; dim], &[], false);
    let mut query = BitQuery::default();
    query.set(&coder, &floats(dim, 3), &mut Vec::new());
    let count = (CODES_BYTES / layout.code_bytes()) as u64;
    let (mut drawn, mut ids, mut out) = (0, vec![0u32; DRAWN], Vec::new());
    fastest_ns(time, DRAWN, || {
        for id in &mut ids {
            drawn += 1;
            *id = (hash(5, 5, drawn) % count) as u32;
        }
        let started = Instant::now();
        query.distances(black_box(codes), &ids, &mut out);
        black_box(&out);
        started.elapsed()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quiet;

    #[test]
    fn distances_cost_more_the_longer_they_are() {
        let costs = measure(Duration::from_millis(1), &Quiet).unwrap();
        assert!(costs.is_consistent(), "{costs:?}");
        let sizes = |cost: &DistanceCost| cost.measured.iter().map(|m| m.size).collect::<Vec<_>>();
        assert_eq!(sizes(&costs.full_f16), DIMS);
        assert_eq!(sizes(&costs.codes), CODE_BYTES);
        assert!(costs.full_ns(DType::F32, 768) >= costs.full_ns(DType::F32, 96));
        assert_eq!(costs.full_ns(DType::I8, 100), costs.full_u8.ns(100));
    }

    #[test]
    fn what_is_compared_looks_like_vectors() {
        let rows = components(DType::F32, 1000);
        let values: Vec<f32> = rows.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        assert!(values.iter().all(|x| (-1.0..=1.0).contains(x)));
        assert!(values.iter().sum::<f32>().abs() < 100.0);
        assert_eq!((components(DType::U8, 10).len(), components(DType::F16, 10).len()), (10, 20));
    }
}
