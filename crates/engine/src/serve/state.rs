//! The state that all threads of a server share.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use stratann_core::peer::{FrameCodec, JOB_BYTES, Limits, POOL_BYTES, Peer, Served, THREAD_POOL_BYTES};
use stratann_core::place::{Others, Parts};
use stratann_core::query::wire::Carry;
use stratann_core::query::{Budget, Params};
use stratann_storage::budget::{Account, PROGRAM_BYTES, READER_BYTES, THREAD_BYTES, size};
use stratann_storage::ledger::{Guarantee, Ledger, Part, Reservation};
use stratann_storage::link::{Link, MEASUREMENTS_MAX, MEASURING_BYTES};
use stratann_storage::{Result, tier};

use super::actions::SendingByRound;
use super::connections::Connections;
use super::filters::filters_bytes;
use super::inbox::{Inbox, Job, Place, Size};
use super::known_filters::KnownFilters;
use super::scores::Scores;
use super::served_index::ServedIndex;
use super::visits::{VISITS_BYTES, Visits};
use super::waits::Waits;
use super::worker::Worker;
use super::{QueryFilter, Reply, ServeOptions, lock};
use crate::exec::{Driver, DriverOptions, Segment, SharedReads, Width};
use crate::index::Index;
use crate::kinds::kind;
use crate::kinds::state_bytes;
use crate::search::{DOORBELLS, Effort, SearchOptions};

/// Bytes that may wait for one other server.
pub(super) const QUEUE_BYTES: usize = 512 << 10;
/// Interval at which expired queries and late attempts are looked for.
const TICK: Duration = Duration::from_millis(10);
/// Bytes that the protocol keeps with each vector.
const KEPT_BYTES: u64 = 256;
/// Bytes of a client's query until its answer, without its vector: entries, and the state until it runs.
const WAITING_BYTES: u64 = 2048;
/// Bytes of each of k results that the origin of a query keeps when other servers report them.
const REPORTED_BYTES: u64 = 48;
/// Results of a client's query that its guaranteed memory suffices for.
const USUAL_K: u64 = 100;
/// Set aside for batons that wait, bytes.
const BATON_BYTES: u64 = 1 << 20;
/// Longest turn of a query on a driver thread, nanoseconds.
const TURN_NS: u64 = 500_000;

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
    pub(super) jobs_out: AtomicU64,
    pub(super) jobs_in: AtomicU64,
    pub(super) components: AtomicU64,
    pub(super) refused_batons: AtomicU64,
    pub(super) filters_made: AtomicU64,
    pub(super) filters_reused: AtomicU64,
    pub(super) lost_reads: AtomicU64,
    pub(super) merged_reads: AtomicU64,
    pub(super) merged_bytes: AtomicU64,
    pub(super) loads: AtomicU64,
    pub(super) loaded_bytes: AtomicU64,
    pub(super) round_trips: AtomicU64,
    pub(super) usual_waits: Waits,
    pub(super) heavy_waits: Waits,
}

impl Counters {
    /// The waiting times of queries of this size.
    pub(super) fn waits(&self, size: &Size) -> &Waits {
        if size.is_heavy { &self.heavy_waits } else { &self.usual_waits }
    }
}

/// A client that waits for an answer.
pub(super) struct Client {
    pub(super) reply: Reply,
    pub(super) asked: Instant,
    pub(super) partial: bool,
    pub(super) place: Place,
    pub(super) size: Size,
    pub(super) filter: Option<QueryFilter>,
    pub(super) _memory: Reservation,
}

/// Permission to run a query. Dropping it releases the query's memory beyond a usual slot, and its place among heavy
/// queries.
pub(super) struct Permit<'a> {
    server: &'a ServerState,
    is_heavy: bool,
    memory: Option<Reservation>,
}

impl Permit<'_> {
    /// Keeps this memory as well.
    pub(super) fn with(mut self, memory: Option<Reservation>) -> Self {
        self.memory = memory.or(self.memory.take());
        self
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let had_memory = self.memory.take().is_some();
        if self.is_heavy {
            self.server.heavy.fetch_sub(1, Ordering::SeqCst);
        }
        if self.is_heavy || had_memory {
            self.server.inbox.resume();
        }
    }
}

