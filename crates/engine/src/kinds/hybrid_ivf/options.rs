//! Options of a `hybrid-ivf`.

use stratann_core::exact::Bounds;
use stratann_core::format::directory::LocalKind;
use stratann_core::kinds::hybrid_ivf::Order;
use stratann_params::Group;
pub use stratann_params::build::ListOptions as Options;
use stratann_params::choices::{BoundsName, OrderName, PlanName};
pub use stratann_params::search::ListSwitches as Switches;
use stratann_storage::Result;

use stratann_params::choices::CodeKind;

use crate::codebook::check_code_bytes;
use crate::record::{Record, Recorded, recorded};

/// Which local index the clusters get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalPlan {
    /// The one that costs least under the budget, cluster by cluster.
    #[default]
    Auto,
    /// One local index for all.
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

impl Recorded for Options {
    fn check(&self, dim: usize) -> Result<()> {
        self.check_ranges()?;
        check_code_bytes(self.code_bytes, dim, CodeKind::Opq)
    }

    fn record(&self, _: usize) -> Record {
        let mut all = recorded(self);
        all.remove("plan");
        all.insert("local_plan", format!("{:?}", LocalPlan::from(self.plan)).to_lowercase().into());
        all
    }
}

/// The core's name of an order.
pub(crate) fn order(name: OrderName) -> Order {
    match name {
        OrderName::Evidence => Order::Evidence,
        OrderName::SampleHits => Order::SampleHits,
        OrderName::Centroid => Order::Centroid,
        OrderName::Expected => Order::Expected,
    }
}

/// The core's name of bounds.
pub(crate) fn bounds(name: BoundsName) -> Bounds {
    match name {
        BoundsName::Off => Bounds::Off,
        BoundsName::Centroid => Bounds::Centroid,
        BoundsName::Code => Bounds::Code,
        BoundsName::Both => Bounds::Both,
    }
}
