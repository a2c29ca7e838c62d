//! The queries of one driver thread of a server.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use stratann_core::kinds::IndexView;
use stratann_core::peer::Run;
use stratann_core::place::Others;
use stratann_core::query::{Loss, QueryState, QueryStats, Read, Step, Tag, Threshold, wire};
use stratann_core::sieve::Sieve;
use stratann_storage::ledger::Reservation;
use stratann_storage::link::Inbound;

use super::QueryFilter;
use super::inbox::{Free, Job, Size};
use super::known_filters::ArrivedFilter;
use super::remote_batches::LiveThread;
use super::scores::Scored;
use super::state::{Permit, ServerState};
use crate::exec::{self, Loads, MergedReads, Peers, Queries, Snapshot, Times};
use crate::kinds::Learning;

/// The queries that run on one thread.
pub(super) struct Worker<'a> {
    pub(super) server: &'a ServerState,
    // Of an index in memory nodes.
    pub(super) live: Option<LiveThread<'a>>,
    thread: usize,
    running: Vec<RunningQuery<'a>>,
    free: Vec<usize>,
    // Value of `ServerState::abandoned` when runs were last checked.
    abandoned: u64,
    // Whether running queries were told that the server stops.
    has_stopped: bool,
    // Running queries, without jobs of others.
    queries: usize,
    // Memory for scores that have arrived.
    arrived: Vec<Scored>,
    // Rounds since queued frames were last sent.
    unsent_rounds: u32,
    // Memory for the vector of a run that begins.
    vector: Vec<u8>,
}

/// Frames of so many rounds are sent together at most, where one round follows the other at once.
const ROUNDS_TOGETHER: u32 = 4;

/// Comparisons after which the turns of any query come after those of others: a few milliseconds of computing. Not a
/// time, since the clock also counts while the thread waits for a processor.
const LONG_COMPARISONS: u64 = 1 << 18;
/// A distance on a full vector costs about as much as so many on codes.
const FULL_COST: u64 = 4;

/// What the protocol tells of a run that begins.
struct BegunRun {
    expires_at_us: u64,
    threshold: Option<Threshold>,
}

/// A query while it runs. Its memory is reused by the next one.
struct RunningQuery<'a> {
    run: Run,
    state: Box<QueryState>,
    vector: Vec<u8>,
    expires_at_us: u64,
    is_abandoned: bool,
    // Whether it has asked other servers for scores.
    has_asked: bool,
    // Components that were compared when it came, and since then by jobs.
    components_elsewhere: u64,
    // The memory of scores that its state has not taken in.
    replies: Vec<Reservation>,
    // Its number among the queries that count for learning.
    number: Option<u64>,
    // The filter of a query of a client here, with its memory; and the rows that it may return, `None` for all.
    filter: Option<QueryFilter>,
    sieve: Option<Arc<Sieve>>,
    size: Size,
    permit: Option<Permit<'a>>,
    // Whether it has left its slot and keeps its state and its permit: it may be asked again.
    is_kept: bool,
}

impl<'a> RunningQuery<'a> {
    fn new(run: Run) -> RunningQuery<'a> {
        RunningQuery {
            run,
            state: Box::default(),
            vector: Vec::new(),
            expires_at_us: 0,
            is_abandoned: false,
            has_asked: false,
            components_elsewhere: 0,
            replies: Vec::new(),
            number: None,
            filter: None,
            sieve: None,
            size: Size::default(),
            permit: None,
            is_kept: false,
        }
    }
}

