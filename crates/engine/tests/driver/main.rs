//! The driver: any order, any depth, faults, caches, and both ways to read.

mod batch_loads;
mod cached;
#[path = "../common/mod.rs"]
mod common;
mod merged;
mod turns;

use std::io;
use std::sync::{Arc, OnceLock};

use common::{Built, Set, graph_set, hits, nearest, queries, quick};
use stratann_core::kinds::IndexView;
use stratann_core::query::{Extent, Loss, Mode, Outcome, Params, QueryState, QueryStats, Step, StoreId};
use stratann_engine::Metric;
use stratann_engine::build::IndexKind;
use stratann_engine::exec::{Admission, Alone, Driver, DriverOptions, Queries, Times, Width};
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::search::{Effort, SearchOptions};
use stratann_storage::Quiet;
use stratann_storage::cache::ExtentCache;
use stratann_storage::tier::{self, Buffer, Completion, Fault, FileId, IoChoice, MemoryTier, Tier, Waker};
use stratann_testing::{Need, leave_out};

const ASKED: usize = 60;

struct Place {
    built: Built,
    blocks: Arc<Vec<u8>>,
    asked: Set,
}

fn place() -> &'static Place {
    static PLACE: OnceLock<Place> = OnceLock::new();
    PLACE.get_or_init(|| {
        let built = Built::new(graph_set(), &quick(IndexKind::DiskGraph, Metric::L2));
        let blocks = built.blocks();
        Place { built, blocks, asked: queries(ASKED, 24) }
    })
}

#[derive(Clone, Debug, PartialEq)]
struct Ended {
    outcome: Outcome,
    results: Vec<(u32, u64)>,
    stats: QueryStats,
}

impl Ended {
    fn ids(&self) -> Vec<u64> {
        self.results.iter().map(|r| r.1).collect()
    }
}

/// The shared queries, each with the same parameters, and how they ended.
struct Asked {
    params: Params,
    count: usize,
    next: usize,
    ended: Vec<Option<Ended>>,
}

impl Asked {
    fn new(params: Params, count: usize) -> Asked {
        Asked { params, count, next: 0, ended: vec![None; count] }
    }

    fn all(self) -> Vec<Ended> {
        self.ended.into_iter().map(|e| e.expect("every query ends")).collect()
    }
}

impl Queries for Asked {
    fn next(&mut self) -> Option<usize> {
        self.next += 1;
        (self.next <= self.count).then(|| self.next - 1)
    }

    fn remaining(&self) -> usize {
        self.count.saturating_sub(self.next)
    }

    fn begin(&mut self, number: usize, (approach_width, width): (u32, u32), state: &mut QueryState) -> &[u8] {
        state.restart(Params { approach_width, width, ..self.params }, place().built.index.view().budget());
        place().asked.row(number % ASKED)
    }

    fn ended(&mut self, number: usize, step: Step, state: &QueryState, times: Times) {
        assert_eq!(step, Step::Done, "on one server nothing is handed over");
        assert!(times.route > 0 && times.route + times.verify <= times.latency, "{times:?}");
        let results = state.results().iter().map(|h| (h.distance.to_bits(), h.external_id)).collect();
        let before =
            self.ended[number].replace(Ended { outcome: state.outcome(), results, stats: *state.stats() });
        assert!(before.is_none(), "query {number} ended twice");
    }
}

fn options(in_flight: usize, width: u32) -> DriverOptions {
    DriverOptions { in_flight, width: Width::Fixed(width), ..DriverOptions::default() }
}

fn drive(
    tier: Box<dyn Tier>,
    cache: Option<&ExtentCache>,
    params: Params,
    count: usize,
    options: DriverOptions,
) -> io::Result<Vec<Ended>> {
    let mut asked = Asked::new(params, count);
    Driver::new(Alone::new(place().built.index.view(), cache), tier, options).run(&mut asked)?;
    Ok(asked.all())
}

fn memory(depth: usize, seed: u64) -> Box<MemoryTier> {
    Box::new(MemoryTier::new(place().blocks.clone(), depth, seed))
}

