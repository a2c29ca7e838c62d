//! What must hold in any cluster, in any weather. A failing seed is named in the message and repeats.

#[path = "../../engine/tests/common/mod.rs"]
mod common;

use std::mem::take;
use std::sync::{Arc, OnceLock};

use common::{Built, Set, graph_set, queries, quick, run_plain};
use stratann_core::build::hash;
use stratann_core::peer::{Failure, Limits};
use stratann_core::place::Placement;
use stratann_core::query::wire::{Carry, Results};
use stratann_core::query::{Budget, Loss, Mode, Outcome, Params, QueryState, QueryStats};
use stratann_engine::build::{BuildOptions, CodePlace, Kind};
use stratann_engine::dataset::Shape;
use stratann_kernel::Metric;
use stratann_sim::{
    Asked, Blocks, Cluster, Costs, Crash, Load, Partition, Report, Task, Told, Trace, Weather, fetch, record,
    replay, run, run_apart, scatter_gather,
};

const QUERIES: usize = 40;
const DIM: usize = 24;

struct Place {
    built: Built,
    blocks: Arc<Vec<u8>>,
    asked: Set,
}

impl Blocks for Place {
    fn read(&self, block: u32, out: &mut Vec<u8>) -> bool {
        let size = self.built.index.view().block.block_bytes;
        out.clear();
        let bytes = self.blocks.get(block as usize * size..(block as usize + 1) * size);
        bytes.inspect(|b| out.extend_from_slice(b)).is_some()
    }
}

fn place() -> &'static Place {
    static PLACE: OnceLock<Place> = OnceLock::new();
    PLACE.get_or_init(|| {
        let built = Built::new(graph_set(), &quick(Kind::DiskGraph, Metric::L2));
        let blocks = built.blocks();
        Place { built, blocks, asked: queries(QUERIES, DIM) }
    })
}

/// `replicas` homes for every block, drawn: the worst of placements.
fn scattered(servers: usize, replicas: usize, seed: u64) -> Placement {
    let blocks = place().built.index.view().blocks;
    let homes = (0..blocks).map(|block| {
        let first = hash(seed, 1, u64::from(block)) as usize;
        (0..replicas).fold(0u64, |homes, r| homes | 1 << ((first + r * (1 + first % 3)) % servers))
    });
    Placement::new(servers, homes.collect()).unwrap()
}

/// Blocks in order, so that neighbours in the file are neighbours on a server.
fn in_stretches(servers: usize) -> Placement {
    let blocks = place().built.index.view().blocks as usize;
    Placement::new(servers, (0..blocks).map(|b| 1 << (b * servers / blocks)).collect()).unwrap()
}

fn params(width: u32) -> Params {
    Params { width, approach_width: width, ..Params::new(10, 40) }
}

fn simulate(placement: &Placement, params: Params, time_us: u64, weather: &Weather) -> Report {
    let place = place();
    let cluster = Cluster { view: place.built.index.view(), placement, blocks: place };
    let asked: Vec<Asked<'_>> = (0..QUERIES)
        .map(|q| Asked {
            at_us: 50 * q as u64,
            origin: (q % placement.servers()) as u8,
            vector: place.asked.row(q),
            params,
            budget: Budget::default(),
            time_us,
        })
        .collect();
    let report = run(&cluster, &asked, weather);
    assert_eq!(report.left, (0, 0, 0), "seed {}: something is immortal", weather.seed);
    report
}

fn alone(query: usize, params: Params) -> QueryState {
    let place = place();
    run_plain(&place.built.index.view(), &place.blocks, place.asked.row(query), params, Budget::default(), 1)
}

fn answer(report: &Report, query: usize) -> &QueryState {
    match report.told[query].as_slice() {
        [(_, Told::Answer(state))] => state,
        other => panic!("query {query} was told {other:?}"),
    }
}

const WHILE: u64 = 10_000_000;

