//! The status of a server.

use std::borrow::Cow;
use std::sync::atomic::Ordering;

use serde::Serialize;
use stratann_storage::budget;
use stratann_storage::ledger::{Ledger, PartUse};
use stratann_storage::link::{Link, LinkCosts, LinkTraffic};
use stratann_storage::names::BuildId;

use super::filters::FilterCounts;
use super::lock;
use super::state::ServerState;
use super::waits::WaitsByClass;
use crate::exec::scorer::ScorerReport;
use crate::kinds::{Learning, LearningFacts};

/// Properties of a server, and counters since its start.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Number of the server.
    pub server: u8,
    /// Number of servers of the cluster.
    pub servers: usize,
    /// Whether each server answers, by number.
    pub live: Vec<bool>,
    /// Whether every part of the index is on a server that answers, and this server can read its own.
    pub is_complete: bool,
    /// Identifies the index.
    pub build_id: BuildId,
    /// Version of the index in the store; `None` when it came from no store.
    pub version: Option<u64>,
    /// The open builds: two during the rollout of a new version.
    pub builds: Vec<BuildId>,
    /// Number of vectors in the index.
    pub rows: u64,
    /// Components of a vector.
    pub dim: usize,
    /// Element type.
    pub dtype: String,
    /// Distance.
    pub metric: String,
    /// Bytes of a block, the unit of reads.
    pub block_bytes: usize,
    /// Queries of clients.
    pub queries: u64,
    /// Answered queries.
    pub answered: u64,
    /// Refused or failed queries.
    pub refused: u64,
    /// Cancelled queries: their clients went before the answer.
    pub cancelled: u64,
    /// Queries of clients that wait for their answers now.
    pub waiting: usize,
    /// Runs, of any origin, that were dropped because their deadline had passed or their client had gone.
    pub dropped_runs: u64,
    /// Filters of queries of other servers, and to them.
    pub filters: FilterCounts,
    /// Queries that run here now, of any origin.
    pub in_flight: usize,
    /// Queries handed over to another server.
    pub hand_overs_out: u64,
    /// Queries handed over from another server.
    pub hand_overs_in: u64,
    /// Jobs that other servers were asked to score.
    pub jobs_out: u64,
    /// Jobs scored for other servers.
    pub jobs_in: u64,
    /// Components of vectors that were compared here, for queries and jobs of any server.
    pub components: u64,
    /// Jobs that waited for replies from their scorer, because it had as many bytes of jobs as it accepts.
    pub delayed_jobs: u64,
    /// Frames and states from other servers that were dropped, because there was no memory for them.
    pub refused_batons: u64,
    /// Reads of blocks that failed.
    pub lost_reads: u64,
    /// Reads that were not made because an equal one was under way.
    pub merged_reads: u64,
    /// Bytes of their pages.
    pub merged_bytes: u64,
    /// Reads of gathered batches, each of which serves all queries that wait for it; with those of headers.
    pub loads: u64,
    /// Bytes of these.
    pub loaded_bytes: u64,
    /// Round trips to memory nodes, or submissions of reads, that they took.
    pub round_trips: u64,
    /// Most bytes of a doorbell, where the RAM budget limits it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub doorbell_bytes: Option<u64>,
    /// Bytes that were read of each memory node, by its number.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub memory_node_bytes: Vec<u64>,
    /// Reason why memory nodes cannot be read now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_lost: Option<String>,
    /// Ranges of 1,024 blocks with failed reads.
    pub unreadable_ranges: usize,
    /// Bytes sent to other servers.
    pub bytes_sent: u64,
    /// Frames sent.
    pub frames_sent: u64,
    /// Writes to the network that carried them.
    pub writes: u64,
    /// Frames that were dropped: there was no connection, or a full queue.
    pub dropped_frames: u64,
    /// Frames from other servers that were refused: of another version, build or kind of index, or damaged.
    pub refused_frames: u64,
    /// Costs of messages to each other server that has been measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkStatus>,
    /// Times that queries waited here, of any origin.
    pub waits: WaitsByClass,
    /// Processor time, microseconds.
    pub cpu_us: u64,
    /// Largest resident set so far.
    pub peak_rss_bytes: u64,
    /// Limit of its memory.
    pub ram_budget_bytes: Option<u64>,
    /// Memory by component, bytes: what is set aside.
    pub memory: Vec<(Cow<'static, str>, u64)>,
    /// The ledger of the process: what is set aside, used and refused, by part.
    pub ledger: LedgerUse,
    /// The ranking of codes, where the kind has a scorer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scorer: Option<ScorerReport>,
    /// Learning from queries, where the server does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learning: Option<LearningFacts>,
    /// Way in which blocks are read.
    pub io_backend: String,
    /// Seconds since the start.
    pub uptime_s: f64,
}

