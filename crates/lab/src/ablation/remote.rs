//! The techniques of a `remote-hnsw` (d-HNSW §4): where the time of a query goes, recall and latency, numbers of
//! clusters, lengths of doorbells, room for fresh records, scanning or linking them, caches, and a model of the paper's
//! link.

use std::path::{Path, PathBuf};

use serde::Serialize;
use stratann_cli::Verdict;
use stratann_cli::memory_nodes::KeyArgs;
use stratann_cli::options;
use stratann_cli::output::{Named, Output};
use stratann_cli::progress::ProgressPrinter;
use stratann_cli::queries::Queries;
use stratann_cluster::node_registry::found;
use stratann_engine::dataset::GroundTruth;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::kinds::remote_hnsw::baseline::LoadScheme;
use stratann_engine::kinds::remote_hnsw::facts::RemoteFacts;
use stratann_engine::kinds::setting;
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{Effort, SearchOptions};
use stratann_params::IndexKind;
use stratann_storage::{Error, Result};

use super::{Args, plot_path};

mod cache;
mod doorbells;
mod figure;
mod fresh;
mod measure;
mod model;
mod overflow;
mod partitions;
mod text;

use cache::AtStream;
use doorbells::Doorbells;
use fresh::Fresh;
use measure::Measured;
use model::{Link, Model};
use overflow::AtOverflow;
use partitions::AtPartitions;

/// Lengths of the beam in each cluster, as in figure 6.
const EFS: [u32; 9] = [1, 2, 4, 8, 16, 24, 32, 40, 48];
/// Ways to load clusters that the paper compares.
const COMPARED: [LoadScheme; 3] = [LoadScheme::Naive, LoadScheme::NoDoorbell, LoadScheme::Own];
/// That of the tables.
const TABLE_EF: u32 = 48;

/// Options of a `remote-hnsw`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Measurements of remote-hnsw")]
pub(super) struct RemoteArgs {
    /// Search the memory nodes that hold the index, instead of its folder; with --key-file
    #[arg(long, value_name = "ADDRESS,…", value_delimiter = ',')]
    pub(super) memory: Vec<String>,
    #[command(flatten)]
    key: KeyArgs,
    /// Queries of a batch [default: 2000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(super) batch: Option<u32>,
    /// Share of all clusters that the cache has room for, 0 to 1 [default: 0.1]
    #[arg(long, value_name = "SHARE")]
    pub(super) cache_share: Option<f64>,
    /// Vectors of the index: indexes with other numbers of clusters are built from them, into --output (figure 7)
    #[arg(long, value_name = "FILE", requires = "output")]
    pub(super) vectors: Option<PathBuf>,
    /// Numbers of clusters of these indexes [default: 70,80,90,100,200,500]
    #[arg(long, value_delimiter = ',', value_name = "P,…", requires = "vectors")]
    pub(super) partitions: Vec<usize>,
    /// Modelled link: a round trip without bytes, microseconds [default: 4]
    #[arg(long, value_name = "US")]
    pub(super) link_latency_us: Option<f64>,
    /// Modelled link: bandwidth of a memory node, Gbit/s [default: 100]
    #[arg(long, value_name = "GBPS")]
    pub(super) link_gbps: Option<f64>,
    /// Modelled link: clients that share it, each with one batch after another [default: 24]
    #[arg(long, value_name = "N")]
    pub(super) clients: Option<usize>,
}

impl RemoteArgs {
    /// Whether an option is given.
    pub(super) fn is_given(&self) -> bool {
        !self.memory.is_empty()
            || self.vectors.is_some()
            || self.batch.is_some()
            || self.cache_share.is_some()
            || self.link_latency_us.is_some()
            || self.link_gbps.is_some()
            || self.clients.is_some()
    }

    fn share(&self) -> f64 {
        self.cache_share.unwrap_or(0.1)
    }

    fn batch(&self) -> usize {
        self.batch.map_or(2000, |batch| batch as usize)
    }

