//! An index partitioned over servers: [`partition`] divides its blocks, [`Shard`] opens one server's share.
//!
//! All servers hold what says where to go (codes unless blocks carry them, codebook, block map, head graph,
//! placement); the blocks are divided. A query that needs a block on another server is handed over, so blocks that a
//! search reads one after the other should lie together:
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
//! The result is a folder like any index's, with one file of blocks for each server. It is published like a build:
//! files first, synced; the manifest last, under a name that must be free.

mod cells;
pub(crate) mod check;
mod copies;
mod divide;
mod parts;
mod placing;
mod plan;
mod refine;
pub mod scatter;
mod shard;
mod source;
mod units;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use stratann_core::place::{Placement, SERVERS_MAX};

use self::placing::Placing;
use self::plan::SpreadPlan;
use self::source::Source;
use crate::base::shape;
use crate::budget::{self, Account};
use crate::build::{check_disk, claim_folder};
use crate::durable::sync_folder;
use crate::files::FileEntry;
use crate::index::Index;
use crate::kinds::kind::Kind;
use crate::manifest::{Manifest, SpreadFacts};
use crate::{Error, Progress, Result, files};

pub use self::shard::Shard;

/// Where the files lie until they are published, inside the folder.
const PARTIAL: &str = "partial-cluster";

/// How first replicas are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// A cut through a graph of many small cells, then refinement block by block.
    #[default]
    Cells,
    /// Balanced k-means with one centre for each server.
    Kmeans,
    /// By hash, to compare.
    Random,
}

impl Method {
    /// Its name on the command line and in manifests.
    pub fn name(self) -> &'static str {
        match self {
            Method::Cells => "cells",
            Method::Kmeans => "kmeans",
            Method::Random => "random",
        }
    }
}

/// How an index is spread.
#[derive(Clone, Debug)]
pub struct PartitionOptions {
    /// Number of servers: 1 to 64.
    pub servers: usize,
    /// Servers that hold each block.
    pub replicas: usize,
    /// Share of the blocks that are copied to one server more, 0 to 1; with one replica alone.
    pub overlap: f64,
    /// How first replicas are chosen.
    pub method: Method,
    /// Everything that this may take, in bytes; `None` for no limit.
    pub ram_budget: Option<u64>,
    /// Seed of all choices.
    pub seed: u64,
    /// Threads; they do not change the result.
    pub threads: usize,
    /// Replace an index that is there.
    pub force: bool,
}

impl PartitionOptions {
    /// One copy of each block on `servers` servers, by cells.
    pub fn new(servers: usize) -> PartitionOptions {
        PartitionOptions {
            servers,
            replicas: 1,
            overlap: 0.0,
            method: Method::Cells,
            ram_budget: None,
            seed: 1,
            threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
            force: false,
        }
    }

    fn check(&self, folder: &Path, manifest: &Manifest) -> Result<()> {
        let wrong = |what: String| Err(Error::bad_input(what));
        self.check_numbers()?;
        if let Some(spread) = &manifest.spread {
            return wrong(format!(
                "{} is partitioned over {} servers already; give the index that it was made from",
                folder.display(),
                spread.servers
            ));
        }
        if !manifest.kind().is_some_and(Kind::is_spreadable) {
            return wrong(format!(
                "{} is of kind {}; only disk-graph can be partitioned over servers",
                folder.display(),
                manifest.kind
            ));
        }
        if (manifest.blocks.count as usize) < self.servers {
            return wrong(format!(
                "{} has {} blocks, fewer than {} servers; use fewer",
                folder.display(),
                manifest.blocks.count,
                self.servers
            ));
        }
        Ok(())
    }

