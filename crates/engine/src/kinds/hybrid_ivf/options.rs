//! Options of a `hybrid-ivf`.

use stratann_core::exact::Bounds;
use stratann_core::format::directory::LocalKind;
use stratann_core::kinds::hybrid_ivf::Order;
use stratann_kernel::bits::Layout;
use stratann_params::Group;
pub use stratann_params::build::ListOptions as Options;
use stratann_params::choices::{BoundsName, OrderName, PlanName};
pub use stratann_params::search::ListSwitches as Switches;
use stratann_storage::{Error, Result};

use crate::codebook::check_code_bytes;
use crate::dataset::Shape;
use crate::record::{CODE_KIND, Record, Recorded, recorded};

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
        check_code_bytes(self.code_bytes, dim)
    }

    fn record(&self, _: usize) -> Record {
        let mut all = recorded(self);
        all.remove("plan");
        // As of before there was a choice.
        all.retain(|name, value| *name != "code_bits" || !value.is_null());
        all.insert("code_kind", CODE_KIND.into());
        all.insert("local_plan", format!("{:?}", LocalPlan::from(self.plan)).to_lowercase().into());
        all
    }
}

/// Bytes of a code of vectors of this shape.
pub(crate) fn code_bytes(own: &Options, shape: &Shape) -> usize {
    bit_layout(own, shape).map_or(0, |layout| layout.code_bytes())
}

/// The layout of codes of bits, as if all dimensions varied alike.
///
/// # Errors
/// Bytes in which no code has room.
pub(crate) fn even_layout(own: &Options, shape: &Shape) -> Result<Layout> {
    bit_layout(own, shape).ok_or_else(|| {
        Error::bad_input(format!(
            "--code-bytes {} is too small for {} dimensions",
            own.code_bytes(shape.dim, shape.dtype.is_float()),
            shape.dim
        ))
    })
}

fn bit_layout(own: &Options, shape: &Shape) -> Option<Layout> {
    Layout::within(shape.dim, own.code_bytes(shape.dim, shape.dtype.is_float()), false)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of parameters counts the bytes of a layout that it does not know.
    #[test]
    fn bits_are_as_many_bytes_as_their_layout() {
        for dim in [1, 2, 3, 7, 8, 96, 100, 768, 4096] {
            for bits in 1..=8 {
                let lists = Options { code_bits: Some(bits), ..Options::default() };
                let layout = Layout::even(dim, bits, 0, false).unwrap();
                assert_eq!(lists.code_bytes(dim, true), layout.code_bytes(), "{dim} × {bits}");
                let found = Layout::within(dim, layout.code_bytes(), false).unwrap();
                // Bytes of few dimensions have room for more, of which the best is taken.
                let fits = dim < 8 && found.code_bytes() <= layout.code_bytes();
                assert!(found == layout || fits, "{dim} × {bits}: {found:?}");
                let graph =
                    stratann_params::build::GraphOptions { code_bits: Some(bits), ..Default::default() };
                assert_eq!(graph.code_bytes(dim), layout.code_bytes() + 1, "{dim} × {bits}");
            }
        }
    }
}