fn params(mode: Mode) -> Params {
    Params { mode, ..Params::disk_graph(10, 40) }
}

fn found_share(ended: &[Ended], params: &Params) -> f64 {
    let p = place();
    let found: usize = ended
        .iter()
        .enumerate()
        .map(|(q, e)| {
            let truth =
                nearest(&p.built.set, Metric::L2, p.asked.row(q % ASKED), params.k as usize, |_| false);
            hits(&e.ids(), &truth)
        })
        .sum();
    found as f64 / (ended.len() * params.k as usize) as f64
}

#[test]
fn in_barrier_mode_no_order_or_depth_changes_anything() {
    for width in [1, 4] {
        for stop in [(f32::INFINITY, 0), (0.5, 8)] {
            let params =
                common::with_graph(params(Mode::Barrier), |own| (own.stop_slack, own.patience) = stop);
            let first = drive(memory(64, 0), None, params, ASKED, options(1, width)).unwrap();
            assert!(first.iter().all(|e| e.outcome == Outcome::Complete && e.results.len() == 10));
            for seed in 1..12 {
                let depth = [1, 2, 3, 8, 32][seed as usize % 5];
                let in_flight = [1, 2, 7, 16, 64][(seed as usize / 2) % 5];
                let again =
                    drive(memory(depth, seed), None, params, ASKED, options(in_flight, width)).unwrap();
                assert_eq!(first, again, "seed {seed}, depth {depth}, {in_flight} in flight");
            }
        }
    }
}

#[test]
fn every_kind_of_admission_gives_the_same_answers() {
    let first = drive(memory(64, 0), None, params(Mode::Barrier), ASKED, options(16, 2)).unwrap();
    for admission in [Admission::One, Admission::Batch, Admission::Fixed] {
        let options = DriverOptions { admission, ..options(7, 2) };
        assert_eq!(first, drive(memory(5, 3), None, params(Mode::Barrier), ASKED, options).unwrap());
    }
}

#[test]
fn eager_mode_ends_within_bounds_and_finds_as_much() {
    let barrier = drive(memory(64, 0), None, params(Mode::Barrier), ASKED, options(8, 4)).unwrap();
    let floor = found_share(&barrier, &params(Mode::Barrier)) - 0.03;
    assert!(floor > 0.85, "{floor}");
    let blocks = u64::from(place().built.index.view().kind.disk_graph().unwrap().blocks);
    for seed in 0..8 {
        let eager =
            drive(memory(1 + seed as usize * 4, seed), None, params(Mode::Eager), ASKED, options(8, 4))
                .unwrap();
        assert!(eager.iter().all(|e| e.outcome == Outcome::Complete && e.stats.reads <= blocks));
        let share = found_share(&eager, &params(Mode::Eager));
        assert!(share >= floor, "seed {seed}: {share} under {floor}");
    }
}

#[test]
fn wants_that_find_no_room_wait_their_turn() {
    for mode in [Mode::Barrier, Mode::Eager] {
        let roomy = drive(memory(1024, 1), None, params(mode), ASKED, options(16, 8)).unwrap();
        let narrow = drive(memory(3, 1), None, params(mode), ASKED, options(16, 8)).unwrap();
        assert!(narrow.iter().all(|e| e.outcome == Outcome::Complete));
        if mode == Mode::Barrier {
            assert_eq!(roomy, narrow);
        }
    }
}

