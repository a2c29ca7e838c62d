//! The loop of one worker thread: rounds of turns, polls between them.
//!
//! A thread holds many queries. Each is a state that waits for its reads while others compute; when one ends the next is admitted
//! (BatANN §5).
//!
//! Turns are fair. A round admits at most one query and then gives one turn to each query that is ready, in the order in which they became
//! ready. A turn ends when the query waits for a read or has ended, and after [`STEPS_PER_TURN`] steps at the latest. Completed reads are
//! taken in before each round. So a query whose reads have completed waits for one turn of each query in flight at most, however many
//! queries find all of their reads in the cache. Where nothing is ready, queries are admitted until no slot is free.

mod buffers;
mod options;
mod slot;

use std::collections::VecDeque;
use std::io;

use stratann_core::format::block;
use stratann_core::place::SERVERS_MAX;
use stratann_core::plan::IndexView;
use stratann_core::query::{Budget, Loss, Outcome, QueryState, Step, Tag, Want};

use self::buffers::BufferPool;
pub use self::options::{Admission, DriverOptions, Times, Width};
use self::slot::{Arrivals, ReadResult, Slot};
use crate::cache::BlockCache;
use crate::kinds::snapshot::Snapshot;
use crate::tier::{Completion, Tier};

/// The queries given to a thread, and where they go from there.
pub trait Queries {
    /// Returns the next query's number, or `None` when there is none now. Numbers of queries in flight differ.
    fn next(&mut self) -> Option<usize>;
    /// Returns how many more [`Queries::next`] may give, as far as is known.
    fn remaining(&self) -> usize;
    /// Puts a query's state in the place of `state`, and returns its vector. `widths` (approaching, settled) are those that suit the load.
    fn begin(&mut self, number: usize, widths: (u32, u32), state: &mut QueryState) -> &[u8];
    /// Takes the state of a query that can go no further here: it has ended, or goes on at another server.
    fn ended(&mut self, number: usize, step: Step, state: &QueryState, times: Times);
    /// The snapshot of the index that the query sees from its first step to its last; `None` where the index never changes.
    fn snapshot(&mut self, _number: usize) -> Option<Snapshot> {
        None
    }
    /// Whether a query's answer is still wanted. Asked before each of its turns: a query past its deadline is dropped.
    fn is_wanted(&mut self, _number: usize) -> bool {
        true
    }
    /// Takes the state of a query that was dropped because its answer is no longer wanted.
    fn dropped(&mut self, _number: usize, _state: &QueryState) {}
    /// Notes that a read of this block failed; its query learns of it as well.
    fn lost(&mut self, _block: u32, _loss: Loss) {}
    /// In a cluster: a bit for every server that answers, and the load of each.
    fn others(&self) -> (u64, [u8; SERVERS_MAX]) {
        (u64::MAX, [0; SERVERS_MAX])
    }
    /// Whether the thread may wait. Asked before it does; `has_free_slot` tells whether it could admit a query meanwhile.
    /// Implementations that return false, or that may get queries later, must hold the tier's waker.
    fn may_wait(&mut self, _has_free_slot: bool) -> bool {
        true
    }
    /// Whether [`Queries::next`] may give more later although nothing is in flight: then the thread waits to be woken.
    fn stays(&self) -> bool {
        false
    }
}

/// Most queries in flight on one thread: slots are numbered by 16 bits.
const IN_FLIGHT_MAX: usize = 1 << 16;

/// Default budget of a query. `flat` may read every block; a graph search ends long before the default.
pub fn allowance(view: &IndexView<'_>) -> Budget {
    let usual = Budget::default();
    match (view.graph, view.clusters) {
        (Some(_), _) | (_, Some(_)) => usual,
        (None, None) => {
            Budget { hops: usual.hops.max(view.blocks), reads: usual.reads.max(view.blocks), ..usual }
        }
    }
}

/// Most steps in one turn of a query: a long query whose reads are all cached does not hold up the others.
pub const STEPS_PER_TURN: usize = 128;
/// Queued reads are started, before further steps, once there are so many …
pub const START_READS: usize = 8;
/// … or once other queries have computed for so long, in nanoseconds.
const START_AFTER_NS: u64 = 50_000;

/// Returns what the tier carries along with a read: slot, generation, tag.
fn key(slot: usize, generation: u16, tag: Tag) -> u64 {
    (slot as u64) << 48 | u64::from(generation) << 32 | u64::from(tag.0)
}

