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
        weights: vec![],
    }
}

fn layout(dim: usize) -> GridLayout {
    let edges = GridLayout::edges_of(dim);
    GridLayout { dtype: DType::F32, metric: Metric::L2, edges, columns: 1, id_bytes: 4, pilot: 0, code: None }
}

fn partition_at(mode: Mode, (message_ns, byte_ns): (f64, f64)) -> GridPartition {
    let prices =
        GridPartition { message_ns: Some(message_ns), byte_ns: Some(byte_ns), ..GridPartition::default() };
    GridPartition { mode, step_ns: Some(0.0), ..prices }
}

fn over(servers: usize, grid: &GridPartition) -> Over<'_> {
    Over { servers, replicas: 1, grid, may_stripe: true }
}

#[test]
fn dear_messages_ask_for_few_slices_and_hot_lists_for_many() {
    let layout = layout(384);
    let even = workload(&[5; 40], layout.groups());
    let shape = |workload: &Workload, prices| {
        let plan =
            GridPlan::choose(workload, &layout, over(4, &partition_at(Mode::Harmony, prices))).unwrap();
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

/// The example of §4.2.1: six blocks, of which one of dimensions costs 20 ms of computing and 30 ms of communication,
/// and an imbalance of 5 % of all. The planner takes two slices rather than three, and three rows rather than two.
///
/// The paper adds up blocks of both kinds, 182 and then 148 ms. Here a query crosses all slices of the rows that it
/// visits, and slices get narrower as there are more: what is saved is the communication of one block, 30 ms.
#[test]
fn the_example_of_the_paper_takes_fewer_slices() {
    let layout = layout(384);
    // One visit more than could be dealt evenly.
    let visits: Vec<usize> = (0..60).map(|list| if list == 0 { 11 } else { 10 }).collect();
    let mut workload = workload(&visits, layout.groups());
    // Nothing is pruned: 100 members of 128 components take 20 ms.
    workload.alive.fill(1.0);
    (workload.component_ns, workload.prepare_ns) = (20e6 / 12_800.0, 0.0);
    // One message in six is for the server that sends it, and costs nothing.
    let mut grid = partition_at(Mode::Harmony, (30e6 * 6.0 / 5.0, 0.0));
    let mut plan = |alpha: f64| {
        grid.alpha = Some(alpha);
        GridPlan::choose(&workload, &layout, over(6, &grid)).unwrap()
    };
    let of = |plan: &GridPlan, rows: usize, slices: usize| {
        let found = plan.candidates.iter().find(|c| (c.rows, c.slices) == (rows, slices));
        found.unwrap_or_else(|| panic!("{rows} x {slices}")).clone()
    };
    let free = of(&plan(0.0), 2, 3);
    let alpha = 0.05 * free.cost_ms / free.imbalance_ms;
    let weighed = plan(alpha);
    let (before, after) = (of(&weighed, 2, 3), of(&weighed, 3, 2));
    let each = |ms: f64| ms / workload.queries as f64;
    let is_near = |a: f64, b: f64| (a - b).abs() < 1e-6;
    assert!(is_near(each(before.computing_ms), 3.0 * 20.0) && is_near(each(after.computing_ms), 2.0 * 30.0));
    // A job for each slice, and a reply.
    assert!(is_near(each(before.messages_ms), 4.0 * 30.0) && is_near(each(after.messages_ms), 3.0 * 30.0));
    let imbalance = before.cost_ms - before.computing_ms - before.messages_ms;
    assert!((imbalance / free.cost_ms - 0.05).abs() < 1e-6, "{imbalance}");
    assert!(after.cost_ms < before.cost_ms && before.cost_ms < of(&weighed, 1, 6).cost_ms);
    assert!((weighed.rows, weighed.slices.len() - 1) != (2, 3));
}

/// One hot server of sixteen limits all others, though loads hardly deviate from their mean.
#[test]
fn a_plan_costs_what_its_busiest_server_does() {
    let layout = layout(384);
    let mut visits = [10; 64];
    visits[7] = 200;
    let hot = workload(&visits, layout.groups());
    let plan = GridPlan::choose(&hot, &layout, over(16, &partition_at(Mode::Harmony, (0.0, 0.0)))).unwrap();
    for candidate in &plan.candidates {
        // With α the number of servers, all of them cost as long as the busiest one works.
        let busiest_ms = candidate.largest_share * candidate.computing_ms;
        assert!((candidate.cost_ms - busiest_ms).abs() < 1e-9, "{candidate:?}");
    }
    assert!(plan.candidates[0].slices > 1, "slices share the hot list: {:?}", plan.candidates[0]);
}

#[test]
fn the_nearest_list_of_a_query_goes_alone_where_lists_are_sliced() {
    let layout = layout(384);
    // All queries visit the same two lists.
    let lists: Vec<u32> = (0..20).map(|i| i % 2).collect();
    let ends = (1..=10).map(|query| 2 * query).collect();
    let two = Workload { queries: 10, lists, ends, ..workload(&[10; 4], layout.groups()) };
    let messages = |mode| {
        let plan = GridPlan::choose(&two, &layout, over(2, &partition_at(mode, (1.0, 0.0)))).unwrap();
        plan.candidates.iter().map(|candidate| candidate.messages_per_query).fold(f64::INFINITY, f64::min)
    };
    // A job of two slices has two messages and a reply, half of which stay on the server that asks.
    assert!((messages(Mode::Dimension) - 2.0 * 3.0 / 2.0).abs() < 1e-9);
    assert!(messages(Mode::Vector) <= 2.0);
}

#[test]
fn a_number_of_slices_can_be_asked_for() {
    let layout = layout(384);
    let even = workload(&[5; 40], layout.groups());
    let asked = GridPartition { slices: Some(2), ..partition_at(Mode::Harmony, (50_000.0, 1.0)) };
    let plan = GridPlan::choose(&even, &layout, over(4, &asked)).unwrap();
    assert_eq!(plan.slices.len() - 1, 2);
    assert!(plan.candidates.iter().all(|candidate| candidate.slices == 2));
}

#[test]
fn modes_are_forced_and_what_cannot_be_is_refused() {
    let layout = layout(384);
    let even = workload(&[5; 40], layout.groups());
    let plan =
        |servers, mode| GridPlan::choose(&even, &layout, over(servers, &partition_at(mode, (1.0, 0.0))));
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
        for mode in [Mode::Harmony, Mode::Vector, Mode::Dimension, Mode::Striped] {
            let told = partition_at(mode, (1.0, 0.0));
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

#[test]
fn striped_lists_even_out_hot_ones_for_more_messages() {
    let layout = layout(384);
    let mut visits = [1; 40];
    visits[7] = 400;
    let mut hot = workload(&visits, layout.groups());
    hot.members = vec![4096; 40];
    let plan = |mode, message_ns| {
        GridPlan::choose(&hot, &layout, over(4, &partition_at(mode, (message_ns, 0.0)))).unwrap()
    };
    let (striped, vector) = (plan(Mode::Striped, 10.0), plan(Mode::Vector, 10.0));
    let share = |plan: &GridPlan| plan.candidates[0].largest_share;
    assert!(share(&striped) < 1.001 && share(&vector) > 3.0);
    // A chain over four servers, of which the origin is one; the way to one list and back, unless the origin has it.
    let messages = |plan: &GridPlan| plan.candidates[0].messages_per_query;
    assert_eq!((messages(&striped), messages(&vector)), (4.0, 1.5));
    assert_eq!(plan(Mode::Harmony, 10.0).stripes, 4, "cheap messages");
    assert_eq!(plan(Mode::Harmony, 1e9).stripes, 1, "dear messages");
    // Lists of 25 members would be filled up by a quarter.
    hot.members = vec![100; 40];
    let told = partition_at(Mode::Harmony, (10.0, 0.0));
    assert_eq!(GridPlan::choose(&hot, &layout, over(4, &told)).unwrap().stripes, 1);
}
