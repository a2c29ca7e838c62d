//! From the sums of a vector's groups to its distance, the same whether lists are scanned for one query or for many.

use alloc::vec;
use alloc::vec::Vec;

use stratann_kernel::columns::{LANES, Term};
use stratann_kernel::element::widen;
use stratann_kernel::{DType, Metric};

use super::View;
use super::fine::{coarse_below, slack};
use crate::format::grid::{GridLayout, List};

/// The largest sum, in units, of a vector that may be among the results; `worst` is the last distance of a query that
/// has all of them.
pub(super) fn limit(worst: Option<f32>, layout: &GridLayout, scale: f32) -> f64 {
    let Some(worst) = worst else { return f64::INFINITY };
    // Everything up to the middle between this float and the next one may be rounded to it.
    let next = worst.next_up();
    let middle = f64::from(worst) + (f64::from(next) - f64::from(worst)) / 2.0;
    let units = middle * f64::from(scale) * unit_distance(layout.metric);
    let below = coarse_below(layout);
    let is_coarse = below > 0.0 && (layout.metric == Metric::Ip || units < below);
    if is_coarse { units + slack(layout) } else { units }
}

/// Sums of distance 1: half the squared distance of unit vectors is one minus their cosine.
pub(super) fn unit_distance(metric: Metric) -> f64 {
    if metric == Metric::Cosine { 2.0 } else { 1.0 }
}

/// What is summed.
pub(super) fn term(metric: Metric) -> Term {
    if metric == Metric::Ip { Term::MinusProduct } else { Term::Square }
}

/// Whether components are multiplied to those of unit vectors. Floats are stored as unit vectors.
pub(super) fn has_factors(layout: &GridLayout) -> bool {
    layout.has_factors() && layout.dtype != DType::F32
}

/// The factors of a block; 1 without any.
pub(super) fn factors(layout: &GridLayout, list: &List<'_>, block: usize) -> [f32; LANES] {
    let mut factors = [1.0; LANES];
    if has_factors(layout) {
        list.factors(block, &mut factors);
    }
    factors
}

/// A query in the axes of the index.
#[derive(Clone, Copy)]
pub(super) struct TurnedQuery<'q> {
    pub(super) view: &'q View<'q>,
    pub(super) components: &'q [f32],
    pub(super) length: f32,
    pub(super) scale: f32,
    /// Sums, or products of norms, below this have too few digits.
    pub(super) coarse_below: f64,
}

impl TurnedQuery<'_> {
    /// The distance of a lane whose sum is whole, in units.
    pub(super) fn distance_of(self, list: &List<'_>, (block, lane): (usize, u8), sum: f64) -> f32 {
        let is_coarse = self.is_coarse(list, (block, lane), sum);
        let fine =
            is_coarse.then(|| self.fine_sums(list, (block, lane)).map(|(_, sum)| f64::from(sum)).sum());
        self.distance(sum, fine)
    }

    /// The distance that a sum is, in units, and as a float where units have too few digits.
    pub(super) fn distance(self, sum: f64, fine: Option<f64>) -> f32 {
        let sum = fine.unwrap_or(sum / f64::from(self.scale));
        (sum / unit_distance(self.view.layout.metric)) as f32
    }

    /// Whether the sum of a lane has too few digits. Under ip its norm tells, which is the same before and after each
    /// slice; other sums only grow.
    pub(super) fn is_coarse(self, list: &List<'_>, (block, lane): (usize, u8), sum: f64) -> bool {
        if self.view.layout.metric != Metric::Ip {
            return sum < self.coarse_below;
        }
        if self.coarse_below == 0.0 {
            return false;
        }
        let shortest = self.coarse_below / (f64::from(self.length) * f64::from(self.scale));
        let mut square = 0.0;
        (0..self.view.layout.groups()).all(|group| {
            let (largest, codes) = list.norms(group, block);
            let norm = f64::from(largest) / 255.0 * f64::from(codes[usize::from(lane)]);
            square += norm * norm;
            square < shortest * shortest
        })
    }

    /// The sum of each group of a slice, as a float, for a lane.
    pub(super) fn fine_sums(
        self,
        list: &List<'_>,
        (block, lane): (usize, u8),
    ) -> impl Iterator<Item = (usize, f32)> {
        let layout = self.view.layout;
        let factor = f64::from(factors(layout, list, block)[usize::from(lane)]);
        let mut bytes = Vec::new();
        list.vector(block * LANES + usize::from(lane), &mut bytes);
        let mut row = vec![0f32; bytes.len() / layout.dtype.size()];
        widen(layout.dtype, &bytes, &mut row);
        let start = layout.components(list.range().start).start;
        list.range().map(move |group| {
            let components = layout.components(group);
            let row = &row[components.start - start..components.end - start];
            let pairs = self.components[components]
                .iter()
                .zip(row)
                .map(|(&q, &x)| (f64::from(q), f64::from(x) * factor));
            let sum: f64 = match layout.metric {
                Metric::Ip => pairs.map(|(q, x)| -q * x).sum(),
                Metric::L2 | Metric::Cosine => pairs.map(|(q, x)| (q - x) * (q - x)).sum(),
            };
            (group, sum as f32)
        })
    }
}
