//! One query in flight: its state, its scratch, and what has arrived for it.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use stratann_core::kinds::IndexView;
use stratann_core::place::Others;
use stratann_core::query::{Arrival, Arrived, Extent, Loss, QueryState, Scratch, Step, Tag, wire};
use stratann_core::score::Ranking;
use stratann_core::sieve::Sieve;
use stratann_storage::cache::ExtentCache;
use stratann_storage::tier::Buffer;

use super::Times;
use super::batch_loads::Loaded;
use super::buffers::BufferPool;
use super::segment::{Segment, view_of};
use super::snapshot::Snapshot;

/// Result of one read. Bytes are verified.
pub(super) enum ReadResult {
    /// Bytes read for this query: a range of the pages in the buffer.
    Buffer(Buffer, Range<usize>),
    /// Bytes of a read that this query joined, or of the cache.
    Shared(Arc<[u8]>),
    /// Bytes of a gathered load.
    Loaded(Arc<Loaded>),
    /// Bytes that stay in the cache of the segment.
    Cached(Extent),
    /// The reply of another server to a job.
    Scores(Vec<u8>),
    /// Candidates that a scorer of codes ranked.
    Ranked(Ranking),
    /// No bytes.
    Lost(Loss),
}

/// Place for one query in flight; memory of its state and scratch is reused by the next.
pub(super) struct Slot {
    /// The number of its segment among those of the driver.
    pub(super) seat: usize,
    pub(super) state: QueryState,
    pub(super) snapshot: Option<Arc<dyn Snapshot>>,
    pub(super) sieve: Option<Arc<Sieve>>,
    pub(super) scratch: Scratch,
    /// Results of reads that the next step takes.
    pub(super) results: Vec<(Tag, ReadResult)>,
    pub(super) number: usize,
    /// Counts the queries of this slot. An eager query may end with reads under way; their bytes are not its
    /// successor's.
    pub(super) generation: u32,
    pub(super) started: Instant,
    /// Time at which it was last put into a queue of ready queries, or had its turn after a gathered load.
    pub(super) queued: Instant,
    pub(super) times: Times,
    pub(super) is_active: bool,
    /// Whether it is in a queue of ready queries.
    pub(super) is_queued: bool,
    /// Whether its turns come after those of other queries.
    pub(super) is_background: bool,
    /// Bytes of read buffers beyond those of a usual query; `None` for a usual query.
    pub(super) extra_bytes: Option<usize>,
}

/// State and scratch of a query that has ended: memory for one that begins.
#[derive(Default)]
pub(crate) struct QueryMemory {
    state: QueryState,
    scratch: Scratch,
}

impl QueryMemory {
    /// Bytes of the state; those of the scratch are the same for all queries of an index.
    pub(crate) fn state_bytes(&self) -> u64 {
        self.state.memory_bytes() as u64
    }
}

/// Memory for the arrivals of one step, empty between steps.
pub(super) type Arrivals = Vec<Arrival<'static>>;

/// Bytes of the place of a query, without what its state and its tables hold elsewhere.
pub const SLOT_BYTES: u64 = size_of::<Slot>() as u64;

impl Slot {
    pub(super) fn new() -> Slot {
        Slot {
            seat: 0,
            state: QueryState::default(),
            snapshot: None,
            sieve: None,
            scratch: Scratch::default(),
            results: Vec::new(),
            number: 0,
            generation: 0,
            started: Instant::now(),
            queued: Instant::now(),
            times: Times::default(),
            is_active: false,
            is_queued: false,
            is_background: false,
            extra_bytes: None,
        }
    }

    /// Begins with memory of an earlier query of the same index.
    pub(super) fn reuse(&mut self, memory: QueryMemory) {
        (self.state, self.scratch) = (memory.state, memory.scratch);
    }

    /// Has queries of this segment from now on. Memory of another one's queries is freed.
    pub(super) fn sit(&mut self, seat: usize) {
        if self.seat != seat {
            self.seat = seat;
            self.reuse(QueryMemory::default());
        }
    }

    /// The memory of its last query.
    pub(super) fn into_memory(self) -> QueryMemory {
        QueryMemory { state: self.state, scratch: self.scratch }
    }

    pub(super) fn begin(&mut self, number: usize) {
        self.number = number;
        self.generation = self.generation.wrapping_add(1);
        self.started = Instant::now();
        self.times = Times::default();
        self.is_active = true;
    }

