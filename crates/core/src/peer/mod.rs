//! The protocol between the servers of a cluster: queries that clients submitted here, and queries that pass through.
//!
//! The server that a client submits a query to is the query's **origin**. It keeps the query until an answer arrives,
//! and starts another attempt when none arrives in time. The first answer counts, all later ones are ignored, so a
//! client gets exactly one. Every other server that the query reaches is a **host**: it receives the vector with the
//! first baton, keeps it until the origin releases the query or the query expires, and accepts each baton once (the
//! number of hand-overs grows with every baton of an attempt).
//!
//! [`Peer`] is one state machine for all threads of a server. Frames are decoded before and encoded after its calls, by
//! [`FrameCodec`], which needs no lock. There is no I/O and no clock: time is a number of microseconds that the driver
//! passes in and that never decreases. Results of a call are [`Action`]s.

mod buffer_pool;
mod credits;
mod filters;
mod frames;
mod host;
mod jobs;
pub mod message;
mod origin;
mod partial_results;
mod parts;
mod rollout;
mod status;

use alloc::boxed::Box;
use alloc::collections::btree_map::BTreeMap;
use alloc::vec::Vec;

pub use self::buffer_pool::{BufferPool, POOL_BYTES, THREAD_POOL_BYTES};
use self::filters::Filters;
pub use self::filters::{FilterKey, KeyedFilter};
pub use self::frames::{AskedJob, Departure, FrameCodec, NewQuery, Outgoing, Received};
pub use self::host::Begun;
use self::host::HostedQuery;
use self::jobs::Jobs;
use self::origin::Origin;
pub use self::rollout::{DRAIN_US_MAX, Rollout, RolloutStep, STUCK_US};
pub use self::status::PeerStatus;
use crate::place::{Others, Parts, Relay, SERVERS_MAX, bit};
use crate::query::{IndexSize, Loss, Outcome, QueryState, Tag, wire};
use message::{Message, QueryId};

/// Bytes of jobs between two servers: a hundred and more of the usual size.
pub const JOB_BYTES: u64 = 256 << 10;

/// Bytes of the filters that a server keeps.
pub const FILTERS_BYTES: u64 = 8 << 20;

/// Longest filter of a query that other servers may be asked. One of eight million rows of which half match.
pub const FILTER_BYTES_MAX: usize = 1 << 20;

/// Ticks between two reports of this server's status: one may be lost.
const STATUS_TICKS: u32 = 64;

/// One attempt at a query, as the driver runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// The query.
    pub query: QueryId,
    /// Number of the attempt.
    pub attempt: u8,
    /// A job for this attempt; `None` for the query itself.
    pub job: Option<JobId>,
}

impl Run {
    /// The attempt itself, not one of its jobs.
    pub fn of_query(query: QueryId, attempt: u8) -> Run {
        Run { query, attempt, job: None }
    }
}

/// A job of an attempt: a state that ends with scores for the server that asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobId {
    /// The server whose state waits for the scores.
    pub asker: u8,
    /// The tag that the state knows the job by.
    pub tag: u32,
    /// Times that the job was sent before. The first reply counts.
    pub sends: u8,
}

/// Work for the driver.
#[derive(Clone, Debug)]
pub enum Action {
    /// Encode a message with [`FrameCodec::frame`] and send it.
    Send {
        /// The receiving server.
        to: u8,
        /// The message.
        message: Outgoing,
    },
    /// When a slot is free, call [`Peer::begin`], step this state until it hands over or is done, then call
    /// [`Peer::stepped`].
    Start {
        /// The attempt.
        run: Run,
        /// The state.
        state: Box<QueryState>,
    },
    /// A job that the state of a run waits for has ended: step the state when it has all that it waits for.
    Scored {
        /// The attempt.
        run: Run,
        /// The tag of the job.
        tag: Tag,
        /// The scores, for [`wire::read_scores`].
        scores: Result<Vec<u8>, Loss>,
    },
    /// Give a client its answer.
    Answer {
        /// Number of the query, as in [`NewQuery`].
        number: u64,
        /// The ended state, with results and counters.
        state: Box<QueryState>,
    },
    /// Tell a client that there is no answer.
    Fail {
        /// Number of the query, as in [`NewQuery`].
        number: u64,
        /// The reason.
        why: Failure,
    },
}

/// Reason why a client gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Too many queries wait already.
    Overloaded,
    /// The deadline has passed.
    Expired,
}

