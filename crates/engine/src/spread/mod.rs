//! An index partitioned over servers: [`partition`] divides its units, [`Shard`] opens one server's share.
//!
//! All servers hold what says where to go, and the placement; the units are divided. A query that needs a unit on
//! another server is handed over, so units that a search reads one after the other should lie together. The units of a
//! `hybrid-ivf` are its inverted lists, which [`units`] places. Those of a `disk-graph` are its blocks:
//!
//! 1. First replicas: by hash, by balanced k-means (as CoTra does, BatANN §4.3), or from a cut through a graph of cells
//!    (after Gottesbüren et al. 2024, as in BatANN).
//! 2. For cells, refinement: single blocks move to where most of their edges lead.
//! 3. Copies: further replicas where most edges of a block lead to.
//!
//! Each of these reads the file of blocks a few times, in order. In memory are, for each block, 2 bytes of the map, 1
//! for its first replica, 2 for its cell, 2 for each server (edges into the block; left out under a small budget), 20
//! for wishes of copies, 8 for its replicas; and the sample that trains the cells, and their graph.
//!
//! The result is a folder like any index's, with one file of units for each server. It is published like a build:
//! files first, synced; the manifest last, under a name that must be free.

mod cells;
pub(crate) mod check;
mod copies;
mod description;
mod divide;
pub mod moved;
mod options;
mod parts;
mod placing;
mod plan;
mod refine;
pub mod replan;
mod row_ids;
pub mod scatter;
mod shard;
mod source;
mod units;
#[cfg(feature = "lab")]
pub mod whole;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use stratann_core::kinds::IndexView;
use stratann_core::place::{Placement, SERVERS_MAX};
use stratann_storage::budget::{self, Account, THREAD_BYTES};
use stratann_storage::data_file::FileEntry;
use stratann_storage::durable::sync_folder;
use stratann_storage::names::{BuildId, FileName};
use stratann_storage::{Error, Progress, Result, data_file};

use self::options::OVERLAP_OF_LISTS;
use self::placing::Placing;
use self::plan::SpreadPlan;
use self::source::Source;
use crate::base::shape;
use crate::files;
use crate::index::Index;
use crate::kinds::division::GridPlan;
use crate::kinds::{self, SlicedLists, UnitTables};
use crate::manifest::{Manifest, SpreadFacts};
use crate::stages::folder::claim_folder;
use crate::stages::plan::check_disk;

pub use self::options::{Method, PartitionOptions};
pub(crate) use self::shard::LANDMARK_BYTES_MAX;
pub use self::shard::Shard;

/// Folder of the files until they are published, inside the index folder.
const PARTIAL: &str = "partial-cluster";

/// Report of a partition.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PartitionReport {
    /// Number of servers.
    pub servers: usize,
    /// Servers that hold each block or list, at least.
    pub replicas: usize,
    /// Share of the blocks with one replica more.
    pub overlap: f64,
    /// Method by which first replicas were chosen.
    pub method: String,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Largest resident set of the process.
    pub peak_rss_bytes: u64,
    /// Unit of the division: `blocks` or `lists`.
    pub unit: &'static str,
    /// Blocks, or inverted lists, of the index.
    pub blocks: u32,
    /// Copies on all servers together.
    pub copies: u64,
    /// Share of the edges between different blocks without a common server: what a query may have to be handed over
    /// for. Of lists, that of the edges of the navigation graph between clusters.
    pub cut_share: f64,
    /// Bytes of the fullest server over the mean.
    pub largest_over_mean: f64,
    /// Visits of the busiest server's lists over the mean, by the queries that the index has learnt from; `None` where
    /// it has learnt nothing, or where units are blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busiest_over_mean: Option<f64>,
    /// Bytes of each server's units.
    pub server_bytes: Vec<u64>,
    /// Bytes of what every server holds besides.
    pub shared_bytes: u64,
    /// Identifies the result.
    pub build_id: BuildId,
    /// Division of a `grid-ivf`, and its reasons.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<GridPlan>,
    /// Seconds by stage.
    pub stages: BTreeMap<String, f64>,
}

/// Memory that [`partition`] will take. Reads the manifest alone.
///
/// # Errors
/// As [`partition`], as far as it can be known beforehand.
pub fn plan(index: &Path, options: &PartitionOptions) -> Result<Account> {
    let (_, manifest) = Manifest::read(index)?;
    options.check(index, &manifest)?;
    Ok(Plan::new(&manifest, options)?.account().clone())
}

