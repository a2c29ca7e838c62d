//! Traces and their replay, and the two other ways to search on several servers: fetching remote blocks, and
//! scatter-gather.

mod fixture;

use fixture::common::{self, Built, graph_set, quick};
use fixture::{
    DIM, LONG_US, Memory, QUERIES, alone, answer, in_stretches, params, place, scattered, simulate,
    submitted, with_thirds,
};
use stratann_core::hash::hash;
use stratann_core::peer::{Failure, Limits};
use stratann_core::place::Placement;
use stratann_core::query::{Budget, Outcome, Params, QueryState, QueryStats};
use stratann_engine::build::IndexKind;
use stratann_kernel::Metric;
use stratann_sim::{
    Cluster, Costs, Crash, FaultModel, Left, Load, Part, Partition, Reply, Report, SubmittedQuery, Task,
    Trace, fetch, record, replay, run_parts, scatter_gather,
};

/// Prices: everything takes some time.
const COSTS: Costs = Costs {
    threads: 2,
    prepare_ns: 20_000,
    step_ns: 1500,
    read_ns: 4000,
    route_comparison_ps: 8000,
    code_comparison_ps: 8000,
    full_comparison_ps: 12_000,
    component_ps: 300,
    scorer_job_ns: 0,
    scorer_code_ps: 0,
    message_ns: 6000,
    message_byte_ps: 0,
    wake_ns: 0,
    request_ns: 0,
    servers_per_host: 1,
    cores_per_host: 0,
    disk_latency_ns: 90_000,
    disk_iops: 100_000,
    disk_bytes_per_s: 0,
    network_latency_ns: 20_000,
    network_bits: 25_000_000_000,
};

fn recorded(placement: &Placement, width: u32) -> (Report, Vec<Trace>) {
    let place = place();
    let cluster = Cluster { view: place.built.index.view(), placement, stores: place };
    let queries = submitted(place, placement.servers(), params(width), LONG_US);
    record(&cluster, &queries, &FaultModel::default())
}

fn query(q: usize, origin: u8, width: u32) -> SubmittedQuery<'static> {
    SubmittedQuery {
        at_us: 50 * q as u64,
        origin,
        vector: place().queries.row(q),
        params: params(width),
        budget: Budget::default(),
        time_us: LONG_US,
    }
}

#[track_caller]
fn assert_work(trace: &Trace, stats: &QueryStats, messages: u32) {
    let work = trace.work();
    assert_eq!(
        u64::from(work.route_comparisons + work.code_comparisons),
        stats.code_comparisons + stats.rescored
    );
    assert_eq!(u64::from(work.full_comparisons), stats.full_comparisons);
    assert_eq!(work.messages, messages);
    let reads = trace.tasks().iter().filter(|t| matches!(t.1, Task::Read { .. })).count();
    assert_eq!(reads as u64, stats.reads);
}

