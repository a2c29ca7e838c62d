//! Queries over lists that are divided in slices over several servers: answers are those of one server.

mod fixture;

use std::sync::OnceLock;
use stratann_params::build::GridOptions;

use fixture::common::{Built, Set, clustered, quick, run_plain};
use fixture::{LONG_US, answer};
use stratann_core::kinds::KindParams;
use stratann_core::kinds::grid_ivf::Params as Own;
use stratann_core::peer::Limits;
use stratann_core::query::{Budget, Extent, Mode, Outcome, Params, QueryState};
use stratann_engine::build::{BuildOptions, IndexKind, KindOptions};
use stratann_engine::kinds::division::{GridPartition, Mode as Division};
use stratann_engine::spread::{self, PartitionOptions, Placed};
use stratann_engine::{DType, Metric};
use stratann_sim::{
    Cluster, Crash, Cut, FaultModel, Left, Reply, Report, Stores, SubmittedQuery, Task, Trace, record, run,
};
use stratann_storage::Quiet;

const DIM: usize = 96;
const ASKED: usize = 20;

/// Nothing is read.
struct Nothing;

impl Stores for Nothing {
    fn read(&self, _: Extent, _: &mut Vec<u8>) -> bool {
        false
    }
}

struct Place {
    built: Built,
    queries: Set,
}

fn place(metric: Metric) -> &'static Place {
    static PLACES: [OnceLock<Place>; 3] = [OnceLock::new(), OnceLock::new(), OnceLock::new()];
    let at = Metric::ALL.iter().position(|&m| m == metric).unwrap();
    PLACES[at].get_or_init(|| {
        let dtype = [DType::F32, DType::F16, DType::I8][at];
        let own = GridOptions { lists: Some(40), centroids: None };
        let options = BuildOptions { kind: KindOptions::GridIvf(own), ..quick(IndexKind::GridIvf, metric) };
        let built = Built::new(Set::new(dtype, DIM, &clustered(3000, DIM, 24, 1)), &options);
        Place { built, queries: Set::new(dtype, DIM, &clustered(ASKED, DIM, 24, 2)) }
    })
}

fn asked(fan_out: u8, balance: bool) -> Params {
    of(Own { fan_out, balance, busy_last: balance, ..Own::new(12) })
}

fn of(own: Own) -> Params {
    Params { kind: KindParams::GridIvf(own), ..Params::grid_ivf(10, 12) }
}

/// All slices of a row at once.
fn at_once(fan_out: u8) -> Params {
    of(Own { fan_out, pipeline: false, ..Own::new(12) })
}

/// Rows begin and end one by one, and those under way learn of lower thresholds.
fn eager(fan_out: u8) -> Params {
    Params { mode: Mode::Eager, ..asked(fan_out, true) }
}

impl Place {
    fn divided(&self, servers: usize, replicas: usize, mode: Division) -> Placed {
        let grid =
            GridPartition { mode, message_ns: Some(1000.0), byte_ns: Some(1.0), ..GridPartition::default() };
        let options = PartitionOptions { replicas, grid, ..PartitionOptions::new(servers) };
        spread::place(&self.built.index, &options, &Quiet).unwrap()
    }

    fn submitted(&self, servers: usize, params: Params) -> Vec<SubmittedQuery<'_>> {
        let submitted = |q: usize| SubmittedQuery {
            at_us: 50 * q as u64,
            origin: (q % servers) as u8,
            vector: self.queries.row(q),
            params,
            budget: Budget::default(),
            time_us: 60 * LONG_US,
        };
        (0..ASKED).map(submitted).collect()
    }

    fn run(&self, placed: &Placed, params: Params, faults: &FaultModel) -> Report {
        let submitted = self.submitted(placed.placement.servers(), params);
        let view = placed.view(&self.built.index);
        let cluster = Cluster { view, placement: &placed.placement, stores: &Nothing };
        let report = run(&cluster, &submitted, faults);
        assert_eq!((report.left, report.refused), (Left::default(), 0));
        report
    }

    fn alone(&self, query: usize, params: Params) -> QueryState {
        let view = self.built.index.view();
        run_plain(&view, &[], self.queries.row(query), params, Budget::default(), 1)
    }
}

const MODES: [Division; 4] = [Division::Harmony, Division::Vector, Division::Dimension, Division::Striped];

