//! Queries over inverted lists that are handed over between servers: along the ranked lists, then to the records.

mod fixture;

use std::sync::OnceLock;

use fixture::common::{Built, Set, clustered, list_options, quick, run_plain, with_lists};
use fixture::{LONG_US, answer, read_from};
use stratann_core::format::directory::{Directory, LocalKind};
use stratann_core::hash::hash;
use stratann_core::peer::Limits;
use stratann_core::place::Placement;
use stratann_core::plan::KindView;
use stratann_core::query::{Budget, Extent, Outcome, Params, QueryState};
use stratann_core::verify::Bounds;
use stratann_engine::build::{Kind, LocalPlan};
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::{DType, Metric};
use stratann_sim::{Cluster, Crash, Cut, FaultModel, Reply, Report, Stores, SubmittedQuery, run};

const DIM: usize = 16;
const ASKED: usize = 20;

struct Place {
    built: Built,
    file: Vec<u8>,
    queries: Set,
}

impl Stores for Place {
    fn read(&self, at: Extent, out: &mut Vec<u8>) -> bool {
        read_from(&self.file, at, out)
    }
}

fn place(local: LocalKind) -> &'static Place {
    static PLACES: [OnceLock<Place>; 3] = [OnceLock::new(), OnceLock::new(), OnceLock::new()];
    let at = LocalKind::ALL.iter().position(|&l| l == local).unwrap();
    PLACES[at].get_or_init(|| {
        let set = Set::new(DType::F32, DIM, &clustered(3000, DIM, 24, 1));
        let options = list_options(quick(Kind::HybridIvf, Metric::L2), |own| {
            (own.clusters, own.local_plan) = (Some(40), LocalPlan::Uniform(local));
        });
        let mut built = Built::new(set, &options);
        // Nothing is resident: every server reads its lists.
        let open = OpenOptions { head_budget: Some(0), ..OpenOptions::default() };
        built.index = Index::open(built.dir.path(), open).unwrap();
        let file = std::fs::read(built.dir.path().join("v1-lists.bin")).unwrap();
        Place { built, file, queries: Set::new(DType::F32, DIM, &clustered(ASKED, DIM, 24, 2)) }
    })
}

impl Place {
    fn directory(&self) -> &Directory {
        match self.built.index.view().kind {
            KindView::HybridIvf(view) => view.directory,
            other => panic!("{other:?}"),
        }
    }

    /// Draws `replicas` servers for each cluster; its lists lie together.
    fn scattered(&self, servers: usize, replicas: usize) -> Placement {
        let directory = self.directory();
        let servers_of = |list: u32| {
            let first = hash(5, 1, u64::from(directory.cluster_of(list))) as usize;
            (0..replicas).fold(0u64, |all, r| all | 1 << ((first + r) % servers))
        };
        Placement::new(servers, (0..directory.list_count()).map(servers_of).collect()).unwrap()
    }

    fn run(&self, placement: &Placement, params: Params, faults: &FaultModel) -> Report {
        let query = |q: usize| SubmittedQuery {
            at_us: 50 * q as u64,
            origin: (q % placement.servers()) as u8,
            vector: self.queries.row(q),
            params,
            budget: Budget::default(),
            time_us: 60 * LONG_US,
        };
        let submitted: Vec<_> = (0..ASKED).map(query).collect();
        let cluster = Cluster { view: self.built.index.view(), placement, stores: self };
        let report = run(&cluster, &submitted, faults);
        assert_eq!((report.left, report.refused), ((0, 0, 0), 0));
        report
    }

    fn alone(&self, query: usize, params: Params) -> QueryState {
        let view = self.built.index.view();
        run_plain(&view, &self.file, self.queries.row(query), params, Budget::default(), 1)
    }
}

