//! One server: driver threads over an index, or over its share of one that is spread; the protocol with the other servers
//! ([`stratann_core::peer`]) over a [`Link`]; and the queries of clients.
//!
//! ```text
//! client ── ask ──▶ Peer ── Start ──▶ Inbox ──▶ driver thread ── stepped ──▶ Peer ──▶ Answer ──▶ client
//!                    ▲                                                        │
//!                    └──────────────── frames ◀── Link ◀──────────────────────┘
//! ```
//!
//! The protocol is one state machine behind one lock, held for microseconds at a time. What it decides is carried out after the lock
//! is given back.

mod act;
mod held;
mod inbox;
mod question;
mod status;
mod versions;
mod worker;

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use stratann_core::peer::message::Refused;
use stratann_core::peer::{Limits, Peer, SPARE_BYTES, Served};
use stratann_core::place::SERVERS_MAX;
use stratann_core::query::wire::{Carry, Results};
use stratann_core::query::{Budget, Params};

use self::held::Held;
use self::inbox::Inbox;
pub use self::question::{Answer, Question, Reply, Unanswered};
pub use self::status::Status;
pub use self::versions::{Changed, Versions};
use self::worker::Worker;
use crate::budget::{Account, PROGRAM_BYTES, THREAD_BYTES};
use crate::driver::{Driver, DriverOptions, Width, allowance};
use crate::kinds::kind::Kind;
use crate::kinds::options::{Learn, LearnOptions};
use crate::link::{Link, LinkOptions, Log, Receive, Tls};
use crate::manifest::Manifest;
use crate::search::{Effort, SearchOptions};
use crate::tier::IoChoice;
use crate::{Error, Result};

/// What a server serves, and how.
#[derive(Clone)]
pub struct ServeOptions {
    /// A plain index, one that is spread over servers, or a folder of separate ones, of which every query is asked.
    pub index: PathBuf,
    /// This server's number in a spread index, or among separate ones; `None` for a plain one.
    pub server: Option<u8>,
    /// Where the other servers reach it; `None` when it is alone.
    pub listen: Option<SocketAddr>,
    /// `HOST:PORT` of all servers, by number; this one's entry is not used, nor one that is empty. No entries when it is alone.
    pub peers: Vec<String>,
    /// What all servers of the cluster know.
    pub secret: Vec<u8>,
    /// Certificates, when what servers say to each other is to be encrypted.
    pub tls: Option<Tls>,
    /// Driver threads.
    pub threads: usize,
    /// Queries in flight on each; `None` picks.
    pub in_flight: Option<usize>,
    /// How blocks are read.
    pub io: IoChoice,
    /// Everything that the server may take, in bytes; `None` for no limit.
    pub ram_budget: Option<u64>,
    /// Of it, what the block cache may take.
    pub cache_budget: u64,
    /// Whether another version may be opened beside this one: then codes of a `hybrid-ivf` leave room for it.
    pub may_change: bool,
    /// Whether, and how, a `hybrid-ivf` learns from its queries.
    pub learning: LearnOptions,
    /// Queries of clients that are held at a time; one more is refused.
    pub queue: usize,
    /// What batons say of their candidates; `None` for the shortest that the index allows.
    pub carry: Option<Carry>,
    /// Where results go when their query is handed over.
    pub results: Results,
    /// What a lost frame costs its query: without an answer for so long it begins anew. A server that dies is noticed sooner, with its connection;
    /// but others may still send to it then.
    pub patience: Duration,
    /// Where to say what happens, a line each.
    pub log: Log,
}

impl Default for ServeOptions {
    fn default() -> Self {
        ServeOptions {
            index: PathBuf::new(),
            server: None,
            listen: None,
            peers: Vec::new(),
            secret: Vec::new(),
            tls: None,
            threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
            in_flight: None,
            io: IoChoice::Auto,
            ram_budget: None,
            cache_budget: 0,
            may_change: false,
            learning: LearnOptions { learn: Learn::On, ..LearnOptions::default() },
            queue: 4096,
            carry: None,
            results: Results::Along,
            patience: Duration::from_millis(500),
            log: Arc::new(|_| {}),
        }
    }
}

