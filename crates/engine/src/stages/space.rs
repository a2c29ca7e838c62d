//! The space in which a graph is built: always squared l2, for every metric of the search.
//!
//! Cosine becomes l2 on unit vectors. Inner product becomes l2 by one additional component, √(M² − ‖x‖²), that gives
//! all rows the norm M (Bachrach et al., RecSys 2014), so that the graph does not favour long vectors. A few rows that
//! are much longer than all others do not decide M: the component would be nearly equal in all other rows. Bytes stay
//! bytes. Floats are quantised to bytes when a sample shows that this keeps the order of near neighbours: a quarter of
//! the memory, and integer distances.

use stratann_core::build::{Points, hash};
use stratann_kernel::distance::{inverse_norm, l2_f32, l2_u8, l2_u8_gathered};
use stratann_kernel::element::widen;
use stratann_kernel::{DType, Metric};
use stratann_storage::{Error, Progress, Result};

use crate::dataset::{Reader, Scan};
use crate::parallel;

/// Representation of points while the graph is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Precision {
    /// One byte per component.
    Byte,
    /// Four bytes per component.
    Float,
}

/// Conversion of rows to points.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    metric: Metric,
    dtype: DType,
    dim: usize,
    /// M², under inner product.
    squared_norm_max: f64,
    /// Whether floats are kept or quantised to bytes.
    pub(crate) precision: Precision,
    // Byte b of component i stands for offset[i] + b · step.
    offset: Vec<f32>,
    step: f32,
}

/// Rows that are sampled to choose the precision.
const SAMPLE: usize = 2000;
/// The largest M, over the norm that one row in a hundred exceeds.
const REACH: f64 = 4.0;
/// Reciprocal of the share of rows that may lie beyond the range of bytes, at each end.
const OUTLIERS: usize = 500;
/// Largest median error of a nearest-neighbour distance for bytes.
const ERROR_MAX: f32 = 0.02;

impl Space {
    /// Chooses the space for the rows of `reader`, whose statistics are `scan`. With `exact`, floats stay floats.
    pub(crate) fn choose(reader: &Reader, metric: Metric, scan: &Scan, exact: bool) -> Result<Space> {
        let shape = reader.shape();
        let mut space = Space {
            metric,
            dtype: shape.dtype,
            dim: shape.dim,
            squared_norm_max: scan.max_squared_norm,
            precision: Precision::Byte,
            offset: Vec::new(),
            step: 1.0,
        };
        if space.is_native() {
            return Ok(space);
        }
        let picked = sampled_rows(reader, scan);
        if metric == Metric::Ip {
            space.squared_norm_max = space.norm_reach(reader, &picked)?;
        }
        if exact {
            space.precision = Precision::Float;
            return Ok(space);
        }
        let sample = space.sample(reader, &picked)?;
        let rows = picked.len();
        // The range of all rows, or else without the few that may be far from all others.
        for left_out in [0, (rows / OUTLIERS).max(1).min((rows - 1) / 2)] {
            space.fit(&sample, left_out);
            if space.byte_error(&sample) <= ERROR_MAX {
                return Ok(space);
            }
        }
        space.precision = Precision::Float;
        Ok(space)
    }

    /// Creates the space of rows whose largest squared norm is known, as floats.
    pub(crate) fn of_floats(metric: Metric, dtype: DType, dim: usize, squared_norm_max: f64) -> Space {
        let precision = Precision::Float;
        Space { metric, dtype, dim, squared_norm_max, precision, offset: Vec::new(), step: 1.0 }
    }

    /// Components of a point.
    pub(crate) fn point_dim(&self) -> usize {
        self.dim + usize::from(self.metric == Metric::Ip)
    }

    /// Bytes of a point.
    pub(crate) fn point_bytes(&self) -> usize {
        self.point_dim() * if self.precision == Precision::Byte { 1 } else { 4 }
    }

    /// Returns whether rows are points without a conversion: bytes under l2.
    fn is_native(&self) -> bool {
        self.metric == Metric::L2 && !self.dtype.is_float()
    }

