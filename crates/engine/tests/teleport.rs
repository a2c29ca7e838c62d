//! A query's state survives as bytes: at any step, in another place, and against any damage.

mod common;

use std::sync::{Arc, OnceLock};

use common::{
    Built, Set, arrival, clustered, graph_set, ids, nearest, queries, quick, row_ids, run, run_plain, wanted,
    with_graph, with_sieve,
};
use proptest::prelude::*;
use stratann_core::codec::Refused;
use stratann_core::kinds::disk_graph::{SEEDS, Sieving};
use stratann_core::kinds::{IndexView, KindView};
use stratann_core::place::{LocalShard, Others, Placement};
use stratann_core::query::wire::{self, Carry, decode, encode};
use stratann_core::query::{
    Arrival, Arrived, Budget, Candidate, Loss, Mode, Outcome, Params, QueryState, QueryStats, Read, Scratch,
    Step,
};
use stratann_core::sieve::Sieve;
use stratann_engine::build::IndexKind;
use stratann_engine::{DType, Metric};
use stratann_storage::Quiet;

struct Place {
    built: Built,
    blocks: Arc<Vec<u8>>,
}

impl Place {
    /// What queries see. Steps in memory end after each round, so that there is more to teleport between.
    fn view(&self) -> IndexView<'_> {
        let mut view = self.built.index.view();
        if let KindView::DiskGraph(own) = &mut view.kind
            && let Some(resident) = &mut own.resident
        {
            resident.step_comparisons = 1;
        }
        view
    }
}

fn graph() -> &'static Place {
    static PLACE: OnceLock<Place> = OnceLock::new();
    PLACE.get_or_init(|| {
        let built = Built::new(graph_set(), &quick(IndexKind::DiskGraph, Metric::L2));
        let blocks = built.blocks();
        Place { built, blocks }
    })
}

/// The same graph in memory.
fn resident_graph() -> &'static Place {
    static PLACE: OnceLock<Place> = OnceLock::new();
    PLACE.get_or_init(|| {
        let mut built = Built::new(graph_set(), &quick(IndexKind::DiskGraph, Metric::L2));
        built.index.set_cache_budget(1 << 30);
        assert!(built.index.make_resident(&Quiet).unwrap());
        let blocks = built.blocks();
        Place { built, blocks }
    })
}

fn flat() -> &'static Place {
    static PLACE: OnceLock<Place> = OnceLock::new();
    PLACE.get_or_init(|| {
        let set = Set::new(DType::F16, 24, &clustered(9000, 24, 12, 1));
        let built = Built::new(set, &quick(IndexKind::Flat, Metric::Cosine));
        let blocks = built.blocks();
        Place { built, blocks }
    })
}

