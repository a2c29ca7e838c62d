//! A query prepared for distances to codes.

use alloc::vec::Vec;

use stratann_kernel::Metric;
use stratann_kernel::coder::{CodeQuery, Coder};

use crate::view::Base;

/// A query as floats, and in the form that codes are scored with.
#[derive(Clone, Debug, Default)]
pub(crate) struct CodedQuery {
    /// The query as f32; of unit length under cosine.
    pub(crate) wide: Vec<f32>,
    /// As codes are scored with it.
    pub(crate) coded: CodeQuery,
    /// The length of the query under inner product, otherwise 0.
    pub(crate) norm: f32,
    rotated: Vec<f32>,
}

impl CodedQuery {
    /// Prepares for `query`: `dim` components of the index's element type, as bytes.
    pub(crate) fn set(&mut self, base: &Base<'_>, coder: &Coder, query: &[u8]) {
        self.wide.resize(base.dim, 0.0);
        stratann_kernel::element::widen(base.dtype, query, &mut self.wide);
        if base.metric == Metric::Cosine {
            let scale = stratann_kernel::distance::inverse_norm(base.dtype, query);
            self.wide.iter_mut().for_each(|x| *x *= scale);
        }
        self.coded.set(coder, &self.wide, &mut self.rotated);
        let inverse = stratann_kernel::distance::inverse_norm(base.dtype, query);
        // A query of zeros has no inverse.
        let has_norm = base.metric == Metric::Ip && inverse > 0.0;
        self.norm = if has_norm { 1.0 / inverse } else { 0.0 };
    }
}
