//! Query-aware loading (d-HNSW §3.3): the reads of a batch of queries are gathered before the first one is made.
//!
//! A batch has two stages on all threads of a search. First its queries are admitted and stepped until each waits for
//! reads, which go into one table; equal ones meet there. Then one thread, the loader, makes each read once. It starts
//! up to a *doorbell* of them at a time, one round trip, and delivers the bytes to every query that waits for them, on
//! any thread. While the bytes of one doorbell are searched the next is under way. Nothing hides the first one, so all
//! doorbells of a batch have about the same bytes. What the cache has comes before, in doorbells that read nothing.
//!
//! All queries that wait for one read use its bytes in a row, so that these stay in the processor's caches. Reads of
//! one unit that lie side by side, a cluster and its fresh records, are one read.
//!
//! Bytes of a doorbell are freed when the last query has used them, and only then the doorbell after the next begins.
//! So a batch takes the memory of two doorbells, however many queries wait. It also follows that a query must take each
//! arrival alone: one that waits for two of them would keep the first from being freed.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::Instant;

use stratann_core::query::{Extent, Loss, QueryStats, Read};
use stratann_storage::cache::Cached;
use stratann_storage::tier::{Buffer, Waker};

use super::reads::take_in;
use super::segment::view_of;
use super::shared_reads::{Asker, Mailbox};
use super::slot::{ReadResult, seen};
use super::{Driver, Queries};
use crate::exec::Snapshot;

mod order;

use order::in_order;

/// Options of the loads of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchOptions {
    /// Most queries of a batch.
    pub batch: usize,
    /// Most reads of a doorbell.
    pub doorbell: usize,
    /// Most bytes of a doorbell, with the pages in which its reads begin and end. One read may have more.
    pub doorbell_bytes: u64,
    /// Whether the user chose `doorbell`: a RAM budget without room for it is refused. Otherwise `doorbell_bytes` is
    /// lowered until it fits.
    pub is_doorbell_chosen: bool,
    /// Whether a doorbell is under way while the one before is searched.
    pub overlap: bool,
}

impl Default for BatchOptions {
    /// Batches as in d-HNSW §4, and doorbells so long that a batch of 2,000 queries over 500 clusters waits for few.
    fn default() -> Self {
        BatchOptions {
            batch: 2000,
            doorbell: 64,
            doorbell_bytes: DOORBELL_BYTES_MAX,
            is_doorbell_chosen: false,
            overlap: true,
        }
    }
}

impl BatchOptions {
    /// Most bytes of a doorbell, where these were lowered to fit a RAM budget.
    pub fn lowered_bytes(&self) -> Option<u64> {
        Some(self.doorbell_bytes).filter(|&bytes| bytes < DOORBELL_BYTES_MAX)
    }

    /// Doorbells whose bytes are in memory at once: one that is searched, and one that is under way.
    pub(crate) fn doorbells_at_once(&self) -> usize {
        if self.overlap { 2 } else { 1 }
    }
}

/// The error of a thread that ends because another one has: that one's error tells why.
pub(crate) const OTHER_THREAD_FAILED: &str = "another thread of the search failed";

/// The number of doorbells of what the cache has.
const CACHED: usize = 0;
/// Most bytes of a doorbell, which is one request then.
pub(crate) const DOORBELL_BYTES_MAX: u64 = 256 << 20;
/// Bytes of a read beyond those that were asked for: it begins and ends with a page.
pub(crate) const READ_EDGES_BYTES: u64 = 2 * stratann_core::PAGE as u64;

/// The reads of the batches of a search, shared by its threads.
pub struct BatchLoads {
    options: BatchOptions,
    threads: usize,
    state: Mutex<BatchState>,
    turn: Condvar,
}

#[derive(Default)]
struct BatchState {
    /// Queries that may still be admitted to the batch, and those that were.
    left: usize,
    admitted: usize,
    wanted: BTreeMap<Extent, Load>,
    /// Threads that have ended the present stage, and the number of stages that have ended.
    arrived: usize,
    stages: u64,
    /// Whether a thread has left early.
    is_broken: bool,
}

/// One read, and the queries that wait for it on each thread.
struct Load {
    read: Read,
    /// Loads of one number go out together; [`CACHED`] is that of what the cache has.
    doorbell: usize,
    waiting: Vec<(Arc<Mailbox>, Vec<Asker>)>,
}

