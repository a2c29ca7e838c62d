//! The options of the kinds.

use stratann_params::build::{GpuOptions, GraphOptions, GridOptions, ListOptions, RemoteOptions};
use stratann_params::search::{GpuSwitches, GraphSwitches, GridSwitches, ListSwitches, RemoteSwitches};
use stratann_params::{Given, Group, IndexKind, Value};
use stratann_storage::Result;

use super::disk_graph::options as disk_graph;
#[cfg(feature = "lab")]
pub use super::gpu_ivf::baseline::{Baseline, OpenBaselines};
use super::gpu_ivf::options as gpu_ivf;
use super::grid_ivf::options as grid_ivf;
pub use super::hybrid_ivf::learning::options::LearnOptions;
use super::hybrid_ivf::options as hybrid_ivf;
pub use super::hybrid_ivf::options::LocalPlan;
use super::kind::Kind;
use super::remote_hnsw::options as remote_hnsw;
use crate::record::{Record, recorded};

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
    pub fn kind(&self) -> Kind {
        match self {
            KindOptions::Flat => Kind::Flat,
            KindOptions::DiskGraph(_) => Kind::DiskGraph,
            KindOptions::HybridIvf(_) => Kind::HybridIvf,
            KindOptions::GridIvf(_) => Kind::GridIvf,
            KindOptions::GpuIvf(_) => Kind::GpuIvf,
            KindOptions::RemoteHnsw(_) => Kind::RemoteHnsw,
        }
    }

    /// Checks the values for vectors of `dim` components.
    pub(crate) fn check(&self, dim: usize) -> Result<()> {
        match self {
            KindOptions::Flat => Ok(()),
            KindOptions::DiskGraph(own) => disk_graph::check(own, dim),
            KindOptions::HybridIvf(own) => hybrid_ivf::check(own, dim),
            KindOptions::GridIvf(own) => grid_ivf::check(own),
            KindOptions::GpuIvf(own) => gpu_ivf::check(own, dim),
            KindOptions::RemoteHnsw(own) => remote_hnsw::check(own),
        }
    }

    /// The options that the content of an index depends on, as its manifest records them.
    pub(crate) fn record(&self, dim: usize) -> Record {
        match self {
            KindOptions::Flat => Record::new(),
            KindOptions::DiskGraph(own) => disk_graph::record(own, dim),
            KindOptions::HybridIvf(own) => hybrid_ivf::record(own),
            KindOptions::GridIvf(own) => grid_ivf::record(own),
            KindOptions::GpuIvf(own) => gpu_ivf::record(own, dim),
            KindOptions::RemoteHnsw(own) => recorded(own),
        }
    }
}

/// The defaults of a kind.
impl From<Kind> for KindOptions {
    fn from(kind: Kind) -> KindOptions {
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

impl From<Kind> for IndexKind {
    fn from(kind: Kind) -> IndexKind {
        match kind {
            Kind::DiskGraph => IndexKind::DiskGraph,
            Kind::HybridIvf => IndexKind::HybridIvf,
            Kind::GridIvf => IndexKind::GridIvf,
            Kind::GpuIvf => IndexKind::GpuIvf,
            Kind::RemoteHnsw => IndexKind::RemoteHnsw,
            Kind::Flat => IndexKind::Flat,
        }
    }
}

impl From<IndexKind> for Kind {
    fn from(kind: IndexKind) -> Kind {
        match kind {
            IndexKind::DiskGraph => Kind::DiskGraph,
            IndexKind::HybridIvf => Kind::HybridIvf,
            IndexKind::GridIvf => Kind::GridIvf,
            IndexKind::GpuIvf => Kind::GpuIvf,
            IndexKind::RemoteHnsw => Kind::RemoteHnsw,
            IndexKind::Flat => Kind::Flat,
        }
    }
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
    pub fn of(self, kind: Kind) -> KindOptions {
        match kind {
            Kind::Flat => KindOptions::Flat,
            Kind::DiskGraph => KindOptions::DiskGraph(self.disk_graph),
            Kind::HybridIvf => KindOptions::HybridIvf(Box::new(self.hybrid_ivf)),
            Kind::GridIvf => KindOptions::GridIvf(self.grid_ivf),
            Kind::GpuIvf => KindOptions::GpuIvf(self.gpu_ivf),
            Kind::RemoteHnsw => KindOptions::RemoteHnsw(self.remote_hnsw),
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
    pub fn read(given: &Given, kind: Kind) -> Switches {
        match kind {
            Kind::Flat => Switches::Default,
            Kind::DiskGraph => Switches::DiskGraph(given.read()),
            Kind::HybridIvf => Switches::HybridIvf(given.read()),
            Kind::GridIvf => Switches::GridIvf(given.read()),
            Kind::GpuIvf => Switches::GpuIvf(given.read()),
            Kind::RemoteHnsw => Switches::RemoteHnsw(given.read()),
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
        match self {
            Switches::DiskGraph(switches) => *switches,
            _ => GraphSwitches::default(),
        }
    }

    /// Those of a `hybrid-ivf`.
    pub fn lists(&self) -> ListSwitches {
        match self {
            Switches::HybridIvf(switches) => *switches,
            _ => ListSwitches::default(),
        }
    }

    /// Those of a `grid-ivf`.
    pub fn grid(&self) -> GridSwitches {
        match self {
            Switches::GridIvf(switches) => *switches,
            _ => GridSwitches::default(),
        }
    }

    /// Those of a `remote-hnsw`.
    pub fn remote(&self) -> RemoteSwitches {
        match self {
            Switches::RemoteHnsw(switches) => *switches,
            _ => RemoteSwitches::default(),
        }
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