#[test]
fn a_query_finds_the_same_on_any_number_of_servers() {
    for local in LocalKind::ALL {
        let place = place(local);
        for (servers, replicas, width, slack) in [
            (1, 1, 1, 1.0),
            (3, 1, 1, 1.0),
            (3, 2, 4, 1.0),
            (4, 1, 8, f32::INFINITY),
            (10, 1, 1, 1.5),
            (10, 3, 4, 0.5),
        ] {
            for bounds in [Bounds::Off, Bounds::Code, Bounds::Both] {
                let params = Params { width, approach_width: width, ..Params::hybrid_ivf(10, 12) };
                let params = with_lists(params, |own| (own.bounds, own.bound_slack) = (bounds, slack));
                let report = place.run(&place.scattered(servers, replicas), params, &FaultModel::default());
                let (mut lists, mut records, mut all) = ([0, 0], [0, 0], 0);
                for query in 0..ASKED {
                    let (here, there) = (place.alone(query, params), answer(&report, query));
                    let what =
                        format!("{local:?}, {servers} servers, width {width}, {bounds:?}, query {query}");
                    assert_eq!(there.outcome(), Outcome::Complete, "{what}");
                    assert_eq!(here.results(), there.results(), "{what}");
                    for (i, stats) in [here.stats(), there.stats()].into_iter().enumerate() {
                        lists[i] += stats.lists;
                        records[i] += stats.full_comparisons;
                    }
                    all += there.stats().hand_overs;
                }
                assert_eq!(lists[0], lists[1], "{local:?}, {servers} servers, {bounds:?}");
                let is_near = records[1].abs_diff(records[0]) as f64 <= 0.03 * records[0] as f64;
                assert!(is_near, "{local:?}, {servers} servers, {bounds:?}: {records:?}");
                assert_eq!((all, all > 0), (report.batons, servers > 1));
            }
        }
    }
}

#[test]
fn bad_disks_crashes_and_cuts_give_one_answer_that_is_right_or_partial() {
    let (mut whole, mut partial, mut lost) = (0, 0, 0);
    for seed in 0..24 {
        let place = place(LocalKind::ALL[seed as usize % 3]);
        let width = [1, 4, 8][seed as usize / 3 % 3];
        let params = Params { width, approach_width: width, ..Params::hybrid_ivf(10, 12) };
        let params = with_lists(params, |own| own.bound_slack = 1.0);
        let faults = FaultModel {
            seed,
            drop: 0.01,
            duplicate: 0.05,
            failing_reads: 0.01,
            bad_disks: vec![(1, 0.2)],
            crashes: vec![Crash { server: 4, at_us: 300 + 100 * seed, back_at_us: Some(20_000) }],
            limits: Limits { patience_us: 100_000, attempts: 12, ..Limits::default() },
            cuts: vec![Cut { between: (0, 2), from_us: 500, until_us: (seed % 2 == 0).then_some(3_000) }],
            ..FaultModel::default()
        };
        let report = place.run(&place.scattered(5, 3), params, &faults);
        lost += report.lost_reads;
        for query in (0..ASKED).filter(|q| q % 5 != 4) {
            let [(_, Reply::Answer(state))] = report.replies[query].as_slice() else {
                panic!("seed {seed}, query {query}: {:?}", report.replies[query]);
            };
            match state.outcome() {
                Outcome::Complete => {
                    assert_eq!(state.results(), place.alone(query, params).results(), "seed {seed}, {query}");
                    whole += 1;
                }
                other => {
                    assert!(other == Outcome::Partial && state.stats().unreachable > 0, "{other:?}");
                    partial += 1;
                }
            }
        }
    }
    assert!(lost > 100 && whole > 10 * partial, "{whole} whole, {partial} partial, {lost} reads lost");
}

#[test]
fn without_replicas_a_dead_server_makes_answers_partial() {
    for local in LocalKind::ALL {
        let place = place(local);
        let crashes = vec![Crash { server: 2, at_us: 0, back_at_us: None }];
        let faults = FaultModel { crashes, notice_us: 0, ..FaultModel::default() };
        let report = place.run(&place.scattered(4, 1), Params::hybrid_ivf(10, 12), &faults);
        let partial = (0..ASKED).filter(|q| q % 4 != 2).filter(|&query| {
            let state = answer(&report, query);
            assert_eq!(state.outcome() == Outcome::Partial, state.stats().unreachable > 0);
            state.outcome() == Outcome::Partial
        });
        assert!(partial.count() > ASKED / 2);
    }
}
