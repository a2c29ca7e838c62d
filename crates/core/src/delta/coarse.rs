//! Centroids, and codes of rows around them.

use alloc::vec;
use alloc::vec::Vec;

use stratann_kernel::bits::{BitCoder, Layout, Rotation};
use stratann_kernel::distance::{block_l2_f32, dot_f32, inverse_norm};
use stratann_kernel::element::widen;
use stratann_kernel::nearest::nearest;
use stratann_kernel::{DType, Metric, sqrt};

/// Most lists: the centroids of 256 of them are compared at once.
pub const LISTS_MAX: usize = 256;
/// Rows of a sample for each list.
const ROWS_OF_LIST: u64 = 64;
/// Rows of a sample for each centroid that is made of it.
pub const SAMPLE_OF_LIST: usize = 8;
/// Bits of a dimension. Four leave a tenth of a residual, so that few rows but the results need their vectors.
const BITS: usize = 4;
/// Seed of the rotation. All codes of all collections have the same.
const SEED: u64 = 0x64656c7461;
/// Rounds of k-means over the sample.
const ROUNDS: usize = 3;
/// Relative roundings of a vector that is normalised and of the difference to a centroid.
const OF_VECTOR: f32 = 2e-6;
/// Relative roundings of sums over thousands of components stay below this.
pub(super) const ROUNDING: f32 = 2e-5;
/// Lengths of which the squares are no normal floats are below this.
pub(super) const TINY: f32 = 1e-16;
/// Lengths of rows and queries whose distances have no underflow or overflow.
pub(super) const LENGTHS: core::ops::RangeInclusive<f32> = 1e-9..=1e15;

/// Shape of vectors, and how they are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Components.
    pub dim: usize,
    /// Type of a component.
    pub dtype: DType,
    /// How vectors are compared.
    pub metric: Metric,
}

/// Lists for rows of which there are so many: one for each 64, since a centroid costs a query about as much as a few
/// rows of a list.
pub fn lists_for(rows: u64) -> usize {
    (rows / ROWS_OF_LIST).clamp(1, LISTS_MAX as u64) as usize
}

/// Centroids, and what codes of rows are made with.
#[derive(Debug)]
pub struct Coarse {
    shape: Shape,
    pub(super) coder: BitCoder,
    /// Rotated, `dim` components each.
    pub(super) centroids: Vec<f32>,
    /// The longest of them.
    pub(super) longest: f32,
    /// For each centroid and each other one half of the inverse of their distance. None under inner product.
    gaps: Vec<f32>,
}

/// A vector in the axes of the centroids.
#[derive(Clone, Debug, Default)]
pub(super) struct Placed {
    pub(super) vector: Vec<f32>,
    pub(super) length: f32,
    /// How far it may be off.
    pub(super) rounding: f32,
    /// Whether bounds of its distances hold.
    pub(super) is_usable: bool,
}

impl Placed {
    /// Rotates a vector, under cosine after it was normalised.
    pub(super) fn set(&mut self, coder: &BitCoder, shape: &Shape, row: &[u8]) {
        self.vector.clear();
        self.vector.resize(shape.dim, 0.0);
        widen(shape.dtype, row, &mut self.vector);
        let before = length(&self.vector);
        if shape.metric == Metric::Cosine {
            let inverse = inverse_norm(shape.dtype, row);
            self.vector.iter_mut().for_each(|x| *x *= inverse);
        }
        self.length = length(&self.vector);
        self.is_usable = LENGTHS.contains(&before) || before == 0.0 && shape.metric != Metric::Cosine;
        coder.rotate(&mut self.vector);
        self.rounding = (Rotation::rounding(shape.dim) + OF_VECTOR) * self.length;
    }
}

/// What a row is filed under.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filed {
    pub(super) list: usize,
    /// Its distance to the centroid.
    pub(super) length: f32,
    /// Its distance to the point of its code, rounded up.
    pub(super) radius: f32,
}

/// Buffers of encoding.
#[derive(Clone, Debug, Default)]
pub(super) struct Encoding {
    placed: Placed,
    residual: Vec<f32>,
    point: Vec<f32>,
    pub(super) code: Vec<u8>,
}

/// Length of a vector.
pub(super) fn length(x: &[f32]) -> f32 {
    sqrt(dot_f32(x, bytemuck::cast_slice(x)))
}

/// Bits of a code.
pub(super) fn layout(dim: usize) -> Option<Layout> {
    Layout::even(dim, BITS, 0, false)
}