    fn check_numbers(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::bad_input(what));
        if !(1..=SERVERS_MAX).contains(&self.servers) {
            return wrong(format!("servers is {}; use 1 to {SERVERS_MAX}", self.servers));
        }
        if !(1..=self.servers).contains(&self.replicas) {
            return wrong(format!(
                "replicas is {}; use 1 to the number of servers, {}",
                self.replicas, self.servers
            ));
        }
        if !(0.0..=1.0).contains(&self.overlap) {
            return wrong(format!("overlap is {}; use a share of the blocks, 0 to 1", self.overlap));
        }
        if self.overlap > 0.0 && (self.replicas > 1 || self.servers == 1) {
            return wrong(
                "overlap copies blocks that one of several servers has; give it without --replicas, and with two \
                 servers or more"
                    .into(),
            );
        }
        if self.threads == 0 {
            return wrong("threads is 0; use 1 or more".into());
        }
        Ok(())
    }
}

/// What a partition did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PartitionReport {
    /// Number of servers.
    pub servers: usize,
    /// Servers that hold each block, at least.
    pub replicas: usize,
    /// Share of the blocks with one replica more.
    pub overlap: f64,
    /// How first replicas were chosen.
    pub method: String,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Largest resident set of the process.
    pub peak_rss_bytes: u64,
    /// Blocks of the index.
    pub blocks: u32,
    /// Blocks on all servers together.
    pub copies: u64,
    /// Of the edges between different blocks, the share of those without a common server: what a query may have to be
    /// handed over for.
    pub cut_share: f64,
    /// Blocks of the fullest server over the mean.
    pub largest_over_mean: f64,
    /// Bytes of each server's blocks.
    pub server_bytes: Vec<u64>,
    /// Bytes of what every server holds besides.
    pub shared_bytes: u64,
    /// Identifies the result.
    pub build_id: String,
    /// Seconds by stage.
    pub stages: BTreeMap<String, f64>,
}

/// What [`partition`] will take in memory. Reads the manifest alone.
///
/// # Errors
/// As [`partition`], as far as it can be known beforehand.
pub fn plan(index: &Path, options: &PartitionOptions) -> Result<Account> {
    let (_, manifest) = Manifest::read(index)?;
    options.check(index, &manifest)?;
    Ok(SpreadPlan::new(&manifest, options)?.account)
}

/// Servers of all units of `index`: of its blocks, as [`partition`] would place them, or of its inverted lists. Nothing
/// is written.
///
/// # Errors
/// As [`partition`], as far as they concern the index and the options; an overlap of lists.
pub fn place(index: &Index, options: &PartitionOptions, progress: &dyn Progress) -> Result<Placement> {
    if let Some(units) = index.kind.units() {
        units::check(&units, options)?;
        return pool(options)?.install(|| units::place(&units, options, progress));
    }
    let (_, manifest) = Manifest::read(index.folder())?;
    options.check(index.folder(), &manifest)?;
    let plan = SpreadPlan::new(&manifest, options)?;
    let shape = shape(index.folder(), &manifest)?.3;
    let source = Source::open(index.folder(), manifest, shape, progress)?;
    pool(options)?.install(|| Placing::new(options, plan, progress).run(&source))
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

/// Spreads the blocks of the newest version in `index` over servers, and publishes the result in the folder `out`.
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
    let (_, manifest) = Manifest::read(index)?;
    options.check(index, &manifest)?;
    let plan = SpreadPlan::new(&manifest, options)?;
    if let (Ok(a), Ok(b)) = (index.canonicalize(), out.canonicalize())
        && a == b
    {
        return Err(Error::bad_input(format!("{} is the index itself; name another folder", out.display())));
    }
    let pool = pool(options)?;
    let is_new = !out.exists();
    let (number, lock) = claim_folder(out, options.force)?;
    let mut job =
        Job { index, out, number, options, progress, placing: Placing::new(options, plan, progress) };
    let done = pool.install(|| job.run(manifest));
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
    out: &'a Path,
    number: u64,
    options: &'a PartitionOptions,
    progress: &'a dyn Progress,
    placing: Placing<'a>,
}

