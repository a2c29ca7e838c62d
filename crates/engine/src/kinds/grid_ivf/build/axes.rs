//! The axes of the stored components: the directions of largest variance first, so that the first components tell most
//! of a distance. Vectors with codes keep their values in another order: the codes tell nearly all. So do others, but
//! for floats of 32 bits in several groups of components: these are turned to their principal axes, where they keep
//! their digits.

use serde::{Deserialize, Serialize};
use stratann_core::format::grid::GridLayout;
use stratann_kernel::distance::{dot_f32, l2_f32};
use stratann_kernel::{DType, Metric};
use stratann_storage::Result;

use crate::codebook::principal_axes::{group_of, principal_axes};
use crate::dataset::Scan;
use crate::files;
use crate::kinds::grid_ivf::facts::{code_bits, keeps_digits, pilot_of, scale_exponent};
use crate::kinds::grid_ivf::open::{StoredAxes, StoredPilot};
use crate::parallel;
use crate::stages::build::Build;
use crate::stages::space::Space;
use crate::stages::tables::write_table;

/// Facts of the axes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct AxesFacts {
    pub(super) scale_exponent: i32,
    pub(super) pilot: usize,
    pub(super) pilot_step: f32,
    #[serde(default)]
    pub(super) code_bits: usize,
    #[serde(default)]
    pub(super) keeps_digits: bool,
}

/// Finds the axes and writes them.
pub(super) fn run(build: &Build<'_>, space: &Space, scan: &Scan, lists: u32) -> Result<AxesFacts> {
    let shape = build.base.shape();
    let (dim, metric) = (shape.dim, build.options.metric);
    let mut sample = space.code_sample(build.base, scan, build.plan.codebook_sample, build.options.seed)?;
    // Differences do not depend on the mean; products do.
    let means = if metric == Metric::Ip { vec![0.0; dim] } else { centre(&mut sample, dim) };
    let spreads = spreads(&sample, dim);
    let spread: f64 = spreads.iter().sum();
    let near = if metric == Metric::Ip { Near::norms(&sample, dim) } else { Near::neighbours(&sample, dim) };
    let code_bits = code_bits(shape.dtype, (dim, build.id_bytes()), scan.rows, lists.into());
    let is_rotated = shape.dtype == DType::F32
        && code_bits == 0
        && GridLayout::edges_of(dim).len() > 2
        && (metric == Metric::Ip || keeps_digits(dim, spread, near.tenth));
    build.progress.stage("finding axes", 1, "matrix");
    let pilot = if code_bits > 0 { 0 } else { pilot_of(shape.dtype, metric, dim) };
    let rotation = if is_rotated || pilot > 0 { rotation(build, &sample, dim)? } else { vec![] };
    let (stored, step) = of_pilot(&rotation[..(pilot * dim).min(rotation.len())], &sample, &means);
    let mut centre = Vec::new();
    let axes = if is_rotated {
        // Products need the vectors themselves, and unit vectors are near zero.
        let from = if metric == Metric::L2 { &means } else { &vec![0.0; dim] };
        StoredAxes::Rotated([&rotation[..], from].concat())
    } else {
        let order = by_spread(&spreads);
        if code_bits > 0 {
            centre = order.iter().map(|&c| means[c as usize]).collect();
        }
        StoredAxes::Ordered(order)
    };
    build.progress.advance(1);
    let floats = stored.axes.iter().chain(&stored.offsets).chain(&centre).flat_map(|x| x.to_le_bytes());
    let bytes: Vec<u8> = axes.encode().iter().copied().chain(floats).collect();
    write_table(&build.file(files::AXES), &bytes)?;
    let scale_exponent = scale_exponent(shape.dtype, metric, spread, near.median);
    Ok(AxesFacts { scale_exponent, pilot, pilot_step: step, code_bits, keeps_digits: is_rotated })
}

