//! Query-aware loading (d-HNSW §3.3): the reads of a batch of queries are gathered before the first one is made.
//!
//! A batch has two stages on all threads of a search. First its queries are admitted and stepped until each waits for
//! reads, which go into one table; equal ones meet there. Then one thread, the loader, makes each read once, in the
//! order of addresses. It starts up to a *doorbell* of them at a time, one round trip, and delivers the bytes to every
//! query that waits for them, on any thread. While the bytes of one doorbell are searched the next is under way.
//!
//! Bytes of a doorbell are freed when the last query has used them, and only then the doorbell after the next begins.
//! So a batch takes the memory of two doorbells, however many queries wait. It also follows that a query must take each
//! arrival alone: one that waits for two of them would keep the first from being freed.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};

use stratann_core::query::{Loss, QueryStats, Read, StoreId};

use super::shared_reads::{Asker, Delivery, Mailbox, SharedBytes};
use super::{Driver, Queries};
use crate::kinds::snapshot::Snapshot;
use crate::tier::{Buffer, Waker};

/// How a batch is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherOptions {
    /// Most queries of a batch.
    pub batch: usize,
    /// Most reads of a doorbell.
    pub doorbell: usize,
    /// Whether a doorbell is under way while the one before is searched.
    pub overlap: bool,
}

impl Default for GatherOptions {
    /// Batches as in d-HNSW §4, and doorbells so long that a batch of 2,000 queries over 500 clusters waits for few.
    fn default() -> Self {
        GatherOptions { batch: 2000, doorbell: 64, overlap: true }
    }
}

/// The gathered reads of a search, shared by its threads.
pub struct Gather {
    options: GatherOptions,
    threads: usize,
    state: Mutex<GatherState>,
    turn: Condvar,
}

#[derive(Default)]
struct GatherState {
    /// Queries that may still be admitted to the batch, and those that were.
    left: usize,
    admitted: usize,
    wanted: BTreeMap<(StoreId, u64, u32), Load>,
    /// Threads that have ended the present stage, and the number of stages that have ended.
    arrived: usize,
    stages: u64,
    /// Whether a thread has left early.
    is_broken: bool,
}

/// One read and the queries that wait for it.
struct Load {
    read: Read,
    waiting: Vec<(Arc<Mailbox>, Asker, Read)>,
}

/// The bytes of a load, which all queries that wait for it share.
pub(super) struct Loaded {
    buffer: Buffer,
    range: Range<usize>,
    _doorbell: Arc<Doorbell>,
}

impl Loaded {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer.bytes()[self.range.clone()]
    }
}

/// Lives as long as bytes of its loads are in use; then the loader may start another.
pub(super) struct Doorbell(Option<Waker>);

impl Drop for Doorbell {
    fn drop(&mut self) {
        if let Some(waker) = &self.0 {
            waker.wake();
        }
    }
}

impl Gather {
    /// For a search with so many threads.
    pub fn new(options: GatherOptions, threads: usize) -> Gather {
        let options =
            GatherOptions { batch: options.batch.max(1), doorbell: options.doorbell.max(1), ..options };
        let state = GatherState { left: options.batch, ..GatherState::default() };
        Gather { options, threads: threads.max(1), state: Mutex::new(state), turn: Condvar::new() }
    }

    /// One thread's membership; the first number, 0, is the loader. Dropping it before the search has ended ends the
    /// search on all threads.
    pub fn member(&self, thread: usize) -> GatherMember<'_> {
        GatherMember { gather: self, is_loader: thread == 0 }
    }

    fn lock(&self) -> MutexGuard<'_, GatherState> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Ends a stage on one thread, and waits until all have ended it. The loader then does what is to be done between
    /// two stages.
    fn end_stage(&self, is_loader: bool, between: impl FnOnce(&mut GatherState)) -> io::Result<()> {
        let mut state = self.lock();
        state.arrived += 1;
        self.turn.notify_all();
        let stage = state.stages;
        if is_loader {
            while state.arrived < self.threads && !state.is_broken {
                state = self.turn.wait(state).unwrap_or_else(|e| e.into_inner());
            }
            if !state.is_broken {
                between(&mut state);
                state.arrived = 0;
                state.stages += 1;
                self.turn.notify_all();
            }
        } else {
            while state.stages == stage && !state.is_broken {
                state = self.turn.wait(state).unwrap_or_else(|e| e.into_inner());
            }
        }
        // A thread that left after this stage had ended is noticed at the next.
        if state.stages == stage {
            Err(io::Error::other("another thread of the search failed"))
        } else {
            Ok(())
        }
    }
}

