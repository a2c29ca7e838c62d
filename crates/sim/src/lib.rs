//! A whole cluster in one thread, from one seed: the real query states and the real protocol ([`stratann_core::peer`])
//! over simulated links, disks and a simulated clock.
//!
//! [`run`] is for tests of invariants. Everything that happens is an event at a microsecond. Links delay, reorder,
//! duplicate and drop frames; disks delay and fail reads; servers crash, lose their memory, and restart. Computation
//! takes no time.
//!
//! Throughput and latency are predicted in two steps. [`record`] runs each query once and writes its [`Trace`]: how
//! much was computed, read and sent, on which server, and which of it had to wait for which. [`replay()`] plays traces
//! under a load, on servers with threads, a disk and a link, at the prices of [`Costs`]. [`scatter_gather`] and
//! [`fetch`] make the traces of two other ways to search.
//!
//! [`replay_loads`] does the same for compute nodes whose batches read clusters of memory nodes.
//!
//! Equal seeds give equal runs, and equal replays. Nothing here depends on the kind of index: a query is a state that
//! the index view steps.

mod baselines;
mod costs;
mod memory_nodes;
mod queue;
mod recorder;
mod replay;
mod runner;
mod setting;
mod trace;
mod world;

pub use baselines::{BaselineResult, Partition, fetch, scatter_gather};
pub use costs::Costs;
pub use memory_nodes::{BatchLoad, BatchTrace, Fleet, LoadCosts, LoadTiming, Spent, replay_loads};
pub use replay::{Load, Timing, Utilisation, replay};
pub use trace::{Draft, Task, TaskId, Timed, Trace, Work};

use stratann_core::kinds::IndexView;
use stratann_core::peer::{Failure, Limits};
use stratann_core::place::Placement;
use stratann_core::query::wire::{Carry, Results};
use stratann_core::query::{Budget, Extent, Params, QueryState};

/// The stores of an index: its files, or memory.
pub trait Stores {
    /// Replaces `out` by the bytes of an extent. False when they cannot be read.
    fn read(&self, at: Extent, out: &mut Vec<u8>) -> bool;
}

/// The index of a cluster, of any kind.
#[derive(Clone, Copy)]
pub struct Cluster<'a> {
    /// The part of the index in RAM, which every server holds.
    pub view: IndexView<'a>,
    /// Replicas of all blocks.
    pub placement: &'a Placement,
    /// Data of the index.
    pub stores: &'a dyn Stores,
}

/// The index of one part of a cluster, of which every query is asked.
#[derive(Clone, Copy)]
pub enum Part<'a> {
    /// Placed on as many servers as its placement has.
    Placed(Cluster<'a>),
    /// The whole of it on each of so many servers.
    Whole(Partition<'a>, usize),
}

impl Part<'_> {
    /// Number of its servers.
    pub fn servers(&self) -> usize {
        match self {
            Part::Placed(cluster) => cluster.placement.servers(),
            Part::Whole(_, servers) => *servers,
        }
    }
}

/// A query that a client submits.
#[derive(Clone, Copy, Debug)]
pub struct SubmittedQuery<'a> {
    /// Time of submission, microseconds after the start.
    pub at_us: u64,
    /// The server that receives it.
    pub origin: u8,
    /// Components of the index's element type, as bytes.
    pub vector: &'a [u8],
    /// Parameters.
    pub params: Params,
    /// Budget.
    pub budget: Budget,
    /// Microseconds until its deadline.
    pub time_us: u64,
}

/// A server that stops without notice.
#[derive(Clone, Copy, Debug)]
pub struct Crash {
    /// The server.
    pub server: u8,
    /// Time of the crash, microseconds.
    pub at_us: u64,
    /// Time of the restart, microseconds; `None` for never.
    pub back_at_us: Option<u64>,
}

/// A link that loses all frames of two servers to each other for a while. Both reach the others.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// The two servers.
    pub between: (u8, u8),
    /// Time of the first loss, microseconds.
    pub from_us: u64,
    /// Time from which on frames arrive again, microseconds; `None` for never.
    pub until_us: Option<u64>,
}

impl Cut {
    /// The cuts that divide `servers` into those whose bit is set in `side` and the others.
    pub fn partition(servers: u8, side: u64, from_us: u64, until_us: Option<u64>) -> Vec<Cut> {
        let is_on_side = |server: u8| side >> server & 1 == 1;
        let pairs = (0..servers).flat_map(|a| (0..a).map(move |b| (b, a)));
        let cut = |between| Cut { between, from_us, until_us };
        pairs.filter(|&(a, b)| is_on_side(a) != is_on_side(b)).map(cut).collect()
    }

    fn is_between(&self, a: u8, b: u8) -> bool {
        self.between == (a, b) || self.between == (b, a)
    }

    fn is_open(&self, now_us: u64) -> bool {
        now_us >= self.from_us && self.until_us.is_none_or(|until| now_us < until)
    }
}