#[test]
fn best_first_search_costs_and_finds_the_same_on_any_number_of_servers() {
    for (servers, replicas, carry, results) in [
        (1, 1, Carry::Ids, Results::Along),
        (3, 1, Carry::Ids, Results::Along),
        (3, 1, Carry::Ids, Results::Origin),
        (5, 2, Carry::Distances, Results::Along),
        (5, 2, Carry::Distances, Results::Origin),
        (5, 2, Carry::Ids, Results::Along),
        (10, 1, Carry::Distances, Results::Along),
        (10, 3, Carry::Ids, Results::Along),
        (64, 1, Carry::Ids, Results::Along),
        (64, 1, Carry::Ids, Results::Origin),
    ] {
        let weather = Weather { carry, results, ..Weather::default() };
        let report = simulate(&scattered(servers, replicas, 3), params(1), WHILE, &weather);
        let mut hand_overs = 0;
        for query in 0..QUERIES {
            let (here, there) = (alone(query, params(1)), answer(&report, query));
            assert_eq!(here.results(), there.results(), "{servers} servers, query {query}");
            let mut stats = *there.stats();
            let (batons, rescored) = (take(&mut stats.hand_overs), take(&mut stats.rescored));
            hand_overs += batons;
            // What a baton leaves out is computed where it arrives, and only that.
            assert_eq!(rescored > 0, batons > 0 && carry == Carry::Ids);
            // So is what was met before: the rest of the beam is known there.
            assert_eq!(stats.met(), here.stats().met());
            (stats.code_comparisons, stats.repeats) = (here.stats().code_comparisons, here.stats().repeats);
            assert_eq!(&stats, here.stats(), "{servers} servers, query {query}");
        }
        assert_eq!(hand_overs, report.batons);
        assert_eq!(hand_overs > 0, servers > 1);
        assert_eq!(report.found > 0, results == Results::Origin);
    }
}

/// Where blocks carry the codes nobody could compute distances that are left out, so they are handed over whatever was asked for.
#[test]
fn so_it_does_where_blocks_carry_the_codes() {
    let options = BuildOptions { codes: CodePlace::Disk, ..quick(Kind::DiskGraph, Metric::L2) };
    let built = Built::new(graph_set(), &options);
    let (blocks, asked) = (built.blocks(), queries(QUERIES, DIM));
    let place = Place { built, blocks, asked };
    let view = place.built.index.view();
    for (servers, carry) in [(3, Carry::Ids), (10, Carry::Distances)] {
        let homes = (0..view.blocks).map(|b| 1u64 << (hash(3, 1, u64::from(b)) as usize % servers)).collect();
        let placement = Placement::new(servers, homes).unwrap();
        let cluster = Cluster { view, placement: &placement, blocks: &place };
        let asked: Vec<Asked<'_>> = (0..QUERIES)
            .map(|q| Asked {
                at_us: 50 * q as u64,
                origin: (q % servers) as u8,
                vector: place.asked.row(q),
                params: params(1),
                budget: Budget::default(),
                time_us: WHILE,
            })
            .collect();
        let report = run(&cluster, &asked, &Weather { carry, ..Weather::default() });
        assert_eq!((report.left, report.refused), ((0, 0, 0), 0));
        for query in 0..QUERIES {
            let there = answer(&report, query);
            let here =
                run_plain(&view, &place.blocks, place.asked.row(query), params(1), Budget::default(), 1);
            assert_eq!(here.results(), there.results(), "{servers} servers, query {query}");
            assert_eq!((here.stats().reads, here.stats().met()), (there.stats().reads, there.stats().met()));
            assert_eq!(there.stats().rescored, 0);
        }
        assert!(report.batons > 0);
    }
}

#[test]
fn wider_rounds_read_hardly_more_and_hand_over_less() {
    let reads = |report: &Report| (0..QUERIES).map(|q| answer(report, q).stats().reads).sum::<u64>();
    let mut hand_overs = Vec::new();
    for width in [1, 4, 8] {
        let single: u64 = (0..QUERIES).map(|q| alone(q, params(width)).stats().reads).sum();
        let report = simulate(&scattered(5, 1, 3), params(width), WHILE, &Weather::default());
        assert!(
            reads(&report) as f64 <= 1.03 * single as f64,
            "width {width}: {} to {single}",
            reads(&report)
        );
        let found: usize = (0..QUERIES)
            .map(|q| {
                let ids = |state: &QueryState| -> Vec<u64> {
                    state.results().iter().map(|h| h.external_id).collect()
                };
                common::hits(&ids(answer(&report, q)), &ids(&alone(q, params(width))))
            })
            .sum();
        assert!(found >= 10 * QUERIES * 97 / 100, "width {width}: {found} results in common");
        hand_overs.push(report.batons);
    }
    assert!(hand_overs[0] > hand_overs[1] && hand_overs[1] > hand_overs[2], "{hand_overs:?}");
}

