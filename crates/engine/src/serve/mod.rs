//! One server: driver threads over an index or a shard of one, the protocol with the other servers
//! ([`stratann_core::peer`]) over a [`Link`], and the queries of clients.
//!
//! ```text
//! client ── ask ──▶ Peer ── Start ──▶ Inbox ──▶ driver thread ── stepped ──▶ Peer ──▶ Answer ──▶ client
//!                    ▲                                                        │
//!                    └──────────────── frames ◀── Link ◀──────────────────────┘
//! ```
//!
//! The protocol is one state machine behind one lock, held for microseconds at a time. Frames and states are decoded
//! before the lock is taken and encoded outside of it; actions are performed after it is released.

mod actions;
mod connections;
mod filters;
mod inbox;
mod known_filters;
mod options;
mod question;
mod remote_batches;
mod scores;
mod served_index;
mod state;
mod status;
mod versions;
mod visits;
mod waits;
mod worker;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Instant;

use stratann_core::peer::message::Refused;
use stratann_core::query::Params;
use stratann_storage::budget::{PROGRAM_BYTES, size};
use stratann_storage::ledger::{Part, Reservation};
use stratann_storage::link::{Agreed, Inbound, Link, LinkOptions, LinkReceiver};
use stratann_storage::names::BuildId;
use stratann_storage::threads::{self, Running};
use stratann_storage::{Error, Result};

pub use self::filters::{FilterCounts, KeptFilters, QueryFilter, RequestFilters};
use self::inbox::Place;
pub use self::options::{Caps, MemoryNodes, ServeOptions};
pub use self::question::{Answer, Question, Reply, Unanswered};
use self::served_index::ServedIndex;
use self::state::{Client, QUEUE_BYTES, ServerState};
pub use self::status::{LedgerUse, Status};
pub use self::versions::{Changed, Versions};
pub use self::waits::{WaitTimes, WaitsByClass};
use crate::kinds::own_mut;
use crate::kinds::shares_loads::{CachedClusters, ClusterMap, SharesLoads};
use stratann_params::IndexKind;

use crate::kinds;
use crate::manifest::Manifest;
use crate::search::SearchOptions;
use crate::spread::LANDMARK_BYTES_MAX;

/// A running server. Dropping it stops it.
pub struct Server {
    state: Arc<ServerState>,
    threads: Vec<Running>,
}

impl Server {
    /// Opens the index, starts the threads, and begins to connect to the other servers. It answers at once, as far as
    /// the servers that it reaches allow.
    ///
    /// # Errors
    /// As [`crate::index::Index::open`] and [`crate::spread::Shard::open`]; a list of peers that does not fit the
    /// index; an address that cannot be listened on; a budget that is too small.
    pub fn start(options: ServeOptions) -> Result<Server> {
        Server::open(options, None, true)
    }

