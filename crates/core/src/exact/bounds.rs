//! Bounds of a distance that a code, or the distance to a centroid, gives before the vector is read.
//!
//! With v̂ for what the code of v stands for and r ≥ ‖v − v̂‖, the triangle inequality gives ‖q − v̂‖ − r ≤ ‖q − v‖ ≤
//! ‖q − v̂‖ + r: the pivot is the vector's own code, which lies nearer to it than any centroid (OrchANN §5.3 takes
//! the centroid). An inner product is bounded by Cauchy and Schwarz:
//! |⟨q, v⟩ − ⟨q, v̂⟩| ≤ ‖q‖·r. A cosine is a squared l2 of unit vectors, halved.
//!
//! All of this in floats: every bound is widened by what roundings and the integers of the query can have done to it.
//!
//! These bounds are strict. Likely ones take some standard errors of a code distance in the place of the largest error:
//! what a code loses has hardly a preferred direction after a learned rotation, and none after a random one, so that
//! ⟨q, v − v̂⟩ is about ‖q‖·r/√d (Gao and Long, RaBitQ, SIGMOD 2024, theorem 3.2). Under codes of bits the integers of
//! a query have a standard error, too.

use stratann_kernel::coder::CodeQuery;
use stratann_kernel::{Metric, sqrt};

use crate::access::CodedQuery;
use crate::view::Base;

/// Bounds that prune a member before it is read. None of them changes an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Bounds {
    /// None: every member of a cluster is read.
    Off = 0,
    /// Distance to the centroid, and in a graph the distances to neighbours (OrchANN §5.3).
    Centroid = 1,
    /// The member's own code, with the radius of what the code lost.
    Code = 2,
    /// Centroid and code.
    #[default]
    Both = 3,
}

impl Bounds {
    /// The name used on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Bounds::Off => "off",
            Bounds::Centroid => "centroid",
            Bounds::Code => "code",
            Bounds::Both => "both",
        }
    }
}

/// Relative roundings of sums over thousands of components stay below this.
const ROUNDING: f32 = 1e-5;

/// Estimate and bounds of one distance, on the metric's own scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DistanceBounds {
    /// Estimate of the distance.
    pub(crate) estimate: f32,
    /// Lower bound of the distance; where the search may err, hardly ever above it.
    pub(crate) lower: f32,
    /// Upper bound of the distance.
    pub(crate) upper: f32,
}

/// Minus the inner product of a query and what a code stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodeProduct {
    /// As the code's key says.
    pub(crate) value: f32,
    /// How far that is off at most; with likely bounds, hardly ever more.
    pub(crate) error: f32,
}

/// The part that all bounds of one query have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BoundEstimator {
    metric: Metric,
    bounds: Bounds,
    slack: f32,
    query_norm: f32,
    inverse_root_dim: f32,
}

impl BoundEstimator {
    /// An estimator for one query. `slack` is in standard errors of a code distance; infinity makes bounds strict.
    pub(crate) fn new(base: &Base<'_>, query: &CodedQuery, bounds: Bounds, slack: f32) -> BoundEstimator {
        BoundEstimator {
            metric: base.metric,
            bounds,
            slack,
            query_norm: query.norm * (1.0 + ROUNDING),
            inverse_root_dim: 1.0 / sqrt(base.dim as f32),
        }
    }

    /// The inner product of the query with a code that has this key.
    pub(crate) fn product(&self, query: &CodeQuery, key: u32, code: &[u8]) -> CodeProduct {
        let strict = query.error_max(code);
        let is_likely = self.slack < f32::INFINITY;
        let likely = query.error_deviation(code).filter(|_| is_likely).map(|error| self.slack * error);
        CodeProduct { value: query.to_float(key), error: likely.map_or(strict, |likely| likely.min(strict)) }
    }

    /// The metric.
    pub(crate) fn metric(&self) -> Metric {
        self.metric
    }

    /// The length of the query under inner product, rounded up.
    pub(crate) fn query_norm(&self) -> f32 {
        self.query_norm
    }