#[test]
fn a_trace_has_the_costs_of_its_query_and_recording_changes_nothing() {
    for (servers, replicas, width) in [(1, 1, 1), (5, 1, 1), (5, 2, 4), (10, 1, 8)] {
        let placement = scattered(servers, replicas, 3);
        let (report, traces) = recorded(&placement, width);
        let plain = simulate(&placement, params(width), LONG_US, &FaultModel::default());
        assert_eq!(format!("{:?}", report.replies), format!("{:?}", plain.replies));
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
fn more_servers_answer_more_queries_and_replicas_save_time() {
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
    assert!(near < far, "{near} ns with all blocks local, {far} ns without");
}

#[test]
fn fetching_reads_as_one_server_does_and_sends_two_messages_for_each_remote_block() {
    let place = place();
    for (servers, width) in [(1, 1), (6, 1), (6, 4)] {
        let placement = scattered(servers, 1, 3);
        let cluster = Cluster { view: place.built.index.view(), placement: &placement, stores: place };
        let (report, _) = recorded(&placement, width);
        let mut messages = 0;
        for q in 0..QUERIES {
            let fetched = fetch(&cluster, &query(q, (q % servers) as u8, width));
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

#[test]
fn scatter_gather_finds_the_nearest_of_all_rows() {
    let whole = graph_set();
    with_thirds(|partitions| {
        for q in 0..QUERIES {
            let wide = SubmittedQuery { params: Params::disk_graph(10, 900), ..query(q, (q % 3) as u8, 1) };
            let found = scatter_gather(partitions, &wide);
            let ids: Vec<u64> = found.results.iter().map(|h| h.external_id).collect();
            assert_eq!(ids, common::nearest(&whole, Metric::L2, wide.vector, 10, |_| false), "query {q}");
            assert_eq!((found.outcome, found.messages), (Outcome::Complete, 4));
            assert_work(&found.trace, &found.stats, 8);
            assert!(found.reads.iter().all(|&reads| reads > 0) && found.bytes > 2 * (DIM * 4) as u64);
        }
        let one = scatter_gather(&partitions[..1], &query(0, 0, 1));
        assert_eq!((one.messages, one.bytes), (0, 0));
    });
}

/// All queries, by the protocol.
fn gathered(partitions: &[Partition<'_>], time_us: u64, faults: &FaultModel) -> Report {
    let queries: Vec<SubmittedQuery<'_>> = (0..QUERIES)
        .map(|q| SubmittedQuery { time_us, ..query(q, (q % partitions.len()) as u8, 1) })
        .collect();
    let parts: Vec<Part<'_>> = partitions.iter().map(|&partition| Part::Whole(partition, 1)).collect();
    let report = run_parts(&parts, &queries, faults);
    assert_eq!(report.left, Left::default(), "seed {}: something is never freed", faults.seed);
    report
}

#[test]
fn the_protocol_gathers_the_same_with_as_many_messages() {
    with_thirds(|partitions| {
        let report = gathered(partitions, LONG_US, &FaultModel::default());
        let mut bytes = 0;
        for q in 0..QUERIES {
            let expected = scatter_gather(partitions, &query(q, (q % 3) as u8, 1));
            let state = answer(&report, q);
            assert_eq!((state.results(), state.stats()), (expected.results.as_slice(), &expected.stats));
            assert_eq!((state.outcome(), state.stats().hand_overs), (Outcome::Complete, 0));
            bytes += expected.bytes;
        }
        let sent = report.baton_bytes + report.vector_bytes + report.other_bytes;
        assert_eq!((report.batons + report.other_frames, sent), (4 * QUERIES as u64, bytes));
        let one = gathered(&partitions[..1], LONG_US, &FaultModel::default());
        assert_eq!(one.batons + one.other_frames, 0);
    });
}

#[test]
fn lost_parts_are_asked_again() {
    with_thirds(|partitions| {
        for seed in 0..30 {
            let limits = Limits { patience_us: 100_000, attempts: 12, ..Limits::default() };
            let faults = FaultModel {
                seed,
                link_us: (20, 3000),
                drop: 0.1,
                duplicate: 0.1,
                limits,
                ..FaultModel::default()
            };
            let report = gathered(partitions, 600_000_000, &faults);
            for q in 0..QUERIES {
                let expected = scatter_gather(partitions, &query(q, (q % 3) as u8, 1));
                let state = answer(&report, q);
                assert_eq!((state.outcome(), state.results()), (Outcome::Complete, &expected.results[..]));
                // Each part counts once, however often it was asked.
                assert_eq!(state.stats(), &expected.stats, "seed {seed}, query {q}");
            }
        }
        let nothing = gathered(partitions, 2_000_000, &FaultModel { drop: 1.0, ..FaultModel::default() });
        assert!(
            nothing.replies.iter().all(|t| matches!(t.as_slice(), [(_, Reply::Failed(Failure::Expired))]))
        );
    });
}

#[test]
fn without_a_dead_server_answers_are_partial() {
    with_thirds(|partitions| {
        let ids =
            |state: &QueryState| -> Vec<u64> { state.results().iter().map(|h| h.external_id).collect() };
        let mut partial = 0;
        for seed in 0..20 {
            let at_us = hash(seed, 3, 0) % 4000;
            let back_at_us = seed.is_multiple_of(2).then_some(at_us + 20_000);
            let crashes = vec![Crash { server: 2, at_us, back_at_us }];
            let report =
                gathered(partitions, LONG_US, &FaultModel { seed, crashes, ..FaultModel::default() });
            for q in (0..QUERIES).filter(|q| q % 3 != 2) {
                let state = answer(&report, q);
                let expected = match state.outcome() {
                    Outcome::Complete => scatter_gather(partitions, &query(q, (q % 3) as u8, 1)),
                    _ => scatter_gather(&partitions[..2], &query(q, (q % 3) as u8, 1)),
                };
                let all: Vec<u64> = expected.results.iter().map(|h| h.external_id).collect();
                assert_eq!(ids(state), all, "seed {seed}, query {q}");
                assert_eq!(state.outcome() == Outcome::Partial, state.stats().unreachable == 1);
                partial += usize::from(state.outcome() == Outcome::Partial);
            }
        }
        assert!(partial > 20, "{partial} answers lack what a server had");
        // A failing disk counts as a failing server; the answer names the block.
        let faults = FaultModel { bad_disks: vec![(1, 1.0)], ..FaultModel::default() };
        let report = gathered(partitions, LONG_US, &faults);
        for q in 0..QUERIES {
            let state = answer(&report, q);
            assert_eq!(state.outcome(), Outcome::Partial);
            assert!(state.unreadable().is_some() && ids(state).iter().all(|id| id % 3 != 1));
        }
    });
}

/// Two servers with the same index of any kind: queries and answers of that kind go over the wire, and every result is
/// found twice and given once.
#[test]
fn every_kind_runs_through_protocol_and_simulator() {
    for kind in IndexKind::ALL {
        let built = Built::new(graph_set(), &quick(kind, Metric::L2));
        let file = match kind {
            IndexKind::Flat | IndexKind::DiskGraph | IndexKind::GpuIvf => "v1-blocks.bin",
            IndexKind::HybridIvf => "v1-lists.bin",
            IndexKind::GridIvf => "v1-grid.bin",
            IndexKind::RemoteHnsw => "v1-region.bin",
        };
        let file = std::fs::read(built.dir.path().join(file)).unwrap();
        let view = built.index.view();
        let params = match kind {
            IndexKind::Flat => Params::flat(10),
            IndexKind::DiskGraph => Params::disk_graph(10, 60),
            IndexKind::HybridIvf => Params::hybrid_ivf(10, 6),
            IndexKind::GridIvf => Params::grid_ivf(10, 6),
            IndexKind::GpuIvf => Params::gpu_ivf(10, 20),
            IndexKind::RemoteHnsw => Params::remote_hnsw(10, 6),
        };
        let memory = Memory(&file);
        let partition = Partition { view, stores: &memory };
        let queries: Vec<SubmittedQuery<'_>> = submitted(place(), 2, params, LONG_US)
            .into_iter()
            .map(|query| SubmittedQuery { budget: view.budget(), ..query })
            .collect();
        let report = run_parts(&[Part::Whole(partition, 1); 2], &queries, &FaultModel::default());
        assert_eq!((report.left, report.refused), (Left::default(), 0));
        for (q, query) in queries.iter().enumerate() {
            let alone = common::run_plain(&view, &file, query.vector, params, view.budget(), 1);
            let state = answer(&report, q);
            assert_eq!(state.outcome(), Outcome::Complete, "query {q}");
            assert_eq!(state.results(), alone.results());
            let mut sum = *alone.stats();
            sum.add(alone.stats());
            assert_eq!(*state.stats(), sum, "query {q}");
            assert!(sum.reads + sum.shared_reads > 0 || sum.components > 0);
        }
    }
}

/// A server of another kind of index refuses the queries, although build and version are the same.
#[test]
fn queries_of_another_kind_are_refused_and_fail_at_their_deadline() {
    let flat = Built::new(graph_set(), &quick(IndexKind::Flat, Metric::L2));
    let flat_file = flat.blocks();
    let place = place();
    let partitions = [
        Partition { view: place.built.index.view(), stores: place },
        Partition { view: flat.index.view(), stores: &Memory(&flat_file) },
    ];
    let queries = submitted(place, 1, params(1), 200_000);
    let report = run_parts(&partitions.map(|p| Part::Whole(p, 1)), &queries, &FaultModel::default());
    assert!(report.refused >= QUERIES as u64, "{} frames refused", report.refused);
    assert_eq!(report.left, Left::default());
    for replies in &report.replies {
        assert!(matches!(replies.as_slice(), [(_, Reply::Failed(Failure::Expired))]), "{replies:?}");
    }
}
