//! The kinds of index: a closed sum, with one match for each question that the engine asks of a kind.
//!
//! A kind is a folder here, one in `stratann_core::kinds`, its options, and a line in each match.

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
pub mod options;
mod params;
pub(crate) mod questions;
pub mod remote_hnsw;
pub mod section;
pub mod shares_loads;
pub mod split;
pub(crate) mod state_bytes;

use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stratann_core::kinds::IndexView;
use stratann_core::query::StoreId;
use stratann_storage::{Error, Result};

pub use blocks::IN_FLIGHT;
pub(crate) use builds::{build, checked_plan};
pub(crate) use explained::explain;
pub(crate) use hybrid_ivf::explain::plan as list_plan;
pub(crate) use hybrid_ivf::learning::Learning;
pub(crate) use hybrid_ivf::open::ListIndex;
pub(crate) use params::{own, own_mut, params_at};
pub use params::{params_of, reported_params, setting, with_remote, with_setting};
pub use remote_hnsw::linking::{ClusterCost, Linking, LinkingOptions};
pub use remote_hnsw::live::inspect::{LiveFacts, MemoryReport};
pub use remote_hnsw::live::load::LoadedNode;
pub(crate) use remote_hnsw::live::load::{check_loadable, copy_to_nodes};
pub(crate) use remote_hnsw::live::updates::Update;
pub use remote_hnsw::live::updates::{Acknowledged, PLACE, Unfinished, UpdateOptions};
pub(crate) use remote_hnsw::live::{Clusters as LiveClusters, LiveRegion, Session as LiveSession};
pub(crate) use remote_hnsw::loads::recorded_visits;
pub(crate) use state_bytes::state_bytes;

use crate::base::{Base, IndexShape, OpenOptions, shape};
use crate::exec::scorer::Scorer;
use crate::files;
use crate::manifest::Manifest;
use crate::units::{Held, UnitRanges, Units};
use answers::PlannedQuery;
pub use answers::Setting;
use disk_graph::open::GraphTables;
use flat::Flat;
use gpu_ivf::open::GpuIndex;
use grid_ivf::open::GridIndex;

use options::Switches;
use questions::{Kind, OpenKind, RanksCodes};
use remote_hnsw::open::RemoteIndex;
use stratann_params::IndexKind;
use stratann_params::search::GpuSwitches;

