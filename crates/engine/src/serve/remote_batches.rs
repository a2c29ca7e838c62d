//! Gathered batches of a server: what they see of an index in memory nodes, and what happens when these are lost.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stratann_core::query::{Loss, Outcome, QueryState, QueryStats, Step};
use stratann_storage::budget::size;

use super::lock;
use super::question::Unanswered;
use super::state::{Client, ServerState};
use super::worker::Worker;
use crate::exec::{BatchLoads, BatchOptions, Snapshot, failure};
use crate::search::DOORBELLS;
use crate::search::live::LiveBatches;

/// Interval at which lost memory nodes are looked for.
const LOOK: Duration = Duration::from_millis(500);

/// A query that has ended in a batch that has not.
struct EndedQuery {
    number: usize,
    step: Step,
    state: QueryState,
}

/// Batches of one thread over memory nodes.
pub(super) struct LiveThread<'a> {
    batches: LiveBatches<'a>,
    /// Reason why the present batch could not begin.
    failure: Option<String>,
    /// Queries that have ended and whose answers count once the batch has.
    kept: Vec<EndedQuery>,
}

impl<'a> LiveThread<'a> {
    pub(super) fn new(batches: LiveBatches<'a>) -> LiveThread<'a> {
        LiveThread { batches, failure: None, kept: Vec::new() }
    }

    /// Reason why no query of the present batch can be answered.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// A query to ask again.
    pub(super) fn next(&self) -> Option<usize> {
        self.batches.next()
    }

    /// Notes that this number is that of another query from now on.
    pub(super) fn forget(&self, number: usize) {
        self.batches.forget(number);
    }

    /// Notes that a memory node did not give a cluster.
    pub(super) fn lose(&self, loss: Loss) {
        self.batches.lose(loss);
    }

    pub(super) fn snapshot(&self) -> Arc<dyn Snapshot> {
        self.batches.snapshot()
    }

    /// Takes the state of a query that has ended. Returns whether it counts now: otherwise the query is asked again, or
    /// its answer waits for the end of the batch.
    pub(super) fn ended(&mut self, number: usize, step: Step, state: &QueryState) -> bool {
        let is_lost = matches!(state.outcome(), Outcome::Lost { .. });
        if self.batches.ended(number, is_lost) {
            return false;
        }
        if self.batches.ends_with_check() {
            self.kept.push(EndedQuery { number, step, state: state.clone() });
            return false;
        }
        true
    }
}

impl ServerState {
    /// The batches of one thread, of a kind whose queries share their reads.
    pub(super) fn batch_loads(&self) -> Option<BatchLoads> {
        let options = BatchOptions { batch: self.query_slots(), ..self.options.batch_options };
        self.index.index().base.facts().shares_reads.then(|| BatchLoads::new(options, 1))
    }

    /// Shortens the doorbells of all threads so that they fit into the RAM budget, unless the user chose their length.
    pub(super) fn fit_doorbells(&mut self) {
        let Some(budget) = self.options.ram_budget else { return };
        let account = self.account();
        let left = budget.saturating_sub(account.total() - account.bytes_of(DOORBELLS));
        let each = left / self.options.threads.max(1) as u64;
        let usual_bytes = self.options.batch_options.doorbell_bytes;
        if let Some(own) = self.index.index().kind.shares_loads() {
            self.options.batch_options = own.fit_doorbells(&self.options.batch_options, each);
        }
        if self.options.batch_options.doorbell_bytes < usual_bytes {
            (self.options.log)(&format!(
                "the RAM budget has no room for doorbells of {} reads on {} threads: they have up to {} each; with a \
                 larger one, or fewer threads, a batch needs fewer round trips",
                self.options.batch_options.doorbell,
                self.options.threads,
                size(self.options.batch_options.doorbell_bytes)
            ));
        }
    }

    /// Batches of one thread over memory nodes; `None` of an index in files.
    ///
    /// # Errors
    /// The first memory node does not answer.
    pub(super) fn live_thread(&self) -> io::Result<Option<LiveThread<'_>>> {
        let region = self.index.index().kind.live();
        let batches = region.map(LiveBatches::new).transpose();
        Ok(batches.map_err(|e| io::Error::other(e.message))?.map(LiveThread::new))
    }

    /// Number of vectors on all servers. Those in memory nodes are counted while these answer.
    pub(super) fn rows(&self) -> u64 {
        let index = self.index.index();
        let is_live = index.is_in_memory_nodes() && lock(&self.memory_lost).is_none();
        let rows = is_live.then(|| index.rows().ok()).flatten();
        rows.unwrap_or_else(|| self.index.rows())
    }

