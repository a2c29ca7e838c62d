//! A kind that only tests have, made by the page "How to add a kind": the shared parts run it without knowing it.

mod common;

use std::sync::OnceLock;

use common::sorted::{Sorted, queries};
use common::{Set, nearest, run, run_plain, wanted};
use proptest::prelude::*;
use stratann_core::codec::Refused;
use stratann_core::query::wire::{self, Carry, decode, encode};
use stratann_core::query::{
    Budget, Extent, Loss, Mode, Outcome, Params, QueryState, QueryStats, Scratch, Step, StoreId,
};
use stratann_engine::Metric;
use stratann_engine::exec::{Alone, Driver, DriverOptions, Queries, SharedReads, Times, Width};
use stratann_storage::cache::ExtentCache;
use stratann_storage::tier::{Fault, MemoryTier};

const ASKED: usize = 24;
const K: u32 = 10;

fn place() -> &'static Sorted {
    static PLACE: OnceLock<Sorted> = OnceLock::new();
    PLACE.get_or_init(|| Sorted::new(Metric::L2))
}

fn asked() -> &'static Set {
    static ASKED_SET: OnceLock<Set> = OnceLock::new();
    ASKED_SET.get_or_init(|| queries(ASKED))
}

fn params(width: u32, mode: Mode) -> Params {
    Params { width, approach_width: width, mode, ..Params::sorted(K, true) }
}

fn alone(query: usize, params: Params) -> QueryState {
    let place = place();
    run_plain(&place.view(), &place.file, asked().row(query), params, Budget::default(), 1)
}

#[test]
fn it_is_exact_and_stops_before_the_last_block() {
    for metric in [Metric::L2, Metric::Cosine] {
        let place = Sorted::new(metric);
        let mut reads = [0, 0];
        for q in 0..ASKED {
            let truth = nearest(&place.built.set, metric, asked().row(q), K as usize, |_| false);
            for (stops, reads) in [false, true].into_iter().zip(&mut reads) {
                let params = Params::sorted(K, stops);
                let state =
                    run_plain(&place.view(), &place.file, asked().row(q), params, Budget::default(), 1);
                let ids: Vec<u64> = state.results().iter().map(|hit| hit.external_id).collect();
                assert_eq!((ids, state.outcome()), (truth.clone(), Outcome::Complete), "query {q}");
                *reads += state.stats().reads;
            }
        }
        assert_eq!(reads[0], u64::from(place.blocks()) * ASKED as u64);
        // Only of l2 does one component give a bound.
        assert_eq!(reads[1] < reads[0], metric == Metric::L2, "{reads:?}");
    }
}

/// The queries of this file, as a driver asks for them.
struct Asked {
    params: Params,
    next: usize,
    ended: Vec<Option<(Outcome, Vec<u64>, QueryStats)>>,
}

impl Queries for Asked {
    fn next(&mut self) -> Option<usize> {
        self.next += 1;
        (self.next <= ASKED).then(|| self.next - 1)
    }

    fn remaining(&self) -> usize {
        ASKED.saturating_sub(self.next)
    }

    fn begin(&mut self, number: usize, _: (u32, u32), state: &mut QueryState) -> &[u8] {
        state.restart(self.params, Budget::default());
        asked().row(number)
    }

    fn ended(&mut self, number: usize, step: Step, state: &QueryState, _: Times) {
        assert_eq!(step, Step::Done);
        let ids = state.results().iter().map(|hit| hit.external_id).collect();
        let mut stats = *state.stats();
        // The same with any cache.
        (stats.reads, stats.cache_hits) = (stats.reads_asked(), 0);
        (stats.pages_read, stats.bytes_read) = (0, 0);
        assert!(self.ended[number].replace((state.outcome(), ids, stats)).is_none());
    }
}

#[test]
fn the_driver_gives_the_same_answers_at_any_depth_with_and_without_a_cache() {
    let place = place();
    let params = params(3, Mode::Barrier);
    let wanted: Vec<_> = (0..ASKED)
        .map(|q| {
            let state = alone(q, params);
            let ids: Vec<u64> = state.results().iter().map(|hit| hit.external_id).collect();
            let stats = QueryStats { pages_read: 0, bytes_read: 0, ..*state.stats() };
            Some((state.outcome(), ids, stats))
        })
        .collect();
    let block_bytes = place.view().kind.sorted().unwrap().block.block_bytes;
    let cache = ExtentCache::of_blocks(4 * block_bytes as u64, place.blocks(), block_bytes as u32);
    let shared = SharedReads::default();
    for (in_flight, depth, cache, merges) in [
        (1, 1, None, false),
        (8, 3, None, true),
        (16, 64, cache.as_ref(), true),
        (4, 2, cache.as_ref(), false),
    ] {
        let options =
            DriverOptions { in_flight, width: Width::Fixed(params.width), ..DriverOptions::default() };
        let tier = Box::new(MemoryTier::new(place.file.clone(), depth, in_flight as u64));
        let mut queries = Asked { params, next: 0, ended: vec![None; ASKED] };
        let driver = Driver::new(Alone::new(place.view(), cache), tier, options);
        driver.sharing(merges.then_some(&shared)).run(&mut queries).unwrap();
        assert_eq!(queries.ended, wanted, "{in_flight} in flight, depth {depth}");
    }
    // A damaged block is lost to its query, and never scored.
    let tier = Box::new(MemoryTier::new(place.file.clone(), 4, 1).with_fault(7, Fault::FlippedBit(40_000)));
    let options =
        DriverOptions { in_flight: 2, width: Width::Fixed(params.width), ..DriverOptions::default() };
    let mut queries = Asked { params, next: 0, ended: vec![None; ASKED] };
    Driver::new(Alone::new(place.view(), None), tier, options).run(&mut queries).unwrap();
    let lost =
        |e: &Option<(Outcome, _, _)>| matches!(e, Some((Outcome::Lost { loss: Loss::Damaged, .. }, _, _)));
    assert_eq!(queries.ended.iter().filter(|e| lost(e)).count(), 1);
    assert_eq!(queries.ended.iter().zip(&wanted).filter(|(a, b)| a == b).count(), ASKED - 1);
}

