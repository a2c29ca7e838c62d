//! Code distances to be expected of vectors whose exact distances are known.

use stratann_kernel::coder::Coder;
use stratann_kernel::{Metric, sqrt};

use super::CodedQuery;
use crate::view::Base;

/// The errors of the codes of an index.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ExpectedDistances {
    // From the scale of codes to that of exact distances.
    scale: f32,
    // Mean squared error of the codes, and what of it a distance by code has on top of that of the vector.
    error: f32,
    bias: f32,
    // Root mean square length of the vectors; used under inner product only.
    vector_norm: f32,
    dim: f32,
}

impl ExpectedDistances {
    /// Expected distances of an index whose codes have this mean squared error.
    pub(crate) fn new(base: &Base<'_>, coder: &Coder, error: f32, vector_norm: f32) -> ExpectedDistances {
        // Codes of unit vectors measure squared l2, which is twice the cosine distance.
        let scale = if base.metric == Metric::Cosine { 0.5 } else { 1.0 };
        let bias = if coder.is_unbiased() { 0.0 } else { error };
        ExpectedDistances { scale, error, bias, vector_norm, dim: base.dim as f32 }
    }

    /// A code distance on the scale of exact distances.
    pub(crate) fn estimate(&self, query: &CodedQuery, code_distance: u32) -> f32 {
        query.coded.to_float(code_distance) * self.scale
    }

    /// The largest code distance (on the scale of exact ones) to expect of a vector at exact distance `exact`,
    /// `slack` standard errors up.
    ///
    /// With e the error of a code, ‖q − v̂‖² = ‖q − v‖² + ‖e‖² + 2⟨q − v, e⟩: a bias of E‖e‖² and, for errors without
    /// preferred direction in d dimensions, a standard error of 2·√(‖q − v‖²·E‖e‖² / d). An inner product has no
    /// bias, and ‖q‖·√(E‖e‖² / d). The distance by a code of bits has none either: its error is that of an inner
    /// product with what of q − v is across v.
    pub(crate) fn at_most(&self, query: &CodedQuery, exact: f32, slack: f32) -> f32 {
        if query.norm > 0.0 {
            return exact + slack * query.norm * sqrt(self.error / self.dim);
        }
        let error = self.error * self.scale;
        exact + self.bias * self.scale + slack * 2.0 * sqrt(exact.max(0.0) * error / self.dim)
    }

    /// The code distance to expect of a vector at distance `exact` plus this share of it.
    ///
    /// A share of an inner product means nothing. With the query brought to the length N of the vectors, their squared
    /// l2 is 2·(N·‖q‖ − ⟨q, v⟩) but for a factor; half of that is what the share is taken of.
    pub(crate) fn within(&self, query: &CodedQuery, exact: f32, share: f32) -> f32 {
        if query.norm > 0.0 {
            return exact + share * (self.vector_norm * query.norm + exact).max(0.0);
        }
        let expected = exact + self.bias * self.scale;
        expected + share * expected.max(0.0)
    }
}
