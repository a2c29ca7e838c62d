//! Queries of which every part of a cluster is asked: parts on one server, on several with copies, and placed on
//! several, where their states are handed over.

mod fixture;

use fixture::{LONG_US, Place, QUERIES, answer, common, params, place, submitted, thirds, with_thirds};
use stratann_core::hash::hash;
use stratann_core::peer::{Failure, Limits};
use stratann_core::place::Placement;
use stratann_core::query::wire::Results;
use stratann_core::query::{Join, Outcome, QueryState};
use stratann_sim::{Cluster, Crash, Cut, FaultModel, Left, Part, Partition, Reply, Report, run_parts};

/// Servers 0 and 1 share the first index, 2 and 3 have the whole second one, and 4 to 6 share the third, each block on
/// two of them.
const SERVERS: usize = 7;
const PART_OF: [usize; SERVERS] = [0, 0, 1, 1, 2, 2, 2];

fn with_parts<T>(replicas: usize, seed: u64, test: impl FnOnce(&[Part<'_>]) -> T) -> T {
    let placed = |third: usize, servers: usize| {
        let blocks = thirds()[third].0.index.manifest().blocks.count;
        let first = |block: u32| hash(seed, 1, block.into()) as usize;
        let copies = |block| (0..replicas).fold(0, |set, r| set | 1 << ((first(block) + r) % servers));
        Placement::new(servers, (0..blocks).map(copies).collect()).unwrap()
    };
    let placements: [Placement; 2] = [placed(0, 2), placed(2, 3)];
    with_thirds(|thirds| {
        let cluster = |third: usize, placement| {
            let Partition { view, stores } = thirds[third];
            Part::Placed(Cluster { view, placement, stores })
        };
        test(&[cluster(0, &placements[0]), Part::Whole(thirds[1], 2), cluster(2, &placements[1])])
    })
}

fn simulate(parts: &[Part<'_>], width: u32, time_us: u64, faults: &FaultModel) -> Report {
    let report = run_parts(parts, &submitted(place(), SERVERS, params(width), time_us), faults);
    assert_eq!(report.left, Left::default(), "seed {}: something is never freed", faults.seed);
    report
}

/// The answers of each index alone, joined. Those in `lost` give none.
fn joined(query: usize, lost: u64) -> QueryState {
    let Place { queries, .. } = place();
    let submitted = submitted(place(), 1, params(1), LONG_US)[query];
    let mut join = Join::new(submitted.params, submitted.budget, 3);
    for (part, (built, blocks)) in (0..).zip(thirds()) {
        if lost >> part & 1 == 1 {
            join.lose(part);
            continue;
        }
        let (view, row) = (built.index.view(), queries.row(query));
        join.add(part, &common::run_plain(&view, blocks, row, submitted.params, submitted.budget, 1));
    }
    join.answer().expect("all parts")
}

#[test]
fn parts_are_handed_over_and_joined() {
    for results in [Results::Along, Results::Origin] {
        for replicas in [1, 2] {
            let faults = FaultModel { results, ..FaultModel::default() };
            let report = with_parts(replicas, 3, |parts| simulate(parts, 1, LONG_US, &faults));
            let mut hand_overs = 0;
            for query in 0..QUERIES {
                let (state, expected) = (answer(&report, query), joined(query, 0));
                assert_eq!(state.results(), expected.results(), "query {query}");
                assert_eq!((state.outcome(), state.lost_parts()), (Outcome::Complete, 0));
                let (own, alone) = (state.stats(), expected.stats());
                assert_eq!((own.reads, own.hops), (alone.reads, alone.hops));
                hand_overs += own.hand_overs;
            }
            assert!(hand_overs > 0, "no part is handed over with {replicas} replicas");
            assert_eq!(report.refused, 0);
            // Each part is asked once, and each hand-over is a message: nothing is asked of all servers.
            assert_eq!(report.batons, hand_overs + 2 * QUERIES as u64);
        }
    }
}

/// One storm: lost, late and repeated frames, a crash, and a cut that may heal.
fn storm(seed: u64, width: u32) -> (u8, Report) {
    let dead = (hash(seed, 2, 0) % SERVERS as u64) as u8;
    let at_us = hash(seed, 3, 0) % 6000;
    let is_back = hash(seed, 4, 0).is_multiple_of(2);
    let other = (dead + 1 + (hash(seed, 5, 0) % (SERVERS as u64 - 1)) as u8) % SERVERS as u8;
    let third = (0..SERVERS as u8).find(|s| ![dead, other].contains(s)).unwrap_or(0);
    let faults = FaultModel {
        seed,
        results: if seed.is_multiple_of(3) { Results::Origin } else { Results::Along },
        link_us: (20, 3000),
        drop: 0.01,
        duplicate: 0.05,
        crashes: vec![Crash { server: dead, at_us, back_at_us: is_back.then_some(at_us + 20_000) }],
        old_servers: if seed.is_multiple_of(2) { hash(seed, 6, 0) } else { 0 },
        cuts: vec![Cut { between: (third, other), from_us: at_us, until_us: Some(at_us + 30_000) }],
        limits: Limits { patience_us: 100_000, attempts: 12, ..Limits::default() },
        ..FaultModel::default()
    };
    (dead, with_parts(2, seed, |parts| simulate(parts, width, 600_000_000, &faults)))
}

fn storms(seeds: std::ops::Range<u64>, width: u32) {
    let expected: Vec<QueryState> = (0..QUERIES).map(|query| joined(query, 0)).collect();
    let mut partial = 0;
    for seed in seeds.clone() {
        let (dead, report) = storm(seed, width);
        for (query, (replies, expected)) in report.replies.iter().zip(&expected).enumerate() {
            let was_at_the_dead = query % SERVERS == usize::from(dead);
            assert!(
                replies.len() == 1 || replies.is_empty() && was_at_the_dead,
                "seed {seed}: query {query}"
            );
            let Some((_, Reply::Answer(state))) = replies.first() else {
                assert!(replies.is_empty(), "seed {seed}: query {query} failed: {:?}", replies[0]);
                continue;
            };
            if state.outcome() != Outcome::Complete {
                partial += 1;
                continue;
            }
            if width == 1 {
                assert_eq!(state.results(), expected.results(), "seed {seed}: query {query}");
            }
        }
    }
    // A cut leaves a server with one other of its part, and a crash may take that one.
    let all = (seeds.end - seeds.start) as usize * QUERIES;
    assert!(partial * 20 < all, "{partial} of {all} answers lack something");
}

#[test]
fn in_a_storm_every_client_gets_one_right_answer() {
    storms(0..40, 1);
    storms(40..50, 8);
}

#[test]
#[ignore = "minutes: make nightly"]
fn in_a_thousand_storms_every_client_gets_one_right_answer() {
    for width in [1, 4, 8] {
        storms(1000..2000, width);
    }
}

#[test]
fn a_part_that_no_server_gives_is_named() {
    let down = |servers: &[u8]| {
        let crash = |&server: &u8| Crash { server, at_us: 0, back_at_us: None };
        FaultModel { crashes: servers.iter().map(crash).collect(), ..FaultModel::default() }
    };
    for (servers, part) in [(&[2, 3][..], 1), (&[0, 1], 0), (&[4, 5, 6], 2)] {
        let report = with_parts(2, 5, |parts| simulate(parts, 1, LONG_US, &down(servers)));
        for query in (0..QUERIES).filter(|query| PART_OF[query % SERVERS] != part) {
            let (state, expected) = (answer(&report, query), joined(query, 1 << part));
            assert_eq!(state.results(), expected.results(), "query {query} without part {part}");
            assert_eq!((state.outcome(), state.lost_parts()), (Outcome::Partial, 1 << part));
            assert_eq!(state.stats().unreachable, 1);
        }
    }
    // One of two servers of a part is enough.
    let report = with_parts(2, 5, |parts| simulate(parts, 1, LONG_US, &down(&[1, 3, 5])));
    for query in (0..QUERIES).filter(|query| ![1, 3, 5].contains(&(query % SERVERS))) {
        let state = answer(&report, query);
        assert_eq!((state.outcome(), state.results()), (Outcome::Complete, joined(query, 0).results()));
    }
}

#[test]
fn a_part_that_fails_on_one_server_is_had_from_another() {
    for bad in [2, 3] {
        let faults = FaultModel { bad_disks: vec![(bad, 1.0)], ..FaultModel::default() };
        let report = with_parts(2, 7, |parts| simulate(parts, 1, LONG_US, &faults));
        assert!(report.lost_reads > 0);
        for query in 0..QUERIES {
            let state = answer(&report, query);
            assert_eq!(state.outcome(), Outcome::Complete, "query {query}, disk {bad}");
            assert_eq!(state.results(), joined(query, 0).results());
        }
    }
    let faults = FaultModel { bad_disks: vec![(2, 1.0), (3, 1.0)], ..FaultModel::default() };
    let report = with_parts(2, 7, |parts| simulate(parts, 1, LONG_US, &faults));
    for query in 0..QUERIES {
        let state = answer(&report, query);
        assert_eq!((state.outcome(), state.lost_parts()), (Outcome::Partial, 0b010), "query {query}");
        assert_eq!(state.results(), joined(query, 0b010).results());
        assert!(state.unreadable().is_some());
    }
}

#[test]
fn a_cluster_divided_between_its_parts_answers_when_it_heals() {
    let limits = Limits { patience_us: 5000, attempts: 12, ..Limits::default() };
    let cuts = |until_us| Cut::partition(SERVERS as u8, 0b11, 0, until_us);
    let healing = FaultModel { cuts: cuts(Some(30_000)), limits, notice_us: 60_000, ..FaultModel::default() };
    let report = with_parts(2, 9, |parts| simulate(parts, 1, LONG_US, &healing));
    for query in 0..QUERIES {
        let state = answer(&report, query);
        assert_eq!((state.outcome(), state.results()), (Outcome::Complete, joined(query, 0).results()));
    }
    // It never heals: each side answers with what it has.
    let report = with_parts(2, 9, |parts| {
        simulate(parts, 1, LONG_US, &FaultModel { cuts: cuts(None), limits, ..FaultModel::default() })
    });
    for query in 0..QUERIES {
        let lost = if query % SERVERS < 2 { 0b110 } else { 0b001 };
        let state = answer(&report, query);
        assert_eq!((state.lost_parts(), state.outcome()), (lost, Outcome::Partial), "query {query}");
        assert_eq!(state.results(), joined(query, lost).results());
    }
    let silent = FaultModel { drop: 1.0, ..FaultModel::default() };
    let report = with_parts(1, 9, |parts| simulate(parts, 1, 2_000_000, &silent));
    assert!(report.replies.iter().all(|r| matches!(r.as_slice(), [(_, Reply::Failed(Failure::Expired))])));
}