/// Result of a load, for the queries of one thread.
pub(super) struct LoadDelivery {
    result: Result<Arc<Loaded>, Loss>,
    askers: Vec<Asker>,
    since: Instant,
}

/// The bytes of a load, which all queries that wait for it share.
pub(super) struct Loaded {
    bytes: LoadedBytes,
    _doorbell: Arc<Doorbell>,
}

enum LoadedBytes {
    Read(Arc<Buffer>, Range<usize>),
    Cached(Arc<[u8]>),
}

impl Loaded {
    pub(super) fn bytes(&self) -> &[u8] {
        match &self.bytes {
            LoadedBytes::Read(buffer, range) => &buffer.bytes()[range.clone()],
            LoadedBytes::Cached(bytes) => bytes,
        }
    }
}

/// A read of the loader that has ended.
pub(super) struct Completed {
    pub(super) buffer: Buffer,
    /// Bytes before the first that was asked for.
    pub(super) skip: usize,
    /// Bytes that have come.
    pub(super) end: usize,
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

impl BatchLoads {
    /// Loads of a search with so many threads.
    pub fn new(options: BatchOptions, threads: usize) -> BatchLoads {
        let options =
            BatchOptions { batch: options.batch.max(1), doorbell: options.doorbell.max(1), ..options };
        let state = BatchState { left: options.batch, ..BatchState::default() };
        BatchLoads { options, threads: threads.max(1), state: Mutex::new(state), turn: Condvar::new() }
    }

    /// One thread's membership; the first number, 0, is the loader. Dropping it before the search has ended ends the
    /// search on all threads.
    pub fn member(&self, thread: usize) -> BatchMember<'_> {
        BatchMember { batch: self, is_loader: thread == 0 }
    }

    fn lock(&self) -> MutexGuard<'_, BatchState> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Ends a stage on one thread, and waits until all have ended it. The loader then does what is to be done between
    /// two stages.
    fn end_stage(&self, is_loader: bool, between: impl FnOnce(&mut BatchState)) -> io::Result<()> {
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
        if state.stages == stage { Err(io::Error::other(OTHER_THREAD_FAILED)) } else { Ok(()) }
    }
}

/// See [`BatchLoads::member`].
pub struct BatchMember<'a> {
    batch: &'a BatchLoads,
    is_loader: bool,
}

impl Drop for BatchMember<'_> {
    fn drop(&mut self) {
        self.batch.lock().is_broken = true;
        self.batch.turn.notify_all();
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Admit,
    Load,
}

/// A thread's part of a batch whose reads are shared.
pub(super) struct ThreadBatch<'a> {
    member: BatchMember<'a>,
    stage: Stage,
    // Of the loader: what is not started yet, what is under way by its number, and doorbells whose bytes are in use.
    queue: VecDeque<Load>,
    loads: Vec<Option<(Vec<Load>, Arc<Doorbell>)>>,
    under_way: usize,
    doorbells: VecDeque<Weak<Doorbell>>,
    // What has come for queries of this thread.
    pub(super) deliveries: VecDeque<LoadDelivery>,
    // What the queries of the batch see.
    pub(super) snapshot: Option<Arc<dyn Snapshot>>,
}

/// Next action of the driver.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Another round of turns.
    Round,
    /// The driver waits for bytes.
    Wait,
    /// All queries have ended.
    End,
}

