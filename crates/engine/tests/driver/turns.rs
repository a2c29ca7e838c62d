//! Turns: completed reads are taken between admissions, and no query holds up the others.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use stratann_core::query::{Budget, Mode, Outcome, Params, QueryState, QueryStats, Scratch, Step};
use stratann_engine::build::IndexKind;
use stratann_engine::exec::{Alone, Driver, DriverOptions, Queries, START_READS, STEPS_PER_TURN, Times};
use stratann_engine::{DType, Metric};
use stratann_storage::tier::{Buffer, Completion, FileId, MemoryTier, Tier};

use super::common::{Built, Set, clustered, quick};
use super::{ASKED, blocks_of, filled, memory, nearly_full, options, params, place};

/// A tier whose reads are all complete at the next poll. It records the longest queue of reads that were not started.
struct Prompt {
    inner: MemoryTier,
    depth: usize,
    queued: usize,
    longest_queue: Arc<AtomicUsize>,
}

impl Prompt {
    fn new(depth: usize, longest_queue: &Arc<AtomicUsize>) -> Box<Prompt> {
        let inner = MemoryTier::new(place().blocks.clone(), depth, 1);
        Box::new(Prompt { inner, depth, queued: 0, longest_queue: longest_queue.clone() })
    }
}

impl Tier for Prompt {
    fn room(&self) -> usize {
        self.inner.room()
    }

    fn file_bytes(&self, file: FileId) -> Option<u64> {
        self.inner.file_bytes(file)
    }

    fn submit(&mut self, tag: u64, file: FileId, offset: u64, buffer: Buffer) {
        self.queued += 1;
        self.longest_queue.fetch_max(self.queued, Ordering::Relaxed);
        self.inner.submit(tag, file, offset, buffer);
    }

    fn start(&mut self) -> io::Result<()> {
        self.queued = 0;
        Ok(())
    }

    fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> io::Result<()> {
        if wait {
            self.queued = 0;
        }
        while self.inner.room() < self.depth {
            self.inner.poll(true, done)?;
        }
        Ok(())
    }

    fn name(&self) -> &'static str {
        "prompt"
    }
}

/// Queries that record the order of turns and admissions. Nothing is kept that would need memory while they run.
struct Recorded {
    params: Params,
    budget: Budget,
    asked: &'static Set,
    count: usize,
    next: usize,
    /// The query of each turn, while `turns` has room.
    turns: Vec<usize>,
    /// Admissions since a query's own when it ended, and the reads that it waited for.
    waited: Vec<(usize, u64)>,
    dropped: Vec<usize>,
    is_wanted: fn(usize) -> bool,
    background: fn(usize) -> bool,
    /// Queries in flight that are not in the background.
    usual: Arc<AtomicUsize>,
}

impl Recorded {
    fn new(params: Params, count: usize) -> Recorded {
        Recorded {
            params,
            budget: place().built.index.view().budget(),
            asked: &place().asked,
            count,
            next: 0,
            turns: Vec::with_capacity(1 << 16),
            waited: Vec::with_capacity(count),
            dropped: Vec::with_capacity(count),
            is_wanted: |_| true,
            background: |_| false,
            usual: Arc::default(),
        }
    }
}

impl Queries for Recorded {
    fn next(&mut self) -> Option<usize> {
        self.next = (self.next + 1).min(self.count + 1);
        (self.next <= self.count).then(|| self.next - 1)
    }

    fn remaining(&self) -> usize {
        self.count.saturating_sub(self.next)
    }

    fn begin(&mut self, number: usize, (approach_width, width): (u32, u32), state: &mut QueryState) -> &[u8] {
        self.usual.fetch_add(usize::from(!(self.background)(number)), Ordering::Relaxed);
        state.restart(Params { approach_width, width, ..self.params }, self.budget);
        self.asked.row(number % ASKED)
    }

    fn ended(&mut self, number: usize, _: Step, state: &QueryState, _: Times) {
        assert_eq!(state.outcome(), Outcome::Complete);
        self.usual.fetch_sub(usize::from(!(self.background)(number)), Ordering::Relaxed);
        self.waited.push((self.next.min(self.count) - 1 - number, state.stats().reads));
    }

    fn is_wanted(&mut self, number: usize) -> bool {
        if self.turns.len() < self.turns.capacity() {
            self.turns.push(number);
        }
        (self.is_wanted)(number)
    }

    fn dropped(&mut self, number: usize, _: &QueryState) {
        self.dropped.push(number);
    }

    fn is_background(&mut self, number: usize, _: &QueryStats) -> bool {
        (self.background)(number)
    }
}