    /// Notes whether the headers of the index could be read. Returns why not.
    pub(super) fn note_memory(&self, failure: Option<String>) -> Option<String> {
        let failure = failure.map(|why| self.unfit_load.get().cloned().unwrap_or(why));
        let mut lost = lock(&self.memory_lost);
        match (&*lost, &failure) {
            (None, Some(why)) => {
                (self.options.log)(&format!("memory nodes are lost: {why}; queries fail until they answer"))
            }
            (Some(_), None) => (self.options.log)("memory nodes answer again"),
            _ => {}
        }
        lost.clone_from(&failure);
        failure
    }

    /// Ends all queries, because the load that they ask is over, and gives the memory back that was set aside.
    pub(super) fn retire(&self, why: String) {
        self.note_memory(Some(why.clone()));
        let _ = self.broken.set(why.clone());
        self.stop();
        let waiting: Vec<Client> = lock(&self.clients).drain().map(|(_, client)| client).collect();
        waiting.into_iter().for_each(|client| (client.reply)(Err(Unanswered::MemoryLost(why.clone()))));
        lock(&self.guarantees).clear();
    }

    /// Looks for lost memory nodes, and for another load in them, until the server stops: it may get no query by which
    /// it would notice.
    pub(super) fn look_for_memory(&self) {
        let Some(region) = self.index.index().kind.live() else { return };
        let mut stopped = lock(&self.stopped.0);
        while !*stopped {
            let waited = self.stopped.1.wait_timeout(stopped, LOOK);
            stopped = waited.unwrap_or_else(|e| e.into_inner()).0;
            if *stopped {
                return;
            }
            drop(stopped);
            // A server without queries would not notice a new load either.
            let source = self.index.index().base.memory_nodes();
            source.iter().for_each(|source| source.look());
            if let Some(why) = source.and_then(|source| source.replaced()) {
                self.note_memory(Some(why.to_string()));
            } else if lock(&self.memory_lost).is_some()
                && let Ok(mut session) = region.session()
            {
                // One that fails may have no connection to a node that is back.
                match session.begin_batch(region) {
                    Ok(_) => {
                        self.note_memory(None);
                        region.give_back(session);
                    }
                    Err(_) => {
                        region.end(session);
                    }
                }
            }
            stopped = lock(&self.stopped.0);
        }
    }

    /// Adds what reads of batches cost.
    pub(super) fn note_loads(&self, loads: &QueryStats) {
        self.counters.loads.fetch_add(loads.reads, Ordering::Relaxed);
        self.counters.loaded_bytes.fetch_add(loads.bytes_read, Ordering::Relaxed);
        self.counters.round_trips.fetch_add(loads.round_trips, Ordering::Relaxed);
    }
}

impl Worker<'_> {
    /// Reads the headers. Where they cannot be read, the queries of the batch fail and the thread goes on.
    pub(super) fn begin_live_batch(&mut self) {
        let Some(live) = &mut self.live else { return };
        let failure = match live.batches.begin() {
            Ok(cost) => {
                self.server.note_loads(&cost);
                None
            }
            Err(e) => Some(e.to_string()),
        };
        live.failure = self.server.note_memory(failure);
    }

    /// Ends a batch. Answers that waited for it count, but those of queries that are asked again.
    pub(super) fn end_live_batch(&mut self) {
        let Some(live) = self.live.as_mut().filter(|live| live.failure.is_none()) else { return };
        let again = live.batches.end();
        for EndedQuery { number, step, state } in std::mem::take(&mut live.kept) {
            if again.contains(&number) {
                continue;
            }
            match self.why_lost(&state) {
                Some(why) => self.refuse_lost(number, why),
                None => self.depart(number, step, &state),
            }
        }
    }

    /// Reason why memory nodes did not give this query a cluster, however often it was asked; `None` where they did.
    pub(super) fn why_lost(&self, state: &QueryState) -> Option<String> {
        let base = &self.server.index.index().base;
        let memory = base.memory_nodes().filter(|_| matches!(state.outcome(), Outcome::Lost { .. }))?;
        let failed = || failure(state.outcome(), &base.blocks_path).unwrap_or_default();
        Some(memory.last_error().map_or_else(failed, |e| e.to_string()))
    }

    /// Refuses a query because memory nodes do not give what it needs.
    pub(super) fn refuse_lost(&mut self, number: usize, why: String) {
        let run = self.leave(number, None);
        self.server.with_peer(|peer, _, out| peer.cancel(run.query.number, out));
        self.server.refuse(run.query.number, Unanswered::MemoryLost(why));
        self.release_large(number);
    }
}
