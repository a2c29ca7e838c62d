//! The loop of one worker thread: admit → poll → step → submit.
//!
//! A thread holds many queries. Each is a state that waits for its reads while others compute; when one ends the next is admitted
//! at once, so that the number in flight never drops (BatANN §5).

use std::io;
use std::sync::Arc;
use std::time::Instant;

use stratann_core::format::block;
use stratann_core::place::SERVERS_MAX;
use stratann_core::plan::IndexView;
use stratann_core::query::{Arrival, Arrived, Budget, Loss, Outcome, QueryState, Scratch, Step, Tag, Want};

use crate::cache::{BlockCache, Cached};
use crate::learning::Version;
use crate::tier::{Buffer, Completion, Tier};

/// When the next query is admitted (BatANN figure 7 compares them).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// One query at a time, as DiskANN does.
    One,
    /// A batch at a time: the next one starts when all of it has ended, as PipeANN's coroutines do.
    Batch,
    /// A fixed number in flight: a query that ends is replaced at once.
    #[default]
    Fixed,
}

/// How wide a round is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Width {
    /// By load: wide with few queries in flight, narrow with many.
    #[default]
    Auto,
    /// Always the same.
    Fixed(u32),
}

impl Width {
    /// The widths (approaching, settled) of a query that starts with `load` queries in flight on its thread.
    ///
    /// Eight reads under way keep a thread of this engine busy; more queries than that need no width of their own.
    pub fn at_load(self, load: usize) -> (u32, u32) {
        const READS_WANTED: usize = 8;
        match self {
            Width::Fixed(width) => (width, width),
            Width::Auto => {
                let settled = (READS_WANTED / load.max(1)).clamp(1, READS_WANTED) as u32;
                (settled.div_ceil(2), settled)
            }
        }
    }
}

/// How a thread runs its queries.
#[derive(Clone, Copy, Debug)]
pub struct DriverOptions {
    /// Queries in flight.
    pub in_flight: usize,
    /// When the next is admitted.
    pub admission: Admission,
    /// How wide a round is.
    pub width: Width,
}

/// Where a query's time went, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// From admission to answer.
    pub latency: u64,
    /// Of it, preparing the query and walking the head graph: all before the first read.
    pub route: u64,
    /// Of it, scoring what arrived and choosing what to read next. The rest is access: waiting for reads, and for the thread.
    pub verify: u64,
}

impl Times {
    /// Adds the times of another query.
    pub fn add(&mut self, other: &Times) {
        self.latency += other.latency;
        self.route += other.route;
        self.verify += other.verify;
    }

    /// What is neither route nor verify.
    pub fn access(&self) -> u64 {
        self.latency.saturating_sub(self.route + self.verify)
    }
}

/// The queries given to a thread, and where they go from there.
pub trait Queries {
    /// The next query's number, or `None` when there is none now. Numbers of queries in flight differ.
    fn next(&mut self) -> Option<usize>;
    /// How many more [`Queries::next`] may give, as far as is known.
    fn remaining(&self) -> usize;
    /// Puts a query's state in the place of `state`, and gives its vector. `widths` (approaching, settled) are those that suit the load.
    fn begin(&mut self, number: usize, widths: (u32, u32), state: &mut QueryState) -> &[u8];
    /// A query can go no further here: it has ended, or goes on at another server.
    fn ended(&mut self, number: usize, step: Step, state: &QueryState, times: Times);
    /// What the query goes by that was learnt from others before it; `None` for what the index was built with.
    fn version(&mut self, _number: usize) -> Option<Arc<Version>> {
        None
    }
    /// Whether a query's answer is still wanted. Asked before each of its turns: a query past its deadline is dropped.
    fn is_wanted(&mut self, _number: usize) -> bool {
        true
    }
    /// Takes the state of a query that was dropped because its answer is no longer wanted.
    fn dropped(&mut self, _number: usize, _state: &QueryState) {}
    /// A read of this block brought nothing; its query is told as well.
    fn lost(&mut self, _block: u32, _loss: Loss) {}
    /// In a cluster: a bit for every server that answers, and how much waits on each.
    fn others(&self) -> (u64, [u8; SERVERS_MAX]) {
        (u64::MAX, [0; SERVERS_MAX])
    }
    /// Asked before the thread waits, with whether it could take another query meanwhile: whether it may. Who says no, or may have more queries
    /// later, has the tier's waker.
    fn may_wait(&mut self, _has_room: bool) -> bool {
        true
    }
    /// Whether [`Queries::next`] may give more later although nothing is in flight: then the thread waits to be woken.
    fn stays(&self) -> bool {
        false
    }
}

