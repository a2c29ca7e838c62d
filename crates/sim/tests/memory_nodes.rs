//! Batches on compute nodes and memory nodes: times computed by hand.
#![allow(missing_docs)]

use stratann_sim::{BatchLoad, BatchTrace, Fleet, LoadCosts, LoadTiming, replay_loads};

/// A byte takes 1 ns on a link, a comparison 10 ns, a round trip 1,000 ns.
const COSTS: LoadCosts = LoadCosts {
    meta_comparison_ps: 1000,
    comparison_ps: 10_000,
    load_byte_ps: 0,
    range_ns: 0,
    latency_ns: 500,
    bits: 8_000_000_000,
};
const FLEET: Fleet = Fleet {
    compute_nodes: 1,
    memory_nodes: 1,
    workers: 1,
    threads: 1,
    clients: 1,
    overlaps: true,
    rounds: 4,
};

fn load(bytes: u32, searches: &[(u32, u32)]) -> BatchLoad {
    BatchLoad { node: 0, bytes, searches: searches.to_vec() }
}

fn batch(queries: usize, doorbells: &[&[BatchLoad]]) -> BatchTrace {
    let doorbells = doorbells.iter().map(|loads| loads.to_vec()).collect();
    BatchTrace { headers_bytes: 0, queries: vec![0; queries], doorbells }
}

fn run(batch: &BatchTrace, costs: &LoadCosts, fleet: Fleet) -> LoadTiming {
    let timing = replay_loads(&[vec![batch.clone()]], costs, fleet);
    assert_eq!(timing, replay_loads(&[vec![batch.clone()]], costs, fleet), "equal traces give equal times");
    timing
}

fn batch_ns(batch: &BatchTrace, costs: &LoadCosts, fleet: Fleet) -> u64 {
    let times = run(batch, costs, fleet).batch_ns;
    assert!(times.iter().all(|&ns| ns == times[0]), "{times:?}");
    times[0]
}

#[test]
fn a_doorbell_takes_a_round_trip_its_bytes_and_its_search() {
    let own = batch(1, &[&[load(4000, &[(0, 300)])]]);
    assert_eq!(batch_ns(&own, &COSTS, FLEET), 1000 + 4000 + 3000);
    // Headers are read first, then clusters are chosen. What the cache has is searched during the first doorbell.
    let cached = load(0, &[(0, 5)]);
    let more =
        BatchTrace { headers_bytes: 200, queries: vec![70], ..batch(1, &[&[cached], &own.doorbells[0]]) };
    assert_eq!(batch_ns(&more, &COSTS, FLEET), 1200 + 70 + 8000);
    assert_eq!(batch_ns(&more, &COSTS, Fleet { overlaps: false, ..FLEET }), 1200 + 70 + 50 + 8000);
    let timing = run(&more, &COSTS, FLEET);
    let spent = timing.spent;
    assert_eq!((spent.all_ns, spent.meta_ns), (4 * 9270, 4 * 70));
    assert_eq!((spent.transfer_ns, spent.search_ns, spent.both_ns), (4 * 6200, 4 * 3050, 4 * 50));
    assert_eq!(timing.qps, 1e9 / 9270.0);
    // Ranges and bytes that are taken in have prices.
    let costs = LoadCosts { range_ns: 30, load_byte_ps: 500, ..COSTS };
    assert_eq!(batch_ns(&own, &costs, FLEET), 1000 + 30 + 4000 + 2000 + 3000);
}

#[test]
fn overlap_reads_a_doorbell_while_the_one_before_is_searched() {
    let loads = [load(4000, &[(0, 300)])];
    let own = batch(1, &[&loads, &loads, &loads]);
    let apart = Fleet { overlaps: false, ..FLEET };
    assert_eq!(batch_ns(&own, &COSTS, apart), 3 * 8000);
    // The second follows the first on the link: both are there at 5,000 and 9,000. The third begins at 8,000, when the
    // first is searched, and is there at 13,000; so searches end at 8,000, 12,000 and 16,000.
    assert_eq!(batch_ns(&own, &COSTS, FLEET), 16_000);
    let timing = run(&own, &COSTS, FLEET);
    assert_eq!((timing.spent.transfer_ns, timing.spent.search_ns), (4 * 13_000, 4 * 9000));
    // Searches before 13,000 are hidden.
    assert_eq!(timing.spent.both_ns, 4 * 6000);
    assert_eq!(run(&own, &COSTS, apart).spent.hidden(), 0.0);
}

