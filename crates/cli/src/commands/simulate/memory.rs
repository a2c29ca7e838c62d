//! Compute nodes and memory nodes of a `remote-hnsw`: the same queries on several numbers of compute nodes, and with
//! several ways to load clusters.

use serde::Serialize;
use stratann_capacity::memory_nodes::prices::LoadPrices;
#[cfg(not(feature = "lab"))]
use stratann_capacity::memory_nodes::recorded::LoadWay;
use stratann_capacity::memory_nodes::recorded::Recorder;
use stratann_capacity::memory_nodes::rows::{Against, Nodes, Row};
use stratann_engine::dataset::GroundTruth;
#[cfg(not(feature = "lab"))]
use stratann_engine::exec::BatchOptions;
use stratann_engine::index::Index;
use stratann_engine::kinds;
use stratann_engine::search::SearchOptions;
#[cfg(not(feature = "lab"))]
use stratann_params::choices::LoadWayName;
use stratann_params::simulate::{NodesSettings, RunSettings, ServerCosts};
use stratann_storage::{Error, Result};

use super::costs::given;
use crate::output::Output;
use crate::progress::ProgressPrinter;
use crate::queries::Queries;
use crate::{Verdict, options};

#[cfg(feature = "lab")]
mod baseline;
mod text;

#[cfg(feature = "lab")]
use baseline::ways;

/// The ways to load: that of the kind, as the laboratory has the others.
#[cfg(not(feature = "lab"))]
fn ways(_: &[LoadWayName], own: BatchOptions) -> Vec<LoadWay> {
    vec![LoadWay { name: "remote-hnsw", batch_options: own, is_for_each: false }]
}

/// Search that is simulated.
pub(super) struct Job<'a> {
    pub(super) nodes: &'a NodesSettings,
    pub(super) run: &'a RunSettings,
    pub(super) queries: &'a Queries,
    pub(super) truth: Option<GroundTruth>,
    /// Results, effort, and how a batch is loaded.
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
    let Job { nodes: settings, run, queries, truth, search, seed } = job;
    let mut rows = Vec::new();
    queries.read(0, queries.count(), &mut rows)?;
    let batch_options = search.batch_options;
    let params = index.params(&search)?;
    let nodes = Nodes {
        memory_nodes: settings.memory_nodes,
        clients: settings.clients,
        at_once: settings.batches_at_once,
    };
    let most = settings.compute_nodes.iter().copied().max().unwrap_or(1);
    let mut recorder = Recorder {
        index,
        rows: &rows,
        row_bytes: queries.row_bytes(),
        truth: truth.as_ref(),
        search,
        cache_share: settings.cache_share,
        memory_nodes: nodes.memory_nodes,
        seed,
        progress: printer,
    };
    let mut recorded = Vec::new();
    for way in ways(&settings.baseline, batch_options) {
        recorded.push(recorder.record(way, most)?);
    }
    let prices = match &run.costs {
        Some(path) => LoadPrices::read(path)?,
        None => {
            let own = recorded.iter().find(|of| !of.way.is_for_each).or(recorded.first());
            LoadPrices::of(own.map(|own| own.work).unwrap_or_default(), options::all_cores())
        }
    };
    let prices = prices.with(&given(run, &ServerCosts::default()), settings.range_ns)?;
    let threads = prices.threads;
    if nodes.at_once > threads {
        return Err(Error::bad_input(format!(
            "--batches-at-once is {}, and a compute node has {threads} threads; use 1 to {threads}",
            nodes.at_once
        )));
    }
    let mut runs = Vec::new();
    for &compute_nodes in &settings.compute_nodes {
        runs.extend(recorded.iter().map(|of| Row::of(of, &prices, nodes, compute_nodes)));
    }
    printer.finish();
    let setting = kinds::setting(&params);
    let document = Document {
        params: serde_json::json!({
            "k": params.k, "nprobe": setting.nprobe, "ef": params.kind.remote_hnsw().map(|own| own.ef),
            "batch": batch_options.batch, "doorbell": batch_options.doorbell, "cache_share": settings.cache_share,
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
