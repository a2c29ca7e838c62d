//! Grids that are divided over servers answer as one server does.

use core::cell::Cell;

use super::*;
use crate::format::grid::Copies;
use crate::kinds::grid_ivf::{ELSEWHERE, Firsts, prewarmed};
use crate::place::{LocalShard, Others, Placement, SERVERS_MAX};
use crate::search::{Arrival, Arrived};

/// A grid on several servers.
struct Servers<'g> {
    grid: &'g Grid,
    slices: Vec<u32>,
    placement: Placement,
    live: u64,
    // Servers that are taken for live and give no answer.
    silent: u64,
    // The version of states that all servers read.
    version: u32,
    loads: [u8; SERVERS_MAX],
    // Components that each server has compared.
    compared: [Cell<u64>; SERVERS_MAX],
    starts: Vec<Vec<u64>>,
    firsts: (Vec<u32>, Vec<u8>),
}

impl<'g> Servers<'g> {
    /// Slice `s` of list `l` is on the servers `on(l, s)`.
    fn new(grid: &'g Grid, slices: Vec<u32>, servers: usize, on: impl Fn(usize, usize) -> u64) -> Self {
        let units = slices.len();
        let mut replicas = vec![];
        for list in 0..SIZES.len() {
            let of_slices: Vec<u64> = (0..units - 1).map(|slice| on(list, slice)).collect();
            replicas.push(of_slices.iter().fold(0, |all, on| all | on));
            replicas.extend(of_slices);
        }
        let placement = Placement::new(servers, replicas).unwrap();
        let starts = (0..servers)
            .map(|server| {
                let at = |unit: usize| {
                    let (list, within) = (unit / units, unit % units);
                    let start = grid.starts[2 * list] as usize;
                    (start + grid.layout.unit_at(SIZES[list], &slices, within)) as u64
                };
                let is_held = |unit: usize| placement.replicas(unit as u32) >> server & 1 == 1;
                let of = |unit| if is_held(unit) { at(unit) } else { ELSEWHERE };
                (0..units * SIZES.len()).map(of).collect()
            })
            .collect();
        let (mut firsts, mut copies) = ((vec![0], vec![]), Copies::default());
        for list in 0..SIZES.len() as u32 {
            let KindView::GridIvf(view) = grid.view().kind else { panic!() };
            let count = prewarmed(SIZES[list as usize], (list, 1));
            copies.take(&view.list(list).unwrap(), count);
            firsts.0.push(firsts.0[list as usize] + count as u32);
        }
        copies.write(&grid.layout, &mut firsts.1);
        let (loads, compared) = ([0; SERVERS_MAX], [const { Cell::new(0) }; SERVERS_MAX]);
        let (live, silent, version) = (u64::MAX, 0, wire::VERSION);
        Servers { grid, slices, placement, live, silent, version, loads, compared, starts, firsts }
    }