    /// Whether enough has arrived for the next step.
    pub(super) fn is_ready(&self) -> bool {
        self.state.is_ready(self.results.len())
    }

    /// Counts the time since a read completed as waiting for the thread, but none twice.
    pub(super) fn waited_since(&mut self, completed: Instant) {
        let from = completed.max(self.queued);
        self.queued = Instant::now();
        self.times.ready += self.queued.saturating_duration_since(from).as_nanos() as u64;
    }

    /// Steps the query with all that has arrived. Returns the time that it took as well, in nanoseconds.
    pub(super) fn step(
        &mut self,
        (segment, others): (&dyn Segment, &Others),
        arrivals: &mut Arrivals,
        buffers: &mut BufferPool,
    ) -> (Step, u64) {
        let is_first = self.times.route == 0;
        // Routing began when the query was admitted, with its tables.
        let from = if is_first { self.started } else { Instant::now() };
        let mut arrived: Vec<Arrival<'_>> = std::mem::take(arrivals);
        let cache = segment.cache();
        let results = self.results.iter();
        arrived.extend(results.map(|(tag, result)| Arrival { tag: *tag, what: result.arrived(cache) }));
        let mut view = seen(view_of(segment, others), self.snapshot.as_ref());
        // A filter has no row that is deleted.
        view.base.sieve = self.sieve.as_deref().or(view.base.sieve);
        view.base.is_filtered = self.sieve.is_some();
        let step = self.state.step(&view, &mut self.scratch, &arrived);
        *arrivals = emptied(arrived);
        self.release(buffers);
        let spent = from.elapsed().as_nanos() as u64;
        if is_first {
            self.times.route = spent.max(1);
        } else {
            self.times.verify += spent;
        }
        (step, spent)
    }

    /// Ends a query. The memory of a usual one is kept for the next, that of a larger one is freed.
    pub(super) fn end(&mut self, buffers: &mut BufferPool) {
        self.release(buffers);
        self.is_active = false;
        self.is_queued = false;
        (self.snapshot, self.sieve) = (None, None);
        if let Some(extra) = self.extra_bytes.take() {
            self.state = QueryState::default();
            self.scratch = Scratch::default();
            self.results = Vec::new();
            buffers.lower(extra);
        }
    }

    /// Gives the buffers of all results back to the pool.
    pub(super) fn release(&mut self, buffers: &mut BufferPool) {
        for (_, result) in self.results.drain(..) {
            if let ReadResult::Buffer(buffer, _) = result {
                buffers.recycle(buffer);
            }
        }
    }
}

/// The part of the index that a query with this snapshot sees.
pub(super) fn seen<'v>(mut view: IndexView<'v>, snapshot: Option<&'v Arc<dyn Snapshot>>) -> IndexView<'v> {
    if let Some(snapshot) = snapshot {
        snapshot.apply(&mut view);
    }
    view
}

impl ReadResult {
    fn arrived<'s>(&'s self, cache: Option<&'s ExtentCache>) -> Arrived<'s> {
        match self {
            ReadResult::Buffer(buffer, range) => Arrived::Bytes(&buffer.bytes()[range.clone()]),
            ReadResult::Shared(bytes) => Arrived::Bytes(bytes),
            ReadResult::Loaded(loaded) => Arrived::Bytes(loaded.bytes()),
            ReadResult::Cached(at) => cache
                .and_then(|cache| cache.resident(*at))
                .map_or(Arrived::Lost(Loss::Failed), Arrived::Bytes),
            ReadResult::Scores(bytes) => {
                wire::read_scores(bytes).map_or(Arrived::Lost(Loss::Damaged), Arrived::Scores)
            }
            ReadResult::Ranked(ranking) => Arrived::Ranked(ranking.ranked()),
            ReadResult::Lost(loss) => Arrived::Lost(*loss),
        }
    }
}

/// Empties a vector and keeps its memory. The standard library collects into the memory of the source where the
/// layouts agree.
fn emptied(mut arrived: Vec<Arrival<'_>>) -> Arrivals {
    arrived.clear();
    arrived.into_iter().map(|a| Arrival { tag: a.tag, what: Arrived::Lost(Loss::Expired) }).collect()
}
