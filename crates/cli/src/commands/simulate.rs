//! `stratann simulate`: predicts how a cluster would serve an index.

use std::path::PathBuf;

use stratann_capacity::costs::{Origin, Prices};
use stratann_capacity::passes::{Entry, Passes};
use stratann_capacity::servers::{Mode, Scatter, Simulation};
use stratann_core::query::Params;
use stratann_core::query::wire::Carry;
use stratann_engine::dataset::GroundTruth;
use stratann_engine::exec::Width;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::kinds;
use stratann_engine::kinds::division::GridPartition;
use stratann_engine::kinds::known::IN_MEMORY_NODES;
use stratann_engine::kinds::known::facts;
use stratann_engine::search::{Effort, SearchOptions};
use stratann_engine::spread::PartitionOptions;
use stratann_params::choices::{EntryName, SimulatedMode};
use stratann_params::search::{BatchSettings, GraphSwitches, RemoteSwitches};
use stratann_params::simulate::{NodesSettings, RunSettings, ScatterSettings, ServerCosts, SimulateSettings};
use stratann_params::{Given, Place, Stage};
use stratann_storage::{Error, Progress, Result};

use crate::output::Output;
use crate::parameters::{Parameters, Rows};
use crate::progress::ProgressPrinter;
use crate::queries::Queries;
use crate::{Verdict, options};

mod check;
mod costs;
mod memory;
mod rows;

use check::check;
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
    #[command(flatten)]
    table: Parameters<SimulateRows>,
}

/// The table's options of simulations.
struct SimulateRows;

impl Rows for SimulateRows {
    const STAGES: &'static [Stage] = &[Stage::Simulate];
}

/// Typed options of a simulation of servers.
struct Settings {
    run: RunSettings,
    servers: SimulateSettings,
    scatter: ScatterSettings,
    costs: ServerCosts,
    /// Replicas, overlap, method and seed of the partition, and its plan.
    partition: PartitionOptions,
}

impl Settings {
    fn read(given: &Given) -> Settings {
        let mut servers: SimulateSettings = given.read();
        if servers.mode.is_empty() {
            servers.mode.push(SimulatedMode::Baton);
        }
        let grid = GridPartition { mode: servers.partition.into(), ..GridPartition::default() };
        let partition = PartitionOptions { grid, ..PartitionOptions::read(given, 1) };
        Settings { run: given.read(), servers, scatter: given.read(), costs: given.read(), partition }
    }
}

fn mode(name: SimulatedMode) -> Mode {
    match name {
        SimulatedMode::Baton => Mode::Baton,
        SimulatedMode::Score => Mode::Score,
        SimulatedMode::Forward => Mode::Forward,
        SimulatedMode::ScatterGather => Mode::ScatterGather,
        SimulatedMode::Fetch => Mode::Fetch,
    }
}

