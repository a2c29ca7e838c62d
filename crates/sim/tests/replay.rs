//! Invariants of traces and of their replay: conservation, limits, determinism.

use stratann_sim::{Costs, Draft, Load, Task, Timing, Trace, Work, replay};

/// Costs of zero; tests change some of them.
const FREE: Costs = Costs {
    threads: 1,
    prepare_ns: 0,
    step_ns: 0,
    read_ns: 0,
    route_comparison_ps: 0,
    code_comparison_ps: 0,
    full_comparison_ps: 0,
    component_ps: 0,
    scorer_job_ns: 0,
    scorer_code_ps: 0,
    message_ns: 0,
    message_byte_ps: 0,
    wake_ns: 0,
    request_ns: 0,
    servers_per_host: 1,
    cores_per_host: 0,
    disk_latency_ns: 0,
    disk_iops: 0,
    disk_bytes_per_s: 0,
    network_latency_ns: 0,
    network_bits: 0,
};

/// `rounds` of a step and then `width` reads, all on one server.
fn rounds(server: u8, rounds: usize, width: usize) -> Trace {
    let (mut draft, mut tail) = (Draft::default(), Vec::new());
    let step = Task::Think(Work { steps: 1, code_comparisons: 100, ..Work::default() });
    for _ in 0..rounds {
        let thought = draft.add(server, step, &tail);
        tail = (0..width).map(|_| draft.add(server, Task::Read { bytes: 4096 }, &[thought])).collect();
    }
    let last = draft.add(server, step, &tail);
    draft.finish(last)
}

fn closed(traces: &[Trace], servers: usize, costs: &Costs, in_flight: usize) -> Timing {
    replay(traces, servers, costs, Load::Closed { in_flight }, 20 * in_flight.max(50), 1)
}

fn open(traces: &[Trace], costs: &Costs, per_second: f64, seed: u64) -> Timing {
    replay(traces, 1, costs, Load::Open { per_second }, 20_000, seed)
}

#[track_caller]
fn assert_near(found: f64, expected: f64, share: f64) {
    assert!((found / expected - 1.0).abs() <= share, "{found}, expected {expected}");
}

#[test]
fn work_is_priced_by_its_counts() {
    let costs = Costs {
        prepare_ns: 1000,
        step_ns: 100,
        read_ns: 10,
        route_comparison_ps: 9000,
        code_comparison_ps: 2500,
        full_comparison_ps: 500,
        component_ps: 200,
        message_ns: 7,
        message_byte_ps: 250,
        request_ns: 20_000,
        ..FREE
    };
    let searched = Work {
        prepared: 1,
        steps: 2,
        route_comparisons: 3,
        code_comparisons: 4,
        full_comparisons: 6,
        components: 1000,
        reads: 3,
        ..Work::default()
    };
    assert_eq!(costs.work_ns(&searched), 1000 + 200 + 30 + (27_000 + 10_000 + 3000 + 200_000) / 1000);
    let exchanged = Work { messages: 5, message_bytes: 400, requests: 2, ..Work::default() };
    assert_eq!(costs.work_ns(&exchanged), 35 + 100 + 40_000);
    let mut both = searched;
    both.add(&exchanged);
    assert_eq!(costs.work_ns(&both), costs.work_ns(&searched) + costs.work_ns(&exchanged));
}

#[test]
fn a_thread_answers_one_query_in_what_a_query_costs() {
    // Eleven steps of 700 ns and 1,100 comparisons of 3 ns.
    let costs = Costs { step_ns: 700, code_comparison_ps: 3000, disk_latency_ns: 50_000, ..FREE };
    let query_ns = 11.0 * (700.0 + 300.0);
    for (threads, servers) in [(1, 1), (4, 1), (2, 3)] {
        let traces: Vec<Trace> = (0..servers as u8).map(|s| rounds(s, 10, 2)).collect();
        let costs = Costs { threads, ..costs };
        let timing = closed(&traces, servers, &costs, 200 * threads * servers);
        let most = (threads * servers) as f64 * 1e9 / query_ns;
        assert_near(timing.qps, most, 0.02);
        assert_near(timing.busiest().cpu, 1.0, 0.02);
        assert_eq!(timing.busiest().bottleneck(), "cpu");
    }
    // One at a time: nothing waits, and the rate is exact.
    let one = closed(&[rounds(0, 10, 2)], 1, &costs, 1);
    let alone_ns = query_ns as u64 + 10 * 50_000;
    assert!(one.latency_ns.iter().all(|&ns| ns == alone_ns), "{:?}", &one.latency_ns[..3]);
    assert_near(one.qps, 1e9 / alone_ns as f64, 1e-12);
    assert_near(one.busiest().cpu, query_ns / alone_ns as f64, 1e-3);
}