impl Coarse {
    /// Centroids of a sample of rows, `lists` of them or as many as there are rows. `None` without a row, and for
    /// vectors that have no codes.
    pub fn of_sample(shape: Shape, rows: &[u8], lists: usize) -> Option<Coarse> {
        let coder = BitCoder::of_points(layout(shape.dim)?, SEED, shape.metric == Metric::Ip);
        let size = shape.dim * shape.dtype.size();
        let mut placed = Placed::default();
        let mut sample = Vec::with_capacity(rows.len() / size * shape.dim);
        for row in rows.chunks_exact(size) {
            placed.set(&coder, &shape, row);
            if placed.is_usable {
                sample.extend_from_slice(&placed.vector);
            }
        }
        let count = sample.len() / shape.dim;
        let lists = lists.clamp(1, LISTS_MAX).min(count);
        if count == 0 {
            return None;
        }
        let pick = |list: usize| &sample[list * count / lists * shape.dim..][..shape.dim];
        let mut centroids: Vec<f32> = (0..lists).flat_map(|list| pick(list).iter().copied()).collect();
        let rounds = if count > lists { ROUNDS } else { 0 };
        for _ in 0..rounds {
            centroids = moved(&sample, &centroids, shape.dim);
        }
        let longest = centroids.chunks_exact(shape.dim).map(length).fold(0.0, f32::max);
        let gaps = gaps(&shape, &centroids);
        Some(Coarse { shape, coder, centroids, longest, gaps })
    }

    /// Shape of the vectors.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Lists.
    pub fn lists(&self) -> usize {
        self.centroids.len() / self.shape.dim
    }

    /// Memory of the centroids of so many lists.
    pub fn bytes(dim: usize, lists: usize) -> u64 {
        // The coder has a sign for each dimension and round of its rotation, and a centre.
        let lists = lists as u64;
        4 * dim as u64 * (lists + 8) + 4 * lists * lists
    }

    /// Files a row, whose code is in `encoding.code` then. One without a usable code has an infinite radius.
    pub(super) fn file(&self, row: &[u8], encoding: &mut Encoding) -> Filed {
        let Encoding { placed, residual, point, code } = encoding;
        code.clear();
        code.resize(self.coder.layout().code_bytes(), 0);
        placed.set(&self.coder, &self.shape, row);
        if !placed.is_usable {
            return Filed { list: 0, length: f32::INFINITY, radius: f32::INFINITY };
        }
        let (list, _) = nearest(&placed.vector, &self.centroids, self.shape.dim);
        residual.clear();
        residual.extend(placed.vector.iter().zip(self.centroid(list as u32)).map(|(x, c)| x - c));
        let distance = length(residual);
        point.clear();
        point.extend_from_slice(residual);
        self.coder.encode(point, code);
        self.coder.decode(code, point);
        residual.iter_mut().zip(point.iter()).for_each(|(x, p)| *x -= p);
        let rounding = placed.rounding + OF_VECTOR * (self.longest + placed.length);
        let radius = length(residual) * (1.0 + ROUNDING) + rounding + TINY;
        Filed { list, length: distance * (1.0 + ROUNDING) + rounding, radius }
    }

    /// Half of the inverses of the distances of a centroid to all others.
    pub(super) fn gaps(&self, list: u32) -> &[f32] {
        let (list, lists) = (list as usize, self.lists());
        self.gaps.get(list * lists..(list + 1) * lists).unwrap_or_default()
    }

    /// The centroid of a list.
    pub(super) fn centroid(&self, list: u32) -> &[f32] {
        let list = list as usize;
        self.centroids.get(list * self.shape.dim..(list + 1) * self.shape.dim).unwrap_or_default()
    }
}

fn gaps(shape: &Shape, centroids: &[f32]) -> Vec<f32> {
    if shape.metric == Metric::Ip {
        return Vec::new();
    }
    let lists = centroids.len() / shape.dim;
    let mut gaps = vec![0.0; lists * lists];
    for (centroid, gaps) in centroids.chunks_exact(shape.dim).zip(gaps.chunks_exact_mut(lists)) {
        block_l2_f32(centroid, centroids, shape.dim, gaps);
        gaps.iter_mut().for_each(|gap| *gap = 0.5 / sqrt(*gap));
    }
    gaps
}

/// Centroids moved to the means of the rows that are nearest to them. One without rows stays.
fn moved(sample: &[f32], centroids: &[f32], dim: usize) -> Vec<f32> {
    let lists = centroids.len() / dim;
    let (mut sums, mut counts) = (vec![0f32; centroids.len()], vec![0u32; lists]);
    for row in sample.chunks_exact(dim) {
        let (list, _) = nearest(row, centroids, dim);
        counts[list] += 1;
        sums[list * dim..(list + 1) * dim].iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
    for (list, &count) in counts.iter().enumerate() {
        let sum = &mut sums[list * dim..(list + 1) * dim];
        match count {
            0 => sum.copy_from_slice(&centroids[list * dim..(list + 1) * dim]),
            count => sum.iter_mut().for_each(|x| *x /= count as f32),
        }
    }
    sums
}