    /// Converts from the code scale, squared l2 or minus the inner product, to the metric's.
    fn scale(&self, x: f32) -> f32 {
        if self.metric == Metric::Cosine { 0.5 * x } else { x }
    }

    /// The distance, on the scale of codes, to a point that a code stands for; `base`, `term` and `cross` as in
    /// [`BoundEstimator::by_code`].
    pub(crate) fn to_point(metric: Metric, base: f32, term: f32, cross: f32) -> f32 {
        if metric == Metric::Ip { base + cross } else { base + term + 2.0 * cross }
    }

    /// Converts from the metric's scale to that of codes.
    pub(crate) fn code_scale(&self, x: f32) -> f32 {
        if self.metric == Metric::Cosine { 2.0 * x } else { x }
    }

    /// A member at `radius` from what its code stands for. `base` is the distance to the centroid, `term` the code's
    /// own, `cross` minus the inner product of the query and the code.
    pub(crate) fn by_code(&self, base: f32, term: f32, cross: CodeProduct, radius: f32) -> DistanceBounds {
        let CodeProduct { value: cross, error } = cross;
        if error == f32::INFINITY {
            return DistanceBounds { estimate: f32::MAX, lower: f32::NEG_INFINITY, upper: f32::INFINITY };
        }
        if self.metric == Metric::Ip {
            let estimate = base + cross;
            let rounding = error + ROUNDING * (base.abs() + cross.abs());
            let reach = self.query_norm * radius + rounding;
            let likely = self.slack * self.query_norm * radius * self.inverse_root_dim;
            let width = reach.min(likely + rounding);
            return DistanceBounds { estimate, lower: estimate - width, upper: estimate + width };
        }
        let squared = base + term + 2.0 * cross;
        let rounding = 2.0 * error + ROUNDING * (base + term.abs() + 2.0 * cross.abs());
        let near = (sqrt((squared - rounding).max(0.0)) - radius).max(0.0);
        let far = sqrt((squared + rounding).max(0.0)) + radius;
        let (mut lower, mut upper) = (near * near * (1.0 - ROUNDING), far * far * (1.0 + ROUNDING));
        // The code takes away the part of v that lies across it: half of that belongs to a query that knows nothing
        // of v.
        let estimate = (squared - 0.5 * radius * radius).max(0.0);
        if self.slack < f32::INFINITY {
            let deviation = 2.0 * radius * sqrt(estimate) * self.inverse_root_dim;
            let width = self.slack * deviation + 0.5 * radius * radius + rounding;
            lower = lower.max(estimate - width);
            upper = upper.min(estimate + width);
        }
        // Cosines are computed with an absolute rounding.
        let absolute = if self.metric == Metric::Cosine { ROUNDING } else { 0.0 };
        DistanceBounds {
            estimate: self.scale(estimate),
            lower: self.scale(lower) - absolute,
            upper: self.scale(upper) + absolute,
        }
    }

    /// The code distance from which on [`BoundEstimator::at_least`] says that the lower of a member lies above
    /// `threshold` and its estimate not below `kth`, whatever its radius up to `radius_max`. Most members are that far,
    /// and need no more than this.
    pub(crate) fn cut(&self, threshold: f32, kth: f32, radius_max: f32) -> f32 {
        if !self.uses_codes() || threshold == f32::INFINITY || kth == f32::INFINITY {
            return f32::INFINITY;
        }
        let r = radius_max;
        let likely = self.slack * r * self.inverse_root_dim;
        if self.metric == Metric::Ip {
            let reach = self.query_norm * if likely < r { likely } else { r };
            return (threshold + reach).max(kth) + ROUNDING * threshold.abs();
        }
        let absolute = if self.metric == Metric::Cosine { ROUNDING } else { 0.0 };
        let (limit, kth) = (self.code_scale(threshold + absolute).max(0.0), self.code_scale(kth));
        let limit = limit * (1.0 + 4.0 * ROUNDING);
        let square = |x: f32| x * x;
        let mut cut = square(sqrt(limit) + r);
        if self.slack < f32::INFINITY {
            cut = cut.min(square(likely + sqrt(square(likely) + limit + square(r))));
        }
        cut.max(kth + 0.5 * square(r)) * (1.0 + 4.0 * ROUNDING)
    }