/// One thread's loop over one index.
pub struct Driver<'a> {
    view: IndexView<'a>,
    cache: Option<&'a BlockCache>,
    options: DriverOptions,
    tier: Box<dyn Tier + 'a>,
    slots: Vec<Slot<'a>>,
    idle: Vec<usize>,
    // Slots whose queries are ready for a turn, the longest ready first.
    ready: VecDeque<usize>,
    // Queries that may still be admitted to the present batch.
    batch_left: usize,
    buffers: BufferPool,
    // Reads that found the tier full: slot and want.
    postponed: VecDeque<(usize, Want)>,
    // Reads that the tier was given since it last started any, and the time that steps took meanwhile.
    unstarted: usize,
    unstarted_ns: u64,
    completions: Vec<Completion>,
    arrivals: Arrivals,
}

impl<'a> Driver<'a> {
    /// A driver that reads blocks from `tier`.
    pub fn new(
        view: IndexView<'a>,
        cache: Option<&'a BlockCache>,
        mut tier: Box<dyn Tier + 'a>,
        options: DriverOptions,
    ) -> Driver<'a> {
        let in_flight =
            if options.admission == Admission::One { 1 } else { options.in_flight.clamp(1, IN_FLIGHT_MAX) };
        let buffers = BufferPool::new(tier.buffers(), view.block.block_bytes);
        Driver {
            view,
            cache,
            options: DriverOptions { in_flight, ..options },
            tier,
            slots: (0..in_flight).map(|_| Slot::new()).collect(),
            idle: (0..in_flight).rev().collect(),
            ready: VecDeque::with_capacity(in_flight),
            batch_left: 0,
            buffers,
            postponed: VecDeque::new(),
            unstarted: 0,
            unstarted_ns: 0,
            completions: Vec::new(),
            arrivals: Arrivals::new(),
        }
    }

    /// Runs until `queries` has no more, does not stay, and all have ended.
    ///
    /// # Errors
    /// When the tier as a whole is broken; a read that fails ends its own query alone.
    pub fn run(&mut self, queries: &mut dyn Queries) -> io::Result<()> {
        loop {
            if let Some(here) = &mut self.view.here {
                (here.live, here.loads) = queries.others();
            }
            let turns = self.ready.len();
            let has_admitted = self.admit(queries)?;
            for _ in 0..self.ready.len() {
                let Some(at) = self.ready.pop_front() else { break };
                self.slots[at].is_queued = false;
                self.take_turn(at, queries)?;
            }
            let is_busy = has_admitted || turns > 0;
            if !is_busy && self.idle.len() == self.slots.len() && !queries.stays() {
                return Ok(());
            }
            let wait = !is_busy && queries.may_wait(!self.idle.is_empty());
            self.collect(wait, queries)?;
        }
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
        let Some(number) = queries.next() else { return Ok(false) };
        let Some(at) = self.idle.pop() else { return Ok(false) };
        self.batch_left = self.batch_left.saturating_sub(1);
        let active = self.slots.len() - self.idle.len();
        let load = (active + queries.remaining()).min(self.slots.len());
        let slot = &mut self.slots[at];
        slot.begin(number);
        slot.snapshot = queries.snapshot(number);
        let vector = queries.begin(number, self.options.width.at_load(load), &mut slot.state);
        slot.cache_hits = slot.state.stats().cache_hits;
        slot.scratch.prepare(&self.view, vector);
        self.take_turn(at, queries)?;
        Ok(true)
    }

    /// Steps a query until it waits, has ended, or has used up its turn.
    fn take_turn(&mut self, at: usize, queries: &mut dyn Queries) -> io::Result<()> {
        if !queries.is_wanted(self.slots[at].number) {
            queries.dropped(self.slots[at].number, &self.slots[at].state);
            self.free(at);
            return Ok(());
        }
        for _ in 0..STEPS_PER_TURN {
            self.start_reads()?;
            let (step, spent_ns) = self.slots[at].step(&self.view, &mut self.arrivals, &mut self.buffers);
            self.unstarted_ns += spent_ns;
            if step != Step::Wait {
                self.finish(at, step, queries);
                return Ok(());
            }
            for i in 0..self.slots[at].state.wants().len() {
                let want = self.slots[at].state.wants()[i];
                self.fetch(at, want);
            }
            if !self.slots[at].is_ready() {
                return Ok(());
            }
        }
        self.enqueue(at);
        Ok(())
    }

    /// Gives a query a turn in the next round.
    fn enqueue(&mut self, at: usize) {
        if !self.slots[at].is_queued {
            self.slots[at].is_queued = true;
            self.ready.push_back(at);
        }
    }

    /// Starts queued reads when they are many, or have been queued for long.
    fn start_reads(&mut self) -> io::Result<()> {
        if self.unstarted == 0 {
            self.unstarted_ns = 0;
        } else if self.unstarted >= START_READS || self.unstarted_ns >= START_AFTER_NS {
            self.unstarted = 0;
            self.unstarted_ns = 0;
            self.tier.start()?;
        }
        Ok(())
    }

    fn fetch(&mut self, at: usize, want: Want) {
        let Want::Fetch { tag, block, count } = want;
        if count == 1
            && let Some(bytes) = self.cache.and_then(|cache| cache.get(block))
        {
            let slot = &mut self.slots[at];
            slot.cache_hits += 1;
            slot.results.push((tag, ReadResult::Cached(bytes)));
        } else if self.postponed.is_empty() && self.tier.room() > 0 {
            self.submit(at, want);
        } else {
            self.postponed.push_back((at, want));
        }
    }

    fn submit(&mut self, at: usize, Want::Fetch { tag, block, count }: Want) {
        let buffer = self.buffers.take(count as usize);
        let key = key(at, self.slots[at].generation, tag);
        self.tier.submit(key, u64::from(block) * self.view.block.block_bytes as u64, buffer);
        self.unstarted += 1;
    }

    fn submit_postponed(&mut self) {
        while self.tier.room() > 0 {
            let Some((at, want)) = self.postponed.pop_front() else { return };
            self.submit(at, want);
        }
    }

    /// Takes in completed reads; with `wait`, waits for one.
    fn collect(&mut self, wait: bool, queries: &mut dyn Queries) -> io::Result<()> {
        let mut completions = std::mem::take(&mut self.completions);
        if wait {
            // Waiting starts all reads.
            self.unstarted = 0;
        }
        let polled = self.tier.poll(wait, &mut completions);
        for completion in completions.drain(..) {
            self.complete(completion, queries);
        }
        self.completions = completions;
        self.submit_postponed();
        polled
    }

    fn complete(&mut self, completion: Completion, queries: &mut dyn Queries) {
        let (at, generation, tag) =
            (completion.tag >> 48, (completion.tag >> 32) as u16, Tag(completion.tag as u32));
        let at = at as usize;
        let slot = &mut self.slots[at];
        let expected = slot.is_active && slot.generation == generation;
        let Some(number) = slot.state.block_of(tag).filter(|_| expected) else {
            // The query has ended without waiting for this read.
            self.buffers.recycle(completion.buffer);
            return;
        };
        let lost = match completion.result {
            Err(_) => Some(Loss::Failed),
            Ok(n) if n < completion.buffer.len() => Some(Loss::Short),
            // Of lists only the query knows which part of the pages it asked for: it verifies that part.
            Ok(_) if self.view.clusters.is_some() => None,
            Ok(_) => block::verify(&self.view.block, number, completion.buffer.bytes())
                .err()
                .map(|_| Loss::Damaged),
        };
        let result = match lost {
            Some(loss) => {
                queries.lost(number, loss);
                self.buffers.recycle(completion.buffer);
                ReadResult::Lost(loss)
            }
            None => {
                if let Some(cache) = self.cache.filter(|_| self.view.clusters.is_none()) {
                    cache.put(number, completion.buffer.bytes());
                }
                ReadResult::Buffer(completion.buffer)
            }
        };
        slot.results.push((tag, result));
        if slot.is_ready() {
            self.enqueue(at);
        }
    }

    fn finish(&mut self, at: usize, step: Step, queries: &mut dyn Queries) {
        let slot = &mut self.slots[at];
        slot.state.set_cache_hits(slot.cache_hits);
        slot.times.latency = slot.started.elapsed().as_nanos() as u64;
        queries.ended(slot.number, step, &slot.state, slot.times);
        self.free(at);
    }

    /// Makes room for the next query.
    fn free(&mut self, at: usize) {
        self.postponed.retain(|p| p.0 != at);
        let slot = &mut self.slots[at];
        slot.release(&mut self.buffers);
        slot.is_active = false;
        slot.snapshot = None;
        self.idle.push(at);
    }
}

/// Why a query gave no results, in words.
pub fn failure(outcome: Outcome, file: &std::path::Path, block_bytes: usize) -> Option<String> {
    let Outcome::Lost { block, loss } = outcome else { return None };
    let place =
        format!("block {block} (offset {}) of {}", u64::from(block) * block_bytes as u64, file.display());
    Some(match loss {
        Loss::Failed => format!("reading {place} failed; check the disk"),
        Loss::Short => format!("{place} is cut short; restore the file or build the index again"),
        Loss::Damaged => format!(
            "{place} is damaged; run `stratann verify`, then restore the file or build the index again"
        ),
        Loss::Expired => format!("waiting for {place} took too long"),
    })
}