#[test]
fn results_that_go_to_the_origin_make_hand_overs_shorter() {
    let simulated = |results| {
        let weather = Weather { results, link_us: (20, 3000), ..Weather::default() };
        let many = Params { patience: 6, ..Params::new(60, 60) };
        simulate(&scattered(6, 1, 3), many, WHILE, &weather)
    };
    let (along, origin) = (simulated(Results::Along), simulated(Results::Origin));
    // Words of results are late here, and answers wait for them.
    for query in 0..QUERIES {
        let (a, b) = (answer(&along, query), answer(&origin, query));
        assert_eq!((a.results(), a.stats()), (b.results(), b.stats()), "query {query}");
    }
    assert_eq!(along.batons, origin.batons);
    assert!(origin.baton_bytes * 10 < along.baton_bytes * 9, "{} {}", origin.baton_bytes, along.baton_bytes);
    assert!(origin.found > 0 && origin.found <= origin.batons && along.found == 0);
}

#[test]
fn patience_is_not_lost_over_what_lies_elsewhere() {
    let ids = |state: &QueryState| -> Vec<u64> { state.results().iter().map(|h| h.external_id).collect() };
    for patience in [3, 6] {
        let patient = Params { patience, ..params(8) };
        let report = simulate(&scattered(10, 1, 3), patient, WHILE, &Weather::default());
        let (mut here, mut there) = (0, 0);
        for query in 0..QUERIES {
            let all = ids(&alone(query, params(8)));
            here += common::hits(&ids(&alone(query, patient)), &all);
            there += common::hits(&ids(answer(&report, query)), &all);
        }
        assert!(
            there * 100 >= here * 99,
            "patience {patience}: {there} results of ten servers, {here} of one"
        );
    }
}

#[test]
fn copies_and_neighbourhoods_save_hand_overs() {
    let batons = |placement: &Placement| simulate(placement, params(1), WHILE, &Weather::default()).batons;
    let (one, two) = (batons(&scattered(6, 1, 3)), batons(&scattered(6, 2, 3)));
    assert!(two * 4 < one * 3, "{two} with two copies, {one} with one");
    let near = batons(&in_stretches(6));
    assert!(near < one, "{near} in stretches, {one} scattered");
}

#[test]
fn a_vector_goes_to_each_server_once() {
    let report = simulate(&scattered(4, 1, 3), params(1), WHILE, &Weather::default());
    assert!(report.vector_bytes <= (QUERIES * 3 * DIM * 4) as u64, "{} bytes", report.vector_bytes);
    assert!(report.batons > 3 * QUERIES as u64);
}

fn results_of(seed: u64) -> Results {
    if seed % 3 == 2 { Results::Origin } else { Results::Along }
}

