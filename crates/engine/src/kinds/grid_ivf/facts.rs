//! What the manifest of a `grid-ivf` holds besides that of every index.

use serde::{Deserialize, Serialize};
use stratann_core::format::grid::GridLayout;
use stratann_core::place::SERVERS_MAX;
use stratann_kernel::columns::GROUP_MAX;
use stratann_kernel::{DType, Metric};

pub use crate::clusterings::sizes::SizeStats;

/// The section of a `grid-ivf` in the manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GridSection {
    /// Lists and groups of components.
    #[serde(rename = "grid")]
    pub facts: GridFacts,
}

/// Lists and groups of components of a `grid-ivf`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GridFacts {
    /// Sizes of the lists.
    pub sizes: SizeStats,
    /// Lists of each centroid, one after another, over which its members are dealt.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub stripes: u32,
    /// The first component of each group, and the number of all.
    pub edges: Vec<u32>,
    /// Groups that are stored component by component: the first ones.
    pub columns: usize,
    /// Sums are whole multiples of two to the power of minus this.
    pub scale_exponent: i32,
    /// Principal components of which lists have a code of a byte; 0 for none.
    pub pilot: usize,
    /// The difference between two of these codes that follow each other.
    pub pilot_step: f32,
}

fn one() -> u32 {
    1
}

fn is_one(stripes: &u32) -> bool {
    *stripes == 1
}

/// Largest exponent of a unit, either way.
const EXPONENT_MAX: i32 = 100;

impl GridFacts {
    /// Inverted lists.
    pub fn lists(&self) -> u32 {
        self.sizes.count as u32
    }

    /// Centroids. Each has one list, or several where lists are striped.
    pub fn centroids(&self) -> u32 {
        self.lists() / self.stripes.max(1)
    }

    /// The layout of all lists; `None` when the numbers cannot be.
    pub(crate) fn layout(
        &self,
        dtype: DType,
        metric: Metric,
        dim: usize,
        id_bytes: usize,
    ) -> Option<GridLayout> {
        let GridFacts { columns, pilot, .. } = *self;
        let layout = GridLayout { dtype, metric, edges: self.edges.clone(), columns, id_bytes, pilot };
        let is_sane = layout.is_sane(dim)
            && (pilot == 0 || (self.pilot_step > 0.0 && self.pilot_step.is_finite()))
            && (-EXPONENT_MAX..=EXPONENT_MAX).contains(&self.scale_exponent)
            && (1..=u64::from(u32::MAX)).contains(&self.sizes.count)
            && (1..=SERVERS_MAX as u32).contains(&self.stripes)
            && self.lists().is_multiple_of(self.stripes);
        is_sane.then_some(layout)
    }

    /// Units of a sum of 1.
    pub(crate) fn scale(&self) -> f32 {
        2f32.powi(self.scale_exponent)
    }
}

/// Principal components of a pilot: an eighth of the bytes of a vector, and a quarter of its components at most. Floats
/// of 32 bits are stored rotated, and need none.
pub(crate) fn pilot_of(dtype: DType, metric: Metric, dim: usize) -> usize {
    let most = (dim * dtype.size() / 8).min(dim / 4);
    if dtype == DType::F32 || metric == Metric::Ip { 0 } else { most / 8 * 8 }
}

/// How far vectors lie apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// The mean square of vectors, from their mean unless they are multiplied.
    spread: f64,
    /// The median squared distance from a vector to the nearest other one of a sample; under ip the median square of
    /// vectors. 0 where it is not known.
    near: f64,
}

/// Vectors whose nearest other one is looked for, and among how many.
const PROBES: usize = 64;
const AMONG: usize = 4096;
/// Neighbours are usually nearer than the mean by at most this factor, squared. A farther mean is that of a few far
/// vectors, or of islands.
const USUAL: f64 = 256.0;
/// Neighbours that are nearer than the mean by more than this factor, squared, lose digits by a rotation of floats.
const ROTATED_MOST: f64 = 1024.0;

