//! The kinds of index: a closed sum, with one match for each question that the engine asks of a kind.
//!
//! A kind is a folder here, one in `stratann_core::plan`, its options, and a line in each match.

mod asked;
pub mod blocks;
pub mod choice;
pub mod disk_graph;
pub mod effort;
pub mod flat;
pub mod hybrid_ivf;
pub mod kind;
pub mod options;
pub mod section;
pub mod snapshot;
pub mod split;
pub(crate) mod units;

use std::path::Path;

use stratann_core::check::Blocks;
use stratann_core::place::Placement;
use stratann_core::plan::{IndexView, KindParams, KindView};
use stratann_core::query::{Params, Remote};

pub(crate) use asked::{asked_bytes, sized_params};
pub use disk_graph::account::IN_FLIGHT;
pub(crate) use hybrid_ivf::learning::Learning;

use crate::base::{Base, OpenOptions, shape};
use crate::budget::Account;
use crate::build::forecast::Forecast;
use crate::build::options::BuildOptions;
use crate::build::plan::BuildPlan;
use crate::build::stages::Build;
use crate::cache::ExtentCache;
use crate::dataset::{Reader, Scan, Shape};
use crate::manifest::Manifest;
use crate::recall::curve::{Grid, Point};
use crate::verify::report::Report;
use crate::{Error, Progress, Result, files};
use disk_graph::open::GraphTables;
use effort::ExactCost;
use hybrid_ivf::open::ListIndex;
use hybrid_ivf::residency::ResidencyBudget;
use kind::Kind;
use options::{GraphOptions, KindOptions, Switches};
use units::{Held, HeldRanges, UnitRanges, Units};

/// What an open index has beyond [`Base`].
pub(crate) enum KindIndex {
    /// Nothing.
    Flat,
    /// Codes and graphs in RAM.
    DiskGraph(GraphTables),
    /// Tables, resident lists, learned state.
    HybridIvf(ListIndex),
}

/// Bytes of a cache that holds all that queries read. A `hybrid-ivf` holds lists and vectors in memory itself, as many
/// as its budget has room for, so that a cache would hold them twice.
pub(crate) fn usable_cache_bytes(manifest: &Manifest) -> u64 {
    match manifest.kind() {
        Some(Kind::Flat | Kind::DiskGraph) => {
            ExtentCache::bytes_of_blocks(manifest.blocks.count, manifest.blocks.bytes as u64)
        }
        Some(Kind::HybridIvf) | None => 0,
    }
}