/// Frames lost, doubled and overtaken, and a server that crashes while others hold copies of all it had.
fn storm(seed: u64) {
    let servers = 4 + (hash(seed, 1, 0) % 4) as usize;
    let dead = (hash(seed, 2, 0) % servers as u64) as u8;
    let at_us = hash(seed, 3, 0) % 6000;
    let is_back = hash(seed, 4, 0).is_multiple_of(2);
    let weather = Weather {
        seed,
        results: results_of(seed),
        link_us: (20, 3000),
        drop: 0.01,
        duplicate: 0.05,
        crashes: vec![Crash { server: dead, at_us, back_at_us: is_back.then_some(at_us + 20_000) }],
        limits: Limits { patience_us: 100_000, attempts: 12, ..Limits::default() },
        ..Weather::default()
    };
    let report = simulate(&scattered(servers, 2, seed), params(1), 600_000_000, &weather);
    for query in 0..QUERIES {
        let was_at_the_dead = query % servers == usize::from(dead);
        let told = &report.told[query];
        assert!(told.len() <= 1, "seed {seed}: query {query} was told {} things", told.len());
        let Some((_, told)) = told.first() else {
            assert!(was_at_the_dead, "seed {seed}: query {query} was told nothing");
            continue;
        };
        let Told::Answer(state) = told else { panic!("seed {seed}: query {query} failed: {told:?}") };
        // A crash is noticed late, so a hand-over may have gone into the void; but what was answered is right.
        assert_eq!(state.outcome(), Outcome::Complete, "seed {seed}: query {query}");
        assert_eq!(state.results(), alone(query, params(1)).results(), "seed {seed}: query {query}");
    }
}

#[test]
fn in_a_storm_every_client_is_told_one_right_answer() {
    (0..60).for_each(storm);
}