impl<'a> Worker<'a> {
    pub(super) fn new(server: &'a ServerState, live: Option<LiveThread<'a>>, thread: usize) -> Worker<'a> {
        Worker {
            server,
            live,
            thread,
            running: Vec::new(),
            free: Vec::new(),
            abandoned: 0,
            has_stopped: false,
            queries: 0,
            arrived: Vec::new(),
            unsent_rounds: 0,
            vector: Vec::new(),
        }
    }

    /// Work that the thread may begin. Some slots are for jobs alone: queries that wait for other servers do not take
    /// them all, so servers never wait for each other.
    fn free(&self) -> Free {
        if self.queries < self.server.query_slots() { Free::Any } else { Free::Jobs }
    }

    /// Begins a job. `None` when its answer is no longer wanted.
    fn place(&mut self, job: Job, permit: Permit<'a>) -> Option<usize> {
        // The memory of a waiting state is released when its slot or its permit has it.
        let Job { run, mut state, size, filter, memory, .. } = job;
        let permit = permit.with(memory.filter(|_| run.job.is_some()));
        let Some((begun, of_others)) = self.begun(&run, filter.is_some()) else {
            self.server.lock_peer().recycle_state(state);
            self.server.counters.dropped_runs.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let sieve = match &filter {
            Some(own) => Ok(own.begin(self.server, &mut state)),
            None => self.server.filter_of_others(of_others, &mut state),
        };
        let Ok(sieve) = sieve else {
            // Its answer would have rows that it may not return.
            self.server.lock_peer().recycle_state(state);
            self.server.counters.dropped_runs.fetch_add(1, Ordering::Relaxed);
            self.server.with_peer(|peer, now_us, out| peer.dropped(now_us, &run, out));
            return None;
        };
        if let Some(threshold) = begun.threshold {
            state.lower_threshold(threshold);
        }
        // A job is a part of a query, which counts where it began.
        let number = learning(self.server).filter(|_| run.job.is_none()).and_then(Learning::number_now);
        let at = self.free.pop().unwrap_or(self.running.len());
        if at == self.running.len() {
            self.running.push(RunningQuery::new(run));
        }
        let query = &mut self.running[at];
        std::mem::swap(&mut query.vector, &mut self.vector);
        query.expires_at_us = begun.expires_at_us;
        (query.run, query.number, query.is_abandoned) = (run, number, false);
        (query.size, query.permit) = (size, Some(permit));
        (query.filter, query.sieve) = (filter, sieve);
        self.queries += usize::from(run.job.is_none());
        self.live.iter().for_each(|live| live.forget(at));
        let before = std::mem::replace(&mut query.state, state);
        self.server.lock_peer().recycle_state(before);
        Some(at)
    }

    /// Begins a run, and takes its vector. Returns the filter of a query of another server, too. `None` when its answer
    /// is no longer wanted.
    fn begun(&mut self, run: &Run, has_filter: bool) -> Option<(BegunRun, ArrivedFilter)> {
        let mut peer = self.server.lock_peer();
        let begun = peer.begin(self.server.now_us(), run)?;
        self.vector.clear();
        self.vector.extend_from_slice(begun.vector);
        // What it takes to read it is done without the lock.
        let of_others = if has_filter { ArrivedFilter::None } else { self.server.arrived(&begun) };
        let (expires_at_us, threshold) = (begun.expires_at_us, begun.threshold);
        Some((BegunRun { expires_at_us, threshold }, of_others))
    }

    /// Finds the running queries whose answers are no longer wanted.
    fn check_running(&mut self) {
        let peer = self.server.lock_peer();
        let now_us = self.server.now_us();
        for query in &mut self.running {
            query.is_abandoned = !peer.is_wanted(now_us, &query.run);
        }
    }

    /// Frees the place of a query. Returns its run.
    pub(super) fn leave(&mut self, number: usize, state: Option<&QueryState>) -> Run {
        let query = &mut self.running[number];
        if let (Some(learning), Some(counted)) = (learning(self.server), query.number.take()) {
            learning.ended(self.thread, counted, state);
        }
        // The memory of a large query is released once its slot has freed it.
        if query.size.extra_bytes == 0 {
            query.permit = None;
        }
        query.replies.clear();
        (query.filter, query.sieve) = (None, None);
        if std::mem::take(&mut query.has_asked) {
            self.server.scores.forget(&query.run);
        }
        self.queries -= usize::from(query.run.job.is_none());
        self.free.push(number);
        self.server.running.fetch_sub(1, Ordering::Relaxed);
        query.run
    }

    /// The state of a query has ended, or goes on at another server.
    pub(super) fn depart(&mut self, number: usize, step: Step, state: &QueryState) {
        let is_kept = self.running[number].is_kept;
        let run = self.leave(number, Some(state));
        if matches!(step, Step::HandOver(_)) && run.job.is_none() {
            self.server.counters.hand_overs_out.fetch_add(1, Ordering::Relaxed);
        }
        self.server.depart(run, step, state);
        if is_kept {
            self.release_large(number);
        }
    }

    /// Frees what a query had, if that was more than a usual one has.
    pub(super) fn release_large(&mut self, number: usize) {
        if self.running[number].size.extra_bytes > 0 {
            self.release(number);
        }
    }

    fn release(&mut self, number: usize) {
        let query = &mut self.running[number];
        // The state that the slot had before may be large, too.
        *query.state = QueryState::default();
        query.permit = None;
    }
}