/// See [`Gather::member`].
pub struct GatherMember<'a> {
    gather: &'a Gather,
    is_loader: bool,
}

impl Drop for GatherMember<'_> {
    fn drop(&mut self) {
        self.gather.lock().is_broken = true;
        self.gather.turn.notify_all();
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Admit,
    Load,
}

/// A thread's part of a gathered batch.
pub(super) struct Gathering<'a> {
    member: GatherMember<'a>,
    stage: Stage,
    // Of the loader: what is not started yet, what is under way by its number, and doorbells whose bytes are in use.
    queue: VecDeque<Load>,
    loads: Vec<Option<(Load, Arc<Doorbell>)>>,
    under_way: usize,
    doorbells: VecDeque<Weak<Doorbell>>,
    // What the queries of the batch see.
    pub(super) snapshot: Option<Snapshot>,
}

/// What the driver does next.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Another round of turns.
    Round,
    /// It waits for bytes.
    Wait,
    /// All queries have ended.
    End,
}

impl<'a> Gathering<'a> {
    pub(super) fn new(member: GatherMember<'a>) -> Gathering<'a> {
        Gathering {
            member,
            stage: Stage::Admit,
            queue: VecDeque::new(),
            loads: Vec::new(),
            under_way: 0,
            doorbells: VecDeque::new(),
            snapshot: None,
        }
    }

    /// Takes the right to admit one query to the batch. False when it is full, or being loaded.
    pub(super) fn admits(&mut self) -> bool {
        if self.stage == Stage::Load {
            return false;
        }
        let mut state = self.member.gather.lock();
        let admits = state.left > 0;
        state.left = state.left.saturating_sub(1);
        admits
    }

    /// Notes whether a query was admitted. The first one begins the batch.
    pub(super) fn admitted(&mut self, was_there_one: bool, queries: &mut dyn Queries) -> io::Result<()> {
        let mut state = self.member.gather.lock();
        if !was_there_one {
            state.left += 1;
            return Ok(());
        }
        state.admitted += 1;
        if state.admitted == 1 { queries.begin_batch() } else { Ok(()) }
    }

    /// Adds a query's want to the table.
    pub(super) fn want(&self, read: Read, mailbox: &Arc<Mailbox>, asker: Asker) {
        let mut state = self.member.gather.lock();
        let key = (read.at.store, read.at.offset, read.at.bytes);
        let load = state.wanted.entry(key).or_insert_with(|| Load { read, waiting: Vec::new() });
        load.waiting.push((mailbox.clone(), asker, read));
    }

    pub(super) fn is_loading(&self) -> bool {
        self.stage == Stage::Load
    }

    /// Whether one more doorbell may begin: its memory is that of one whose bytes are no longer in use.
    fn may_ring(&mut self) -> bool {
        while self.doorbells.front().is_some_and(|doorbell| doorbell.strong_count() == 0) {
            self.doorbells.pop_front();
        }
        let most = if self.member.gather.options.overlap { 2 } else { 1 };
        self.doorbells.len() < most && !self.queue.is_empty()
    }

    /// The bytes of a load have come, or were lost: delivers them to all that wait.
    pub(super) fn deliver(&mut self, number: usize, result: Result<(Buffer, Range<usize>), Loss>) {
        let Some((load, doorbell)) = self.loads.get_mut(number).and_then(Option::take) else { return };
        self.under_way -= 1;
        let result = result.map(|(buffer, range)| {
            SharedBytes::Loaded(Arc::new(Loaded { buffer, range, _doorbell: doorbell }))
        });
        give(load, &result);
    }
}

fn give(load: Load, result: &Result<SharedBytes, Loss>) {
    for (mailbox, to, read) in load.waiting {
        mailbox.deliver(Delivery { to, read, result: result.clone() });
    }
}

/// A loader that ends early leaves no query waiting.
impl Drop for Gathering<'_> {
    fn drop(&mut self) {
        let under_way = self.loads.drain(..).flatten().map(|(load, _)| load);
        under_way.chain(self.queue.drain(..)).for_each(|load| give(load, &Err(Loss::Failed)));
    }
}