/// Bytes that may wait for one other server.
const QUEUE_BYTES: usize = 512 << 10;
/// How often expired queries and attempts are looked for.
const TICK: Duration = Duration::from_millis(10);
/// Vectors of other servers' queries that are kept, for each query of own clients.
const HOSTED_PER_QUERY: usize = 4;

/// What was counted since the start.
#[derive(Default)]
struct Counters {
    queries: AtomicU64,
    answered: AtomicU64,
    refused: AtomicU64,
    hand_overs_out: AtomicU64,
    hand_overs_in: AtomicU64,
    lost_reads: AtomicU64,
}

/// Who waits for an answer.
struct Client {
    reply: Reply,
    asked: Instant,
    partial: bool,
}

/// What all threads of a server have in common.
struct Shared {
    options: ServeOptions,
    held: Held,
    homes: Vec<u64>,
    allowance: Budget,
    peer: Mutex<Peer>,
    live: AtomicU64,
    loads: Mutex<[u8; SERVERS_MAX]>,
    inbox: Inbox,
    link: OnceLock<Link>,
    clients: Mutex<HashMap<u64, Client>>,
    next_client: AtomicU64,
    running: AtomicUsize,
    counters: Arc<Counters>,
    started: Instant,
    backend: OnceLock<String>,
    // Ranges of blocks of which some could not be read: each is told of once.
    unreadable: Mutex<BTreeSet<u32>>,
    // Why a driver thread ended before its time.
    broken: OnceLock<String>,
    stopped: (Mutex<bool>, Condvar),
    is_stopped: AtomicBool,
}

/// A running server. Dropping it stops it.
pub struct Server {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Opens the index, starts the threads, and begins to look for the other servers. It answers at once, as far as what it reaches allows.
    ///
    /// # Errors
    /// As [`crate::index::Index::open`] and [`crate::spread::Shard::open`]; a list of peers that does not fit the index; an address that cannot be listened on; a
    /// budget too small.
    pub fn start(options: ServeOptions) -> Result<Server> {
        Server::open(options, None)
    }

