//! Gathered batches: each read is made once for all queries that wait for it, on any number of threads.

use std::collections::BTreeSet;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use stratann_core::query::{Mode, Outcome, QueryState, QueryStats, Read, Step};
use stratann_engine::exec::{Alone, BatchLoads, BatchOptions, Driver, Loads, Queries, SharedReads, Times};
use stratann_storage::tier::{Fault, MemoryTier, Tier};

use super::{ASKED, Ended, breaking, drive, memory, options, params, place};

/// The queries of all threads, and what they and their loads came to.
#[derive(Default)]
struct Shared {
    next: AtomicUsize,
    ended: Mutex<Vec<(usize, Ended)>>,
    loads: Mutex<QueryStats>,
    doorbells: AtomicUsize,
    batches: AtomicUsize,
    /// Doorbells that have begun, and how many of them had when the first bytes were searched.
    rung: AtomicUsize,
    rung_at_first_use: AtomicUsize,
}

struct OfThread<'a>(&'a Shared);

impl Queries for OfThread<'_> {
    fn next(&mut self) -> Option<usize> {
        Some(self.0.next.fetch_add(1, Ordering::Relaxed)).filter(|&number| number < ASKED)
    }

    fn remaining(&self) -> usize {
        ASKED.saturating_sub(self.0.next.load(Ordering::Relaxed))
    }

    fn begin(&mut self, number: usize, _: (u32, u32), state: &mut QueryState) -> &[u8] {
        let budget = place().built.index.view().budget();
        state.restart(one_read(), budget);
        place().asked.row(number)
    }

    fn is_wanted(&mut self, _: usize) -> bool {
        let rung = self.0.rung.load(Ordering::Relaxed);
        let _ = self.0.rung_at_first_use.compare_exchange(0, rung, Ordering::Relaxed, Ordering::Relaxed);
        true
    }

    fn ended(&mut self, number: usize, _: Step, state: &QueryState, _: Times) {
        let results = state.results().iter().map(|h| (h.distance.to_bits(), h.external_id)).collect();
        let ended = Ended { outcome: state.outcome(), results, stats: *state.stats() };
        self.0.ended.lock().unwrap().push((number, ended));
    }

    fn loads(&mut self) -> Option<&mut dyn Loads> {
        Some(self)
    }
}