/// The index of a server, and the form of its frames. Frames of another index are refused.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// Build of the index.
    pub build: u64,
    /// Kind of the index: [`IndexView::kind_number`](crate::kinds::IndexView::kind_number).
    pub kind: u8,
    /// Bytes of a query's vector.
    pub vector_bytes: usize,
    /// The size of the index: [`IndexView::size`](crate::kinds::IndexView::size).
    pub size: IndexSize,
    /// Form of the candidates in batons. Servers need not agree on it.
    pub carry: wire::Carry,
    /// Way that the results of handed-over queries take. Servers need not agree on it.
    pub results: wire::Results,
    /// Whether this server can compute distances that a baton leaves out: codes of all nodes are in RAM. Otherwise such
    /// a baton is refused.
    pub rescores: bool,
    /// Whether jobs carry what they need of their query, so that no vector goes with them.
    pub jobs_have_queries: bool,
    /// The parts of the cluster. Every query is asked of all of them.
    pub parts: Parts,
}

/// Limits of one server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Queries of clients at a time; one more is refused.
    pub origins: usize,
    /// Queries of other origins whose vectors are kept. Batons beyond are dropped, and their origins start another
    /// attempt.
    pub hosted: usize,
    /// Microseconds without an answer after which the origin gives up an attempt.
    pub patience_us: u64,
    /// Attempts in all.
    pub attempts: u8,
    /// Bytes of the filters of queries that are kept, of clients and of other origins. Queries beyond are refused or
    /// dropped, as those beyond the other limits are.
    pub filter_bytes: u64,
    /// Bytes of jobs that this server may have asked of each other one without a reply, and each of it.
    pub job_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            origins: 10_000,
            hosted: 40_000,
            patience_us: 500_000,
            attempts: 4,
            filter_bytes: FILTERS_BYTES,
            job_bytes: JOB_BYTES,
        }
    }
}

impl Limits {
    /// The time at which an attempt that begins now is given up. Each has twice the time of the one before; the last
    /// has until the query's deadline.
    fn patience(&self, now_us: u64, attempt: u8) -> u64 {
        match attempt + 1 < self.attempts {
            true => now_us.saturating_add(self.patience_us.saturating_mul(1 << attempt.min(16))),
            false => u64::MAX,
        }
    }
}

/// One server's part in the protocol.
pub struct Peer {
    server: u8,
    incarnation: u32,
    served: Served,
    // Servers that this one has a link to, those that it has heard from since they last went down, and those in both.
    linked: u64,
    heard: u64,
    live: u64,
    relay: Option<Relay>,
    ticks: u32,
    loads: [u8; SERVERS_MAX],
    // The newest version of states that this server reads, and those that the others read.
    reads: u32,
    agreed: [u32; SERVERS_MAX],
    // The newest that all live servers read.
    writes: u32,
    // Last status of each server since it last connected.
    statuses: [Option<PeerStatus>; SERVERS_MAX],
    is_draining: bool,
    limits: Limits,
    origins: BTreeMap<u64, Origin>,
    hosted: BTreeMap<QueryId, HostedQuery>,
    jobs: Jobs,
    abandoned: u64,
    filters: Filters,
    pool: BufferPool,
}

impl Peer {
    /// Server `server` in its incarnation `incarnation`, which differs from those before. `live` has a bit for every
    /// server that is known to answer.
    pub fn new(server: u8, incarnation: u32, served: Served, live: u64, limits: Limits) -> Peer {
        Peer {
            server,
            incarnation,
            served,
            linked: live,
            heard: live,
            live,
            relay: None,
            ticks: 0,
            loads: [0; SERVERS_MAX],
            reads: wire::VERSION,
            agreed: [wire::VERSION; SERVERS_MAX],
            writes: wire::VERSION,
            statuses: [None; SERVERS_MAX],
            is_draining: false,
            limits,
            origins: BTreeMap::new(),
            hosted: BTreeMap::new(),
            jobs: Jobs::new(limits.job_bytes),
            abandoned: 0,
            filters: Filters::default(),
            pool: BufferPool::new(POOL_BYTES),
        }
    }

    /// Encodes and decodes this server's frames.
    pub fn codec(&self) -> FrameCodec {
        FrameCodec::new(self.server, self.served, (self.states_version(), self.reads))
    }

    /// Reads and writes no state of a newer version than this one, as a server of an earlier version of this program.
    pub fn read_up_to(&mut self, version: u32) {
        self.reads = version.clamp(wire::OLDEST_VERSION, wire::VERSION);
        self.agree(self.server, self.reads);
    }

    /// The newest version of states that `server` reads and this one writes, by the greeting. Call it before
    /// [`Peer::up`].
    pub fn agree(&mut self, server: u8, version: u32) {
        if let Some(agreed) = self.agreed.get_mut(usize::from(server)) {
            *agreed = version.clamp(wire::OLDEST_VERSION, wire::VERSION);
        }
        self.choose_version();
    }

    /// The version in which states are written: the newest that all live servers read, since a state may be handed on.
    pub fn states_version(&self) -> u32 {
        self.writes
    }