/// Thousands of seeds; `STRATANN_SEEDS=n` for another number.
#[test]
#[ignore = "minutes: make nightly"]
fn in_thousands_of_storms_every_client_is_told_one_right_answer() {
    let seeds = std::env::var("STRATANN_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(3000);
    (1000..1000 + seeds).for_each(storm);
}

#[test]
fn without_copies_a_dead_server_makes_answers_partial_and_they_say_so() {
    let crashes = vec![Crash { server: 2, at_us: 0, back_at_us: None }];
    let weather = Weather { crashes, notice_us: 0, ..Weather::default() };
    let report = simulate(&scattered(4, 1, 3), params(1), WHILE, &weather);
    let mut partial = 0;
    for query in (0..QUERIES).filter(|q| q % 4 != 2) {
        let state = answer(&report, query);
        assert_eq!(state.outcome() == Outcome::Partial, state.stats().unreachable > 0);
        partial += usize::from(state.outcome() == Outcome::Partial);
    }
    assert!(partial > QUERIES / 2, "{partial} partial answers");
}

/// Everything but what a read that failed adds: a round, and a hand-over to where it is made again.
#[track_caller]
fn assert_same_but_for_lost_reads(report: &Report, width: u32) {
    let mut more = 0;
    for query in 0..QUERIES {
        let (here, there) = (alone(query, params(width)), answer(report, query));
        assert_eq!(there.outcome(), Outcome::Complete, "query {query}");
        assert_eq!(here.results(), there.results(), "query {query}");
        assert_eq!(there.stats().unreachable, 0);
        assert_eq!(here.stats().full_comparisons, there.stats().full_comparisons);
        more += there.stats().reads - here.stats().reads;
    }
    assert!(more == report.lost_reads && more > 0, "{more} reads more, {} lost", report.lost_reads);
}

#[test]
fn what_one_home_cannot_read_is_read_at_another() {
    for (share, replicas) in [(0.3, 2), (1.0, 2), (1.0, 3)] {
        for carry in [Carry::Ids, Carry::Distances] {
            let weather = Weather { bad_disks: vec![(1, share)], carry, ..Weather::default() };
            let report = simulate(&scattered(5, replicas, 3), params(1), WHILE, &weather);
            assert_same_but_for_lost_reads(&report, 1);
        }
    }
    // The same blocks on two disks of three homes: each home is asked once.
    let weather = Weather { bad_disks: vec![(0, 0.5), (1, 0.5)], ..Weather::default() };
    assert_same_but_for_lost_reads(&simulate(&scattered(3, 3, 3), params(1), WHILE, &weather), 1);
    // Wide rounds, used as they come: what else is under way is not held up, and nothing is asked twice of a home.
    for (mode, width) in [(Mode::Barrier, 8), (Mode::Eager, 4)] {
        let wide = Params { mode, ..params(width) };
        let weather = Weather { bad_disks: vec![(2, 0.4)], ..Weather::default() };
        let report = simulate(&scattered(4, 2, 3), wide, WHILE, &weather);
        assert!(report.lost_reads > 0);
        assert!((0..QUERIES).all(|q| answer(&report, q).outcome() == Outcome::Complete));
    }
}

#[test]
fn what_no_home_can_read_is_missing_and_the_answer_names_it() {
    let bad_disks = vec![(0, 0.2), (1, 0.2)];
    let weather = Weather { bad_disks, ..Weather::default() };
    let report = simulate(&scattered(2, 2, 3), params(1), WHILE, &weather);
    let mut lost = 0;
    for query in 0..QUERIES {
        let state = answer(&report, query);
        assert_eq!(state.outcome() == Outcome::Partial, state.unreadable().is_some(), "query {query}");
        assert_eq!(state.stats().unreachable > 0, state.unreadable().is_some(), "query {query}");
        lost += state.unreadable().map_or(0, |(_, loss)| u64::from(loss == Loss::Failed));
    }
    assert!(lost > QUERIES as u64 / 2, "{lost} queries met such a block");
    // Twice for each block and query, and never again.
    let blocks: u64 = (0..QUERIES).map(|q| answer(&report, q).stats().reads).sum();
    assert!(report.lost_reads.is_multiple_of(2) && report.lost_reads < blocks);
}

#[test]
fn failing_reads_and_a_storm_give_right_answers_or_say_what_they_lack() {
    for seed in 0..20 {
        let weather = Weather {
            seed,
            results: results_of(seed),
            failing_reads: 0.05,
            drop: 0.01,
            duplicate: 0.05,
            link_us: (20, 3000),
            crashes: vec![Crash { server: 1, at_us: hash(seed, 3, 0) % 6000, back_at_us: None }],
            limits: Limits { patience_us: 100_000, attempts: 12, ..Limits::default() },
            ..Weather::default()
        };
        let report = simulate(&scattered(5, 3, seed), params(1), 600_000_000, &weather);
        for query in (0..QUERIES).filter(|q| q % 5 != 1) {
            let state = answer(&report, query);
            match state.outcome() {
                Outcome::Complete => {
                    assert_eq!(state.results(), alone(query, params(1)).results(), "seed {seed}, {query}");
                }
                other => assert!(other == Outcome::Partial && state.stats().unreachable > 0, "seed {seed}"),
            }
        }
    }
}

#[test]
fn when_nothing_gets_through_clients_are_told_in_time() {
    let weather = Weather { drop: 1.0, ..Weather::default() };
    let report = simulate(&scattered(4, 1, 3), params(1), 2_000_000, &weather);
    for told in &report.told {
        let [(at, Told::Failed(Failure::Expired))] = told.as_slice() else { panic!("told {told:?}") };
        assert!((2_000_000..2_020_000).contains(at), "told after {at} us");
    }
}

#[test]
fn one_too_many_is_told_so_at_once() {
    let limits = Limits { origins: 3, ..Limits::default() };
    let report = simulate(&scattered(2, 1, 3), params(1), WHILE, &Weather { limits, ..Weather::default() });
    let refused = report
        .told
        .iter()
        .filter(|t| matches!(t.as_slice(), [(_, Told::Failed(Failure::Overloaded))]))
        .count();
    assert!(refused > 0 && refused < QUERIES, "{refused} refused");
}

#[test]
fn equal_seeds_give_equal_runs() {
    let weather =
        |seed| Weather { seed, drop: 0.05, duplicate: 0.1, link_us: (10, 900), ..Weather::default() };
    let told = |seed| format!("{:?}", simulate(&scattered(5, 1, 3), params(4), WHILE, &weather(seed)));
    assert_eq!(told(7), told(7));
    assert_ne!(told(7), told(8));
}

/// Prices at which everything takes some time.
const COSTS: Costs = Costs {
    threads: 2,
    prepare_ns: 20_000,
    step_ns: 1500,
    read_ns: 4000,
    code_comparison_ps: 8000,
    full_comparison_ps: 12_000,
    message_ns: 6000,
    disk_latency_ns: 90_000,
    disk_iops: 100_000,
    network_latency_ns: 20_000,
    network_bits: 25_000_000_000,
};

fn recorded(placement: &Placement, width: u32) -> (Report, Vec<Trace>) {
    let place = place();
    let cluster = Cluster { view: place.built.index.view(), placement, blocks: place };
    let asked: Vec<Asked<'_>> =
        (0..QUERIES).map(|q| asked(q, (q % placement.servers()) as u8, width)).collect();
    record(&cluster, &asked, &Weather::default())
}

fn asked(q: usize, origin: u8, width: u32) -> Asked<'static> {
    Asked {
        at_us: 50 * q as u64,
        origin,
        vector: place().asked.row(q),
        params: params(width),
        budget: Budget::default(),
        time_us: WHILE,
    }
}