impl Driver<'_> {
    /// Starts the doorbells that may begin. Only the loader has any.
    pub(super) fn ring_doorbells(&mut self, queries: &mut dyn Queries) -> io::Result<()> {
        while self.gathering.as_mut().is_some_and(Gathering::may_ring) && self.tier.room() > 0 {
            let waker = self.tier.waker().ok();
            let doorbell = Arc::new(Doorbell(waker));
            let mut stats = QueryStats::default();
            let mut nodes = [false; 256];
            let Some(gathering) = &mut self.gathering else { return Ok(()) };
            gathering.doorbells.push_back(Arc::downgrade(&doorbell));
            let most = gathering.member.gather.options.doorbell.min(gathering.queue.len());
            let most = most.min(self.tier.room());
            let loads: Vec<Load> = gathering.queue.drain(..most).collect();
            if gathering.under_way == 0 {
                gathering.loads.clear();
            }
            for load in loads {
                let read = load.read;
                let number = gathering.loads.len();
                let at = self.tier.locate(read.at).filter(|at| {
                    self.tier.store_bytes(at.store).is_some_and(|store_bytes| at.end() <= store_bytes)
                });
                gathering.loads.push(Some((load, doorbell.clone())));
                gathering.under_way += 1;
                let Some(at) = at else {
                    queries.lost(read, Loss::Short);
                    gathering.deliver(number, Err(Loss::Short));
                    continue;
                };
                stats.reads += 1;
                stats.bytes_read += u64::from(at.bytes);
                stats.pages_read += at.pages();
                nodes[usize::from(at.store.0)] = true;
                self.reads.load(&mut *self.tier, read, at, number);
            }
            stats.round_trips = nodes.iter().filter(|&&is_used| is_used).count() as u64;
            queries.loaded(&stats);
            self.start_reads_now()?;
        }
        Ok(())
    }

    /// Goes on to the next stage of a batch where this thread has ended the present one.
    pub(super) fn advance_batch(&mut self, queries: &mut dyn Queries) -> io::Result<Next> {
        let is_idle = self.idle.len() == self.slots.len();
        let Some(gathering) = &mut self.gathering else { return Ok(Next::Wait) };
        let GatherMember { gather, is_loader } = gathering.member;
        let batch = gather.options.batch;
        match gathering.stage {
            // A server waits for its next query.
            Stage::Admit if gather.threads == 1 && queries.stays() && gather.lock().admitted == 0 => {
                return Ok(Next::Wait);
            }
            Stage::Admit => {
                let queue = &mut gathering.queue;
                gather.end_stage(is_loader, |state| {
                    queue.extend(std::mem::take(&mut state.wanted).into_values());
                })?;
                gathering.stage = Stage::Load;
                gathering.snapshot = queries.batch_snapshot();
                if gather.lock().admitted == 0 {
                    return Ok(Next::End);
                }
            }
            Stage::Load => {
                let has_loads = !gathering.queue.is_empty() || gathering.under_way > 0;
                if !is_idle || has_loads {
                    return Ok(Next::Wait);
                }
                gather.end_stage(is_loader, |state| {
                    (state.left, state.admitted) = (batch, 0);
                    queries.end_batch();
                })?;
                gathering.stage = Stage::Admit;
            }
        }
        Ok(Next::Round)
    }
}
