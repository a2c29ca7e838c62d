//! The options of the kinds.

use stratann_params::build::{GpuOptions, GraphOptions, GridOptions, ListOptions, RemoteOptions};
use stratann_params::search::{GpuSwitches, GraphSwitches, GridSwitches, ListSwitches, RemoteSwitches};
use stratann_params::{Given, Group, IndexKind, Value};

#[cfg(feature = "lab")]
pub use super::gpu_ivf::baseline::{Baseline, OpenBaselines};
use super::gpu_ivf::options as gpu_ivf;
pub use super::hybrid_ivf::learning::options::LearnOptions;
pub use super::hybrid_ivf::options::LocalPlan;
use crate::record::Recorded;

/// Build options of the kind of an index.
#[derive(Clone, Debug)]
pub enum KindOptions {
    /// Of a `flat`: none.
    Flat,
    /// Of a `disk-graph`.
    DiskGraph(GraphOptions),
    /// Of a `hybrid-ivf`.
    HybridIvf(Box<ListOptions>),
    /// Of a `grid-ivf`.
    GridIvf(GridOptions),
    /// Of a `gpu-ivf`.
    GpuIvf(GpuOptions),
    /// Of a `remote-hnsw`.
    RemoteHnsw(RemoteOptions),
}

impl KindOptions {
    /// The kind.
    pub fn kind(&self) -> IndexKind {
        match self {
            KindOptions::Flat => IndexKind::Flat,
            KindOptions::DiskGraph(_) => IndexKind::DiskGraph,
            KindOptions::HybridIvf(_) => IndexKind::HybridIvf,
            KindOptions::GridIvf(_) => IndexKind::GridIvf,
            KindOptions::GpuIvf(_) => IndexKind::GpuIvf,
            KindOptions::RemoteHnsw(_) => IndexKind::RemoteHnsw,
        }
    }

    /// The options of the kind, which are checked and recorded.
    pub(crate) fn own(&self) -> &dyn Recorded {
        match self {
            KindOptions::Flat => &(),
            KindOptions::DiskGraph(own) => own,
            KindOptions::HybridIvf(own) => &**own,
            KindOptions::GridIvf(own) => own,
            KindOptions::GpuIvf(own) => own,
            KindOptions::RemoteHnsw(own) => own,
        }
    }
}

/// The defaults of a kind.
impl From<IndexKind> for KindOptions {
    fn from(kind: IndexKind) -> KindOptions {
        OptionsByKind::default().of(kind)
    }
}

/// Build options of every kind, as a command line gives them before the kind is known.
#[derive(Clone, Debug, Default)]
pub struct OptionsByKind {
    /// Of a `disk-graph`.
    pub disk_graph: GraphOptions,
    /// Of a `hybrid-ivf`.
    pub hybrid_ivf: ListOptions,
    /// Of a `grid-ivf`.
    pub grid_ivf: GridOptions,
    /// Of a `gpu-ivf`.
    pub gpu_ivf: GpuOptions,
    /// Of a `remote-hnsw`.
    pub remote_hnsw: RemoteOptions,
}

impl OptionsByKind {
    /// Reads what a user gave.
    pub fn read(given: &Given) -> OptionsByKind {
        OptionsByKind {
            disk_graph: given.read(),
            hybrid_ivf: given.read(),
            grid_ivf: given.read(),
            gpu_ivf: given.read(),
            remote_hnsw: given.read(),
        }
    }

    /// Those of one kind.
    pub fn of(self, kind: IndexKind) -> KindOptions {
        match kind {
            IndexKind::Flat => KindOptions::Flat,
            IndexKind::DiskGraph => KindOptions::DiskGraph(self.disk_graph),
            IndexKind::HybridIvf => KindOptions::HybridIvf(Box::new(self.hybrid_ivf)),
            IndexKind::GridIvf => KindOptions::GridIvf(self.grid_ivf),
            IndexKind::GpuIvf => KindOptions::GpuIvf(self.gpu_ivf),
            IndexKind::RemoteHnsw => KindOptions::RemoteHnsw(self.remote_hnsw),
        }
    }
}

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
    /// Of a `grid-ivf`.
    GridIvf(GridSwitches),
    /// Of a `gpu-ivf`.
    GpuIvf(GpuSwitches),
    /// Of a `remote-hnsw`.
    RemoteHnsw(RemoteSwitches),
}

impl Switches {
    /// Reads what a user gave for an index of this kind.
    pub fn read(given: &Given, kind: IndexKind) -> Switches {
        match kind {
            IndexKind::Flat => Switches::Default,
            IndexKind::DiskGraph => Switches::DiskGraph(given.read()),
            IndexKind::HybridIvf => Switches::HybridIvf(given.read()),
            IndexKind::GridIvf => Switches::GridIvf(given.read()),
            IndexKind::GpuIvf => Switches::GpuIvf(given.read()),
            IndexKind::RemoteHnsw => Switches::RemoteHnsw(given.read()),
        }
    }

    /// The families of recall curves among which a search takes the cheapest; `None` is the usual one.
    pub(crate) fn families(&self) -> Vec<Option<&'static str>> {
        gpu_ivf::families(&self.gpu())
    }

    /// The fields of a request that differ from their defaults.
    pub fn differing(&self) -> Vec<(&'static str, Value)> {
        match self {
            Switches::Default => Vec::new(),
            Switches::DiskGraph(switches) => switches.differing(),
            Switches::HybridIvf(switches) => switches.differing(),
            Switches::GridIvf(switches) => switches.differing(),
            Switches::GpuIvf(switches) => switches.differing(),
            Switches::RemoteHnsw(switches) => switches.differing(),
        }
    }

    /// Those of a `disk-graph`.
    pub fn graph(&self) -> GraphSwitches {
        if let Switches::DiskGraph(own) = self { *own } else { GraphSwitches::default() }
    }

    /// Those of a `hybrid-ivf`.
    pub fn lists(&self) -> ListSwitches {
        if let Switches::HybridIvf(own) = self { *own } else { ListSwitches::default() }
    }

    /// Those of a `grid-ivf`.
    pub fn grid(&self) -> GridSwitches {
        if let Switches::GridIvf(own) = self { *own } else { GridSwitches::default() }
    }

    /// Those of a `remote-hnsw`.
    pub fn remote(&self) -> RemoteSwitches {
        if let Switches::RemoteHnsw(own) = self { *own } else { RemoteSwitches::default() }
    }

    /// Those of a `gpu-ivf`.
    pub fn gpu(&self) -> GpuSwitches {
        match self {
            Switches::GpuIvf(switches) => *switches,
            // Both have a switch of this name.
            Switches::DiskGraph(switches) => {
                GpuSwitches { whole_blocks: switches.whole_blocks, ..GpuSwitches::default() }
            }
            _ => GpuSwitches::default(),
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

impl From<GridSwitches> for Switches {
    fn from(switches: GridSwitches) -> Switches {
        Switches::GridIvf(switches)
    }
}

impl From<GpuSwitches> for Switches {
    fn from(switches: GpuSwitches) -> Switches {
        Switches::GpuIvf(switches)
    }
}

impl From<RemoteSwitches> for Switches {
    fn from(switches: RemoteSwitches) -> Switches {
        Switches::RemoteHnsw(switches)
    }
}
