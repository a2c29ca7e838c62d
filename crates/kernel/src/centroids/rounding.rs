//! Rounding of rows and centroids to 16 bits, and what it can do to a score.
//!
//! The score of a centroid c for a row x is ‖sC‖² / 2 − ⟨sX, sC⟩ with X = x − m, C = c − m for the mean m and the scale
//! s: half the squared distance, less what is equal for all centroids. With sX = x' + e and sC = c' + f, the product
//! of the integers x' and c' is wrong by ⟨e, sC⟩ + ⟨x', f⟩, at most ‖e‖ ‖sC‖ + ‖x'‖ ‖f‖.

use crate::isa::for_each_isa;

/// Length of the longest centroid as integers.
const CENTROID_LENGTH: f64 = 16_384.0;
/// Length of a row up to which no score exceeds 31 bits: 2²⁸ of norm and margin, and 100,000 × (2¹⁴ + √d / 2) of the
/// product, in 65,536 dimensions at most.
const ROW_LENGTH: f32 = 100_000.0;
/// The largest component.
const LARGEST: f32 = 32_767.0;
/// The largest margin. Rows with more would have too many candidates.
const MARGIN_MAX: f64 = (1 << 26) as f64;
/// Lengths, before scaling, whose squares are f32 with all digits.
const LENGTHS: std::ops::RangeInclusive<f64> = 1e-12..=1e12;
/// Lengths from zero, in lengths from the mean, beyond which floats lose more than integers do.
const OFFSET_MAX: f64 = 32.0;
/// Half the distance of an f32 from the next one.
const UNIT: f64 = f32::EPSILON as f64 / 2.0;
/// Adding this rounds a float to an integer, ties to even, and leaves it in the low bits.
const ROUND: f32 = 12_582_912.0;
const LANES: usize = 16;

/// How rows become integers.
pub(super) struct Rounding {
    mean: Vec<f32>,
    scale: f32,
    /// Length of the mean, and of the longest centroid from zero, scaled.
    mean_length: f64,
    centroid_length: f64,
    /// ‖f‖ of the centroids rounded so far, at most.
    error: f64,
}

/// What is known of a rounded row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounded {
    /// A centroid whose score exceeds another's by more is farther, by exact distances too. None where integers do not
    /// hold the row.
    pub(super) margin: Option<i32>,
}

/// Sums over the components of a row.
struct Moved {
    squares: f32,
    errors: f32,
    largest: f32,
}

impl Rounding {
    /// The rounding for these centroids. None where floats lose too much, or all centroids are equal.
    pub(super) fn of(centroids: &[f32], dim: usize) -> Option<Rounding> {
        let mut sums = vec![0f64; dim];
        for centroid in centroids.chunks_exact(dim) {
            sums.iter_mut().zip(centroid).for_each(|(sum, &c)| *sum += f64::from(c));
        }
        let count = (centroids.len() / dim) as f64;
        let mean: Vec<f32> = sums.iter().map(|sum| (sum / count) as f32).collect();
        let from = |mean: &[f32], x: &[f32]| {
            x.iter().zip(mean).map(|(&x, &m)| (f64::from(x) - f64::from(m)).powi(2)).sum::<f64>().sqrt()
        };
        let longest = |mean: &[f32]| centroids.chunks_exact(dim).map(|c| from(mean, c)).fold(0.0, f64::max);
        let zero = vec![0f32; dim];
        let (radius, from_zero) = (longest(&mean), longest(&zero));
        if !LENGTHS.contains(&radius) || from_zero > OFFSET_MAX * radius {
            return None;
        }
        let scale = (CENTROID_LENGTH / radius) as f32;
        let scaled = |length: f64| length * f64::from(scale);
        Some(Rounding {
            mean_length: scaled(from(&zero, &mean)),
            centroid_length: scaled(from_zero),
            mean,
            scale,
            error: 0.0,
        })
    }

    pub(super) fn dim(&self) -> usize {
        self.mean.len()
    }

    /// Components with the one that makes them even.
    pub(super) fn width(&self) -> usize {
        self.mean.len().next_multiple_of(2)
    }