#[test]
fn a_fault_ends_its_own_query_and_no_other() {
    let sound = drive(memory(16, 5), None, params(Mode::Barrier), ASKED, options(8, 4)).unwrap();
    for (nth, fault, loss) in [
        (0, Fault::Error, Loss::Failed),
        (37, Fault::Error, Loss::Failed),
        (120, Fault::Short(4095), Loss::Short),
        (121, Fault::Short(0), Loss::Short),
        (200, Fault::FlippedBit(0), Loss::Damaged),
        (333, Fault::FlippedBit(2077), Loss::Damaged),
    ] {
        let tier = Box::new(MemoryTier::new(place().blocks.clone(), 16, 5).with_fault(nth, fault));
        let ended = drive(tier, None, params(Mode::Barrier), ASKED, options(8, 4)).unwrap();
        let lost: Vec<usize> = (0..ASKED).filter(|&q| ended[q].outcome != Outcome::Complete).collect();
        assert_eq!(lost.len(), 1, "{fault:?} at read {nth}");
        let Outcome::Lost { unit: block, loss: seen, .. } = ended[lost[0]].outcome else {
            panic!("{:?}", ended[lost[0]].outcome)
        };
        assert_eq!(seen, loss);
        assert!(block < place().built.index.view().kind.disk_graph().unwrap().blocks);
        assert!((0..ASKED).filter(|q| *q != lost[0]).all(|q| ended[q] == sound[q]));
    }
}

/// In eager mode a lost read ends its query while others of it are under way; they must not reach the next query of
/// the slot.
#[test]
fn reads_of_an_ended_query_never_reach_its_successor() {
    const COUNT: usize = 200;
    for seed in 0..20 {
        let tier = MemoryTier::new(place().blocks.clone(), 64, seed).with_fault(5 + seed * 3, Fault::Error);
        let ended = drive(Box::new(tier), None, params(Mode::Eager), COUNT, options(2, 16)).unwrap();
        let lost: Vec<&Ended> = ended.iter().filter(|e| e.outcome != Outcome::Complete).collect();
        assert_eq!(lost.len(), 1, "seed {seed}");
    }
}

/// A tier around another, whose polls are those of a function.
struct Polled<F> {
    inner: Box<dyn Tier>,
    poll: F,
}

impl<F: FnMut(&mut dyn Tier, bool, &mut Vec<Completion>) -> io::Result<()>> Tier for Polled<F> {
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
        (self.poll)(&mut *self.inner, wait, done)
    }

    fn waker(&mut self) -> io::Result<Waker> {
        self.inner.waker()
    }

    fn name(&self) -> &'static str {
        "polled"
    }
}

fn polled(
    inner: Box<dyn Tier>,
    poll: impl FnMut(&mut dyn Tier, bool, &mut Vec<Completion>) -> io::Result<()> + 'static,
) -> Box<dyn Tier> {
    Box::new(Polled { inner, poll })
}

/// A tier that stops working after some polls.
fn breaking(inner: Box<dyn Tier>, mut polls: usize) -> Box<dyn Tier> {
    polled(inner, move |tier, wait, done| {
        if polls == 0 {
            return Err(io::Error::other("the device is gone"));
        }
        polls -= 1;
        tier.poll(wait, done)
    })
}

#[test]
fn a_tier_that_breaks_is_an_error() {
    for polls in [0, 1, 50] {
        let tier = breaking(memory(8, 1), polls);
        let error = drive(tier, None, params(Mode::Barrier), ASKED, options(4, 2)).unwrap_err();
        assert_eq!(error.to_string(), "the device is gone");
    }
}

#[test]
fn a_damaged_block_never_enters_the_cache() {
    let view = place().built.index.view();
    let (count, size) = blocks_of(&view);
    let cache = ExtentCache::of_blocks(64 << 20, count, size as u32).unwrap();
    for (nth, fault) in [(3, Fault::FlippedBit(999)), (4, Fault::Short(100)), (5, Fault::Error)] {
        let tier = Box::new(MemoryTier::new(place().blocks.clone(), 16, 5).with_fault(nth, fault));
        drive(tier, Some(&cache), params(Mode::Barrier), ASKED, options(8, 4)).unwrap();
    }
    let mut cached = 0;
    for block in 0..count {
        if let Some(bytes) = cache.get(block_extent(&view, block as usize)) {
            assert_eq!(bytes[..], place().blocks[block as usize * size..(block as usize + 1) * size]);
            cached += 1;
        }
    }
    assert!(cached > count / 2);
}