    fn view(&self, server: u8) -> IndexView<'_> {
        let mut view = self.grid.view();
        let others = Others { loads: self.loads, version: self.version, ..Others::live(self.live) };
        view.base.here = Some(LocalShard { placement: &self.placement, server, others });
        let KindView::GridIvf(own) = &mut view.kind else { panic!() };
        own.slices = &self.slices;
        own.starts = &self.starts[usize::from(server)];
        own.firsts = Some(Firsts { before: &self.firsts.0, data: &self.firsts.1 });
        view
    }

    /// Steps a state on a server, after a journey.
    fn step(&self, server: u8, query: &[u8], state: &mut QueryState, arrived: &[Arrival<'_>]) -> Step {
        let mut bytes = vec![];
        wire::encode(state, wire::Carry::Ids, &mut bytes);
        let travelled = wire::decode(&bytes).unwrap();
        assert_eq!(travelled.own, state.own);
        *state = travelled;
        let view = self.view(server);
        let mut scratch = Scratch::default();
        scratch.prepare_for(&view, query, state);
        // What arrived was compared by others, and is in the counters of the query from then on.
        let arrived_components: u64 = arrived.iter().map(components_of).sum();
        let before = state.stats().components + arrived_components;
        let step = state.step(&view, &mut scratch, arrived);
        let compared = &self.compared[usize::from(server)];
        compared.set(compared.get() + state.stats().components - before);
        step
    }

    fn search(&self, origin: u8, query: &[u8], params: Params) -> QueryState {
        let view = self.view(origin);
        let mut state = QueryState::new(params, view.budget());
        let mut replies: Vec<(crate::search::Tag, Option<Vec<u8>>)> = vec![];
        loop {
            let scores: Vec<_> =
                replies.iter().map(|(_, bytes)| bytes.as_deref().map(wire::read_scores)).collect();
            let what = |score: &Option<Result<_, _>>| match score {
                Some(Ok(scores)) => Arrived::Scores(*scores),
                _ => Arrived::Lost(crate::search::Loss::Failed),
            };
            let arrived: Vec<_> = replies
                .iter()
                .zip(&scores)
                .map(|(reply, scores)| Arrival { tag: reply.0, what: what(scores) })
                .collect();
            match self.step(origin, query, &mut state, &arrived) {
                Step::Done => return state,
                Step::HandOver(_) => panic!("queries stay at their origin"),
                Step::Wait => {}
            }
            replies =
                state.jobs().map(|(tag, to)| (tag, self.job(&state, &view, (tag, to), query))).collect();
            assert!(!replies.is_empty());
        }
    }

    /// The reply to a job; `None` when a server on its way does not live.
    fn job(
        &self,
        state: &QueryState,
        view: &IndexView<'_>,
        (tag, mut server): (crate::search::Tag, u8),
        query: &[u8],
    ) -> Option<Vec<u8>> {
        let mut job = QueryState::default();
        state.job(view, tag, &mut job);
        loop {
            if (self.live & !self.silent) >> server & 1 == 0 {
                return None;
            }
            assert!(job.is_baton(&self.view(server).size()));
            match self.step(server, query, &mut job, &[]) {
                Step::HandOver(next) => {
                    assert_counted(&job);
                    server = next;
                }
                Step::Done => break,
                Step::Wait => panic!("a job waits for nothing"),
            }
        }
        let mut bytes = vec![];
        wire::write_scores(&job, wire::VERSION, &mut bytes);
        Some(bytes)
    }
}

/// The bytes that a job says its row and its query take are those that they take.
fn assert_counted(job: &QueryState) {
    let crate::kinds::KindState::GridIvf(own) = &job.own else { panic!() };
    let row = &own.rows[0].1;
    let mut bytes = vec![];
    let mut w = crate::codec::Writer(&mut bytes);
    row.query.encode(&mut w);
    assert_eq!(row.query.bytes(), bytes.len() as u64);
    let (one_row, none) = (wire_bytes(job), {
        let mut empty = job.clone();
        let crate::kinds::KindState::GridIvf(own) = &mut empty.own else { panic!() };
        own.rows[0].1.alive.clear();
        own.rows[0].1.sums.clear();
        own.rows[0].1.fine.clear();
        own.rows[0].1.query.shift = 0;
        wire_bytes(&empty)
    });
    let left = |row: &super::super::Row| super::super::rows::left_bytes(row);
    // A query with a shift sends it, and two counts of zero where no sum is fine.
    let shift = match (row.fine.is_empty(), row.query.shift) {
        (false, _) => 1,
        (true, 0) => 0,
        (true, _) => 3,
    };
    assert_eq!(left(row) + shift - left(&super::super::Row::default()), one_row - none);
}

fn wire_bytes(state: &QueryState) -> u64 {
    let mut bytes = vec![];
    wire::encode(state, wire::Carry::Ids, &mut bytes);
    bytes.len() as u64
}

/// Components that the servers of a job have compared.
fn components_of(arrival: &Arrival<'_>) -> u64 {
    match &arrival.what {
        Arrived::Scores(scores) => scores.stats.components,
        _ => 0,
    }
}

fn servers_of(seed: u64, servers: u64, replicas: u64, list: usize, slice: usize) -> u64 {
    let first = hash(seed, list as u64 / 2, slice as u64) % servers;
    (0..replicas).map(|replica| 1 << ((first + replica) % servers)).fold(0, |all, bit| all | bit)
}