    fn link(&self) -> Link {
        Link {
            round_trip_us: self.link_latency_us.unwrap_or(4.0),
            gbps: self.link_gbps.unwrap_or(100.0),
            clients: self.clients.unwrap_or(24),
        }
    }

    fn check(&self) -> Result<()> {
        let link = self.link();
        let wrong = |text: &str| Err(Error::bad_input(text));
        match self {
            own if !(0.0..=1.0).contains(&own.share()) => {
                wrong("--cache-share is out of range; give a share from 0 to 1")
            }
            _ if !(0.0..=1e9).contains(&link.round_trip_us) => {
                wrong("--link-latency-us is out of range; give microseconds, 0 or more")
            }
            _ if !(1e-3..=1e6).contains(&link.gbps) => {
                wrong("--link-gbps is out of range; give a bandwidth from 0.001 to 1e6")
            }
            _ if !(1..=1024).contains(&link.clients) => {
                Err(Error::bad_input(format!("--clients is {}; use 1 to 1024", link.clients)))
            }
            _ => Ok(()),
        }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    index: Named<'a>,
    /// Memory nodes that were searched; empty where the folder was.
    memory: &'a [String],
    queries: Named<'a>,
    rows: u64,
    dim: usize,
    clusters: u32,
    nprobe: u32,
    batch: usize,
    doorbell: usize,
    cache_share: f64,
    threads: usize,
    meta_bytes: u64,
    /// Every scheme at one length of the beam (tables 1 and 2).
    breakdown: Vec<Measured>,
    /// Schemes over lengths of the beam (figure 6).
    curve: Vec<Measured>,
    /// Numbers of clusters (figure 7).
    partitions: Vec<AtPartitions>,
    /// Lengths of the doorbell, while single queries are searched too.
    doorbells: Doorbells,
    /// Room for fresh records, computed from exact counters.
    overflow: Vec<AtOverflow>,
    /// Fresh records, scanned or linked into the graph.
    fresh: Option<Fresh>,
    /// The cache, an exact LRU, and none.
    caches: Vec<AtStream>,
    /// Batches replayed with prices of a link.
    model: Model,
}

/// The index, its queries, and what all measurements share.
struct Bench<'a> {
    args: &'a Args,
    printer: &'a ProgressPrinter,
    index: Index,
    facts: RemoteFacts,
    row_bytes: usize,
    rows: Vec<u8>,
    truth: GroundTruth,
    nprobe: u32,
}

/// Measures them.
pub(super) fn run(args: &Args, output: Output) -> Result<Verdict> {
    args.remote.check()?;
    let plot = plot_path(args)?;
    let printer = ProgressPrinter::new(output);
    let mut bench = Bench::open(args, &printer, output)?;
    let mut breakdown = Vec::new();
    for k in bench.ks() {
        breakdown.extend(bench.compare(&LoadScheme::ALL, k, TABLE_EF)?);
    }
    let mut curve = Vec::new();
    for k in bench.ks() {
        for ef in EFS {
            curve.extend(bench.compare(&COMPARED, k, ef)?);
        }
    }
    let doorbells = bench.doorbells()?;
    let at_k = |of: &Measured| of.k == args.k;
    let own = breakdown.iter().find(|of| at_k(of) && of.scheme == LoadScheme::Own.name());
    let overflow = own.map_or_else(Vec::new, |own| AtOverflow::all(&bench.facts, own));
    let fresh = own.map(|own| bench.fresh(own)).transpose()?;
    let caches = bench.caches()?;
    let model = bench.model()?;
    let partitions = bench.partitions(output)?;
    let document = Document {
        index: Named(&args.base),
        memory: &args.remote.memory,
        queries: Named(&args.queries),
        rows: bench.index.manifest().rows,
        dim: bench.index.manifest().dim,
        clusters: bench.facts.clusters(),
        nprobe: bench.nprobe,
        batch: bench.batch_rows().len() / bench.row_bytes,
        doorbell: SearchOptions::default().batch_options.doorbell,
        cache_share: args.remote.share(),
        threads: bench.threads(),
        meta_bytes: bench.facts.meta_bytes,
        breakdown,
        curve,
        partitions,
        doorbells,
        overflow,
        fresh,
        caches,
        model,
    };
    printer.finish();
    if let Some(plot) = &plot {
        figure::draw(plot, &document)?;
    }
    output.result(&document, || text::text(&document))?;
    Ok(Verdict::Fine)
}

