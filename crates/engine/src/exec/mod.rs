//! The loop of one worker thread: rounds of turns, polls between them.
//!
//! A thread holds many queries. Each is a state that waits for its reads while others compute; when one ends the next
//! is admitted (BatANN §5).
//!
//! Turns are fair. A round admits at most one query and then gives one turn to each query that is ready, in the order
//! in which they became ready. A turn ends when the query waits for a read or has ended, and after [`STEPS_PER_TURN`]
//! steps at the latest. Completed reads are taken in before each round. So a query whose reads have completed waits
//! for one turn of each query in flight at most, however many queries find all of their reads in the cache. Where
//! nothing is ready, queries are admitted until no slot is free.
//!
//! Queries that [`Queries::is_background`] names have turns of their own, of one step. A round gives one of them a turn
//! where no other query is ready, and where the background is behind its share of the computing time ([`share`]).
//! Queued reads of other queries are started before that step, and completed reads are taken in after it. So a query
//! waits for one step of the background at most between two of its own, however many queries are in the background.
//! While other queries are in flight, those in the background have few reads under way (`READS_WANTED`), and their
//! reads that wait for room come after those of others.

mod batch_loads;
mod buffers;
mod codes;
mod kept;
mod options;
mod queries;
mod reads;
pub mod scorer;
mod segment;
mod share;
mod shared_reads;
mod slot;
mod snapshot;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use stratann_core::place::Others;
use stratann_core::query::{Loss, Outcome, QueryStats, Read, Step, StepTables};
use stratann_storage::link::Inbounds;
use stratann_storage::tier::{Completion, Tier};

pub(crate) use self::batch_loads::OTHER_THREAD_FAILED;
pub use self::batch_loads::{BatchLoads, BatchMember, BatchOptions};
pub(crate) use self::batch_loads::{DOORBELL_BYTES_MAX, READ_EDGES_BYTES};
use self::batch_loads::{Next, ThreadBatch};
use self::buffers::BufferPool;
use self::codes::CodeScorer;
pub(crate) use self::kept::{MemoryOwner, Ring, RingShape};
pub use self::options::{Admission, DriverOptions, MergedReads, Times, Width};
pub use self::queries::{Loads, Peers, Queries, Scored};
pub use self::reads::START_READS;
use self::reads::TierReads;
pub use self::segment::{Alone, Segment};
use self::segment::{Seat, view_of};
use self::share::BackgroundShare;
pub use self::shared_reads::SharedReads;
use self::shared_reads::{Asker, Delivery, Mailbox};
pub(crate) use self::slot::QueryMemory;
pub use self::slot::SLOT_BYTES;
use self::slot::{Arrivals, Slot};
pub use self::snapshot::Snapshot;

/// Most queries in flight on one thread.
const IN_FLIGHT_MAX: usize = 1 << 16;

/// Most steps in one turn of a query: a long query whose reads are all cached does not hold up the others.
pub const STEPS_PER_TURN: usize = 128;

/// One thread's loop over some open indexes.
pub struct Driver<'a> {
    seats: Vec<Seat<'a>>,
    // The other servers, where an index is divided over some.
    others: Others,
    options: DriverOptions,
    tier: Box<dyn Tier + 'a>,
    // Where equal reads of all threads meet, and where this thread gets its share.
    sharing: Option<(&'a SharedReads, Arc<Mailbox>)>,
    // Gathers the reads of a batch.
    thread_batch: Option<ThreadBatch<'a>>,
    // What a step needs and a query that waits does not.
    tables: StepTables,
    slots: Vec<Slot>,
    idle: Vec<usize>,
    // Slots whose queries are ready for a turn, the longest ready first.
    ready: VecDeque<usize>,
    // The same for queries whose turns come after those of others.
    background: VecDeque<usize>,
    share: BackgroundShare,
    // Queries that may still be admitted to the present batch.
    batch_left: usize,
    buffers: BufferPool,
    reads: TierReads,
    // Reads that found no room, of usual queries and of those in the background.
    postponed_usual: VecDeque<(Asker, Read)>,
    postponed_background: VecDeque<(Asker, Read)>,
    // Queries in flight that are not in the background, and reads under way of those that are.
    foreground_in_flight: usize,
    background_reads: usize,
    // Deliveries that are awaited.
    joined: usize,
    // Reads that the tier was given since it last started any, and the time that steps took meanwhile.
    unstarted: usize,
    unstarted_ns: u64,
    // Whether some of them are of queries that are not in the background.
    has_urgent: bool,
    // Other servers whose frames this thread receives.
    inbounds: Inbounds,
    completions: Vec<Completion>,
    deliveries: Vec<Delivery>,
    scores: Vec<Scored>,
    arrivals: Arrivals,
}