fn divisions() -> Vec<Vec<u32>> {
    vec![vec![0, 5], vec![0, 2, 5], vec![0, 1, 2, 5], vec![0, 1, 2, 3, 4, 5]]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn answers_do_not_depend_on_servers_or_slices(
        metric in prop::sample::select(Metric::ALL.to_vec()),
        dtype in prop::sample::select(DType::ALL.to_vec()),
        slices in prop::sample::select(divisions()),
        servers in 1..17u64,
        replicas in 1..3u64,
        (k, nprobe) in (prop::sample::select(vec![1u32, 10, 300, 1000]), 1..8u32),
        (fan_out, busy_last, pipeline, chain) in (1..4u8, any::<bool>(), any::<bool>(), any::<bool>()),
        (bits, length) in units_and_lengths(),
        seed in 0..1000u64,
    ) {
        let grid = Grid::new(metric, dtype, if seed % 2 == 0 { 2 } else { 3 }, seed).in_units(bits);
        let query = grid.query(seed, length);
        let replicas = replicas.min(servers);
        let on = |list, slice| servers_of(seed, servers, replicas, list, slice);
        let cluster = Servers::new(&grid, slices, servers as usize, on);
        for params in variants(k, nprobe) {
            let KindParams::GridIvf(own) = params.kind else { panic!() };
            if own.prune_code != own.prune_dimension {
                continue;
            }
            let own = Own { fan_out, busy_last, balance: busy_last, pipeline, chain, ..own };
            let params = Params { kind: KindParams::GridIvf(own), ..params };
            let alone = grid.search(&query, params);
            for origin in [0, servers as u8 - 1] {
                let found = cluster.search(origin, &query, params);
                prop_assert_eq!(found.outcome(), Outcome::Complete);
                prop_assert_eq!(found.results(), alone.results());
                let (a, b) = (found.stats(), alone.stats());
                prop_assert_eq!((a.lists, a.components_unpruned), (b.lists, b.components_unpruned));
                prop_assert_eq!(a.full_comparisons + a.pruned, b.full_comparisons + b.pruned);
                if !own.prune_dimension {
                    prop_assert_eq!(a.components, b.components);
                }
            }
        }
    }
}

#[test]
fn a_lost_server_is_replaced_or_its_lists_are_given_up() {
    let grid = Grid::new(Metric::L2, DType::F32, 2, 7);
    let query = grid.vectors[100].clone();
    let params = Params::grid_ivf(10, 6);
    for replicas in [1, 2] {
        let on = |list, slice| servers_of(3, 5, replicas, list, slice);
        let mut cluster = Servers::new(&grid, vec![0, 1, 2, 5], 5, on);
        cluster.live = 0b10111;
        let found = cluster.search(0, &query, params);
        if replicas == 2 {
            assert_eq!(
                (found.outcome(), found.results()),
                (Outcome::Complete, grid.search(&query, params).results())
            );
        } else {
            assert_eq!(found.outcome(), Outcome::Partial);
            assert!(found.stats().unreachable > 0 && found.stats().lists < 6);
        }
    }
}

#[test]
fn rows_that_cannot_be_are_refused() {
    let grid = Grid::new(Metric::L2, DType::F32, 2, 7);
    let query = grid.vectors[100].clone();
    let cluster = Servers::new(&grid, vec![0, 2, 5], 2, |_, slice| 1 << slice);
    let view = cluster.view(0);
    let mut state = QueryState::new(Params::grid_ivf(10, 6), view.budget());
    assert_eq!(cluster.step(0, &query, &mut state, &[]), Step::Wait);
    let (tag, to) = state.jobs().next().unwrap();
    // Its first slice is here: the job has left with the sums of it.
    assert_eq!(to, 1);
    let mut job = QueryState::default();
    state.job(&view, tag, &mut job);
    type Change = fn(&mut super::super::Row);
    let changes: [Change; 8] = [
        |row| row.alive.push(1),
        |row| row.alive[1] ^= 1 << 63,
        |row| row.sums.push(3.0),
        |row| row.sums.clear(),
        |row| row.done = 0b11,
        |row| row.done = 0b101,
        |row| row.lists.push(row.lists[0]),
        |row| row.query = Default::default(),
    ];
    for change in changes {
        let mut wrong = job.clone();
        let crate::kinds::KindState::GridIvf(own) = &mut wrong.own else { panic!() };
        change(&mut own.rows[0].1);
        let mut scratch = Scratch::default();
        let there = cluster.view(to);
        scratch.prepare(&there, &query);
        assert_eq!(wrong.step(&there, &mut scratch, &[]), Step::Done);
        assert_eq!(wrong.outcome(), Outcome::OutOfBudget);
    }
    // Half of a frame, and numbers that are too large, take no memory.
    let mut bytes = vec![];
    wire::encode(&job, wire::Carry::Ids, &mut bytes);
    for length in 16..bytes.len() {
        let mut short = bytes[..length].to_vec();
        let (size, sum) = ((length - 16) as u32, wire::seal(wire::VERSION, &short[16..]));
        short[4..8].copy_from_slice(&size.to_le_bytes());
        short[8..16].copy_from_slice(&sum.to_le_bytes());
        assert!(wire::decode(&short).is_err(), "{length}");
    }
}