    /// A member's distance by its code, less what roundings can have added; see [`BoundEstimator::cut`].
    pub(crate) fn at_least(&self, base: f32, term: f32, cross: CodeProduct) -> f32 {
        let CodeProduct { value: cross, error } = cross;
        if error == f32::INFINITY {
            return f32::NEG_INFINITY;
        }
        if self.metric == Metric::Ip {
            return base + cross - error - 2.0 * ROUNDING * (base.abs() + cross.abs());
        }
        base + term + 2.0 * cross - 4.0 * error - 2.0 * ROUNDING * (base + term.abs() + 2.0 * cross.abs())
    }

    /// The lower of a member whose distance to the centroid is within `least..=most`; `base` is the distance of the
    /// query to it.
    pub(crate) fn lower_by_centroid(&self, base: f32, (least, most): (f32, f32)) -> f32 {
        if self.metric == Metric::Ip {
            return base - self.query_norm * most - ROUNDING * base.abs();
        }
        let to = sqrt(base.max(0.0));
        let gap = (to * (1.0 - ROUNDING) - most).max(least - to * (1.0 + ROUNDING)).max(0.0);
        let absolute = if self.metric == Metric::Cosine { ROUNDING } else { 0.0 };
        self.scale(gap * gap * (1.0 - ROUNDING)) - absolute
    }

    /// The bounds of a distance that is known, of a member whose cluster's centroid is at `base`.
    pub(crate) fn by_distance(&self, base: f32, distance: f32) -> DistanceBounds {
        let rounding = match self.metric {
            Metric::L2 => ROUNDING * distance,
            Metric::Cosine => ROUNDING,
            // What was added up may be far larger than the sum.
            Metric::Ip => ROUNDING * (base.abs() + (distance - base).abs()),
        };
        DistanceBounds { estimate: distance, lower: distance - rounding, upper: distance + rounding }
    }

    /// The lower of a member that lies within `least..=most` of another, whose distance is within `pivot`: the length
    /// of an edge makes its end a pivot (OrchANN §5.3).
    pub(crate) fn lower_by_edge(&self, pivot: &DistanceBounds, (least, most): (f32, f32)) -> f32 {
        if self.metric == Metric::Ip {
            return pivot.lower - self.query_norm * most - ROUNDING * pivot.lower.abs();
        }
        let absolute = if self.metric == Metric::Cosine { ROUNDING } else { 0.0 };
        let nearest = sqrt(self.code_scale(pivot.lower - absolute).max(0.0)) * (1.0 - ROUNDING);
        let farthest = sqrt(self.code_scale(pivot.upper + absolute).max(0.0)) * (1.0 + ROUNDING);
        let gap = (nearest - most).max(least - farthest).max(0.0);
        self.scale(gap * gap * (1.0 - ROUNDING)) - absolute
    }

    /// Whether codes are bounds.
    pub(crate) fn uses_codes(&self) -> bool {
        matches!(self.bounds, Bounds::Code | Bounds::Both)
    }

