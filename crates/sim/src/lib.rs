//! A whole cluster in one thread, from one seed: the real query states and the real protocol ([`stratann_core::peer`]) over links, disks
//! and a clock that exist only here.
//!
//! [`run`] is for what must hold: everything that happens is an event at a microsecond; links delay, reorder, duplicate and drop frames; disks
//! delay and fail reads; servers crash, forget everything, and come back. Computing takes no time in it.
//!
//! How fast a cluster would be is asked in two steps. [`record`] runs each query once and writes down its [`Trace`]: how much was computed,
//! read and sent, where, and what had to wait for what. [`replay()`] plays traces under a load, on servers with so many threads, a disk
//! and a link, at the prices of [`Costs`]. [`scatter_gather`] and [`fetch`] make the traces of two other ways to search.
//!
//! Equal seeds give equal runs, and equal replays.

mod baselines;
mod costs;
mod recorder;
mod replay;
mod trace;
mod world;

pub use baselines::{Answered, Partition, fetch, scatter_gather};
pub use costs::Costs;
pub use replay::{Load, Timing, Utilisation, replay};
pub use trace::{Draft, Task, TaskId, Trace, Work};

use stratann_core::peer::{Failure, Limits};
use stratann_core::place::Placement;
use stratann_core::plan::IndexView;
use stratann_core::query::wire::{Carry, Results};
use stratann_core::query::{Budget, Params, QueryState};

/// The bytes of all blocks: an index' file, or memory.
pub trait Blocks {
    /// Puts the verified bytes of a block in the place of what `out` held. False when it cannot be read.
    fn read(&self, block: u32, out: &mut Vec<u8>) -> bool;
}

/// The index that the cluster serves.
#[derive(Clone, Copy)]
pub struct Cluster<'a> {
    /// Its part in RAM, which every server holds.
    pub view: IndexView<'a>,
    /// Who holds which block.
    pub placement: &'a Placement,
    /// Where the bytes of blocks come from.
    pub blocks: &'a dyn Blocks,
}

/// A query, when it is asked, and where.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Microseconds after the start.
    pub at_us: u64,
    /// The server that is asked.
    pub origin: u8,
    /// Components of the index' element type.
    pub vector: &'a [u8],
    /// What is asked.
    pub params: Params,
    /// What it may spend.
    pub budget: Budget,
    /// Microseconds that its client waits.
    pub time_us: u64,
}

/// A server that stops at once, without a word.
#[derive(Clone, Copy, Debug)]
pub struct Crash {
    /// Which.
    pub server: u8,
    /// When.
    pub at_us: u64,
    /// When it is started again, if ever.
    pub back_at_us: Option<u64>,
}

/// How the world behaves.
#[derive(Clone, Debug)]
pub struct Weather {
    /// Decides everything that is drawn.
    pub seed: u64,
    /// Shortest and longest delay of a frame, microseconds. Frames overtake each other when they differ.
    pub link_us: (u64, u64),
    /// Shortest and longest delay of a read, microseconds.
    pub disk_us: (u64, u64),
    /// Share of frames that are lost.
    pub drop: f64,
    /// Share of frames that come twice.
    pub duplicate: f64,
    /// Share of reads that fail.
    pub failing_reads: f64,
    /// Servers with a bad disk, and the share of the blocks that can never be read there.
    pub bad_disks: Vec<(u8, f64)>,
    /// Who crashes, and when.
    pub crashes: Vec<Crash>,
    /// Microseconds until the others notice that a server has crashed, or is back.
    pub notice_us: u64,
    /// Limits of every server.
    pub limits: Limits,
    /// What batons say of their candidates.
    pub carry: Carry,
    /// Where results go when their query is handed over.
    pub results: Results,
}

impl Default for Weather {
    /// Nothing goes wrong.
    fn default() -> Self {
        Weather {
            seed: 1,
            link_us: (20, 60),
            disk_us: (60, 160),
            drop: 0.0,
            duplicate: 0.0,
            failing_reads: 0.0,
            bad_disks: Vec::new(),
            crashes: Vec::new(),
            notice_us: 2000,
            limits: Limits::default(),
            carry: Carry::default(),
            results: Results::default(),
        }
    }
}

/// What a client was told.
#[derive(Clone, Debug)]
pub enum Told {
    /// The answer: its results and counters.
    Answer(Box<QueryState>),
    /// There will be none.
    Failed(Failure),
}

/// What came of a run.
#[derive(Debug, Default)]
pub struct Report {
    /// For each query everything that its client was told, and when: exactly one thing, unless its origin crashed.
    pub told: Vec<Vec<(u64, Told)>>,
    /// Hand-overs that were sent.
    pub batons: u64,
    /// Their bytes, headers included, vectors not.
    pub baton_bytes: u64,
    /// Bytes of the vectors that went with them.
    pub vector_bytes: u64,
    /// Frames that told an origin of results, where these do not travel.
    pub found: u64,
    /// Their bytes.
    pub found_bytes: u64,
    /// Frames of other kinds, and their bytes.
    pub other_frames: u64,
    /// Bytes of those.
    pub other_bytes: u64,
    /// Reads, by server.
    pub reads: Vec<u64>,
    /// Of these, how many failed.
    pub lost_reads: u64,
    /// What is still held when nothing is left to happen: queries of clients, vectors, states. All zero, or something is immortal.
    pub left: (usize, usize, usize),
    /// When the last event happened.
    pub ended_us: u64,
    /// Frames that were refused.
    pub refused: u64,
}

/// Runs the cluster until nothing is left to happen.
///
/// # Panics
/// When ten million events are not enough: something goes round in circles.
pub fn run(cluster: &Cluster<'_>, asked: &[Asked<'_>], weather: &Weather) -> Report {
    world::World::new(world::Setting::Together(cluster), asked, weather).run()
}

/// As [`run`], with an index of its own rows on each server, all of which are asked: [`scatter_gather`] by the real protocol, over links and
/// through faults.
///
/// # Panics
/// As [`run`].
pub fn run_apart(partitions: &[Partition<'_>], asked: &[Asked<'_>], weather: &Weather) -> Report {
    world::World::new(world::Setting::Apart(partitions), asked, weather).run()
}

/// As [`run`], in weather without faults; gives besides what each query did that was answered, in the order in which they were asked.
///
/// # Panics
/// As [`run`].
pub fn record(cluster: &Cluster<'_>, asked: &[Asked<'_>], weather: &Weather) -> (Report, Vec<Trace>) {
    world::World::new(world::Setting::Together(cluster), asked, weather).record()
}