enum Held<'a> {
    Buffer(Buffer),
    Cached(Cached<'a>),
    Lost(Loss),
}

struct Slot<'a> {
    state: QueryState,
    version: Option<Arc<Version>>,
    scratch: Scratch,
    held: Vec<(Tag, Held<'a>)>,
    number: usize,
    // Counts the queries that the slot has held: an eager query may end with reads under way, and their bytes are not its successor's.
    generation: u16,
    started: Instant,
    times: Times,
    cache_hits: u64,
    active: bool,
}

/// Memory to read into, used again and again.
struct Buffers {
    blocks: Vec<Buffer>,
    // Of two blocks, four, eight, ….
    longer: Vec<Vec<Buffer>>,
    block_bytes: usize,
}

impl Buffers {
    /// Memory for `count` blocks.
    fn take(&mut self, count: usize) -> Buffer {
        let class = count.next_power_of_two().trailing_zeros() as usize;
        let free = match class.checked_sub(1) {
            None => Some(&mut self.blocks),
            Some(at) => self.longer.get_mut(at),
        };
        let mut buffer = free.and_then(Vec::pop).unwrap_or_else(|| Buffer::new(self.block_bytes << class));
        buffer.show(self.block_bytes * count);
        buffer
    }

    /// Takes it back.
    fn give(&mut self, mut buffer: Buffer) {
        buffer.show(usize::MAX);
        let class = (buffer.len() / self.block_bytes).trailing_zeros() as usize;
        match class.checked_sub(1) {
            None => self.blocks.push(buffer),
            Some(at) => {
                if self.longer.len() <= at {
                    self.longer.resize_with(at + 1, Vec::new);
                }
                self.longer[at].push(buffer);
            }
        }
    }
}

/// Most queries in flight on one thread: slots are numbered by 16 bits.
const IN_FLIGHT_MAX: usize = 1 << 16;

/// What a query may spend. A scan reads every block, a walk ends long before the default.
pub fn allowance(view: &IndexView<'_>) -> Budget {
    let usual = Budget::default();
    match (view.graph, view.clusters) {
        (Some(_), _) | (_, Some(_)) => usual,
        (None, None) => {
            Budget { hops: usual.hops.max(view.blocks), reads: usual.reads.max(view.blocks), ..usual }
        }
    }
}