    /// Converts a row to this space, as floats. `out` has `point_dim` components.
    pub(crate) fn floats(&self, row: &[u8], out: &mut [f32]) {
        let (point, extra) = out.split_at_mut(self.dim);
        widen(self.dtype, row, point);
        match self.metric {
            Metric::L2 => {}
            Metric::Cosine => {
                let scale = inverse_norm(self.dtype, row);
                point.iter_mut().for_each(|x| *x *= scale);
            }
            Metric::Ip => {
                let squared: f64 = point.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
                // M less the component: the same distances, with more digits where M is large.
                let component = (self.squared_norm_max - squared).max(0.0).sqrt();
                let sum = self.squared_norm_max.sqrt() + component;
                extra[0] = (squared.min(self.squared_norm_max) / sum.max(f64::MIN_POSITIVE)) as f32;
            }
        }
    }

    /// Converts a row as it is encoded: a unit vector under cosine, else unchanged. `out` has `dim` components.
    pub(crate) fn code_floats(&self, row: &[u8], out: &mut [f32]) {
        code_floats(self.metric, self.dtype, row, out);
    }

    /// Reads about `count` rows as they are encoded, evenly sampled.
    pub(crate) fn code_sample(
        &self,
        reader: &Reader,
        scan: &Scan,
        count: usize,
        seed: u64,
    ) -> Result<Vec<f32>> {
        let mut out = Vec::with_capacity(count.min(reader.shape().rows as usize) * self.dim);
        self.sampled(reader, scan, (count, seed), |row| out.extend_from_slice(row))?;
        Ok(out)
    }

    /// Passes about `count` rows as they are encoded, evenly sampled by the seed; at least one.
    fn sampled(
        &self,
        reader: &Reader,
        scan: &Scan,
        (count, seed): (usize, u64),
        mut take: impl FnMut(&[f32]),
    ) -> Result<()> {
        let rows = reader.shape().rows;
        let stride = (rows / count.max(1) as u64).max(1);
        let (mut row, mut wide) = (Vec::new(), vec![0f32; self.dim]);
        let (mut start, mut taken) = (0, 0);
        while start < rows && taken < count {
            // One row per stretch: an even sample, read in order.
            let pick = start + hash(seed, 5, start) % stride.min(rows - start);
            start += stride;
            if scan.skipped.binary_search(&pick).is_ok() {
                continue;
            }
            reader.read_rows(pick, 1, &mut row)?;
            self.code_floats(&row, &mut wide);
            take(&wide);
            taken += 1;
        }
        if taken == 0 {
            reader.read_rows(first_live(scan), 1, &mut row)?;
            self.code_floats(&row, &mut wide);
            take(&wide);
        }
        Ok(())
    }

    /// Converts a row to this space, as bytes. `floats` is scratch of `point_dim` components.
    fn bytes(&self, row: &[u8], floats: &mut [f32], out: &mut [u8]) {
        if self.is_native() {
            // l2 does not change when all components are shifted equally.
            let flip = if self.dtype == DType::I8 { 0x80 } else { 0 };
            out.iter_mut().zip(row).for_each(|(o, &b)| *o = b ^ flip);
            return;
        }
        self.floats(row, floats);
        let scale = 1.0 / self.step;
        for ((o, &x), &low) in out.iter_mut().zip(floats.iter()).zip(&self.offset) {
            *o = ((x - low) * scale).round().clamp(0.0, 255.0) as u8;
        }
    }

    /// M² for a set with these rows: the largest squared norm, unless it is far from nearly all others.
    fn norm_reach(&self, reader: &Reader, rows: &[u64]) -> Result<f64> {
        let (mut row, mut wide) = (Vec::new(), vec![0f32; self.dim]);
        let mut squared = Vec::with_capacity(rows.len());
        for &r in rows {
            reader.read_rows(r, 1, &mut row)?;
            widen(self.dtype, &row, &mut wide);
            squared.push(wide.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>());
        }
        squared.sort_unstable_by(f64::total_cmp);
        let long = squared.get(squared.len() * 99 / 100).copied().filter(|&long| long > 0.0);
        Ok(long.map_or(self.squared_norm_max, |long| self.squared_norm_max.min(REACH * REACH * long)))
    }

    fn sample(&self, reader: &Reader, rows: &[u64]) -> Result<Vec<f32>> {
        let mut out = vec![0f32; rows.len() * self.point_dim()];
        let mut row = Vec::new();
        for (point, &r) in out.chunks_exact_mut(self.point_dim()).zip(rows) {
            reader.read_rows(r, 1, &mut row)?;
            self.floats(&row, point);
        }
        Ok(out)
    }