/// Plan of a partition within its budget.
enum Plan {
    /// A plan by blocks.
    Blocks(SpreadPlan),
    /// A plan by units of another kind.
    Units(Account),
    /// A plan by slices of lists.
    Slices(Account),
}

impl Plan {
    /// # Errors
    /// `ErrorKind::Budget`, naming the smallest budget that works.
    fn new(manifest: &Manifest, options: &PartitionOptions) -> Result<Plan> {
        if let Some(mut account) = kinds::division_account(manifest, options.servers, options.grid.mode) {
            account.add("threads", options.threads as u64 * THREAD_BYTES);
            account.add("files under way", (options.servers * 2 * parts::BUFFER_BYTES) as u64);
            account.check(options.ram_budget, "spread this index")?;
            return Ok(Plan::Slices(account));
        }
        match units::account(manifest, options) {
            None => SpreadPlan::new(manifest, options).map(Plan::Blocks),
            Some(account) => {
                account.check(options.ram_budget, "spread this index")?;
                Ok(Plan::Units(account))
            }
        }
    }

    fn account(&self) -> &Account {
        match self {
            Plan::Blocks(plan) => &plan.account,
            Plan::Units(account) | Plan::Slices(account) => account,
        }
    }
}

/// Places of the units of an index, and the part that its queries see then.
pub struct Placed {
    /// The servers of all units.
    pub placement: Placement,
    /// Division of a `grid-ivf`, and its reasons.
    pub plan: Option<GridPlan>,
    lists: Option<SlicedLists>,
}

impl Placed {
    /// The part of the whole index that queries see, on servers that hold different units of it.
    pub fn view<'a>(&'a self, index: &'a Index) -> IndexView<'a> {
        let mut view = index.view();
        let own = index.kind.sliced();
        if let Some(kind) = self.lists.as_ref().zip(own).map(|(lists, own)| own.divided_view(lists)) {
            view.kind = kind;
        }
        view
    }
}

/// Servers of all units of `index`: of its blocks, as [`partition`] would place them, or of its inverted lists. Nothing
/// is written.
///
/// # Errors
/// As [`partition`], as far as they concern the index and the options; an overlap of lists.
pub fn place(index: &Index, options: &PartitionOptions, progress: &dyn Progress) -> Result<Placed> {
    if index.manifest().facts().is_sliced {
        options.check(index.folder(), index.manifest())?;
    }
    if let Some(own) = index.kind.sliced() {
        let divided = pool(options)?
            .install(|| own.divide(&index.base, options.over(&index.base.manifest), progress))?;
        let kinds::PlacedSlices { plan, placement, places, striped } = divided;
        return Ok(Placed { placement, plan: Some(plan), lists: Some((places, striped)) });
    }
    if let Some(mut units) = index.kind.units() {
        units::check(&units, options)?;
        units.visits = visits(index.folder(), index.manifest(), options)?;
        let placement = pool(options)?.install(|| units::place(&units, options, progress))?;
        return Ok(Placed { placement, plan: None, lists: None });
    }
    let (_, manifest) = Manifest::read(index.folder())?;
    options.check(index.folder(), &manifest)?;
    let plan = SpreadPlan::new(&manifest, options)?;
    let shape = shape(index.folder(), &manifest)?.block;
    let source = Source::open(index.folder(), manifest, shape, progress)?;
    let placement = pool(options)?.install(|| Placing::new(options, plan, progress).run(&source))?;
    Ok(Placed { placement, plan: None, lists: None })
}

/// Checks what [`place`] refuses before any work.
///
/// # Errors
/// As [`place`].
pub fn check_place(index: &Index, options: &PartitionOptions) -> Result<()> {
    match index.kind.units() {
        Some(units) => units::check(&units, options),
        None => plan(index.folder(), options).map(|_| ()),
    }
}

fn pool(options: &PartitionOptions) -> Result<rayon::ThreadPool> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(options.threads)
        .build()
        .map_err(|e| Error::bad_input(format!("cannot start {} threads: {e}", options.threads)))
}

