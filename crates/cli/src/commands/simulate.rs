//! `stratann simulate`: predicts how a cluster would serve an index.

use std::path::{Path, PathBuf};

use stratann_core::query::Remote;
use stratann_core::query::{MAX_SEARCH_LIST, Params};
use stratann_engine::dataset::GroundTruth;
use stratann_engine::driver::Width;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::kinds;
use stratann_engine::kinds::division::{GridPartition, Mode};
use stratann_engine::kinds::kind::Kind;
use stratann_engine::kinds::options::GraphSwitches;
use stratann_engine::search::{Effort, IN_FLIGHT, Latency, SearchOptions};
use stratann_engine::spread::{self, PartitionOptions, scatter};
use stratann_engine::{Error, Progress, Result};
use stratann_sim::{Costs, Load, Timing, Trace, replay};

use super::cluster::{MethodName, PlanName};
use crate::Verdict;
use crate::options::{self, CarryName, ResultsName};
use crate::output::Output;
use crate::progress::ProgressPrinter;
use crate::queries::Queries;

pub mod calibrate;
mod check;
pub mod costs;
pub mod memory;
pub mod passes;
mod rows;
mod sockets;

use calibrate::{Comparison, OneServer};
use check::check;
use costs::{CostArgs, Origin, Prices};
use memory::MemoryArgs;
use passes::{Pass, Passes};
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
    entry: Entry,
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

impl ModeName {
    /// How lists and vectors of other servers are used.
    fn remote(self) -> Remote {
        match self {
            ModeName::Score => Remote::Score,
            ModeName::Forward => Remote::Forward,
            ModeName::Baton | ModeName::ScatterGather | ModeName::Fetch => Remote::HandOver,
        }
    }

    fn name(self) -> &'static str {
        match self {
            ModeName::Baton => "baton",
            ModeName::Score => "score",
            ModeName::Forward => "forward",
            ModeName::ScatterGather => "scatter-gather",
            ModeName::Fetch => "fetch",
        }
    }
}

/// `--entry`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Entry {
    /// Round robin.
    Any,
    /// A server that holds the first block: a client that knows the head graph could choose it.
    Nearest,
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

/// Largest loss of a matched recall.
const RECALL_TOLERANCE: f64 = 0.002;
/// Least share of processor or disk that a search uses when nothing else runs.
const BUSY_SHARE: f64 = 0.6;
/// Queries in flight per thread for the highest throughput: enough to keep all servers busy, and few enough that the
/// queue of the busiest server soon reaches its final length.
pub const IN_FLIGHT_EACH: usize = 16;
/// Queries that are replayed: with random arrivals, and at least with a constant number in flight, there this many
/// times that number.
const QUERIES_OPEN: usize = 10_000;
pub const QUERIES_CLOSED: usize = 4_000;
pub const ROUNDS_CLOSED: usize = 64;

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
    let switches = GraphSwitches { patience: args.effort.patience, ..GraphSwitches::default() };
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
        entry: args.entry,
        seed: args.seed,
        carry,
        results: args.results.unwrap_or_default().into(),
        progress: &printer,
    };
    let mut job = Job { args, params, passes, search: options, prices: None, printer: &printer };
    // Impossible combinations are refused before anything is measured.
    args.servers.iter().try_for_each(|&n| spread::check_place(&index, &job.spread(n)))?;
    job.prices = job.prices()?;
    job.note_what_is_not_measured();
    let calibration = job.compare()?;
    let runs = args.servers.iter().map(|&n| job.run(n)).collect::<Result<Vec<_>>>()?.into_iter().flatten();
    let runs: Vec<Row> = runs.collect();
    printer.finish();
    let failed = runs.iter().any(|r| r.failed_queries > 0);
    let document = Document {
        params: serde_json::json!({
            "k": params.k, "search_list": kinds::setting(&params).search_list, "width": params.width,
            "replicas": args.replicas,
            "overlap": args.overlap, "entry": format!("{:?}", args.entry).to_lowercase(), "seed": args.seed,
            "carry": options::carry_name(carry), "results": args.results.unwrap_or_default().name(),
        }),
        costs: job.prices,
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

struct Job<'a> {
    args: &'a Args,
    params: Params,
    passes: Passes<'a>,
    search: SearchOptions,
    prices: Option<Prices>,
    printer: &'a ProgressPrinter,
}

