//! The kinds of index: a closed sum.
//!
//! A kind is a folder here, one in `stratann_core::kinds`, its options, and a line in [`with_kinds`].

/// Gives every kind to the macro of a sum: its variant and its room. A room has `options::{Options, Switches}`,
/// `facts::FACTS`, the type `Index` of an open index, and a type named as the variant, which answers without one.
macro_rules! with_kinds {
    ($sum:ident) => {
        $sum! {
            Flat flat,
            DiskGraph disk_graph,
            HybridIvf hybrid_ivf,
            GridIvf grid_ivf,
            GpuIvf gpu_ivf,
            RemoteHnsw remote_hnsw,
        }
    };
}

pub mod answers;
pub mod blocks;
mod builds;
pub(crate) mod choice;
pub mod cluster_set;
pub mod disk_graph;
pub mod division;

pub mod effort;
mod explained;
pub mod facts;
pub mod flat;
pub mod gpu_ivf;
pub mod grid_ivf;
pub mod hybrid_ivf;
pub mod known;
mod live;
pub(crate) mod live_plans;
pub mod options;
mod params;
pub(crate) mod questions;
pub mod remote_hnsw;
pub mod section;
pub mod shares_loads;
mod sieved_lists;
pub mod split;
pub(crate) mod state_bytes;

use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stratann_core::kinds::{IndexView, KindParams};
use stratann_core::query::StoreId;
use stratann_storage::{Error, Result};

pub use blocks::IN_FLIGHT;
pub(crate) use builds::{build, checked_plan};
pub(crate) use explained::explain;
pub(crate) use grid_ivf::open::GridIndex;
pub(crate) use grid_ivf::pass::{
    GridPanel, GridPass, PANEL_ROWS as GRID_PANEL_ROWS, thread_bytes as grid_thread_bytes,
};
pub(crate) use hybrid_ivf::explain::plan as list_plan;
pub(crate) use hybrid_ivf::learning::Learning;
pub use hybrid_ivf::learning::facts::LearningFacts;
pub(crate) use hybrid_ivf::open::ListIndex;
pub(crate) use params::{own, own_mut, params_at};
pub use params::{params_of, reported_params, setting, width, with_remote, with_setting};
pub use remote_hnsw::linking::{ClusterCost, Linking, LinkingOptions};
pub use remote_hnsw::live::inspect::{LiveFacts, MemoryReport};
pub use remote_hnsw::live::load::LoadedNode;
pub(crate) use remote_hnsw::live::load::{check_loadable, copy_to_nodes};
pub(crate) use remote_hnsw::live::updates::Update;
pub use remote_hnsw::live::updates::{Acknowledged, PLACE, Unfinished, UpdateOptions};
pub(crate) use remote_hnsw::live::{Clusters as LiveClusters, LiveRegion, Session as LiveSession};
pub(crate) use remote_hnsw::loads::recorded_visits;
pub(crate) use remote_hnsw::sieved::sieved;
pub(crate) use state_bytes::state_bytes;

use crate::base::{Base, IndexShape, OpenOptions, shape};
use crate::exec::scorer::Scorer;
use crate::files;
use crate::manifest::Manifest;
use crate::units::{Held, Units};
pub use answers::Setting;
use disk_graph::open::GraphTables;
use flat::Flat;
use gpu_ivf::open::GpuIndex;

use options::Switches;
use questions::{Kind, OpenKind, RanksCodes};
use remote_hnsw::open::RemoteIndex;
use stratann_params::IndexKind;
use stratann_params::search::GpuSwitches;

/// Makes the sum of open indexes, which answer as their kind.
macro_rules! index {
    ($($variant:ident $room:ident,)*) => {
        /// The part of an open index beyond [`Base`], which answers by its kind.
        pub(crate) enum KindIndex {
            $($variant(Box<$room::Index>),)*
        }

        impl Deref for KindIndex {
            type Target = dyn OpenKind;

            fn deref(&self) -> &(dyn OpenKind + 'static) {
                match self { $(KindIndex::$variant(own) => &**own,)* }
            }
        }

        impl DerefMut for KindIndex {
            fn deref_mut(&mut self) -> &mut (dyn OpenKind + 'static) {
                match self { $(KindIndex::$variant(own) => &mut **own,)* }
            }
        }

        /// The answers of a kind.
        pub(crate) fn kind(of: IndexKind) -> &'static dyn Kind {
            match of { $(IndexKind::$variant => &$room::$variant,)* }
        }
    };
}

with_kinds!(index);

impl KindIndex {
    /// Opens what the kind holds in RAM, of a whole index or of the units that one server holds. Units that another
    /// version holds already may be shared with it. Adds warnings.
    ///
    /// # Errors
    /// A file that is missing or damaged.
    pub(crate) fn open(
        base: &Base,
        held: Option<Held<'_>>,
        (options, previous_version): (&OpenOptions, Option<&KindIndex>),
        warnings: &mut Vec<String>,
    ) -> Result<KindIndex> {
        Ok(match base.kind {
            IndexKind::Flat => KindIndex::Flat(Flat.into()),
            IndexKind::DiskGraph => KindIndex::DiskGraph(GraphTables::open(base)?.into()),
            IndexKind::HybridIvf => {
                KindIndex::HybridIvf(ListIndex::open(base, held, options, warnings)?.into())
            }
            IndexKind::GridIvf => {
                let before = previous_version.and_then(KindIndex::sliced);
                KindIndex::GridIvf(GridIndex::open(base, held, before)?.into())
            }
            IndexKind::GpuIvf => KindIndex::GpuIvf(GpuIndex::open(base, options, warnings)?.into()),
            IndexKind::RemoteHnsw => KindIndex::RemoteHnsw(RemoteIndex::open(base)?.into()),
        })
    }

