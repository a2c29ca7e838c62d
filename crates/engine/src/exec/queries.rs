//! The other side of a driver: its queries, the servers and the loads that they share.

use std::io;
use std::sync::Arc;

use stratann_core::kinds::IndexView;
use stratann_core::place::Others;
use stratann_core::query::{Loss, QueryState, QueryStats, Read, Scratch, Step, Tag, Threshold};
use stratann_core::sieve::Sieve;
use stratann_storage::link::Inbound;

use super::options::{MergedReads, Times};
use super::snapshot::Snapshot;

/// Scores that have arrived.
#[derive(Debug)]
pub struct Scored {
    /// The query's number.
    pub number: usize,
    /// The tag of its job.
    pub tag: Tag,
    /// Bytes that [`wire::read_scores`](stratann_core::query::wire::read_scores) reads.
    pub scores: Result<Vec<u8>, Loss>,
}

/// Source of the queries of a thread, and where they go from there.
pub trait Queries {
    /// Returns the next query's number, or `None` when there is none now. Numbers of queries in flight differ.
    fn next(&mut self) -> Option<usize>;
    /// Returns the number of the segment that a query searches, among those of its driver.
    fn segment(&mut self, _number: usize) -> usize {
        0
    }
    /// Returns how many more [`Queries::next`] may give, as far as is known.
    fn remaining(&self) -> usize;
    /// Puts a query's state in the place of `state`, and returns its vector. `widths` (approaching, settled) are
    /// those that suit the load.
    fn begin(&mut self, number: usize, widths: (u32, u32), state: &mut QueryState) -> &[u8];
    /// Takes the state of a query that can go no further here: it has ended, or goes on at another server.
    fn ended(&mut self, number: usize, step: Step, state: &QueryState, times: Times);
    /// Returns the snapshot of the index that the query sees from its first step to its last; `None` where the index
    /// never changes.
    fn snapshot(&mut self, _number: usize) -> Option<Arc<dyn Snapshot>> {
        None
    }
    /// Returns the rows that a query may return; `None` for all.
    fn sieve(&mut self, _number: usize) -> Option<Arc<Sieve>> {
        None
    }
    /// Whether a query's answer is still wanted. Asked before each of its turns: a query past its deadline is dropped.
    fn is_wanted(&mut self, _number: usize) -> bool {
        true
    }
    /// Takes the state of a query that was dropped because its answer is no longer wanted.
    fn dropped(&mut self, _number: usize, _state: &QueryState) {}
    /// Whether queries in flight may have become unwanted; then [`Queries::is_wanted`] is asked for each of them, also
    /// for those that wait for reads. Asked once a round.
    fn has_unwanted(&mut self) -> bool {
        false
    }
    /// Whether a query's turns come after those of others, given what it has cost so far.
    fn is_background(&mut self, _number: usize, _stats: &QueryStats) -> bool {
        false
    }
    /// Returns the bytes of read buffers that a query takes beyond those of a usual one; `None` for a usual query. The
    /// slot of any other frees its memory when the query ends, and then calls [`Queries::freed`].
    fn extra_bytes(&mut self, _number: usize) -> Option<usize> {
        None
    }
    /// Notes that the slot of a query with [`Queries::extra_bytes`] has freed its memory.
    fn freed(&mut self, _number: usize) {}
    /// Notes that a read of a query joined an equal one under way.
    fn merged(&mut self, _reads: MergedReads) {}
    /// Notes that a read failed; its query learns of it as well.
    fn lost(&mut self, _read: Read, _loss: Loss) {}
    /// Whether the thread may wait. Asked before it does; `has_free_slot` tells whether it could admit a query
    /// meanwhile. Implementations that return false, or that may get queries later, must hold the tier's waker.
    fn may_wait(&mut self, _has_free_slot: bool) -> bool {
        true
    }
    /// Returns a connection from another server that this thread receives from now on. Asked once a round.
    fn connection(&mut self) -> Option<Inbound> {
        None
    }
    /// Takes back a connection: the tier of this thread reads no sockets.
    fn connection_refused(&mut self, _connection: Inbound) {}
    /// The turns of a round are over. The thread may wait next, unless it `_is_busy`: then another round follows.
    fn round_ended(&mut self, _is_busy: bool) {}
    /// Whether something wakes the tier when [`Queries::next`] has a query again.
    fn can_wake(&self) -> bool {
        false
    }
    /// Whether [`Queries::next`] may give more later although nothing is in flight: then the thread waits to be woken.
    fn stays(&self) -> bool {
        false
    }
    /// The other servers, where there are some.
    fn peers(&mut self) -> Option<&mut dyn Peers> {
        None
    }
    /// The loads of a batch, where queries share them.
    fn loads(&mut self) -> Option<&mut dyn Loads> {
        None
    }
}

/// Other servers that score for the queries of a thread.
pub trait Peers {
    /// Returns the state of the other servers, as far as it is known.
    fn others(&self) -> Others;
    /// Asks another server for the scores of a job, which [`Peers::scored`] gives later. Returns false where there is
    /// no other server.
    fn score(&mut self, number: usize, job: (Tag, u8), view: &IndexView<'_>, state: &QueryState) -> bool;
    /// Adds the scores that have arrived since the last call.
    fn scored(&mut self, out: &mut Vec<Scored>);
    /// Sends the jobs of a query on another server a lower threshold.
    fn tell(&mut self, number: usize, to: u8, threshold: Threshold);
    /// Notes the inverted lists that the first step of a query has chosen to visit.
    fn ranked(&mut self, number: usize, lists: &[(f32, u32)]);
}

/// Loads that the queries of a batch share: they are gathered, and each is made once.
pub trait Loads {
    /// Begins a gathered batch, before the snapshot of its first query is asked for.
    ///
    /// # Errors
    /// The headers that the batch needs cannot be read.
    fn begin_batch(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// Ends a gathered batch, all of whose queries have ended.
    fn end_batch(&mut self) {}
    /// Returns the snapshot that the queries of a gathered batch see; `None` where the index never changes.
    fn batch_snapshot(&mut self) -> Option<Arc<dyn Snapshot>> {
        None
    }
    /// Notes the cost of the loads of a doorbell; each counts once for all queries that wait for it.
    fn loaded(&mut self, loads: &QueryStats);
    /// Whether [`Loads::on_doorbell`] and [`Loads::traced`] are called.
    fn is_recorded(&self) -> bool {
        false
    }
    /// Notes the loads of a doorbell that begins, each with whether the cache has it.
    fn on_doorbell(&mut self, _loads: &[(Read, bool)]) {}
    /// Notes the trace of a query, before it ends: its scratch has it.
    fn traced(&mut self, _number: usize, _scratch: &Scratch) {}
}