    /// Starts a server of another build beside this one. It listens at the same address and continues the same
    /// counters; the budget covers both.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_beside(&self, options: ServeOptions) -> Result<Server> {
        Server::open(options, Some(self), false)
    }

    /// Starts a server of what memory nodes have now, in the place of this one, whose load is over. It continues the
    /// same counters. This one answers nothing more, whatever comes of it.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub(super) fn start_instead(&self, why: &Error) -> Result<Server> {
        self.state.retire(why.message.clone());
        Server::open(self.state.options.clone(), Some(self), true)
    }

    /// `before` is the server of another version. It goes on beside this one unless it is `over`.
    fn open(options: ServeOptions, before: Option<&Server>, over: bool) -> Result<Server> {
        options.check()?;
        let previous_version = before.filter(|_| !over);
        let used =
            previous_version.map_or(0, |other| other.state.account().total().saturating_sub(PROGRAM_BYTES));
        let index = ServedIndex::open(&options, used, previous_version.map(|other| &other.state.index))?;
        // What both versions have is counted once.
        let shared = index.index().shared_bytes();
        let used = used.saturating_sub(shared);
        if shared > 0 {
            (options.log)(&format!(
                "{} of it are in memory already, with the version that is served",
                size(shared)
            ));
        }
        index.carry(options.carry)?;
        index.index().warnings().iter().for_each(|warning| (options.log)(&format!("warning: {warning}")));
        let servers = index.servers();
        if options.listen.is_some() && options.peers.len() != servers {
            return Err(Error::bad_input(format!(
                "{} is partitioned over {servers} servers, the list of peers has {}; list all of them, by number",
                options.index.display(),
                options.peers.len()
            )));
        }
        let mut state = ServerState::new(options, index, before.map(|other| &*other.state));
        state.load_resident(used)?;
        state.fit_doorbells();
        let state = Arc::new(state);
        let mut account = state.account();
        if used > 0 {
            account.add("the version that is served", used);
        }
        account.check(state.options.ram_budget, "serve this index so")?;
        state.set_aside(previous_version.is_some())?;
        let mut server = Server { state, threads: Vec::new() };
        server.start_drivers()?;
        server.start_link(previous_version)?;
        let ticking = server.state.clone();
        server.threads.push(threads::start(move || ticking.keep_ticking())?);
        if server.state.index.index().kind.live().is_some() {
            let looking = server.state.clone();
            server.threads.push(threads::start(move || looking.look_for_memory())?);
        }
        Ok(server)
    }

    fn start_drivers(&mut self) -> Result<()> {
        let (sender, ready) = std::sync::mpsc::channel();
        for thread in 0..self.state.options.threads {
            let (state, sender) = (self.state.clone(), sender.clone());
            self.threads.push(threads::start(move || state.drive(thread, &sender))?);
        }
        drop(sender);
        for _ in 0..self.state.options.threads {
            let name = ready
                .recv()
                .map_err(|_| Error::corrupt("a driver thread ended at once; please report it"))?
                .map_err(|e| Error { kind: stratann_storage::ErrorKind::Io, message: e })?;
            let _ = self.state.backend.set(self.state.index.index().base.backend_name(name));
        }
        Ok(())
    }

    fn start_link(&self, previous_version: Option<&Server>) -> Result<()> {
        let options = &self.state.options;
        let (Some(listen), Some(server)) = (options.listen, options.server) else { return Ok(()) };
        let link = LinkOptions {
            server,
            build: self.state.index.build(),
            listen,
            peers: options.peers.clone(),
            secret: options.secret.clone(),
            tls: options.tls.clone(),
            versions: options.versions,
            queue_bytes: QUEUE_BYTES,
            measured_every: Some(options.measured_every),
            log: options.log.clone(),
        };
        let receiver = Arc::new(PeerReceiver(Arc::downgrade(&self.state)));
        let started = match previous_version.and_then(|other| other.state.link.get()) {
            Some(other) => {
                other.beside(link, receiver).ok_or_else(|| std::io::Error::other("the server stops"))
            }
            None => Link::open(link, receiver),
        };
        let link = started.map_err(|e| Error {
            kind: stratann_storage::ErrorKind::Io,
            message: format!("listening on {listen} failed: {e}; choose another address for listen"),
        })?;
        // Not before the state holds it: a server's first status would be lost, and it never counted as live there.
        self.state.link.get_or_init(|| link).dial();
        Ok(())
    }

    /// Address for the other servers; `None` when it is alone.
    pub fn listening(&self) -> Option<SocketAddr> {
        self.state.link.get().map(Link::address)
    }

    /// Sets the address of another server; `ServeOptions::peers` may have left it empty.
    pub fn set_peer(&self, server: u8, address: String) {
        if let Some(link) = self.state.link.get() {
            link.set_peer(server, address);
        }
    }

    /// Manifest of the served index.
    pub fn manifest(&self) -> &Manifest {
        self.state.index.index().manifest()
    }

    /// Folder of the served index; empty where memory nodes have it.
    pub fn folder(&self) -> &Path {
        &self.state.options.index
    }

    /// Identifies the index of all servers.
    pub fn build_id(&self) -> BuildId {
        self.state.index.build_id()
    }

    /// The kind of the index.
    pub fn kind(&self) -> IndexKind {
        self.state.index.index().base.kind
    }

    /// Parameters of a query with these options, its width by the present load.
    ///
    /// # Errors
    /// As [`crate::index::Index::params`].
    pub fn params(&self, options: &SearchOptions) -> Result<Params> {
        self.params_of(options, None)
    }

    /// As [`Server::params`], of a query with a filter, which was made with these options.
    ///
    /// # Errors
    /// As [`Server::params`].
    pub fn params_of(&self, options: &SearchOptions, filter: Option<&QueryFilter>) -> Result<Params> {
        self.state.options.caps.check(options)?;
        let load = lock(&self.state.clients).len() / self.state.options.threads + 1;
        // Of several indexes each plans for the rows that it has.
        let has_parts = self.state.index.has_parts();
        let mut params = match filter.and_then(QueryFilter::params).filter(|_| !has_parts) {
            Some(planned) => planned,
            None => self.state.index.index().live_params(options)?,
        };
        // A server with fewer than k rows finds fewer results; all servers together may find k.
        params.k = options.k.min(self.state.index.rows() as usize) as u32;
        own_mut(&mut params.kind).fit_to_k(params.k);
        params = kinds::with_remote(params, self.state.options.remote);
        (params.approach_width, params.width) = kinds::width(&params, options.width).at_load(load);
        if !params.is_valid() {
            return Err(Error::bad_input("width is out of range; use 1 to 64"));
        }
        let extra = self.state.size_of(&params, filter, false).extra_bytes;
        match self.state.ledger.most(Part::LargeQueries) {
            most if extra > most => Err(Error::bad_input(format!(
                "this query takes {} more than a usual one, and the RAM budget leaves {} for it; ask for a smaller k, \
                 search_list, nprobe or width, or start the server with a larger --ram-budget",
                size(extra),
                size(most)
            ))),
            _ => Ok(params),
        }
    }

    /// Asks a query. `reply` is called once, from any thread, perhaps before this returns. The vector must have been
    /// checked. Returns a number for [`Server::cancel`].
    pub fn ask(&self, question: Question<'_>, reply: Reply) -> u64 {
        let state = &self.state;
        state.counters.queries.fetch_add(1, Ordering::Relaxed);
        let client = state.next_client.fetch_add(1, Ordering::Relaxed);
        let refusal = match state.broken.get() {
            // The server of the next load takes its place in a moment.
            Some(why) if state.index.index().replaced().is_some() => {
                Some(Unanswered::MemoryLost(why.clone()))
            }
            Some(why) => Some(Unanswered::Failed(why.clone())),
            None if state.is_stopped() => Some(Unanswered::Failed("the server stops".into())),
            None if question.vector.len() != state.index.index().base.row_bytes() => {
                let why = "the query has another number of bytes than a vector of the index";
                Some(Unanswered::Failed(why.into()))
            }
            None => None,
        };
        if let Some(why) = refusal {
            state.counters.refused.fetch_add(1, Ordering::Relaxed);
            reply(Err(why));
            return client;
        }
        let bytes = state.waiting_bytes(question.params.k.into());
        let Some(memory) = state.ledger.reserve(Part::Waiting, bytes) else {
            state.counters.refused.fetch_add(1, Ordering::Relaxed);
            reply(Err(Unanswered::Overloaded));
            return client;
        };
        let waiting = Client {
            reply,
            asked: Instant::now(),
            partial: question.partial,
            place: Place { client: question.client, request: question.request },
            size: state.size_of(&question.params, question.filter, question.is_batch),
            filter: question.filter.cloned(),
            _memory: memory,
        };
        lock(&state.clients).insert(client, waiting);
        let time_us = u64::try_from(question.timeout.as_micros()).unwrap_or(u64::MAX);
        // Other servers get the filter with the vector; this one has it.
        let vector = (question.vector, question.filter.and_then(QueryFilter::of_others));
        state.submit(client, (question.params, state.budget), vector, time_us);
        client
    }

    /// Cancels a query whose client no longer waits: its slot is freed at its next step, and its reply is not called.
    /// Nothing happens when the query has ended.
    pub fn cancel(&self, client: u64) {
        let state = &self.state;
        let Some(waiting) = lock(&state.clients).remove(&client) else { return };
        drop(waiting);
        state.counters.cancelled.fetch_add(1, Ordering::Relaxed);
        state.with_peer(|peer, _, out| peer.cancel(client, out));
    }

    /// Refuses the heavy queries of clients that still wait for a slot: the server stops. All that run go on.
    pub fn refuse_waiting(&self) {
        let state = &self.state;
        for run in state.inbox.take_heavy(state.codec.server()) {
            state.with_peer(|peer, _, out| peer.cancel(run.query.number, out));
            state.refuse(run.query.number, Unanswered::Failed("the server stops; ask another".into()));
        }
    }

    /// Bytes of a block of the served index.
    pub fn block_bytes(&self) -> usize {
        self.state.index.index().base.block.block_bytes
    }

    /// Status of the server.
    pub fn status(&self) -> Status {
        Status::of(&self.state)
    }

    /// The inverted lists that each of the last queries of clients visited, of a server of a partitioned `grid-ivf`.
    pub fn recent_visits(&self) -> Vec<Vec<u32>> {
        self.state.recent_visits()
    }

    /// Returns the clusters that are loaded whole; `None` of a kind without any.
    pub fn cluster_map(&self) -> Option<ClusterMap> {
        let index = self.state.index.index();
        index.kind.shares_loads().map(|own| own.cluster_map(&index.base))
    }

    /// Returns the number of these clusters; 0 of a kind without any.
    pub fn cluster_count(&self) -> usize {
        self.state.index.index().kind.shares_loads().map_or(0, SharesLoads::cluster_count)
    }

    /// Returns those of these clusters that are in the cache now; `None` of a kind without any.
    pub fn cached_clusters(&self) -> Option<CachedClusters> {
        let index = self.state.index.index();
        index.kind.shares_loads().map(|own| own.cached_clusters(&index.base, index.cache.as_ref()))
    }

    /// Returns the graph by which a client chooses the clusters of a query; `None` of a kind without one.
    pub fn meta_hnsw(&self) -> Option<&[u8]> {
        self.state.index.index().kind.shares_loads().map(SharesLoads::meta_hnsw)
    }

    /// Most bytes of [`Server::landmarks`].
    pub fn landmarks_bytes_max(&self) -> usize {
        LANDMARK_BYTES_MAX.max(self.state.index.index().base.row_bytes())
    }

    /// Vectors, one after the other, that this server is the best to ask for, of a partitioned `disk-graph`: searches
    /// may enter at them. Empty for other indexes. Reads up to 256 KiB of them.
    ///
    /// # Errors
    /// A block that cannot be read, or is damaged.
    pub fn landmarks(&self) -> Result<Vec<u8>> {
        self.state.index.landmarks()
    }

    /// Number of queries of clients, and of vectors, that the protocol holds.
    pub fn held(&self) -> (usize, usize) {
        self.state.lock_peer().held()
    }

    /// Ends all threads. Queries that still wait are refused.
    pub fn stop(self) {}
}