fn ask(index: &Index, options: &SearchOptions) -> (Vec<u64>, Vec<u32>, QueryStats) {
    let answers = index.search(&place().asked.bytes, options, &Quiet).unwrap();
    assert!(answers.failed.is_empty());
    (answers.ids, answers.distances.iter().map(|d| d.to_bits()).collect(), answers.stats)
}

#[test]
fn both_ways_to_read_and_any_threads_agree() {
    let index = &place().built.index;
    let base = SearchOptions {
        effort: Effort::SearchList(50, None),
        width: Width::Fixed(4),
        io: IoChoice::Pread,
        ..SearchOptions::default()
    };
    let first = ask(index, &base);
    assert_eq!(first.2.cache_hits, 0);
    for (threads, in_flight) in [(1, 1), (2, 16), (3, 64), (4, 5)] {
        assert_eq!(ask(index, &SearchOptions { threads, in_flight: Some(in_flight), ..base }), first);
        if tier::uring_refusal().is_none() {
            assert_eq!(
                ask(
                    index,
                    &SearchOptions { threads, in_flight: Some(in_flight), io: IoChoice::Uring, ..base }
                ),
                first
            );
        }
    }
    if let Some(why) = tier::uring_refusal() {
        leave_out(Need::IoUring, &why);
    }
}

/// A block that is damaged on disk: the queries that need it say so, by name and place.
#[test]
fn a_damaged_block_on_disk_is_named() {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(place().built.dir.path()).unwrap().flatten() {
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    let size = place().built.index.block_bytes();
    let sound = place().built.index.search(&place().asked.bytes, &list(40), &Quiet).unwrap();
    let path = common::blocks_path(copy.path());
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.chunks_exact_mut(size).step_by(40).for_each(|block| block[77] ^= 4);
    std::fs::write(&path, bytes).unwrap();
    let index = Index::open(copy.path(), OpenOptions::default()).unwrap();
    let answers = index.search(&place().asked.bytes, &list(40), &Quiet).unwrap();
    assert!(!answers.failed.is_empty() && answers.failed.len() < ASKED, "{}", answers.failed.len());
    for (query, why) in &answers.failed {
        assert!(why.contains("v1-blocks.bin") && why.contains("damaged"), "{why}");
        assert!(answers.ids[query * 10..(query + 1) * 10].iter().all(|&id| id == u64::MAX));
    }
    let failed: Vec<usize> = answers.failed.iter().map(|f| f.0).collect();
    for q in (0..ASKED).filter(|q| !failed.contains(q)) {
        assert_eq!(answers.ids[q * 10..(q + 1) * 10], sound.ids[q * 10..(q + 1) * 10]);
    }
}

fn list(search_list: u32) -> SearchOptions {
    SearchOptions { effort: Effort::SearchList(search_list, None), ..SearchOptions::default() }
}

/// Number and length of the blocks of a `flat` or `disk-graph` index.
fn blocks_of(view: &IndexView<'_>) -> (u32, usize) {
    match (view.kind.flat(), view.kind.disk_graph()) {
        (Some(flat), _) => (flat.blocks, flat.block.block_bytes),
        (_, Some(graph)) => (graph.blocks, graph.block.block_bytes),
        _ => panic!("an index without blocks"),
    }
}

fn block_extent(view: &IndexView<'_>, block: usize) -> Extent {
    let bytes = blocks_of(view).1;
    Extent { store: StoreId(0), offset: (block * bytes) as u64, bytes: bytes as u32 }
}

/// A cache of all blocks but each `missing`th.
fn nearly_full(missing: usize) -> ExtentCache {
    filled(&place().built.index.view(), &place().blocks, missing)
}

fn filled(view: &IndexView<'_>, blocks: &[u8], missing: usize) -> ExtentCache {
    let (count, block_bytes) = blocks_of(view);
    let cache = ExtentCache::of_blocks(256 << 20, count, block_bytes as u32).unwrap();
    for (block, bytes) in blocks.chunks_exact(block_bytes).enumerate() {
        if missing == 0 || block % missing != 0 {
            cache.put(block_extent(view, block), bytes);
        }
    }
    cache
}