impl<'a> Driver<'a> {
    /// A driver for queries of one index, which reads from `tier`.
    pub fn new(
        segment: Arc<dyn Segment + 'a>,
        mut tier: Box<dyn Tier + 'a>,
        options: DriverOptions,
    ) -> Driver<'a> {
        let in_flight =
            if options.admission == Admission::One { 1 } else { options.in_flight.clamp(1, IN_FLIGHT_MAX) };
        let buffers = BufferPool::new(
            tier.buffers(),
            options.buffer_bytes.max(stratann_core::PAGE),
            options.buffers_bytes,
        );
        let codes = segment.scorer().map(|_| CodeScorer::new(tier.waker().ok()));
        Driver {
            seats: vec![Seat { segment, width: options.width, codes }],
            others: Others::live(u64::MAX),
            options: DriverOptions { in_flight, ..options },
            tier,
            sharing: None,
            thread_batch: None,
            tables: StepTables::default(),
            slots: (0..in_flight).map(|_| Slot::new()).collect(),
            idle: (0..in_flight).rev().collect(),
            ready: VecDeque::with_capacity(in_flight),
            background: VecDeque::new(),
            share: BackgroundShare::new(options.turn_ns),
            batch_left: 0,
            buffers,
            reads: TierReads::default(),
            postponed_usual: VecDeque::new(),
            postponed_background: VecDeque::new(),
            foreground_in_flight: 0,
            background_reads: 0,
            joined: 0,
            unstarted: 0,
            unstarted_ns: 0,
            has_urgent: false,
            inbounds: Inbounds::default(),
            completions: Vec::new(),
            deliveries: Vec::new(),
            scores: Vec::new(),
            arrivals: Arrivals::new(),
        }
    }

    /// Joins reads that are under way on threads that share `reads`, and lets them join its own; with `None`
    /// every read is made.
    pub fn sharing(mut self, reads: Option<&'a SharedReads>) -> Driver<'a> {
        self.sharing = reads.map(|reads| (reads, reads.mailbox(self.tier.waker().ok())));
        self
    }

    /// Gathers the reads of a batch before the first one is made; with `None` each read is made when it is wanted.
    pub fn with_batch_loads(mut self, member: Option<(BatchMember<'a>, &'a SharedReads)>) -> Driver<'a> {
        if let Some((member, reads)) = member {
            self = self.sharing(Some(reads));
            self.thread_batch = Some(ThreadBatch::new(member));
        }
        self
    }

    /// Has queries of one more index, with reads in one round of its own; [`Queries::segment`] tells them apart.
    pub fn and(mut self, segment: Arc<dyn Segment + 'a>, width: Width) -> Driver<'a> {
        let codes = segment.scorer().map(|_| CodeScorer::new(self.tier.waker().ok()));
        self.seats.push(Seat { segment, width, codes });
        self
    }

    /// Has the first query use memory of an earlier one of the same index, which is the first of the driver.
    pub(crate) fn reusing(mut self, memory: Option<Box<QueryMemory>>) -> Driver<'a> {
        if let (Some(memory), Some(slot)) = (memory, self.slots.first_mut()) {
            slot.reuse(*memory);
        }
        self
    }

    /// The memory of its first slot, for a later query of the first index.
    pub(crate) fn into_memory(mut self) -> Option<Box<QueryMemory>> {
        let is_usable = self.slots.first().is_some_and(|slot| slot.seat == 0);
        is_usable.then(|| Box::new(self.slots.swap_remove(0).into_memory()))
    }

    /// Runs until `queries` has no more, does not stay, and all have ended.
    ///
    /// # Errors
    /// When the tier as a whole is broken; a read that fails ends its own query alone.
    pub fn run(&mut self, queries: &mut dyn Queries) -> io::Result<()> {
        let has_servers = self.seats.iter().any(|seat| seat.segment.view().base.here.is_some());
        loop {
            if has_servers && let Some(peers) = queries.peers() {
                self.others = peers.others();
            }
            if queries.has_unwanted() {
                self.drop_unwanted(queries);
            }
            self.take_connections(queries);
            self.collect_scores(queries);
            self.collect_rankings();
            let turns = self.ready.len() + self.background.len();
            let has_admitted = self.admit(queries)?;
            self.start_doorbells(queries)?;
            let has_load = self.take_load(queries)?;
            self.take_turns(has_admitted, queries)?;
            let is_busy = has_admitted || has_load || turns > 0;
            if !is_busy && self.thread_batch.is_some() {
                match self.advance_batch(queries)? {
                    Next::Round => continue,
                    Next::End => return Ok(()),
                    Next::Wait => {}
                }
            } else if !is_busy && self.idle.len() == self.slots.len() && !queries.stays() {
                if self.reads.is_empty() || self.sharing.is_none() {
                    return Ok(());
                }
                // Queries of other threads may wait for these.
                queries.round_ended(false);
                self.collect(true, queries)?;
                continue;
            }
            // Nothing wakes a thread that has no reads under way, unless its queries do.
            let may_admit =
                !self.idle.is_empty() && !self.thread_batch.as_ref().is_some_and(ThreadBatch::is_loading);
            let wait = !is_busy && queries.may_wait(may_admit) && (self.has_reads() || queries.can_wake());
            queries.round_ended(is_busy);
            self.collect(wait, queries)?;
        }
    }

    /// Gives a turn to each query that is ready. Then one in the background has a step, where no other query had a turn
    /// or the background is behind its share.
    fn take_turns(&mut self, has_admitted: bool, queries: &mut dyn Queries) -> io::Result<()> {
        let others = self.ready.len();
        for _ in 0..others {
            let Some(at) = self.ready.pop_front() else { break };
            self.take_queued_turn(at, queries)?;
        }
        if (others > 0 || has_admitted) && !self.share.is_behind() {
            return Ok(());
        }
        let Some(at) = self.background.pop_front() else { return Ok(()) };
        if self.has_urgent {
            self.start_reads_now()?;
        }
        self.take_queued_turn(at, queries)
    }

    fn take_queued_turn(&mut self, at: usize, queries: &mut dyn Queries) -> io::Result<()> {
        let slot = &mut self.slots[at];
        slot.is_queued = false;
        slot.times.ready += slot.queued.elapsed().as_nanos() as u64;
        self.take_turn(at, queries)
    }

    /// Frees the slots of all queries that are no longer wanted, also of those that wait for reads.
    fn drop_unwanted(&mut self, queries: &mut dyn Queries) {
        for at in 0..self.slots.len() {
            if self.slots[at].is_active && !queries.is_wanted(self.slots[at].number) {
                queries.dropped(self.slots[at].number, &self.slots[at].state);
                self.free(at, queries);
            }
        }
        self.ready.retain(|&at| self.slots[at].is_active);
        self.background.retain(|&at| self.slots[at].is_active);
    }

    /// Admits one query and gives it its first turn. Returns false when there is none, or no slot for it.
    fn admit(&mut self, queries: &mut dyn Queries) -> io::Result<bool> {
        if self.options.admission == Admission::Batch {
            if self.idle.len() == self.slots.len() {
                self.batch_left = self.slots.len();
            } else if self.batch_left == 0 {
                return Ok(false);
            }
        }
        if self.idle.is_empty() {
            return Ok(false);
        }
        if self.thread_batch.as_mut().is_some_and(|thread_batch| !thread_batch.admits()) {
            return Ok(false);
        }
        let next = queries.next();
        if let Some(thread_batch) = &mut self.thread_batch {
            thread_batch.admitted(next.is_some(), queries)?;
        }
        let Some(number) = next else { return Ok(false) };
        let seat = queries.segment(number);
        let Some(at) = self.idle_slot(seat) else { return Ok(false) };
        self.batch_left = self.batch_left.saturating_sub(1);
        let active = self.slots.len() - self.idle.len();
        let load = (active + queries.remaining()).min(self.slots.len());
        let slot = &mut self.slots[at];
        slot.begin(number);
        slot.extra_bytes = queries.extra_bytes(number);
        self.buffers.raise(slot.extra_bytes.unwrap_or(0));
        slot.is_background = queries.is_background(number, &QueryStats::default());
        let is_usual = !slot.is_background;
        slot.snapshot = queries.snapshot(number);
        slot.sieve = queries.sieve(number);
        let Seat { segment, width, .. } = &self.seats[seat];
        let vector = queries.begin(number, width.at_load(load), &mut slot.state);
        slot.scratch.prepare_for(&view_of(&**segment, &self.others), vector, &slot.state);
        if queries.loads().is_some_and(|loads| loads.is_recorded()) {
            slot.scratch.trace_lists();
        }
        self.usual_begin(usize::from(is_usual));
        self.take_turn(at, queries)?;
        Ok(true)
    }

    /// Takes a slot that has no query, one whose memory is of the same index where there is one.
    fn idle_slot(&mut self, seat: usize) -> Option<usize> {
        let of_same = self.idle.iter().rposition(|&at| self.slots[at].seat == seat);
        let at = match of_same {
            Some(found) => self.idle.swap_remove(found),
            None => self.idle.pop()?,
        };
        self.slots[at].sit(seat);
        Some(at)
    }

    /// Steps a query until it waits, has ended, or has used up its turn.
    fn take_turn(&mut self, at: usize, queries: &mut dyn Queries) -> io::Result<()> {
        if !queries.is_wanted(self.slots[at].number) {
            queries.dropped(self.slots[at].number, &self.slots[at].state);
            self.free(at, queries);
            return Ok(());
        }
        let mut turn_ns = 0;
        let is_background = self.slots[at].is_background;
        let segment = self.seats[self.slots[at].seat].segment.clone();
        for _ in 0..if is_background { 1 } else { STEPS_PER_TURN } {
            self.start_reads()?;
            let is_new = self.slots[at].state.is_new();
            self.slots[at].scratch.swap_tables(&mut self.tables);
            let of = (&*segment, &self.others);
            let (step, spent_ns) = self.slots[at].step(of, &mut self.arrivals, &mut self.buffers);
            self.slots[at].scratch.swap_tables(&mut self.tables);
            self.share.spent(is_background, spent_ns);
            self.unstarted_ns += spent_ns;
            turn_ns += spent_ns;
            if is_new && let Some(peers) = queries.peers() {
                peers.ranked(self.slots[at].number, self.slots[at].scratch.ranked_lists());
            }
            if step != Step::Wait {
                self.finish(at, step, queries);
                return Ok(());
            }
            self.fetch_wants(at, queries);
            let slot = &mut self.slots[at];
            if !slot.is_background && queries.is_background(slot.number, slot.state.stats()) {
                slot.is_background = true;
                self.usual_end(1);
            }
            if !self.slots[at].is_ready() {
                return Ok(());
            }
            if turn_ns > self.options.turn_ns {
                break;
            }
        }
        self.enqueue(at);
        Ok(())
    }

    /// Gives a query a turn in the next round.
    fn enqueue(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        if !slot.is_queued {
            slot.is_queued = true;
            slot.queued = Instant::now();
            if slot.is_background { &mut self.background } else { &mut self.ready }.push_back(at);
        }
    }

    fn finish(&mut self, at: usize, step: Step, queries: &mut dyn Queries) {
        let slot = &mut self.slots[at];
        slot.times.latency = slot.started.elapsed().as_nanos() as u64;
        if let Some(loads) = queries.loads().filter(|loads| loads.is_recorded()) {
            loads.traced(slot.number, &slot.scratch);
        }
        queries.ended(slot.number, step, &slot.state, slot.times);
        self.free(at, queries);
    }

    /// Makes room for the next query.
    fn free(&mut self, at: usize, queries: &mut dyn Queries) {
        self.usual_end(usize::from(!self.slots[at].is_background));
        let slot = &mut self.slots[at];
        let is_large = slot.extra_bytes.is_some();
        slot.end(&mut self.buffers);
        if is_large {
            queries.freed(slot.number);
        }
        // A query that came to be in the background may have some in both.
        for postponed in [&mut self.postponed_usual, &mut self.postponed_background] {
            postponed.retain(|(asker, _)| asker.slot as usize != at);
        }
        self.idle.push(at);
    }
}

/// The reason why a query gave no results; `None` when it gave some.
pub fn failure(outcome: Outcome, file: &std::path::Path) -> Option<String> {
    let (at, loss) = match outcome {
        Outcome::Lost { at, loss, .. } => (at, loss),
        Outcome::WrongKind => {
            return Some("the query is of another kind than the index; please report this".into());
        }
        Outcome::Running | Outcome::Complete | Outcome::OutOfBudget | Outcome::Partial => return None,
    };
    let place = format!("{} at offset {} ({} bytes)", file.display(), at.offset, at.bytes);
    Some(match loss {
        Loss::Failed => format!("reading {place} failed; check the disk"),
        Loss::Short => format!("{place} is cut short; restore the file or build the index again"),
        Loss::Damaged => format!(
            "{place} is damaged; run `stratann verify`, then restore the file or build the index again"
        ),
        Loss::Expired => format!("waiting for {place} took too long"),
    })
}