    /// Starts a server of another build beside this one, in the same place: it listens where this one does, goes on with its counters, and the
    /// budget must do for both.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_beside(&self, options: ServeOptions) -> Result<Server> {
        Server::open(options, Some(self))
    }

    fn open(options: ServeOptions, beside: Option<&Server>) -> Result<Server> {
        check(&options)?;
        let used = beside.map_or(0, |other| other.shared.account().total().saturating_sub(PROGRAM_BYTES));
        let held = Held::open(&options, used)?;
        held.carry(options.carry)?;
        held.index().warnings().iter().for_each(|warning| (options.log)(&format!("warning: {warning}")));
        let servers = held.servers();
        if options.listen.is_some() && options.peers.len() != servers {
            return Err(Error::bad_input(format!(
                "{} is spread over {servers} servers, the list of peers has {}; list all of them, by number",
                options.index.display(),
                options.peers.len()
            )));
        }
        let mut shared = Shared::new(options, held, beside);
        shared.bring_codes(used)?;
        let shared = Arc::new(shared);
        let mut account = shared.account();
        if used > 0 {
            account.add("the version that is served", used);
        }
        account.check(shared.options.ram_budget, "serve this index so")?;
        let mut server = Server { shared, threads: Vec::new() };
        server.start_drivers()?;
        server.start_link(beside)?;
        let ticking = server.shared.clone();
        server.threads.push(std::thread::spawn(move || ticking.keep_ticking()));
        Ok(server)
    }

    fn start_drivers(&mut self) -> Result<()> {
        let (sender, ready) = std::sync::mpsc::channel();
        for thread in 0..self.shared.options.threads {
            let (shared, sender) = (self.shared.clone(), sender.clone());
            self.threads.push(std::thread::spawn(move || shared.drive(thread, &sender)));
        }
        drop(sender);
        for _ in 0..self.shared.options.threads {
            let name = ready
                .recv()
                .map_err(|_| Error::corrupt("a driver thread ended at once; please report it"))?
                .map_err(|e| Error { kind: crate::Kind::Io, message: e })?;
            let _ = self.shared.backend.set(self.shared.held.index().base.backend_name(name));
        }
        Ok(())
    }

    fn start_link(&self, beside: Option<&Server>) -> Result<()> {
        let options = &self.shared.options;
        let (Some(listen), Some(server)) = (options.listen, options.server) else { return Ok(()) };
        let link = LinkOptions {
            server,
            build: self.shared.held.build(),
            listen,
            peers: options.peers.clone(),
            secret: options.secret.clone(),
            tls: options.tls.clone(),
            queue_bytes: QUEUE_BYTES,
            log: options.log.clone(),
        };
        let ear = Arc::new(Ear(Arc::downgrade(&self.shared)));
        let started = match beside.and_then(|other| other.shared.link.get()) {
            Some(other) => other.beside(link, ear).ok_or_else(|| std::io::Error::other("the server stops")),
            None => Link::start(link, ear),
        };
        let link = started.map_err(|e| Error {
            kind: crate::Kind::Io,
            message: format!("listening on {listen} failed: {e}; choose another address for listen"),
        })?;
        let _ = self.shared.link.set(link);
        Ok(())
    }

    /// Where other servers reach it, when it has others.
    pub fn listening(&self) -> Option<SocketAddr> {
        self.shared.link.get().map(Link::address)
    }

    /// Where another server is from now on; `ServeOptions::peers` may have left it empty.
    pub fn set_peer(&self, server: u8, address: String) {
        if let Some(link) = self.shared.link.get() {
            link.set_peer(server, address);
        }
    }

    /// The kind of the index.
    pub fn kind(&self) -> Kind {
        self.shared.held.index().base.kind
    }

    /// What is served.
    pub fn manifest(&self) -> &Manifest {
        self.shared.held.index().manifest()
    }

    /// The parameters that `options` come to, the width by the present load.
    ///
    /// # Errors
    /// As [`crate::index::Index::params`].
    pub fn params(&self, options: &SearchOptions) -> Result<Params> {
        let load = lock(&self.shared.clients).len() / self.shared.options.threads + 1;
        let mut params = self.shared.held.index().params(options)?;
        // A part that has fewer rows finds fewer; all of them together need not.
        params.k = options.k.min(self.shared.held.rows() as usize) as u32;
        params.search_list = params.search_list.max(params.k);
        (params.approach_width, params.width) = options.width.at_load(load);
        if params.is_valid() {
            Ok(params)
        } else {
            Err(Error::bad_input("width is out of range; use 1 to 64"))
        }
    }

    /// Asks a query; `reply` is called once, from any thread, perhaps before this returns. The vector must have been checked.
    pub fn ask(&self, question: Question<'_>, reply: Reply) {
        let shared = &self.shared;
        shared.counters.queries.fetch_add(1, Ordering::Relaxed);
        let refusal = match shared.broken.get() {
            Some(why) => Some(why.clone()),
            None if shared.is_stopped() => Some("the server stops".to_string()),
            None if question.vector.len() != shared.held.index().base.row_bytes() => {
                Some("the query has another number of bytes than a vector of the index".to_string())
            }
            None => None,
        };
        if let Some(why) = refusal {
            shared.counters.refused.fetch_add(1, Ordering::Relaxed);
            return reply(Err(Unanswered::Failed(why)));
        }
        let client = shared.next_client.fetch_add(1, Ordering::Relaxed);
        let waiting = Client { reply, asked: Instant::now(), partial: question.partial };
        lock(&shared.clients).insert(client, waiting);
        let time_us = u64::try_from(question.timeout.as_micros()).unwrap_or(u64::MAX);
        let what = (question.params, shared.allowance);
        shared.with_peer(|peer, now_us, out| peer.ask(now_us, client, what, question.vector, time_us, out));
    }

    /// Bytes of a block of what is served.
    pub fn block_bytes(&self) -> usize {
        self.shared.held.index().base.block.block_bytes
    }

    /// How the server fares.
    pub fn status(&self) -> Status {
        Status::of(&self.shared)
    }

    /// Queries of clients, and vectors of queries, that the protocol holds now.
    pub fn held(&self) -> (usize, usize) {
        self.shared.lock_peer().held()
    }

    /// Ends all threads; queries that still wait are refused.
    pub fn stop(self) {}
}

