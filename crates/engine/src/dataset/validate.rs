//! Finds rows without valid distances and computes statistics of all others, in one pass over the file.

use stratann_params::choices::OnBadRow;

use stratann_core::format::seeded_checksum;
use stratann_kernel::element::widen;
use stratann_kernel::{DType, Metric};
use stratann_storage::{Error, Progress, Result};

use super::{Reader, Shape};

use crate::parallel;

/// Largest squared norm; with all rows below it no squared distance overflows f32.
pub const LARGEST_SQUARED_NORM: f32 = f32::MAX / 8.0;

/// Reason why a row cannot be indexed or searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRow {
    /// A component is NaN or infinite.
    NotFinite {
        /// The first such component.
        component: usize,
        /// True for NaN, false for infinity.
        nan: bool,
    },
    /// A zero vector under cosine.
    ZeroVector,
    /// The squared norm exceeds [`LARGEST_SQUARED_NORM`], under other metrics than cosine.
    TooLarge,
}

impl BadRow {
    /// Returns one line: what, where, what to do.
    pub fn message(self, reader: &Reader, row: u64) -> String {
        format!("row {row} of {}: {self}", reader.path().display())
    }
}

impl std::fmt::Display for BadRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BadRow::NotFinite { component, nan: true } => write!(f, "component {component} is NaN"),
            BadRow::NotFinite { component, nan: false } => write!(f, "component {component} is infinite"),
            BadRow::ZeroVector => write!(f, "a zero vector has no direction, which cosine compares"),
            BadRow::TooLarge => {
                write!(f, "its squared norm exceeds {LARGEST_SQUARED_NORM:e}, distances would overflow")
            }
        }
    }
}

/// Returns why `row` (components of `dtype` as bytes) cannot be used under `metric`; `None` for valid rows.
pub fn check_row(dtype: DType, metric: Metric, row: &[u8]) -> Option<BadRow> {
    let zero = match dtype {
        DType::F32 => {
            let squared = squared_norm(row);
            // A component that is not finite makes the sum so.
            let is_large = squared.is_nan() || squared > LARGEST_SQUARED_NORM;
            if let Some(bad) = is_large.then(|| first_not_finite(dtype, row)).flatten() {
                return Some(bad);
            }
            if is_large && metric != Metric::Cosine {
                return Some(BadRow::TooLarge);
            }
            squared == 0.0 && row.as_chunks::<4>().0.iter().all(|c| f32::from_le_bytes(*c) == 0.0)
        }
        DType::F16 => {
            let (mut highest, mut any) = (0u16, 0u16);
            for c in row.chunks_exact(2) {
                let bits = u16::from_le_bytes([c[0], c[1]]) & 0x7fff;
                highest = highest.max(bits);
                any |= bits;
            }
            if highest >= 0x7c00 {
                return first_not_finite(dtype, row);
            }
            any == 0
        }
        DType::U8 | DType::I8 => metric == Metric::Cosine && row.iter().all(|&c| c == 0),
    };
    (zero && metric == Metric::Cosine).then_some(BadRow::ZeroVector)
}

/// Computes the sum of squares of f32 components, in 16 lanes so that it vectorises.
fn squared_norm(row: &[u8]) -> f32 {
    let mut lanes = [0f32; 16];
    let blocks = row.chunks_exact(64);
    let rest = blocks.remainder();
    for block in blocks {
        for (lane, c) in lanes.iter_mut().zip(block.chunks_exact(4)) {
            let x = f32::from_le_bytes([c[0], c[1], c[2], c[3]]);
            *lane += x * x;
        }
    }
    for (lane, c) in lanes.iter_mut().zip(rest.chunks_exact(4)) {
        let x = f32::from_le_bytes([c[0], c[1], c[2], c[3]]);
        *lane += x * x;
    }
    lanes.iter().sum()
}

fn first_not_finite(dtype: DType, row: &[u8]) -> Option<BadRow> {
    let mut wide = vec![0f32; row.len() / dtype.size()];
    widen(dtype, row, &mut wide);
    let component = wide.iter().position(|x| !x.is_finite())?;
    Some(BadRow::NotFinite { component, nan: wide[component].is_nan() })
}

