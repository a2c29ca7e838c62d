//! The state that all threads of a server share.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use stratann_core::peer::{FrameCodec, Limits, POOL_BYTES, Peer, Served};
use stratann_core::place::SERVERS_MAX;
use stratann_core::query::Budget;
use stratann_core::query::wire::Carry;

use super::inbox::Inbox;
use super::served_index::ServedIndex;
use super::worker::Worker;
use super::{Reply, ServeOptions, lock};
use crate::Result;
use crate::budget::{Account, PROGRAM_BYTES, THREAD_BYTES};
use crate::driver::{Driver, DriverOptions, Width};
use crate::link::Link;
use crate::search::{Effort, SearchOptions};

/// Bytes that may wait for one other server.
pub(super) const QUEUE_BYTES: usize = 512 << 10;
/// Interval at which expired queries and late attempts are looked for.
const TICK: Duration = Duration::from_millis(10);
/// Bytes that the protocol keeps with each vector.
const KEPT_BYTES: u64 = 256;
/// Bytes of a client's query until it runs, without its vector.
const WAITING_BYTES: u64 = 1024;

/// Counters since the start.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) queries: AtomicU64,
    pub(super) answered: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) cancelled: AtomicU64,
    pub(super) dropped_runs: AtomicU64,
    pub(super) hand_overs_out: AtomicU64,
    pub(super) hand_overs_in: AtomicU64,
    pub(super) lost_reads: AtomicU64,
    pub(super) merged_reads: AtomicU64,
    pub(super) merged_bytes: AtomicU64,
}

/// A client that waits for an answer.
pub(super) struct Client {
    pub(super) reply: Reply,
    pub(super) asked: Instant,
    pub(super) partial: bool,
}

/// The state that all threads of a server share.
pub(super) struct ServerState {
    pub(super) options: ServeOptions,
    pub(super) index: ServedIndex,
    pub(super) replica_sets: Vec<u64>,
    pub(super) budget: Budget,
    pub(super) codec: FrameCodec,
    peer: Mutex<Peer>,
    // Copies of values of the protocol, for use without its lock.
    pub(super) live: AtomicU64,
    pub(super) abandoned: AtomicU64,
    loads: Mutex<[u8; SERVERS_MAX]>,
    pub(super) inbox: Inbox,
    pub(super) link: OnceLock<Link>,
    pub(super) clients: Mutex<HashMap<u64, Client>>,
    pub(super) next_client: AtomicU64,
    pub(super) running: AtomicUsize,
    pub(super) counters: Arc<Counters>,
    pub(super) started: Instant,
    pub(super) backend: OnceLock<String>,
    // Ranges of blocks with failed reads; each is logged once.
    pub(super) unreadable: Mutex<BTreeSet<u32>>,
    // The reason why a driver thread ended early.
    pub(super) broken: OnceLock<String>,
    pub(super) stopped: (Mutex<bool>, Condvar),
    pub(super) is_stopped: AtomicBool,
}

/// A number that differs each time the server starts.
fn incarnation() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u32)
}

impl ServerState {
    /// `beside` is the server of the version that is served now, when this one is for another version.
    pub(super) fn new(
        options: ServeOptions,
        index: ServedIndex,
        beside: Option<&ServerState>,
    ) -> ServerState {
        let view = index.view(0);
        let served = Served {
            build: index.build(),
            kind: view.kind_number(),
            vector_bytes: index.index().base.row_bytes(),
            size: view.size(),
            carry: index.carry(options.carry).unwrap_or(Carry::Distances),
            results: options.results,
            rescores: view.rescores(),
            scatter_gather: match &index {
                ServedIndex::ScatterGather(_, description) => Some(description.servers as u8),
                _ => None,
            },
        };
        let server = options.server.unwrap_or(0);
        let limits = Limits {
            origins: options.queue,
            hosted: options.queue.saturating_mul(index.hosted_per_query()),
            patience_us: options.patience.as_micros() as u64,
            ..Limits::default()
        };
        let live = 1u64.checked_shl(server.into()).unwrap_or(0);
        let peer = Peer::new(server, incarnation(), served, live, limits);
        ServerState {
            budget: view.budget(),
            replica_sets: index.replica_sets(),
            codec: peer.codec(),
            peer: Mutex::new(peer),
            live: AtomicU64::new(live),
            abandoned: AtomicU64::new(0),
            loads: Mutex::new([0; SERVERS_MAX]),
            inbox: Inbox::new(options.threads),
            link: OnceLock::new(),
            clients: Mutex::default(),
            next_client: AtomicU64::new(0),
            running: AtomicUsize::new(0),
            counters: beside.map_or_else(Arc::default, |other| other.counters.clone()),
            // One clock for both.
            started: beside.map_or_else(Instant::now, |other| other.started),
            backend: OnceLock::new(),
            unreadable: Mutex::default(),
            broken: OnceLock::new(),
            stopped: Default::default(),
            is_stopped: AtomicBool::new(false),
            options,
            index,
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    pub(super) fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    pub(super) fn lock_loads(&self) -> MutexGuard<'_, [u8; SERVERS_MAX]> {
        lock(&self.loads)
    }

    pub(super) fn lock_peer(&self) -> MutexGuard<'_, Peer> {
        lock(&self.peer)
    }