fn entry(name: EntryName) -> Entry {
    match name {
        EntryName::Any => Entry::Any,
        EntryName::Nearest => Entry::Nearest,
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

/// Reads the ground truth, if there is one, and compares it with the index.
fn truth(
    run: &RunSettings,
    index: &Index,
    queries: &Queries,
    printer: &ProgressPrinter,
) -> Result<Option<GroundTruth>> {
    let Some(path) = run.groundtruth.as_deref() else { return Ok(None) };
    let rows = index.manifest().rows;
    let truth = crate::truth::read(path, queries, run.k, rows, rows)?.truth().clone();
    let mut rows = Vec::new();
    queries.read(0, queries.count(), &mut rows)?;
    index.check_truth(truth.clone(), path, &rows, options::all_cores(), printer)?;
    Ok(Some(truth))
}

/// Runs `stratann simulate`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    let given = &args.table.given;
    let efforts = given.runs();
    let [own] = efforts.as_slice() else {
        return Err(Error::bad_input("simulate takes one --recall, --search-list or --nprobe"));
    };
    let effort = Effort::read(&own.read());
    // A server has no room for the lists of others: none is resident, and every visit counts.
    let mut index = Index::open(&args.index, OpenOptions { head_budget: Some(0), ..OpenOptions::default() })?;
    let kind = index.manifest().kind();
    if let Some(kind) = kind.filter(|&kind| facts(kind).is_spreadable || kind == IN_MEMORY_NODES) {
        args.table.check([kind], Place::Folder)?;
    }
    if kind == Some(IN_MEMORY_NODES) {
        return run_memory(args, effort, &mut index, output);
    }
    let settings = Settings::read(given);
    check(&settings, kind)?;
    let queries = Queries::open(&args.queries, index.manifest(), output)?;
    let patience = given.read::<GraphSwitches>().patience;
    let switches = GraphSwitches { patience, ..GraphSwitches::default() };
    let Settings { run, servers, .. } = &settings;
    let options = SearchOptions { k: run.k, effort, switches: switches.into(), ..SearchOptions::default() };
    let mut params = index.params(&options)?;
    (params.width, params.approach_width) = (servers.width, servers.width);
    let carry = index.carry(servers.carry.map(options::carry))?;
    let printer = ProgressPrinter::new(output);
    let truth = truth(run, &index, &queries, &printer)?;
    let passes = Passes {
        index: &index,
        queries: &queries,
        truth: truth.as_ref(),
        entry: entry(servers.entry),
        seed: settings.partition.seed,
        carry,
        results: options::results(servers.results),
        progress: &printer,
    };
    let modes: Vec<Mode> = servers.mode.iter().map(|&name| mode(name)).collect();
    let simulation = Simulation {
        folder: &args.index,
        params,
        passes,
        search: SearchOptions { width: Width::Fixed(servers.width), ..options },
        modes: &modes,
        partition: settings.partition.clone(),
        scatter: Scatter {
            partitions: settings.scatter.partitions.clone(),
            search_list: settings.scatter.partition_list,
            matches_recall: settings.scatter.match_recall,
        },
        rates: &servers.rate,
        in_flight: servers.in_flight,
    };
    // Impossible combinations are refused before anything is measured.
    simulation.check(&servers.servers)?;
    let prices = prices(&settings, &simulation)?;
    note_what_is_not_measured(&servers.servers, prices.as_ref(), &printer);
    let calibrated = prices.as_ref().filter(|_| settings.costs.calibrate);
    let calibration = calibrated.map(|prices| simulation.compare(prices)).transpose()?;
    let runs = rows(&simulation, &servers.servers, prices.as_ref())?;
    printer.finish();
    let failed = runs.iter().any(|r| r.failed_queries > 0);
    let document =
        Document { params: params_json(&settings, &params, carry), costs: prices, calibration, runs };
    output.result(&document, || text(&document))?;
    if failed { Err(Error::corrupt("some queries failed; run `stratann verify`")) } else { Ok(Verdict::Fine) }
}

/// The parameters, for the report.
fn params_json(settings: &Settings, params: &Params, carry: Carry) -> serde_json::Value {
    let Settings { servers, partition, .. } = settings;
    serde_json::json!({
        "k": params.k, "search_list": kinds::setting(params).search_list, "width": params.width,
        "replicas": partition.replicas, "overlap": partition.overlap,
        "entry": servers.entry.name(), "seed": partition.seed,
        "carry": options::carry_name(carry), "results": servers.results.name(),
    })
}

/// Simulates the compute nodes and memory nodes of an index that memory nodes hold.
fn run_memory(args: &Args, effort: Effort, index: &mut Index, output: Output) -> Result<Verdict> {
    let given = &args.table.given;
    let (nodes, run): (NodesSettings, RunSettings) = (given.read(), given.read());
    if nodes.compute_nodes.is_empty() {
        return Err(Error::bad_input(format!(
            "a {} has compute nodes; give --compute-nodes, such as 1,2,4,8",
            IN_MEMORY_NODES.name()
        )));
    }
    let queries = Queries::open(&args.queries, index.manifest(), output)?;
    let printer = ProgressPrinter::new(output);
    let truth = truth(&run, index, &queries, &printer)?;
    // The ways to load are in turn, and none is that of every run.
    let batches = BatchSettings { baseline: None, ..given.read() };
    let switches: RemoteSwitches = given.read();
    let search = SearchOptions {
        k: run.k,
        effort,
        batch_options: batches.into(),
        switches: switches.into(),
        ..SearchOptions::default()
    };
    let seed = PartitionOptions::read(given, 1).seed;
    let job = memory::Job { nodes: &nodes, run: &run, queries: &queries, truth, search, seed };
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

/// Prices from the file, or measured; `None` without times.
fn prices(settings: &Settings, simulation: &Simulation<'_>) -> Result<Option<Prices>> {
    if settings.costs.no_times {
        return Ok(None);
    }
    let given = costs::given(&settings.run, &settings.costs);
    let prices = match &settings.run.costs {
        Some(path) => Prices::read(path)?,
        None => {
            let most = settings.servers.servers.iter().copied().max().unwrap_or(1);
            simulation.measure(most, &given)?
        }
    };
    prices.with(&given).map(Some)
}

/// Times that rest on something else than measurements are never silent.
fn note_what_is_not_measured(servers: &[usize], prices: Option<&Prices>, printer: &ProgressPrinter) {
    let Some(prices) = prices else { return };
    let is_assumed = [prices.network_latency_from, prices.network_gbps_from].contains(&Origin::Assumed);
    if is_assumed && servers.iter().any(|&n| n > 1) {
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
