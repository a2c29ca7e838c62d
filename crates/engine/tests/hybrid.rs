//! `hybrid-ivf`: bounds lose nothing, equal inputs give equal bytes and counters, damage is never an answer.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use stratann_params::choices::{BoundsName, OrderName};
use stratann_params::search::ListSwitches;

use common::{Impatient, Set, clustered, list_options, normal, queries, quick, run_plain, with_lists};
use proptest::prelude::*;
use stratann_core::build::hash;
use stratann_core::format::directory::LocalKind;
use stratann_core::kinds::hybrid_ivf::MAX_PROBES;
use stratann_core::query::{Budget, Mode, Outcome, Params};
use stratann_engine::build::{BuildOptions, IndexKind, LocalPlan, build};
use stratann_engine::exec::Width;
use stratann_engine::groundtruth;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{Answers, Effort, Filters, Naming, Reserve, SearchOptions};
use stratann_engine::{DType, Metric, verify};
use stratann_storage::Quiet;
use tempfile::TempDir;

const EVERY_BOUND: [BoundsName; 4] =
    [BoundsName::Off, BoundsName::Centroid, BoundsName::Code, BoundsName::Both];
const FLAT: LocalPlan = LocalPlan::Uniform(LocalKind::Flat);
const IVF: LocalPlan = LocalPlan::Uniform(LocalKind::Ivf);
// Opened without codes in RAM: they are read before the walk. See `local_graph.rs` for walks.
const GRAPH: LocalPlan = LocalPlan::Uniform(LocalKind::Graph);

fn options(metric: Metric, clusters: usize, local_plan: LocalPlan) -> BuildOptions {
    let quick = quick(IndexKind::HybridIvf, metric);
    list_options(quick, |own| (own.clusters, own.plan) = (Some(clusters), local_plan.into()))
}

fn built(set: &Set, options: &BuildOptions) -> (TempDir, Index) {
    let dir = tempfile::tempdir().unwrap();
    build(&set.reader(), dir.path(), options, &Quiet).unwrap_or_else(|e| panic!("{options:?}: {e}"));
    let on_disk = OpenOptions { head_budget: Some(0), ..OpenOptions::default() };
    let index = Index::open(dir.path(), on_disk).unwrap();
    (dir, index)
}

/// Visits so many clusters, all lists and members of each, with bounds that are certain.
fn visit(k: usize, clusters: u32, bounds: BoundsName) -> SearchOptions {
    SearchOptions {
        k,
        effort: Effort::Nprobe(clusters, None, None),
        switches: ListSwitches {
            bounds,
            local_lists: Some(u32::MAX),
            local_list: Some(4096),
            ..ListSwitches::default()
        }
        .into(),
        ..SearchOptions::default()
    }
}

fn search(index: &Index, asked: &[u8], options: &SearchOptions) -> Answers {
    let answers = index.search(asked, options, &Quiet).unwrap();
    assert!(answers.failed.is_empty(), "{options:?}: {:?}", answers.failed);
    answers
}

/// With every cluster visited all bounds give the exact answers, ids and distances.
fn assert_exact(set: &Set, asked: &Set, options: &BuildOptions, k: usize) {
    let (dir, index) = built(set, options);
    let report = verify::verify(dir.path(), &Quiet).unwrap();
    assert_eq!((report.violations.as_slice(), report.nodes), (&[][..], set.shape.rows), "{options:?}");
    let truth =
        groundtruth::exact(&set.reader(), &asked.reader(), options.metric, k, 1 << 30, &Quiet).unwrap();
    let ids: Vec<u64> = truth.ids.iter().map(|&id| u64::from(id)).collect();
    let homes = index.clusters_of(&ids.iter().copied().collect()).unwrap();
    let result_clusters =
        |ids: &[u64]| ids.iter().map(|id| homes[id]).collect::<std::collections::BTreeSet<_>>().len() as u64;
    let result_clusters: u64 = ids.chunks(truth.k).map(result_clusters).sum();
    for bounds in EVERY_BOUND {
        let answers = search(&index, &asked.bytes, &visit(k, MAX_PROBES, bounds));
        let all = u64::from(index.view().kind.hybrid_ivf().copied().unwrap().directory.clusters());
        assert_eq!(
            answers.stats.clusters,
            all * asked.shape.rows,
            "{options:?}: not every cluster is visited"
        );
        assert_eq!(answers.stats.result_clusters, result_clusters, "{options:?}, {bounds:?}");
        let wrong = (0..ids.len()).find(|&i| {
            answers.ids[i] != ids[i] || answers.distances[i].to_bits() != truth.distances[i].to_bits()
        });
        if let Some(at) = wrong {
            panic!(
                "{options:?}, {bounds:?}, query {}, rank {}: {} at {}, not {} at {}",
                at / truth.k,
                at % truth.k,
                answers.ids[at],
                answers.distances[at],
                ids[at],
                truth.distances[at]
            );
        }
    }
}

