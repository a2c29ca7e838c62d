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
//!
//! A code of bits is the multiple of e that is nearest to o = v − c, so that v̂ − c is shorter than o. Stretched by
//! ‖o‖²/‖v̂ − c‖² = 1 + r²/‖v̂ − c‖² it has the right inner product with o, and with other vectors in the mean
//! (RaBitQ, §3.2). The estimate of a distance is made of that one.

use stratann_kernel::coder::CodeQuery;
use stratann_kernel::{Metric, sqrt};

use super::perpendicular::Known;
use crate::access::CodedQuery;
use crate::format::inverted_list::MemberBounds;
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
pub(super) const ROUNDING: f32 = 1e-5;

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
    /// The usual length of such a code where it is one of bits.
    pub(crate) length: Option<f32>,
}

/// A distance beyond which members are of no use, prepared for many of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    // Of the lower bound, on the scale of codes, and its root.
    limit: f32,
    root: f32,
    // Of the estimate.
    kth: f32,
}

/// A distance by a code in the mean, on the scale of codes.
#[derive(Clone, Copy, Debug)]
struct Expected {
    estimate: f32,
    /// By how much the standard error, 2 √estimate r/√d or ‖q‖r/√d, is more.
    stretch: f32,
    /// By how much roundings are.
    rounding: f32,
    /// How far off the estimate can be in the mean.
    bias: f32,
}