    fn choose_version(&mut self) {
        let live = servers_in(self.live | self.linked | bit(self.server));
        let agreed = live.map(|server| self.agreed[usize::from(server)]);
        self.writes = agreed.min().unwrap_or(wire::VERSION);
    }

    fn encoded(&mut self, state: Box<QueryState>, carry: wire::Carry) -> Vec<u8> {
        let version = self.states_version();
        let mut bytes = self.pool.buffer();
        self.pool.encoder.encode(&state, carry, version, &mut bytes);
        self.pool.recycle_state(state);
        bytes
    }

    /// Exchanges memory with a thread's pool: the thread returns its surplus, and its pool is filled up.
    pub fn exchange(&mut self, pool: &mut BufferPool) {
        self.pool.exchange(pool);
    }

    /// Keeps a state for reuse. One that a client's query began with has no memory yet: it would take the room of a
    /// state that has.
    pub fn recycle_state(&mut self, state: Box<QueryState>) {
        if state.memory_bytes() > size_of::<QueryState>() {
            self.pool.recycle_state(state);
        }
    }

    /// A bit for every server that is known to answer.
    pub fn live(&self) -> u64 {
        self.live
    }

    /// State of the other servers, as far as this one knows it. Loads are queries that wait: for this server as set by
    /// [`Peer::set_load`], for others as in their last frames, decaying with every tick.
    pub fn known(&self) -> Others {
        Others { live: self.live, relay: self.relay, loads: self.loads, version: self.writes }
    }

    /// Sets the number of queries that run or wait here.
    pub fn set_load(&mut self, queries: usize) {
        if let Some(own) = self.loads.get_mut(usize::from(self.server)) {
            *own = u8::try_from(queries).unwrap_or(u8::MAX);
        }
    }

    fn own_load(&self) -> u8 {
        self.loads.get(usize::from(self.server)).copied().unwrap_or(0)
    }

    /// Number of queries of clients, and of vectors, that are kept.
    pub fn held(&self) -> (usize, usize) {
        (self.origins.len(), self.hosted.len())
    }

    /// Counts the times that a query ended while its state ran or waited here. When it has changed, some runs are no
    /// longer wanted.
    pub fn abandoned(&self) -> u64 {
        self.abandoned
    }

    /// Whether the answer of a run can still be used: its client waits and its deadline has not passed.
    pub fn is_wanted(&self, now_us: u64, run: &Run) -> bool {
        self.hosted.get(&run.query).is_some_and(|hosted| now_us < hosted.expires_at_us)
    }

    /// A frame has arrived from server `from`.
    pub fn received(&mut self, now_us: u64, from: u8, frame: Received, out: &mut Vec<Action>) {
        let Received { load, bytes, is_keyed, message } = frame;
        self.hear(from, out);
        match message {
            Message::Baton { run, visited, left_us, vector, state } if run.job.is_some() => {
                let expires_at_us = now_us.saturating_add(u64::from(left_us));
                let mut arrived = HostedQuery::new(vector, expires_at_us, visited);
                (arrived.bytes, arrived.is_keyed) = (bytes, is_keyed);
                self.accept_job(run, state, arrived, out);
            }
            Message::Scores { run, visited, scores } if self.relays(&run) => {
                self.send(self.target(&run), Message::Scores { run, visited, scores }, out);
            }
            Message::NoScores { run, why } if self.relays(&run) => {
                self.send(self.target(&run), Message::NoScores { run, why }, out);
            }
            Message::Scores { run, visited, scores } => self.scored(run, visited, scores, out),
            Message::NoScores { run, why } => self.not_scored(now_us, run, why, out),
            Message::Threshold { run, threshold } => self.lower_threshold(&run, threshold),
            Message::NoFilter { run } => self.filter_is_missing(now_us, from, run, out),
            Message::Baton { run, visited, left_us, vector, state } => {
                let expires_at_us = now_us.saturating_add(u64::from(left_us));
                let mut arrived = HostedQuery::new(vector, expires_at_us, visited);
                arrived.is_keyed = is_keyed;
                self.accept((from, run), state, arrived, out);
            }
            Message::Answer { run, visited, state } if self.relays(&run) => {
                let state = self.encoded(state, wire::Carry::Ids);
                self.send(run.query.origin, Message::Answer { run, visited, state }, out);
            }
            Message::Answer { run, visited, state } => self.end((now_us, from), run, visited, state, out),
            Message::PartialResults { run, sequence, hits } if self.relays(&run) => {
                let mut bytes = self.pool.buffer();
                wire::write_hits(&hits, &mut bytes);
                self.pool.recycle_hits(hits);
                self.send(run.query.origin, Message::PartialResults { run, sequence, hits: bytes }, out);
            }
            Message::PartialResults { run, sequence, hits } => {
                self.merge_report((now_us, from), run, (sequence, &hits), out);
                self.pool.recycle_hits(hits);
            }
            Message::Status(status) => {
                if let Some(known) = self.statuses.get_mut(usize::from(from)) {
                    *known = Some(status);
                }
                self.choose_relay();
            }
            Message::Release { query } => {
                // Only its origin releases a query; a server never releases its own this way.
                if query.origin != self.server {
                    self.forget(&query);
                }
            }
        }
        if let Some(theirs) = self.loads.get_mut(usize::from(from)).filter(|_| from != self.server) {
            *theirs = load;
        }
        self.send_waiting_jobs(now_us, out);
    }