#[test]
fn every_bound_gives_the_exact_answers_when_every_cluster_is_visited() {
    let (rows, asked) = (clustered(1500, 20, 10, 1), clustered(12, 20, 10, 2));
    for dtype in [DType::F32, DType::F16, DType::U8, DType::I8] {
        let (set, asked) = (Set::new(dtype, 20, &rows), Set::new(dtype, 20, &asked));
        for metric in [Metric::L2, Metric::Cosine, Metric::Ip] {
            for plan in [FLAT, IVF, GRAPH] {
                assert_exact(&set, &asked, &options(metric, 40, plan), 10);
            }
        }
    }
}

/// Rows that are hard on roundings, codes or clusters.
fn odd_rows(what: u32, dim: usize, seed: u64) -> Vec<f32> {
    let rows = clustered(150, dim, 6, seed);
    let noise = |i: usize| normal(seed, 9, i as u64);
    match what {
        // Each of a few rows many times.
        0 => (0..150).flat_map(|i| rows[i % 7 * dim..(i % 7 + 1) * dim].to_vec()).collect(),
        1 => rows[..dim].repeat(150),
        // Nearly all in one place, a few far away.
        2 => (0..150 * dim).map(|i| if i < 140 * dim { 0.01 * noise(i) } else { 50.0 + noise(i) }).collect(),
        3 => rows.iter().map(|x| x + 20_000.0).collect(),
        4 => rows.iter().map(|x| x * 1e-5).collect(),
        5 => rows.iter().enumerate().map(|(i, x)| if i < 3 * dim { 0.0 } else { *x }).collect(),
        6 => rows.iter().map(|x| x.round()).collect(),
        7 => rows.iter().map(|x| x * 1e6 + 1e7).collect(),
        _ => rows
            .iter()
            .enumerate()
            .map(|(i, x)| if (i / dim).is_multiple_of(2) { x * 1e-3 } else { x * 1e3 })
            .collect(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 90, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn odd_data_is_searched_exactly(
        what in 0u32..9,
        dim in 1usize..24,
        clusters in prop_oneof![Just(1usize), Just(150), 2usize..40],
        is_ivf in any::<bool>(),
        metric in prop_oneof![Just(Metric::L2), Just(Metric::Cosine), Just(Metric::Ip)],
        k in prop_oneof![Just(1usize), Just(10), Just(150)],
        seed in 0u64..1000,
    ) {
        // A zero has no direction.
        let metric = if what == 5 || what == 6 && metric == Metric::Cosine { Metric::L2 } else { metric };
        let rows = odd_rows(what, dim, seed);
        // Rows themselves, points between two of them, and others of their kind.
        let mut asked: Vec<f32> = rows[..2 * dim].to_vec();
        asked.extend((0..3 * dim).map(|i| 0.5 * (rows[i] + rows[100 * dim + i])));
        asked.extend(&odd_rows(what, dim, seed + 1)[..2 * dim]);
        let is_zero = asked.chunks_exact(dim).any(|row| row.iter().all(|&x| x == 0.0));
        prop_assume!(metric != Metric::Cosine || !is_zero);
        let plan = if is_ivf { IVF } else { FLAT };
        let options = BuildOptions { seed, ..options(metric, clusters, plan) };
        assert_exact(&Set::new(DType::F32, dim, &rows), &Set::new(DType::F32, dim, &asked), &options, k);
    }
}

/// A few thousand rows that several tests share.
struct Place {
    _dir: TempDir,
    index: Index,
    set: Set,
    bytes: Arc<Vec<u8>>,
}

fn place(plan: LocalPlan) -> &'static Place {
    static PLACES: [OnceLock<Place>; 2] = [OnceLock::new(), OnceLock::new()];
    PLACES[usize::from(plan == IVF)].get_or_init(|| {
        let set = Set::new(DType::F32, 24, &clustered(4000, 24, 12, 1));
        let (dir, index) = built(&set, &options(Metric::L2, 50, plan));
        let bytes = Arc::new(std::fs::read(dir.path().join("v1-lists.bin")).unwrap());
        Place { _dir: dir, index, set, bytes }
    })
}

/// However few clusters are visited: what bounds discard is not among the best of these.
#[test]
fn bounds_change_no_answer_however_little_is_visited() {
    let asked = queries(40, 24);
    for plan in [FLAT, IVF] {
        let index = &place(plan).index;
        for (clusters, lists) in [(1, 1), (2, 2), (5, u32::MAX), (20, 3)] {
            let ask = |bounds| {
                let mut options = visit(10, clusters, bounds);
                let local_lists = Some(lists);
                options.switches = ListSwitches { local_lists, ..options.switches.own() }.into();
                search(index, &asked.bytes, &options)
            };
            let all = ask(BoundsName::Off);
            for bounds in [BoundsName::Centroid, BoundsName::Code, BoundsName::Both] {
                let some = ask(bounds);
                assert_eq!(
                    (&some.ids, &some.distances),
                    (&all.ids, &all.distances),
                    "{plan:?} {clusters} {bounds:?}"
                );
                assert_eq!(some.stats.clusters, all.stats.clusters);
            }
        }
    }
}

/// BoundsName are there to read less.
#[test]
fn bounds_save_comparisons() {
    let asked = queries(20, 24);
    for plan in [FLAT, IVF] {
        let compared =
            |bounds| search(&place(plan).index, &asked.bytes, &visit(10, 20, bounds)).stats.full_comparisons;
        let [off, _, code, both] = EVERY_BOUND.map(compared);
        assert!(code * 2 < off && both <= code, "{off} {code} {both}");
    }
}

/// Where all clusters with a row of a filter are visited in any case, only these are compared with the query.
#[test]
fn clusters_of_few_rows_are_not_searched_for() {
    let place = place(FLAT);
    let asked = Set::new(DType::F32, 24, &clustered(20, 24, 12, 9));
    let options = visit(10, 8, BoundsName::Both);
    let ids = [3, 500, 900, 1200];
    let filter = place.index.filter(&ids, Naming::Only, &options, &Quiet).unwrap();
    let filters = Filters::Shared(&filter);
    let few = place.index.search_filtered(&asked.bytes, filters, &options, &Quiet).unwrap();
    let all = search(&place.index, &asked.bytes, &options);
    assert!(few.counts.iter().all(|&count| count as usize == ids.len()));
    // At most a cluster and a code for each row.
    assert!(few.stats.code_comparisons <= 20 * 2 * ids.len() as u64, "{:?}", few.stats);
    assert!(all.stats.code_comparisons > 4 * few.stats.code_comparisons);
}

fn params(k: u32, clusters: u32, width: u32, mode: Mode) -> Params {
    let params = Params { width, approach_width: width, mode, ..Params::hybrid_ivf(k, clusters) };
    with_lists(params, |own| (own.early_stop, own.bound_slack) = (0.5, 2.0))
}

#[test]
fn the_order_of_arrival_changes_nothing_behind_a_barrier() {
    let asked = queries(12, 24);
    for plan in [FLAT, IVF] {
        let place = place(plan);
        for width in [1, 8] {
            for q in 0..asked.len() {
                let ask = |seed| {
                    let params = params(10, 12, width, Mode::Barrier);
                    run_plain(
                        &place.index.view(),
                        &place.bytes,
                        asked.row(q),
                        params,
                        Budget::default(),
                        seed,
                    )
                };
                let first = ask(1);
                assert_eq!((first.outcome(), first.results().len()), (Outcome::Complete, 10));
                for seed in 2..6 {
                    let other = ask(seed);
                    assert_eq!((other.results(), other.stats()), (first.results(), first.stats()));
                }
            }
        }
    }
}

#[test]
fn an_eager_query_ends_and_finds_most() {
    let asked = queries(30, 24);
    for plan in [FLAT, IVF] {
        let place = place(plan);
        let (mut found, mut wanted) = (0, 0);
        for q in 0..asked.len() {
            let truth = common::nearest(&place.set, Metric::L2, asked.row(q), 10, |_| false);
            for seed in 0..3 {
                let params = params(10, 25, 8, Mode::Eager);
                let state = run_plain(
                    &place.index.view(),
                    &place.bytes,
                    asked.row(q),
                    params,
                    Budget::default(),
                    seed,
                );
                assert_eq!(state.outcome(), Outcome::Complete);
                let ids: Vec<u64> = state.results().iter().map(|h| h.external_id).collect();
                found += common::hits(&ids, &truth);
                wanted += truth.len();
            }
        }
        assert!(found as f64 >= 0.9 * wanted as f64, "{plan:?}: {found} of {wanted}");
    }
}

#[test]
fn threads_and_queries_in_flight_change_no_answer_and_no_counter() {
    let asked = queries(40, 24);
    for plan in [FLAT, IVF] {
        let ask = |threads, in_flight| {
            let options = SearchOptions {
                effort: Effort::Nprobe(12, Some(2.0), Some(0.5)),
                threads,
                in_flight: Some(in_flight),
                width: Width::Fixed(2),
                ..SearchOptions::default()
            };
            let answers = search(&place(plan).index, &asked.bytes, &options);
            (answers.ids, answers.distances, answers.stats)
        };
        let one = ask(1, 1);
        assert!(one == ask(2, 16) && one == ask(4, 3));
    }
}

#[test]
fn heads_in_ram_save_reads_and_change_no_answer() {
    let asked = queries(40, 24);
    for plan in [FLAT, IVF] {
        let place = place(plan);
        let options = visit(10, 12, BoundsName::Both);
        let without = search(&place.index, &asked.bytes, &options);
        let mut before = without.stats.reads;
        for head_budget in [60 << 10, 64 << 20] {
            let open = OpenOptions { head_budget: Some(head_budget), ..OpenOptions::default() };
            let index = Index::open(place._dir.path(), open).unwrap();
            let held = index.account().components.iter().find(|c| c.0 == "codes in RAM").map_or(0, |c| c.1);
            assert!(held > 0 && held <= head_budget, "{held} of {head_budget}");
            let with = search(&index, &asked.bytes, &options);
            assert_eq!((&with.ids, &with.distances), (&without.ids, &without.distances));
            assert_eq!(with.stats.clusters, without.stats.clusters);
            assert!(with.stats.reads < before, "{} reads, {before} before", with.stats.reads);
            before = with.stats.reads;
        }
    }
}

/// Every file of an index folder by name, the lock aside.
#[test]
fn where_ram_is_short_fewer_queries_are_in_flight() {
    let set = Set::new(DType::F32, 16, &clustered(3000, 16, 8, 1));
    let (dir, _) = built(&set, &options(Metric::L2, 40, FLAT));
    let unlimited = Index::open(dir.path(), OpenOptions::default()).unwrap();
    let ask = visit(10, 8, BoundsName::Both);
    let of = |index: &Index, what: &str| {
        let account = index.search_account(&ask, 20);
        account.components.iter().filter(|c| c.0 == what).map(|c| c.1).sum::<u64>()
    };
    let (queries, codes) = (of(&unlimited, "queries in flight"), of(&unlimited, "codes in RAM"));
    let enough = unlimited.search_account(&ask, 20).total();
    let search_reserve =
        Reserve { bytes: enough - unlimited.account().total(), low_memory_bytes: queries / 2, threads: 1 };
    let open = |ram_budget| {
        let options = OpenOptions { ram_budget: Some(ram_budget), search_reserve, ..OpenOptions::default() };
        Index::open(dir.path(), options).unwrap()
    };
    let (wide, tight) = (open(enough), open(enough - 1));
    assert_eq!((of(&wide, "queries in flight"), of(&wide, "codes in RAM")), (queries, codes));
    assert_eq!(2 * of(&tight, "queries in flight"), queries);
    let asked = Set::new(DType::F32, 16, &clustered(20, 16, 8, 2));
    assert_eq!(search(&wide, &asked.bytes, &ask).ids, search(&tight, &asked.bytes, &ask).ids);
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let named = entries.map(|e| (e.file_name().into_string().unwrap(), e.path()));
    named.filter(|f| f.0 != "lock" && f.1.is_file()).map(|f| (f.0, std::fs::read(f.1).unwrap())).collect()
}

#[test]
fn the_number_of_threads_changes_no_byte() {
    let set = Set::new(DType::F32, 16, &clustered(2500, 16, 8, 1));
    for plan in [FLAT, IVF, GRAPH, LocalPlan::Auto] {
        for metric in [Metric::L2, Metric::Ip, Metric::Cosine] {
            let made = [1, 2, 3].map(|threads| {
                let options = BuildOptions { threads, calibration_queries: 40, ..options(metric, 30, plan) };
                files(built(&set, &options).0.path())
            });
            assert!(made[0].contains_key("v1-lists.bin"));
            for other in &made[1..] {
                for (name, bytes) in &made[0] {
                    assert!(other.get(name) == Some(bytes), "{name} differs, {plan:?} {metric:?}");
                }
            }
        }
    }
}

/// Written in parts, with samples that a budget cuts short: other bytes, the same answers.
#[test]
fn a_small_budget_changes_no_answer() {
    let set = Set::new(DType::F32, 96, &clustered(60_000, 96, 30, 1));
    let options = |ram_budget| BuildOptions {
        ram_budget,
        ..list_options(options(Metric::L2, 64, LocalPlan::Auto), |own| {
            (own.code_bytes, own.nav_samples) = (Some(8), 1.0);
        })
    };
    let asked = Set::new(DType::F32, 96, &clustered(10, 96, 30, 2));
    assert_exact(&set, &asked, &options(Some(31 << 20)), 10);
}

#[test]
fn a_build_that_was_stopped_anywhere_resumes_to_the_same_bytes() {
    let set = Set::new(DType::F32, 16, &clustered(800, 16, 8, 1));
    for plan in [FLAT, IVF, GRAPH] {
        let options = BuildOptions { calibration_queries: 10, ..options(Metric::L2, 30, plan) };
        let whole = built(&set, &options);
        let count = Impatient { asked: AtomicU64::new(0), patience: u64::MAX };
        let dir = tempfile::tempdir().unwrap();
        build(&set.reader(), dir.path(), &options, &count).unwrap();
        let questions = count.asked.load(Ordering::Relaxed);
        let mut stopped = 0;
        for patience in (0..questions).step_by((questions / 12).max(1) as usize) {
            let dir = tempfile::tempdir().unwrap();
            let stop = Impatient { asked: AtomicU64::new(0), patience };
            stopped += u32::from(build(&set.reader(), dir.path(), &options, &stop).is_err());
            let resumed = BuildOptions { resume: true, force: true, ..options.clone() };
            build(&set.reader(), dir.path(), &resumed, &Quiet).unwrap();
            let files = files(dir.path());
            let manifest = files.keys().find(|n| n.starts_with("manifest")).unwrap().clone();
            if manifest == "manifest-1.json" {
                assert_eq!(files, self::files(whole.0.path()), "stopped after {patience} questions");
            }
        }
        assert!(stopped >= 8, "{stopped} of about 12 were stopped");
    }
}

/// A resumed build does again only what had not finished.
#[test]
fn every_stage_is_done_once() {
    for plan in [LocalPlan::Auto, GRAPH] {
        assert_stages_are_done_once(&options(Metric::L2, 20, plan));
    }
}

fn assert_stages_are_done_once(options: &BuildOptions) {
    let set = Set::new(DType::F32, 16, &clustered(2000, 16, 8, 1));
    let names = ["clusters", "profile", "plan", "codebook", "lists", "navigation"];
    let whole = built(&set, options);
    // A profile that is given is taken at once.
    for (i, name) in names.iter().enumerate().filter(|n| *n.1 != "profile") {
        // Stopped with this stage's first question.
        let dir = tempfile::tempdir().unwrap();
        let stop = StopIn { wanted: i + 1, begun: AtomicU64::new(0), folder: dir.path().to_path_buf() };
        assert!(build(&set.reader(), dir.path(), options, &stop).is_err(), "{name}");
        let resumed = BuildOptions { resume: true, ..options.clone() };
        let report = build(&set.reader(), dir.path(), &resumed, &Quiet).unwrap();
        for before in &names[..i] {
            assert!(!report.stages.contains_key(*before), "{before} was done again after {name}");
        }
        assert!(report.stages.contains_key(*name), "{:?}", report.stages);
        assert_eq!(files(dir.path()), files(whole.0.path()));
    }
}

/// Interrupts once so many stages have finished, as the state that they leave says.
struct StopIn {
    wanted: usize,
    begun: AtomicU64,
    folder: std::path::PathBuf,
}

impl stratann_storage::Progress for StopIn {
    fn stage(&self, _: &str, _: u64, _: &str) {
        let state = std::fs::read(self.folder.join("partial/state.json")).unwrap_or_default();
        let state: serde_json::Value = serde_json::from_slice(&state).unwrap_or_default();
        let finished = state["finished"].as_object().map_or(0, |f| f.len());
        if finished >= self.wanted {
            self.begun.store(1, Ordering::Relaxed);
        }
    }
    fn advance(&self, _: u64) {}
    fn note(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        self.begun.load(Ordering::Relaxed) > 0
    }
}

#[test]
fn clusters_of_any_number_and_sets_of_any_size() {
    let asked = Set::new(DType::F32, 8, &clustered(5, 8, 4, 2));
    for (rows, clusters) in [(1, 1), (1, 50), (2, 1), (7, 7), (7, 100), (300, 1), (3000, 3000)] {
        let set = Set::new(DType::F32, 8, &clustered(rows, 8, 4, 1));
        for metric in [Metric::L2, Metric::Ip, Metric::Cosine] {
            for plan in [FLAT, IVF, GRAPH] {
                if rows == 3000 && (metric, plan) != (Metric::L2, FLAT) {
                    continue;
                }
                assert_exact(&set, &asked, &options(metric, clusters, plan), rows.min(20));
            }
        }
    }
}

#[test]
fn more_results_than_rows_are_all_rows() {
    let set = Set::new(DType::F32, 8, &clustered(30, 8, 4, 1));
    for plan in [FLAT, IVF] {
        let (_dir, index) = built(&set, &options(Metric::L2, 5, plan));
        let mut ids = search(&index, set.row(3), &visit(400, MAX_PROBES, BoundsName::Both)).ids;
        ids.sort_unstable();
        assert_eq!(ids, (0..30).collect::<Vec<u64>>());
    }
}

/// Every distance to a query of zeros is the same.
#[test]
fn a_query_of_zeros_is_answered() {
    let set = Set::new(DType::F32, 1, &odd_rows(6, 1, 0));
    let zeros = Set::new(DType::F32, 1, &[0.0, -0.0]);
    for plan in [FLAT, IVF] {
        assert_exact(&set, &zeros, &options(Metric::Ip, 150, plan), 150);
    }
}

/// A budget that is too little for any graph is found by trying: one byte less is too little for searches at all.
#[test]
fn a_budget_of_searches_without_room_for_a_graph_is_refused_or_planned_around() {
    let set = Set::new(DType::F32, 16, &clustered(1500, 16, 8, 1));
    let made = |search_budget: u64, plan: LocalPlan| {
        let options =
            list_options(options(Metric::L2, 20, plan), |own| own.search_budget = Some(search_budget));
        let dir = tempfile::tempdir().unwrap();
        build(&set.reader(), dir.path(), &options, &Quiet).map_err(|e| e.message)?;
        Ok::<_, String>(Manifest::read(dir.path()).unwrap().1)
    };
    let (mut least, mut refused) = (64u64 << 20, 1u64 << 20);
    while least - refused > 1 {
        let middle = (least + refused) / 2;
        match made(middle, LocalPlan::Auto) {
            Ok(_) => least = middle,
            Err(_) => refused = middle,
        }
    }
    let why = made(refused, LocalPlan::Auto).unwrap_err();
    assert!(why.contains("--search-budget") && why.contains("MiB or more"), "{why}");
    let planned = made(least, LocalPlan::Auto).unwrap();
    assert_eq!(planned.section.lists().unwrap().facts.kinds[LocalKind::Graph as usize], 0);
    assert_eq!(
        planned.section.lists().unwrap().plan.as_ref().unwrap().uniform_us[LocalKind::Graph as usize],
        None
    );
    let why = made(least, GRAPH).unwrap_err();
    assert!(why.contains("--search-budget leaves 0 B") && why.contains("--plan auto"), "{why}");
    // What it names will do.
    let named = why.split("give ").nth(1).and_then(|w| w.split("MiB").next()).unwrap();
    let graphs = made(named.parse::<u64>().unwrap() << 20, GRAPH).unwrap();
    assert!(graphs.section.lists().unwrap().facts.kinds[LocalKind::Graph as usize] > 0);
}

#[test]
fn a_cluster_too_large_for_a_graph_under_the_budget_is_refused_or_planned_around() {
    let set = Set::new(DType::F32, 8, &clustered(40_000, 8, 8, 1));
    let made = |mib: u64, plan: LocalPlan| {
        let options = BuildOptions { ram_budget: Some(mib << 20), ..options(Metric::L2, 1, plan) };
        let dir = tempfile::tempdir().unwrap();
        build(&set.reader(), dir.path(), &options, &Quiet).map_err(|e| e.message)
    };
    let why = made(1, GRAPH).unwrap_err();
    let named = why.split("give --ram-budget ").nth(1).and_then(|w| w.split("MiB").next()).unwrap();
    let named: u64 = named.parse().unwrap();
    let why = made(named, GRAPH).unwrap_err();
    assert!(why.contains("a cluster has 40000 vectors") && why.contains("--plan auto"), "{why}");
    made(2 * named, LocalPlan::Auto).unwrap();
}

/// Rows along 12 lines, most of them near the middle: several lists share a line, and some lie across another.
fn lines(rows: u64, seed: u64) -> Set {
    let value = |row: u64, i: u64| {
        let line = hash(seed, 1, row) % 12;
        let along = 1.5 * normal(seed, 2, row);
        1.5 * normal(11, line, i) + along * normal(12, line, i) + 0.3 * normal(seed, 500 + row, i)
    };
    let values: Vec<f32> = (0..rows).flat_map(|row| (0..24).map(move |i| value(row, i))).collect();
    Set::new(DType::F32, 24, &values)
}

/// An index, queries, and their true neighbours.
struct Asked {
    _dir: TempDir,
    index: Index,
    queries: Set,
    truth: Vec<u32>,
}

impl Asked {
    fn new() -> Asked {
        let (set, queries) = (lines(9000, 1), lines(150, 2));
        let (_dir, index) = built(&set, &options(Metric::L2, 90, FLAT));
        let truth = groundtruth::exact(&set.reader(), &queries.reader(), Metric::L2, 10, 1 << 30, &Quiet);
        Asked { _dir, index, queries, truth: truth.unwrap().ids }
    }

    /// True neighbours that are found, of ten each, and clusters that are visited.
    fn found(&self, effort: Effort, switches: ListSwitches) -> (usize, u64) {
        let options = SearchOptions { k: 10, effort, switches: switches.into(), ..SearchOptions::default() };
        let answers = search(&self.index, &self.queries.bytes, &options);
        let pairs = answers.ids.chunks(10).zip(self.truth.chunks(10));
        let hits = pairs.map(|(ids, truth)| truth.iter().filter(|&&id| ids.contains(&u64::from(id))).count());
        (hits.sum(), answers.stats.clusters)
    }
}

/// The order of lists and the early stop (OrchANN §5.3), and the weights of what fruitless lists tell.
#[test]
fn the_order_of_lists_finds_more_in_few_and_the_early_stop_visits_fewer() {
    let asked = Asked::new();
    let usual = ListSwitches::default();
    let few = Effort::Nprobe(2, None, None);
    let by = |order| asked.found(few, ListSwitches { order: Some(order), ..usual });
    let [evidence, votes, centroid, expected] = OrderName::ALL.map(by);
    // All visit two lists; they differ in which ones. Counts of sampled members rank badly.
    assert!([votes, centroid, expected].iter().all(|other| other.1 == evidence.1));
    assert!(evidence.0 > 1400 && evidence.0 > 3 * votes.0, "{evidence:?} beside {votes:?}");
    assert!(centroid.0 > 1400 && centroid.0 != evidence.0, "{centroid:?} beside {evidence:?}");
    assert!(expected.0 < centroid.0 && expected.0 > votes.0, "{expected:?}");

    let share = Effort::Nprobe(90, None, Some(0.2));
    let (all, every) = asked.found(share, ListSwitches { stop_early: false, ..usual });
    assert_eq!((all, every), (1500, 90 * 150));
    let (unweighted, visited) = asked.found(share, ListSwitches { weights: false, ..usual });
    assert!(unweighted >= 1490 && 3 * visited < every, "{unweighted} in {visited}");
    let (weighted, fewer) = asked.found(share, usual);
    assert!(weighted >= 1490 && 3 * fewer < 2 * visited, "{weighted} in {fewer} beside {visited}");
}