/// A pilot with these axes, whose codes reach over the rows of the centred sample and a little farther, and its step.
fn of_pilot(axes: &[f32], sample: &[f32], means: &[f32]) -> (StoredPilot, f32) {
    const MARGIN: f32 = 0.1;
    let dim = means.len();
    let (mut offsets, mut widest) = (Vec::new(), 0f32);
    for axis in axes.chunks_exact(dim) {
        let along = |row: &[f32]| dot_f32(row, bytemuck::cast_slice(axis));
        let (low, high) = sample
            .chunks_exact(dim)
            .map(along)
            .fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
        let margin = MARGIN * (high - low);
        widest = widest.max(high - low + 2.0 * margin);
        offsets.push(along(means) + low - margin);
    }
    let step = if widest > 0.0 { widest / 255.0 } else { 1.0 };
    (StoredPilot { axes: axes.to_vec(), offsets }, step)
}

/// Subtracts the means, and returns them.
fn centre(sample: &mut [f32], dim: usize) -> Vec<f32> {
    let mut sums = vec![0f64; dim];
    sample.chunks_exact(dim).for_each(|row| sums.iter_mut().zip(row).for_each(|(s, &x)| *s += f64::from(x)));
    let count = (sample.len() / dim).max(1) as f64;
    let means: Vec<f32> = sums.iter().map(|sum| (sum / count) as f32).collect();
    sample.chunks_exact_mut(dim).for_each(|row| row.iter_mut().zip(&means).for_each(|(x, m)| *x -= m));
    means
}

/// Squared distances that are small among all.
struct Near {
    tenth: f64,
    median: f64,
}

impl Near {
    /// Distances of some rows of a sample to their nearest neighbours in it, which are not equal to them.
    fn neighbours(sample: &[f32], dim: usize) -> Near {
        const ROWS: usize = 64;
        const OTHERS: usize = 32_768;
        let rows = sample.len() / dim;
        let others = &sample[..rows.min(OTHERS) * dim];
        let nearest = |row: &[f32]| {
            let distances = others.chunks_exact(dim).map(|other| l2_f32(row, bytemuck::cast_slice(other)));
            distances.filter(|&distance| distance > 0.0).fold(f32::INFINITY, f32::min)
        };
        let chosen = sample.chunks_exact(dim).step_by(rows.div_ceil(ROWS).max(1));
        Near::of(parallel::map(chosen, nearest))
    }

    /// Distances of all rows to zero.
    fn norms(sample: &[f32], dim: usize) -> Near {
        Near::of(sample.chunks_exact(dim).map(|row| dot_f32(row, bytemuck::cast_slice(row))).collect())
    }

    /// Without any number that is finite and more than zero all are far.
    fn of(mut squares: Vec<f32>) -> Near {
        squares.retain(|&square| square > 0.0 && square.is_finite());
        squares.sort_unstable_by(f32::total_cmp);
        let at = |part: usize| squares.get(squares.len() / part).map_or(f64::INFINITY, |&x| f64::from(x));
        Near { tenth: at(10), median: at(2) }
    }
}

/// The mean square of each component.
fn spreads(sample: &[f32], dim: usize) -> Vec<f64> {
    let mut sums = vec![0f64; dim];
    for row in sample.chunks_exact(dim) {
        sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x) * f64::from(x));
    }
    let count = (sample.len() / dim).max(1) as f64;
    sums.iter_mut().for_each(|sum| *sum /= count);
    sums
}

/// The components, the one of the largest spread first; equal ones in their order.
fn by_spread(spreads: &[f64]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..spreads.len() as u32).collect();
    order.sort_by(|&a, &b| spreads[b as usize].total_cmp(&spreads[a as usize]));
    order
}

fn rotation(build: &Build<'_>, sample: &[f32], dim: usize) -> Result<Vec<f32>> {
    let group = group_of(sample.len() / dim, dim);
    let mut matrix = vec![0f32; dim * dim];
    let axes = principal_axes(sample, dim, group, build.progress)?;
    for (row, axis) in matrix.chunks_exact_mut(dim).zip(axes) {
        row[axis.first..axis.first + axis.components.len()].copy_from_slice(&axis.components);
    }
    Ok(matrix)
}
