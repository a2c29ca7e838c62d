//! Compute nodes and memory nodes of a `remote-hnsw`: the same queries on several numbers of compute nodes, and with
//! several ways to load clusters.

use serde::Serialize;
use stratann_capacity::memory_nodes::prices::LoadPrices;
use stratann_capacity::memory_nodes::recorded::{LoadWay, Recorder};
use stratann_capacity::memory_nodes::rows::{Against, Nodes, Row};
use stratann_engine::dataset::GroundTruth;
use stratann_engine::exec::GatherOptions;
use stratann_engine::index::Index;
use stratann_engine::kinds;
use stratann_engine::search::SearchOptions;
use stratann_storage::{Error, Result};

use super::costs::CostArgs;
use crate::gathering::RemoteTechniques;
use crate::output::Output;
use crate::progress::ProgressPrinter;
use crate::queries::Queries;
use crate::{Verdict, options};

#[cfg(feature = "lab")]
mod baseline;
mod text;

/// Options of compute nodes and memory nodes.
#[derive(clap::Args)]
#[command(next_help_heading = "Memory nodes (remote-hnsw)")]
pub(super) struct MemoryArgs {
    /// Numbers of compute nodes, such as 1,2,4,8
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    compute_nodes: Vec<usize>,
    /// Memory nodes that the groups are divided over [default: 1]
    #[arg(long, value_name = "N")]
    memory_nodes: Option<usize>,
    /// Clients of all compute nodes, each of which waits for its batch before it asks for the next [default: 24]
    #[arg(long, value_name = "N")]
    clients: Option<usize>,
    /// Batches that a compute node has under way at the same time, each with an equal share of its threads [default: 1]
    #[arg(long, value_name = "N")]
    batches_at_once: Option<usize>,
    /// Ways to load clusters, in turn; each is compared with naive where that is one of them [default: none]
    #[cfg(feature = "lab")]
    #[arg(long, value_enum, value_name = "NAME,…", value_delimiter = ',')]
    baseline: Vec<baseline::SchemeName>,
    #[cfg(not(feature = "lab"))]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', hide = true)]
    baseline: Vec<String>,
    /// Share of all clusters that the cache of a compute node has room for, 0 to 1 [default: 0.1]
    #[arg(long, value_name = "SHARE")]
    cache_share: Option<f64>,
    /// What a range of a doorbell costs the link of its memory node besides its bytes, nanoseconds [default: 50]
    #[arg(long, value_name = "NS")]
    range_ns: Option<u64>,
    #[command(flatten)]
    techniques: RemoteTechniques,
}

/// Most nodes and clients.
const NODES_MAX: usize = 1024;
const MEMORY_NODES_MAX: usize = 256;

impl MemoryArgs {
    /// Whether an option is given.
    pub(super) fn is_given(&self) -> bool {
        !self.compute_nodes.is_empty()
            || self.memory_nodes.is_some()
            || self.clients.is_some()
            || self.batches_at_once.is_some()
            || !self.baseline.is_empty()
            || self.cache_share.is_some()
            || self.range_ns.is_some()
            || self.techniques.is_given()
    }

    fn nodes(&self) -> Nodes {
        Nodes {
            memory_nodes: self.memory_nodes.unwrap_or(1),
            clients: self.clients.unwrap_or(24),
            at_once: self.batches_at_once.unwrap_or(1),
        }
    }

    fn share(&self) -> f64 {
        self.cache_share.unwrap_or(0.1)
    }

    /// Checks for numbers out of range, and for options of other kinds.
    pub(super) fn check(&self, times: &CostArgs) -> Result<()> {
        #[cfg(not(feature = "lab"))]
        if !self.baseline.is_empty() {
            return Err(Error::laboratory(&format!("--baseline {}", self.baseline.join(",")), "simulate"));
        }
        let wrong = |what: String| Err(Error::bad_input(what));
        let nodes = self.nodes();
        let counts = self.compute_nodes.iter().map(|&count| ("--compute-nodes", count, NODES_MAX));
        let others = [
            ("--memory-nodes", nodes.memory_nodes, MEMORY_NODES_MAX),
            ("--clients", nodes.clients, NODES_MAX),
            ("--batches-at-once", nodes.at_once, NODES_MAX),
        ];
        if self.compute_nodes.is_empty() {
            return wrong("a remote-hnsw has compute nodes; give --compute-nodes, such as 1,2,4,8".into());
        }
        if let Some((name, count, most)) =
            counts.chain(others).find(|(_, count, most)| !(1..=*most).contains(count))
        {
            return wrong(format!("{name} is {count}; use 1 to {most}"));
        }
        if !(0.0..=1.0).contains(&self.share()) {
            return wrong(format!("--cache-share is {}; give a share from 0 to 1", self.share()));
        }
        let given = [
            ("--calibrate", times.calibrate),
            ("--no-times", times.no_times),
            ("--disk-iops", times.disk_iops.is_some()),
            ("--disk-latency-us", times.disk_latency_us.is_some()),
            ("--disk-mb-per-s", times.disk_mb_per_s.is_some()),
            ("--request-us", times.request_us.is_some()),
            ("--servers-per-host", times.servers_per_host.is_some()),
            ("--cores-per-host", times.cores_per_host.is_some()),
        ];
        match given.iter().find(|given| given.1) {
            Some((name, _)) => wrong(format!("{name} is not for a remote-hnsw; leave it out")),
            None => Ok(()),
        }
    }