/// Number of visits of queries to each group of units, as far as the index and the folders that the options name have
/// learnt it.
fn visits(index: &Path, manifest: &Manifest, options: &PartitionOptions) -> Result<Vec<u32>> {
    let mut sum = if options.traffic { kinds::visits(index, manifest, None) } else { Vec::new() };
    for folder in &options.traffic_from {
        let (_, theirs) = Manifest::read(folder)?;
        let source = theirs.spread.as_ref().map_or(theirs.build_id, |spread| spread.source);
        if source != manifest.build_id {
            return Err(Error::bad_input(format!(
                "{} is not a partition of {}: what its servers have learnt is about other lists",
                folder.display(),
                index.display()
            )));
        }
        let servers = theirs.spread.as_ref().map_or(vec![None], |s| (0..s.servers).map(Some).collect());
        for server in servers {
            let visits = kinds::visits(folder, &theirs, server);
            sum.resize(sum.len().max(visits.len()), 0);
            sum.iter_mut().zip(visits).for_each(|(sum, visits)| *sum = sum.saturating_add(visits));
        }
    }
    Ok(sum)
}

/// Spreads the units of the newest version in `index` over servers, and publishes the result in the folder `out`.
///
/// # Errors
/// Options that cannot be, an index of another kind, a folder that holds an index already (unless `force`), a budget
/// that cannot work (the smallest that does is named), damage, a disk that is full, an interruption. `index` is never
/// changed, and what `out` held before is never harmed.
pub fn partition(
    index: &Path,
    out: &Path,
    options: &PartitionOptions,
    progress: &dyn Progress,
) -> Result<PartitionReport> {
    let started = Instant::now();
    let (source, manifest) = Manifest::read(index)?;
    options.check(index, &manifest)?;
    let plan = Plan::new(&manifest, options)?;
    if let (Ok(a), Ok(b)) = (index.canonicalize(), out.canonicalize())
        && a == b
    {
        return Err(Error::bad_input(format!("{} is the index itself; name another folder", out.display())));
    }
    let pool = pool(options)?;
    let is_new = !out.exists();
    let (number, lock) = claim_folder(out, options.force)?;
    let (stages, ready) = (BTreeMap::new(), None);
    let mut job = Job { index, source, out, number, options, progress, stages, ready };
    let done = pool.install(|| job.run(manifest, plan));
    let _ = std::fs::remove_dir_all(out.join(PARTIAL));
    drop(lock);
    if done.is_err() && is_new {
        // It is empty: nothing was published.
        let _ = std::fs::remove_dir(out);
    }
    let mut report = done?;
    report.seconds = started.elapsed().as_secs_f64();
    report.peak_rss_bytes = budget::process().peak_rss_bytes;
    Ok(report)
}

/// One partition on its way.
struct Job<'a> {
    index: &'a Path,
    // The number of its manifest.
    source: u64,
    out: &'a Path,
    number: u64,
    options: &'a PartitionOptions,
    progress: &'a dyn Progress,
    stages: BTreeMap<String, f64>,
    // How slices are divided, where that is known.
    ready: Option<kinds::Divided>,
}

/// Written files, for [`Job::publish`].
struct Written {
    parts: Vec<FileEntry>,
    placement: Placement,
    cut_share: f64,
    busiest_over_mean: Option<f64>,
    plan: Option<GridPlan>,
}