/// The part of an open index beyond [`Base`], which answers by its kind.
pub(crate) enum KindIndex {
    Flat(Flat),
    DiskGraph(GraphTables),
    HybridIvf(ListIndex),
    GridIvf(GridIndex),
    GpuIvf(Box<GpuIndex>),
    RemoteHnsw(Box<RemoteIndex>),
}

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
            IndexKind::Flat => KindIndex::Flat(Flat),
            IndexKind::DiskGraph => KindIndex::DiskGraph(GraphTables::open(base)?),
            IndexKind::HybridIvf => KindIndex::HybridIvf(ListIndex::open(base, held, options, warnings)?),
            IndexKind::GridIvf => {
                let previous_version =
                    if let Some(KindIndex::GridIvf(grid)) = previous_version { Some(grid) } else { None };
                KindIndex::GridIvf(GridIndex::open(base, held, previous_version)?)
            }
            IndexKind::GpuIvf => KindIndex::GpuIvf(Box::new(GpuIndex::open(base, options, warnings)?)),
            IndexKind::RemoteHnsw => KindIndex::RemoteHnsw(Box::new(RemoteIndex::open(base)?)),
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

    /// The scorer of codes, of a kind that has one.
    pub(crate) fn scorer(&self) -> Option<&dyn Scorer> {
        self.ranks_codes().map(RanksCodes::scorer)
    }

    /// Files that queries read besides the data file, in the order of their stores.
    pub(crate) fn stores(&self) -> &[Arc<File>] {
        self.ranks_codes().map_or(&[], RanksCodes::stores)
    }

    /// The inverted lists with local indexes, of the kind that reads them besides vectors.
    pub(crate) fn lists(&self) -> Option<&ListIndex> {
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

    /// Its units and their groups, where they are not blocks of a graph.
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

impl Deref for KindIndex {
    type Target = dyn OpenKind;

    fn deref(&self) -> &(dyn OpenKind + 'static) {
        match self {
            KindIndex::Flat(own) => own,
            KindIndex::DiskGraph(own) => own,
            KindIndex::HybridIvf(own) => own,
            KindIndex::GridIvf(own) => own,
            KindIndex::GpuIvf(own) => &**own,
            KindIndex::RemoteHnsw(own) => &**own,
        }
    }
}

impl DerefMut for KindIndex {
    fn deref_mut(&mut self) -> &mut (dyn OpenKind + 'static) {
        match self {
            KindIndex::Flat(own) => own,
            KindIndex::DiskGraph(own) => own,
            KindIndex::HybridIvf(own) => own,
            KindIndex::GridIvf(own) => own,
            KindIndex::GpuIvf(own) => &mut **own,
            KindIndex::RemoteHnsw(own) => &mut **own,
        }
    }
}

/// The answers of a kind.
pub(crate) fn kind(of: IndexKind) -> &'static dyn Kind {
    match of {
        IndexKind::DiskGraph => &disk_graph::DiskGraph,
        IndexKind::HybridIvf => &hybrid_ivf::HybridIvf,
        IndexKind::GridIvf => &grid_ivf::GridIvf,
        IndexKind::GpuIvf => &gpu_ivf::GpuIvf,
        IndexKind::RemoteHnsw => &remote_hnsw::RemoteHnsw,
        IndexKind::Flat => &flat::Flat,
    }
}

/// The answers of the kind of an index. Those of a `disk-graph` are those of a kind that this program does not know.
pub(crate) fn kind_of(manifest: &Manifest) -> &'static dyn Kind {
    kind(manifest.kind().unwrap_or(IndexKind::DiskGraph))
}

/// The memory of queries, as far as the manifest tells. With `low_memory` fewer of them are in flight.
pub(crate) fn planned_query(manifest: &Manifest, low_memory: bool) -> PlannedQuery {
    let of_kind = kind_of(manifest).planned_query(manifest, low_memory);
    of_kind.unwrap_or_else(|| blocks::planned_query(manifest))
}

/// The roles of the files besides the data file that every server of a partitioned index needs whole.
pub(crate) fn shared_roles(manifest: &Manifest) -> Vec<&'static str> {
    kind_of(manifest).shared_roles(manifest)
}

/// Bytes of a cache that holds all that queries read. A `hybrid-ivf` holds lists and vectors in memory itself, as many
/// as its budget has room for, so that a cache would hold them twice. Of a `remote-hnsw` a tenth is usual.
pub(crate) fn usable_cache_bytes(manifest: &Manifest) -> u64 {
    kind_of(manifest).usable_cache_bytes(manifest)
}

pub(crate) use self::division::{SlicedLists, adapt, divide, division_account};
pub(crate) use grid_ivf::divide::{Adapted, Divided, Over, Placed as PlacedSlices};

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

/// How often queries visited each group of units of the index in `folder`, by what it, or one server of a partition,
/// has learnt; empty where nothing usable is there.
pub(crate) fn visits(folder: &Path, manifest: &Manifest, server: Option<usize>) -> Vec<u32> {
    let path = folder.join(files::learnt(server));
    let learnt = hybrid_ivf::learning::file::load(&path, manifest.build_id, manifest.groups());
    learnt.ok().flatten().map_or(Vec::new(), |summary| summary.visits)
}

/// The ranges of all units in the data file of a whole index.
///
/// # Errors
/// As [`read_units`].
pub(crate) fn unit_ranges(folder: &Path, manifest: &Manifest) -> Result<UnitRanges> {
    let IndexShape { kind: of, block, .. } = shape(folder, manifest)?;
    kind(of).unit_ranges(folder, manifest, &block)
}