impl<'a> Bench<'a> {
    fn open(args: &'a Args, printer: &'a ProgressPrinter, output: Output) -> Result<Bench<'a>> {
        let (_, manifest) = Manifest::read(&args.base)?;
        let facts = facts_of(&args.base, &manifest)?;
        let memory = &args.remote.memory;
        let open = OpenOptions::default();
        let index = if memory.is_empty() {
            Index::open(&args.base, open)?
        } else {
            Index::open_memory(&found(memory)?, &args.remote.key.credentials(output)?, open)?
        };
        if index.manifest().blocks.checksum_seed != manifest.blocks.checksum_seed {
            return Err(Error::bad_input(format!(
                "{} hold another index than {}; load it with `stratann memory-node load`",
                memory.join(", "),
                args.base.display()
            )));
        }
        let queries = Queries::open(&args.queries, &manifest, output)?;
        let truth = GroundTruth::read(&args.groundtruth)?;
        if truth.queries() != queries.count() || truth.k < args.k || args.k == 0 {
            return Err(Error::bad_input(format!(
                "{} holds {} neighbours of {} queries, {} of {} are needed; compute it again",
                args.groundtruth.display(),
                truth.k,
                truth.queries(),
                args.k,
                queries.count()
            )));
        }
        let mut rows = Vec::new();
        queries.read(0, queries.count(), &mut rows)?;
        let row_bytes = queries.row_bytes();
        let mut bench = Bench { args, printer, index, facts, row_bytes, rows, truth, nprobe: 1 };
        bench.nprobe = bench.chosen_nprobe()?;
        let (truth, path) = (bench.truth.clone(), &args.groundtruth);
        if memory.is_empty() {
            bench.index.check_truth(truth, path, bench.sample_rows(), bench.threads(), printer)?;
        }
        Ok(bench)
    }

    /// Clusters to search: those of `--nprobe`, or of the curve at the last recall.
    fn chosen_nprobe(&self) -> Result<u32> {
        if let Some(nprobe) = self.args.nprobe {
            return Ok(nprobe);
        }
        let recall = self.args.recall.last().copied().unwrap_or(0.95);
        let options =
            SearchOptions { k: self.args.k, effort: Effort::Recall(recall), ..SearchOptions::default() };
        Ok(setting(&self.index.params(&options)?).effort)
    }

    /// One thread by default, so that the stages of a query add up to its time.
    fn threads(&self) -> usize {
        self.args.threads.iter().copied().max().unwrap_or(1).min(options::all_cores())
    }

    /// The numbers of results that are measured.
    fn ks(&self) -> Vec<usize> {
        if self.args.k == 1 { vec![1] } else { vec![1, self.args.k] }
    }

    /// The queries of one batch.
    fn batch_rows(&self) -> &[u8] {
        let count = self.args.remote.batch().min(self.rows.len() / self.row_bytes);
        &self.rows[..count * self.row_bytes]
    }

    /// The queries of schemes that search one at a time.
    fn sample_rows(&self) -> &[u8] {
        let count = self.args.sample.max(1).min(self.batch_rows().len() / self.row_bytes);
        &self.rows[..count * self.row_bytes]
    }
}

/// Facts of a `remote-hnsw` from its manifest.
///
/// # Errors
/// An index of another kind.
fn facts_of(folder: &Path, manifest: &Manifest) -> Result<RemoteFacts> {
    match manifest.section.remote() {
        Some(section) if manifest.kind() == Some(IndexKind::RemoteHnsw) => Ok(section.facts.clone()),
        _ => Err(Error::bad_input(format!(
            "{} is of kind {}; give an index of kind remote-hnsw",
            folder.display(),
            manifest.kind
        ))),
    }
}