#[test]
fn a_query_ends_alike_when_it_is_encoded_at_every_step() {
    let place = place();
    let view = place.view();
    let mut times = 0;
    for (width, mode) in [(1, Mode::Barrier), (4, Mode::Barrier), (2, Mode::Eager), (8, Mode::Eager)] {
        for budget in [Budget::default(), Budget { hops: 3, reads: 5, ..Budget::default() }] {
            for q in 0..ASKED {
                let query = asked().row(q);
                let state = QueryState::new(params(width, mode), budget);
                let travelled = run(&view, &place.file, query, state, 1, |state, scratch, _| {
                    let (mut bytes, mut again) = (Vec::new(), Vec::new());
                    encode(&state, Carry::Ids, &mut bytes);
                    *scratch = Scratch::default();
                    scratch.prepare(&view, query);
                    let decoded = decode(&bytes).unwrap();
                    encode(&decoded, Carry::Ids, &mut again);
                    assert_eq!(again, bytes);
                    times += 1;
                    decoded
                });
                let stayed = run_plain(&view, &place.file, query, params(width, mode), budget, 1);
                assert_eq!((stayed.outcome(), stayed.stats()), (travelled.outcome(), travelled.stats()));
                assert_eq!(stayed.results(), travelled.results());
            }
        }
    }
    assert!(times > ASKED, "only {times} moves");
}

/// A state in the middle of its query, as bytes.
fn midway() -> Vec<u8> {
    let (place, mut last) = (place(), Vec::new());
    let state = QueryState::new(params(4, Mode::Eager), Budget::default());
    run(&place.view(), &place.file, asked().row(0), state, 1, |state, _, _| {
        last.clear();
        encode(&state, Carry::Ids, &mut last);
        state
    });
    last
}

#[test]
fn a_state_of_another_kind_and_an_odd_one_are_refused() {
    let bytes = midway();
    assert!((0..bytes.len()).all(|end| decode(&bytes[..end]).is_err()));
    // Over an index of another kind the query ends at once, and the other way round.
    let place = place();
    let flat = place.built.index.view();
    for (view, params) in [(flat, params(1, Mode::Barrier)), (place.view(), Params::flat(K))] {
        let state = QueryState::new(params, Budget::default());
        let state = run(&view, &place.file, asked().row(0), state, 1, |state, _, _| state);
        assert_eq!(state.outcome(), Outcome::WrongKind);
    }
    let mut unknown = bytes.clone();
    unknown[16] = 200;
    let sum = wire::seal(wire::VERSION, &unknown[16..]);
    unknown[8..16].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(decode(&unknown).unwrap_err(), Refused::Kind(200));
}

#[test]
fn only_whole_blocks_of_its_store_are_verified() {
    let place = place();
    let view = place.view();
    let length = view.kind.sorted().unwrap().block.block_bytes as u32;
    // The first read of a query, elsewhere.
    let mut state = QueryState::new(params(1, Mode::Barrier), Budget::default());
    let mut scratch = Scratch::default();
    scratch.prepare(&view, asked().row(0));
    state.step(&view, &mut scratch, &[]);
    let first = wanted(&state)[0].1;
    let read = |store, offset, bytes| {
        let mut read = first;
        read.at = Extent { store: StoreId(store), offset, bytes };
        read
    };
    let good = &place.file[..length as usize];
    assert_eq!(view.check_read(&read(0, 0, length), good), Ok(()));
    assert_eq!(view.check_read(&read(0, 0, length), &good[1..]), Err(Loss::Short));
    for wrong in [read(1, 0, length), read(0, 4096, length), read(0, place.file.len() as u64, length)] {
        assert_eq!(view.check_read(&wrong, good), Err(Loss::Damaged), "{wrong:?}");
    }
}

proptest! {
    #[test]
    fn any_section_is_a_state_or_refused(keep in 17usize..200, section in prop::collection::vec(any::<u8>(), 0..90)) {
        static GOOD: OnceLock<Vec<u8>> = OnceLock::new();
        let good = GOOD.get_or_init(midway);
        let mut bytes = good[..keep.min(good.len())].to_vec();
        bytes.extend(section);
        let (length, sum) = ((bytes.len() - 16) as u32, wire::seal(wire::VERSION, &bytes[16..]));
        bytes[4..8].copy_from_slice(&length.to_le_bytes());
        bytes[8..16].copy_from_slice(&sum.to_le_bytes());
        // What is accepted runs to an end, whatever it names.
        if let Ok(mut state) = decode(&bytes) {
            let view = place().view();
            let mut scratch = Scratch::default();
            scratch.prepare(&view, asked().row(0));
            let _ = state.step(&view, &mut scratch, &[]);
            let fits = state.is_baton(&view.size());
            prop_assert!(!fits || state.pending() == 0);
        }
    }
}
