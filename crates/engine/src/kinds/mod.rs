//! The kinds of index: a closed sum, with one match for each question that the engine asks of a kind.
//!
//! A kind is a folder here, one in `stratann_core::plan`, its options, and a line in each match.

pub mod answers;
mod asked;
pub mod blocks;
mod builds;
pub(crate) mod choice;
pub mod cluster_set;
pub mod disk_graph;
pub mod division;

pub mod effort;
mod explained;
pub mod flat;
pub mod gpu_ivf;
pub mod grid_ivf;
pub mod hybrid_ivf;
pub mod kind;
mod live;
pub mod options;
mod params;
pub mod remote_hnsw;
pub mod section;
pub mod shares_loads;
pub mod split;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stratann_core::check::Blocks;
use stratann_core::place::Placement;
use stratann_core::plan::{IndexView, KindView};
use stratann_core::query::StoreId;
use stratann_storage::budget::Account;
use stratann_storage::cache::ExtentCache;
use stratann_storage::{Error, Progress, Result};

pub(crate) use asked::{asked_bytes, sized_params};
pub(crate) use builds::{build, checked_plan, forecast};
pub use disk_graph::account::IN_FLIGHT;
pub(crate) use explained::explain;
pub(crate) use hybrid_ivf::explain::plan as list_plan;
pub(crate) use hybrid_ivf::learning::Learning;
pub(crate) use params::{apply_switches, fit_to_k, is_exact, needed_candidates, params_at, variants};
pub use params::{params_of, reported_params, setting, with_remote, with_setting};
pub(crate) use params::{planned_doorbells_bytes, planned_reads_at_once, reads_at_once};
pub use remote_hnsw::linking::{ClusterCost, Linking, LinkingOptions};
pub(crate) use remote_hnsw::live::changes::Change;
pub use remote_hnsw::live::changes::{Acknowledged, ChangeOptions, PLACE, Unfinished};
pub use remote_hnsw::live::inspect::{LiveFacts, MemoryReport};
pub use remote_hnsw::live::load::LoadedNode;
pub(crate) use remote_hnsw::live::load::{check_loadable, copy_to_nodes};
pub(crate) use remote_hnsw::live::{Clusters as LiveClusters, LiveRegion, Reader as LiveReader};
pub(crate) use remote_hnsw::loads::recorded_visits;

use crate::base::{Base, OpenOptions, shape};
use crate::curve::Grid;
use crate::exec::scorer::Scorer;
use crate::files;
use crate::findings::Report;
use crate::manifest::Manifest;
use crate::units::{Held, HeldRanges, UnitRanges, Units};
use answers::ExactCost;
pub use answers::Setting;
pub(crate) use answers::{Member, PlannedQuery};
use disk_graph::open::GraphTables;
use gpu_ivf::open::GpuIndex;
use grid_ivf::open::GridIndex;
use hybrid_ivf::open::ListIndex;
use hybrid_ivf::residency::ResidencyBudget;
use kind::Kind;
use options::Switches;
use remote_hnsw::open::RemoteIndex;
use stratann_params::search::GpuSwitches;

/// What an open index has beyond [`Base`].
pub(crate) enum KindIndex {
    /// Nothing.
    Flat,
    /// Codes and graphs in RAM.
    DiskGraph(GraphTables),
    /// Tables, resident lists, learned state.
    HybridIvf(ListIndex),
    /// All of it.
    GridIvf(GridIndex),
    /// Codes, lists of ids and their centroids.
    GpuIvf(Box<GpuIndex>),
    /// A graph over representatives, and where clusters are.
    RemoteHnsw(Box<RemoteIndex>),
}