    /// The view of queries.
    pub(crate) fn view<'a>(&'a self, base: &'a Base) -> IndexView<'a> {
        let kind: &dyn OpenKind = &**self;
        IndexView { base: base.view(), kind: kind.view(base) }
    }

    /// Refuses techniques of a `gpu-ivf` on another kind, and those whose files are not open.
    pub(crate) fn check_switches(&self, switches: &Switches) -> Result<()> {
        match (self.ranks_codes(), switches) {
            (Some(own), Switches::GpuIvf(gpu)) => own.check_switches(gpu),
            (None, Switches::GpuIvf(gpu)) if *gpu != GpuSwitches::default() => Err(Error::bad_input(
                "techniques of gpu-ivf are switched, and this index is of another kind; leave them out",
            )),
            _ => Ok(()),
        }
    }

    /// Sets what a search without a curve has by default on this index.
    pub(crate) fn set_defaults(&self, params: &mut KindParams) {
        if let (Some(own), KindParams::GpuIvf(params)) = (self.ranks_codes(), params) {
            own.set_defaults(params);
        }
    }

    /// The scorer of codes, of a kind that has one.
    pub(crate) fn scorer(&self) -> Option<&dyn Scorer> {
        self.ranks_codes().map(RanksCodes::scorer)
    }

    /// Files that queries read besides the data file, in the order of their stores.
    pub(crate) fn stores(&self) -> &[Arc<File>] {
        self.ranks_codes().map_or(&[], RanksCodes::stores)
    }

    /// The graph in blocks, of the kind that can have it in memory.
    pub(crate) fn graph(&self) -> Option<&GraphTables> {
        if let KindIndex::DiskGraph(own) = self { Some(own) } else { None }
    }

    /// The inverted lists with local indexes, of the kind that reads them besides vectors.
    pub(crate) fn lists(&self) -> Option<&ListIndex> {
        if let KindIndex::HybridIvf(own) = self { Some(own) } else { None }
    }

    /// The same, to change what is in memory.
    pub(crate) fn lists_mut(&mut self) -> Option<&mut ListIndex> {
        if let KindIndex::HybridIvf(own) = self { Some(own) } else { None }
    }

    /// The lists in slices, of the kind that a planner divides over servers.
    pub(crate) fn sliced(&self) -> Option<&GridIndex> {
        if let KindIndex::GridIvf(own) = self { Some(own) } else { None }
    }

    /// The part that learns from queries, of a kind that does.
    pub(crate) fn learning(&self) -> Option<&Learning> {
        self.lists().map(|lists| &lists.learning)
    }

    /// The share of list reads that resident lists save now.
    pub(crate) fn resident_share(&self) -> f64 {
        self.lists().map_or(0.0, |lists| lists.resident().share_of(&lists.tables.directory))
    }

    /// Units of the index and their groups, where they are not blocks of a graph.
    pub(crate) fn units(&self) -> Option<Units> {
        self.lists().map(|lists| lists.tables.units())
    }

    /// The path of the file of a store.
    pub(crate) fn store_path(&self, base: &Base, store: StoreId) -> PathBuf {
        let role = self.ranks_codes().and_then(|own| own.store_role(store));
        let file = role.and_then(|role| base.manifest.file(role).ok());
        file.map_or_else(|| base.blocks_path.clone(), |(name, _)| base.folder.join(name))
    }
}

/// Most bytes in memory with which searches of the index read nothing; `None` of a kind that is not moved there.
pub fn resident_bytes_max(manifest: &Manifest) -> Option<u64> {
    kind_of(manifest).resident_bytes_max(manifest)
}

/// The answers of the kind of an index. Those of a `disk-graph` are those of a kind that this program does not know.
pub(crate) fn kind_of(manifest: &Manifest) -> &'static dyn Kind {
    kind(manifest.kind().unwrap_or(IndexKind::DiskGraph))
}

pub(crate) use self::division::{SlicedLists, division_account};
pub(crate) use grid_ivf::divide::{Adapted, Divided, Over, Placed as PlacedSlices, adapt, divide};

/// The tables that describe units which are not blocks of a graph.
pub(crate) use hybrid_ivf::tables::ListTables as UnitTables;

/// Reads the tables of the units of an index; `None` where they are blocks of a graph.
///
/// # Errors
/// A file that is missing or damaged.
pub(crate) fn read_units(folder: &Path, manifest: &Manifest) -> Result<Option<UnitTables>> {
    let IndexShape { kind: of, block, .. } = shape(folder, manifest)?;
    (of == IndexKind::HybridIvf).then(|| UnitTables::load(folder, manifest, &block)).transpose()
}

/// Number of visits of queries to each group of units of the index in `folder`, as it, or one server of a partition,
/// has learnt it; empty where nothing usable is there.
pub(crate) fn visits(folder: &Path, manifest: &Manifest, server: Option<usize>) -> Vec<u32> {
    let path = folder.join(files::learnt(server));
    let learnt = hybrid_ivf::learning::file::load(&path, manifest.learnt_id(), manifest.groups());
    learnt.ok().flatten().map_or(Vec::new(), |summary| summary.visits)
}