/// The part that all bounds of one query have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BoundEstimator {
    metric: Metric,
    bounds: Bounds,
    slack: f32,
    query_norm: f32,
    inverse_root_dim: f32,
    // Relative rounding of the scales of codes of bits.
    scale_rounding: Option<f32>,
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
            scale_rounding: query.coded.scale_rounding().filter(|_| base.metric != Metric::Ip),
        }
    }

    /// The inner product of the query with a code that has this key.
    pub(crate) fn product(&self, query: &CodeQuery, key: u32, code: &[u8]) -> CodeProduct {
        let strict = query.error_max(code);
        let is_likely = self.slack < f32::INFINITY;
        let likely = query.error_deviation(code).filter(|_| is_likely).map(|error| self.slack * error);
        let error = likely.map_or(strict, |likely| likely.min(strict));
        CodeProduct { value: query.to_float(key), error, length: query.code_length(code) }
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

    /// The distance by a code that is `squared`, or under inner product as much, from the query.
    fn expected(&self, squared: f32, term: f32, cross: CodeProduct, radius: f32) -> Expected {
        let lost = radius * radius;
        let Some(length) = cross.length else {
            // A trained code takes away the part of v that lies across it: half of that belongs to a query that knows
            // nothing of v.
            let bias = if self.metric == Metric::Ip { 0.0 } else { 0.5 * lost };
            return Expected { estimate: squared - bias, stretch: 1.0, rounding: 1.0, bias };
        };
        let share = if length * length > 0.0 { lost / (length * length) } else { 0.0 };
        let estimate = match self.metric {
            Metric::Ip => squared + share * cross.value,
            // The inner product of q − c and v̂ − c, negative.
            _ => squared + lost + 2.0 * share * (cross.value + 0.5 * (term - length * length)),
        };
        Expected { estimate, stretch: sqrt(1.0 + share), rounding: 1.0 + share, bias: 0.0 }
    }

    /// A member at `radius` from what its code stands for. `base` is the distance to the centroid, `term` the code's
    /// own, `cross` minus the inner product of the query and the code.
    pub(crate) fn by_code(&self, base: f32, term: f32, cross: CodeProduct, radius: f32) -> DistanceBounds {
        let CodeProduct { value, error, .. } = cross;
        if error == f32::INFINITY {
            return DistanceBounds { estimate: f32::MAX, lower: f32::NEG_INFINITY, upper: f32::INFINITY };
        }
        if self.metric == Metric::Ip {
            let product = base + value;
            let expected = self.expected(product, term, cross, radius);
            let rounding = error + ROUNDING * (base.abs() + value.abs());
            let reach = self.query_norm * radius + rounding;
            let deviation = self.query_norm * radius * self.inverse_root_dim * expected.stretch;
            let width = self.slack * deviation + expected.rounding * rounding;
            let estimate = expected.estimate;
            let (lower, upper) =
                ((product - reach).max(estimate - width), (product + reach).min(estimate + width));
            return DistanceBounds { estimate, lower, upper };
        }
        let squared = base + term + 2.0 * value;
        let rounding = 2.0 * error + ROUNDING * (base + term.abs() + 2.0 * value.abs());
        let near = (sqrt((squared - rounding).max(0.0)) - radius).max(0.0);
        let far = sqrt((squared + rounding).max(0.0)) + radius;
        let (mut lower, mut upper) = (near * near * (1.0 - ROUNDING), far * far * (1.0 + ROUNDING));
        let expected = self.expected(squared, term, cross, radius);
        let estimate = expected.estimate.max(0.0);
        if self.slack < f32::INFINITY {
            let deviation = 2.0 * radius * sqrt(estimate) * self.inverse_root_dim * expected.stretch;
            let width = self.slack * deviation + expected.bias + expected.rounding * rounding;
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

    /// As [`BoundEstimator::by_code`], with all that a list knows of a member. Its radius is rounded up by
    /// `radius_slack` at most.
    pub(crate) fn by_list(
        &self,
        base: f32,
        &MemberBounds { term, radius, from_centroid }: &MemberBounds,
        cross: CodeProduct,
        radius_slack: f32,
    ) -> DistanceBounds {
        let bounds = self.by_code(base, term, cross, radius);
        let Some(scale_rounding) = self.scale_rounding.filter(|_| cross.error < f32::INFINITY) else {
            return bounds;
        };
        let cross = (cross.value, cross.error);
        let known = Known { base, from_centroid, radius, radius_slack, term, cross, scale_rounding };
        let Some((lower, upper)) = known.bounds() else { return bounds };
        let absolute = if self.metric == Metric::Cosine { ROUNDING } else { 0.0 };
        DistanceBounds {
            lower: bounds.lower.max(self.scale(lower) - absolute),
            upper: bounds.upper.min(self.scale(upper) + absolute),
            ..bounds
        }
    }

    /// Prepares [`BoundEstimator::is_beyond`] for members whose lower is to be above `threshold`, and whose estimate is
    /// not to be below `kth`; `None` where that can be none.
    pub(crate) fn cut(&self, threshold: f32, kth: f32) -> Option<Cut> {
        if !self.uses_codes() || threshold == f32::INFINITY || kth == f32::INFINITY {
            return None;
        }
        if self.metric == Metric::Ip {
            return Some(Cut { limit: threshold + ROUNDING * threshold.abs(), root: 0.0, kth });
        }
        let absolute = if self.metric == Metric::Cosine { ROUNDING } else { 0.0 };
        let limit = self.code_scale(threshold + absolute).max(0.0) * (1.0 + 4.0 * ROUNDING);
        Some(Cut { limit, root: sqrt(limit), kth: self.code_scale(kth) * (1.0 + ROUNDING) })
    }

    /// Whether [`BoundEstimator::by_code`] would find a member beyond a cut. Most members are, and need no more than
    /// this.
    pub(crate) fn is_beyond(
        &self,
        cut: &Cut,
        (base, term): (f32, f32),
        cross: CodeProduct,
        radius: f32,
    ) -> bool {
        let CodeProduct { value, error, .. } = cross;
        if error == f32::INFINITY {
            return false;
        }
        if self.metric == Metric::Ip {
            let product = base + value;
            let expected = self.expected(product, term, cross, radius);
            let rounding = error + 2.0 * ROUNDING * (base.abs() + value.abs());
            let likely = self.slack * self.query_norm * radius * self.inverse_root_dim * expected.stretch;
            let is_far = product - self.query_norm * radius - rounding > cut.limit
                || expected.estimate - likely - expected.rounding * rounding > cut.limit;
            return is_far && expected.estimate >= cut.kth;
        }
        let squared = base + term + 2.0 * value;
        let expected = self.expected(squared, term, cross, radius);
        if expected.estimate < cut.kth {
            return false;
        }
        let rounding = 4.0 * error + 2.0 * ROUNDING * (base + term.abs() + 2.0 * value.abs());
        let reach = cut.root + radius;
        if squared - rounding > reach * reach * (1.0 + 4.0 * ROUNDING) {
            return true;
        }
        // Beyond the limit by more than so many standard errors, both squared.
        let beyond = expected.estimate - expected.bias - expected.rounding * rounding - cut.limit;
        let deviation = 2.0 * self.slack * radius * self.inverse_root_dim * expected.stretch;
        beyond > 0.0 && beyond * beyond > deviation * deviation * expected.estimate * (1.0 + 4.0 * ROUNDING)
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

    /// Whether [`BoundEstimator::by_list`] needs to know how radii are rounded.
    pub(crate) fn uses_lengths(&self) -> bool {
        self.scale_rounding.is_some()
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
        /// Members beyond the cut would be discarded by their lower bounds as well, and are not among the best
        /// estimates.
        #[test]
        fn the_cut_discards_what_floors_discard(
            metric in prop_oneof![Just(Metric::L2), Just(Metric::Cosine), Just(Metric::Ip)],
            slack in prop_oneof![Just(f32::INFINITY), 0f32..3.0],
            base in 0f32..10.0, term in -2f32..5.0, cross in -5f32..5.0, threshold in -3f32..10.0, kth in -3f32..10.0,
            radius in 0f32..2.0, scale in prop_oneof![Just(1e-6f32), Just(1.0), Just(1e6)],
            error in prop_oneof![Just(0f32), 0f32..0.1], length in prop::option::of(0f32..2.0),
        ) {
            let root = sqrt(scale);
            let estimator = BoundEstimator {
                metric, bounds: Bounds::Both, slack, query_norm: 1.3 * root, inverse_root_dim: 0.1,
                scale_rounding: None,
            };
            let (threshold, kth, radius) = (threshold * scale, kth * scale, radius * root);
            let cut = estimator.cut(threshold, kth).unwrap();
            let (base, term, cross) = (base * scale, term * scale, cross * scale);
            let cross = CodeProduct { value: cross, error: error * scale, length: length.map(|x| x * root) };
            let bounds = estimator.by_code(base, term, cross, radius);
            if estimator.is_beyond(&cut, (base, term), cross, radius) {
                prop_assert!(bounds.lower > threshold && bounds.estimate >= kth, "{bounds:?} {threshold} {kth}");
            } else if metric == Metric::Ip || threshold >= 0.0 {
                // Nor are others far beyond.
                let stretch = 1.0 + length.map_or(0.0, |x| (radius / (x * root)).powi(2).min(1e6));
                let sizes = base.abs() + term.abs() + cross.value.abs() + threshold.abs() + kth.abs();
                let reach = (1e-3 * sizes + 20.0 * error * scale) * stretch;
                let is_far = bounds.lower > threshold + reach && bounds.estimate > kth + reach;
                prop_assert!(!is_far, "{bounds:?} {threshold} {kth}");
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
                inverse_root_dim: 0.35, scale_rounding: None,
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