#[test]
fn answers_are_those_of_one_server() {
    for metric in Metric::ALL {
        let place = place(metric);
        for (servers, replicas) in [(1, 1), (2, 1), (4, 2), (5, 1), (8, 1)] {
            for mode in MODES {
                if servers == 8 && mode == Division::Dimension {
                    continue;
                }
                let placed = place.divided(servers, replicas, mode);
                for params in [asked(1, true), asked(4, false), at_once(1), at_once(3), eager(4)] {
                    let report = place.run(&placed, params, &FaultModel::default());
                    for query in 0..ASKED {
                        let (here, there) = (place.alone(query, params), answer(&report, query));
                        let what = format!("{metric:?}, {servers} servers, {mode:?}, query {query}");
                        assert_eq!(there.outcome(), Outcome::Complete, "{what}");
                        assert_eq!(here.results(), there.results(), "{what}");
                        let lists =
                            |state: &QueryState| (state.stats().lists, state.stats().components_unpruned);
                        assert_eq!(lists(&here), lists(there), "{what}");
                    }
                    assert_eq!(report.jobs > 0, servers > 1);
                }
            }
        }
    }
}

/// The work of a job that ends where its query is counts, as that of others does.
#[test]
fn traces_have_all_work_of_their_queries() {
    let place = place(Metric::L2);
    for mode in MODES {
        let placed = place.divided(2, 1, mode);
        let submitted = place.submitted(2, asked(1, false));
        let view = placed.view(&place.built.index);
        let cluster = Cluster { view, placement: &placed.placement, stores: &Nothing };
        let (report, traces) = record(&cluster, &submitted, &FaultModel::default());
        let thought = |task: &Task| if let Task::Think(work) = task { work.components } else { 0 };
        let traced: u64 = traces.iter().flat_map(Trace::tasks).map(|(_, task)| thought(task)).sum();
        let counted: u64 = (0..ASKED).map(|query| answer(&report, query).stats().components).sum();
        assert_eq!(traced, counted, "{mode:?}");
    }
}

/// Work beside that of one server: all queries, in components.
#[test]
fn a_row_of_slices_takes_little_more_work_than_one_server() {
    let place = place(Metric::L2);
    let params = asked(1, false);
    let alone: u64 = (0..ASKED).map(|query| place.alone(query, params).stats().components).sum();
    for mode in MODES {
        let placed = place.divided(4, 1, mode);
        let report = place.run(&placed, params, &FaultModel::default());
        let there: u64 = (0..ASKED).map(|query| answer(&report, query).stats().components).sum();
        assert!(10 * there < 16 * alone, "{mode:?}: {there} beside {alone}");
        // Nothing but bits, sums of what is left, and the query goes along.
        assert!(report.batons == 0 && report.score_bytes < 200 * report.jobs, "{mode:?}: {report:?}");
    }
}

#[test]
fn more_rows_at_a_time_take_fewer_rounds() {
    let place = place(Metric::L2);
    let placed = place.divided(5, 1, Division::Vector);
    let rounds = |fan_out, chain| -> u64 {
        let params = of(Own { fan_out, chain, ..Own::new(12) });
        let report = place.run(&placed, params, &FaultModel::default());
        (0..ASKED).map(|query| answer(&report, query).stats().score_rounds).sum()
    };
    assert!(2 * rounds(4, false) < rounds(1, false), "{} {}", rounds(4, false), rounds(1, false));
    assert!(rounds(1, true) <= rounds(4, false), "a chain takes one");
}

#[test]
fn rows_under_way_learn_of_lower_thresholds() {
    let place = place(Metric::L2);
    let placed = place.divided(4, 1, Division::Dimension);
    let cost = |old_servers| {
        // Links of uneven delay keep some rows behind.
        let faults = FaultModel { old_servers, link_us: (10, 4000), ..FaultModel::default() };
        let report = place.run(&placed, eager(12), &faults);
        let sum =
            |of: fn(&QueryState) -> u64| (0..ASKED).map(|query| of(answer(&report, query))).sum::<u64>();
        for query in 0..ASKED {
            assert_eq!(answer(&report, query).results(), place.alone(query, eager(12)).results());
        }
        (report.thresholds, sum(|s| s.stats().thresholds_sent), sum(|s| s.stats().components))
    };
    // Servers of an older version are not told: they would refuse the message.
    let (untold, wanted, all) = cost(0b1111);
    assert!(untold == 0 && wanted > 0);
    let (told, _, less) = cost(0);
    assert!(told > 0 && less < all, "{told} messages, {less} components beside {all}");
}

