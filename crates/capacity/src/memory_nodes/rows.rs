//! Rows of the report: one number of compute nodes, one way to load clusters.

use serde::Serialize;
use stratann_engine::search::Latency;
use stratann_sim::{Fleet, LoadTiming, replay_loads};

use super::prices::LoadPrices;
use super::recorded::{Counters, Recorded};

/// Batches of each client that are measured. Those of naive have one query each.
const ROUNDS: usize = 8;
const ROUNDS_OF_ONE: usize = 48;

/// Memory nodes and clients, whatever the compute nodes.
#[derive(Clone, Copy, Debug)]
pub struct Nodes {
    pub memory_nodes: usize,
    pub clients: usize,
    /// Batches that a compute node has under way at the same time.
    pub at_once: usize,
}

/// Utilisation: all threads, the link of each memory node, and the busiest link of a compute node.
#[derive(Clone, Debug, Serialize)]
pub struct Utilisation {
    pub cpu: f64,
    pub memory_links: Vec<f64>,
    pub compute_link: f64,
}

/// One row.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub scheme: &'static str,
    #[serde(skip)]
    is_for_each: bool,
    pub compute_nodes: usize,
    pub recall: Option<f64>,
    pub per_query: Counters,
    pub qps: f64,
    /// Time in which a client has its answers, over their number.
    pub time_us: f64,
    /// Times of a worker, over the queries: waiting for doorbells and headers, searching clusters, choosing them. The
    /// first two may be at the same time.
    pub network_us: f64,
    pub sub_hnsw_us: f64,
    pub meta_hnsw_us: f64,
    /// Share of the smaller of transfer and search that overlap hides.
    pub hidden: f64,
    /// Time from a client's request for a batch to the answer of a query, and to that of the last.
    pub latency_us: Latency,
    pub batch_latency_us: Latency,
    pub utilisation: Utilisation,
    pub bottleneck: String,
}

/// A row against that of naive with as many compute nodes.
#[derive(Clone, Debug, Serialize)]
pub struct Against {
    pub scheme: &'static str,
    pub compute_nodes: usize,
    /// Factor by which naive is slower.
    pub time: f64,
    pub network: f64,
    /// Factor by which naive reads more.
    pub round_trips: f64,
    pub bytes: f64,
}

/// The load of a replay.
struct Load {
    compute_nodes: usize,
    /// Clients of each compute node.
    clients: usize,
    /// Parts into which a batch is divided.
    parts: usize,
}

impl Row {
    /// Replays recorded batches.
    pub fn of(recorded: &Recorded, prices: &LoadPrices, nodes: Nodes, compute_nodes: usize) -> Row {
        let threads = (prices.threads / nodes.at_once.max(1)).max(1);
        let is_naive = recorded.way.is_for_each;
        // Each thread of a naive batch reads for one of its queries at a time.
        let (parts, threads) = if is_naive { (threads, 1) } else { (1, threads) };
        let fleet = Fleet {
            compute_nodes,
            memory_nodes: nodes.memory_nodes,
            workers: nodes.at_once * parts,
            threads,
            clients: nodes.clients * parts,
            overlaps: recorded.overlaps,
            rounds: if is_naive { ROUNDS_OF_ONE } else { ROUNDS },
        };
        let timing = replay_loads(&recorded.streams, &prices.costs(), fleet);
        Row::timed(recorded, Load { compute_nodes, clients: nodes.clients, parts }, &timing)
    }

    fn timed(recorded: &Recorded, Load { compute_nodes, clients, parts }: Load, timing: &LoadTiming) -> Row {
        let spent = &timing.spent;
        let each = |ns: u64| ns as f64 / 1000.0 / (timing.queries * parts).max(1) as f64;
        let cut = |share: f64| (share * 1e4).round() / 1e4;
        Row {
            scheme: recorded.way.name,
            is_for_each: recorded.way.is_for_each,
            compute_nodes,
            recall: recorded.recall,
            per_query: recorded.counters,
            qps: (timing.qps * 10.0).round() / 10.0,
            time_us: if timing.qps > 0.0 { clients as f64 * 1e6 / timing.qps } else { 0.0 },
            network_us: each(spent.transfer_ns),
            sub_hnsw_us: each(spent.search_ns),
            meta_hnsw_us: each(spent.meta_ns),
            hidden: cut(spent.hidden()),
            latency_us: Latency::of(&timing.query_ns),
            batch_latency_us: Latency::of(&timing.batch_ns),
            utilisation: Utilisation {
                cpu: cut(timing.processors),
                memory_links: timing.memory_links.iter().map(|&share| cut(share)).collect(),
                compute_link: cut(timing.compute_link),
            },
            bottleneck: timing.bottleneck(),
        }
    }
}

impl Against {
    /// Every row that has a naive one.
    pub fn all(rows: &[Row]) -> Vec<Against> {
        let over = |naive: f64, own: f64| if own > 0.0 { naive / own } else { 0.0 };
        let against = |own: &Row| {
            let is_naive = |row: &&Row| row.is_for_each && row.compute_nodes == own.compute_nodes;
            let naive = rows.iter().find(is_naive)?;
            Some(Against {
                scheme: own.scheme,
                compute_nodes: own.compute_nodes,
                time: over(naive.time_us, own.time_us),
                network: over(naive.network_us, own.network_us),
                round_trips: over(naive.per_query.round_trips, own.per_query.round_trips),
                bytes: over(naive.per_query.bytes, own.per_query.bytes),
            })
        };
        rows.iter().filter(|row| !row.is_for_each).filter_map(against).collect()
    }
}
