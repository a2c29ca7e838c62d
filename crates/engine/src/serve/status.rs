//! How a server fares, for those who ask.

use std::sync::atomic::Ordering;

use serde::Serialize;

use super::{Shared, lock};
use crate::budget;
use crate::link::Traffic;

/// What a server is and has done since its start.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Its number.
    pub server: u8,
    /// Servers of the cluster.
    pub servers: usize,
    /// By number, whether a server answers.
    pub live: Vec<bool>,
    /// Whether every part of the index is on a server that answers, and this one can read its own.
    pub is_complete: bool,
    /// Identifies the index.
    pub build_id: String,
    /// Its version in the store that it came from.
    pub version: Option<u64>,
    /// The builds that are held: two while the server changes to a new version.
    pub builds: Vec<String>,
    /// Vectors in the index.
    pub rows: u64,
    /// Components of each.
    pub dim: usize,
    /// Element type.
    pub dtype: String,
    /// Distance.
    pub metric: String,
    /// Bytes of a block, the unit of reads.
    pub block_bytes: usize,
    /// Queries that clients asked here.
    pub queries: u64,
    /// Of these, answered.
    pub answered: u64,
    /// Of these, refused or failed.
    pub refused: u64,
    /// Queries of clients that wait for their answers now.
    pub waiting: usize,
    /// Queries that run here now, whoever asked them.
    pub in_flight: usize,
    /// Queries that went on to another server.
    pub hand_overs_out: u64,
    /// Queries that came from another server.
    pub hand_overs_in: u64,
    /// Reads of blocks that brought nothing.
    pub lost_reads: u64,
    /// Ranges of 1,024 blocks in which some could not be read.
    pub unreadable_ranges: usize,
    /// Bytes sent to other servers.
    pub bytes_sent: u64,
    /// Frames in them.
    pub frames_sent: u64,
    /// Writes that carried them.
    pub writes: u64,
    /// Frames that found no connection, or a full queue.
    pub dropped_frames: u64,
    /// Processor time, microseconds.
    pub cpu_us: u64,
    /// Largest resident set so far.
    pub peak_rss_bytes: u64,
    /// What it may take.
    pub ram_budget_bytes: Option<u64>,
    /// Bytes by component.
    pub memory: Vec<(String, u64)>,
    /// How blocks are read.
    pub io_backend: String,
    /// Seconds since the start.
    pub uptime_s: f64,
}

impl Status {
    pub(super) fn of(shared: &Shared) -> Status {
        let manifest = shared.held.index().manifest();
        let servers = shared.held.servers();
        let live = shared.live.load(Ordering::Relaxed);
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let traffic = shared.link.get().map_or_else(Traffic::default, |link| link.traffic());
        let process = budget::process();
        Status {
            server: shared.options.server.unwrap_or(0),
            servers,
            live: (0..servers).map(|s| live >> s & 1 == 1).collect(),
            is_complete: shared.broken.get().is_none() && shared.homes.iter().all(|homes| homes & live != 0),
            build_id: shared.held.build_id(),
            version: None,
            builds: vec![shared.held.build_id()],
            rows: shared.held.rows(),
            dim: manifest.dim,
            dtype: manifest.dtype.clone(),
            metric: manifest.metric.clone(),
            block_bytes: manifest.blocks.bytes,
            queries: count(&shared.counters.queries),
            answered: count(&shared.counters.answered),
            refused: count(&shared.counters.refused),
            waiting: lock(&shared.clients).len(),
            in_flight: shared.running.load(Ordering::Relaxed),
            hand_overs_out: count(&shared.counters.hand_overs_out),
            hand_overs_in: count(&shared.counters.hand_overs_in),
            lost_reads: count(&shared.counters.lost_reads),
            unreadable_ranges: lock(&shared.unreadable).len(),
            bytes_sent: traffic.bytes,
            frames_sent: traffic.frames,
            writes: traffic.writes,
            dropped_frames: traffic.dropped,
            cpu_us: process.cpu_us,
            peak_rss_bytes: process.peak_rss_bytes,
            ram_budget_bytes: shared.options.ram_budget,
            memory: shared.account().components,
            io_backend: shared.backend.get().cloned().unwrap_or_default(),
            uptime_s: shared.started.elapsed().as_secs_f64(),
        }
    }
}
