//! Queries over inverted lists on several servers. They are handed over along the ranked lists and then to the records,
//! or ask other servers for scores.

mod fixture;

use std::sync::OnceLock;

use fixture::common::{Built, Set, clustered, list_options, quick, run_plain, with_lists};
use fixture::{LONG_US, answer, read_from};
use stratann_core::exact::Bounds;
use stratann_core::format::directory::{Directory, LocalKind};
use stratann_core::hash::hash;
use stratann_core::kinds::KindView;
use stratann_core::peer::Limits;
use stratann_core::place::Placement;
use stratann_core::query::{Budget, Extent, Outcome, Params, QueryState, ScoringMode};
use stratann_engine::build::{IndexKind, LocalPlan};
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::{DType, Metric};
use stratann_sim::{
    Cluster, Crash, Cut, FaultModel, Left, Reply, Report, Stores, SubmittedQuery, Task, Work, record, run,
    time,
};

const DIM: usize = 16;
const ASKED: usize = 20;

/// Sums over all queries: on one server and on several, and what several have besides.
#[derive(Debug, Default)]
struct Sums {
    lists: [u64; 2],
    records: [u64; 2],
    pages: [u64; 2],
    hand_overs: u64,
    jobs: u64,
    rounds: u64,
}

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
        let options = list_options(quick(IndexKind::HybridIvf, Metric::L2), |own| {
            (own.clusters, own.plan) = (Some(40), LocalPlan::Uniform(local).into());
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
        self.run_on(&self.built.index, placement, params, faults)
    }

    fn submitted(&self, placement: &Placement, params: Params) -> impl Iterator<Item = SubmittedQuery<'_>> {
        let servers = placement.servers();
        (0..ASKED).map(move |q| SubmittedQuery {
            at_us: 50 * q as u64,
            origin: (q % servers) as u8,
            vector: self.queries.row(q),
            params,
            budget: Budget::default(),
            time_us: 60 * LONG_US,
        })
    }

    fn run_on(&self, index: &Index, placement: &Placement, params: Params, faults: &FaultModel) -> Report {
        let submitted: Vec<_> = self.submitted(placement, params).collect();
        let cluster = Cluster { view: index.view(), placement, stores: self };
        let report = run(&cluster, &submitted, faults);
        assert_eq!((report.left, report.refused), (Left::default(), 0));
        report
    }

    /// Compares all answers with those of one server. Returns the sums of counters, of one server and of several.
    fn compare(&self, servers: usize, report: &Report, params: Params) -> Sums {
        self.compare_on(&self.built.index, servers, report, params)
    }

    fn compare_on(&self, index: &Index, servers: usize, report: &Report, params: Params) -> Sums {
        let mut sums = Sums::default();
        for query in 0..ASKED {
            let (here, there) = (self.alone_on(index, query, params), answer(report, query));
            let what = format!("{servers} servers, query {query}, {params:?}");
            assert_eq!(there.outcome(), Outcome::Complete, "{what}");
            assert_eq!(here.results(), there.results(), "{what}");
            for (i, stats) in [here.stats(), there.stats()].into_iter().enumerate() {
                sums.lists[i] += stats.lists;
                sums.records[i] += stats.full_comparisons;
                sums.pages[i] += stats.pages_read;
            }
            sums.hand_overs += there.stats().hand_overs;
            sums.jobs += there.stats().score_jobs;
            sums.rounds += there.stats().score_rounds;
        }
        sums
    }

    fn alone(&self, query: usize, params: Params) -> QueryState {
        self.alone_on(&self.built.index, query, params)
    }

    fn alone_on(&self, index: &Index, query: usize, params: Params) -> QueryState {
        let view = index.view();
        run_plain(&view, &self.file, self.queries.row(query), params, Budget::default(), 1)
    }
}

/// The ways to use lists of other servers.
const MOVES: [ScoringMode; 3] = [ScoringMode::HandOver, ScoringMode::Score, ScoringMode::Forward];

