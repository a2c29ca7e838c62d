//! How many bits each dimension gets, by how much it varies.

use super::layout::{Extras, Layout, SEGMENTS_MAX, Segment, factors};
use super::{BITS_MAX, DIM_MAX, encode::BEST_STEP};

/// Dimensions that get a bit together: so many fill whole bytes.
const GROUP: usize = 8;
/// The mean squared error of the best levels of a normally distributed component of variance 1, by bits (Max,
/// Quantizing for Minimum Distortion, 1960, table II, and its continuation).
const DISTORTION: [f64; BITS_MAX + 1] =
    [1.0, 0.3634, 0.1188, 0.03744, 0.01154, 0.003495, 0.001041, 0.0003035, 0.0000871];
/// Share of the variance lost below which factors of 16 bits would lose as much again.
const LONG_BELOW: f64 = 0.012;

/// A layout, and the step of its levels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Allocation {
    /// Bits of each dimension.
    pub layout: Layout,
    /// The step between levels, relative to the root mean square of the dimensions that have bits.
    pub step: f32,
    // Share of the variance that codes lose.
    share_lost: f64,
}

impl Allocation {
    /// Gives the bits of a code of at most `bytes` bytes to dimensions of these variances, which fall. Each bit goes
    /// where it saves the most error ("reverse water-filling", Cover and Thomas, Elements of Information Theory,
    /// §10.3.3), so that levels lie equally close in all dimensions.
    ///
    /// `None` for no dimension or more than [`DIM_MAX`], or where one bit of the first dimensions does not fit.
    pub fn of(variances: &[f64], bytes: usize, numbered: bool) -> Option<Allocation> {
        let short = Extras { numbered, ..Extras::default() };
        let found = with(variances, bytes, short)?;
        if found.share_lost >= LONG_BELOW {
            return Some(found);
        }
        with(variances, bytes, Extras { long: true, ..short }).or(Some(found))
    }
}

fn with(variances: &[f64], bytes: usize, extras: Extras) -> Option<Allocation> {
    let dim = variances.len();
    if !(1..=DIM_MAX).contains(&dim) {
        return None;
    }
    let groups: Vec<&[f64]> = variances.chunks(GROUP).collect();
    let sums: Vec<f64> = groups.iter().map(|group| group.iter().sum::<f64>().max(0.0)).collect();
    // The last group takes a whole byte for each bit, even where it has fewer dimensions.
    let mut bits = vec![0usize; groups.len()];
    for _ in 0..bytes.checked_sub(factors(extras))? {
        let gain = |&group: &usize| sums[group] * (DISTORTION[bits[group]] - DISTORTION[bits[group] + 1]);
        // The first of equals, so that bits never rise from group to group.
        let best = (0..groups.len())
            .filter(|&group| bits[group] < BITS_MAX && (group == 0 || bits[group] < bits[group - 1]))
            .min_by(|a, b| gain(b).total_cmp(&gain(a)).then(a.cmp(b)));
        let Some(best) = best else { break };
        bits[best] += 1;
    }
    let mut segments = [Segment::default(); SEGMENTS_MAX];
    let mut count = 0;
    for (group, &bits) in groups.iter().zip(&bits).filter(|(_, bits)| **bits > 0) {
        if count == 0 || segments[count - 1].bits != bits {
            segments[count] = Segment { dims: 0, bits, shift: 0 };
            count += 1;
        }
        segments[count - 1].dims += group.len();
    }
    let layout = Layout::of(dim, &segments[..count], extras)?;
    let (mut steps, mut coded) = (0.0, 0.0);
    for (segment, range) in layout.ranges() {
        let variance = variances[range].iter().sum::<f64>().max(0.0);
        let each = variance / segment.dims as f64;
        steps += segment.dims as f64 * each.sqrt() * f64::from(BEST_STEP[segment.bits]);
        coded += variance;
    }
    let dims = layout.coded() as f64;
    let deviation = (coded / dims).sqrt();
    let step = if deviation > 0.0 { steps / dims / deviation } else { 1.0 };
    let all = sums.iter().sum::<f64>();
    let lost = sums.iter().zip(&bits).map(|(sum, &bits)| sum * DISTORTION[bits]).sum::<f64>();
    let share_lost = if all > 0.0 { lost / all } else { 1.0 };
    Some(Allocation { layout, step: step as f32, share_lost })
}