impl Drop for Server {
    fn drop(&mut self) {
        let shared = &self.shared;
        shared.is_stopped.store(true, Ordering::SeqCst);
        *lock(&shared.stopped.0) = true;
        shared.stopped.1.notify_all();
        shared.inbox.wake_all();
        if let Some(link) = shared.link.get() {
            link.stop();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        let waiting: Vec<Client> = lock(&shared.clients).drain().map(|(_, client)| client).collect();
        for client in waiting {
            (client.reply)(Err(Unanswered::Failed("the server stops".into())));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// What can be told to be wrong without the index.
fn check(options: &ServeOptions) -> Result<()> {
    let wrong = |what: &str| Err(Error::bad_input(what));
    if options.threads == 0 {
        return wrong("threads is 0; use 1 or more");
    }
    match (options.server, options.listen) {
        (None, Some(_)) => wrong("a server that listens to others needs its number; set server"),
        (Some(_), None) if options.peers.len() > 1 => {
            wrong("a server with peers needs an address for them; set listen")
        }
        _ => Ok(()),
    }
}

/// A number that differs each time the server starts.
fn incarnation() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u32)
}

/// The link's way to a server that may have gone.
struct Ear(Weak<Shared>);

impl Receive for Ear {
    fn frame(&self, server: u8, frame: &[u8]) -> std::result::Result<(), Refused> {
        let Some(shared) = self.0.upgrade() else { return Ok(()) };
        let mut taken = Ok(());
        shared.with_peer(|peer, now_us, out| taken = peer.received(now_us, server, frame, out));
        taken
    }

    fn up(&self, server: u8) {
        if let Some(shared) = self.0.upgrade() {
            shared.with_peer(|peer, _, out| peer.up(server, out));
        }
    }

    fn down(&self, server: u8) {
        if let Some(shared) = self.0.upgrade() {
            shared.with_peer(|peer, now_us, out| peer.down(now_us, server, out));
        }
    }
}

impl Shared {
    fn new(options: ServeOptions, held: Held, beside: Option<&Server>) -> Shared {
        let view = held.view(0);
        let served = Served {
            build: held.build(),
            vector_bytes: held.index().base.row_bytes(),
            nodes: view.nodes,
            carry: held.carry(options.carry).unwrap_or(Carry::Distances),
            results: options.results,
            rescores: view.rescores(),
            apart: match &held {
                Held::Apart(_, description) => Some(description.servers as u8),
                _ => None,
            },
        };
        let server = options.server.unwrap_or(0);
        let limits = Limits {
            origins: options.queue,
            hosted: options.queue.saturating_mul(held.hosted_per_query()),
            patience_us: options.patience.as_micros() as u64,
            ..Limits::default()
        };
        let live = 1u64.checked_shl(server.into()).unwrap_or(0);
        Shared {
            allowance: allowance(&view),
            homes: held.homes(),
            peer: Mutex::new(Peer::new(server, incarnation(), served, live, limits)),
            live: AtomicU64::new(live),
            loads: Mutex::new([0; SERVERS_MAX]),
            inbox: Inbox::new(options.threads),
            link: OnceLock::new(),
            clients: Mutex::default(),
            next_client: AtomicU64::new(0),
            running: AtomicUsize::new(0),
            counters: beside.map_or_else(Arc::default, |other| other.shared.counters.clone()),
            // One clock for both.
            started: beside.map_or_else(Instant::now, |other| other.shared.started),
            backend: OnceLock::new(),
            unreadable: Mutex::default(),
            broken: OnceLock::new(),
            stopped: Default::default(),
            is_stopped: AtomicBool::new(false),
            options,
            held,
        }
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    fn lock_loads(&self) -> MutexGuard<'_, [u8; SERVERS_MAX]> {
        lock(&self.loads)
    }

    fn lock_peer(&self) -> MutexGuard<'_, Peer> {
        lock(&self.peer)
    }

    /// Codes of clusters come into what the budget leaves of RAM once everything else has its place, `used` bytes elsewhere included.
    fn bring_codes(&mut self, used: u64) -> Result<()> {
        let Some(budget) = self.options.ram_budget else { return Ok(()) };
        let taken = self.account().total();
        let left = budget.saturating_sub(taken + used);
        // As much for each version, so that neither leaves the other without.
        let both = budget.saturating_sub(2 * taken - PROGRAM_BYTES) / 2;
        self.held.bring_codes(if self.options.may_change { left.min(both) } else { left })
    }

    /// Memory by component.
    fn account(&self) -> Account {
        let options = self.search_options();
        let index = self.held.index();
        let mut account = self.held.account();
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
        let vectors = self.options.queue
            * if self.options.peers.len() > 1 { 1 + self.held.hosted_per_query() } else { 1 };
        let kept = vectors as u64 * (index.base.row_bytes() as u64 + KEPT_BYTES);
        let waiting = self.options.queue as u64 * WAITING_BYTES + SPARE_BYTES as u64;
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

    /// One driver thread, from its tier to its end.
    fn drive(&self, thread: usize, ready: &Sender<std::result::Result<&'static str, String>>) {
        let index = self.held.index();
        let options = self.search_options();
        let in_flight = index.in_flight(&options);
        let depth = (in_flight * index.width_limit(&options) as usize).clamp(8, 1024);
        let opened = self.held.tier(depth, self.options.io).and_then(|mut tier| {
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
        // Before anybody hears of this thread: should another one fail, this one must be woken to end.
        self.inbox.set_waker(thread, waker);
        let _ = ready.send(Ok(tier.name()));
        let driver = DriverOptions { in_flight, admission: Default::default(), width: Width::Auto };
        let view = self.held.view(self.live.load(Ordering::Relaxed));
        let ran = Driver::new(view, index.cache.as_ref(), tier, driver).run(&mut Worker::new(self, thread));
        if let Err(e) = ran {
            let why = format!(
                "reading {} failed: {e}; check the disk and start the server again",
                index.base.blocks_path.display()
            );
            (self.options.log)(&why);
            let _ = self.broken.set(why);
        }
    }

    /// Looks at the clock for the protocol until the server stops.
    fn keep_ticking(&self) {
        let mut stopped = lock(&self.stopped.0);
        while !*stopped {
            let waited = self.stopped.1.wait_timeout(stopped, TICK);
            stopped = waited.unwrap_or_else(|e| e.into_inner()).0;
            let holds = self.lock_peer().held() != (0, 0);
            if holds && !*stopped {
                self.with_peer(|peer, now_us, out| peer.tick(now_us, out));
            }
        }
    }
}

/// What the protocol keeps with each vector.
const KEPT_BYTES: u64 = 256;
/// What is kept of a query of a client until it runs, besides its vector.
const WAITING_BYTES: u64 = 1024;