    /// Time has passed: late attempts are started again, expired queries fail, and vectors without a query are dropped.
    pub fn tick(&mut self, now_us: u64, out: &mut Vec<Action>) {
        let is_due = |o: &Origin| now_us >= o.give_up_at_us.min(o.expires_at_us);
        let due: Vec<u64> =
            self.origins.iter().filter(|(_, o)| is_due(o)).map(|(&number, _)| number).collect();
        for number in due {
            self.retry_or_expire(now_us, number, out);
        }
        self.send_late_jobs(now_us, out);
        self.ticks = self.ticks.wrapping_add(1);
        if self.ticks.is_multiple_of(STATUS_TICKS) {
            self.send_status(out);
        }
        let (abandoned, jobs) = (&mut self.abandoned, &mut self.jobs);
        let filters = &mut self.filters;
        self.hosted.retain(|_, hosted| {
            let is_kept = now_us < hosted.expires_at_us;
            if !is_kept {
                hosted.filter.iter().for_each(|key| filters.leave(key));
                *abandoned += hosted.states_here();
                hosted.end_jobs(&mut jobs.credits);
            }
            is_kept
        });
        self.send_waiting_jobs(now_us, out);
        // A load ages: a server that was avoided for it, and has sent nothing since, is tried again.
        let own = self.own_load();
        self.loads.iter_mut().for_each(|load| *load /= 2);
        self.set_load(own.into());
    }

    /// A server no longer answers. Every query that may have been there is started again.
    pub fn down(&mut self, now_us: u64, server: u8, out: &mut Vec<Action>) {
        if server == self.server {
            return;
        }
        let was_live = self.live & bit(server) != 0;
        [&mut self.linked, &mut self.heard, &mut self.live].into_iter().for_each(|set| *set &= !bit(server));
        self.choose_version();
        if !was_live {
            return;
        }
        self.statuses[usize::from(server)] = None;
        self.filters.forget_server(server);
        self.choose_relay();
        self.send_status(out);
        self.lose_server_of_parts(now_us, server, out);
        self.lose_jobs(now_us, server, out);
        let handed_over = self.origins.values_mut().filter(|o| o.has_begun && o.parts.is_none());
        handed_over.for_each(|o| o.give_up_at_us = now_us);
        self.tick(now_us, out);
    }

    /// There is a link to a server again. It may have lost its memory. It counts as live once it has been heard:
    /// before, it may have no link to here, and could not reply.
    pub fn up(&mut self, server: u8, out: &mut Vec<Action>) {
        self.linked |= bit(server);
        self.choose_version();
        self.hosted.values_mut().for_each(|hosted| hosted.visited &= !bit(server));
        self.filters.forget_server(server);
        let has_heard = self.heard & bit(server) != 0;
        if has_heard {
            self.add_live(server, out);
        } else {
            self.send_status_to(server, out);
        }
    }

    /// A frame shows that its sender has a link to here.
    fn hear(&mut self, from: u8, out: &mut Vec<Action>) {
        let is_new = self.heard & bit(from) == 0;
        self.heard |= bit(from);
        if is_new && self.linked & bit(from) != 0 {
            self.add_live(from, out);
        }
    }

    fn add_live(&mut self, server: u8, out: &mut Vec<Action>) {
        self.live |= bit(server);
        self.choose_relay();
        self.send_status(out);
    }

    fn release(&mut self, query: &QueryId, visited: u64, out: &mut Vec<Action>) {
        for to in servers_in(visited & self.live & !bit(self.server)) {
            self.send(to, Message::Release { query: *query }, out);
        }
    }

    fn send(&self, to: u8, message: Message<Vec<u8>>, out: &mut Vec<Action>) {
        out.push(Action::Send { to, message: Outgoing { load: self.own_load(), message } });
    }
}

/// The servers whose bits are set.
fn servers_in(bits: u64) -> impl Iterator<Item = u8> {
    (0..SERVERS_MAX as u8).filter(move |server| bits >> server & 1 == 1)
}

/// Whether an ended query's results may be given to its client.
pub fn is_answer(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Complete | Outcome::OutOfBudget | Outcome::Partial)
}

#[cfg(test)]
mod tests;