    /// One step for all components (l2 must not be stretched), wide enough for the widest; the offset centres each. So
    /// many of the smallest and largest values of each component may lie beyond the range.
    fn fit(&mut self, sample: &[f32], left_out: usize) {
        let dim = self.point_dim();
        let n = sample.len() / dim;
        let mut column = vec![0f32; n];
        let mut broadest = 0f32;
        let mut middle = vec![0f32; dim];
        for (i, mid) in middle.iter_mut().enumerate() {
            column.iter_mut().enumerate().for_each(|(r, c)| *c = sample[r * dim + i]);
            column.sort_unstable_by(f32::total_cmp);
            // The extreme rows of a sample may differ from those of the set, so there is a margin.
            let (low, high) = (column[left_out], column[n - 1 - left_out]);
            *mid = (low + high) / 2.0;
            broadest = broadest.max((high - low) * 1.1);
        }
        self.step = (broadest / 255.0).max(f32::MIN_POSITIVE * 1e6);
        self.offset = middle.iter().map(|m| m - 127.5 * self.step).collect();
    }

    /// Computes the relative error of bytes in the distance of a row of the sample to its nearest neighbour there: the
    /// median over rows, or a fifth of the 90th percentile when that is more, so that a part of the set on a finer
    /// scale is not ignored.
    fn byte_error(&self, sample: &[f32]) -> f32 {
        let dim = self.point_dim();
        let restored: Vec<f32> = sample
            .iter()
            .enumerate()
            .map(|(at, &x)| {
                let low = self.offset[at % dim];
                low + ((x - low) / self.step).round().clamp(0.0, 255.0) * self.step
            })
            .collect();
        let row = |of: &'_ [f32], i: usize| -> Vec<f32> { of[i * dim..(i + 1) * dim].to_vec() };
        let n = sample.len() / dim;
        let looked_at = n.min(200);
        let errors = parallel::map((0..looked_at).map(|i| i * n / looked_at), |i| {
            let x = row(sample, i);
            let others = (0..n).filter(|&j| j != i);
            let near = others
                .map(|j| (l2_f32(&x, bytemuck::cast_slice(&sample[j * dim..(j + 1) * dim])), j))
                .filter(|d| d.0 > 0.0)
                .min_by(|a, b| a.0.total_cmp(&b.0))?;
            let approximate =
                l2_f32(&row(&restored, i), bytemuck::cast_slice(&restored[near.1 * dim..(near.1 + 1) * dim]));
            // The sample is sparser than the set; true neighbours are nearer, and their error is larger.
            let density = (n as f32 / 1e6).min(1.0).powf(1.0 / 12.0);
            Some((approximate - near.0).abs() / near.0 / density)
        });
        let mut errors: Vec<f32> = errors.into_iter().flatten().collect();
        errors.sort_unstable_by(f32::total_cmp);
        let quantile = |share: usize| errors.get(errors.len() * share / 10).copied().unwrap_or(0.0);
        quantile(5).max(quantile(9) / 5.0)
    }

    /// Reads `rows` (ascending) as points.
    pub(crate) fn load(
        &self,
        reader: &Reader,
        rows: &[u32],
        progress: &dyn Progress,
    ) -> Result<LoadedPoints> {
        const CHUNK: usize = 4096;
        let point_bytes = self.point_bytes();
        let mut data = AlignedBytes::new(rows.len() * point_bytes);
        parallel::try_map(
            data.as_mut().chunks_mut(CHUNK * point_bytes).zip(rows.chunks(CHUNK)),
            |(out, rows)| {
                progress.check_interrupted()?;
                let mut floats = vec![0f32; self.point_dim()];
                let mut points = out.chunks_exact_mut(point_bytes);
                reader.for_each(rows, |row| {
                    let Some(point) = points.next() else { return };
                    match self.precision {
                        Precision::Byte => self.bytes(row, &mut floats, point),
                        Precision::Float => {
                            self.floats(row, &mut floats);
                            point.copy_from_slice(bytemuck::cast_slice(&floats));
                        }
                    }
                })?;
                progress.advance(rows.len() as u64);
                Ok::<_, Error>(())
            },
        )?;
        Ok(LoadedPoints { data, point_bytes, precision: self.precision })
    }