#[test]
fn a_query_of_one_task_at_the_price_c_has_the_rate_1_over_c() {
    let mut draft = Draft::default();
    let only = draft.add(0, Task::Think(Work { steps: 1, ..Work::default() }), &[]);
    let trace = draft.finish(only);
    for in_flight in [1, 3, 17] {
        let timing = closed(std::slice::from_ref(&trace), 1, &Costs { step_ns: 12_345, ..FREE }, in_flight);
        assert_near(timing.qps, 1e9 / 12_345.0, 1e-12);
    }
}

#[test]
fn a_disk_begins_no_more_reads_than_it_can() {
    let costs = Costs { step_ns: 10, disk_latency_ns: 80_000, disk_iops: 20_000, ..FREE };
    let trace = [rounds(0, 5, 4)];
    let timing = closed(&trace, 1, &costs, 100);
    assert_near(timing.qps, 20_000.0 / 20.0, 0.01);
    assert_eq!(timing.busiest().bottleneck(), "disk");
    assert_near(timing.busiest().disk, 1.0, 0.001);
    // Alone, four reads of a round begin 50 us apart, and the last takes 80 us.
    let one = closed(&trace, 1, &costs, 1);
    assert!(one.latency_ns.iter().all(|&ns| ns == 5 * (3 * 50_000 + 80_000) + 60), "{}", one.latency_ns[0]);
    // Without a limit they begin together.
    let free = closed(&trace, 1, &Costs { disk_iops: 0, ..costs }, 1);
    assert!(free.latency_ns.iter().all(|&ns| ns == 5 * 80_000 + 60), "{}", free.latency_ns[0]);
}

#[test]
fn a_link_sends_one_message_after_another() {
    let mut draft = Draft::default();
    let begun = draft.add(0, Task::Think(Work::default()), &[]);
    let sent: Vec<u32> = (0..3).map(|_| draft.add(0, Task::Send { bytes: 1250 }, &[begun])).collect();
    let merged = draft.add(1, Task::Think(Work { messages: 3, ..Work::default() }), &sent);
    let trace = [draft.finish(merged)];
    let costs = Costs { network_bits: 1_000_000_000, network_latency_ns: 5000, message_ns: 100, ..FREE };
    let one = closed(&trace, 2, &costs, 1);
    assert!(one.latency_ns.iter().all(|&ns| ns == 3 * 10_000 + 5000 + 300), "{}", one.latency_ns[0]);
    let many = closed(&trace, 2, &costs, 50);
    assert_near(many.qps, 1e9 / 30_000.0, 0.001);
    assert_eq!(many.busiest().bottleneck(), "network");
    assert!(many.servers[1].network == 0.0 && many.servers[1].cpu > 0.0, "{:?}", many.servers);
}

#[test]
fn random_arrivals_wait_as_in_an_m_d_1_queue() {
    // One thread, a fixed service time, Poisson arrivals: an M/D/1 queue. Its mean wait is u / (2 (1 − u)) services.
    let mut draft = Draft::default();
    let only = draft.add(0, Task::Think(Work { steps: 1, ..Work::default() }), &[]);
    let trace = [draft.finish(only)];
    let costs = Costs { step_ns: 10_000, ..FREE };
    for utilisation in [0.2, 0.5, 0.8] {
        let timing = open(&trace, &costs, utilisation * 1e5, 3);
        assert_near(timing.qps, utilisation * 1e5, 0.03);
        assert_near(timing.busiest().cpu, utilisation, 0.03);
        let mean = timing.latency_ns.iter().sum::<u64>() as f64 / timing.latency_ns.len() as f64;
        assert_near(mean, 10_000.0 * (1.0 + utilisation / (2.0 * (1.0 - utilisation))), 0.08);
    }
}

#[test]
fn equal_seeds_give_equal_times() {
    let traces = [rounds(0, 4, 2), rounds(0, 9, 1)];
    let costs = Costs { step_ns: 3000, disk_latency_ns: 70_000, disk_iops: 90_000, threads: 2, ..FREE };
    assert_eq!(open(&traces, &costs, 8000.0, 7), open(&traces, &costs, 8000.0, 7));
    assert_ne!(open(&traces, &costs, 8000.0, 7), open(&traces, &costs, 8000.0, 8));
    assert_eq!(closed(&traces, 1, &costs, 40), closed(&traces, 1, &costs, 40));
}

#[test]
fn nothing_to_replay_takes_no_time() {
    let timing = replay(&[], 2, &FREE, Load::Closed { in_flight: 5 }, 10, 1);
    assert_eq!((timing.qps, timing.ended_ns), (0.0, 0));
    let timing = closed(&[rounds(9, 1, 1)], 1, &FREE, 1);
    assert_eq!(timing.ended_ns, 0, "a server that is not there does nothing");
}