impl KindIndex {
    /// Opens what the kind holds in RAM, of a whole index or of the units that one server holds. Adds warnings.
    ///
    /// # Errors
    /// A file that is missing or damaged.
    pub(crate) fn open(
        base: &Base,
        held: Option<Held<'_>>,
        options: &OpenOptions,
        warnings: &mut Vec<String>,
    ) -> Result<KindIndex> {
        Ok(match base.kind {
            Kind::Flat => KindIndex::Flat,
            Kind::DiskGraph => KindIndex::DiskGraph(GraphTables::open(base)?),
            Kind::HybridIvf => KindIndex::HybridIvf(ListIndex::open(base, held, options, warnings)?),
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
        }
    }

    /// Its blocks as they are checked; `None` for a kind without.
    pub(crate) fn checked<'a>(&'a self, base: &'a Base) -> Option<Blocks<'a>> {
        match self {
            KindIndex::Flat => Some(flat::view(base).checked(base.view())),
            KindIndex::DiskGraph(graph) => Some(graph.view(base).checked(base.view())),
            KindIndex::HybridIvf(_) => None,
        }
    }

    /// Adds its memory, by component.
    pub(crate) fn account(&self, account: &mut Account) {
        match self {
            KindIndex::Flat => {}
            KindIndex::DiskGraph(graph) => graph.account(account),
            KindIndex::HybridIvf(lists) => lists.account(account),
        }
    }

    /// Loads what the kind can keep in RAM beyond its tables, as much as `budget_bytes` has room for.
    ///
    /// # Errors
    /// What cannot be read, or is damaged.
    pub(crate) fn fill_memory(&mut self, base: &Base, budget_bytes: u64) -> Result<()> {
        match self {
            KindIndex::Flat | KindIndex::DiskGraph(_) => Ok(()),
            KindIndex::HybridIvf(lists) => {
                let budget = ResidencyBudget { codes_bytes: budget_bytes, records_bytes: budget_bytes };
                lists.load_lists(base, budget)
            }
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
            KindIndex::Flat | KindIndex::DiskGraph(_) => None,
            KindIndex::HybridIvf(lists) => Some(&lists.learning),
        }
    }

    /// Queries in flight per thread, by default.
    pub(crate) fn in_flight(&self) -> usize {
        match self {
            KindIndex::Flat => flat::IN_FLIGHT,
            KindIndex::DiskGraph(_) => disk_graph::account::IN_FLIGHT,
            KindIndex::HybridIvf(lists) => hybrid_ivf::account::in_flight(lists.is_low_on_memory()),
        }
    }

    /// Queries in flight per thread that has so few of them; `None` for the default.
    pub(crate) fn in_flight_of_few(&self, queries: usize) -> Option<usize> {
        match self {
            KindIndex::DiskGraph(_) => Some(queries.clamp(1, disk_graph::account::IN_FLIGHT)),
            KindIndex::Flat | KindIndex::HybridIvf(_) => None,
        }
    }

    /// Whether its reads are single blocks, which a cache can hold all of.
    pub(crate) fn reads_blocks(&self) -> bool {
        match self {
            KindIndex::Flat | KindIndex::DiskGraph(_) => true,
            KindIndex::HybridIvf(_) => false,
        }
    }

    /// A cache of `budget_bytes` for its reads; `None` when not even a few fit.
    pub(crate) fn cache(&self, base: &Base, budget_bytes: u64) -> Option<ExtentCache> {
        match self {
            KindIndex::Flat | KindIndex::DiskGraph(_) => {
                let blocks = &base.manifest.blocks;
                ExtentCache::of_blocks(budget_bytes, blocks.count, blocks.bytes as u32)
            }
            KindIndex::HybridIvf(_) => ExtentCache::new(budget_bytes, base.block.block_bytes as u64),
        }
    }

    /// Bytes of the longest read.
    pub(crate) fn read_bytes_max(&self, base: &Base) -> usize {
        match self {
            KindIndex::Flat | KindIndex::DiskGraph(_) => base.block.block_bytes,
            KindIndex::HybridIvf(lists) => lists.tables.pages_max() * base.block.block_bytes,
        }
    }

    /// Look-up tables and candidates of one query, bytes. `local_beam` is the length of a beam within a cluster.
    pub(crate) fn query_tables_bytes(&self, base: &Base, local_beam: u64) -> u64 {
        match self {
            KindIndex::Flat => 0,
            KindIndex::DiskGraph(graph) => disk_graph::account::query_bytes(graph.code_bytes(), base),
            KindIndex::HybridIvf(lists) => hybrid_ivf::account::query_bytes(lists, base, local_beam),
        }
    }

    /// The share of list reads that resident lists save now.
    pub(crate) fn resident_share(&self) -> f64 {
        match self {
            KindIndex::Flat | KindIndex::DiskGraph(_) => 0.0,
            KindIndex::HybridIvf(lists) => lists.resident().share_of(&lists.tables.directory),
        }
    }

    /// Its units and their groups, where they are not blocks of a graph.
    pub(crate) fn units(&self) -> Option<Units> {
        match self {
            KindIndex::Flat | KindIndex::DiskGraph(_) => None,
            KindIndex::HybridIvf(lists) => Some(lists.tables.units()),
        }
    }

    /// Where a server's units are in its file; `None` of a whole index, and where they are blocks.
    pub(crate) fn held_ranges(&self) -> Option<&HeldRanges> {
        match self {
            KindIndex::Flat | KindIndex::DiskGraph(_) => None,
            KindIndex::HybridIvf(lists) => lists.tables.held_ranges(),
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
        }
    }

    /// The settings that calibration measures for k results.
    pub(crate) fn grid(&self, base: &Base, k: u32) -> Grid {
        match self {
            KindIndex::Flat | KindIndex::DiskGraph(_) => {
                disk_graph::calibration::grid(k, base.manifest.blocks.count)
            }
            KindIndex::HybridIvf(lists) => {
                hybrid_ivf::calibration::grid(k, lists.tables.directory.clusters())
            }
        }
    }

    /// The inverted lists.
    ///
    /// # Errors
    /// Another kind.
    pub(crate) fn lists(&self, base: &Base) -> Result<&ListIndex> {
        match self {
            KindIndex::HybridIvf(lists) => Ok(lists),
            KindIndex::Flat | KindIndex::DiskGraph(_) => Err(Error::bad_input(format!(
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
            KindIndex::Flat | KindIndex::DiskGraph(_) => blocks::for_each_member(base, progress, see),
            KindIndex::HybridIvf(lists) => {
                hybrid_ivf::members::for_each_member(base, &lists.tables, progress, see)
            }
        }
    }

    /// What [`KindIndex::for_each_member`] advances the progress by: a number and its unit.
    pub(crate) fn scan_work(&self, base: &Base) -> (u64, &'static str) {
        match self {
            KindIndex::Flat | KindIndex::DiskGraph(_) => (u64::from(base.manifest.blocks.count), "blocks"),
            KindIndex::HybridIvf(_) => (base.manifest.rows, "rows"),
        }
    }
}

/// A vector of an open index, and what is stored with it.
pub(crate) struct Member<'a> {
    /// Its number in the index.
    pub(crate) id: u32,
    pub(crate) vector: &'a [u8],
    /// 1 but under cosine.
    pub(crate) inverse_norm: f32,
    pub(crate) external_id: u64,
}

/// The parameters of a point of the recall curve. `variant` is the one that the curve was measured with.
pub(crate) fn params_at(kind: Kind, k: u32, point: &Point, variant: Option<&str>) -> Params {
    match kind {
        Kind::Flat => Params::flat(k),
        Kind::DiskGraph => disk_graph::calibration::params(k, point),
        Kind::HybridIvf => hybrid_ivf::calibration::params(k, point, variant),
    }
}

/// Whether a query searches everything, of a kind that need not.
pub(crate) fn is_exact(params: &KindParams) -> bool {
    match params {
        KindParams::Flat(_) => false,
        KindParams::DiskGraph(own) => own.scan,
        KindParams::HybridIvf(own) => own.exact,
        #[cfg(feature = "test-kind")]
        KindParams::Sorted(_) => false,
    }
}

/// Lengthens what must not be shorter than the answer, after k has grown.
pub(crate) fn fit_to_k(params: &mut Params) {
    match &mut params.kind {
        KindParams::Flat(_) | KindParams::HybridIvf(_) => {}
        KindParams::DiskGraph(own) => own.search_list = own.search_list.max(params.k),
        #[cfg(feature = "test-kind")]
        KindParams::Sorted(_) => {}
    }
}

/// Applies the switches of the kind to its parameters. `variant` is the one that calibration chose.
///
/// # Errors
/// A value out of range.
pub(crate) fn apply_switches(params: &mut Params, switches: &Switches, variant: Option<&str>) -> Result<()> {
    match &mut params.kind {
        KindParams::Flat(_) => Ok(()),
        KindParams::DiskGraph(own) => disk_graph::calibration::apply_switches(own, &switches.graph()),
        KindParams::HybridIvf(own) => {
            hybrid_ivf::calibration::apply_switches(own, &switches.lists(), variant)
        }
        #[cfg(feature = "test-kind")]
        KindParams::Sorted(_) => Ok(()),
    }
}

/// The variants of a kind that calibration compares, and the point that it compares them at.
pub(crate) fn variants(kind: Kind) -> (&'static [&'static str], Point) {
    match kind {
        Kind::Flat | Kind::DiskGraph => (&[], Point::default()),
        Kind::HybridIvf => hybrid_ivf::calibration::VARIANTS,
    }
}

/// What queries take on an index that is not open yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedQuery {
    /// Queries in flight per thread.
    pub(crate) in_flight: usize,
    /// Bytes of tables and candidates.
    pub(crate) tables_bytes: u64,
    /// Bytes of a read.
    pub(crate) read_bytes: usize,
}

/// What queries take, as far as the manifest tells. With `low_memory` fewer of them are in flight.
pub(crate) fn planned_query(manifest: &Manifest, low_memory: bool) -> PlannedQuery {
    match &manifest.section {
        section::Section::HybridIvf(section) => {
            hybrid_ivf::account::planned_query(manifest, &section.facts, low_memory)
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
        Some(Kind::Flat | Kind::DiskGraph) | None => {
            let codes = if manifest.blocks.code_bytes > 0 { files::HEAD_CODES } else { files::CODES };
            vec![codes, files::CODEBOOK, files::MAP, files::HEAD]
        }
    }
}

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
        Kind::Flat | Kind::DiskGraph => Ok(None),
    }
}

