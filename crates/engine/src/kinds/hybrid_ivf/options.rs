//! Options of a `hybrid-ivf`.

use stratann_core::format::directory::LocalKind;
use stratann_core::plan::hybrid_ivf::Order;
use stratann_core::verify::Bounds;
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

/// Techniques of a `hybrid-ivf` that may be switched (OrchANN §5.3).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ListSwitches {
    /// Which clusters are visited first; `None` for what the index was calibrated with.
    pub order: Option<Order>,
    /// Stop when clusters bring nothing more.
    pub early_stop: bool,
    /// Weigh what fruitless clusters tell by what was to be expected of them.
    pub weighed: bool,
    /// Bounds that discard vectors before they are read.
    pub bounds: Bounds,
    /// Lists that are scanned of a divided cluster; `None` for as many as its plan says.
    pub local_lists: Option<u32>,
    /// Length of the beam in a cluster that is a graph.
    pub local_list: Option<u32>,
    /// Members found by the navigation that count for the rank of their clusters.
    pub sample_hits: Option<u32>,
}

impl Default for ListSwitches {
    fn default() -> Self {
        ListSwitches {
            order: None,
            weighed: true,
            early_stop: true,
            bounds: Bounds::Both,
            local_lists: None,
            local_list: None,
            sample_hits: None,
        }
    }
}