/// A trace of reads of `bytes` each, one after the other.
fn reads_of(bytes: u32) -> Trace {
    let mut draft = Draft::default();
    let mut tail = vec![draft.add(0, Task::Think(Work::default()), &[])];
    for _ in 0..4 {
        tail = vec![draft.add(0, Task::Read { bytes }, &tail)];
    }
    draft.finish(tail[0])
}

#[test]
fn a_read_takes_its_share_of_operations_and_of_bytes() {
    let costs = Costs { disk_latency_ns: 80_000, disk_iops: 50_000, disk_bytes_per_s: 1_000_000_000, ..FREE };
    let (mut last_qps, mut last_ns) = (f64::INFINITY, 0);
    for bytes in [4096, 8192, 65_536, 131_072, 1 << 20] {
        let busy = closed(&[reads_of(bytes)], 1, &costs, 100);
        let gap_ns = 20_000.0 + f64::from(bytes - 4096);
        assert_near(busy.qps, 1e9 / (4.0 * gap_ns), 0.01);
        assert!(busy.qps < last_qps, "{bytes}");
        let alone = closed(&[reads_of(bytes)], 1, &costs, 1);
        let alone_ns = 4 * (80_000 + u64::from(bytes - 4096));
        assert!(alone.latency_ns.iter().all(|&ns| ns == alone_ns), "{bytes}: {:?}", &alone.latency_ns[..3]);
        assert!(alone_ns > last_ns);
        (last_qps, last_ns) = (busy.qps, alone_ns);
        // Without a bandwidth every read costs what a page costs.
        let free = Costs { disk_bytes_per_s: 0, ..costs };
        let page = closed(&[reads_of(4096)], 1, &free, 100);
        assert_eq!(closed(&[reads_of(bytes)], 1, &free, 100), page);
    }
}

#[test]
fn servers_of_one_host_share_its_cores_and_its_disk() {
    let traces: Vec<Trace> = (0..4).map(|server| rounds(server, 10, 2)).collect();
    let costs = Costs { step_ns: 10_000, ..FREE };
    let apart = closed(&traces, 4, &costs, 200);
    let together = Costs { servers_per_host: 4, cores_per_host: 2, ..costs };
    let shared = closed(&traces, 4, &together, 200);
    assert_near(apart.qps / shared.qps, 2.0, 0.02);
    assert_near(shared.busiest().cpu, 1.0, 0.02);
    assert_eq!(shared, closed(&traces, 4, &together, 200));
    // With a core for each thread nothing is lost.
    let enough = Costs { servers_per_host: 4, cores_per_host: 0, ..costs };
    assert_near(closed(&traces, 4, &enough, 200).qps, apart.qps, 0.02);
    // One disk in place of four.
    let read = Costs { disk_iops: 20_000, step_ns: 10, ..FREE };
    let [four, one] = [1, 4].map(|servers_per_host| Costs { servers_per_host, ..read });
    assert_near(closed(&traces, 4, &four, 200).qps / closed(&traces, 4, &one, 200).qps, 4.0, 0.05);
}

#[test]
fn messages_need_a_core_and_no_search_thread() {
    let mut draft = Draft::default();
    let asked = draft.add(0, Task::Think(Work { requests: 1, ..Work::default() }), &[]);
    let searched = draft.add(0, Task::Think(Work { steps: 1, ..Work::default() }), &[asked]);
    let trace = [draft.finish(searched)];
    let costs = Costs { request_ns: 10_000, step_ns: 10_000, ..FREE };
    let one = closed(&trace, 1, &costs, 100);
    assert_near(one.qps, 1e9 / 20_000.0, 0.02);
    // A second core is for the messages, since there is one search thread.
    let two = closed(&trace, 1, &Costs { cores_per_host: 2, ..costs }, 100);
    assert_near(two.qps, 1e9 / 10_000.0, 0.02);
    let three = closed(&trace, 1, &Costs { cores_per_host: 3, ..costs }, 100);
    assert_near(three.qps, 1e9 / 10_000.0, 0.02);
}

#[test]
fn a_thread_that_waits_is_woken_and_one_at_work_is_not() {
    let costs = Costs { step_ns: 1000, wake_ns: 500, disk_latency_ns: 80_000, ..FREE };
    let trace = [rounds(0, 10, 1)];
    // Alone, every step comes after a wait, but for the first one of the run.
    let alone = closed(&trace, 1, &costs, 1);
    assert!(alone.wakes_ns > 4900.0 && alone.wakes_ns <= 5500.0, "{}", alone.wakes_ns);
    let expected = 11 * 1000 + 10 * (80_000 + 500);
    assert!(alone.latency_ns.iter().all(|&ns| ns == expected), "{:?}", &alone.latency_ns[..3]);
    let busy = closed(&trace, 1, &costs, 1000);
    assert!(busy.wakes_ns < 50.0, "{}", busy.wakes_ns);
}
