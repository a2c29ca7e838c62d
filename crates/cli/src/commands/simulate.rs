//! `stratann simulate`: predicts how a cluster would serve an index.

use std::path::{Path, PathBuf};
use stratann_params::search::GraphSwitches;

use stratann_capacity::costs::{Origin, Prices};
use stratann_capacity::passes::{Entry, Passes};
use stratann_capacity::servers::{Mode, Scatter, Simulation};
use stratann_engine::dataset::GroundTruth;
use stratann_engine::exec::Width;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::kinds;
use stratann_engine::kinds::division::{self, GridPartition};
use stratann_engine::kinds::kind::Kind;
use stratann_engine::search::{Effort, SearchOptions};
use stratann_engine::spread::PartitionOptions;
use stratann_storage::{Error, Progress, Result};

use super::cluster::{MethodName, PlanName};
use crate::Verdict;
use crate::options::{self, CarryName, ResultsName};
use crate::output::Output;
use crate::progress::ProgressPrinter;
use crate::queries::Queries;

mod check;
mod costs;
mod memory;
mod rows;

use check::check;
use costs::CostArgs;
use memory::MemoryArgs;
use rows::{Document, Row, text};

/// Predict throughput and latency on N servers
///
/// Partitions the index as `cluster partition` does, in memory only, and runs the queries through a simulated cluster,
/// with the real search and the real protocol between servers. All counters are exact. Times are simulated: the work of
/// the queries is replayed on servers with threads, a disk and a link, at costs that are measured on this machine in a
/// second or two, or given.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Folder of the index
    index: PathBuf,
    /// Queries, in any vector format
    queries: PathBuf,
    /// Numbers of servers, such as 1,4,10
    #[arg(long, value_name = "N,…", value_delimiter = ',', required_unless_present = "compute_nodes")]
    servers: Vec<usize>,
    /// Modes to simulate, in turn
    #[arg(long, value_enum, value_delimiter = ',', default_value = "baton", value_name = "MODE,…")]
    mode: Vec<ModeName>,
    /// Mean arrival rate, queries per second; several values make one run each [default: as many as the servers can
    /// take]
    ///
    /// Queries arrive at random times (Poisson), whether or not earlier ones are answered. Without a rate, 16 queries
    /// per thread are in flight, which finds the highest throughput.
    #[arg(long, value_name = "R,…", value_delimiter = ',')]
    rate: Vec<f64>,
    /// Queries in flight in the whole cluster, without --rate [default: 16 per thread]
    #[arg(long, value_name = "N", conflicts_with = "rate", value_parser = options::in_flight)]
    in_flight: Option<usize>,
    /// Servers that hold each block
    #[arg(long, default_value_t = 1, value_name = "R")]
    replicas: usize,
    /// Share of the blocks with one additional replica
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, hide_default_value = true)]
    overlap: f64,
    /// Plan of a grid-ivf [default: harmony]
    #[arg(long, value_enum, value_name = "MODE")]
    partition: Option<PlanName>,
    /// Partitioning method
    #[arg(long, value_enum, default_value = "cells")]
    method: MethodName,
    /// Server that receives a query; the way from there counts as a hand-over
    #[arg(long, value_enum, default_value = "any")]
    entry: EntryName,
    /// Results per query
    #[arg(short, default_value_t = 10)]
    k: usize,
    #[command(flatten)]
    effort: options::Effort,
    /// Concurrent reads of a query
    #[arg(long, default_value_t = 1, value_name = "N")]
    width: u32,
    /// What a hand-over contains of its candidates [default: ids; distances where codes are on disk]
    #[arg(long, value_enum)]
    carry: Option<CarryName>,
    /// Where partial results go at a hand-over [default: along]
    #[arg(long, value_enum)]
    results: Option<ResultsName>,
    /// Ground truth from `stratann groundtruth`, to measure recall@k
    #[arg(long, value_name = "GT")]
    groundtruth: Option<PathBuf>,
    /// Seed of the partition, of all delays and of arrivals
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    scatter: ScatterArgs,
    #[command(flatten)]
    times: CostArgs,
    #[command(flatten)]
    memory: MemoryArgs,
}

/// Options of `--mode scatter-gather`.
#[derive(clap::Args)]
#[command(next_help_heading = "Scatter-gather")]
struct ScatterArgs {
    /// Separate indexes from `cluster partition --scatter-gather` [default: built in the folder for temporary files]
    #[arg(long, value_name = "DIR")]
    partitions: Option<PathBuf>,
    /// Length of the beam on each server [default: that of the single index]
    #[arg(long, value_name = "L")]
    partition_list: Option<u32>,
    /// Find the shortest beam whose merged results have the recall of --mode baton, less at most 0.002
    #[arg(long, requires = "groundtruth", conflicts_with = "partition_list")]
    match_recall: bool,
}