    /// The ways to load, where the kind loads by `own`.
    fn ways(&self, own: GatherOptions) -> Vec<LoadWay> {
        #[cfg(feature = "lab")]
        {
            baseline::ways(&self.baseline, own)
        }
        #[cfg(not(feature = "lab"))]
        {
            vec![LoadWay { name: "remote-hnsw", gather: own, is_for_each: false }]
        }
    }
}

/// What is simulated.
pub(super) struct Job<'a> {
    pub(super) args: &'a MemoryArgs,
    pub(super) times: &'a CostArgs,
    pub(super) queries: &'a Queries,
    pub(super) truth: Option<GroundTruth>,
    /// Results and effort.
    pub(super) search: SearchOptions,
    pub(super) seed: u64,
}

/// The report.
#[derive(Serialize)]
struct Document {
    params: serde_json::Value,
    costs: LoadPrices,
    runs: Vec<Row>,
    against_naive: Vec<Against>,
}

/// Runs `stratann simulate` for a `remote-hnsw`.
pub(super) fn run(
    job: Job<'_>,
    index: &mut Index,
    printer: &ProgressPrinter,
    output: Output,
) -> Result<Verdict> {
    let Job { args, times, queries, truth, search, seed } = job;
    let mut rows = Vec::new();
    queries.read(0, queries.count(), &mut rows)?;
    let gather = args.techniques.gather()?;
    let search = SearchOptions { gather, switches: args.techniques.switches().into(), ..search };
    let params = index.params(&search)?;
    let nodes = args.nodes();
    let most = args.compute_nodes.iter().copied().max().unwrap_or(1);
    let mut recorder = Recorder {
        index,
        rows: &rows,
        row_bytes: queries.row_bytes(),
        truth: truth.as_ref(),
        search,
        cache_share: args.share(),
        memory_nodes: nodes.memory_nodes,
        seed,
        progress: printer,
    };
    let mut recorded = Vec::new();
    for way in args.ways(gather) {
        recorded.push(recorder.record(way, most)?);
    }
    let prices = match &times.costs {
        Some(path) => LoadPrices::read(path)?,
        None => {
            let own = recorded.iter().find(|of| !of.way.is_for_each).or(recorded.first());
            LoadPrices::of(own.map(|own| own.work).unwrap_or_default(), options::all_cores())
        }
    };
    let prices = prices.with(&times.given(), args.range_ns)?;
    let threads = prices.threads;
    if nodes.at_once > threads {
        return Err(Error::bad_input(format!(
            "--batches-at-once is {}, and a compute node has {threads} threads; use 1 to {threads}",
            nodes.at_once
        )));
    }
    let mut runs = Vec::new();
    for &compute_nodes in &args.compute_nodes {
        runs.extend(recorded.iter().map(|of| Row::of(of, &prices, nodes, compute_nodes)));
    }
    printer.finish();
    let setting = kinds::setting(&params);
    let document = Document {
        params: serde_json::json!({
            "k": params.k, "nprobe": setting.nprobe, "ef": params.kind.remote_hnsw().map(|own| own.ef),
            "batch": gather.batch, "doorbell": gather.doorbell, "cache_share": args.share(),
            "memory_nodes": nodes.memory_nodes, "clients": nodes.clients, "batches_at_once": nodes.at_once,
            "seed": seed,
        }),
        against_naive: Against::all(&runs),
        costs: prices,
        runs,
    };
    output.result(&document, || text::text(&document))?;
    Ok(Verdict::Fine)
}