impl Drop for Server {
    fn drop(&mut self) {
        let state = &self.state;
        state.stop();
        if let Some(link) = state.link.get() {
            link.stop();
        }
        for thread in self.threads.drain(..) {
            thread.join();
        }
        let waiting: Vec<Client> = lock(&state.clients).drain().map(|(_, client)| client).collect();
        for client in waiting {
            (client.reply)(Err(Unanswered::Failed("the server stops".into())));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Receives the frames of a link for a server that may have stopped.
struct PeerReceiver(Weak<ServerState>);

impl LinkReceiver for PeerReceiver {
    fn frame(&self, server: u8, frame: &[u8]) -> std::result::Result<(), Refused> {
        self.0.upgrade().map_or(Ok(()), |state| state.receive(server, frame))
    }

    fn take_over(&self, connection: Inbound) -> std::result::Result<(), Box<Inbound>> {
        let Some(state) = self.0.upgrade() else { return Err(Box::new(connection)) };
        let thread = state.connections.give(connection)?;
        state.inbox.wake(thread);
        Ok(())
    }

    fn reserve(&self, bytes: u64) -> Option<Reservation> {
        let state = self.0.upgrade()?;
        let memory = state.ledger.reserve(Part::Batons, bytes);
        state.counters.refused_batons.fetch_add(u64::from(memory.is_none()), Ordering::Relaxed);
        memory
    }

    fn up(&self, server: u8, agreed: Agreed) {
        if let Some(state) = self.0.upgrade() {
            state.with_peer(|peer, _, out| {
                peer.agree(server, agreed.states);
                peer.up(server, out);
            });
        }
    }

    fn down(&self, server: u8) {
        if let Some(state) = self.0.upgrade() {
            state.with_peer(|peer, now_us, out| peer.down(now_us, server, out));
        }
    }
}
