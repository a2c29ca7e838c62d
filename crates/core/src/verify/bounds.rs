//! What a code, or the distance to a centroid, says for certain about a distance, before the vector is read.
//!
//! With v̂ for what the code of v stands for and r ≥ ‖v − v̂‖, the triangle inequality gives ‖q − v̂‖ − r ≤ ‖q − v‖ ≤ ‖q − v̂‖ + r: the pivot is the
//! vector's own code, which lies nearer to it than any centroid (OrchANN §5.3 takes the centroid). An inner product is bounded by Cauchy and Schwarz:
//! |⟨q, v⟩ − ⟨q, v̂⟩| ≤ ‖q‖·r. A cosine is a squared l2 of unit vectors, halved.
//!
//! All of this in floats: every bound is widened by what roundings and the table's integers can have done to it.

use stratann_kernel::{Metric, sqrt};

use crate::plan::IndexView;
use crate::query::{Bounds, QueryState, Scratch};

/// Relative roundings of sums over thousands of components stay below this.
const ROUNDING: f32 = 1e-5;

/// What is known of one distance, on the metric's own scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Span {
    /// It is about this.
    pub(crate) estimate: f32,
    /// It is no less than this; where the search may err, hardly ever less.
    pub(crate) floor: f32,
    /// It is no more than this.
    pub(crate) ceiling: f32,
}

/// What all bounds of one query have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ruler {
    metric: Metric,
    bounds: Bounds,
    slack: f32,
    table_error: f32,
    query_norm: f32,
    inverse_root_dim: f32,
}

impl Ruler {
    pub(crate) fn new(state: &QueryState, view: &IndexView<'_>, scratch: &Scratch) -> Ruler {
        Ruler {
            metric: view.metric,
            bounds: state.params.probe.bounds,
            slack: state.params.stop_slack,
            table_error: scratch.table.error_max(),
            query_norm: scratch.query_norm * (1.0 + ROUNDING),
            inverse_root_dim: 1.0 / sqrt(view.dim as f32),
        }
    }

    /// From the code scale, squared l2 or minus the inner product, to the metric's.
    fn scale(&self, x: f32) -> f32 {
        if self.metric == Metric::Cosine { 0.5 * x } else { x }
    }

    /// The distance, on the scale of codes, to a point that a code stands for; `base`, `term` and `cross` as in [`Ruler::by_code`].
    pub(crate) fn to_point(metric: Metric, base: f32, term: f32, cross: f32) -> f32 {
        if metric == Metric::Ip { base + cross } else { base + term + 2.0 * cross }
    }

    /// From the metric's scale to that of codes.
    pub(crate) fn code_scale(&self, x: f32) -> f32 {
        if self.metric == Metric::Cosine { 2.0 * x } else { x }
    }

    /// A member at `radius` from what its code stands for. `base` is the distance to the centroid, `term` the code's own, `cross` minus the inner product of the
    /// query and the code.
    pub(crate) fn by_code(&self, base: f32, term: f32, cross: f32, radius: f32) -> Span {
        if self.metric == Metric::Ip {
            let estimate = base + cross;
            let rounding = self.table_error + ROUNDING * (base.abs() + cross.abs());
            let reach = self.query_norm * radius + rounding;
            let likely = self.slack * self.query_norm * radius * self.inverse_root_dim;
            let width = reach.min(likely + rounding);
            return Span { estimate, floor: estimate - width, ceiling: estimate + width };
        }
        let squared = base + term + 2.0 * cross;
        let rounding = 2.0 * self.table_error + ROUNDING * (base + term.abs() + 2.0 * cross.abs());
        let near = (sqrt((squared - rounding).max(0.0)) - radius).max(0.0);
        let far = sqrt((squared + rounding).max(0.0)) + radius;
        let (mut floor, mut ceiling) = (near * near * (1.0 - ROUNDING), far * far * (1.0 + ROUNDING));
        // The code takes away the part of v that lies across it: half of that belongs to a query that knows nothing of v.
        let estimate = (squared - 0.5 * radius * radius).max(0.0);
        if self.slack < f32::INFINITY {
            let deviation = 2.0 * radius * sqrt(estimate) * self.inverse_root_dim;
            let width = self.slack * deviation + 0.5 * radius * radius + rounding;
            floor = floor.max(estimate - width);
            ceiling = ceiling.min(estimate + width);
        }
        // Cosines are computed with an absolute rounding.
        let absolute = if self.metric == Metric::Cosine { ROUNDING } else { 0.0 };
        Span {
            estimate: self.scale(estimate),
            floor: self.scale(floor) - absolute,
            ceiling: self.scale(ceiling) + absolute,
        }
    }

    /// The floor of a member whose distance to the centroid is within `least..=most`; `base` is the distance of the query to it.
    pub(crate) fn by_centroid(&self, base: f32, (least, most): (f32, f32)) -> f32 {
        if self.metric == Metric::Ip {
            return base - self.query_norm * most - ROUNDING * base.abs();
        }
        let to = sqrt(base.max(0.0));
        let gap = (to * (1.0 - ROUNDING) - most).max(least - to * (1.0 + ROUNDING)).max(0.0);
        let absolute = if self.metric == Metric::Cosine { ROUNDING } else { 0.0 };
        self.scale(gap * gap * (1.0 - ROUNDING)) - absolute
    }

    /// The span of a distance that is known, of a member whose cluster's centroid is at `base`.
    pub(crate) fn exactly(&self, base: f32, distance: f32) -> Span {
        let rounding = match self.metric {
            Metric::L2 => ROUNDING * distance,
            Metric::Cosine => ROUNDING,
            // What was added up may be far larger than the sum.
            Metric::Ip => ROUNDING * (base.abs() + (distance - base).abs()),
        };
        Span { estimate: distance, floor: distance - rounding, ceiling: distance + rounding }
    }

    /// The floor of a member that lies within `least..=most` of another, whose distance is within `pivot`: the length of an edge makes its end a
    /// pivot (OrchANN §5.3).
    pub(crate) fn by_edge(&self, pivot: &Span, (least, most): (f32, f32)) -> f32 {
        if self.metric == Metric::Ip {
            return pivot.floor - self.query_norm * most - ROUNDING * pivot.floor.abs();
        }
        let absolute = if self.metric == Metric::Cosine { ROUNDING } else { 0.0 };
        let nearest = sqrt(self.code_scale(pivot.floor - absolute).max(0.0)) * (1.0 - ROUNDING);
        let farthest = sqrt(self.code_scale(pivot.ceiling + absolute).max(0.0)) * (1.0 + ROUNDING);
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