impl Loads for OfThread<'_> {
    fn loaded(&mut self, loads: &QueryStats) {
        assert!(loads.reads <= 5, "{loads:?}");
        self.0.doorbells.fetch_add(1, Ordering::Relaxed);
        self.0.loads.lock().unwrap().add(loads);
    }

    fn is_recorded(&self) -> bool {
        true
    }

    fn on_doorbell(&mut self, loads: &[(Read, bool)]) {
        assert!(!loads.is_empty());
        self.0.rung.fetch_add(1, Ordering::Relaxed);
    }

    fn begin_batch(&mut self) -> io::Result<()> {
        self.0.batches.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// A query that wants several reads holds none back while it waits for others: here it wants one at a time.
fn one_read() -> stratann_core::query::Params {
    stratann_core::query::Params { approach_width: 1, width: 1, ..params(Mode::Barrier) }
}

/// Runs all queries, in batches, and returns what came of them.
fn in_batches(
    threads: usize,
    batch: usize,
    overlap: bool,
    tier: impl Fn(usize) -> Box<dyn Tier> + Sync,
) -> (Shared, Vec<io::Result<()>>) {
    let (shared, reads) = (Shared::default(), SharedReads::default());
    let batch_loads =
        BatchLoads::new(BatchOptions { batch, doorbell: 5, overlap, ..BatchOptions::default() }, threads);
    let run = |thread: usize| {
        let driver =
            Driver::new(Alone::new(place().built.index.view(), None), tier(thread), options(batch, 1));
        driver.with_batch_loads(Some((batch_loads.member(thread), &reads))).run(&mut OfThread(&shared))
    };
    let run = &run;
    let ran = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    (shared, ran)
}

#[test]
fn answers_are_those_of_queries_alone() {
    let alone = drive(memory(64, 1), None, one_read(), ASKED, options(1, 1)).unwrap();
    for (threads, batch, overlap) in [(1, ASKED, true), (1, 7, false), (3, 20, true), (2, 1, true)] {
        let (shared, ran) = in_batches(threads, batch, overlap, |thread| memory(64, thread as u64));
        assert!(ran.iter().all(Result::is_ok), "{ran:?}");
        let mut ended = shared.ended.into_inner().unwrap();
        ended.sort_by_key(|e| e.0);
        assert_eq!(ended.iter().map(|e| e.0).collect::<Vec<_>>(), (0..ASKED).collect::<Vec<_>>());
        assert!(ended.iter().zip(&alone).all(|(own, alone)| own.1 == *alone));
        assert_eq!(shared.batches.into_inner(), ASKED.div_ceil(batch));
    }
}

/// The first reads of a batch are gathered; later ones of these queries are not, and count each by itself.
#[test]
fn a_batch_makes_each_of_its_first_reads_once() {
    let mut distinct = BTreeSet::new();
    let mut wanted = 0;
    let view = place().built.index.view();
    for number in 0..ASKED {
        let mut state = QueryState::default();
        state.restart(one_read(), view.budget());
        let mut scratch = stratann_core::query::Scratch::default();
        scratch.prepare_for(&view, place().asked.row(number), &state);
        state.step(&view, &mut scratch, &[]);
        let tags = state.wants().iter().filter_map(|want| match want {
            stratann_core::query::Want::Fetch { at, .. } => Some((at.offset, at.bytes)),
            _ => None,
        });
        distinct.extend(tags.inspect(|_| wanted += 1));
    }
    for threads in [1, 3] {
        let (shared, _) = in_batches(threads, ASKED, true, |thread| memory(64, thread as u64));
        let loads = shared.loads.into_inner().unwrap();
        assert!(distinct.len() < wanted);
        assert_eq!(shared.doorbells.into_inner() as u64, loads.round_trips);
        // A later read is a round trip of its own.
        let later = loads.round_trips - (distinct.len() as u64).div_ceil(5);
        assert_eq!(loads.reads, distinct.len() as u64 + later);
        let block = distinct.first().unwrap().1;
        assert!(distinct.iter().all(|read| read.1 == block));
        assert_eq!(loads.bytes_read, loads.reads * u64::from(block));
    }
}

/// Overlap (d-HNSW §3.3): while the bytes of one doorbell are searched the next is under way.
#[test]
fn a_doorbell_begins_before_the_one_ahead_of_it_is_searched() {
    let rung_at_first_use = |overlap| {
        let (shared, ran) = in_batches(1, ASKED, overlap, |thread| memory(64, thread as u64));
        assert!(ran[0].is_ok() && shared.doorbells.into_inner() > 2);
        shared.rung_at_first_use.into_inner()
    };
    assert_eq!([rung_at_first_use(true), rung_at_first_use(false)], [2, 1]);
}

#[test]
fn a_failed_load_ends_the_queries_that_wait_for_it() {
    let tier = |thread: usize| -> Box<dyn Tier> {
        let fault = Fault::FlippedBit(50);
        Box::new(MemoryTier::new(place().blocks.clone(), 64, thread as u64).with_fault(0, fault))
    };
    let (shared, ran) = in_batches(1, ASKED, true, tier);
    assert!(ran[0].is_ok());
    let ended = shared.ended.into_inner().unwrap();
    let lost = ended.iter().filter(|(_, e)| matches!(e.outcome, Outcome::Lost { .. })).count();
    assert!(lost > 0 && lost < ASKED && ended.len() == ASKED, "{lost}");
}

/// A thread whose tier breaks leaves no other thread waiting.
#[test]
fn a_thread_that_fails_ends_the_search() {
    for broken in 0..3 {
        let tier = |thread: usize| -> Box<dyn Tier> {
            if thread == broken { breaking(memory(64, 1), 0) } else { memory(64, 1) }
        };
        let (_, ran) = in_batches(3, 20, true, tier);
        // Another thread may have had no query, and not have polled.
        assert!(broken > 0 || ran.iter().any(Result::is_err), "{ran:?}");
    }
}