    /// Whether distances to centroids are, and lengths of edges.
    pub(crate) fn uses_pivots(&self) -> bool {
        matches!(self.bounds, Bounds::Centroid | Bounds::Both)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn dot(a: &[f32], b: &[f32]) -> f32 {
        a.iter().zip(b).map(|(x, y)| x * y).sum()
    }

    fn distance(metric: Metric, a: &[f32], b: &[f32]) -> f32 {
        match metric {
            Metric::L2 => a.iter().zip(b).map(|(x, y)| (x - y) * (x - y)).sum(),
            Metric::Cosine => 1.0 - dot(a, b),
            Metric::Ip => -dot(a, b),
        }
    }

    proptest! {
        /// Distances beyond the cut would be discarded by their lower bounds as well, and are not among the best
        /// estimates.
        #[test]
        fn the_cut_discards_what_floors_discard(
            metric in prop_oneof![Just(Metric::L2), Just(Metric::Cosine), Just(Metric::Ip)],
            slack in prop_oneof![Just(f32::INFINITY), 0f32..3.0],
            base in 0f32..10.0, term in -2f32..5.0, cross in -5f32..5.0, threshold in -3f32..10.0, kth in -3f32..10.0,
            radius_max in 0f32..2.0, share in 0f32..=1.0, scale in prop_oneof![Just(1e-6f32), Just(1.0), Just(1e6)],
            error in prop_oneof![Just(0f32), 0f32..0.1],
        ) {
            let root = sqrt(scale);
            let estimator = BoundEstimator {
                metric, bounds: Bounds::Both, slack, query_norm: 1.3 * root, inverse_root_dim: 0.1,
            };
            let (threshold, kth, radius_max) = (threshold * scale, kth * scale, radius_max * root);
            let cut = estimator.cut(threshold, kth, radius_max);
            let (base, term, cross) = (base * scale, term * scale, cross * scale);
            let cross = CodeProduct { value: cross, error: error * scale };
            if estimator.at_least(base, term, cross) > cut {
                let bounds = estimator.by_code(base, term, cross, share * radius_max);
                prop_assert!(bounds.lower > threshold && bounds.estimate >= kth, "{bounds:?} {threshold} {kth}");
            }
        }

        /// A member is never nearer than the lower that an edge to it gives, and on a line through the query the
        /// lower is its distance.
        #[test]
        fn edges_bound_from_below(
            metric in prop_oneof![Just(Metric::L2), Just(Metric::Cosine), Just(Metric::Ip)],
            components in prop::collection::vec(-1f32..1.0, 24), scale in prop_oneof![Just(1e-3f32), Just(1.0), Just(1e4)],
            known in any::<bool>(), slack in 0f32..0.1,
        ) {
            let mut vectors: Vec<Vec<f32>> = components.chunks(8).map(|v| v.iter().map(|x| x * scale).collect()).collect();
            if metric == Metric::Cosine {
                for v in &mut vectors {
                    let norm = sqrt(dot(v, v));
                    prop_assume!(norm > 0.01 * scale);
                    v.iter_mut().for_each(|x| *x /= norm);
                }
            }
            let [q, u, v] = [&vectors[0], &vectors[1], &vectors[2]];
            let estimator = BoundEstimator {
                metric, bounds: Bounds::Both, slack: f32::INFINITY,
                query_norm: if metric == Metric::Ip { sqrt(dot(q, q)) * (1.0 + ROUNDING) } else { 0.0 },
                inverse_root_dim: 0.35,
            };
            let (to_u, to_v) = (distance(metric, q, u), distance(metric, q, v));
            let length = sqrt(distance(Metric::L2, u, v));
            let edge = (length * (0.999_99 - slack), length * (1.000_01 + slack));
            let pivot = if known {
                estimator.by_distance(0.0, to_u)
            } else {
                let off = slack * to_u.abs();
                DistanceBounds { estimate: to_u, lower: to_u - off, upper: to_u + off }
            };
            let lower = estimator.lower_by_edge(&pivot, edge);
            let rounding = 1e-5 * (to_v.abs() + sqrt(dot(q, q) * dot(v, v)));
            prop_assert!(lower <= to_v + rounding, "{lower} {to_v}");
            // Beyond the pivot as seen from the query, where nothing is lost.
            if metric == Metric::L2 && known && slack < 0.01 {
                let beyond: Vec<f32> = u.iter().zip(q).map(|(u, q)| u + 2.0 * (u - q)).collect();
                let length = 2.0 * sqrt(to_u);
                let around = (length * 0.999_99, length * 1.000_01);
                let lower = estimator.lower_by_edge(&estimator.by_distance(0.0, to_u), around);
                let to_beyond = distance(metric, q, &beyond);
                prop_assert!(lower <= to_beyond * 1.000_1 && lower >= 0.1 * to_beyond, "{lower} {to_beyond}");
            }
        }
    }
}