#[test]
fn a_query_finds_the_same_on_any_number_of_servers() {
    for (local, remote) in LocalKind::ALL.into_iter().flat_map(|l| MOVES.map(|m| (l, m))) {
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
                let params = with_lists(params, |own| {
                    (own.bounds, own.bound_slack, own.remote) = (bounds, slack, remote);
                });
                let faults = FaultModel { reencodes: width > 1, ..FaultModel::default() };
                let report = place.run(&place.scattered(servers, replicas), params, &faults);
                let sums = place.compare(servers, &report, params);
                let what = format!("{local:?}, {servers} servers, width {width}, {bounds:?}: {sums:?}");
                assert_eq!(sums.lists[0], sums.lists[1], "{what}");
                assert!(sums.pages[1] as f64 <= 1.05 * sums.pages[0] as f64, "{what}");
                let hand_overs = report.batons + report.forwards;
                assert_eq!((hand_overs, report.jobs), (sums.hand_overs, sums.jobs), "{what}");
                let travels = local == LocalKind::Graph || bounds == Bounds::Off;
                if servers > 1 && remote != ScoringMode::HandOver && !travels {
                    let asked = ASKED as u64;
                    assert!(report.batons == 0 && (asked..=3 * asked).contains(&sums.rounds), "{what}");
                    // One other server may hold all that is missing.
                    let is_forwarded = remote == ScoringMode::Forward && servers > replicas + 1;
                    assert_eq!(report.forwards > 0, is_forwarded, "{what}");
                } else {
                    // Of lists that are read with their records a scorer scores more than one server would.
                    let is_near = sums.records[1].abs_diff(sums.records[0]) as f64;
                    assert!(is_near <= 0.03 * sums.records[0] as f64, "{what}");
                    assert_eq!(sums.hand_overs > 0, servers > 1, "{what}");
                }
            }
        }
    }
}

#[test]
fn vectors_of_other_servers_are_scored_there_where_all_list_codes_are_resident() {
    let place = place(LocalKind::Flat);
    let index = Index::open(place.built.dir.path(), OpenOptions::default()).unwrap();
    let ways = [ScoringMode::Score, ScoringMode::Forward].into_iter();
    for (remote, (servers, replicas, width)) in
        ways.flat_map(|r| [(3, 1, 1), (4, 2, 8), (10, 1, 4)].map(|s| (r, s)))
    {
        let params = Params { width, approach_width: width, ..Params::hybrid_ivf(10, 12) };
        let params = with_lists(params, |own| own.remote = remote);
        let placement = place.scattered(servers, replicas);
        let report = place.run_on(&index, &placement, params, &FaultModel::default());
        let sums = place.compare_on(&index, servers, &report, params);
        let what = format!("{servers} servers: {sums:?}");
        assert_eq!(sums.hand_overs > 0, remote == ScoringMode::Forward, "{what}");
        assert!(report.batons == 0 && sums.jobs > 0 && sums.rounds <= 2 * ASKED as u64, "{what}");
        assert_eq!(sums.lists[0], sums.lists[1], "{what}");
        let records = sums.records.map(|records| records as f64);
        assert!((records[1] - records[0]).abs() <= 0.03 * records[0], "{what}");
    }
}

/// Two servers hold lists that the other does not reach, and nobody else has. Others reach both.
#[test]
fn a_cut_link_changes_no_answer_where_another_server_reaches_both_ends() {
    for (local, remote) in LocalKind::ALL.into_iter().flat_map(|l| MOVES.map(|m| (l, m))) {
        let place = place(local);
        let params = Params { width: 4, approach_width: 4, ..Params::hybrid_ivf(10, 12) };
        let params = with_lists(params, |own| own.remote = remote);
        let cuts = vec![Cut { between: (1, 3), from_us: 0, until_us: None }];
        let faults = FaultModel { cuts, notice_us: 0, ..FaultModel::default() };
        let report = place.run(&place.scattered(4, 1), params, &faults);
        place.compare(4, &report, params);
        assert!(remote == ScoringMode::HandOver || report.forwards > 0, "{local:?}, {remote:?}");
    }
}

