//! The options of the kinds.

use serde_json::Value;

pub use super::disk_graph::options::{CodePlace, GraphOptions, GraphSwitches};
pub use super::gpu_ivf::baseline::{Baseline, OpenBaselines};
pub use super::gpu_ivf::options::{GpuOptions, GpuSwitches};
pub use super::grid_ivf::options::{GridOptions, GridSwitches};
pub use super::hybrid_ivf::learning::options::{Learn, LearnOptions};
pub use super::hybrid_ivf::options::{ListOptions, ListSwitches, LocalPlan};
use super::kind::Kind;
pub use super::remote_hnsw::options::{RemoteOptions, RemoteSwitches, Representatives};
use crate::Result;

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
            KindOptions::DiskGraph(own) => own.check(dim),
            KindOptions::HybridIvf(own) => own.check(dim),
            KindOptions::GridIvf(own) => own.check(),
            KindOptions::GpuIvf(own) => own.check(dim),
            KindOptions::RemoteHnsw(own) => own.check(),
        }
    }

    /// The options that the content of an index depends on, as its manifest records them.
    pub(crate) fn record(&self, dim: usize) -> Vec<(&'static str, Value)> {
        match self {
            KindOptions::Flat => Vec::new(),
            KindOptions::DiskGraph(own) => own.record(dim),
            KindOptions::HybridIvf(own) => own.record(),
            KindOptions::GridIvf(own) => own.record(),
            KindOptions::GpuIvf(own) => own.record(dim),
            KindOptions::RemoteHnsw(own) => own.record(),
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

impl OptionsByKind {
    /// Checks the values of every kind for vectors of `dim` components.
    ///
    /// # Errors
    /// A value out of range.
    pub fn check(&self, dim: usize) -> Result<()> {
        self.disk_graph.check(dim)?;
        self.hybrid_ivf.check(dim)?;
        self.grid_ivf.check()?;
        self.gpu_ivf.check(dim)?;
        self.remote_hnsw.check()
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
                GpuSwitches { no_whole_blocks: !switches.whole_blocks, ..GpuSwitches::default() }
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