/// Results of one pass over a set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scan {
    /// Number of valid rows; the statistics are over these.
    pub rows: u64,
    /// Numbers of the invalid rows, ascending.
    pub skipped: Vec<u64>,
    /// Smallest value of every component.
    pub min: Vec<f32>,
    /// Largest value of every component.
    pub max: Vec<f32>,
    /// Mean of every component.
    pub mean: Vec<f64>,
    /// Variance of every component (divided by `rows`).
    pub variance: Vec<f64>,
    /// Largest squared norm.
    pub max_squared_norm: f64,
    /// Mean squared norm.
    pub mean_squared_norm: f64,
    /// Hash of all rows with their numbers, invalid ones included. Those of two parts of a set are added, wrapping.
    pub content: u64,
}

/// Bytes of a chunk: enough for one large read, small enough for the cache.
const CHUNK_BYTES: usize = 256 << 10;
/// Most rows of a chunk, so that f32 sums stay accurate.
const CHUNK_ROWS: usize = 1024;
/// Most chunks whose results wait to be combined in order.
const WAVE: u64 = 64;

/// Reads the set once with all threads of the current rayon pool, checks every row, and computes statistics.
///
/// The result does not depend on the number of threads: chunks are fixed and combined in order. Takes 256 KiB (or one
/// row) per thread and 1 KiB per component.
///
/// # Errors
///
/// `BadInput` for a bad row under [`OnBadRow::Fail`] (the first one is named), or without a valid row. `Interrupted` on
/// request.
pub fn scan(reader: &Reader, metric: Metric, policy: OnBadRow, progress: &dyn Progress) -> Result<Scan> {
    let rows = reader.shape().rows;
    progress.stage("checking vectors", rows, "rows");
    let scan = scan_rows(reader, metric, policy, 0..rows, progress)?;
    if scan.rows == 0 {
        return Err(no_good_row(reader));
    }
    Ok(scan)
}

/// Creates the error of a set without a valid row.
pub(crate) fn no_good_row(reader: &Reader) -> Error {
    Error::bad_input(format!("{}: no row can be indexed; check the file", reader.path().display()))
}

/// Returns the error that names `row` when it cannot be indexed.
pub(crate) fn refuse_row(reader: &Reader, metric: Metric, row: u64) -> Result<()> {
    let mut bytes = Vec::new();
    reader.read_rows(row, 1, &mut bytes)?;
    check_row(reader.shape().dtype, metric, &bytes).map_or(Ok(()), |bad| Err(refusal(reader, row, bad)))
}

fn refusal(reader: &Reader, row: u64, bad: BadRow) -> Error {
    Error::bad_input(format!("{}; correct it or pass --on-bad-row skip", bad.message(reader, row)))
}

/// As [`scan`], of the rows `range`. Without a valid row the statistics are meaningless.
pub(crate) fn scan_rows(
    reader: &Reader,
    metric: Metric,
    policy: OnBadRow,
    range: std::ops::Range<u64>,
    progress: &dyn Progress,
) -> Result<Scan> {
    let shape = reader.shape();
    let chunk_rows = (CHUNK_BYTES / shape.row_bytes()).clamp(1, CHUNK_ROWS);
    let chunks = (range.end - range.start).div_ceil(chunk_rows as u64);
    let mut total = Moments::new(shape.dim);
    let (mut skipped, mut content) = (Vec::new(), 0u64);
    for wave in (0..chunks).step_by(WAVE as usize) {
        progress.check_interrupted()?;
        let chunks = wave..chunks.min(wave + WAVE);
        let results = parallel::map_with(chunks, Scratch::default, |scratch, chunk| -> Result<Chunk> {
            let first = range.start + chunk * chunk_rows as u64;
            let count = (range.end - first).min(chunk_rows as u64) as usize;
            reader.read_rows(first, count, &mut scratch.bytes)?;
            progress.advance(count as u64);
            Ok(scan_chunk(shape, metric, first, scratch))
        });
        for result in results {
            let chunk = result?;
            if let (OnBadRow::Fail, Some(&(row, bad))) = (policy, chunk.bad.first()) {
                return Err(refusal(reader, row, bad));
            }
            skipped.extend(chunk.bad.iter().map(|&(row, _)| row));
            total.merge(&chunk.moments);
            content = content.wrapping_add(chunk.content);
        }
    }
    Ok(Scan { content, ..total.finish(skipped) })
}

#[derive(Default)]
struct Scratch {
    bytes: Vec<u8>,
    wide: Vec<f32>,
}

struct Chunk {
    bad: Vec<(u64, BadRow)>,
    content: u64,
    moments: Moments,
}