/// Scorers accept one or two jobs of each server at a time; all others wait, in any of the ways.
#[test]
fn with_few_credits_jobs_wait_and_no_answer_changes() {
    for (local, remote) in LocalKind::ALL.into_iter().flat_map(|l| MOVES.map(|m| (l, m))) {
        let place = place(local);
        let params = with_lists(Params::hybrid_ivf(10, 12), |own| own.remote = remote);
        let limits = Limits { job_bytes: 1000, ..Limits::default() };
        let faults = FaultModel { limits, ..FaultModel::default() };
        let report = place.run(&place.scattered(4, 2), params, &faults);
        place.compare(4, &report, params);
        let what = format!("{local:?}, {remote:?}: {} of {}", report.delayed_jobs, report.jobs);
        assert_eq!(report.delayed_jobs > 0, report.jobs > 0, "{what}");
    }
}

/// Counts of the queries of storms: whole and partial answers; reads lost, jobs, times that they were forwarded, and
/// frames that cut links lost.
#[derive(Debug, Default)]
struct Storms {
    whole: usize,
    partial: usize,
    lost: u64,
    jobs: u64,
    forwards: u64,
    cut: u64,
}

impl Storms {
    /// A crash, a bad disk, lost and repeated frames, and a link that is cut or a partition that heals.
    fn storm(&mut self, seed: u64, width: u32, remote: ScoringMode) {
        let place = place(LocalKind::ALL[seed as usize % 3]);
        let params = Params { width, approach_width: width, ..Params::hybrid_ivf(10, 12) };
        let params = with_lists(params, |own| {
            (own.bound_slack, own.remote) = (1.0, remote);
        });
        let one = Cut { between: (0, 2), from_us: 500, until_us: seed.is_multiple_of(2).then_some(3_000) };
        let faults = FaultModel {
            seed,
            drop: 0.01,
            duplicate: 0.05,
            // A lost read begins a handed-over query again, and a cluster that is a graph takes many reads.
            failing_reads: 0.002,
            bad_disks: vec![(1, 0.2)],
            crashes: vec![Crash { server: 4, at_us: 300 + 100 * (seed % 24), back_at_us: Some(20_000) }],
            limits: Limits {
                patience_us: 100_000,
                attempts: 12,
                job_bytes: if seed.is_multiple_of(3) { 1500 } else { Limits::default().job_bytes },
                ..Limits::default()
            },
            cuts: if seed % 4 == 3 { Cut::partition(5, 0b11, 600, Some(4_000)) } else { vec![one] },
            reencodes: seed.is_multiple_of(5),
            old_servers: if seed.is_multiple_of(4) { 0b01010 } else { 0 },
            ..FaultModel::default()
        };
        let report = place.run(&place.scattered(5, 3), params, &faults);
        self.lost += report.lost_reads;
        self.jobs += report.jobs;
        self.forwards += report.forwards;
        self.cut += report.cut_frames;
        // Clients of the server that crashes may have no reply.
        for query in (0..ASKED).filter(|q| q % 5 != 4) {
            let what = format!("seed {seed}, width {width}, {remote:?}, query {query}");
            let [(_, Reply::Answer(state))] = report.replies[query].as_slice() else {
                panic!("{what}: {:?}", report.replies[query]);
            };
            match state.outcome() {
                Outcome::Complete => {
                    assert_eq!(state.results(), place.alone(query, params).results(), "{what}");
                    self.whole += 1;
                }
                other => {
                    assert!(other == Outcome::Partial && state.stats().unreachable > 0, "{what}: {other:?}");
                    self.partial += 1;
                }
            }
        }
    }
}

#[test]
fn bad_disks_crashes_and_cuts_give_one_answer_that_is_right_or_partial() {
    let mut sums = Storms::default();
    for (seed, remote) in (0..24).flat_map(|seed| MOVES.map(|m| (seed, m))) {
        sums.storm(seed, [1, 4, 8][seed as usize / 3 % 3], remote);
    }
    // A query went to and fro here once, because a list that was read elsewhere was no longer known as lost.
    sums.storm(1047, 8, ScoringMode::HandOver);
    let Storms { whole, partial, lost, jobs, forwards, cut } = sums;
    assert!(jobs > 1000 && forwards > 200 && lost > 100 && cut > 20 && whole > 2 * partial, "{sums:?}");
}