impl<'a> ThreadBatch<'a> {
    pub(super) fn new(member: BatchMember<'a>) -> ThreadBatch<'a> {
        ThreadBatch {
            member,
            stage: Stage::Admit,
            queue: VecDeque::new(),
            loads: Vec::new(),
            under_way: 0,
            doorbells: VecDeque::new(),
            deliveries: VecDeque::new(),
            snapshot: None,
        }
    }

    /// Takes the right to admit one query to the batch. False when it is full, or being loaded.
    pub(super) fn admits(&mut self) -> bool {
        if self.stage == Stage::Load {
            return false;
        }
        let mut state = self.member.batch.lock();
        let admits = state.left > 0;
        state.left = state.left.saturating_sub(1);
        admits
    }

    /// Notes whether a query was admitted. The first one begins the batch.
    pub(super) fn admitted(&mut self, was_there_one: bool, queries: &mut dyn Queries) -> io::Result<()> {
        let mut state = self.member.batch.lock();
        if !was_there_one {
            state.left += 1;
            return Ok(());
        }
        state.admitted += 1;
        match queries.loads().filter(|_| state.admitted == 1) {
            Some(loads) => loads.begin_batch(),
            None => Ok(()),
        }
    }

    /// Adds a query's want to the table.
    pub(super) fn want(&self, read: Read, mailbox: &Arc<Mailbox>, asker: Asker) {
        let mut state = self.member.batch.lock();
        let load = state.wanted.entry(read.at).or_insert_with(|| Load {
            read,
            doorbell: usize::MAX,
            waiting: Vec::new(),
        });
        match load.waiting.iter_mut().find(|(other, _)| Arc::ptr_eq(other, mailbox)) {
            Some((_, askers)) => askers.push(asker),
            None => load.waiting.push((mailbox.clone(), vec![asker])),
        }
    }

    pub(super) fn is_loading(&self) -> bool {
        self.stage == Stage::Load
    }

    /// Whether one more doorbell may begin: its memory is that of one whose bytes are no longer in use.
    fn may_ring(&mut self) -> bool {
        while self.doorbells.front().is_some_and(|doorbell| doorbell.strong_count() == 0) {
            self.doorbells.pop_front();
        }
        self.doorbells.len() < self.member.batch.options.doorbells_at_once() && !self.queue.is_empty()
    }

    /// The loads of a read that has ended, each with its place in the read, and their doorbell.
    fn ended(&mut self, number: usize) -> Option<(Vec<Load>, Arc<Doorbell>)> {
        let ended = self.loads.get_mut(number).and_then(Option::take)?;
        self.under_way -= 1;
        Some(ended)
    }

    /// Takes the loads of the next doorbell from the queue, by reads.
    fn next_loads(&mut self, room: usize) -> Vec<Vec<Load>> {
        let options = &self.member.batch.options;
        let (most, bytes_max) = (options.doorbell.min(room), options.doorbell_bytes.min(DOORBELL_BYTES_MAX));
        let doorbell = self.queue.front().map_or(CACHED, |load| load.doorbell);
        let mut reads: Vec<Vec<Load>> = Vec::new();
        let mut all_bytes = 0;
        while let Some(load) = self.queue.pop_front() {
            all_bytes += u64::from(load.read.at.bytes);
            let with_edges = all_bytes + (reads.len() as u64 + 1) * READ_EDGES_BYTES;
            let has_room = reads.len() < most && load.doorbell == doorbell;
            let has_room = has_room && (reads.is_empty() || with_edges <= bytes_max);
            match reads.last_mut() {
                Some(read)
                    if with_edges - READ_EDGES_BYTES <= bytes_max
                        && read.last().is_some_and(|last| last.is_beside(&load)) =>
                {
                    read.push(load);
                }
                _ if has_room => reads.push(vec![load]),
                _ => {
                    self.queue.push_front(load);
                    break;
                }
            }
        }
        reads
    }
}

impl Load {
    /// Delivers what came of it to all that wait.
    fn give(self, result: Result<(LoadedBytes, Arc<Doorbell>), Loss>) {
        let result = result.map(|(bytes, doorbell)| Arc::new(Loaded { bytes, _doorbell: doorbell }));
        for (mailbox, askers) in self.waiting {
            let since = Instant::now();
            mailbox.deliver_load(LoadDelivery { result: result.clone(), askers, since });
        }
    }

    fn is_cached(&self) -> bool {
        self.doorbell == CACHED
    }

    /// Whether another one is of the same unit, and its bytes follow.
    fn is_beside(&self, other: &Load) -> bool {
        let (at, next) = (self.read.at, other.read.at);
        !(self.is_cached() || other.is_cached())
            && self.read.unit() == other.read.unit()
            && (at.store, at.end()) == (next.store, next.offset)
    }