impl Job<'_> {
    fn run(&mut self, manifest: Manifest, plan: Plan) -> Result<PartitionReport> {
        let partial = self.out.join(PARTIAL);
        if partial.exists() {
            std::fs::remove_dir_all(&partial).map_err(|e| Error::io("removing", &partial, &e))?;
        }
        std::fs::create_dir_all(&partial).map_err(|e| Error::io("creating", &partial, &e))?;
        let bytes = f64::from(manifest.blocks.count) * manifest.blocks.bytes as f64;
        check_disk(self.out, (bytes * (self.options.replicas as f64 + self.options.overlap)) as u64)?;
        let (index, number, progress) = (self.index, self.number, self.progress);
        let mut files = self.stage("shared", || share(index, &partial, number, &manifest, progress))?;
        let ram_budget = self.options.ram_budget;
        let ids = || row_ids::write((index, &manifest), (&partial, number), ram_budget, progress);
        files.extend(self.stage("ids", ids)?);
        let tables = match &plan {
            Plan::Blocks(_) | Plan::Slices(_) => None,
            Plan::Units(_) => kinds::read_units(index, &manifest)?,
        };
        let mut manifest = manifest;
        let written = match (plan, tables) {
            (Plan::Blocks(plan), _) => self.write_blocks(&manifest, plan, &partial)?,
            (Plan::Units(_), Some(tables)) => self.write_units(&manifest, &tables, &partial)?,
            (Plan::Slices(_), _) => self.write_slices(&mut manifest, &partial, &mut files)?,
            (Plan::Units(_), None) => return Err(Error::bad_input("the index has no units; report this")),
        };
        let path = partial.join(files::name(number, files::PLACEMENT));
        files.insert(
            files::name(number, files::PLACEMENT),
            parts::write_placement(&written.placement, &path)?,
        );
        self.publish(manifest, files, &written)
    }

    /// Runs a stage and records its time.
    fn stage<T>(&mut self, name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let started = Instant::now();
        let done = work()?;
        budget::release_freed();
        self.stages.insert(name.into(), started.elapsed().as_secs_f64());
        Ok(done)
    }

    fn write_blocks(&mut self, manifest: &Manifest, plan: SpreadPlan, partial: &Path) -> Result<Written> {
        let shape = shape(self.index, manifest)?.block;
        let source = Source::open(self.index, manifest.clone(), shape, self.progress)?;
        let mut placing = Placing::new(self.options, plan, self.progress);
        let placement = placing.run(&source)?;
        self.stages.append(&mut placing.stages);
        let path = part_path(manifest, partial, self.number);
        let written = self.stage("write", || parts::write(&source, &placement, shape.block_bytes, path))?;
        let cut_share = written.cut as f64 / written.edges.max(1) as f64;
        Ok(Written { parts: written.parts, placement, cut_share, busiest_over_mean: None, plan: None })
    }

    fn write_units(&mut self, manifest: &Manifest, tables: &UnitTables, partial: &Path) -> Result<Written> {
        let (index, options, progress) = (self.index, self.options, self.progress);
        let mut busiest_over_mean = None;
        let placement = self.stage("divide", || {
            let mut units = tables.units();
            units::check(&units, options)?;
            units.visits = visits(index, manifest, options)?;
            let placement = units::place(&units, options, progress)?;
            busiest_over_mean = units::busiest_over_mean(&units, &placement);
            Ok(placement)
        })?;
        let path = part_path(manifest, partial, self.number);
        let parts = self.stage("write", || {
            let ranges = tables.unit_ranges(manifest);
            parts::write_ranges((index, manifest), &ranges, &placement, path, progress)
        })?;
        let cut_share = units::cut_share(tables, &placement);
        Ok(Written { parts, cut_share, busiest_over_mean, placement, plan: None })
    }

    fn write_slices(
        &mut self,
        manifest: &mut Manifest,
        partial: &Path,
        files: &mut BTreeMap<FileName, FileEntry>,
    ) -> Result<Written> {
        let (mut index, options, progress, number) = (self.index, self.options, self.progress, self.number);
        let source = (self.source, &*manifest);
        let ready = self.ready.take();
        let over = options.over(manifest);
        let divide = || kinds::divide(index, source, over, progress);
        let divided = self.stage("divide", || ready.map_or_else(divide, Ok))?;
        let name = files::name(number, files::FIRSTS);
        files.insert(name.clone(), divided.write_firsts(&partial.join(&name))?);
        let name = files::name(number, files::ROW_IDS);
        files.insert(name.clone(), divided.write_row_ids(&partial.join(&name))?);
        // The whole file of striped lists is the source of the servers' files, and is not published.
        let names = [files::GRID, files::SIZES].map(|role| files::name(number, role));
        let [data, sizes] = names.each_ref().map(|name| partial.join(name));
        // What it is linked to must not be written.
        let has_lists = || std::fs::remove_file(&sizes).map_err(|e| Error::io("removing", &sizes, &e));
        if let Some(striped) = divided.write_lists(manifest, (&data, &sizes), has_lists)? {
            *manifest = striped.manifest;
            let whole = manifest.file(files::GRID)?.0.to_string();
            manifest.files.remove(whole.as_str());
            manifest.files.insert(names[0].clone(), striped.data);
            files.insert(names[1].clone(), striped.sizes);
            index = partial;
        }
        let path = part_path(manifest, partial, number);
        let kinds::Divided { plan, placement, places, .. } = divided;
        let parts = self.stage("write", || {
            let bytes = u64::from(manifest.blocks.count) * manifest.blocks.bytes as u64;
            parts::write_ranges((index, manifest), &places.ranges(bytes), &placement, path, progress)
        })?;
        let busiest_over_mean = plan.candidates.first().map(|candidate| candidate.largest_share);
        Ok(Written { parts, placement, cut_share: 0.0, busiest_over_mean, plan: Some(plan) })
    }

    /// Moves the files up and creates the manifest.
    fn publish(
        &mut self,
        source: Manifest,
        mut entries: BTreeMap<FileName, FileEntry>,
        written: &Written,
    ) -> Result<PartitionReport> {
        let shared_bytes = entries.values().map(|f| f.bytes).sum();
        let server_bytes: Vec<u64> = written.parts.iter().map(|p| p.bytes).collect();
        let count = |server: usize| written.placement.blocks_of(server).count() as u32;
        let held: Vec<u32> = (0..self.options.servers).map(count).collect();
        for (server, entry) in written.parts.iter().enumerate() {
            entries.insert(files::name(self.number, &source.part_role(server)), entry.clone());
        }
        let copies: u64 = held.iter().map(|&h| u64::from(h)).sum();
        let largest = server_bytes.iter().copied().max().unwrap_or(0) as f64;
        let all_bytes = server_bytes.iter().sum::<u64>().max(1) as f64;
        let spread = SpreadFacts {
            servers: self.options.servers,
            replicas: self.options.replicas,
            overlap: self.options.overlap,
            method: written.plan.as_ref().map_or(self.options.method.name(), |plan| plan.mode.name()).into(),
            seed: self.options.seed,
            source: source.build_id,
            held,
            cut_share: written.cut_share,
            slices: written.plan.as_ref().map_or(Vec::new(), |plan| plan.slices.clone()),
            prices: written.plan.as_ref().map(GridPlan::prices),
        };
        let mut report = PartitionReport {
            servers: spread.servers,
            replicas: spread.replicas,
            overlap: spread.overlap,
            method: spread.method.clone(),
            unit: source.facts().unit_names.1,
            blocks: written.placement.all().len() as u32,
            copies,
            cut_share: spread.cut_share,
            largest_over_mean: largest * spread.servers as f64 / all_bytes,
            busiest_over_mean: written.busiest_over_mean,
            plan: written.plan.clone(),
            server_bytes,
            shared_bytes,
            ..PartitionReport::default()
        };
        let deleted = files::name(self.number, files::DELETED);
        let deletes = source.deletes.as_ref().map(|deletes| deletes.in_copy(deleted));
        let mut manifest = Manifest { files: entries, spread: Some(spread), deletes, ..source };
        manifest.build_id = manifest.content_id();
        let partial = self.out.join(PARTIAL);
        for name in manifest.files.keys() {
            let to = self.out.join(name);
            std::fs::rename(partial.join(name), &to).map_err(|e| Error::io("moving", &to, &e))?;
        }
        sync_folder(self.out)?;
        manifest.publish(self.out, self.number)?;
        crate::manifest::remove_older(self.out, self.number, &manifest);
        report.build_id = manifest.build_id;
        report.stages = std::mem::take(&mut self.stages);
        Ok(report)
    }
}