/// A thousand seeds of each move; `STRATANN_SEEDS=n` for another number.
#[test]
#[ignore = "minutes: make nightly"]
fn in_thousands_of_storms_lists_give_one_answer_that_is_right_or_partial() {
    let seeds = std::env::var("STRATANN_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(1000);
    let mut sums = Storms::default();
    for (seed, remote) in (1000..1000 + seeds).flat_map(|seed| MOVES.map(|m| (seed, m))) {
        [1, 4, 8].into_iter().for_each(|width| sums.storm(seed, width, remote));
    }
    assert!(sums.whole > 2 * sums.partial, "{sums:?}");
}

#[test]
fn scores_that_make_no_sense_end_no_query_in_another_way_than_lost_ones() {
    let mut right = 0;
    for seed in 0..60 {
        let place = place(LocalKind::ALL[seed as usize % 3]);
        let params = with_lists(Params::hybrid_ivf(20, 24), |own| own.remote = ScoringMode::Score);
        let faults = FaultModel { seed, wrong_scores: 0.3, ..FaultModel::default() };
        let report = place.run(&place.scattered(4, 2), params, &faults);
        assert!(2 * report.jobs >= ASKED as u64, "{} jobs", report.jobs);
        for query in 0..ASKED {
            let [(_, Reply::Answer(state))] = report.replies[query].as_slice() else {
                panic!("seed {seed}, query {query}: {:?}", report.replies[query]);
            };
            assert!(state.outcome() != Outcome::Running && state.results().len() <= 20);
            right += usize::from(state.results() == place.alone(query, params).results());
        }
    }
    assert!(right > 60 * ASKED / 2, "{right}");
}

/// A job goes to the servers of its lists in turn, where each prunes by the scores of those before: fewer messages, and
/// less to send back. Servers of an earlier version score what they hold; the rest is asked for again.
#[test]
fn a_forwarded_job_visits_all_servers_that_hold_its_lists() {
    let place = place(LocalKind::Flat);
    let params = Params { width: 8, approach_width: 8, ..Params::hybrid_ivf(10, 12) };
    let placement = place.scattered(10, 1);
    let run = |remote, old_servers| {
        let params = with_lists(params, |own| own.remote = remote);
        let report = place.run(&placement, params, &FaultModel { old_servers, ..FaultModel::default() });
        let sums = place.compare(10, &report, params);
        let all_lists_are_scanned = sums.lists[0] == sums.lists[1];
        assert!(all_lists_are_scanned && report.batons == 0, "{remote:?}: {sums:?}");
        (report, sums)
    };
    let (at_once, _) = run(ScoringMode::Score, 0);
    let (forwarded, sums) = run(ScoringMode::Forward, 0);
    assert_eq!(forwarded.jobs, sums.rounds, "one job a round");
    assert!(forwarded.jobs + forwarded.forwards <= at_once.jobs, "no server is visited twice");
    assert!(forwarded.score_bytes < at_once.score_bytes);
    let (mixed, _) = run(ScoringMode::Forward, 0b10_1010_1010);
    assert!(mixed.forwards == 0 && mixed.jobs > forwarded.jobs, "states travel in the oldest version");
}

#[test]
fn without_replicas_a_dead_server_makes_answers_partial() {
    for (local, remote) in LocalKind::ALL.into_iter().flat_map(|l| MOVES.map(|m| (l, m))) {
        let place = place(local);
        let crashes = vec![Crash { server: 2, at_us: 0, back_at_us: None }];
        let faults = FaultModel { crashes, notice_us: 0, ..FaultModel::default() };
        let params = with_lists(Params::hybrid_ivf(10, 12), |own| own.remote = remote);
        let report = place.run(&place.scattered(4, 1), params, &faults);
        let partial = (0..ASKED).filter(|q| q % 4 != 2).filter(|&query| {
            let state = answer(&report, query);
            assert_eq!(state.outcome() == Outcome::Partial, state.stats().unreachable > 0);
            state.outcome() == Outcome::Partial
        });
        assert!(partial.count() > ASKED / 2);
    }
}

/// The trace of a query that asks others for scores has all the work that real servers do: each server that scores
/// lists prepares the query's tables, and a job that scores vectors needs none.
#[test]
fn traces_have_the_work_of_jobs() {
    let place = place(LocalKind::Flat);
    let placement = place.scattered(4, 1);
    let params = Params { width: 8, approach_width: 8, ..Params::hybrid_ivf(10, 12) };
    let scoring = with_lists(params, |own| own.remote = ScoringMode::Score);
    let submitted: Vec<_> = place.submitted(&placement, scoring).collect();
    let cluster = Cluster { view: place.built.index.view(), placement: &placement, stores: place };
    let (report, traces) = record(&cluster, &submitted, &FaultModel::default());
    let (mut jobs, mut prepared, mut bytes, mut read_bytes) = (0, 0, 0, 0);
    for (query, trace) in traces.iter().enumerate() {
        let (work, stats) = (trace.work(), *answer(&report, query).stats());
        assert_eq!(u64::from(work.route_comparisons + work.code_comparisons), stats.code_comparisons);
        assert_eq!(u64::from(work.full_comparisons), stats.full_comparisons);
        assert_eq!((u64::from(work.reads), work.requests), (stats.reads, 1));
        let sends: Vec<u32> = trace.tasks().iter().filter_map(|t| sent_bytes(t.1)).collect();
        assert_eq!(work.messages as usize, 2 * sends.len());
        assert_eq!(work.message_bytes, 2 * sends.iter().sum::<u32>());
        let all: u64 =
            trace.tasks().iter().map(|t| if let Task::Read { bytes } = t.1 { bytes.into() } else { 0 }).sum();
        assert_eq!(all, stats.bytes_read);
        assert!(u64::from(work.prepared) > 1 && u64::from(work.prepared) <= 1 + stats.score_jobs, "{work:?}");
        // Nothing but the first step of the query itself finds where to begin.
        let routes =
            trace.tasks().iter().filter(|t| matches!(t.1, Task::Think(w) if w.route_comparisons > 0));
        assert_eq!(routes.map(|t| t.0).collect::<Vec<_>>(), [submitted[query].origin]);
        jobs += stats.score_jobs;
        prepared += u64::from(work.prepared) - 1;
        bytes += u64::from(work.message_bytes);
        read_bytes += all;
    }
    assert!(jobs > prepared && prepared > ASKED as u64, "{jobs} jobs, {prepared} of lists");
    assert_eq!(bytes, 2 * (report.job_bytes + report.score_bytes + report.vector_bytes + report.other_bytes));
    assert!(read_bytes > 4096 * report.reads.iter().sum::<u64>(), "some lists are longer than a page");

    // Timed work is the same work, in the same order each time.
    let ticks = std::cell::Cell::new(0);
    let clock = || {
        ticks.set(ticks.get() + 5);
        ticks.get()
    };
    let timed = time(&cluster, &submitted, &FaultModel::default(), &clock);
    assert!(timed.iter().all(|one| one.ns >= 5));
    let sum = |work: &mut dyn Iterator<Item = Work>| {
        work.fold(Work::default(), |mut all, one| {
            all.add(&one);
            all
        })
    };
    let traced = sum(&mut traces.iter().map(|trace| trace.work()));
    let timed_work = sum(&mut timed.iter().map(|one| one.work));
    assert_eq!(Work { requests: 0, ..traced }, timed_work);
    assert_eq!(time(&cluster, &submitted, &FaultModel::default(), &clock), timed);
}

fn sent_bytes(task: Task) -> Option<u32> {
    if let Task::Send { bytes } = task { Some(bytes) } else { None }
}