#[track_caller]
fn assert_work(trace: &Trace, stats: &QueryStats, messages: u32) {
    let work = trace.work();
    assert_eq!(u64::from(work.code_comparisons), stats.code_comparisons + stats.rescored);
    assert_eq!(u64::from(work.full_comparisons), stats.full_comparisons);
    assert_eq!(work.messages, messages);
    let reads = trace.tasks().iter().filter(|t| t.1 == Task::Read).count();
    assert_eq!(reads as u64, stats.reads);
}

#[test]
fn a_trace_tells_what_its_query_cost_and_recording_changes_nothing() {
    for (servers, replicas, width) in [(1, 1, 1), (5, 1, 1), (5, 2, 4), (10, 1, 8)] {
        let placement = scattered(servers, replicas, 3);
        let (report, traces) = recorded(&placement, width);
        let plain = simulate(&placement, params(width), WHILE, &Weather::default());
        assert_eq!(format!("{:?}", report.told), format!("{:?}", plain.told));
        let (mut sent, mut messages) = (0u64, 0u64);
        for (q, trace) in traces.iter().enumerate() {
            // Each message was sent and received once.
            let sends = trace.tasks().iter().filter(|t| matches!(t.1, Task::Send { .. })).count();
            assert_work(trace, answer(&report, q).stats(), 2 * sends as u32);
            let bytes = |t: &(u8, Task)| if let Task::Send { bytes } = t.1 { u64::from(bytes) } else { 0 };
            sent += trace.tasks().iter().map(bytes).sum::<u64>();
            messages += sends as u64;
            let by_server = trace.work().prepared;
            assert_eq!(u64::from(by_server), 1 + answer(&report, q).stats().hand_overs);
        }
        assert_eq!(traces.len(), QUERIES);
        assert_eq!(messages, report.batons + report.other_frames);
        assert_eq!(sent, report.baton_bytes + report.vector_bytes + report.other_bytes);
    }
}

#[test]
fn more_servers_take_more_queries_and_a_copy_of_every_block_saves_time() {
    let most = |placement: &Placement| {
        let (_, traces) = recorded(placement, 1);
        let servers = placement.servers();
        replay(&traces, servers, &COSTS, Load::Closed { in_flight: 128 * servers }, 1024 * servers, 1).qps
    };
    let (one, five) = (most(&in_stretches(1)), most(&in_stretches(5)));
    assert!(five > 2.0 * one && five < 5.0 * one, "{one} on one server, {five} on five");
    let alone = |placement: &Placement| {
        let (_, traces) = recorded(placement, 1);
        let timing = replay(&traces, 5, &COSTS, Load::Closed { in_flight: 1 }, 400, 1);
        timing.latency_ns.iter().sum::<u64>() / timing.latency_ns.len() as u64
    };
    let (near, far) = (alone(&scattered(5, 5, 3)), alone(&scattered(5, 1, 3)));
    assert!(near < far, "{near} ns where all is at hand, {far} ns where it is not");
}