/// Memory of queries of the usual size, which is set aside for all of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usual {
    asked_bytes: u64,
    buffer_bytes: u64,
    width: u64,
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
    // The version in which states are written.
    pub(super) states_version: AtomicU32,
    pub(super) abandoned: AtomicU64,
    known: Mutex<Others>,
    pub(super) parts: Parts,
    pub(super) inbox: Inbox,
    pub(super) scores: Scores,
    pub(super) connections: Connections,
    pub(super) link: OnceLock<Link>,
    pub(super) clients: Mutex<HashMap<u64, Client>>,
    pub(super) next_client: AtomicU64,
    pub(super) running: AtomicUsize,
    pub(super) ledger: Arc<Ledger>,
    // What the ledger has set aside for this server.
    pub(super) guarantees: Mutex<Vec<Guarantee>>,
    // For the ids of all rows, once they are read.
    pub(super) row_ids: Mutex<Option<Guarantee>>,
    // Those that other servers sent.
    pub(super) known_filters: Mutex<KnownFilters>,
    // For what it shared with the version before, since that was closed.
    shared_guarantee: OnceLock<Guarantee>,
    usual: Usual,
    // Heavy queries that run, and the most that may.
    heavy: AtomicUsize,
    heavy_max: usize,
    // Threads that read blocks for one driver thread.
    readers: usize,
    pub(super) counters: Arc<Counters>,
    // Of an index whose partition can be planned again.
    visits: Visits,
    pub(super) started: Instant,
    pub(super) backend: OnceLock<String>,
    // Ranges of blocks with failed reads; each is logged once.
    pub(super) unreadable: Mutex<BTreeSet<u32>>,
    // Why memory nodes cannot be read now.
    pub(super) memory_lost: Mutex<Option<String>>,
    // Why the load that memory nodes have now cannot be served here.
    pub(super) unfit_load: OnceLock<String>,
    // The reason why a driver thread ended early.
    pub(super) broken: OnceLock<String>,
    pub(super) stopped: (Mutex<bool>, Condvar),
    pub(super) is_stopped: AtomicBool,
}

fn search_options(options: &ServeOptions) -> SearchOptions {
    SearchOptions {
        effort: Effort::Recall(0.95),
        in_flight: options.in_flight,
        threads: options.threads,
        batch_options: options.batch_options,
        ..SearchOptions::default()
    }
}

/// Most reads under way of one driver thread.
fn tier_depth(index: &Index, options: &ServeOptions) -> usize {
    if index.base.facts().shares_reads {
        return (2 * options.batch_options.doorbell).clamp(1, 1024);
    }
    let options = search_options(options);
    (index.in_flight(&options) * index.width_limit(&options) as usize).clamp(8, 1024)
}

/// Facts of the index for the protocol.
fn served(index: &ServedIndex, options: &ServeOptions) -> Served {
    let view = index.view();
    Served {
        build: index.build(),
        kind: view.kind_number(),
        vector_bytes: index.index().base.row_bytes(),
        size: view.size(),
        carry: index.carry(options.carry).unwrap_or(Carry::Distances),
        results: options.results,
        rescores: view.rescores(),
        jobs_have_queries: view.jobs_have_queries(),
        parts: index.parts(),
    }
}

/// A number that differs each time the server starts.
fn incarnation() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u32)
}

impl ServerState {
    /// `previous_version` is the server of the version that is served now, when this one is for another version.
    pub(super) fn new(
        options: ServeOptions,
        index: ServedIndex,
        previous_version: Option<&ServerState>,
    ) -> ServerState {
        let (view, served) = (index.view(), served(&index, &options));
        let server = options.server.unwrap_or(0);
        let limits = Limits {
            origins: options.queue,
            hosted: options.queue.saturating_mul(index.hosted_per_query()),
            patience_us: options.patience.as_micros() as u64,
            filter_bytes: filters_bytes(&index),
            ..Limits::default()
        };
        let live = 1u64.checked_shl(server.into()).unwrap_or(0);
        let mut peer = Peer::new(server, incarnation(), served, live, limits);
        peer.read_up_to(options.versions.states.1.into());
        let own = index.index();
        let usual = Usual {
            asked_bytes: state_bytes(&own.usual_params()),
            buffer_bytes: own.buffer_bytes_max() as u64,
            width: Width::Auto.at_load(1).1.into(),
        };
        let slots = options.threads * own.in_flight(&search_options(&options));
        let ledger = options.ledger.clone().unwrap_or_else(|| Ledger::new(options.ram_budget));
        let reads = tier_depth(own, &options);
        let states_version = AtomicU32::new(peer.states_version());
        ServerState {
            ledger,
            guarantees: Mutex::default(),
            row_ids: Mutex::default(),
            known_filters: Mutex::default(),
            shared_guarantee: OnceLock::new(),
            usual,
            heavy: AtomicUsize::new(0),
            heavy_max: (slots / 2).max(1),
            readers: tier::threads(options.io, reads),
            budget: view.budget(),
            replica_sets: index.replica_sets(),
            codec: peer.codec(),
            peer: Mutex::new(peer),
            states_version,
            abandoned: AtomicU64::new(0),
            known: Mutex::new(Others::live(live)),
            parts: served.parts,
            inbox: Inbox::new(options.threads),
            scores: Scores::new(options.threads),
            connections: Connections::new(options.threads),
            link: OnceLock::new(),
            clients: Mutex::default(),
            next_client: AtomicU64::new(0),
            running: AtomicUsize::new(0),
            counters: previous_version.map_or_else(Arc::default, |other| other.counters.clone()),
            visits: Visits::default(),
            // One clock for both.
            started: previous_version.map_or_else(Instant::now, |other| other.started),
            backend: OnceLock::new(),
            unreadable: Mutex::default(),
            memory_lost: Mutex::default(),
            unfit_load: OnceLock::new(),
            broken: OnceLock::new(),
            stopped: Default::default(),
            is_stopped: AtomicBool::new(false),
            options,
            index,
        }
    }