impl Job<'_> {
    fn spread(&self, servers: usize) -> PartitionOptions {
        PartitionOptions {
            replicas: self.args.replicas.min(servers.max(1)),
            overlap: if servers > 1 { self.args.overlap } else { 0.0 },
            method: self.args.method.into(),
            grid: GridPartition {
                mode: self.args.partition.map_or(Mode::default(), Mode::from),
                ..GridPartition::default()
            },
            seed: self.args.seed,
            ..PartitionOptions::new(servers)
        }
    }

    /// From the file, or measured; `None` without times.
    fn prices(&self) -> Result<Option<Prices>> {
        let args = &self.args.times;
        if args.no_times {
            return Ok(None);
        }
        let prices = match &args.costs {
            Some(path) => Prices::read(path)?,
            None => self.measure()?,
        };
        prices.with(args).map(Some)
    }

    /// Measures costs on this machine, with the largest number of servers.
    fn measure(&self) -> Result<Prices> {
        let sample = self.sample()?;
        let most = self.args.servers.iter().copied().max().unwrap_or(1);
        let placements = [1, most].map(|n| spread::place(self.passes.index, &self.spread(n), self.printer));
        let [one, all] = placements;
        let scores = self.args.mode.iter().map(|mode| mode.remote()).find(|&r| r != Remote::HandOver);
        let params = scores.map_or(self.params, |remote| kinds::with_remote(self.params, remote));
        let placements = [one?, all?];
        let measured = calibrate::Measured {
            passes: &self.passes,
            rows: &sample,
            params,
            search: self.real_search(),
            placements: &placements,
        };
        measured.prices(&self.args.times, self.printer)
    }

    fn real_search(&self) -> SearchOptions {
        SearchOptions { width: Width::Fixed(self.args.width), ..self.search }
    }

    /// Times that rest on something else than measurements are never silent.
    fn note_what_is_not_measured(&self) {
        let Some(prices) = &self.prices else { return };
        let is_assumed = [prices.network_latency_from, prices.network_gbps_from].contains(&Origin::Assumed);
        if is_assumed && self.args.servers.iter().any(|&n| n > 1) {
            self.printer.note(&format!(
                "note: the network is assumed: {} us, {} Gbit/s; measure it with `stratann doctor --link`, or give it",
                prices.network_latency_us, prices.network_gbps
            ));
        }
        if prices.disk_mb_per_s.is_none() {
            self.printer.note(
                "note: the costs have no disk_mb_per_s, so long reads take no longer than short ones; give \
                 --disk-mb-per-s",
            );
        }
    }

    /// The first queries.
    fn sample(&self) -> Result<Vec<u8>> {
        let mut rows = Vec::new();
        let queries = self.passes.queries;
        queries.read(0, queries.count().min(1000), &mut rows)?;
        Ok(rows)
    }

    /// Compares one simulated server with a real search, on request.
    fn compare(&self) -> Result<Option<Comparison>> {
        let Some(prices) = self.prices.as_ref().filter(|_| self.args.times.calibrate) else {
            return Ok(None);
        };
        let threads = prices.threads.min(options::all_cores());
        let options = SearchOptions { threads, ..self.real_search() };
        let real = calibrate::search(self.passes.index, &self.sample()?, &options, self.printer)?;
        let here = spread::place(self.passes.index, &self.spread(1), self.printer)?;
        let pass = self.passes.baton(&here, self.params)?;
        // This process has no clients, and the machine for itself.
        let alone = Prices {
            threads,
            request_us: 0.0,
            servers_per_host: None,
            cores_per_host: None,
            ..prices.clone()
        };
        let costs = alone.costs();
        let timing = self.most(&pass.traces, &costs, IN_FLIGHT * threads, 1);
        let simulated = OneServer {
            qps: timing.qps,
            latency_us: Latency::of(&timing.latency_ns),
            cpu_us: cpu_us(&pass.traces, &costs) + timing.wakes_ns / 1000.0,
        };
        // Otherwise other programs used the processor or the disk during the real search.
        let threads_used = real.qps * real.cpu_us / 1e6 / threads as f64;
        let disk_used = real.qps * pass.stats.reads as f64 / pass.queries.max(1) as f64 / prices.disk_iops;
        if threads_used.max(disk_used) < BUSY_SHARE {
            self.printer
                .note("note: this machine was busy with other work; compare the CPU times, not the rates");
        }
        Ok(Some(Comparison { qps_error: simulated.qps / real.qps - 1.0, real, simulated }))
    }

    /// Runs all modes and loads with one number of servers.
    fn run(&self, servers: usize) -> Result<Vec<Row>> {
        let modes = &self.args.mode;
        let matches = self.args.scatter.match_recall;
        let needs_placement = matches || modes.iter().any(|&m| m != ModeName::ScatterGather);
        let placement = needs_placement
            .then(|| spread::place(self.passes.index, &self.spread(servers), self.printer))
            .transpose()?;
        let mut handed_over = None;
        if let Some(placement) = placement.as_ref().filter(|_| matches || modes.contains(&ModeName::Baton)) {
            handed_over = Some(self.passes.baton(placement, self.params)?);
        }
        let mut rows = Vec::new();
        for &mode in modes {
            let other = match mode {
                ModeName::Baton => None,
                ModeName::Score | ModeName::Forward => {
                    let params = kinds::with_remote(self.params, mode.remote());
                    placement.as_ref().map(|p| self.passes.baton(p, params)).transpose()?
                }
                ModeName::ScatterGather => Some(self.scatter(servers, handed_over.as_ref())?),
                ModeName::Fetch => {
                    placement.as_ref().map(|p| self.passes.fetch(p, self.params)).transpose()?
                }
            };
            if let Some(pass) = other.as_ref().or(handed_over.as_ref()) {
                rows.extend(self.rows(mode, pass, servers));
            }
        }
        Ok(rows)
    }

    /// Adds one row per load.
    fn rows(&self, mode: ModeName, pass: &Pass, servers: usize) -> Vec<Row> {
        let row = || Row::new(mode, pass, self.passes.truth.is_some());
        let Some(costs) = self.prices.as_ref().map(Prices::costs) else { return vec![row()] };
        let mut loads: Vec<Option<f64>> = self.args.rate.iter().copied().map(Some).collect();
        if loads.is_empty() {
            loads.push(None);
        }
        let cpu_us = cpu_us(&pass.traces, &costs);
        let timed = |rate: Option<f64>| {
            let timing = self.replay(&pass.traces, servers, &costs, rate);
            row().timed(rate, &timing, cpu_us + timing.wakes_ns / 1000.0)
        };
        loads.into_iter().map(timed).collect()
    }

    fn replay(&self, traces: &[Trace], servers: usize, costs: &Costs, rate: Option<f64>) -> Timing {
        match rate {
            Some(per_second) => {
                replay(traces, servers, costs, Load::Open { per_second }, QUERIES_OPEN, self.args.seed)
            }
            None => {
                let in_flight = self.args.in_flight.unwrap_or(IN_FLIGHT_EACH * costs.threads * servers);
                self.most(traces, costs, in_flight, servers)
            }
        }
    }

    /// Runs at the highest throughput.
    fn most(&self, traces: &[Trace], costs: &Costs, in_flight: usize, servers: usize) -> Timing {
        let queries = (ROUNDS_CLOSED * in_flight).max(QUERIES_CLOSED);
        replay(traces, servers, costs, Load::Closed { in_flight }, queries, self.args.seed)
    }

    fn scatter(&self, servers: usize, handed_over: Option<&Pass>) -> Result<Pass> {
        if servers == 1 {
            return self.scattered(&[self.passes.index], handed_over);
        }
        let built;
        let folder = match &self.args.scatter.partitions {
            Some(folder) => folder.as_path(),
            None => {
                built = Temporary::new(servers);
                let options = PartitionOptions { replicas: 1, overlap: 0.0, ..self.spread(servers) };
                scatter::scatter(&self.args.index, &built.0, (&options, servers), self.printer)?;
                built.0.as_path()
            }
        };
        let (description, indexes) = scatter::open(folder, self.passes.index.manifest())?;
        if description.servers != servers {
            return Err(Error::bad_input(format!(
                "{} is for {} servers; give --servers {}",
                folder.display(),
                description.servers,
                description.servers
            )));
        }
        let indexes: Vec<&Index> = indexes.iter().collect();
        self.scattered(&indexes, handed_over)
    }

    fn scattered(&self, indexes: &[&Index], handed_over: Option<&Pass>) -> Result<Pass> {
        let pass = |list: u32| self.passes.scatter(indexes, self.with_list(list));
        let longest = kinds::setting(&self.params).search_list;
        let Some(target) = handed_over.filter(|_| self.args.scatter.match_recall).map(Pass::recall) else {
            return pass(self.args.scatter.partition_list.unwrap_or(longest));
        };
        let is_enough = |pass: &Pass| pass.recall() >= target - RECALL_TOLERANCE;
        let (mut low, mut best) = (self.params.k, pass(longest)?);
        while !is_enough(&best) && best.search_list < MAX_SEARCH_LIST {
            low = best.search_list + 1;
            best = pass(best.search_list.saturating_mul(2).min(MAX_SEARCH_LIST))?;
        }
        // The shortest sufficient list is between `low` and that of `best`.
        while low < best.search_list && is_enough(&best) {
            let tried = pass(low + (best.search_list - low) / 2)?;
            if is_enough(&tried) {
                best = tried;
            } else {
                low = tried.search_list + 1;
            }
        }
        Ok(best)
    }

    /// Returns the same search with another beam; patience is a share of it.
    fn with_list(&self, list: u32) -> Params {
        let list = list.clamp(self.params.k, MAX_SEARCH_LIST);
        let used = kinds::setting(&self.params);
        let patience = u64::from(used.patience) * u64::from(list);
        let patience = patience.div_ceil(u64::from(used.search_list.max(1))) as u32;
        let longer = kinds::Setting { effort: list, search_list: list, patience, ..used };
        Params { kind: kinds::with_setting(&self.params, &longer), ..self.params }
    }
}

/// Mean processor time of a query on all servers, microseconds.
pub fn cpu_us(traces: &[Trace], costs: &Costs) -> f64 {
    let all_ns: u64 = traces.iter().map(|trace| costs.work_ns(&trace.work())).sum();
    all_ns as f64 / 1000.0 / traces.len().max(1) as f64
}

/// A folder that is removed on drop.
struct Temporary(PathBuf);

impl Temporary {
    fn new(servers: usize) -> Temporary {
        Temporary(std::env::temp_dir().join(format!("stratann-scatter-{servers}-{}", std::process::id())))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // A folder that cannot be removed is left.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