    /// Loads list codes, then records, into the memory that the budget leaves when everything else has its share.
    /// `used` bytes are taken by another version.
    pub(super) fn load_resident(&mut self, used: u64) -> Result<()> {
        let Some(budget) = self.options.ram_budget else { return Ok(()) };
        let taken = self.account().total();
        let left = budget.saturating_sub(taken + used);
        // Equal shares for both versions, so that neither leaves the other without.
        let both = budget.saturating_sub(2 * taken - PROGRAM_BYTES) / 2;
        self.index.load_resident(if self.options.may_change { left.min(both) } else { left })
    }

    /// Memory by component.
    pub(super) fn account(&self) -> Account {
        let options = self.search_options();
        let index = self.index.index();
        let mut account = self.index.account();
        if self.options.cache_budget > 0 {
            account.components.retain(|c| c.0 != "block cache");
            account.add("block cache", self.options.cache_budget);
        }
        let widest = Width::Auto.at_load(1).1 as u64;
        let read = index.read_bytes_max();
        let per_query = index.query_bytes(&options) + widest * read as u64;
        let in_flight = (self.options.threads * index.in_flight(&options)) as u64;
        account.add("queries in flight", in_flight * per_query);
        account.add("threads", self.options.threads as u64 * THREAD_BYTES);
        if let Some(learning) = index.learning() {
            account.add("learning", learning.bytes(self.options.threads));
        }
        let hosted = if self.options.peers.len() > 1 { self.index.hosted_per_query() } else { 0 };
        let vectors = self.options.queue * (1 + hosted);
        let kept = vectors as u64 * (index.base.row_bytes() as u64 + KEPT_BYTES);
        let waiting = self.options.queue as u64 * WAITING_BYTES + POOL_BYTES as u64;
        account.add("queries that wait", kept + waiting);
        let others = self.options.peers.len().saturating_sub(1) as u64;
        account.add("links", others * (2 * QUEUE_BYTES as u64 + 2 * THREAD_BYTES + (64 << 10)));
        account
    }

    fn search_options(&self) -> SearchOptions {
        SearchOptions {
            effort: Effort::Recall(0.95),
            in_flight: self.options.in_flight,
            threads: self.options.threads,
            ..SearchOptions::default()
        }
    }

    /// Runs one driver thread, from its tier to its end.
    pub(super) fn drive(&self, thread: usize, ready: &Sender<std::result::Result<&'static str, String>>) {
        let index = self.index.index();
        let options = self.search_options();
        let in_flight = index.in_flight(&options);
        let depth = (in_flight * index.width_limit(&options) as usize).clamp(8, 1024);
        let opened = self.index.tier(depth, self.options.io).and_then(|mut tier| {
            let waker = tier.waker()?;
            Ok((tier, waker))
        });
        let (tier, waker) = match opened {
            Ok(opened) => opened,
            Err(e) => {
                let _ = ready.send(Err(format!("reading blocks is not possible: {e}; use another io")));
                return;
            }
        };
        // Before the thread reports: if another one fails, this one must be woken to end.
        self.inbox.set_waker(thread, waker);
        let _ = ready.send(Ok(tier.name()));
        let driver = DriverOptions {
            buffer_bytes: index.base.block.block_bytes,
            in_flight,
            admission: Default::default(),
            width: Width::Auto,
        };
        let view = self.index.view(self.live.load(Ordering::Relaxed));
        let ran = Driver::new(view, index.cache.as_ref(), tier, driver)
            .sharing(self.options.merge.then_some(&index.shared_reads))
            .run(&mut Worker::new(self, thread));
        if let Err(e) = ran {
            let why = format!(
                "reading {} failed: {e}; check the disk and start the server again",
                index.base.blocks_path.display()
            );
            (self.options.log)(&why);
            let _ = self.broken.set(why);
        }
    }

    /// Passes the time to the protocol until the server stops, and removes waiting queries that are no longer wanted.
    pub(super) fn keep_ticking(&self) {
        let mut abandoned = 0;
        let mut stopped = lock(&self.stopped.0);
        while !*stopped {
            let waited = self.stopped.1.wait_timeout(stopped, TICK);
            stopped = waited.unwrap_or_else(|e| e.into_inner()).0;
            let holds = self.lock_peer().held() != (0, 0);
            if holds && !*stopped {
                self.with_peer(|peer, now_us, out| peer.tick(now_us, out));
            }
            let now_abandoned = self.abandoned.load(Ordering::Relaxed);
            if now_abandoned != abandoned {
                abandoned = now_abandoned;
                self.clear_inbox();
            }
        }
    }

    fn clear_inbox(&self) {
        let peer = self.lock_peer();
        let now_us = self.now_us();
        let removed = self.inbox.retain(|run| peer.is_wanted(now_us, run));
        self.counters.dropped_runs.fetch_add(removed as u64, Ordering::Relaxed);
    }
}
