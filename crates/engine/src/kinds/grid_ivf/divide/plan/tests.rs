use stratann_kernel::{DType, Metric};

use super::super::GridPartition;
use super::*;

/// Lists of 100 members, each visited by as many queries as told; half of the vectors drop out in each group.
fn workload(visits: &[usize], groups: usize) -> Workload {
    let lists: Vec<u32> =
        (0..).zip(visits).flat_map(|(list, &visits)| std::iter::repeat_n(list, visits)).collect();
    Workload {
        queries: lists.len(),
        ends: (1..=lists.len()).collect(),
        members: vec![100; visits.len()],
        lists,
        alive: (0..=groups as i32).map(|group| 0.5f64.powi(group)).collect(),
        component_ns: 1.0,
        prepare_ns: 100.0,
        nprobe: 1,
        k: 10,
        pilot: 0.0,
    }
}

fn layout(dim: usize) -> GridLayout {
    let edges = GridLayout::edges_of(dim);
    GridLayout { dtype: DType::F32, metric: Metric::L2, edges, columns: 1, id_bytes: 4, pilot: 0 }
}

fn told(mode: Mode, (message_ns, byte_ns): (f64, f64)) -> GridPartition {
    GridPartition { mode, message_ns: Some(message_ns), byte_ns: Some(byte_ns), ..GridPartition::default() }
}

fn over(servers: usize, grid: &GridPartition) -> Over<'_> {
    Over { servers, replicas: 1, grid }
}

#[test]
fn dear_messages_ask_for_few_slices_and_hot_lists_for_many() {
    let layout = layout(384);
    let even = workload(&[5; 40], layout.groups());
    let shape = |workload: &Workload, prices| {
        let plan = GridPlan::choose(workload, &layout, over(4, &told(Mode::Harmony, prices))).unwrap();
        assert!(plan.candidates.is_sorted_by(|a, b| a.cost_ms <= b.cost_ms));
        (plan.rows, plan.slices.len() - 1)
    };
    assert_eq!(shape(&even, (50_000.0, 1.0)), (4, 1), "as cheap as can be in messages");
    // One list has nearly all visits: one server would do all work.
    let mut visits = [1; 40];
    visits[7] = 400;
    let hot = workload(&visits, layout.groups());
    let (_, slices) = shape(&hot, (10.0, 0.0));
    assert!(slices > 1);
    // The same load with dear messages stays whole.
    assert_eq!(shape(&hot, (1e9, 1.0)).1, 1);
}

/// The example of §4.2.1: a dimension block costs 20 ms and 30 ms of communication, a vector block 15 ms and 1 ms, and
/// the planner takes fewer slices and more rows.
#[test]
fn the_example_of_the_paper_takes_fewer_slices() {
    let layout = layout(384);
    let workload = workload(&[10; 60], layout.groups());
    let prices = (30.0e3, 0.0);
    let plan = GridPlan::choose(&workload, &layout, over(6, &told(Mode::Harmony, prices))).unwrap();
    let cost = |rows: usize, slices: usize| {
        let found = plan.candidates.iter().find(|c| (c.rows, c.slices) == (rows, slices));
        found.unwrap_or_else(|| panic!("{rows} x {slices}")).cost_ms
    };
    assert!(cost(3, 2) < cost(2, 3) && cost(2, 3) < cost(1, 6));
}

#[test]
fn modes_are_forced_and_what_cannot_be_is_refused() {
    let layout = layout(384);
    let even = workload(&[5; 40], layout.groups());
    let plan = |servers, mode| GridPlan::choose(&even, &layout, over(servers, &told(mode, (1.0, 0.0))));
    assert_eq!(plan(4, Mode::Vector).unwrap().slices.len(), 2);
    assert_eq!(plan(4, Mode::Dimension).unwrap().slices.len(), 5);
    assert!(plan(64, Mode::Vector).unwrap_err().message.contains("fewer servers"), "more than lists");
    assert!(plan(63, Mode::Dimension).is_err(), "more than groups of components");
}

#[test]
fn every_unit_has_its_servers_and_all_servers_their_share() {
    let layout = layout(384);
    let visits: Vec<usize> = (0..50).map(|list| 1 + list % 7).collect();
    let workload = workload(&visits, layout.groups());
    for (servers, replicas) in [(1, 1), (4, 1), (4, 2), (6, 3), (8, 8), (7, 2)] {
        for mode in [Mode::Harmony, Mode::Vector, Mode::Dimension] {
            let told = told(mode, (1.0, 0.0));
            let over = Over { replicas, ..over(servers, &told) };
            let plan = GridPlan::choose(&workload, &layout, over).unwrap();
            let placement = plan.placement(over).unwrap();
            let slices = plan.slices.len() - 1;
            let mut held = vec![0.0; servers];
            for (unit, &on) in placement.all().iter().enumerate() {
                let within = unit % (slices + 1);
                if within == 0 {
                    let all = placement.all()[unit + 1..=unit + slices].iter().fold(0, |all, on| all | on);
                    assert_eq!(on, all, "a head is where slices are");
                    continue;
                }
                assert_eq!(on.count_ones() as usize, replicas);
                let edges = &layout.edges;
                let width = edges[plan.slices[within] as usize] - edges[plan.slices[within - 1] as usize];
                (0..servers).filter(|s| on >> s & 1 == 1).for_each(|s| held[s] += f64::from(width));
            }
            let mean = held.iter().sum::<f64>() / servers as f64;
            assert!(held.iter().all(|&held| held <= 1.35 * mean), "{mode:?} {servers}: {held:?} {slices}");
        }
    }
}