impl Job<'_> {
    fn run(&mut self, manifest: Manifest) -> Result<PartitionReport> {
        let partial = self.out.join(PARTIAL);
        if partial.exists() {
            std::fs::remove_dir_all(&partial).map_err(|e| Error::io("removing", &partial, &e))?;
        }
        std::fs::create_dir_all(&partial).map_err(|e| Error::io("creating", &partial, &e))?;
        let bytes = f64::from(manifest.blocks.count) * manifest.blocks.bytes as f64;
        check_disk(self.out, (bytes * (self.options.replicas as f64 + self.options.overlap)) as u64)?;
        let shape = shape(self.index, &manifest)?.3;
        let mut files = self
            .placing
            .stage("shared", |_| share(self.index, &partial, self.number, &manifest, self.progress))?;
        let source = Source::open(self.index, manifest, shape, self.progress)?;
        let placement = self.placing.run(&source)?;
        let path = |role: &str| partial.join(files::name(self.number, role));
        files.insert(
            files::name(self.number, files::PLACEMENT),
            parts::write_placement(&placement, &path(files::PLACEMENT))?,
        );
        let written = {
            let (number, size) = (self.number, shape.block_bytes);
            let path = |server: usize| partial.join(files::name(number, &files::part(server)));
            self.placing.stage("write", |_| parts::write(&source, &placement, size, path))?
        };
        self.publish(source.manifest, files, &written)
    }

    /// Moves the files up and creates the manifest.
    fn publish(
        &mut self,
        source: Manifest,
        mut entries: BTreeMap<String, FileEntry>,
        written: &parts::Written,
    ) -> Result<PartitionReport> {
        let shared_bytes = entries.values().map(|f| f.bytes).sum();
        let server_bytes: Vec<u64> = written.parts.iter().map(|p| p.bytes).collect();
        let block = source.blocks.bytes as u64;
        let held: Vec<u32> = server_bytes.iter().map(|b| (b / block) as u32).collect();
        for (server, entry) in written.parts.iter().enumerate() {
            entries.insert(files::name(self.number, &files::part(server)), entry.clone());
        }
        let copies: u64 = held.iter().map(|&h| u64::from(h)).sum();
        let largest = f64::from(held.iter().copied().max().unwrap_or(0));
        let spread = SpreadFacts {
            servers: self.options.servers,
            replicas: self.options.replicas,
            overlap: self.options.overlap,
            method: self.options.method.name().into(),
            seed: self.options.seed,
            source: source.build_id.clone(),
            held,
            cut_share: written.cut as f64 / written.edges.max(1) as f64,
        };
        let mut report = PartitionReport {
            servers: spread.servers,
            replicas: spread.replicas,
            overlap: spread.overlap,
            method: spread.method.clone(),
            blocks: source.blocks.count,
            copies,
            cut_share: spread.cut_share,
            largest_over_mean: largest * spread.servers as f64 / copies.max(1) as f64,
            server_bytes,
            shared_bytes,
            ..PartitionReport::default()
        };
        let mut manifest = Manifest { files: entries, spread: Some(spread), ..source };
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
        report.stages = std::mem::take(&mut self.placing.stages);
        Ok(report)
    }
}

/// Checks the files that all servers share, and names them in the folder `partial`.
fn share(
    index: &Path,
    partial: &Path,
    number: u64,
    manifest: &Manifest,
    progress: &dyn Progress,
) -> Result<BTreeMap<String, FileEntry>> {
    let mut shared = BTreeMap::new();
    for role in parts::shared(&manifest.blocks) {
        if progress.interrupted() {
            return Err(Error::interrupted());
        }
        let (name, entry) = manifest.file(role)?;
        let from = index.join(name);
        if files::entry(&from)? != *entry {
            return Err(Error::corrupt(format!(
                "{} is damaged: its size or checksum is not what the manifest says; restore it or build the index \
                 again",
                from.display()
            )));
        }
        let name = files::name(number, role);
        parts::link(&from, &partial.join(&name))?;
        shared.insert(name, entry.clone());
    }
    Ok(shared)
}