    /// Lets all threads end.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        *lock(&self.stopped.0) = true;
        self.stopped.1.notify_all();
        self.inbox.wake_all();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    /// Notes the lists that a query of a client visits. Of lists that the members of one are dealt over, the first one
    /// stands for all.
    pub(super) fn note_visits(&self, ranked: &[(f32, u32)]) {
        let stripes = self.index.index().kind.sliced().map_or(1, |own| own.stripes());
        if !ranked.is_empty() && self.options.server.is_some() {
            self.visits.note(ranked.iter().step_by(stripes as usize).map(|list| list.1 / stripes));
        }
    }

    /// The lists that each of the last queries of clients visited.
    pub(super) fn recent_visits(&self) -> Vec<Vec<u32>> {
        self.visits.all()
    }

    pub(super) fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// State of the other servers of the cluster, as far as it is known.
    pub(super) fn lock_known(&self) -> MutexGuard<'_, Others> {
        lock(&self.known)
    }

    /// State of the other servers of this part, as the part's views number them.
    pub(super) fn others(&self) -> Others {
        self.parts.within(self.codec.server(), &self.lock_known())
    }

    pub(super) fn lock_peer(&self) -> MutexGuard<'_, Peer> {
        lock(&self.peer)
    }

    /// Loads list codes, then records, into the memory that the budget leaves when everything else has its share.
    /// `used` bytes are taken by another version.
    /// A server of a partition does not learn where that would take a third or more of this memory: it would read more
    /// lists than it saves.
    pub(super) fn load_resident(&mut self, used: u64) -> Result<()> {
        let Some(budget) = self.options.ram_budget else { return Ok(()) };
        let learning = self.index.index().learning().filter(|learning| learning.is_on());
        let bytes = learning.map_or(0, |learning| learning.bytes(self.options.threads));
        let left = self.left_for_lists(budget, used);
        let stops = self.options.server.is_some() && bytes > left / 2;
        if stops {
            self.index.stop_learning();
        }
        let left_without = self.left_for_lists(budget, used);
        // Otherwise the budget is refused.
        if stops && left_without > 0 {
            (self.options.log)(&format!(
                "learning from queries would take {} and leave {} for lists: it is off; a larger --ram-budget has \
                 room for both",
                size(bytes),
                size(left)
            ));
        }
        self.index.load_resident(left_without)
    }

    fn left_for_lists(&self, budget: u64, used: u64) -> u64 {
        let taken = self.account().total();
        let left = budget.saturating_sub(taken + used);
        // Equal shares for both versions, so that neither leaves the other without.
        let both = budget.saturating_sub(2 * taken - PROGRAM_BYTES) / 2;
        if self.options.may_change { left.min(both) } else { left }
    }

    /// Memory by component.
    pub(super) fn account(&self) -> Account {
        let options = search_options(&self.options);
        let index = self.index.index();
        let mut account = self.index.account();
        if self.options.cache_budget > 0 {
            account.components.retain(|c| c.0 != "block cache");
            account.add("block cache", index.block_cache_bytes());
        }
        let slots = index.in_flight(&options) + self.job_slots();
        let threads = self.options.threads;
        let in_flight = match index.base.facts().shares_reads {
            true => index.served_slots_bytes(threads, slots),
            false => (threads * slots) as u64 * self.slot_bytes(),
        };
        account.add("queries in flight", in_flight);
        if let Some(own) = index.kind.shares_loads() {
            account.add(DOORBELLS, threads as u64 * own.doorbells_bytes(&self.options.batch_options));
        }
        account.add("largest query", self.largest_bytes());
        let threads = threads as u64;
        let each = THREAD_BYTES + THREAD_POOL_BYTES as u64 + self.readers as u64 * READER_BYTES;
        account.add("threads", threads * each);
        if index.manifest().facts().is_sliced && self.options.server.is_some() {
            account.add("recent visits", VISITS_BYTES);
        }
        if let Some(learning) = index.learning() {
            account.add("learning", learning.bytes(self.options.threads));
        }
        let hosted = if self.options.peers.len() > 1 { self.index.hosted_per_query() } else { 0 };
        let kept = (self.options.queue * hosted) as u64 * (index.base.row_bytes() as u64 + KEPT_BYTES);
        account.add("queries of others", kept + POOL_BYTES as u64);
        account.add("queries that wait", self.options.queue as u64 * self.waiting_bytes(USUAL_K));
        let others = self.options.peers.len().saturating_sub(1) as u64;
        if others > 0 {
            account.add("batons that wait", BATON_BYTES);
            // As they came, and as they are asked.
            account.add("filters of queries", 2 * filters_bytes(&self.index));
            if index.base.facts().scores_remotely {
                account.add("jobs of other servers", others * JOB_BYTES);
            }
        }
        let measuring = if others > 0 { MEASUREMENTS_MAX * (THREAD_BYTES + MEASURING_BYTES) } else { 0 };
        account.add("links", others * (2 * QUEUE_BYTES as u64 + 2 * THREAD_BYTES + (64 << 10)) + measuring);
        account
    }

    /// Memory of a slot for queries of the usual size.
    fn slot_bytes(&self) -> u64 {
        self.index.index().usual_query_bytes() + self.usual.width * self.usual.buffer_bytes
    }

    /// Memory of the largest query that a client may ask beyond a slot, at the usual width.
    fn largest_bytes(&self) -> u64 {
        let (index, caps) = (self.index.index(), &self.options.caps);
        let k = caps.max_k.min(self.index.rows() as usize) as u32;
        let params = kind(index.base.kind).usual_params(k, caps.max_list.max(caps.max_nprobe));
        self.size_of(&params, None, false).extra_bytes
    }

    /// Memory of a client's query until its answer.
    pub(super) fn waiting_bytes(&self, k: u64) -> u64 {
        let reported = if self.options.peers.len() > 1 { k * REPORTED_BYTES } else { 0 };
        self.index.index().base.row_bytes() as u64 + KEPT_BYTES + WAITING_BYTES + reported
    }

    /// Memory of a query beyond a usual slot.
    pub(super) fn size_of(&self, params: &Params, filter: Option<&QueryFilter>, is_batch: bool) -> Size {
        let reads = u64::from(params.width).saturating_sub(self.usual.width) * self.usual.buffer_bytes;
        let own = state_bytes(params) + filter.map_or(0, QueryFilter::more_bytes);
        let extra_bytes = own.saturating_sub(self.usual.asked_bytes) + reads;
        Size { extra_bytes, buffers_bytes: reads as usize, is_heavy: is_batch || extra_bytes > 0 }
    }

    /// Slots of a thread for queries.
    pub(super) fn query_slots(&self) -> usize {
        self.index.index().in_flight(&search_options(&self.options))
    }

    /// Slots of a thread for jobs of other servers alone.
    fn job_slots(&self) -> usize {
        let has_jobs = self.options.peers.len() > 1 && self.index.index().base.facts().scores_remotely;
        if has_jobs { (self.query_slots() / 4).max(2) } else { 0 }
    }

    /// Reserves what a query needs to run. `None` while heavy queries have half of the slots, or the memory is in use.
    /// A job always runs: its memory was reserved when it came, and a query waits for it.
    pub(super) fn permit(&self, job: &Job) -> Option<Permit<'_>> {
        let size = &job.size;
        if job.run.job.is_some() {
            return Some(Permit { server: self, is_heavy: false, memory: None });
        }
        if size.is_heavy && self.heavy.load(Ordering::SeqCst) >= self.heavy_max {
            return None;
        }
        let memory = match size.extra_bytes {
            0 => None,
            extra => Some(self.ledger.reserve(Part::LargeQueries, extra)?),
        };
        // No other thread comes between: the inbox is locked.
        self.heavy.fetch_add(usize::from(size.is_heavy), Ordering::SeqCst);
        Some(Permit { server: self, is_heavy: size.is_heavy, memory })
    }

    /// Sets the memory of the account aside in the ledger of the process. A previous version counts the
    /// program already.
    pub(super) fn set_aside(&self, has_previous_version: bool) -> Result<()> {
        let account = self.account();
        let of = |name: &str| account.components.iter().filter(|c| c.0 == name).map(|c| c.1).sum::<u64>();
        let parts = [
            (Part::Slots, of("queries in flight")),
            (Part::LargeQueries, of("largest query")),
            (Part::Waiting, of("queries that wait")),
            (Part::Batons, of("batons that wait") + of("jobs of other servers")),
        ];
        let program = if has_previous_version { PROGRAM_BYTES } else { 0 };
        let shared = if has_previous_version { self.index.index().shared_bytes() } else { 0 };
        let fixed = account.total() - parts.iter().map(|part| part.1).sum::<u64>() - program;
        // The other version has set aside what both have: see [`ServerState::set_aside_shared`].
        let fixed = fixed.saturating_sub(shared);
        let all = parts.into_iter().chain([(Part::Fixed, fixed)]);
        let guarantees =
            all.map(|(part, bytes)| self.ledger.guarantee(part, bytes)).collect::<Result<Vec<_>>>()?;
        *lock(&self.guarantees) = guarantees;
        Ok(())
    }

    /// Sets aside what this version shared with the one before, which is closed now. Returns whether there is memory.
    pub(super) fn set_aside_shared(&self) -> bool {
        let shared = self.index.index().shared_bytes();
        if shared == 0 || self.shared_guarantee.get().is_some() {
            return true;
        }
        let guarantee = self.ledger.guarantee(Part::Fixed, shared);
        guarantee.is_ok_and(|guarantee| self.shared_guarantee.set(guarantee).is_ok())
    }

    /// Runs one driver thread, from its tier to its end.
    pub(super) fn drive(&self, thread: usize, ready: &Sender<std::result::Result<&'static str, String>>) {
        let index = self.index.index();
        let in_flight = self.query_slots() + self.job_slots();
        let depth = tier_depth(index, &self.options);
        let tier = index.tier(depth, self.options.io, self.options.batch_options.doorbell);
        let opened = tier.and_then(|mut tier| {
            let waker = tier.waker()?;
            Ok((tier, waker, self.live_thread()?))
        });
        let (tier, waker, live) = match opened {
            Ok(opened) => opened,
            Err(e) => {
                let _ = ready.send(Err(format!("reading blocks is not possible: {e}; use another io")));
                return;
            }
        };
        // Before the thread reports: if another one fails, this one must be woken to end. The link starts afterwards.
        self.inbox.set_waker(thread, waker);
        let taking = self.connections.open(thread);
        let _ = ready.send(Ok(tier.name()));
        let driver = DriverOptions {
            buffer_bytes: index.base.block.block_bytes,
            in_flight,
            admission: Default::default(),
            width: Width::Auto,
            buffers_bytes: match index.base.facts().shares_reads {
                // Those of its doorbells.
                true => usize::MAX,
                false => in_flight * (self.usual.width * self.usual.buffer_bytes) as usize,
            },
            turn_ns: TURN_NS,
        };
        let batch_loads = self.batch_loads();
        let shared_reads = SharedReads::of_process();
        let sending = SendingByRound::begin();
        let ran = Driver::new(Arc::new(&self.index), tier, driver)
            .sharing(self.options.merge.then_some(shared_reads))
            .with_batch_loads(batch_loads.as_ref().map(|batch_loads| (batch_loads.member(0), shared_reads)))
            .run(&mut Worker::new(self, live, thread));
        drop((taking, sending));
        self.send_queued();
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
            self.link.get().into_iter().for_each(Link::write_late);
            let now_abandoned = self.abandoned.load(Ordering::Relaxed);
            if now_abandoned != abandoned {
                abandoned = now_abandoned;
                self.clear_inbox();
                // Those that run wait for reads, perhaps.
                self.inbox.wake_all();
            }
            // Memory of other parts may have become free.
            self.inbox.resume();
        }
    }

    fn clear_inbox(&self) {
        let peer = self.lock_peer();
        let now_us = self.now_us();
        let removed = self.inbox.retain(|run| peer.is_wanted(now_us, run));
        self.counters.dropped_runs.fetch_add(removed as u64, Ordering::Relaxed);
    }
}