#[test]
fn memory_for_two_doorbells_is_all_there_is() {
    // Searches of 40,000 ns: the third doorbell begins when the first has been searched, not when it has arrived.
    let loads = [load(4000, &[(0, 4000)])];
    let own = batch(1, &[&loads, &loads, &loads]);
    assert_eq!(batch_ns(&own, &COSTS, FLEET), 5000 + 3 * 40_000);
    let timing = run(&own, &COSTS, FLEET);
    assert_eq!(timing.spent.transfer_ns, 4 * (9000 + 5000));
    assert_eq!(timing.bottleneck(), "processors of the compute nodes");
}

#[test]
fn compute_nodes_share_the_link_of_a_memory_node() {
    // No latency and hardly any search: the link does nothing but send.
    let costs = LoadCosts { latency_ns: 0, ..COSTS };
    let own = batch(10, &[&[load(10_000, &[(0, 1)])]]);
    let of = |compute_nodes, memory_nodes| {
        let fleet = Fleet { compute_nodes, memory_nodes, clients: compute_nodes, rounds: 20, ..FLEET };
        run(&own, &costs, fleet)
    };
    let (one, two) = (of(1, 1), of(2, 1));
    assert_eq!(one.batch_ns[0], 10_010);
    assert_eq!(two.batch_ns.iter().max(), Some(&20_000), "each gets half of the link");
    assert!((two.qps / 1e6 - 1.0).abs() < 1e-3 && two.qps >= one.qps, "{} {}", one.qps, two.qps);
    assert!(two.memory_links[0] > 0.999, "{two:?}");
    assert_eq!(two.bottleneck(), "link of memory node 0");
    // With a link each they do not wait for each other.
    let halves = [load(5000, &[(0, 1)]), BatchLoad { node: 1, ..load(5000, &[]) }];
    let fleet = Fleet { compute_nodes: 2, memory_nodes: 2, clients: 2, rounds: 20, ..FLEET };
    let apart = run(&batch(10, &[&halves]), &costs, fleet);
    assert!(apart.qps > 0.99 * two.qps, "{} {}", apart.qps, two.qps);
    assert_eq!(apart.memory_links.len(), 2);
}

#[test]
fn a_compute_node_receives_no_faster_than_its_own_link() {
    let halves = [load(5000, &[]), BatchLoad { node: 1, ..load(5000, &[]) }];
    let fleet = Fleet { memory_nodes: 2, ..FLEET };
    assert_eq!(batch_ns(&batch(1, &[&halves]), &COSTS, fleet), 1000 + 10_000);
}

#[test]
fn more_compute_nodes_answer_no_fewer_queries() {
    let loads = [load(3000, &[(0, 200), (1, 100)]), load(1000, &[(1, 500)])];
    let own = BatchTrace { headers_bytes: 100, queries: vec![50; 2], ..batch(2, &[&loads, &loads]) };
    let mut before = 0.0;
    for compute_nodes in [1, 2, 4, 8, 16] {
        let timing = run(&own, &COSTS, Fleet { compute_nodes, clients: 48, rounds: 20, ..FLEET });
        assert!(timing.qps > 0.999 * before, "{compute_nodes}: {} after {before}", timing.qps);
        assert!(timing.processors <= 1.0 && timing.memory_links[0] <= 1.0, "{timing:?}");
        before = timing.qps;
    }
}

#[test]
fn threads_divide_the_searches_and_workers_the_batches() {
    let own = batch(4, &[&[load(1000, &[(0, 100), (1, 100), (2, 100), (3, 100)])]]);
    assert_eq!(batch_ns(&own, &COSTS, FLEET), 2000 + 4000);
    assert_eq!(batch_ns(&own, &COSTS, Fleet { threads: 2, ..FLEET }), 2000 + 2000);
    assert_eq!(run(&own, &COSTS, Fleet { threads: 3, ..FLEET }).query_ns[..4], [3000, 3000, 3000, 4000]);
    // Two clients of one worker wait for each other; those of two workers for the link alone.
    let two = Fleet { clients: 2, rounds: 20, ..FLEET };
    assert_eq!(batch_ns(&own, &COSTS, two), 2 * 6000);
    let apart = run(&own, &COSTS, Fleet { workers: 2, ..two });
    assert!(apart.qps > 1.9 * run(&own, &COSTS, two).qps, "{}", apart.qps);
    let lazy = run(&own, &COSTS, Fleet { workers: 2, threads: 4, ..two });
    assert_eq!(lazy.bottleneck(), "waiting within batches");
    assert_eq!(replay_loads(&[], &COSTS, FLEET), LoadTiming::default());
}
