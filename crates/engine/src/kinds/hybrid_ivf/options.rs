//! Options of a `hybrid-ivf`.

use stratann_core::format::directory::LocalKind;
use stratann_kernel::DType;

/// Which local index the clusters get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalPlan {
    /// The one that costs least under the budget, cluster by cluster.
    #[default]
    Auto,
    /// The same for all.
    Uniform(LocalKind),
}

/// Four bits a component of a float, two of a byte: an eighth of f32, a quarter of the others.
pub(crate) fn default_code_bytes(dim: usize, dtype: DType) -> usize {
    (if dtype.is_float() { dim / 2 } else { dim / 4 }).max(1)
}