    /// Number of queries that wait for it.
    fn queries(&self) -> usize {
        self.waiting.iter().map(|(_, askers)| askers.len()).sum()
    }
}

/// A loader that ends early leaves no query waiting.
impl Drop for ThreadBatch<'_> {
    fn drop(&mut self) {
        let under_way = self.loads.drain(..).flatten().flat_map(|(loads, _)| loads);
        under_way.chain(self.queue.drain(..)).for_each(|load| load.give(Err(Loss::Failed)));
    }
}

impl Driver<'_> {
    /// Starts the doorbells that may begin. Only the loader has any.
    pub(super) fn start_doorbells(&mut self, queries: &mut dyn Queries) -> io::Result<()> {
        while self.thread_batch.as_mut().is_some_and(ThreadBatch::may_ring) && self.tier.room() > 0 {
            let doorbell = Arc::new(Doorbell(self.tier.waker().ok()));
            let Some(thread_batch) = &mut self.thread_batch else { return Ok(()) };
            let reads = thread_batch.next_loads(self.tier.room());
            thread_batch.doorbells.push_back(Arc::downgrade(&doorbell));
            if thread_batch.under_way == 0 {
                thread_batch.loads.clear();
            }
            let mut stats = QueryStats::default();
            let mut nodes = [false; 256];
            if let Some(loads) = queries.loads().filter(|loads| loads.is_recorded()) {
                let begun = reads.iter().flatten().map(|load| (load.read, load.is_cached()));
                loads.on_doorbell(&begun.collect::<Vec<_>>());
            }
            for loads in reads {
                if loads[0].is_cached() {
                    loads.into_iter().for_each(|load| self.give_cached(load, &doorbell, &mut stats));
                } else if let Some(at) = self.load(loads, &doorbell, queries) {
                    stats.reads += 1;
                    stats.bytes_read += u64::from(at.bytes);
                    stats.pages_read += at.pages();
                    nodes[usize::from(at.store.0)] = true;
                }
            }
            stats.round_trips = nodes.iter().filter(|&&is_used| is_used).count() as u64;
            if let Some(loads) = queries.loads() {
                loads.loaded(&stats);
            }
            self.start_reads_now()?;
        }
        Ok(())
    }

    /// Delivers what the cache has. What it has no longer is read with the last loads of the batch.
    fn give_cached(&mut self, mut load: Load, doorbell: &Arc<Doorbell>, stats: &mut QueryStats) {
        let segment = &self.seats[0].segment;
        let bytes = match segment.cache().and_then(|cache| cache.get(load.read.at)) {
            Some(Cached::Shared(bytes)) => bytes,
            Some(Cached::Resident(bytes)) => Arc::from(bytes),
            None => {
                load.doorbell = usize::MAX;
                if let Some(thread_batch) = &mut self.thread_batch {
                    thread_batch.queue.push_back(load);
                }
                return;
            }
        };
        stats.cache_hits += load.queries() as u64;
        load.give(Ok((LoadedBytes::Cached(bytes), doorbell.clone())));
    }

    /// Gives loads that lie side by side to the tier, as one read. `None` where there can be no such read, which those
    /// that wait for it learn.
    fn load(
        &mut self,
        loads: Vec<Load>,
        doorbell: &Arc<Doorbell>,
        queries: &mut dyn Queries,
    ) -> Option<Extent> {
        let (first, last) = (loads.first()?.read, loads.last()?.read);
        let whole = Extent { bytes: (last.at.end() - first.at.offset) as u32, ..first.at };
        let segment = &self.seats[0].segment;
        let file = segment.file_ids().of(whole.store);
        let file_bytes = self.tier.file_bytes(file).unwrap_or(0);
        let at = segment.locate(whole).filter(|at| at.end() <= file_bytes);
        let thread_batch = self.thread_batch.as_mut()?;
        let number = thread_batch.loads.len();
        thread_batch.loads.push(Some((loads, doorbell.clone())));
        thread_batch.under_way += 1;
        let Some(at) = at else {
            self.loaded(number, Err(Loss::Short), queries);
            return None;
        };
        self.reads.load(&mut *self.tier, file, (first, at), number);
        Some(at)
    }

    /// A read of the loader has ended: takes in the bytes of each of its loads, and delivers them to all that wait.
    pub(super) fn loaded(
        &mut self,
        number: usize,
        result: Result<Completed, Loss>,
        queries: &mut dyn Queries,
    ) {
        let Some((loads, doorbell)) = self.thread_batch.as_mut().and_then(|own| own.ended(number)) else {
            return;
        };
        let snapshot = self.thread_batch.as_ref().and_then(|own| own.snapshot.as_ref());
        let segment = &*self.seats[0].segment;
        let view = seen(view_of(segment, &self.others), snapshot);
        let first = loads.first().map_or(0, |load| load.read.at.offset);
        let taken = result.map(|Completed { mut buffer, skip, end }| {
            let take = |load: &Load| {
                let from = skip + (load.read.at.offset - first) as usize;
                let range = from..from + load.read.at.bytes as usize;
                let bytes = buffer.bytes_mut()[..end].get_mut(range.clone()).ok_or(Loss::Short)?;
                take_in(&view, segment.cache(), &load.read, bytes).map(|()| range)
            };
            let ranges: Vec<Result<Range<usize>, Loss>> = loads.iter().map(take).collect();
            (Arc::new(buffer), ranges)
        });
        for (at, load) in loads.into_iter().enumerate() {
            let taken = taken.as_ref().map_err(|&loss| loss);
            let taken = taken.and_then(|(buffer, ranges)| Ok((buffer, ranges[at].clone()?)));
            if let Err(loss) = taken {
                queries.lost(load.read, loss);
            }
            load.give(
                taken.map(|(buffer, range)| (LoadedBytes::Read(buffer.clone(), range), doorbell.clone())),
            );
        }
    }

    /// Gives the bytes of one load to all queries of this thread that wait for it, one after another. Returns whether
    /// there was one.
    pub(super) fn take_load(&mut self, queries: &mut dyn Queries) -> io::Result<bool> {
        let Some(thread_batch) = &mut self.thread_batch else { return Ok(false) };
        let Some(LoadDelivery { result, askers, since }) = thread_batch.deliveries.pop_front() else {
            return Ok(false);
        };
        self.joined -= askers.len();
        for asker in askers {
            let result = match &result {
                Ok(loaded) => ReadResult::Loaded(loaded.clone()),
                Err(loss) => ReadResult::Lost(*loss),
            };
            let at = asker.slot as usize;
            let slot = &mut self.slots[at];
            if !slot.is_active || slot.generation != asker.generation {
                continue;
            }
            slot.results.push((asker.tag, result));
            if slot.is_ready() {
                slot.waited_since(since);
                self.take_turn(at, queries)?;
            }
        }
        Ok(true)
    }

    /// Goes on to the next stage of a batch where this thread has ended the present one.
    pub(super) fn advance_batch(&mut self, queries: &mut dyn Queries) -> io::Result<Next> {
        // Bytes that are still to come for queries that have ended are taken too: their doorbell waits for it.
        let is_idle = self.idle.len() == self.slots.len() && self.joined == 0;
        let Some(thread_batch) = &mut self.thread_batch else { return Ok(Next::Wait) };
        let BatchMember { batch: loads, is_loader } = thread_batch.member;
        let batch = loads.options.batch;
        match thread_batch.stage {
            // A server waits for its next query.
            Stage::Admit if loads.threads == 1 && queries.stays() && loads.lock().admitted == 0 => {
                return Ok(Next::Wait);
            }
            Stage::Admit => {
                let (queue, cache) = (&mut thread_batch.queue, self.seats[0].segment.cache());
                let options = &loads.options;
                loads.end_stage(is_loader, |state| {
                    *queue = in_order(std::mem::take(&mut state.wanted).into_values(), cache, options);
                })?;
                thread_batch.stage = Stage::Load;
                thread_batch.snapshot = queries.loads().and_then(|loads| loads.batch_snapshot());
                if loads.lock().admitted == 0 {
                    return Ok(Next::End);
                }
            }
            Stage::Load => {
                let has_loads = !thread_batch.queue.is_empty() || thread_batch.under_way > 0;
                if !is_idle || has_loads {
                    return Ok(Next::Wait);
                }
                loads.end_stage(is_loader, |state| {
                    (state.left, state.admitted) = (batch, 0);
                    if let Some(loads) = queries.loads() {
                        loads.end_batch();
                    }
                })?;
                thread_batch.stage = Stage::Admit;
            }
        }
        Ok(Next::Round)
    }
}