    /// Rounds a centroid; returns half of its squared length before rounding.
    pub(super) fn round_centroid(&mut self, centroid: &[f32], out: &mut [i16]) -> i32 {
        let (mut squares, mut errors) = (0f64, 0f64);
        for ((&c, &m), out) in centroid.iter().zip(&self.mean).zip(out) {
            let exact = (f64::from(c) - f64::from(m)) * f64::from(self.scale);
            let rounded = exact.round_ties_even();
            *out = rounded as i16;
            squares += exact * exact;
            errors += (exact - rounded) * (exact - rounded);
        }
        self.error = self.error.max(errors.sqrt());
        (squares / 2.0).round() as i32
    }

    /// Rounds a row, after all centroids.
    pub(super) fn round(&self, row: &[f32], out: &mut [i16]) -> Rounded {
        let moved = round_row(row, &self.mean, self.scale, out);
        Rounded { margin: self.margin(&moved) }
    }

    fn margin(&self, moved: &Moved) -> Option<i32> {
        let length = moved.squares.sqrt();
        // A comparison that NaN fails.
        if !(length <= ROW_LENGTH && moved.largest <= LARGEST) {
            return None;
        }
        // Sums of floats are wrong by less than a thousandth; moving and scaling by three roundings of a component.
        let length = f64::from(length) * 1.001;
        let lost = f64::from(moved.errors.sqrt()) * 1.001 + 3.0 * UNIT * length;
        let integers = lost * CENTROID_LENGTH * 1.001 + (length + lost) * self.error * 1.001 + 1.0;
        // A lane of a sum of floats has one rounding for 16 components; five more fold it, and one subtracts.
        let roundings = (self.dim().div_ceil(LANES) + 6) as f64 * UNIT * 1.01;
        let products = self.centroid_length * (self.centroid_length / 2.0 + self.mean_length + length + lost);
        let margin = (2.0 * (integers + roundings * products)).ceil();
        (margin <= MARGIN_MAX).then_some(margin as i32)
    }
}

for_each_isa! {
    /// Moves, scales and rounds a row.
    fn round_row(row: &[f32], mean: &[f32], scale: f32, out: &mut [i16]) -> Moved = round_body
}

#[inline(always)]
fn round_body(row: &[f32], mean: &[f32], scale: f32, out: &mut [i16]) -> Moved {
    let mut lanes = [[0f32; LANES]; 3];
    let dim = row.len().min(mean.len()).min(out.len());
    let (rows, row_rest) = row[..dim].as_chunks::<LANES>();
    let (means, mean_rest) = mean[..dim].as_chunks::<LANES>();
    let (outs, out_rest) = out[..dim].as_chunks_mut::<LANES>();
    for ((row, mean), out) in rows.iter().zip(means).zip(outs) {
        round_lanes(row, mean, scale, out, &mut lanes);
    }
    let mut last = ([0f32; LANES], [0f32; LANES], [0i16; LANES]);
    let rest = row_rest.len();
    last.0[..rest].copy_from_slice(row_rest);
    last.1[..rest].copy_from_slice(mean_rest);
    round_lanes(&last.0, &last.1, scale, &mut last.2, &mut lanes);
    out_rest.copy_from_slice(&last.2[..rest]);
    let [squares, errors, largest] = lanes;
    Moved {
        squares: squares.iter().sum(),
        errors: errors.iter().sum(),
        largest: largest.iter().copied().fold(0.0, f32::max),
    }
}

#[inline(always)]
fn round_lanes(
    row: &[f32; LANES],
    mean: &[f32; LANES],
    scale: f32,
    out: &mut [i16; LANES],
    [squares, errors, largest]: &mut [[f32; LANES]; 3],
) {
    for i in 0..LANES {
        let exact = (row[i] - mean[i]) * scale;
        let shifted = exact + ROUND;
        let error = exact - (shifted - ROUND);
        out[i] = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32) as i16;
        squares[i] += exact * exact;
        errors[i] += error * error;
        largest[i] = largest[i].max(exact.abs());
    }
}