/// A query that waits for reads is not held up by queries that find theirs in the cache: for each of its reads at
/// most one query is admitted.
#[test]
fn completed_reads_are_taken_between_admissions() {
    for in_flight in [1, 2, 16, 64] {
        let longest_queue = Arc::default();
        let cache = nearly_full(50);
        let mut asked = Recorded::new(params(Mode::Barrier), 600);
        Driver::new(
            Alone::new(place().built.index.view(), Some(&cache)),
            Prompt::new(64, &longest_queue),
            options(in_flight, 1),
        )
        .run(&mut asked)
        .unwrap();
        assert_eq!(asked.waited.len(), 600);
        assert!(asked.waited.iter().any(|&(_, reads)| reads > 0));
        for (admitted, reads) in asked.waited {
            assert!(admitted as u64 <= reads, "{admitted} admissions while a query waited for {reads} reads");
        }
    }
}

/// Scans of an index that is cached as a whole: none runs to its end while others are ready.
#[test]
fn long_queries_take_turns() {
    const DIM: usize = 1024;
    static ROWS: OnceLock<Set> = OnceLock::new();
    let rows = ROWS.get_or_init(|| Set::new(DType::F32, DIM, &clustered(6000, DIM, 12, 1)));
    let built = Built::new(rows.clone(), &quick(IndexKind::Flat, Metric::L2));
    let (view, blocks) = (built.index.view(), built.blocks());
    assert!(blocks_of(&view).0 as usize > 3 * STEPS_PER_TURN);
    let cache = filled(&view, &blocks, 0);
    let tier = Box::new(MemoryTier::new(blocks.clone(), 8, 1));
    let mut asked = Recorded { budget: view.budget(), asked: rows, ..Recorded::new(Params::flat(10), 6) };
    Driver::new(Alone::new(view, Some(&cache)), tier, options(3, 1)).run(&mut asked).unwrap();
    assert_eq!(asked.waited.len(), 6);
    let turns = &asked.turns;
    for (i, number) in turns.iter().enumerate() {
        let until = turns[i + 1..].iter().position(|n| n == number);
        // Until its next turn each other query in flight has one turn.
        assert!(until.is_none_or(|others| others <= 2), "{turns:?}");
    }
    let first_turn = |number| turns.iter().position(|&n| n == number).expect("each query has a turn");
    let last_turn = |number| turns.iter().rposition(|&n| n == number).expect("each query has a turn");
    assert!(first_turn(1) < last_turn(0) && first_turn(2) < last_turn(0), "{turns:?}");
}

/// While others are ready, a query in the background has a turn once the background is behind its share.
#[test]
fn a_query_in_the_background_has_turns_and_does_not_hold_up_others() {
    const DIM: usize = 1024;
    static ROWS: OnceLock<Set> = OnceLock::new();
    let rows = ROWS.get_or_init(|| Set::new(DType::F32, DIM, &clustered(6000, DIM, 12, 1)));
    let built = Built::new(rows.clone(), &quick(IndexKind::Flat, Metric::L2));
    let (view, blocks) = (built.index.view(), built.blocks());
    let cache = filled(&view, &blocks, 0);
    let tier = Box::new(MemoryTier::new(blocks.clone(), 8, 1));
    let mut asked = Recorded { budget: view.budget(), asked: rows, ..Recorded::new(Params::flat(10), 6) };
    asked.background = |number| number < 2;
    // After each turn of another query the background is behind its share.
    let options = DriverOptions { turn_ns: 1, ..options(3, 1) };
    Driver::new(Alone::new(view, Some(&cache)), tier, options).run(&mut asked).unwrap();
    let turns = &asked.turns;
    let last_turn = |number| turns.iter().rposition(|&n| n == number).expect("each query has a turn");
    // The first of the others begins beside both; from then on each round has turns of others.
    let others = &turns[turns.iter().position(|&n| n == 2).unwrap()..=last_turn(5)];
    assert!(others.iter().any(|&n| n < 2), "{turns:?}");
    assert!(others.windows(2).all(|pair| pair[0] >= 2 || pair[1] >= 2), "{turns:?}");
}

/// A tier whose reads complete at the next poll after they were started.
struct Started {
    inner: MemoryTier,
    depth: usize,
    queued: Vec<(u64, FileId, u64, Buffer)>,
}

impl Tier for Started {
    fn room(&self) -> usize {
        self.inner.room() - self.queued.len()
    }

    fn file_bytes(&self, file: FileId) -> Option<u64> {
        self.inner.file_bytes(file)
    }

    fn submit(&mut self, tag: u64, file: FileId, offset: u64, buffer: Buffer) {
        self.queued.push((tag, file, offset, buffer));
    }

    fn start(&mut self) -> io::Result<()> {
        self.queued.drain(..).for_each(|(tag, file, at, buffer)| self.inner.submit(tag, file, at, buffer));
        Ok(())
    }

    fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> io::Result<()> {
        if wait {
            self.start()?;
        }
        while self.inner.room() < self.depth {
            self.inner.poll(true, done)?;
        }
        Ok(())
    }

    fn name(&self) -> &'static str {
        "started"
    }
}

/// Eight queries in the background compute all the time. Four others, one after the other, wait for each read.
#[test]
fn between_two_turns_of_a_query_the_background_has_two_steps_at_most() {
    const BACKGROUND: usize = 8;
    // A cache of all blocks but some: the background always finds something to compute.
    for cache in [None, Some(nearly_full(50))] {
        let inner = MemoryTier::new(place().blocks.clone(), 256, 1);
        let tier = Box::new(Started { inner, depth: 256, queued: Vec::new() });
        let mut asked = Recorded::new(params(Mode::Barrier), BACKGROUND + 4);
        asked.background = |number| number < BACKGROUND;
        let options = DriverOptions { turn_ns: 1, ..options(BACKGROUND + 1, 1) };
        Driver::new(Alone::new(place().built.index.view(), cache.as_ref()), tier, options)
            .run(&mut asked)
            .unwrap();
        assert_eq!(asked.waited.len(), BACKGROUND + 4);
        let turns = &asked.turns;
        let is_other = |&n: &usize| n >= BACKGROUND;
        let (first, last) = (turns.iter().position(is_other), turns.iter().rposition(is_other));
        let others = &turns[first.unwrap()..=last.unwrap()];
        let longest = others.split(is_other).map(<[usize]>::len).max();
        assert!(longest.is_some_and(|steps| (1..=2).contains(&steps)), "{longest:?} steps: {turns:?}");
    }
}

/// A tier that completes one read at each poll, the oldest. It records the most reads under way while usual queries are
/// in flight.
struct Slow {
    inner: MemoryTier,
    under_way: VecDeque<(u64, FileId, u64, Buffer)>,
    usual: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Tier for Slow {
    fn room(&self) -> usize {
        512 - self.under_way.len()
    }

    fn file_bytes(&self, file: FileId) -> Option<u64> {
        self.inner.file_bytes(file)
    }

    fn submit(&mut self, tag: u64, file: FileId, offset: u64, buffer: Buffer) {
        self.under_way.push_back((tag, file, offset, buffer));
        if self.usual.load(Ordering::Relaxed) > 0 {
            self.most.fetch_max(self.under_way.len(), Ordering::Relaxed);
        }
    }

    fn poll(&mut self, _: bool, done: &mut Vec<Completion>) -> io::Result<()> {
        let Some((tag, file, offset, buffer)) = self.under_way.pop_front() else { return Ok(()) };
        self.inner.submit(tag, file, offset, buffer);
        self.inner.poll(true, done)
    }

    fn name(&self) -> &'static str {
        "slow"
    }
}

#[test]
fn while_usual_queries_are_in_flight_the_background_has_few_reads_under_way() {
    const USUAL: usize = 4;
    const WIDTH: usize = 8;
    let (usual, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let inner = MemoryTier::new(place().blocks.clone(), 1, 1);
    let tier = Box::new(Slow { inner, under_way: VecDeque::new(), usual: usual.clone(), most: most.clone() });
    let mut asked = Recorded::new(params(Mode::Barrier), USUAL + 16);
    (asked.background, asked.usual) = (|number| number >= USUAL, usual);
    Driver::new(Alone::new(place().built.index.view(), None), tier, options(USUAL + 16, WIDTH as u32))
        .run(&mut asked)
        .unwrap();
    assert_eq!(asked.waited.len(), USUAL + 16);
    let most = most.load(Ordering::Relaxed);
    assert!((WIDTH..=(USUAL + 1) * WIDTH).contains(&most), "{most} reads under way");
}

#[test]
fn queued_reads_are_started_before_many_other_steps() {
    let longest_queue = Arc::default();
    for width in [1, 4] {
        let mut asked = Recorded::new(params(Mode::Barrier), 200);
        let tier = Prompt::new(512, &longest_queue);
        Driver::new(Alone::new(place().built.index.view(), None), tier, options(100, width))
            .run(&mut asked)
            .unwrap();
        let longest = longest_queue.load(Ordering::Relaxed);
        assert!(longest < START_READS + width as usize, "{longest} reads queued at width {width}");
    }
}

#[test]
fn a_query_that_nobody_wants_is_dropped() {
    for missing in [0, 3] {
        let cache = nearly_full(missing);
        let mut asked = Recorded::new(params(Mode::Barrier), 100);
        asked.is_wanted = |number| number % 10 != 3;
        Driver::new(Alone::new(place().built.index.view(), Some(&cache)), memory(32, 1), options(4, 2))
            .run(&mut asked)
            .unwrap();
        assert_eq!(asked.waited.len(), 90);
        asked.dropped.sort_unstable();
        assert_eq!(asked.dropped, (0..100).filter(|n| n % 10 == 3).collect::<Vec<_>>());
    }
}

/// A tier that completes no read while it is held.
struct Held {
    inner: MemoryTier,
    is_held: Arc<AtomicBool>,
    polls: usize,
}

impl Tier for Held {
    fn room(&self) -> usize {
        self.inner.room()
    }

    fn file_bytes(&self, file: FileId) -> Option<u64> {
        self.inner.file_bytes(file)
    }

    fn submit(&mut self, tag: u64, file: FileId, offset: u64, buffer: Buffer) {
        self.inner.submit(tag, file, offset, buffer);
    }

    fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> io::Result<()> {
        if self.is_held.load(Ordering::Relaxed) {
            self.polls += 1;
            assert!(self.polls < 1000, "the slot is not freed while reads are outstanding");
            return Ok(());
        }
        self.inner.poll(wait, done)
    }

    fn name(&self) -> &'static str {
        "held"
    }
}