fn learning(server: &ServerState) -> Option<&Learning> {
    server.index.index().learning()
}

impl Queries for Worker<'_> {
    fn next(&mut self) -> Option<usize> {
        if let Some(again) = self.live.as_ref().and_then(LiveThread::next) {
            return Some(again);
        }
        while !self.server.is_stopped() {
            let server = self.server;
            let (job, permit) = server.inbox.pop(self.thread, self.free(), |job| server.permit(job))?;
            server.counters.waits(&job.size).note_queue(server.now_us().saturating_sub(job.queued_us));
            if let Some(at) = self.place(job, permit) {
                self.server.running.fetch_add(1, Ordering::Relaxed);
                return Some(at);
            }
        }
        None
    }

    fn snapshot(&mut self, number: usize) -> Option<Arc<dyn Snapshot>> {
        if self.live.is_some() {
            let batch = self.batch_snapshot()?;
            return Some(match &self.running[number].filter {
                Some(filter) => filter.seen(batch),
                None => batch,
            });
        }
        learning(self.server).map(|l| l.newest() as Arc<dyn Snapshot>)
    }

    fn sieve(&mut self, number: usize) -> Option<Arc<Sieve>> {
        self.running[number].sieve.clone()
    }

    fn remaining(&self) -> usize {
        0
    }

    fn begin(&mut self, number: usize, _: (u32, u32), state: &mut QueryState) -> &[u8] {
        let query = &mut self.running[number];
        if query.state.is_new() {
            // The memory of the slot is kept.
            state.restart(*query.state.params(), query.state.budget());
        } else {
            std::mem::swap(state, &mut query.state);
        }
        query.is_kept = false;
        query.components_elsewhere = state.stats().components;
        &query.vector
    }

    fn ended(&mut self, number: usize, step: Step, state: &QueryState, times: Times) {
        self.server.counters.waits(&self.running[number].size).note_run(&times);
        let here = state.stats().components.saturating_sub(self.running[number].components_elsewhere);
        self.server.counters.components.fetch_add(here, Ordering::Relaxed);
        if let Some(live) = &mut self.live
            && !live.ended(number, step, state)
        {
            self.running[number].is_kept = true;
            return;
        }
        match self.why_lost(state) {
            Some(why) => self.refuse_lost(number, why),
            None => self.depart(number, step, state),
        }
    }

    fn has_unwanted(&mut self) -> bool {
        let abandoned = self.server.abandoned.load(Ordering::Relaxed);
        let stops = self.server.is_stopped() && !self.has_stopped;
        if abandoned == self.abandoned && !stops {
            return false;
        }
        (self.abandoned, self.has_stopped) = (abandoned, stops || self.has_stopped);
        self.check_running();
        true
    }

    fn is_wanted(&mut self, number: usize) -> bool {
        let query = &self.running[number];
        let has_failed = self.live.as_ref().is_some_and(|live| live.failure().is_some());
        !has_failed && !query.is_abandoned && !self.has_stopped && self.server.now_us() < query.expires_at_us
    }

    fn is_background(&mut self, number: usize, stats: &QueryStats) -> bool {
        let comparisons = stats.code_comparisons + FULL_COST * stats.full_comparisons;
        self.running[number].size.is_heavy || comparisons > LONG_COMPARISONS
    }

    fn extra_bytes(&mut self, number: usize) -> Option<usize> {
        let size = self.running[number].size;
        (size.extra_bytes > 0).then_some(size.buffers_bytes)
    }

    fn freed(&mut self, number: usize) {
        if !self.running[number].is_kept {
            self.release(number);
        }
    }

    fn dropped(&mut self, number: usize, _: &QueryState) {
        let failure = self.live.as_ref().and_then(LiveThread::failure);
        if let Some(why) = failure.map(str::to_string) {
            return self.refuse_lost(number, why);
        }
        let run = self.leave(number, None);
        self.server.counters.dropped_runs.fetch_add(1, Ordering::Relaxed);
        self.server.with_peer(|peer, now_us, out| peer.dropped(now_us, &run, out));
    }

    fn merged(&mut self, reads: MergedReads) {
        self.server.counters.merged_reads.fetch_add(reads.reads, Ordering::Relaxed);
        self.server.counters.merged_bytes.fetch_add(reads.bytes, Ordering::Relaxed);
    }

    fn lost(&mut self, read: Read, loss: Loss) {
        match &self.live {
            Some(live) => {
                live.lose(loss);
                self.server.counters.lost_reads.fetch_add(1, Ordering::Relaxed);
            }
            None => self.server.note_lost(read.unit(), loss),
        }
    }

    fn may_wait(&mut self, has_room: bool) -> bool {
        if self.server.scores.has_any(self.thread) || self.server.connections.has_any(self.thread) {
            return false;
        }
        // While the server stops, the driver ends by itself once nothing is in flight.
        !has_room || self.server.is_stopped() || self.server.inbox.may_wait(self.thread, self.free())
    }

    fn connection(&mut self) -> Option<Inbound> {
        self.server.connections.take(self.thread)
    }

    fn connection_refused(&mut self, connection: Inbound) {
        self.server.connections.close(self.thread);
        connection.read_on_thread();
    }

    fn round_ended(&mut self, is_busy: bool) {
        self.unsent_rounds += 1;
        if !is_busy || self.unsent_rounds >= ROUNDS_TOGETHER {
            self.unsent_rounds = 0;
            self.server.send_queued();
        }
    }

    fn can_wake(&self) -> bool {
        true
    }

    fn stays(&self) -> bool {
        !self.server.is_stopped()
    }

    fn peers(&mut self) -> Option<&mut dyn Peers> {
        Some(self)
    }

    fn loads(&mut self) -> Option<&mut dyn Loads> {
        Some(self)
    }
}

