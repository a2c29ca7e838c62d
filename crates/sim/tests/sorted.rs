//! The kind that only tests have, over servers: it hands over, retries and survives faults by the shared parts alone.

mod fixture;

use fixture::common::run_plain;
use fixture::common::sorted::{Sorted, queries};
use fixture::{LONG_US, answer, read_from};
use stratann_core::hash::hash;
use stratann_core::peer::Failure;
use stratann_core::place::Placement;
use stratann_core::query::wire::{Carry, Results};
use stratann_core::query::{Budget, Extent, Outcome, Params, QueryState};
use stratann_kernel::Metric;
use stratann_sim::{Cluster, Crash, FaultModel, Left, Reply, Report, Stores, SubmittedQuery, run};

const ASKED: usize = 24;

struct Place {
    sorted: Sorted,
    queries: fixture::common::Set,
}

impl Stores for Place {
    fn read(&self, at: Extent, out: &mut Vec<u8>) -> bool {
        read_from(&self.sorted.file, at, out)
    }
}

fn place() -> Place {
    Place { sorted: Sorted::new(Metric::L2), queries: queries(ASKED) }
}

impl Place {
    fn run(&self, servers: usize, replicas: usize, params: Params, faults: &FaultModel) -> Report {
        let servers_of = |block: u32| {
            let first = hash(3, 1, u64::from(block)) as usize;
            (0..replicas).fold(0u64, |all, r| all | 1 << ((first + r) % servers))
        };
        let placement = Placement::new(servers, (0..self.sorted.blocks()).map(servers_of).collect()).unwrap();
        let query = |q: usize| SubmittedQuery {
            at_us: 50 * q as u64,
            origin: (q % servers) as u8,
            vector: self.queries.row(q),
            params,
            budget: Budget::default(),
            time_us: LONG_US,
        };
        let submitted: Vec<_> = (0..ASKED).map(query).collect();
        let cluster = Cluster { view: self.sorted.view(), placement: &placement, stores: self };
        let report = run(&cluster, &submitted, faults);
        assert_eq!((report.left, report.refused), (Left::default(), 0));
        report
    }

    fn alone(&self, query: usize, params: Params) -> QueryState {
        let (view, file) = (self.sorted.view(), &self.sorted.file);
        run_plain(&view, file, self.queries.row(query), params, Budget::default(), 1)
    }
}

#[test]
fn it_costs_and_finds_the_same_on_any_number_of_servers() {
    let place = place();
    let params = Params::sorted(10, true);
    for (servers, replicas, carry, results) in [
        (1, 1, Carry::Ids, Results::Along),
        (3, 1, Carry::Distances, Results::Along),
        (5, 2, Carry::Ids, Results::Origin),
        (10, 1, Carry::Ids, Results::Along),
    ] {
        let faults = FaultModel { carry, results, ..FaultModel::default() };
        let report = place.run(servers, replicas, params, &faults);
        let mut batons = 0;
        for query in 0..ASKED {
            let (here, there) = (place.alone(query, params), answer(&report, query));
            assert_eq!(here.results(), there.results(), "{servers} servers, query {query}");
            let mut stats = *there.stats();
            batons += std::mem::take(&mut stats.hand_overs);
            assert_eq!(&stats, here.stats(), "{servers} servers, query {query}");
        }
        assert_eq!((batons, batons > 0), (report.batons, servers > 1));
    }
}

#[test]
fn lost_frames_crashes_and_bad_disks_change_no_answer() {
    let place = place();
    let mut expired = 0;
    for seed in 0..20 {
        let faults = FaultModel {
            seed,
            drop: 0.02,
            duplicate: 0.05,
            bad_disks: vec![(1, 0.5)],
            crashes: vec![Crash { server: 4, at_us: 300 + 100 * seed, back_at_us: Some(9_000) }],
            ..FaultModel::default()
        };
        let params = Params { width: 2, approach_width: 2, ..Params::sorted(10, true) };
        let report = place.run(5, 2, params, &faults);
        for query in (0..ASKED).filter(|q| q % 5 != 4) {
            // A query whose last attempt loses a frame ends at its deadline.
            if let [(_, Reply::Failed(Failure::Expired))] = report.replies[query].as_slice() {
                expired += 1;
                continue;
            }
            let state = answer(&report, query);
            match state.outcome() {
                Outcome::Complete => assert_eq!(state.results(), place.alone(query, params).results()),
                Outcome::Partial => assert!(state.stats().unreachable > 0),
                other => panic!("seed {seed}, query {query}: {other:?}"),
            }
        }
    }
    assert!(expired < 10, "{expired} queries expired");
}