/// Runs a query that is encoded, forgotten and revived after every step.
fn teleported(
    (view, blocks): (&IndexView<'_>, &[u8]),
    query: &[u8],
    params: Params,
    budget: Budget,
    (seed, carry): (u64, Carry),
) -> QueryState {
    run(view, blocks, query, QueryState::new(params, budget), seed, |state, scratch, _| {
        let mut bytes = Vec::new();
        encode(&state, carry, &mut bytes);
        *scratch = Scratch::default();
        scratch.prepare(view, query);
        let revived = decode(&bytes).unwrap();
        let mut again = Vec::new();
        encode(&revived, carry, &mut again);
        assert_eq!(again, bytes);
        revived
    })
}

fn entries(state: &QueryState) -> &[Candidate] {
    state.disk_graph().map_or(&[], |own| own.beam().entries())
}

fn same_end(place: &Place, query: &[u8], params: Params, budget: Budget) {
    same_end_in((&place.view(), &place.blocks), query, params, budget);
}

/// Returns the state that stayed.
fn same_end_in(place: (&IndexView<'_>, &[u8]), query: &[u8], params: Params, budget: Budget) -> QueryState {
    let (view, blocks) = place;
    let stayed = run_plain(view, blocks, query, params, budget, 1);
    for carry in [Carry::Distances, Carry::Ids] {
        let travelled = teleported(place, query, params, budget, (1, carry));
        assert_eq!(stayed.outcome(), travelled.outcome());
        assert_eq!(stayed.results(), travelled.results());
        // What was met is forgotten on the way, so more is scored; and distances that were left out are computed again.
        let QueryStats { rescored, repeats, code_comparisons, .. } = *travelled.stats();
        assert_eq!(travelled.stats().met(), stayed.stats().met());
        let stats = QueryStats { rescored, repeats, code_comparisons, ..*stayed.stats() };
        assert_eq!(stats, *travelled.stats());
        let travels_scored = carry == Carry::Distances || view.kind.disk_graph().is_none();
        assert_eq!(rescored == 0, travels_scored || entries(&stayed).is_empty());
        assert_eq!(entries(&stayed), entries(&travelled));
    }
    stayed
}

#[test]
fn a_graph_query_ends_alike_wherever_it_goes() {
    let asked = queries(6, 24);
    for width in [1, 2, 4, 8] {
        for (mode, slack, patience, margin, scan) in [
            (Mode::Barrier, f32::INFINITY, 0, f32::INFINITY, false),
            (Mode::Barrier, 0.5, 6, f32::INFINITY, false),
            (Mode::Barrier, f32::INFINITY, 3, f32::INFINITY, false),
            (Mode::Eager, 0.0, 9, f32::INFINITY, false),
            (Mode::Barrier, f32::INFINITY, 0, 0.1, false),
            (Mode::Eager, f32::INFINITY, 0, 0.0, false),
            (Mode::Barrier, f32::INFINITY, 0, f32::INFINITY, true),
            (Mode::Eager, f32::INFINITY, 0, f32::INFINITY, true),
        ] {
            for q in 0..asked.len() {
                let params =
                    Params { width, approach_width: width.div_ceil(2), mode, ..Params::disk_graph(10, 40) };
                let params = with_graph(params, |own| {
                    (own.stop_slack, own.patience, own.scan) = (slack, patience, scan);
                    (own.stop_margin, own.idle_share) = (margin, 0.25);
                    (own.whole_blocks, own.head) = (q % 3 != 0, q % 2 == 0);
                });
                for place in [graph(), resident_graph()] {
                    same_end(place, asked.row(q), params, Budget::default());
                    same_end(place, asked.row(q), params, Budget { hops: 6, reads: 7, ..Budget::default() });
                }
                if mode == Mode::Barrier {
                    same_in_memory(asked.row(q), params);
                }
            }
        }
    }
}

#[test]
fn a_walk_by_codes_ends_alike_wherever_it_goes_and_whatever_is_in_memory() {
    let asked = queries(6, 24);
    for width in [1, 2, 4, 8] {
        for (mode, rerank) in
            [(Mode::Barrier, 10), (Mode::Barrier, 25), (Mode::Barrier, 999), (Mode::Eager, 25)]
        {
            for q in 0..asked.len() {
                let params =
                    Params { width, approach_width: width.div_ceil(2), mode, ..Params::disk_graph(10, 40) };
                let params = with_graph(params, |own| own.walk_by_codes(rerank));
                for place in [graph(), resident_graph()] {
                    same_end(place, asked.row(q), params, Budget::default());
                    same_end(place, asked.row(q), params, Budget { hops: 6, reads: 7, ..Budget::default() });
                }
                if mode == Mode::Barrier {
                    same_in_memory(asked.row(q), params);
                }
            }
        }
    }
}

/// A walk among the rows that may be returned, where the nearest half may not: it finds them, and ends alike wherever it
/// goes. Without it the walk finds none.
#[test]
fn a_walk_among_far_rows_ends_alike_wherever_it_goes() {
    let asked = queries(4, 24);
    let set = &graph().built.set;
    let (rows, external) = (set.len(), row_ids(&graph().built));
    let (mut asked_for, mut hits) = (0, 0);
    for q in 0..asked.len() {
        let query = asked.row(q);
        let near = nearest(set, Metric::L2, query, rows / 2, |_| false);
        let far: Vec<u32> =
            (0..).zip(&external).filter(|(_, id)| !near.contains(id)).map(|(row, _)| row).collect();
        let sieve = Sieve::from_sorted(rows as u32, &far).unwrap();
        let truth = nearest(set, Metric::L2, query, 10, |row| near.contains(&(row as u64)));
        for (width, rerank, seed_list) in [(1, 0, 300), (4, 0, 300), (1, 15, 300), (4, 15, 300), (2, 15, 0)] {
            let params = Params { width, approach_width: width, ..Params::disk_graph(10, 30) };
            let params = with_graph(params, |own| {
                own.walk_by_codes(rerank);
                own.sieving = Sieving { seed_list, ..Sieving::default() };
            });
            for place in [graph(), resident_graph()] {
                let view = with_sieve(&place.view(), &sieve);
                let end = same_end_in((&view, &place.blocks), query, params, Budget::default());
                let (found, stats) = (ids(end.results()), end.stats());
                assert_eq!((end.outcome(), stats.gave_way), (Outcome::Complete, 0));
                if seed_list == 0 {
                    assert_eq!((found.len(), stats.seeds), (0, 0), "query {q}");
                    continue;
                }
                assert!((SEEDS / 2..=SEEDS).contains(&(stats.seeds as u32)), "query {q}: {}", stats.seeds);
                assert_eq!(found.len(), 10, "query {q}");
                (asked_for, hits) =
                    (asked_for + 10, hits + found.iter().filter(|id| truth.contains(id)).count());
            }
        }
    }
    assert!(hits as f64 >= 0.9 * f64::from(asked_for), "{hits} of {asked_for}");
}

/// Of all counters, those of reads alone tell where the graph is.
fn same_in_memory(query: &[u8], params: Params) {
    let end = |place: &Place| run_plain(&place.view(), &place.blocks, query, params, Budget::default(), 1);
    let (disk, memory) = (end(graph()), end(resident_graph()));
    assert_eq!(disk.outcome(), Outcome::Complete);
    assert_eq!((disk.outcome(), disk.results()), (memory.outcome(), memory.results()));
    let (read, QueryStats { reads: 0, .. }) = (disk.stats(), *memory.stats()) else {
        panic!("reads in memory");
    };
    let QueryStats { reads, pages_read, bytes_read, .. } = *read;
    assert!(reads > 0);
    assert_eq!(QueryStats { reads, pages_read, bytes_read, ..*memory.stats() }, *read);
    assert_eq!(entries(&disk), entries(&memory));
}

#[test]
fn a_flat_query_ends_alike_wherever_it_goes() {
    let asked = Set::new(DType::F16, 24, &clustered(4, 24, 12, 2));
    for width in [1, 2, 4, 8] {
        for mode in [Mode::Barrier, Mode::Eager] {
            for q in 0..asked.len() {
                let params = Params { width, mode, ..Params::flat(10) };
                same_end(flat(), asked.row(q), params, Budget::default());
                same_end(flat(), asked.row(q), params, Budget { hops: 100, reads: 2, ..Budget::default() });
            }
        }
    }
}

/// One server of three that hold everything, where every fourth block cannot be read, and the state moves on.
#[test]
fn what_could_not_be_read_travels_along() {
    let blocks = graph().built.index.view().kind.disk_graph().unwrap().blocks as usize;
    let placement = Placement::new(3, vec![7; blocks]).unwrap();
    let params = Params::disk_graph(10, 40);
    assert!(travels(&placement, params, 2) > 0);
}

/// A scan visits each server once where nothing is lost, however blocks alternate between servers.
#[test]
fn a_scan_goes_to_each_server_once() {
    let blocks = graph().built.index.view().kind.disk_graph().unwrap().blocks;
    let placement = Placement::new(3, (0..blocks).map(|b| 1 << (b % 3)).collect()).unwrap();
    let params = with_graph(Params::disk_graph(10, 40), |own| own.scan = true);
    assert_eq!(travels(&placement, params, 0), 2);
}

/// Runs a query on three servers, of which those below `sound` cannot read every fourth block. Returns the number of
/// hand-overs. The answer is that of one server.
fn travels(placement: &Placement, params: Params, sound: u8) -> u64 {
    let place = graph();
    let view = place.built.index.view();
    let query = queries(1, 24);
    let expected = run_plain(&view, &place.blocks, query.row(0), params, Budget::default(), 1);
    let (mut state, mut server, mut moves) = (QueryState::new(params, Budget::default()), 0, 0);
    let (mut scratch, mut held) = (Scratch::default(), Vec::new());
    scratch.prepare(&view, query.row(0));
    loop {
        let here = LocalShard { placement, server, others: Others::live(7) };
        let bytes = |read: &Read| match read.unit().is_multiple_of(4) && server < sound {
            true => Arrived::Lost(Loss::Damaged),
            false => arrival(&view, &place.blocks, read),
        };
        let arrivals: Vec<Arrival<'_>> =
            held.drain(..).map(|(tag, read)| Arrival { tag, what: bytes(&read) }).collect();
        let mut view = view;
        view.base.here = Some(here);
        match state.step(&view, &mut scratch, &arrivals) {
            Step::Done => break,
            Step::HandOver(to) => {
                assert_ne!(to, server);
                (server, moves) = (to, moves + 1);
            }
            Step::Wait => {}
        }
        held = wanted(&state);
        let mut bytes = Vec::new();
        encode(&state, Carry::Ids, &mut bytes);
        state = decode(&bytes).unwrap();
    }
    assert_eq!((state.outcome(), state.results()), (Outcome::Complete, expected.results()));
    assert!(state.unreadable().is_none());
    assert_eq!(state.stats().hand_overs, moves);
    moves
}

/// A state in the middle of its way, with reads under way, as bytes.
fn midway(carry: Carry) -> &'static Vec<u8> {
    static BYTES: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    &BYTES.get_or_init(|| [Carry::Ids, Carry::Distances].map(made_midway))
        [usize::from(carry == Carry::Distances)]
}

const CARRIES: [Carry; 2] = [Carry::Ids, Carry::Distances];

fn made_midway(carry: Carry) -> Vec<u8> {
    let (mut bytes, mut steps) = (Vec::new(), 0);
    let params = Params { width: 2, approach_width: 2, ..Params::disk_graph(5, 60) };
    let params = with_graph(params, |own| (own.patience, own.stop_slack) = (50, 1.0));
    let state = QueryState::new(params, Budget::default());
    run(&graph().built.index.view(), &graph().blocks, queries(1, 24).row(0), state, 1, |state, _, _| {
        steps += 1;
        if steps == 2 {
            encode(&state, carry, &mut bytes);
        }
        state
    });
    assert!(!bytes.is_empty());
    bytes
}

#[test]
fn every_flipped_bit_and_every_cut_is_refused() {
    for good in CARRIES.map(midway) {
        assert!(decode(good).is_ok());
        let mut bytes = good.clone();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for length in 0..good.len() {
            assert!(decode(&good[..length]).is_err(), "cut to {length}");
        }
        bytes.push(0);
        assert_eq!(decode(&bytes), Err(Refused::Length));
    }
}

#[test]
fn a_state_without_distances_is_much_shorter() {
    let [ids, distances] = CARRIES.map(|carry| midway(carry).len());
    assert!(ids * 4 < distances * 3, "{ids} of {distances} bytes");
}

/// Writes length and checksum again, as a hostile sender would.
fn reseal(bytes: &mut [u8]) {
    let length = (bytes.len() - 16) as u32;
    let sum = wire::seal(wire::VERSION, &bytes[16..]);
    bytes[4..8].copy_from_slice(&length.to_le_bytes());
    bytes[8..16].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn counts_beyond_their_limits_are_refused_before_memory_is_taken() {
    // Every aligned or unaligned word of the body in turn becomes a huge count.
    for good in CARRIES.map(midway) {
        let mut refused = 0;
        for at in 16..good.len() - 4 {
            let mut bytes = good.clone();
            bytes[at..at + 4].fill(0xFF);
            reseal(&mut bytes);
            refused += usize::from(decode(&bytes).is_err());
        }
        assert!(refused > 20, "{refused}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_refused_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(decode(&bytes).is_err());
    }

    #[test]
    fn any_body_behind_a_good_seal_is_no_panic(body in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut bytes = vec![0; 16];
        bytes[0] = stratann_core::query::wire::VERSION as u8;
        bytes.extend(body);
        reseal(&mut bytes);
        let _ = decode(&bytes);
    }

    /// Nonsense that a hostile sender seals well neither panics nor runs for ever.
    #[test]
    fn a_forged_state_steps_without_panic(changes in prop::collection::vec((16usize..4000, any::<u8>()), 1..6), seed in any::<u64>()) {
        let carry = CARRIES[(seed % 2) as usize];
        let mut bytes = midway(carry).clone();
        for (at, value) in changes {
            let at = 16 + (at - 16) % (bytes.len() - 16);
            bytes[at] = value;
        }
        reseal(&mut bytes);
        if let Ok(mut state) = decode(&bytes) {
            step_to_the_end(&mut state, seed);
        }
    }
}

/// Steps a state that may say anything; blocks that do not exist are lost.
fn step_to_the_end(state: &mut QueryState, seed: u64) {
    let view = graph().built.index.view();
    let asked = queries(1, 24);
    let mut scratch = Scratch::default();
    scratch.prepare(&view, asked.row(0));
    let mut arrivals: Vec<Arrival<'_>> = Vec::new();
    for _ in 0..3000 {
        if state.step(&view, &mut scratch, &arrivals) == Step::Done {
            assert_ne!(state.outcome(), Outcome::Running);
            return;
        }
        let arrived = |read: &Read| match seed.is_multiple_of(5) {
            true => Arrived::Lost(Loss::Failed),
            false => arrival(&view, &graph().blocks, read),
        };
        arrivals =
            wanted(state).iter().map(|(tag, read)| Arrival { tag: *tag, what: arrived(read) }).collect();
        if arrivals.is_empty() {
            return;
        }
    }
    panic!("3000 steps on an index of {} blocks", view.kind.disk_graph().unwrap().blocks);
}