    /// Reads `rows` (ascending) as floats of this space into `out`, `point_dim` each.
    pub(crate) fn load_floats(&self, reader: &Reader, rows: &[u32], out: &mut [f32]) -> Result<()> {
        let mut points = out.chunks_exact_mut(self.point_dim());
        reader.for_each(rows, |row| {
            if let Some(point) = points.next() {
                self.floats(row, point);
            }
        })
    }
}

/// Draws rows that are not left out, ascending; at least one.
fn sampled_rows(reader: &Reader, scan: &Scan) -> Vec<u64> {
    let rows = reader.shape().rows;
    let mut picked: Vec<u64> = (0..SAMPLE as u64).map(|i| hash(0x5ACE, 0, i) % rows).collect();
    picked.sort_unstable();
    picked.dedup();
    picked.retain(|r| scan.skipped.binary_search(r).is_err());
    if picked.is_empty() {
        picked.push(first_live(scan));
    }
    picked
}

/// Returns the first row that is not left out.
fn first_live(scan: &Scan) -> u64 {
    (0..)
        .zip(&scan.skipped)
        .find(|(row, skipped)| row != *skipped)
        .map_or(scan.skipped.len() as u64, |(row, _)| row)
}

/// Bytes aligned like f32.
struct AlignedBytes(Vec<u32>, usize);

impl AlignedBytes {
    fn new(len: usize) -> AlignedBytes {
        AlignedBytes(vec![0; len.div_ceil(4)], len)
    }

    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.0)[..self.1]
    }

    fn as_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.0)[..self.1]
    }
}

/// Points in RAM.
pub(crate) struct LoadedPoints {
    data: AlignedBytes,
    point_bytes: usize,
    precision: Precision,
}

impl LoadedPoints {
    #[inline]
    fn point(&self, a: u32) -> &[u8] {
        let at = a as usize * self.point_bytes;
        &self.data.as_ref()[at..at + self.point_bytes]
    }

    /// Returns the point nearest to the mean: the entry point of searches.
    pub(crate) fn medoid(&self) -> u32 {
        let dim = self.point_bytes / if self.precision == Precision::Byte { 1 } else { 4 };
        let dtype = if self.precision == Precision::Byte { DType::U8 } else { DType::F32 };
        let n = self.len();
        // Every point counts in small sets, an even sample in large ones.
        let stride = n.div_ceil(100_000).max(1);
        let (mut sum, mut wide) = (vec![0f64; dim], vec![0f32; dim]);
        for a in (0..n).step_by(stride) {
            widen(dtype, self.point(a as u32), &mut wide);
            sum.iter_mut().zip(&wide).for_each(|(s, &x)| *s += f64::from(x));
        }
        let count = n.div_ceil(stride) as f64;
        let mean: Vec<f32> = sum.iter().map(|s| (s / count) as f32).collect();
        let mut best = (f32::INFINITY, 0);
        for a in 0..n as u32 {
            widen(dtype, self.point(a), &mut wide);
            let distance = l2_f32(&mean, bytemuck::cast_slice(&wide));
            if distance < best.0 {
                best = (distance, a);
            }
        }
        best.1
    }
}

impl Points for LoadedPoints {
    fn len(&self) -> usize {
        self.data.1 / self.point_bytes
    }

    #[inline]
    fn distance(&self, a: u32, b: u32) -> f32 {
        match self.precision {
            Precision::Byte => l2_u8(self.point(a), self.point(b)) as f32,
            Precision::Float => l2_f32(bytemuck::cast_slice(self.point(a)), self.point(b)),
        }
    }

    fn distances(&self, a: u32, others: &[u32], out: &mut Vec<f32>) {
        if self.precision == Precision::Byte {
            return l2_u8_gathered(self.point(a), self.data.as_ref(), others, out);
        }
        let point: &[f32] = bytemuck::cast_slice(self.point(a));
        out.clear();
        out.extend(others.iter().map(|&b| l2_f32(point, self.point(b))));
    }

    #[inline]
    fn prefetch(&self, a: u32) {
        stratann_kernel::prefetch(self.point(a));
    }
}

/// Converts a row as it is encoded: a unit vector under cosine, else unchanged. `out` has the components of one.
pub(crate) fn code_floats(metric: Metric, dtype: DType, row: &[u8], out: &mut [f32]) {
    widen(dtype, row, out);
    if metric == Metric::Cosine {
        let scale = inverse_norm(dtype, row);
        out.iter_mut().for_each(|x| *x *= scale);
    }
}