/// Bytes of a cache that holds all that queries read. A `hybrid-ivf` holds lists and vectors in memory itself, as many
/// as its budget has room for, so that a cache would hold them twice. Of a `remote-hnsw` a tenth is usual.
pub(crate) fn usable_cache_bytes(manifest: &Manifest) -> u64 {
    match manifest.kind() {
        Some(Kind::Flat | Kind::DiskGraph | Kind::GpuIvf) => {
            ExtentCache::bytes_of_blocks(manifest.blocks.count, manifest.blocks.bytes as u64)
        }
        Some(Kind::RemoteHnsw) => manifest
            .section
            .remote()
            .map_or(0, |section| remote_hnsw::account::usual_cache_bytes(&section.facts)),
        Some(Kind::HybridIvf | Kind::GridIvf) | None => 0,
    }
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
        (options, beside): (&OpenOptions, Option<&KindIndex>),
        warnings: &mut Vec<String>,
    ) -> Result<KindIndex> {
        Ok(match base.kind {
            Kind::Flat => KindIndex::Flat,
            Kind::DiskGraph => KindIndex::DiskGraph(GraphTables::open(base)?),
            Kind::HybridIvf => KindIndex::HybridIvf(ListIndex::open(base, held, options, warnings)?),
            Kind::GridIvf => {
                let beside = if let Some(KindIndex::GridIvf(grid)) = beside { Some(grid) } else { None };
                KindIndex::GridIvf(GridIndex::open(base, held, beside)?)
            }
            Kind::GpuIvf => KindIndex::GpuIvf(Box::new(GpuIndex::open(base, options, warnings)?)),
            Kind::RemoteHnsw => KindIndex::RemoteHnsw(Box::new(RemoteIndex::open(base)?)),
        })
    }

    /// What queries see.
    pub(crate) fn view<'a>(&'a self, base: &'a Base) -> IndexView<'a> {
        match self {
            KindIndex::Flat => IndexView { base: base.view(), kind: KindView::Flat(flat::view(base)) },
            KindIndex::DiskGraph(graph) => {
                IndexView { base: base.view(), kind: KindView::DiskGraph(graph.view(base)) }
            }
            KindIndex::HybridIvf(lists) => {
                IndexView { base: base.view(), kind: KindView::HybridIvf(lists.view()) }
            }
            KindIndex::GridIvf(grid) => IndexView { base: base.view(), kind: KindView::GridIvf(grid.view()) },
            KindIndex::GpuIvf(own) => IndexView { base: base.view(), kind: KindView::GpuIvf(own.view(base)) },
            KindIndex::RemoteHnsw(own) => {
                IndexView { base: base.view(), kind: KindView::RemoteHnsw(own.view()) }
            }
        }
    }

    /// Its blocks as they are checked; `None` for a kind without.
    pub(crate) fn checked<'a>(&'a self, base: &'a Base) -> Option<Blocks<'a>> {
        match self {
            KindIndex::Flat => Some(flat::view(base).checked(base.view())),
            KindIndex::DiskGraph(graph) => Some(graph.view(base).checked(base.view())),
            KindIndex::GpuIvf(own) => Some(own.view(base).checked(base.view())),
            KindIndex::HybridIvf(_) | KindIndex::GridIvf(_) | KindIndex::RemoteHnsw(_) => None,
        }
    }

    /// Adds its memory, by component.
    pub(crate) fn account(&self, account: &mut Account) {
        match self {
            KindIndex::Flat => {}
            KindIndex::DiskGraph(graph) => graph.account(account),
            KindIndex::HybridIvf(lists) => lists.account(account),
            KindIndex::GridIvf(grid) => grid.account(account),
            KindIndex::GpuIvf(own) => own.account(account),
            KindIndex::RemoteHnsw(own) => own.account(account),
        }
    }

    /// Loads what the kind can keep in RAM beyond its tables, as much as `budget_bytes` has room for.
    ///
    /// # Errors
    /// What cannot be read, or is damaged.
    pub(crate) fn fill_memory(&mut self, base: &Base, budget_bytes: u64) -> Result<()> {
        match self {
            KindIndex::HybridIvf(lists) => {
                let budget = ResidencyBudget { codes_bytes: budget_bytes, records_bytes: budget_bytes };
                lists.load_lists(base, budget)
            }
            _ => Ok(()),
        }
    }

    /// Stops learning, if the kind does.
    pub(crate) fn stop_learning(&mut self) {
        if let KindIndex::HybridIvf(lists) = self {
            lists.learning.stop();
        }
    }

    /// What learns from queries; `None` for a kind that does not.
    pub(crate) fn learning(&self) -> Option<&Learning> {
        match self {
            KindIndex::HybridIvf(lists) => Some(&lists.learning),
            _ => None,
        }
    }

    /// Queries in flight per thread, by default.
    pub(crate) fn in_flight(&self) -> usize {
        match self {
            KindIndex::Flat => flat::IN_FLIGHT,
            KindIndex::DiskGraph(_) => disk_graph::account::IN_FLIGHT,
            KindIndex::HybridIvf(lists) => hybrid_ivf::account::in_flight(lists.is_low_on_memory()),
            KindIndex::GridIvf(grid) => grid_ivf::account::in_flight(grid.held_ranges().is_some()),
            KindIndex::GpuIvf(_) => gpu_ivf::account::IN_FLIGHT,
            KindIndex::RemoteHnsw(_) => remote_hnsw::account::IN_FLIGHT,
        }
    }

    /// Queries in flight per thread that has so few of them; `None` for the default.
    pub(crate) fn in_flight_of_few(&self, queries: usize) -> Option<usize> {
        match self {
            KindIndex::DiskGraph(_) => Some(queries.clamp(1, disk_graph::account::IN_FLIGHT)),
            _ => None,
        }
    }

    /// Whether its reads are single blocks, which a cache can hold all of.
    pub(crate) fn reads_blocks(&self) -> bool {
        match self {
            KindIndex::Flat | KindIndex::DiskGraph(_) => true,
            KindIndex::GpuIvf(own) => own.reads_blocks(),
            KindIndex::HybridIvf(_) | KindIndex::GridIvf(_) | KindIndex::RemoteHnsw(_) => false,
        }
    }

    /// A cache of `budget_bytes` for its reads; `None` when not even a few fit.
    pub(crate) fn cache(&self, base: &Base, budget_bytes: u64) -> Option<ExtentCache> {
        match self {
            KindIndex::Flat | KindIndex::DiskGraph(_) | KindIndex::GpuIvf(_) => {
                let blocks = &base.manifest.blocks;
                ExtentCache::of_blocks(budget_bytes, blocks.count, blocks.bytes as u32)
            }
            KindIndex::HybridIvf(_) => ExtentCache::new(budget_bytes, base.block.block_bytes as u64),
            KindIndex::RemoteHnsw(own) => own.cache(budget_bytes),
            KindIndex::GridIvf(_) => None,
        }
    }

    /// Bytes of the longest read.
    pub(crate) fn read_bytes_max(&self, base: &Base) -> usize {
        match self {
            KindIndex::Flat | KindIndex::DiskGraph(_) | KindIndex::GridIvf(_) => base.block.block_bytes,
            KindIndex::HybridIvf(lists) => lists.tables.pages_max() * base.block.block_bytes,
            KindIndex::GpuIvf(own) => own.read_bytes_max(base),
            KindIndex::RemoteHnsw(own) => remote_hnsw::account::read_bytes_max(&own.facts),
        }
    }

    /// Look-up tables and candidates of one query, bytes. `local_beam` is the length of a beam within a cluster.
    pub(crate) fn query_tables_bytes(&self, base: &Base, local_beam: u64) -> u64 {
        match self {
            KindIndex::Flat => 0,
            KindIndex::DiskGraph(graph) => disk_graph::account::query_bytes(graph.code_bytes(), base),
            KindIndex::HybridIvf(lists) => hybrid_ivf::account::query_bytes(lists, base, local_beam),
            KindIndex::GridIvf(grid) => grid_ivf::account::query_bytes(base.manifest.dim, &grid.facts),
            KindIndex::GpuIvf(own) => gpu_ivf::account::query_bytes(own.codebook.code_bytes(), &own.facts),
            KindIndex::RemoteHnsw(own) => remote_hnsw::account::query_bytes(&own.facts),
        }
    }

    /// The share of list reads that resident lists save now.
    pub(crate) fn resident_share(&self) -> f64 {
        match self {
            KindIndex::HybridIvf(lists) => lists.resident().share_of(&lists.tables.directory),
            _ => 0.0,
        }
    }

    /// Its units and their groups, where they are not blocks of a graph.
    pub(crate) fn units(&self) -> Option<Units> {
        match self {
            KindIndex::HybridIvf(lists) => Some(lists.tables.units()),
            _ => None,
        }
    }

    /// Bytes that are in memory once for this version and for the one beside which it was opened.
    pub(crate) fn shared_bytes(&self) -> u64 {
        match self {
            KindIndex::GridIvf(grid) => grid.shared_bytes(),
            _ => 0,
        }
    }

    /// Lists that the members of each are dealt over, one after another.
    pub(crate) fn stripes(&self) -> u32 {
        match self {
            KindIndex::GridIvf(grid) => grid.facts.stripes.max(1),
            _ => 1,
        }
    }

    /// How its lists are divided over servers; `None` for a kind that no planner slices.
    ///
    /// # Errors
    /// As [`divide`].
    pub(crate) fn divided(
        &self,
        base: &Base,
        over: Over<'_>,
        progress: &dyn Progress,
    ) -> Result<Option<PlacedSlices>> {
        let KindIndex::GridIvf(grid) = self else { return Ok(None) };
        grid_ivf::divide::place(base, grid, over, progress).map(Some)
    }

    /// What queries see of the whole index when its lists are divided; `None` for a kind that no planner slices.
    pub(crate) fn divided_view<'a>(&'a self, placed: &'a SlicedLists) -> Option<KindView<'a>> {
        match self {
            KindIndex::GridIvf(grid) => {
                let (places, striped) = placed;
                Some(KindView::GridIvf(grid.divided_view(places, striped.as_ref())))
            }
            _ => None,
        }
    }

    /// Where a server's units are in its file; `None` of a whole index, and where they are blocks.
    pub(crate) fn held_ranges(&self) -> Option<&HeldRanges> {
        match self {
            KindIndex::Flat | KindIndex::DiskGraph(_) | KindIndex::GpuIvf(_) | KindIndex::RemoteHnsw(_) => {
                None
            }
            KindIndex::HybridIvf(lists) => lists.tables.held_ranges(),
            KindIndex::GridIvf(grid) => grid.held_ranges(),
        }
    }

    /// Whether it reads inverted lists besides vectors.
    pub(crate) fn has_lists(&self) -> bool {
        matches!(self, KindIndex::HybridIvf(_))
    }

    /// What a query that searches everything goes through.
    pub(crate) fn exact_cost(&self, base: &Base) -> ExactCost {
        match self {
            KindIndex::Flat | KindIndex::DiskGraph(_) => {
                let count = u64::from(base.manifest.blocks.count);
                let bytes = count * base.block.block_bytes as u64;
                ExactCost { count, unit: "blocks", bytes, vector_bytes_max: 0 }
            }
            KindIndex::HybridIvf(lists) => lists.tables.exact_cost(),
            KindIndex::GridIvf(grid) => grid.exact_cost(base),
            KindIndex::GpuIvf(own) => own.exact_cost(base),
            KindIndex::RemoteHnsw(own) => own.exact_cost(),
        }
    }

    /// The settings that calibration measures for k results.
    pub(crate) fn grid(&self, base: &Base, k: u32, family: Option<&str>) -> Grid {
        match self {
            KindIndex::Flat | KindIndex::DiskGraph(_) => {
                disk_graph::calibration::grid(k, base.manifest.blocks.count)
            }
            KindIndex::HybridIvf(lists) => {
                hybrid_ivf::calibration::grid(k, lists.tables.directory.clusters())
            }
            KindIndex::GridIvf(grid) => grid_ivf::calibration::grid(grid.facts.lists()),
            KindIndex::GpuIvf(own) => own.grid(k, family),
            KindIndex::RemoteHnsw(own) => remote_hnsw::calibration::grid(k, &own.facts),
        }
    }

    /// Ways to search besides the usual one, that have curves of their own.
    pub(crate) fn families(&self) -> &'static [&'static str] {
        match self {
            KindIndex::GpuIvf(own) => own.families(),
            _ => &[],
        }
    }

    /// Refuses techniques of a `gpu-ivf` on another kind, and those whose files are not open.
    pub(crate) fn check_switches(&self, switches: &Switches) -> Result<()> {
        match (self, switches) {
            (KindIndex::GpuIvf(own), Switches::GpuIvf(gpu)) => own.check_switches(gpu),
            (_, Switches::GpuIvf(gpu)) if *gpu != GpuSwitches::default() => Err(Error::bad_input(
                "techniques of gpu-ivf are switched, and this index is of another kind; leave them out",
            )),
            _ => Ok(()),
        }
    }

    /// What ranks codes; `None` of a kind without.
    pub(crate) fn scorer(&self) -> Option<&dyn Scorer> {
        if let KindIndex::GpuIvf(own) = self { Some(own.scorer()) } else { None }
    }

    /// Files that queries read besides the data file, in the order of their stores.
    pub(crate) fn stores(&self) -> &[Arc<File>] {
        if let KindIndex::GpuIvf(own) = self { own.stores() } else { &[] }
    }

    /// The path of the file of a store.
    pub(crate) fn store_path(&self, base: &Base, store: StoreId) -> PathBuf {
        let role = if let KindIndex::GpuIvf(own) = self { own.store_role(store) } else { None };
        let file = role.and_then(|role| base.manifest.file(role).ok());
        file.map_or_else(|| base.blocks_path.clone(), |(name, _)| base.folder.join(name))
    }

    /// The inverted lists.
    ///
    /// # Errors
    /// Another kind.
    pub(crate) fn lists(&self, base: &Base) -> Result<&ListIndex> {
        match self {
            KindIndex::HybridIvf(lists) => Ok(lists),
            _ => Err(Error::bad_input(format!(
                "{} is a {} and has no clusters",
                base.folder.display(),
                base.manifest.kind
            ))),
        }
    }

    /// The vector of one member, read past any search.
    ///
    /// # Errors
    /// A disk that fails, a damaged file.
    pub(crate) fn vector(&self, base: &Base, id: u32) -> Result<Vec<u8>> {
        match self {
            KindIndex::Flat => blocks::vector(base, flat::block_of(base, id), id),
            KindIndex::DiskGraph(graph) => blocks::vector(base, graph.block_of(id), id),
            KindIndex::HybridIvf(lists) => hybrid_ivf::members::vector(base, &lists.tables, id),
            KindIndex::GridIvf(grid) => grid_ivf::members::vector(base, grid, id),
            KindIndex::GpuIvf(own) => blocks::vector(base, own.map.block_of(id), id),
            KindIndex::RemoteHnsw(own) => remote_hnsw::members::vector(base, own, id),
        }
    }

    /// Shows every member to `see`, in the order of the file, some at a time.
    ///
    /// # Errors
    /// As [`KindIndex::vector`]; an interruption.
    pub(crate) fn for_each_member(
        &self,
        base: &Base,
        progress: &dyn Progress,
        see: &mut (dyn FnMut(&[Member<'_>]) + Send),
    ) -> Result<()> {
        match self {
            KindIndex::Flat | KindIndex::DiskGraph(_) | KindIndex::GpuIvf(_) => {
                blocks::for_each_member(base, progress, see)
            }
            KindIndex::HybridIvf(lists) => {
                hybrid_ivf::members::for_each_member(base, &lists.tables, progress, see)
            }
            KindIndex::GridIvf(grid) => grid_ivf::members::for_each_member(base, grid, progress, see),
            KindIndex::RemoteHnsw(own) => remote_hnsw::members::for_each_member(base, own, progress, see),
        }
    }

    /// What [`KindIndex::for_each_member`] advances the progress by: a number and its unit.
    pub(crate) fn scan_work(&self, base: &Base) -> (u64, &'static str) {
        match self {
            KindIndex::Flat | KindIndex::DiskGraph(_) | KindIndex::GpuIvf(_) => {
                (u64::from(base.manifest.blocks.count), "blocks")
            }
            KindIndex::HybridIvf(_) | KindIndex::GridIvf(_) | KindIndex::RemoteHnsw(_) => {
                (base.manifest.rows, "rows")
            }
        }
    }
}

/// What queries take, as far as the manifest tells. With `low_memory` fewer of them are in flight.
pub(crate) fn planned_query(manifest: &Manifest, low_memory: bool) -> PlannedQuery {
    match &manifest.section {
        section::Section::HybridIvf(section) => {
            hybrid_ivf::account::planned_query(manifest, &section.facts, low_memory)
        }
        section::Section::GridIvf(section) => grid_ivf::account::planned_query(manifest, &section.facts),
        section::Section::GpuIvf(section) => gpu_ivf::account::planned_query(manifest, &section.facts),
        section::Section::RemoteHnsw(section) => {
            remote_hnsw::account::planned_query(manifest, &section.facts)
        }
        section::Section::None {} => disk_graph::account::planned_query(manifest),
    }
}

/// The files besides the data file that every server of a partitioned index needs whole.
pub(crate) fn shared_roles(manifest: &Manifest) -> Vec<&'static str> {
    match manifest.kind() {
        Some(Kind::HybridIvf) => {
            vec![files::CODEBOOK, files::DIRECTORY, files::CENTROIDS, files::SUBLISTS, files::NAV]
        }
        Some(Kind::GridIvf) => vec![files::AXES, files::CENTROIDS, files::SIZES],
        Some(Kind::RemoteHnsw) => vec![files::META],
        Some(Kind::Flat | Kind::DiskGraph | Kind::GpuIvf) | None => {
            let codes = if manifest.blocks.code_bytes > 0 { files::HEAD_CODES } else { files::CODES };
            vec![codes, files::CODEBOOK, files::MAP, files::HEAD]
        }
    }
}

pub(crate) use self::division::{SlicedLists, adapt, divide, division_account, shareable_bytes};
pub(crate) use grid_ivf::divide::{Adapted, Divided, Over, Placed as PlacedSlices};

/// The tables that describe units which are not blocks of a graph.
pub(crate) use hybrid_ivf::tables::ListTables as UnitTables;

/// Reads the tables of the units of an index; `None` where they are blocks of a graph.
///
/// # Errors
/// A file that is missing or damaged.
pub(crate) fn read_units(folder: &Path, manifest: &Manifest) -> Result<Option<UnitTables>> {
    let (kind, .., block) = shape(folder, manifest)?;
    match kind {
        Kind::HybridIvf => UnitTables::load(folder, manifest, &block).map(Some),
        Kind::Flat | Kind::DiskGraph | Kind::GridIvf | Kind::GpuIvf | Kind::RemoteHnsw => Ok(None),
    }
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
    let (kind, .., block) = shape(folder, manifest)?;
    match kind {
        Kind::HybridIvf => hybrid_ivf::tables::read_unit_ranges(folder, manifest, &block),
        Kind::GridIvf => grid_ivf::units::unit_ranges(folder, manifest),
        Kind::Flat | Kind::DiskGraph | Kind::GpuIvf | Kind::RemoteHnsw => {
            Ok(UnitRanges::Equal { count: manifest.blocks.count, bytes: manifest.blocks.bytes as u64 })
        }
    }
}

/// Checks the data files of an index.
pub(crate) fn verify(
    folder: &Path,
    number: u64,
    manifest: &Manifest,
    progress: &dyn Progress,
    report: &mut Report,
) -> Result<()> {
    match manifest.kind() {
        Some(Kind::HybridIvf) => hybrid_ivf::verify::check(folder, number, manifest, progress, report),
        Some(Kind::GridIvf) => grid_ivf::verify::check(folder, number, manifest, progress, report),
        Some(Kind::GpuIvf) => gpu_ivf::verify::check(folder, number, manifest, progress, report),
        Some(Kind::RemoteHnsw) => remote_hnsw::verify::check(folder, number, manifest, progress, report),
        Some(Kind::Flat | Kind::DiskGraph) | None => {
            let opened = open_blocks(folder, number, manifest);
            let blocks = opened.as_ref().map(|(base, kind)| (base, kind.checked(base)));
            blocks::verify::check(folder, number, (manifest, blocks), progress, report)
        }
    }
}

/// Opens an index of blocks to check it.
fn open_blocks(folder: &Path, number: u64, manifest: &Manifest) -> Result<(Base, KindIndex)> {
    let base = Base::open(folder, number, manifest.clone(), files::BLOCKS)?;
    let kind = KindIndex::open(&base, None, (&OpenOptions::default(), None), &mut Vec::new())?;
    Ok((base, kind))
}

/// Checks the files of all servers of a partitioned index whose units are not blocks of a graph. Returns false, and
/// does nothing, where they are.
pub(crate) fn verify_parts(
    folder: &Path,
    manifest: &Manifest,
    placement: &Placement,
    progress: &dyn Progress,
    report: &mut Report,
) -> Result<bool> {
    match manifest.kind() {
        Some(Kind::HybridIvf) => {
            hybrid_ivf::verify::check_parts(folder, manifest, placement, progress, report).map(|()| true)
        }
        Some(Kind::GridIvf) => {
            grid_ivf::verify::check_parts(folder, manifest, placement, progress, report).map(|()| true)
        }
        Some(Kind::Flat | Kind::DiskGraph | Kind::GpuIvf | Kind::RemoteHnsw) | None => Ok(false),
    }
}