impl Peers for Worker<'_> {
    fn score(&mut self, number: usize, job: (Tag, u8), view: &IndexView<'_>, state: &QueryState) -> bool {
        let query = &mut self.running[number];
        query.has_asked = true;
        query.replies.clear();
        self.server.ask_job((query.run, self.thread), job, (view, state));
        true
    }

    fn ranked(&mut self, _: usize, lists: &[(f32, u32)]) {
        self.server.note_visits(lists);
    }

    fn tell(&mut self, number: usize, to: u8, threshold: Threshold) {
        let run = self.running[number].run;
        self.server.tell(&run, to, threshold);
    }

    fn scored(&mut self, out: &mut Vec<exec::Scored>) {
        if !self.server.scores.has_any(self.thread) {
            return;
        }
        self.server.scores.take(self.thread, &mut self.arrived);
        for Scored { run, tag, scores, memory } in self.arrived.drain(..) {
            let at = self.running.iter().position(|query| query.has_asked && query.run == run);
            let Some(number) = at else { continue };
            self.running[number].replies.extend(memory);
            let of_job = scores.as_ref().ok().and_then(|bytes| wire::read_scores(bytes).ok());
            self.running[number].components_elsewhere += of_job.map_or(0, |job| job.stats.components);
            out.push(exec::Scored { number, tag, scores });
        }
    }

    fn others(&self) -> Others {
        self.server.others()
    }
}

impl Loads for Worker<'_> {
    fn loaded(&mut self, loads: &QueryStats) {
        self.server.note_loads(loads);
    }

    fn begin_batch(&mut self) -> io::Result<()> {
        self.begin_live_batch();
        Ok(())
    }

    fn end_batch(&mut self) {
        self.end_live_batch();
    }

    fn batch_snapshot(&mut self) -> Option<Arc<dyn Snapshot>> {
        self.live.as_ref().map(LiveThread::snapshot)
    }
}