/// `--mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ModeName {
    /// One index; a query is handed over to the server that holds its next blocks.
    Baton,
    /// One index; lists and vectors of other servers are scored there, those of all servers at once (hybrid-ivf).
    Score,
    /// As score, but one job visits the servers one after another, and the last replies (hybrid-ivf).
    Forward,
    /// One index per server; a query is sent to all, and the origin merges their results.
    ScatterGather,
    /// One index; a query stays on one server and fetches remote blocks.
    Fetch,
}

impl From<ModeName> for Mode {
    fn from(name: ModeName) -> Mode {
        match name {
            ModeName::Baton => Mode::Baton,
            ModeName::Score => Mode::Score,
            ModeName::Forward => Mode::Forward,
            ModeName::ScatterGather => Mode::ScatterGather,
            ModeName::Fetch => Mode::Fetch,
        }
    }
}

impl ScatterArgs {
    fn scatter(&self) -> Scatter {
        Scatter {
            partitions: self.partitions.clone(),
            search_list: self.partition_list,
            matches_recall: self.match_recall,
        }
    }
}

/// `--entry`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum EntryName {
    /// Round robin.
    Any,
    /// A server that holds the first block: a client that knows the head graph could choose it.
    Nearest,
}

impl From<EntryName> for Entry {
    fn from(name: EntryName) -> Entry {
        match name {
            EntryName::Any => Entry::Any,
            EntryName::Nearest => Entry::Nearest,
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  stratann simulate base.idx query.fbin --servers 1,5,10 --groundtruth truth.ibin --search-list 60
  stratann simulate base.idx query.fbin --servers 10 --replicas 2 --width 8 --recall 0.95
  stratann simulate base.idx query.fbin --servers 5,10 --mode baton,scatter-gather --match-recall \\
    --groundtruth truth.ibin --json
  stratann simulate base.idx query.fbin --servers 10 --rate 1000,5000,20000 --threads 8 \\
    --disk-iops 300000 --disk-latency-us 90
  stratann simulate base.idx query.fbin --servers 1 --calibrate           # how far is the model off?
  stratann simulate remote.idx query.fbin --compute-nodes 1,2,4,8 --baseline none,naive";

/// Reads the ground truth and compares it with the index.
fn truth(
    args: &Args,
    path: &Path,
    index: &Index,
    queries: &Queries,
    printer: &ProgressPrinter,
) -> Result<GroundTruth> {
    let truth = crate::truth::read(path, queries, args.k, index.manifest().rows)?.truth().clone();
    let mut rows = Vec::new();
    queries.read(0, queries.count(), &mut rows)?;
    index.check_truth(truth.clone(), path, &rows, options::all_cores(), printer)?;
    Ok(truth)
}

/// Runs `stratann simulate`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    let efforts = args.effort.each();
    let &[effort] = efforts.as_slice() else {
        return Err(Error::bad_input("simulate takes one --recall, --search-list or --nprobe"));
    };
    // A server has no room for the lists of others: none is resident, and every visit counts.
    let mut index = Index::open(&args.index, OpenOptions { head_budget: Some(0), ..OpenOptions::default() })?;
    check(args, index.manifest().kind())?;
    if index.manifest().kind() == Some(Kind::RemoteHnsw) {
        return run_memory(args, effort, &mut index, output);
    }
    let queries = Queries::open(&args.queries, index.manifest(), output)?;
    let switches = GraphSwitches { patience: args.effort.patience(), ..GraphSwitches::default() };
    let options = SearchOptions { k: args.k, effort, switches: switches.into(), ..SearchOptions::default() };
    let mut params = index.params(&options)?;
    (params.width, params.approach_width) = (args.width, args.width);
    if !params.is_valid() {
        return Err(Error::bad_input(format!("--width is {}; use 1 to 64", args.width)));
    }
    let carry = index.carry(args.carry.map(Into::into))?;
    let printer = ProgressPrinter::new(output);
    let truth =
        args.groundtruth.as_deref().map(|path| truth(args, path, &index, &queries, &printer)).transpose()?;
    let passes = Passes {
        index: &index,
        queries: &queries,
        truth: truth.as_ref(),
        entry: args.entry.into(),
        seed: args.seed,
        carry,
        results: args.results.unwrap_or_default().into(),
        progress: &printer,
    };
    let modes: Vec<Mode> = args.mode.iter().map(|&mode| mode.into()).collect();
    let simulation = Simulation {
        folder: &args.index,
        params,
        passes,
        search: SearchOptions { width: Width::Fixed(args.width), ..options },
        modes: &modes,
        partition: partition(args),
        scatter: args.scatter.scatter(),
        rates: &args.rate,
        in_flight: args.in_flight,
    };
    // Impossible combinations are refused before anything is measured.
    simulation.check(&args.servers)?;
    let prices = prices(args, &simulation)?;
    note_what_is_not_measured(args, prices.as_ref(), &printer);
    let calibrated = prices.as_ref().filter(|_| args.times.calibrate);
    let calibration = calibrated.map(|prices| simulation.compare(prices)).transpose()?;
    let runs = rows(&simulation, &args.servers, prices.as_ref())?;
    printer.finish();
    let failed = runs.iter().any(|r| r.failed_queries > 0);
    let document = Document {
        params: serde_json::json!({
            "k": params.k, "search_list": kinds::setting(&params).search_list, "width": params.width,
            "replicas": args.replicas,
            "overlap": args.overlap, "entry": format!("{:?}", args.entry).to_lowercase(), "seed": args.seed,
            "carry": options::carry_name(carry), "results": args.results.unwrap_or_default().name(),
        }),
        costs: prices,
        calibration,
        runs,
    };
    output.result(&document, || text(&document))?;
    if failed { Err(Error::corrupt("some queries failed; run `stratann verify`")) } else { Ok(Verdict::Fine) }
}

/// Simulates the compute nodes and memory nodes of a `remote-hnsw`.
fn run_memory(args: &Args, effort: Effort, index: &mut Index, output: Output) -> Result<Verdict> {
    let queries = Queries::open(&args.queries, index.manifest(), output)?;
    let printer = ProgressPrinter::new(output);
    let truth =
        args.groundtruth.as_deref().map(|path| truth(args, path, index, &queries, &printer)).transpose()?;
    let search = SearchOptions { k: args.k, effort, ..SearchOptions::default() };
    let job = memory::Job {
        args: &args.memory,
        times: &args.times,
        queries: &queries,
        truth,
        search,
        seed: args.seed,
    };
    memory::run(job, index, &printer, output)
}

/// The rows of all numbers of servers.
fn rows(simulation: &Simulation<'_>, servers: &[usize], prices: Option<&Prices>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for &servers in servers {
        let outcomes = simulation.run(servers, prices)?;
        let has_truth = simulation.passes.truth.is_some();
        rows.extend(outcomes.iter().flat_map(|outcome| Row::all(outcome, has_truth)));
    }
    Ok(rows)
}

/// How the index is divided over servers.
fn partition(args: &Args) -> PartitionOptions {
    PartitionOptions {
        replicas: args.replicas,
        overlap: args.overlap,
        method: args.method.into(),
        grid: GridPartition {
            mode: args.partition.map_or(division::Mode::default(), division::Mode::from),
            ..GridPartition::default()
        },
        seed: args.seed,
        ..PartitionOptions::new(1)
    }
}

/// From the file, or measured; `None` without times.
fn prices(args: &Args, simulation: &Simulation<'_>) -> Result<Option<Prices>> {
    if args.times.no_times {
        return Ok(None);
    }
    let given = args.times.given();
    let prices = match &args.times.costs {
        Some(path) => Prices::read(path)?,
        None => simulation.measure(args.servers.iter().copied().max().unwrap_or(1), &given)?,
    };
    prices.with(&given).map(Some)
}

/// Times that rest on something else than measurements are never silent.
fn note_what_is_not_measured(args: &Args, prices: Option<&Prices>, printer: &ProgressPrinter) {
    let Some(prices) = prices else { return };
    let is_assumed = [prices.network_latency_from, prices.network_gbps_from].contains(&Origin::Assumed);
    if is_assumed && args.servers.iter().any(|&n| n > 1) {
        printer.note(&format!(
            "note: the network is assumed: {} us, {} Gbit/s; measure it with `stratann doctor --link`, or give it",
            prices.network_latency_us, prices.network_gbps
        ));
    }
    if prices.disk_mb_per_s.is_none() {
        printer.note(
            "note: the costs have no disk_mb_per_s, so long reads take no longer than short ones; give \
             --disk-mb-per-s",
        );
    }
}
