//! Options of a `hybrid-ivf`.

use serde_json::Value;
use stratann_core::format::directory::LocalKind;
use stratann_core::plan::hybrid_ivf::Order;
use stratann_core::verify::Bounds;
use stratann_kernel::DType;

use crate::build::codebook::check_code_bytes;
use crate::profile::Profile;
use crate::{Error, Result};

/// Which local index the clusters get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalPlan {
    /// The one that costs least under the budget, cluster by cluster.
    #[default]
    Auto,
    /// The same for all.
    Uniform(LocalKind),
}

/// Options of the build of a `hybrid-ivf`.
#[derive(Clone, Debug)]
pub struct ListOptions {
    /// Clusters of vectors; `None` for 4·√n.
    pub clusters: Option<usize>,
    /// Local indexes of the clusters.
    pub local_plan: LocalPlan,
    /// RAM of later searches, bytes: decides the plan; `None` for the smallest possible.
    pub search_budget: Option<u64>,
    /// Costs of reads and distances on this machine; `None` for those of the disk, which are measured
    /// once and kept.
    pub profile: Option<Profile>,
    /// Sampled members in the navigation graph, for each cluster.
    pub nav_samples: f64,
    /// Bytes of a code; `None` for four bits a component of a float, two of a byte.
    pub code_bytes: Option<usize>,
}

impl Default for ListOptions {
    fn default() -> Self {
        ListOptions {
            clusters: None,
            local_plan: LocalPlan::Auto,
            search_budget: None,
            profile: None,
            nav_samples: 2.0,
            code_bytes: None,
        }
    }
}

impl ListOptions {
    /// Bytes of a code for vectors of `dim` components.
    pub fn code_bytes(&self, dim: usize, dtype: DType) -> usize {
        let default = || (if dtype.is_float() { dim / 2 } else { dim / 4 }).max(1);
        self.code_bytes.unwrap_or_else(default).min(dim)
    }

    /// Checks the values for vectors of `dim` components.
    pub(crate) fn check(&self, dim: usize) -> Result<()> {
        let bad = |text: String| Err(Error::bad_input(text));
        if self.clusters == Some(0) {
            return bad("--clusters is 0; use 1 or more".into());
        }
        if !(0.0..=1000.0).contains(&self.nav_samples) {
            return bad(format!("--nav-samples is {}; use 0 to 1000 for each cluster", self.nav_samples));
        }
        check_code_bytes(self.code_bytes, dim)
    }

    /// The options that the content of an index depends on, as its manifest records them.
    pub(crate) fn record(&self) -> Vec<(&'static str, Value)> {
        vec![
            ("clusters", self.clusters.into()),
            ("local_plan", format!("{:?}", self.local_plan).to_lowercase().into()),
            ("nav_samples", self.nav_samples.into()),
            ("search_budget", self.search_budget.into()),
            ("code_bytes", self.code_bytes.into()),
        ]
    }
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