/// What the tier carries along with a read: slot, generation, tag.
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
    buffers: Buffers,
    // Wants that found no room in the tier: slot and want.
    postponed: std::collections::VecDeque<(usize, Want)>,
    completions: Vec<Completion>,
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
        let slots: Vec<Slot<'a>> = (0..in_flight).map(|_| Slot::new()).collect();
        let buffers =
            Buffers { blocks: tier.buffers(), longer: Vec::new(), block_bytes: view.block.block_bytes };
        Driver {
            view,
            cache,
            options: DriverOptions { in_flight, ..options },
            tier,
            idle: (0..slots.len()).rev().collect(),
            slots,
            buffers,
            postponed: std::collections::VecDeque::new(),
            completions: Vec::new(),
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
            self.admit(queries);
            self.submit_postponed();
            if self.idle.len() == self.slots.len() && !queries.stays() {
                return Ok(());
            }
            let wait = queries.may_wait(!self.idle.is_empty());
            let mut completions = std::mem::take(&mut self.completions);
            self.tier.poll(wait, &mut completions)?;
            for completion in completions.drain(..) {
                self.complete(completion, queries);
            }
            self.completions = completions;
        }
    }

    fn admit(&mut self, queries: &mut dyn Queries) {
        if self.options.admission == Admission::Batch && self.idle.len() < self.slots.len() {
            return;
        }
        while !self.idle.is_empty() {
            let Some(number) = queries.next() else { return };
            let Some(at) = self.idle.pop() else { return };
            let active = self.slots.len() - self.idle.len();
            let load = (active + queries.remaining()).min(self.slots.len());
            let slot = &mut self.slots[at];
            slot.begin(number);
            slot.version = queries.version(number);
            let vector = queries.begin(number, self.options.width.at_load(load), &mut slot.state);
            slot.cache_hits = slot.state.stats().cache_hits;
            slot.scratch.prepare(&self.view, vector);
            self.advance(at, queries);
        }
    }

    /// Steps a query as far as it gets without waiting.
    fn advance(&mut self, at: usize, queries: &mut dyn Queries) {
        if !queries.is_wanted(self.slots[at].number) {
            queries.dropped(self.slots[at].number, &self.slots[at].state);
            return self.free(at);
        }
        loop {
            let step = self.slots[at].step(&self.view, &mut self.buffers);
            if step != Step::Wait {
                self.finish(at, step, queries);
                return;
            }
            for i in 0..self.slots[at].state.wants().len() {
                let want = self.slots[at].state.wants()[i];
                self.fetch(at, want);
            }
            let slot = &self.slots[at];
            if !slot.state.is_ready(slot.held.len()) {
                return;
            }
        }
    }

    fn fetch(&mut self, at: usize, want: Want) {
        let Want::Fetch { tag, block, count } = want;
        if count == 1
            && let Some(bytes) = self.cache.and_then(|cache| cache.get(block))
        {
            let slot = &mut self.slots[at];
            slot.cache_hits += 1;
            slot.held.push((tag, Held::Cached(bytes)));
        } else if self.tier.room() > 0 {
            self.submit(at, want);
        } else {
            self.postponed.push_back((at, want));
        }
    }

    fn submit(&mut self, at: usize, Want::Fetch { tag, block, count }: Want) {
        let buffer = self.buffers.take(count as usize);
        let key = key(at, self.slots[at].generation, tag);
        self.tier.submit(key, u64::from(block) * self.view.block.block_bytes as u64, buffer);
    }

    fn submit_postponed(&mut self) {
        while self.tier.room() > 0 {
            let Some((at, want)) = self.postponed.pop_front() else { return };
            self.submit(at, want);
        }
    }

    fn complete(&mut self, completion: Completion, queries: &mut dyn Queries) {
        let (at, generation, tag) =
            (completion.tag >> 48, (completion.tag >> 32) as u16, Tag(completion.tag as u32));
        let at = at as usize;
        let slot = &mut self.slots[at];
        let expected = slot.active && slot.generation == generation;
        let Some(number) = slot.state.block_of(tag).filter(|_| expected) else {
            // The query has ended without waiting for this read.
            self.buffers.give(completion.buffer);
            return;
        };
        let held = match completion.result {
            Err(_) => Held::Lost(Loss::Failed),
            Ok(n) if n < completion.buffer.len() => Held::Lost(Loss::Short),
            // Of lists only the query knows which part of the pages it asked for: it verifies that part.
            Ok(_) if self.view.clusters.is_some() => Held::Buffer(completion.buffer),
            Ok(_) => match block::verify(&self.view.block, number, completion.buffer.bytes()) {
                Ok(()) => {
                    if let Some(cache) = self.cache {
                        cache.put(number, completion.buffer.bytes());
                    }
                    Held::Buffer(completion.buffer)
                }
                Err(_) => Held::Lost(Loss::Damaged),
            },
        };
        if let Held::Lost(loss) = held {
            queries.lost(number, loss);
        }
        slot.held.push((tag, held));
        if slot.state.is_ready(slot.held.len()) {
            self.advance(at, queries);
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
        for (_, held) in slot.held.drain(..) {
            if let Held::Buffer(buffer) = held {
                self.buffers.give(buffer);
            }
        }
        slot.active = false;
        slot.version = None;
        self.idle.push(at);
    }
}

impl<'a> Slot<'a> {
    fn new() -> Slot<'a> {
        Slot {
            state: QueryState::default(),
            version: None,
            scratch: Scratch::default(),
            held: Vec::new(),
            number: 0,
            generation: 0,
            started: Instant::now(),
            times: Times::default(),
            cache_hits: 0,
            active: false,
        }
    }

    fn begin(&mut self, number: usize) {
        self.number = number;
        self.generation = self.generation.wrapping_add(1);
        self.started = Instant::now();
        self.times = Times::default();
        self.active = true;
    }

    fn step(&mut self, view: &IndexView<'_>, buffers: &mut Buffers) -> Step {
        let arrivals: Vec<Arrival<'_>> = self
            .held
            .iter()
            .map(|(tag, held)| Arrival {
                tag: *tag,
                what: match held {
                    Held::Buffer(buffer) => Arrived::Bytes(buffer.bytes()),
                    Held::Cached(bytes) => Arrived::Bytes(bytes),
                    Held::Lost(loss) => Arrived::Lost(*loss),
                },
            })
            .collect();
        let is_first = self.times.route == 0;
        // Routing began when the query was admitted, with its tables.
        let from = if is_first { self.started } else { Instant::now() };
        let mut view = *view;
        if let (Some(clusters), Some(version)) = (&mut view.clusters, &self.version) {
            version.show(clusters);
        }
        let step = self.state.step(&view, &mut self.scratch, &arrivals);
        let spent = from.elapsed().as_nanos() as u64;
        if is_first {
            self.times.route = spent.max(1);
        } else {
            self.times.verify += spent;
        }
        for (_, held) in self.held.drain(..) {
            if let Held::Buffer(buffer) = held {
                buffers.give(buffer);
            }
        }
        step
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
