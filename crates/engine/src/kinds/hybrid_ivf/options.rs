//! Options of a `hybrid-ivf`.

use stratann_core::format::directory::LocalKind;
use stratann_core::plan::hybrid_ivf::Order;
use stratann_core::verify::Bounds;
use stratann_params::Group;
use stratann_params::build::ListOptions;
use stratann_params::choices::PlanName;
use stratann_storage::Result;

use crate::codebook::check_code_bytes;
use crate::record::{Record, recorded};

/// Which local index the clusters get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalPlan {
    /// The one that costs least under the budget, cluster by cluster.
    #[default]
    Auto,
    /// The same for all.
    Uniform(LocalKind),
}

impl From<PlanName> for LocalPlan {
    fn from(name: PlanName) -> LocalPlan {
        match name {
            PlanName::Auto => LocalPlan::Auto,
            PlanName::UniformFlat => LocalPlan::Uniform(LocalKind::Flat),
            PlanName::UniformGraph => LocalPlan::Uniform(LocalKind::Graph),
            PlanName::UniformIvf => LocalPlan::Uniform(LocalKind::Ivf),
        }
    }
}

impl From<LocalPlan> for PlanName {
    fn from(plan: LocalPlan) -> PlanName {
        match plan {
            LocalPlan::Auto => PlanName::Auto,
            LocalPlan::Uniform(LocalKind::Flat) => PlanName::UniformFlat,
            LocalPlan::Uniform(LocalKind::Graph) => PlanName::UniformGraph,
            LocalPlan::Uniform(LocalKind::Ivf) => PlanName::UniformIvf,
        }
    }
}

/// Checks the values for vectors of `dim` components.
pub(crate) fn check(own: &ListOptions, dim: usize) -> Result<()> {
    own.check_ranges()?;
    check_code_bytes(own.code_bytes, dim)
}

/// The options that the content of an index depends on, as its manifest records them.
pub(crate) fn record(own: &ListOptions) -> Record {
    let mut all = recorded(own);
    all.remove("plan");
    all.insert("local_plan", format!("{:?}", LocalPlan::from(own.plan)).to_lowercase().into());
    all
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