/// Place of each server's file until it is published.
fn part_path(manifest: &Manifest, partial: &Path, number: u64) -> impl Fn(usize) -> PathBuf + use<> {
    let (role, partial) = (manifest.data_role(), partial.to_path_buf());
    move |server| partial.join(files::name(number, &files::part(role, server)))
}

/// Checks the files that all servers share, and names them in the folder `partial`.
fn share(
    index: &Path,
    partial: &Path,
    number: u64,
    manifest: &Manifest,
    progress: &dyn Progress,
) -> Result<BTreeMap<FileName, FileEntry>> {
    let mut shared = BTreeMap::new();
    for role in kinds::kind_of(manifest).shared_roles(manifest) {
        progress.check_interrupted()?;
        let (name, entry) = manifest.file(role)?;
        let from = index.join(name);
        if data_file::entry(&from)? != *entry {
            return Err(parts::damaged(&from));
        }
        let name = files::name(number, role);
        parts::link(&from, &partial.join(&name))?;
        shared.insert(name, entry.clone());
    }
    if let Some(step) = manifest.last_delete() {
        let (from, name) = (index.join(&*step.file), files::name(number, files::DELETED));
        let entry = data_file::entry(&from)?;
        if manifest.files.get(&step.file) != Some(&entry) {
            return Err(parts::damaged(&from));
        }
        parts::link(&from, &partial.join(&name))?;
        shared.insert(name, entry);
    }
    Ok(shared)
}