#[test]
fn slices_at_once_take_more_work_and_fewer_rounds_of_messages() {
    let place = place(Metric::L2);
    let placed = place.divided(4, 1, Division::Dimension);
    let run = |params| {
        let report = place.run(&placed, params, &FaultModel::default());
        let components: u64 = (0..ASKED).map(|query| answer(&report, query).stats().components).sum();
        (components, report.forwards)
    };
    let ((piped, forwards), (whole, none)) = (run(asked(1, false)), run(at_once(1)));
    assert!(2 * piped < whole && forwards > 0 && none == 0, "{piped} beside {whole}");
}

/// Counts of the queries of storms.
#[derive(Debug, Default)]
struct Storms {
    whole: usize,
    partial: usize,
    jobs: u64,
    forwards: u64,
    cut: u64,
}

impl Storms {
    /// A crash, lost and repeated frames, and a link that is cut or a partition that heals.
    fn storm(&mut self, seed: u64) {
        let place = place(Metric::ALL[seed as usize % 3]);
        let placed = place.divided(5, 2, MODES[seed as usize / 3 % 4]);
        let fan_out = 1 + (seed % 3) as u8;
        let params = match seed % 7 {
            3 => at_once(fan_out),
            5 => eager(fan_out),
            _ => asked(fan_out, seed.is_multiple_of(2)),
        };
        let one = Cut { between: (0, 2), from_us: 500, until_us: seed.is_multiple_of(2).then_some(3_000) };
        let faults = FaultModel {
            seed,
            drop: 0.01,
            duplicate: 0.05,
            wrong_scores: if seed % 5 == 4 { 0.05 } else { 0.0 },
            crashes: vec![Crash { server: 4, at_us: 300 + 100 * (seed % 24), back_at_us: Some(20_000) }],
            limits: Limits {
                patience_us: 100_000,
                attempts: 12,
                job_bytes: if seed.is_multiple_of(3) { 4000 } else { Limits::default().job_bytes },
                ..Limits::default()
            },
            cuts: if seed % 4 == 3 { Cut::partition(5, 0b11, 600, Some(4_000)) } else { vec![one] },
            reencodes: seed.is_multiple_of(5),
            ..FaultModel::default()
        };
        let report = place.run(&placed, params, &faults);
        self.jobs += report.jobs;
        self.forwards += report.forwards;
        self.cut += report.cut_frames;
        // Clients of the server that crashes may have no reply.
        for query in (0..ASKED).filter(|q| q % 5 != 4) {
            let what = format!("seed {seed}, query {query}");
            let [(_, Reply::Answer(state))] = report.replies[query].as_slice() else {
                panic!("{what}: {:?}", report.replies[query]);
            };
            match state.outcome() {
                Outcome::Complete if faults.wrong_scores == 0.0 => {
                    assert_eq!(state.results(), place.alone(query, params).results(), "{what}");
                    self.whole += 1;
                }
                Outcome::Complete => assert!(state.results().len() <= 10),
                other => {
                    assert!(other == Outcome::Partial && state.stats().unreachable > 0, "{what}: {other:?}");
                    self.partial += 1;
                }
            }
        }
    }
}

#[test]
fn crashes_and_cuts_give_one_answer_that_is_right_or_partial() {
    let mut sums = Storms::default();
    (0..45).for_each(|seed| sums.storm(seed));
    assert!(
        sums.jobs > 500 && sums.forwards > 100 && sums.cut > 20 && sums.whole > 4 * sums.partial,
        "{sums:?}"
    );
}

/// A thousand seeds; `STRATANN_SEEDS=n` for another number.
#[test]
#[ignore = "minutes: make nightly"]
fn in_thousands_of_storms_a_grid_gives_one_answer_that_is_right_or_partial() {
    let seeds = std::env::var("STRATANN_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(1000);
    let mut sums = Storms::default();
    (1000..1000 + seeds).for_each(|seed| sums.storm(seed));
    assert!(sums.whole > 4 * sums.partial, "{sums:?}");
}

#[test]
fn without_replicas_a_dead_server_makes_answers_partial() {
    let place = place(Metric::L2);
    for mode in MODES {
        let crashes = vec![Crash { server: 2, at_us: 0, back_at_us: None }];
        let faults = FaultModel { crashes, notice_us: 0, ..FaultModel::default() };
        let report = place.run(&place.divided(4, 1, mode), asked(1, true), &faults);
        let partial = (0..ASKED).filter(|q| q % 4 != 2).filter(|&query| {
            let state = answer(&report, query);
            assert_eq!(state.outcome() == Outcome::Partial, state.stats().unreachable > 0);
            state.outcome() == Outcome::Partial
        });
        assert!(partial.count() > ASKED / 2, "{mode:?}");
    }
}