/// One query whose reads do not complete and which expires, and one after it.
struct Expiring {
    next: usize,
    is_first_turn: bool,
    is_held: Arc<AtomicBool>,
    ended: Vec<usize>,
    dropped: Vec<usize>,
    freed: Vec<usize>,
}

impl Queries for Expiring {
    fn next(&mut self) -> Option<usize> {
        self.next += 1;
        (self.next <= 2).then(|| self.next - 1)
    }

    fn remaining(&self) -> usize {
        0
    }

    fn begin(&mut self, number: usize, _: (u32, u32), state: &mut QueryState) -> &[u8] {
        state.restart(params(Mode::Barrier), Budget::default());
        // The second query begins: the disk works again.
        self.is_held.store(number == 0, Ordering::Relaxed);
        place().asked.row(number)
    }

    fn ended(&mut self, number: usize, _: Step, state: &QueryState, _: Times) {
        assert_eq!(state.outcome(), Outcome::Complete);
        self.ended.push(number);
    }

    fn has_unwanted(&mut self) -> bool {
        self.next == 1
    }

    fn is_wanted(&mut self, number: usize) -> bool {
        number != 0 || std::mem::take(&mut self.is_first_turn)
    }

    fn extra_bytes(&mut self, number: usize) -> Option<usize> {
        (number == 0).then_some(0)
    }

    fn freed(&mut self, number: usize) {
        assert_eq!(self.dropped, [number]);
        self.freed.push(number);
    }

    fn dropped(&mut self, number: usize, state: &QueryState) {
        assert!(state.pending() > 0, "its reads are outstanding");
        self.dropped.push(number);
    }
}

#[test]
fn an_expired_query_frees_its_slot_while_its_reads_are_outstanding() {
    let is_held = Arc::new(AtomicBool::new(true));
    let inner = MemoryTier::new(place().blocks.clone(), 32, 1);
    let tier = Box::new(Held { inner, is_held: is_held.clone(), polls: 0 });
    let mut asked =
        Expiring { next: 0, is_first_turn: true, is_held, ended: vec![], dropped: vec![], freed: vec![] };
    Driver::new(Alone::new(place().built.index.view(), None), tier, options(1, 2)).run(&mut asked).unwrap();
    assert_eq!((asked.dropped, asked.ended, asked.freed), (vec![0], vec![1], vec![0]));
}

#[test]
fn steps_allocate_nothing_once_the_driver_is_warm() {
    for mode in [Mode::Barrier, Mode::Eager] {
        for cache in [Some(nearly_full(0)), None] {
            let mut driver = Driver::new(
                Alone::new(place().built.index.view(), cache.as_ref()),
                memory(32, 1),
                options(16, 4),
            );
            for _ in 0..3 {
                driver.run(&mut Recorded::new(params(mode), 300)).unwrap();
            }
            // Preparing a query makes its tables of distances in memory that lives no longer than that.
            let mut scratch = Scratch::default();
            let prepare =
                |scratch: &mut Scratch| scratch.prepare(&place().built.index.view(), place().asked.row(0));
            prepare(&mut scratch);
            let preparing = allocation_counter::measure(|| prepare(&mut scratch));
            let mut asked = Recorded::new(params(mode), 300);
            let used = allocation_counter::measure(|| driver.run(&mut asked).unwrap());
            assert_eq!(asked.waited.len(), 300);
            let steps = used.count_total - 300 * preparing.count_total;
            assert_eq!(steps, 0, "{mode:?}, cached: {}", cache.is_some());
        }
    }
}