/// Delays and faults of a simulated cluster.
#[derive(Clone, Debug)]
pub struct FaultModel {
    /// Seed of everything that is drawn.
    pub seed: u64,
    /// Shortest and longest delay of a frame, microseconds. Frames overtake each other when they differ.
    pub link_us: (u64, u64),
    /// Shortest and longest delay of a read, microseconds.
    pub disk_us: (u64, u64),
    /// Share of frames that are lost.
    pub drop: f64,
    /// Share of frames that arrive twice.
    pub duplicate: f64,
    /// Share of reads that fail.
    pub failing_reads: f64,
    /// Share of replies to jobs whose content is changed or cut, as by a scorer with a fault that no checksum shows.
    /// Answers may be wrong then.
    pub wrong_scores: f64,
    /// Servers with a bad disk, and the share of blocks that can never be read there.
    pub bad_disks: Vec<(u8, f64)>,
    /// Crashes.
    pub crashes: Vec<Crash>,
    /// Links that are cut.
    pub cuts: Vec<Cut>,
    /// Microseconds until the others notice that a server has crashed or restarted, and both ends that a link is cut or
    /// mended.
    pub notice_us: u64,
    /// Whether every state is encoded and decoded while it waits, as if it moved.
    pub reencodes: bool,
    /// A bit for every server of the previous version of the program, until it restarts.
    pub old_servers: u64,
    /// Limits of every server.
    pub limits: Limits,
    /// Form of the candidates in batons.
    pub carry: Carry,
    /// Way that the results of handed-over queries take.
    pub results: Results,
}

impl Default for FaultModel {
    /// A cluster without faults.
    fn default() -> Self {
        FaultModel {
            seed: 1,
            link_us: (20, 60),
            disk_us: (60, 160),
            drop: 0.0,
            duplicate: 0.0,
            failing_reads: 0.0,
            wrong_scores: 0.0,
            bad_disks: Vec::new(),
            crashes: Vec::new(),
            cuts: Vec::new(),
            notice_us: 2000,
            reencodes: false,
            old_servers: 0,
            limits: Limits::default(),
            carry: Carry::default(),
            results: Results::default(),
        }
    }
}

/// The reply to a client.
#[derive(Clone, Debug)]
pub enum Reply {
    /// The answer: its results and counters.
    Answer(Box<QueryState>),
    /// The reason why there is no answer.
    Failed(Failure),
}

/// Counts of what servers hold after the last event. All are zero unless there is a leak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Queries of clients.
    pub queries: usize,
    /// Vectors of queries.
    pub vectors: usize,
    /// States of queries.
    pub states: usize,
}

/// Result of a run.
#[derive(Debug, Default)]
pub struct Report {
    /// Replies to the client of each query, and their times: exactly one, unless its origin crashed.
    pub replies: Vec<Vec<(u64, Reply)>>,
    /// Hand-overs that were sent.
    pub batons: u64,
    /// Bytes of hand-overs, headers included, without vectors.
    pub baton_bytes: u64,
    /// Bytes of the vectors in them.
    pub vector_bytes: u64,
    /// Jobs that were sent, repeated ones included.
    pub jobs: u64,
    /// Times that jobs were forwarded to another server.
    pub forwards: u64,
    /// Bytes of all these, headers included, without vectors.
    pub job_bytes: u64,
    /// Bytes of the replies to jobs.
    pub score_bytes: u64,
    /// Frames with partial results.
    pub reports: u64,
    /// Bytes of frames with partial results.
    pub report_bytes: u64,
    /// All other frames.
    pub other_frames: u64,
    /// Bytes of other frames.
    pub other_bytes: u64,
    /// Reads, by server.
    pub reads: Vec<u64>,
    /// Reads that failed.
    pub lost_reads: u64,
    /// States that were dropped because their answers were no longer wanted.
    pub dropped_runs: u64,
    /// State that is held after the last event.
    pub left: Left,
    /// Time of the last event, microseconds.
    pub ended_us: u64,
    /// Frames that were refused.
    pub refused: u64,
    /// Jobs that waited for credits.
    pub delayed_jobs: u64,
    /// Thresholds that were sent to servers with jobs.
    pub thresholds: u64,
    /// Frames that a cut link lost.
    pub cut_frames: u64,
}

/// Runs the cluster until no event is left.
///
/// # Panics
/// When ten million events are not enough: something runs in a circle.
pub fn run(cluster: &Cluster<'_>, queries: &[SubmittedQuery<'_>], faults: &FaultModel) -> Report {
    run_parts(&[Part::Placed(*cluster)], queries, faults)
}

/// As [`run`], with an index for each part of the cluster, all of which are asked. Part 0 is on the first servers. With
/// one server for each it is [`scatter_gather`] by the real protocol, over links and through faults.
///
/// # Panics
/// As [`run`]; no parts, or more than 64 servers.
pub fn run_parts(parts: &[Part<'_>], queries: &[SubmittedQuery<'_>], faults: &FaultModel) -> Report {
    world::World::new(setting::Setting::new(parts), queries, faults).run()
}

/// As [`run`], without faults. Also returns the traces of all answered queries, in order of submission.
///
/// # Panics
/// As [`run`].
pub fn record(
    cluster: &Cluster<'_>,
    queries: &[SubmittedQuery<'_>],
    faults: &FaultModel,
) -> (Report, Vec<Trace>) {
    world::World::new(setting::Setting::new(&[Part::Placed(*cluster)]), queries, faults).record()
}

/// As [`run`], without faults. Takes the time of all work by `clock`, nanoseconds since any fixed time. Equal inputs
/// give equal work in equal order.
///
/// # Panics
/// As [`run`].
pub fn time(
    cluster: &Cluster<'_>,
    queries: &[SubmittedQuery<'_>],
    faults: &FaultModel,
    clock: &dyn Fn() -> u64,
) -> Vec<Timed> {
    world::World::new(setting::Setting::new(&[Part::Placed(*cluster)]), queries, faults).time(clock)
}