fn scan_chunk(shape: Shape, metric: Metric, first: u64, scratch: &mut Scratch) -> Chunk {
    let Scratch { bytes, wide } = scratch;
    wide.resize(shape.dim, 0.0);
    let mut sums = Sums::new(shape.dim);
    let (mut bad, mut content) = (Vec::new(), 0u64);
    for (i, row) in bytes.chunks_exact(shape.row_bytes()).enumerate() {
        content = content.wrapping_add(seeded_checksum(first + i as u64, row));
        match check_row(shape.dtype, metric, row) {
            Some(reason) => bad.push((first + i as u64, reason)),
            None => {
                widen(shape.dtype, row, wide);
                sums.add(wide);
            }
        }
    }
    Chunk { bad, content, moments: sums.finish() }
}

/// Running sums of a chunk, relative to its first valid row, so that f32 keeps its digits when the mean is far from 0.
struct Sums {
    rows: usize,
    origin: Vec<f32>,
    min: Vec<f32>,
    max: Vec<f32>,
    sum: Vec<f32>,
    squares: Vec<f32>,
    max_squared_norm: f64,
    squared_norms: f64,
}

impl Sums {
    fn new(dim: usize) -> Sums {
        Sums {
            rows: 0,
            origin: vec![0.0; dim],
            min: vec![f32::INFINITY; dim],
            max: vec![f32::NEG_INFINITY; dim],
            sum: vec![0.0; dim],
            squares: vec![0.0; dim],
            max_squared_norm: 0.0,
            squared_norms: 0.0,
        }
    }

    fn add(&mut self, row: &[f32]) {
        if self.rows == 0 {
            self.origin.copy_from_slice(row);
        }
        self.rows += 1;
        let dim = row.len();
        let (origin, min, max) = (&self.origin[..dim], &mut self.min[..dim], &mut self.max[..dim]);
        let (sum, squares) = (&mut self.sum[..dim], &mut self.squares[..dim]);
        for i in 0..dim {
            let x = row[i];
            let shifted = x - origin[i];
            min[i] = if x < min[i] { x } else { min[i] };
            max[i] = if x > max[i] { x } else { max[i] };
            sum[i] += shifted;
            squares[i] += shifted * shifted;
        }
        // Rows of any length have a direction, which cosine compares.
        let squared = f64::from(squared_norm(bytemuck::cast_slice(row)).min(f32::MAX));
        self.max_squared_norm = self.max_squared_norm.max(squared);
        self.squared_norms += squared;
    }

    fn finish(self) -> Moments {
        let n = self.rows.max(1) as f64;
        let mean = self.sum.iter().zip(&self.origin).map(|(&s, &o)| f64::from(o) + f64::from(s) / n);
        let deviation = self.squares.iter().zip(&self.sum);
        Moments {
            rows: self.rows as u64,
            mean: mean.collect(),
            deviation: deviation.map(|(&q, &s)| (f64::from(q) - f64::from(s).powi(2) / n).max(0.0)).collect(),
            min: self.min,
            max: self.max,
            max_squared_norm: self.max_squared_norm,
            squared_norms: self.squared_norms,
        }
    }
}

/// Mean and summed squared deviation, which combine without cancellation (Chan, Golub, LeVeque 1979).
struct Moments {
    rows: u64,
    mean: Vec<f64>,
    deviation: Vec<f64>,
    min: Vec<f32>,
    max: Vec<f32>,
    max_squared_norm: f64,
    squared_norms: f64,
}

impl Moments {
    fn new(dim: usize) -> Moments {
        Sums::new(dim).finish()
    }

    fn merge(&mut self, other: &Moments) {
        if other.rows == 0 {
            return;
        }
        let (a, b) = (self.rows as f64, other.rows as f64);
        let n = a + b;
        for i in 0..self.mean.len() {
            let delta = other.mean[i] - self.mean[i];
            self.mean[i] += delta * (b / n);
            self.deviation[i] += other.deviation[i] + delta * delta * (a * b / n);
            self.min[i] = self.min[i].min(other.min[i]);
            self.max[i] = self.max[i].max(other.max[i]);
        }
        self.rows += other.rows;
        self.max_squared_norm = self.max_squared_norm.max(other.max_squared_norm);
        self.squared_norms += other.squared_norms;
    }

    fn finish(self, skipped: Vec<u64>) -> Scan {
        let n = self.rows as f64;
        Scan {
            content: 0,
            rows: self.rows,
            skipped,
            variance: self.deviation.iter().map(|d| d / n).collect(),
            mean: self.mean,
            min: self.min,
            max: self.max,
            max_squared_norm: self.max_squared_norm,
            mean_squared_norm: self.squared_norms / n,
        }
    }
}