/// How often queries visited each group of units of the index in `folder`, by what it, or one server of a partition,
/// has learnt; empty where nothing usable is there.
pub(crate) fn visits(folder: &Path, manifest: &Manifest, server: Option<usize>) -> Vec<u32> {
    let path = folder.join(files::learnt(server));
    let learnt = hybrid_ivf::learning::file::load(&path, &manifest.build_id, manifest.groups());
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
        Kind::Flat | Kind::DiskGraph => {
            Ok(UnitRanges::Equal { count: manifest.blocks.count, bytes: manifest.blocks.bytes as u64 })
        }
    }
}

/// What a query was run with, for a person.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// The effort, in the unit of the kind: the length of the beam, or the clusters visited.
    pub effort: u32,
    /// The length of the beam.
    pub search_list: u32,
    /// The slack of the stop rule or of bounds; `None` when it is off.
    pub slack: Option<f32>,
    /// Fruitless reads in a row after which a query stops; 0 for never.
    pub patience: u32,
    /// Clusters visited at most, of a kind that has clusters.
    pub nprobe: Option<u32>,
    /// Share of them, in a row without a gain, that ends the visits; `None` when that is off.
    pub early_stop: Option<f32>,
}

/// The same search, with lists and vectors of other servers used in this way, for kinds that can.
pub fn with_remote(params: Params, remote: Remote) -> Params {
    let kind = match params.kind {
        KindParams::HybridIvf(own) => {
            KindParams::HybridIvf(stratann_core::plan::hybrid_ivf::Params { remote, ..own })
        }
        other => other,
    };
    Params { kind, ..params }
}