/// One job visits all rows of whole lists: fewer messages, and each row is pruned by those before it.
#[test]
fn a_chain_takes_one_job_and_each_row_is_pruned_by_those_before_it() {
    let grid = Grid::new(Metric::L2, DType::F32, 2, 7);
    let mut cluster = Servers::new(&grid, vec![0, 5], 4, |list, _| 1 << (list % 3));
    let with = Own { nprobe: 5, ..Own::new(5) };
    let without = Own { chain: false, ..with };
    let [(chained, _), (each, _)] = with_and_without(&cluster, with, without);
    let messages = |ended: &[QueryState]| sum(ended, |s| s.hand_overs + 2 * s.score_jobs);
    assert_eq!(sum(&chained, |s| s.score_jobs), 20, "one for each query");
    assert!(sum(&chained, |s| s.hand_overs) > 20 && sum(&each, |s| s.hand_overs) == 0);
    assert!(
        3 * messages(&chained) < 2 * messages(&each) + 20,
        "{} of {}",
        messages(&chained),
        messages(&each)
    );
    let (few, many) = (sum(&chained, |s| s.components), sum(&each, |s| s.components));
    assert!(few <= many, "{few} components beside {many}");
    assert_eq!(sum(&chained, |s| s.lists), sum(&each, |s| s.lists));
    // A server that reads older states would score the first row alone.
    cluster.version = 13;
    let [(older, _), (each, _)] = with_and_without(&cluster, with, without);
    assert_eq!(sum(&older, |s| s.score_jobs), sum(&each, |s| s.score_jobs));
}

/// Of a chain that is lost, the rows of other servers are not given up.
#[test]
fn a_silent_server_of_a_chain_loses_its_own_row_alone() {
    let grid = Grid::new(Metric::L2, DType::F32, 2, 7);
    let mut cluster = Servers::new(&grid, vec![0, 5], 4, |list, _| 1 << (list % 3));
    let query = grid.vectors[100].clone();
    for silent in 0..3 {
        cluster.silent = 1 << silent;
        let found = |chain| {
            let own = Own { chain, ..Own::new(6) };
            let params = Params { kind: KindParams::GridIvf(own), ..Params::grid_ivf(10, 6) };
            cluster.search(3, &query, params)
        };
        let (chained, each) = (found(true), found(false));
        assert_eq!((chained.outcome(), chained.results()), (Outcome::Partial, each.results()));
        assert!(chained.stats().lists == each.stats().lists && chained.stats().lists > 0);
    }
}

#[test]
fn a_row_that_is_not_begun_takes_no_bytes_for_its_vectors() {
    let grid = Grid::new(Metric::L2, DType::F32, 2, 7);
    let cluster = Servers::new(&grid, vec![0, 5], 2, |_, _| 0b10);
    let view = cluster.view(0);
    let mut state = QueryState::new(Params::grid_ivf(10, 6), view.budget());
    assert_eq!(cluster.step(0, &grid.vectors[100].clone(), &mut state, &[]), Step::Wait);
    let (tag, to) = state.jobs().next().unwrap();
    let mut job = QueryState::default();
    state.job(&view, tag, &mut job);
    // Whole lists are not begun elsewhere, nor are later ones in slices.
    type Change = fn(&mut super::super::Row);
    let changes: [Change; 3] =
        [|row| row.alive.push(1), |row| row.done = 1, |row| row.later = row.lists.clone()];
    for (at, change) in changes.into_iter().enumerate() {
        let mut wrong = job.clone();
        let crate::kinds::KindState::GridIvf(own) = &mut wrong.own else { panic!() };
        change(&mut own.rows[0].1);
        let sliced = Servers::new(&grid, vec![0, 2, 5], 2, |_, _| 0b10);
        let there = if at == 2 { sliced.view(to) } else { cluster.view(to) };
        let mut scratch = Scratch::default();
        scratch.prepare(&there, &grid.vectors[100]);
        assert_eq!(wrong.step(&there, &mut scratch, &[]), Step::Done);
        assert_eq!(wrong.outcome(), Outcome::OutOfBudget, "change {at}");
    }
    let mut bytes = vec![];
    wire::encode(&job, wire::Carry::Ids, &mut bytes);
    // The query goes along: its components, and those of its pilot.
    let query_bytes = 4 * (DIM + 24);
    assert!(to == 1 && bytes.len() < 200 + query_bytes, "{}", bytes.len());
}