#[test]
fn fetching_reads_what_one_server_reads_and_speaks_twice_for_each_far_block() {
    let place = place();
    for (servers, width) in [(1, 1), (6, 1), (6, 4)] {
        let placement = scattered(servers, 1, 3);
        let cluster = Cluster { view: place.built.index.view(), placement: &placement, blocks: place };
        let (report, _) = recorded(&placement, width);
        let mut messages = 0;
        for q in 0..QUERIES {
            let fetched = fetch(&cluster, &asked(q, (q % servers) as u8, width));
            let single = alone(q, params(width));
            assert_eq!((fetched.results.as_slice(), &fetched.stats), (single.results(), single.stats()));
            assert_eq!(fetched.messages, 2 * fetched.fetched);
            assert_eq!(fetched.reads.iter().sum::<u64>(), fetched.stats.reads);
            let far = fetched.reads.iter().sum::<u64>() - fetched.reads[q % servers];
            assert_eq!(fetched.fetched, far);
            assert_work(&fetched.trace, &fetched.stats, 2 * fetched.messages as u32);
            messages += fetched.messages;
        }
        assert_eq!(messages > 0, servers > 1);
        if servers > 1 {
            assert!(
                report.batons < messages,
                "{} hand-overs, {messages} messages of fetching",
                report.batons
            );
        }
    }
}

/// Three indexes, each with a third of the rows; their ids are the rows of the whole.
fn thirds() -> &'static [(Built, Arc<Vec<u8>>)] {
    static PARTS: OnceLock<Vec<(Built, Arc<Vec<u8>>)>> = OnceLock::new();
    let whole = graph_set();
    let size = whole.shape.row_bytes();
    let third = |part: u64| {
        let dir = tempfile::tempdir().unwrap();
        let rows: Vec<u64> = (0..whole.len() as u64).filter(|r| r % 3 == part).collect();
        let ids = dir.path().join("ids.u64bin");
        let header = [rows.len() as u32, 1].map(u32::to_le_bytes).concat();
        let names: Vec<u8> = rows.iter().flat_map(|r| r.to_le_bytes()).collect();
        std::fs::write(&ids, [header, names].concat()).unwrap();
        let bytes = rows.iter().flat_map(|&r| whole.bytes[r as usize * size..][..size].to_vec()).collect();
        let set = Set { shape: Shape { rows: rows.len() as u64, ..whole.shape }, bytes };
        let mut options = quick(Kind::DiskGraph, Metric::L2);
        options.ids = Some(ids);
        let built = Built::new(set, &options);
        let blocks = built.blocks();
        (built, blocks)
    };
    PARTS.get_or_init(|| (0..3).map(third).collect())
}

struct Memory(&'static Built, &'static [u8]);

impl Blocks for Memory {
    fn read(&self, block: u32, out: &mut Vec<u8>) -> bool {
        let size = self.0.index.view().block.block_bytes;
        out.clear();
        out.extend_from_slice(&self.1[block as usize * size..][..size]);
        true
    }
}