/// The setting that these parameters are.
pub fn setting(params: &Params) -> Setting {
    match params.kind {
        KindParams::Flat(_) => flat::setting(params.k),
        KindParams::DiskGraph(own) => disk_graph::calibration::setting(&own),
        KindParams::HybridIvf(own) => hybrid_ivf::calibration::setting(params.k, &own),
        #[cfg(feature = "test-kind")]
        KindParams::Sorted(_) => flat::setting(params.k),
    }
}

/// Parameters with the values of a setting, and defaults for the others.
pub fn params_of(k: u32, setting: &Setting) -> Params {
    match setting.nprobe {
        Some(nprobe) => hybrid_ivf::calibration::nprobe_params(k, nprobe, setting.slack, setting.early_stop),
        None => disk_graph::calibration::params_of(k, setting),
    }
}

/// The parameters of the kind that a report shows besides its setting, by their names in JSON.
pub fn reported_params(params: &Params) -> Vec<(&'static str, serde_json::Value)> {
    match &params.kind {
        KindParams::Flat(_) => Vec::new(),
        KindParams::DiskGraph(own) => disk_graph::calibration::reported_params(own),
        KindParams::HybridIvf(own) => hybrid_ivf::calibration::reported_params(own),
        #[cfg(feature = "test-kind")]
        KindParams::Sorted(_) => Vec::new(),
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
        Some(Kind::Flat | Kind::DiskGraph) | None => {
            blocks::verify::check(folder, number, manifest, progress, report)
        }
    }
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
        Some(Kind::Flat | Kind::DiskGraph) | None => Ok(false),
    }
}

/// Runs one query on its own and records it.
///
/// # Errors
/// A query of the wrong length.
pub(crate) fn explain(base: &Base, kind: &KindIndex, query: &[u8], params: Params) -> Result<Explained> {
    base.check_query(query)?;
    Ok(match kind {
        KindIndex::Flat => Explained::Blocks(blocks::explain::explain(base, kind, None, query, params)),
        KindIndex::DiskGraph(graph) => {
            let block_of = |node| graph.block_of(node);
            Explained::Blocks(blocks::explain::explain(base, kind, Some(&block_of), query, params))
        }
        KindIndex::HybridIvf(lists) => {
            Explained::Lists(hybrid_ivf::explain::explain(base, lists, query, params))
        }
    })
}

/// The modules of traces.
pub mod traces {
    pub use super::blocks::explain as blocks;
    pub use super::hybrid_ivf::explain as lists;
}

/// The trace of a query.
#[derive(Clone, Debug)]
pub enum Explained {
    /// Of a kind that reads blocks.
    Blocks(blocks::explain::BlockTrace),
    /// Of a kind that reads lists.
    Lists(hybrid_ivf::explain::ListTrace),
}

/// Plans the memory and the disk of a build.
///
/// # Errors
/// `ErrorKind::Budget` when no plan fits; the error names the smallest budget that works.
pub(crate) fn plan(base: &Reader, options: &BuildOptions) -> Result<BuildPlan> {
    match &options.kind {
        KindOptions::Flat => blocks::plan::plan(base, options, &GraphOptions::default(), false),
        KindOptions::DiskGraph(own) => blocks::plan::plan(base, options, own, true),
        KindOptions::HybridIvf(own) => hybrid_ivf::build::memory::plan(base, options, own),
    }
}

/// What the stages of a build are expected to take.
pub(crate) fn forecast(shape: &Shape, options: &BuildOptions, plan: &BuildPlan) -> Forecast {
    match &options.kind {
        KindOptions::Flat => flat::build::forecast(shape, plan),
        KindOptions::DiskGraph(own) => disk_graph::build::forecast::forecast(shape, options, own, plan),
        KindOptions::HybridIvf(own) => hybrid_ivf::build::forecast::forecast(shape, options, own, plan),
    }
}

/// Runs the stages of a build but the calibration; returns the manifest of the finished files.
pub(crate) fn build(build: &mut Build<'_>, scan: &Scan) -> Result<Manifest> {
    match &build.options.kind {
        KindOptions::DiskGraph(own) => disk_graph::build::run(build, own, scan),
        KindOptions::HybridIvf(own) => hybrid_ivf::build::run(build, own, scan),
        KindOptions::Flat => flat::build::run(build, scan),
    }
}