/// The link to another server.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LinkStatus {
    /// Number of that server.
    pub server: u8,
    /// As last measured.
    #[serde(flatten)]
    pub costs: LinkCosts,
}

/// A ledger at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct LedgerUse {
    /// Limit of the ledger; `None` without a RAM budget.
    pub limit_bytes: Option<u64>,
    /// Bytes that are set aside or used.
    pub committed_bytes: u64,
    /// Each part.
    pub parts: Vec<PartUse>,
}

impl LedgerUse {
    fn of(ledger: &Ledger) -> LedgerUse {
        LedgerUse {
            limit_bytes: ledger.limit(),
            committed_bytes: ledger.committed(),
            parts: ledger.parts().to_vec(),
        }
    }
}

fn links(state: &ServerState) -> Vec<LinkStatus> {
    let all = (0..).zip(state.link.get().map(Link::costs).unwrap_or_default());
    all.filter_map(|(server, costs)| Some(LinkStatus { server, costs: costs? })).collect()
}

impl Status {
    pub(super) fn of(state: &ServerState) -> Status {
        let (manifest, servers) = (state.index.index().manifest(), state.index.servers());
        let (live, process) = (state.lock_known().live, budget::process());
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let traffic = state.link.get().map_or_else(LinkTraffic::default, |link| link.traffic());
        // Each takes locks, so none is read while another one's is held.
        let delayed_jobs = state.lock_peer().delayed_jobs();
        let filters = FilterCounts::of(state);
        let (links, learning) = (links(state), state.index.index().learning().and_then(Learning::facts));
        Status {
            server: state.options.server.unwrap_or(0),
            servers,
            live: (0..servers).map(|s| live >> s & 1 == 1).collect(),
            is_complete: state.broken.get().is_none()
                && lock(&state.memory_lost).is_none()
                && state.replica_sets.iter().all(|r| r & live != 0),
            build_id: state.index.build_id(),
            version: None,
            builds: vec![state.index.build_id()],
            rows: state.rows(),
            dim: manifest.dim,
            dtype: manifest.dtype.clone(),
            metric: manifest.metric.clone(),
            block_bytes: manifest.blocks.bytes,
            queries: count(&state.counters.queries),
            answered: count(&state.counters.answered),
            refused: count(&state.counters.refused),
            cancelled: count(&state.counters.cancelled),
            waiting: lock(&state.clients).len(),
            dropped_runs: count(&state.counters.dropped_runs),
            filters,
            in_flight: state.running.load(Ordering::Relaxed),
            hand_overs_out: count(&state.counters.hand_overs_out),
            hand_overs_in: count(&state.counters.hand_overs_in),
            jobs_out: count(&state.counters.jobs_out),
            jobs_in: count(&state.counters.jobs_in),
            components: count(&state.counters.components),
            delayed_jobs,
            refused_batons: count(&state.counters.refused_batons),
            lost_reads: count(&state.counters.lost_reads),
            merged_reads: count(&state.counters.merged_reads),
            merged_bytes: count(&state.counters.merged_bytes),
            loads: count(&state.counters.loads),
            loaded_bytes: count(&state.counters.loaded_bytes),
            round_trips: count(&state.counters.round_trips),
            doorbell_bytes: state.options.batch_options.lowered_bytes(),
            memory_node_bytes: state.index.index().memory_node_bytes(),
            memory_lost: lock(&state.memory_lost).clone(),
            unreadable_ranges: lock(&state.unreadable).len(),
            bytes_sent: traffic.bytes,
            frames_sent: traffic.frames,
            writes: traffic.writes,
            dropped_frames: traffic.dropped,
            refused_frames: traffic.refused,
            links,
            waits: WaitsByClass {
                usual: state.counters.usual_waits.now(),
                heavy: state.counters.heavy_waits.now(),
            },
            cpu_us: process.cpu_us,
            peak_rss_bytes: process.peak_rss_bytes,
            ram_budget_bytes: state.options.ram_budget,
            memory: state.account().components,
            ledger: LedgerUse::of(&state.ledger),
            scorer: state.index.index().scorer_report(),
            learning,
            io_backend: state.backend.get().cloned().unwrap_or_default(),
            uptime_s: state.started.elapsed().as_secs_f64(),
        }
    }
}