fn with_thirds<T>(test: impl FnOnce(&[Partition<'_>]) -> T) -> T {
    let memory: Vec<Memory> = thirds().iter().map(|(built, blocks)| Memory(built, blocks)).collect();
    let parts: Vec<Partition<'_>> =
        memory.iter().map(|m| Partition { view: m.0.index.view(), blocks: m }).collect();
    test(&parts)
}

#[test]
fn asking_all_servers_finds_what_all_rows_hold() {
    let whole = graph_set();
    with_thirds(|partitions| {
        for q in 0..QUERIES {
            let wide = Asked { params: Params::new(10, 900), ..asked(q, (q % 3) as u8, 1) };
            let found = scatter_gather(partitions, &wide);
            let ids: Vec<u64> = found.results.iter().map(|h| h.external_id).collect();
            assert_eq!(ids, common::nearest(&whole, Metric::L2, wide.vector, 10, |_| false), "query {q}");
            assert_eq!((found.outcome, found.messages), (Outcome::Complete, 4));
            assert_work(&found.trace, &found.stats, 8);
            assert!(found.reads.iter().all(|&reads| reads > 0) && found.bytes > 2 * (DIM * 4) as u64);
        }
        let one = scatter_gather(&partitions[..1], &asked(0, 0, 1));
        assert_eq!((one.messages, one.bytes), (0, 0));
    });
}

/// All queries, by the protocol.
fn gathered(partitions: &[Partition<'_>], time_us: u64, weather: &Weather) -> Report {
    let asked: Vec<Asked<'_>> =
        (0..QUERIES).map(|q| Asked { time_us, ..asked(q, (q % partitions.len()) as u8, 1) }).collect();
    let report = run_apart(partitions, &asked, weather);
    assert_eq!(report.left, (0, 0, 0), "seed {}: something is immortal", weather.seed);
    report
}

#[test]
fn the_protocol_gathers_what_asking_all_finds_with_as_many_messages() {
    with_thirds(|partitions| {
        let report = gathered(partitions, WHILE, &Weather::default());
        let mut bytes = 0;
        for q in 0..QUERIES {
            let expected = scatter_gather(partitions, &asked(q, (q % 3) as u8, 1));
            let state = answer(&report, q);
            assert_eq!((state.results(), state.stats()), (expected.results.as_slice(), &expected.stats));
            assert_eq!((state.outcome(), state.stats().hand_overs), (Outcome::Complete, 0));
            bytes += expected.bytes;
        }
        let sent = report.baton_bytes + report.vector_bytes + report.other_bytes;
        assert_eq!((report.batons + report.other_frames, sent), (4 * QUERIES as u64, bytes));
        let one = gathered(&partitions[..1], WHILE, &Weather::default());
        assert_eq!(one.batons + one.other_frames, 0);
    });
}

#[test]
fn what_is_lost_between_servers_is_asked_again() {
    with_thirds(|partitions| {
        for seed in 0..30 {
            let limits = Limits { patience_us: 100_000, attempts: 12, ..Limits::default() };
            let weather = Weather {
                seed,
                link_us: (20, 3000),
                drop: 0.1,
                duplicate: 0.1,
                limits,
                ..Weather::default()
            };
            let report = gathered(partitions, 600_000_000, &weather);
            for q in 0..QUERIES {
                let expected = scatter_gather(partitions, &asked(q, (q % 3) as u8, 1));
                let state = answer(&report, q);
                assert_eq!((state.outcome(), state.results()), (Outcome::Complete, &expected.results[..]));
                // Each part counts once, however often it was asked.
                assert_eq!(state.stats(), &expected.stats, "seed {seed}, query {q}");
            }
        }
        let nothing = gathered(partitions, 2_000_000, &Weather { drop: 1.0, ..Weather::default() });
        assert!(nothing.told.iter().all(|t| matches!(t.as_slice(), [(_, Told::Failed(Failure::Expired))])));
    });
}

#[test]
fn a_server_that_dies_takes_its_rows_with_it_and_answers_say_so() {
    with_thirds(|partitions| {
        let ids =
            |state: &QueryState| -> Vec<u64> { state.results().iter().map(|h| h.external_id).collect() };
        let mut partial = 0;
        for seed in 0..20 {
            let at_us = hash(seed, 3, 0) % 4000;
            let back_at_us = seed.is_multiple_of(2).then_some(at_us + 20_000);
            let crashes = vec![Crash { server: 2, at_us, back_at_us }];
            let report = gathered(partitions, WHILE, &Weather { seed, crashes, ..Weather::default() });
            for q in (0..QUERIES).filter(|q| q % 3 != 2) {
                let state = answer(&report, q);
                let expected = match state.outcome() {
                    Outcome::Complete => scatter_gather(partitions, &asked(q, (q % 3) as u8, 1)),
                    _ => scatter_gather(&partitions[..2], &asked(q, (q % 3) as u8, 1)),
                };
                let all: Vec<u64> = expected.results.iter().map(|h| h.external_id).collect();
                assert_eq!(ids(state), all, "seed {seed}, query {q}");
                assert_eq!(state.outcome() == Outcome::Partial, state.stats().unreachable == 1);
                partial += usize::from(state.outcome() == Outcome::Partial);
            }
        }
        assert!(partial > 20, "{partial} answers lack what a server had");
        // A disk that fails is as bad as a server that does; the answer names the block.
        let weather = Weather { bad_disks: vec![(1, 1.0)], ..Weather::default() };
        let report = gathered(partitions, WHILE, &weather);
        for q in 0..QUERIES {
            let state = answer(&report, q);
            assert_eq!(state.outcome(), Outcome::Partial);
            assert!(state.unreadable().is_some() && ids(state).iter().all(|id| id % 3 != 1));
        }
    });
}