/// Cost of some queries with these switches: the sum of their counters, and the components of each server. All of them
/// are asked at the last server.
fn cost_of(cluster: &Servers<'_>, own: Own) -> (Vec<QueryState>, Vec<u64>) {
    cluster.compared.iter().for_each(|compared| compared.set(0));
    let params = Params { kind: KindParams::GridIvf(own), ..Params::grid_ivf(10, 6) };
    let origin = cluster.placement.servers() as u8 - 1;
    let queries = (0..20).map(|query| &cluster.grid.vectors[340 * query]);
    let ended = queries.map(|query| cluster.search(origin, query, params)).collect();
    (ended, cluster.compared[..=usize::from(origin)].iter().map(Cell::get).collect())
}

fn sum(ended: &[QueryState], of: fn(&crate::search::QueryStats) -> u64) -> u64 {
    ended.iter().map(|state| of(state.stats())).sum()
}

/// The same queries with a technique and without it: equal answers, and each way's counters.
fn with_and_without(cluster: &Servers<'_>, with: Own, without: Own) -> [(Vec<QueryState>, Vec<u64>); 2] {
    let both = [cost_of(cluster, with), cost_of(cluster, without)];
    for (a, b) in both[0].0.iter().zip(&both[1].0) {
        assert_eq!((a.outcome(), a.results()), (Outcome::Complete, b.results()));
    }
    both
}

/// The order of slices by load (HARMONY §4.3): few vectors are left for a busy server that comes last.
#[test]
fn a_busy_server_compares_less_where_its_slice_comes_last() {
    let grid = Grid::new(Metric::L2, DType::F32, 2, 7);
    // The slice of the largest variance is on server 0, and usually comes first.
    let mut cluster = Servers::new(&grid, vec![0, 1, 2, 3, 5], 4, |_, slice| 1 << slice);
    let (with, without) = (Own::new(6), Own { busy_last: false, ..Own::new(6) });
    let [(_, idle), (_, fixed)] = with_and_without(&cluster, with, without);
    assert_eq!(idle, fixed, "no server is busier than others");
    // A few queries more are chance, and the order of variance saves most.
    cluster.loads[0] = 16;
    assert_eq!(cost_of(&cluster, with).1, idle);
    cluster.loads[0] = 200;
    let [(_, relieved), (_, busy)] = with_and_without(&cluster, with, without);
    assert_eq!(busy, idle);
    assert!(3 * relieved[0] < 2 * busy[0], "{relieved:?} components beside {busy:?}");
}

/// Of replicas the idlest one scores.
#[test]
fn a_busy_server_compares_nothing_that_a_replica_can() {
    let grid = Grid::new(Metric::L2, DType::F32, 2, 7);
    let mut cluster = Servers::new(&grid, vec![0, 2, 5], 3, |_, _| 0b11);
    cluster.loads[1] = 9;
    let (with, without) = (Own::new(6), Own { balance: false, ..Own::new(6) });
    let [(_, relieved), (_, busy)] = with_and_without(&cluster, with, without);
    assert!(relieved[1] == 0 && busy[1] > 0, "{relieved:?} components beside {busy:?}");
}

/// Prewarming (HARMONY §4.3, algorithm 1, stage 0): lists that are begun at the same time on different servers have a
/// threshold from the start.
#[test]
fn prewarming_saves_components_where_lists_are_begun_apart() {
    let grid = Grid::new(Metric::L2, DType::F32, 2, 7);
    let cluster = Servers::new(&grid, vec![0, 1, 2, 5], 4, |list, slice| 1 << ((list + slice) % 3));
    let with = Own { fan_out: 6, ..Own::new(6) };
    let both = with_and_without(&cluster, with, Own { prewarm: false, ..with });
    let [(few, sums), (many, all_sums)] =
        both.map(|(ended, _)| (sum(&ended, |s| s.components), sum(&ended, |s| s.sum_bytes)));
    assert!(10 * few < 9 * many, "{few} components beside {many}");
    assert!(2 * sums < all_sums, "{sums} bytes of sums beside {all_sums}");
}

/// The pipeline of slices (HARMONY figure 9): each slice drops vectors for those that follow.
#[test]
fn slices_one_after_another_compare_less_than_all_at_once() {
    let grid = Grid::new(Metric::L2, DType::F32, 2, 7);
    let cluster = Servers::new(&grid, vec![0, 1, 2, 3, 5], 4, |_, slice| 1 << slice);
    let with = Own::new(6);
    let [(with, each), (without, all)] = with_and_without(&cluster, with, Own { pipeline: false, ..with });
    let (few, many) = (sum(&with, |s| s.components), sum(&without, |s| s.components));
    assert!(3 * few < 2 * many, "{few} components beside {many}");
    // The first slice sees all vectors either way.
    assert!(each[0] == all[0] && (1..4).all(|server| 2 * each[server] < all[server]), "{each:?} {all:?}");
}