impl Extent {
    /// That of rows of `dim` components, at least one, or none at all.
    pub(crate) fn of(metric: Metric, rows: &[f32], dim: usize) -> Extent {
        let square = |row: &[f32]| row.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
        let count = (rows.len() / dim).max(1);
        let spread = rows.chunks_exact(dim).map(square).sum::<f64>() / count as f64;
        let every = |most: usize| rows.chunks_exact(dim).step_by(count.div_ceil(most));
        let apart = |a: &[f32], b: &[f32]| {
            a.iter().zip(b).map(|(&x, &y)| (f64::from(x) - f64::from(y)).powi(2)).sum::<f64>()
        };
        let nearest =
            |row: &[f32]| every(AMONG).map(|other| apart(row, other)).filter(|&d| d > 0.0).reduce(f64::min);
        let mut near: Vec<f64> = match metric {
            Metric::Ip => every(AMONG).map(square).filter(|&d| d > 0.0).collect(),
            Metric::L2 => every(PROBES).filter_map(nearest).collect(),
            Metric::Cosine => Vec::new(),
        };
        near.sort_by(f64::total_cmp);
        Extent { spread, near: near.get(near.len() / 2).copied().unwrap_or(0.0) }
    }

    /// The mean square without that of a few far vectors, or of islands.
    pub(crate) fn usual(&self) -> f64 {
        if self.near > 0.0 { self.spread.min(USUAL * self.near) } else { self.spread }
    }

    /// How much farther than the nearest ones vectors usually are, squared.
    fn ratio(&self) -> f64 {
        if self.near > 0.0 { self.spread / self.near } else { 1.0 }
    }

    /// Whether these rotated vectors should have kept their values. Builds ask for less: a sample decides nothing here.
    pub(crate) fn has_lost_digits(&self) -> bool {
        self.ratio() > 1024.0 * ROTATED_MOST
    }
}

/// Whether floats of 32 bits keep their values instead of being rotated: within one group there is nothing to drop by.
pub(crate) fn keeps_values(metric: Metric, dim: usize, extent: &Extent) -> bool {
    metric == Metric::L2 && (dim <= GROUP_MAX / 4 || extent.ratio() > ROTATED_MOST)
}

/// Bits that a sum of the size of `spread`, the mean of what is summed, has in units.
const SUM_BITS: i32 = 30;

/// The exponent of the unit of sums. Integers are exact in units of 1.
pub(crate) fn scale_exponent(dtype: DType, metric: Metric, spread: f64) -> i32 {
    if !dtype.is_float() && metric != Metric::Cosine {
        return 0;
    }
    let exponent = if spread > 0.0 { spread.log2().ceil() as i32 } else { 0 };
    (SUM_BITS - exponent).clamp(-EXPONENT_MAX, EXPONENT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn islands_and_a_far_vector_are_told_from_vectors_that_are_spread_evenly() {
        let at = |i: usize| (i * 7919 % 1009) as f32 / 1009.0 - 0.5;
        let even: Vec<f32> = (0..500 * 32).map(at).collect();
        let islands: Vec<f32> = even.iter().enumerate().map(|(i, x)| x + 4e6 * at(i / 32 % 20)).collect();
        let mut far = even.clone();
        far[32..64].iter_mut().for_each(|x| *x *= 1e8);
        let of = |rows: &[f32]| Extent::of(Metric::L2, rows, 32);
        assert!(!keeps_values(Metric::L2, 32, &of(&even)) && !of(&even).has_lost_digits());
        for rows in [&islands, &far] {
            assert!(keeps_values(Metric::L2, 32, &of(rows)) && of(rows).has_lost_digits());
            assert!(of(rows).usual() < 1e6, "{:?}", of(rows));
        }
        assert_eq!(of(&even).usual(), of(&even).spread);
        assert!(keeps_values(Metric::L2, 16, &of(&even)) && !keeps_values(Metric::Ip, 16, &of(&far)));
        assert_eq!(of(&[]).usual(), 0.0);
    }
}
