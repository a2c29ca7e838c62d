//! The options of the kinds.

pub use super::disk_graph::options::GraphSwitches;
pub use super::hybrid_ivf::learning::options::{Learn, LearnOptions};
pub(crate) use super::hybrid_ivf::options::default_code_bytes;
pub use super::hybrid_ivf::options::{ListSwitches, LocalPlan};

/// Techniques of a search that may be switched. Those of another kind than the index are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Switches {
    /// The defaults of every kind.
    #[default]
    Default,
    /// Of a `disk-graph`.
    DiskGraph(GraphSwitches),
    /// Of a `hybrid-ivf`.
    HybridIvf(ListSwitches),
}

impl Switches {
    /// Those of a `disk-graph`.
    pub fn graph(&self) -> GraphSwitches {
        match self {
            Switches::DiskGraph(switches) => *switches,
            Switches::Default | Switches::HybridIvf(_) => GraphSwitches::default(),
        }
    }

    /// Those of a `hybrid-ivf`.
    pub fn lists(&self) -> ListSwitches {
        match self {
            Switches::HybridIvf(switches) => *switches,
            Switches::Default | Switches::DiskGraph(_) => ListSwitches::default(),
        }
    }
}

impl From<GraphSwitches> for Switches {
    fn from(switches: GraphSwitches) -> Switches {
        Switches::DiskGraph(switches)
    }
}

impl From<ListSwitches> for Switches {
    fn from(switches: ListSwitches) -> Switches {
        Switches::HybridIvf(switches)
    }
}
