//! Answers depend on the index, the query and the parameters: not on resident data, nor on other searches at the same
//! time.

mod common;

use std::path::Path;
use stratann_params::choices::{BoundsName, CodePlace, OrderName, RuleName};
use stratann_params::search::{GpuSwitches, GraphSwitches, ListSwitches};

use common::{Set, clustered, graph_options, list_options, quick};
use proptest::prelude::*;
use proptest::sample::select;
use stratann_core::format::directory::LocalKind;
use stratann_core::query::QueryStats;
use stratann_engine::build::{BuildOptions, IndexKind, LocalPlan, build};
use stratann_engine::exec::Width;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::search::{Answers, Effort, SearchOptions};
use stratann_engine::{DType, Metric, groundtruth};
use stratann_storage::Quiet;
use tempfile::TempDir;

const QUERIES: usize = 30;

/// Memory of an open index, and how many search it at a time.
#[derive(Clone, Copy, Debug)]
struct Place {
    open: OpenOptions,
    threads: usize,
    in_flight: usize,
    // Whether a graph is moved into memory, as far as the cache budget has room.
    is_resident: bool,
}

fn lists(metric: Metric, clusters: usize, local_plan: LocalPlan) -> BuildOptions {
    let quick = quick(IndexKind::HybridIvf, metric);
    list_options(quick, |own| (own.clusters, own.plan) = (Some(clusters), local_plan.into()))
}

fn built(set: &Set, options: &BuildOptions) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    build(&set.reader(), dir.path(), options, &Quiet).unwrap_or_else(|e| panic!("{options:?}: {e}"));
    dir
}

fn search(folder: &Path, queries: &[u8], options: &SearchOptions, place: Place) -> Answers {
    let mut index = Index::open(folder, place.open).unwrap();
    if place.is_resident {
        index.make_resident(&Quiet).unwrap();
    }
    let options = SearchOptions { threads: place.threads, in_flight: Some(place.in_flight), ..*options };
    let answers = index.search(queries, &options, &Quiet).unwrap();
    assert!(answers.failed.is_empty(), "{place:?}: {:?}", answers.failed);
    answers
}

/// Budgets from nothing to everything: codes alone, codes and vectors, blocks.
fn places(folder: &Path, options: &SearchOptions) -> Vec<Place> {
    let bare = OpenOptions { head_budget: Some(0), ..OpenOptions::default() };
    let least = Index::open(folder, bare).unwrap().search_account(options, QUERIES).total();
    let lists =
        std::fs::read_dir(folder).unwrap().flatten().map(|e| e.metadata().unwrap().len()).sum::<u64>();
    let place = |open, threads, in_flight| Place { open, threads, in_flight, is_resident: false };
    let in_memory = |cache_budget, threads| Place {
        open: OpenOptions { cache_budget, ..OpenOptions::default() },
        threads,
        in_flight: 3,
        is_resident: true,
    };
    let heads = |share: u64| OpenOptions { head_budget: Some(lists * share / 256), ..OpenOptions::default() };
    let all = |share: u64| OpenOptions {
        ram_budget: Some(4 * least + lists * share / 16),
        cache_budget: lists * share / 64,
        ..OpenOptions::default()
    };
    vec![
        place(bare, 1, 1),
        place(bare, 2, 16),
        place(heads(8), 1, 1),
        place(heads(16), 1, 4),
        place(heads(32), 2, 3),
        place(OpenOptions::default(), 1, 1),
        place(OpenOptions::default(), 3, 7),
        place(all(4), 1, 2),
        place(all(16), 1, 1),
        place(all(64), 2, 5),
        in_memory(lists / 4, 1),
        in_memory(lists / 2, 2),
        in_memory(2 * lists, 1),
        in_memory(8 * lists, 2),
    ]
}

fn assert_equal(folder: &Path, queries: &[u8], options: &SearchOptions) {
    let mut first: Option<Answers> = None;
    for place in places(folder, options) {
        let found = search(folder, queries, options, place);
        let Some(first) = &first else {
            first = Some(found);
            continue;
        };
        let bits = |a: &Answers| a.distances.iter().map(|d| d.to_bits()).collect::<Vec<_>>();
        let is_equal = (&first.ids, bits(first)) == (&found.ids, bits(&found));
        assert!(is_equal, "{options:?}: answers differ at {place:?}");
    }
}

fn rows(dtype: DType, count: usize, dim: usize, seed: u64) -> (Set, Set) {
    let asked = clustered(QUERIES, dim, 12, seed + 1);
    (Set::new(dtype, dim, &clustered(count, dim, 12, seed)), Set::new(dtype, dim, &asked))
}

fn some<T: std::fmt::Debug>(of: impl Strategy<Value = T>) -> impl Strategy<Value = Option<T>> {
    prop::option::of(of)
}

fn dtypes() -> impl Strategy<Value = DType> {
    prop_oneof![Just(DType::F32), Just(DType::U8), Just(DType::F16), Just(DType::I8)]
}

fn metrics() -> impl Strategy<Value = Metric> {
    prop_oneof![Just(Metric::L2), Just(Metric::Cosine), Just(Metric::Ip)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn inverted_lists(
        (dtype, metric, seed) in (dtypes(), metrics(), 0u64..1000),
        (count, dim, clusters) in (400usize..1500, 4usize..24, 5usize..60),
        local in prop_oneof![Just(LocalKind::Flat), Just(LocalKind::Ivf)],
        (k, nprobe) in (prop_oneof![1usize..20, Just(300)], 1u32..40),
        (slack, early_stop) in (some(0.0f32..2.0), some(0.05f32..0.6)),
        bounds in select(&BoundsName::ALL[..]),
        order in select(&OrderName::ALL[..]),
        (weights, local_lists, votes) in (any::<bool>(), some(1u32..8), some(1u32..100)),
        width in prop_oneof![Just(1u32), 2u32..12],
    ) {
        let (set, asked) = rows(dtype, count, dim, seed);
        let plan = LocalPlan::Uniform(local);
        let options = BuildOptions { seed, ..lists(metric, clusters, plan) };
        let folder = built(&set, &options);
        let switches = ListSwitches {
            order: Some(order), stop_early: true, weights, bounds, local_lists, local_list: None, votes,
        };
        let effort = Effort::Nprobe(nprobe, slack, early_stop);
        let width = Width::Fixed(width);
        assert_equal(folder.path(), &asked.bytes, &SearchOptions { k, effort, switches: switches.into(), width, ..SearchOptions::default() });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn local_graphs(
        (dtype, metric, seed) in (dtypes(), metrics(), 0u64..1000),
        (count, dim, clusters) in (400usize..1500, 4usize..24, 2usize..12),
        (k, nprobe, local_list) in (1usize..20, 1u32..12, some(1u32..60)),
        (slack, early_stop) in (some(0.0f32..2.0), some(0.05f32..0.6)),
        width in prop_oneof![Just(1u32), 2u32..12],
    ) {
        let (set, asked) = rows(dtype, count, dim, seed);
        let local_plan = LocalPlan::Uniform(LocalKind::Graph);
        let options = BuildOptions { seed, ..lists(metric, clusters, local_plan) };
        let folder = built(&set, &options);
        let switches = ListSwitches { local_list, ..ListSwitches::default() };
        let effort = Effort::Nprobe(nprobe, slack, early_stop);
        let width = Width::Fixed(width);
        assert_equal(folder.path(), &asked.bytes, &SearchOptions { k, effort, switches: switches.into(), width, ..SearchOptions::default() });
    }

    #[test]
    fn blocks(
        (dtype, metric, seed) in (dtypes(), metrics(), 0u64..1000),
        (count, dim) in (400usize..1500, 4usize..24),
        (kind, codes) in prop_oneof![
            Just((IndexKind::Flat, CodePlace::Ram)),
            Just((IndexKind::DiskGraph, CodePlace::Ram)),
            Just((IndexKind::DiskGraph, CodePlace::Disk)),
        ],
        (k, list, slack, patience) in (1usize..20, 1u32..60, some(0.0f32..2.0), some(0u32..10)),
        rerank in prop_oneof![Just(0u32), 1u32..60],
        width in prop_oneof![Just(1u32), 2u32..12],
    ) {
        let (set, asked) = rows(dtype, count, dim, seed);
        let mut options = BuildOptions { seed, ..quick(kind, metric) };
        if kind == IndexKind::DiskGraph {
            options = graph_options(options, |own| own.codes = codes);
        }
        let folder = built(&set, &options);
        let effort = Effort::SearchList(list, slack);
        let width = Width::Fixed(width);
        // What is asked for by no number may depend on what is in memory.
        let switches = GraphSwitches { patience, rerank: Some(rerank), ..GraphSwitches::default() };
        assert_equal(folder.path(), &asked.bytes, &SearchOptions { k, effort, switches: switches.into(), width, ..SearchOptions::default() });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ranked_codes(
        (dtype, metric, seed) in (dtypes(), metrics(), 0u64..1000),
        (count, dim) in (400usize..1500, 4usize..24),
        (k, nprobe, candidates, batch_size) in (1usize..20, 1u32..30, 20u32..200, 1u32..40),
        rule in select(vec![RuleName::Static, RuleName::Changes, RuleName::Margin]),
        whole_blocks: bool,
    ) {
        let (set, asked) = rows(dtype, count, dim, seed);
        let folder = built(&set, &BuildOptions { seed, ..quick(IndexKind::GpuIvf, metric) });
        let switches = GpuSwitches {
            rule: Some(rule), candidates: Some(candidates), batch_size: Some(batch_size), whole_blocks,
            ..GpuSwitches::default()
        };
        let effort = Effort::Nprobe(nprobe, None, None);
        let options = SearchOptions { k, effort, switches: switches.into(), ..SearchOptions::default() };
        assert_equal(folder.path(), &asked.bytes, &options);
    }
}

/// The amount that is read at a time decides neither which lists are scanned nor, with bounds that are certain, an
/// answer; with likely ones hardly any.
#[test]
fn width_hardly_moves_recall_of_inverted_lists() {
    let (set, _) = rows(DType::F32, 4000, 24, 1);
    let asked = Set::new(DType::F32, 24, &clustered(500, 24, 12, 2));
    let truth = groundtruth::exact(&set.reader(), &asked.reader(), Metric::L2, 10, 1 << 30, &Quiet).unwrap();
    let truth: Vec<u64> = truth.ids.iter().map(|&id| u64::from(id)).collect();
    let open = OpenOptions { head_budget: Some(0), ..OpenOptions::default() };
    for local in LocalKind::ALL {
        let folder = built(&set, &lists(Metric::L2, 80, LocalPlan::Uniform(local)));
        for slack in [None, Some(0.5)] {
            let at = |width, in_flight| {
                let effort = Effort::Nprobe(40, slack, Some(0.1));
                let options = SearchOptions { effort, width, ..SearchOptions::default() };
                search(
                    folder.path(),
                    &asked.bytes,
                    &options,
                    Place { open, threads: 1, in_flight, is_resident: false },
                )
            };
            let narrow = at(Width::Fixed(1), 1);
            let recall = |a: &Answers| a.recall(&truth, 10);
            for (width, in_flight) in
                [(Width::Fixed(3), 1), (Width::Fixed(16), 4), (Width::Auto, 1), (Width::Auto, 16)]
            {
                let wide = at(width, in_flight);
                let what = format!("{local:?}, slack {slack:?}, {width:?}, {in_flight} in flight");
                assert_eq!(
                    (wide.stats.clusters, wide.stats.lists),
                    (narrow.stats.clusters, narrow.stats.lists),
                    "{what}"
                );
                assert!((recall(&wide) - recall(&narrow)).abs() <= 0.002, "{what}");
                // The walk through a local graph depends on how many adjacency lists are read at once.
                let is_lossless = slack.is_none() && local != LocalKind::Graph;
                assert!(!is_lossless || wide.ids == narrow.ids, "{what}");
            }
        }
    }
}

/// Without bounds the vectors that were read decide where the visits end: candidates of the navigation that are in RAM
/// must not come before them.
#[test]
fn resident_candidates_do_not_end_visits_without_bounds() {
    let (set, asked) = rows(DType::F32, 400, 4, 0);
    let options = BuildOptions { seed: 0, ..lists(Metric::L2, 7, LocalPlan::Uniform(LocalKind::Flat)) };
    let folder = built(&set, &options);
    let switches = ListSwitches {
        order: Some(OrderName::Evidence),
        stop_early: true,
        weights: false,
        bounds: BoundsName::Off,
        ..ListSwitches::default()
    };
    for width in 1..5 {
        let effort = Effort::Nprobe(2, None, Some(0.05));
        let options = SearchOptions { k: 1, effort, switches: switches.into(), ..SearchOptions::default() };
        assert_equal(folder.path(), &asked.bytes, &SearchOptions { width: Width::Fixed(width), ..options });
    }
}

#[test]
fn width_hardly_moves_recall_of_a_graph() {
    let (set, _) = rows(DType::F32, 4000, 24, 1);
    let asked = Set::new(DType::F32, 24, &clustered(500, 24, 12, 2));
    let truth = groundtruth::exact(&set.reader(), &asked.reader(), Metric::L2, 10, 1 << 30, &Quiet).unwrap();
    let truth: Vec<u64> = truth.ids.iter().map(|&id| u64::from(id)).collect();
    let folder = built(&set, &quick(IndexKind::DiskGraph, Metric::L2));
    let at = |width, in_flight| {
        let options =
            SearchOptions { effort: Effort::SearchList(60, None), width, ..SearchOptions::default() };
        let place = Place { open: OpenOptions::default(), threads: 1, in_flight, is_resident: false };
        let answers = search(folder.path(), &asked.bytes, &options, place);
        answers.recall(&truth, 10)
    };
    let narrow = at(Width::Fixed(1), 1);
    for in_flight in [1, 4, 16, 64] {
        let auto = at(Width::Auto, in_flight);
        assert!(
            (auto - narrow).abs() <= 0.002,
            "{in_flight} in flight: {auto}, {narrow} with one read at a time"
        );
    }
}

fn graph(count: usize, cache_budget: u64) -> (TempDir, Set, Index) {
    let (set, asked) = rows(DType::U8, count, 24, 3);
    let folder = built(&set, &quick(IndexKind::DiskGraph, Metric::L2));
    let open = OpenOptions { cache_budget, ..OpenOptions::default() };
    let index = Index::open(folder.path(), open).unwrap();
    (folder, asked, index)
}

/// A search that means the same wherever the graph is.
fn by_codes(threads: usize) -> SearchOptions {
    let switches = GraphSwitches { rerank: Some(20), ..GraphSwitches::default() };
    let effort = Effort::SearchList(40, None);
    SearchOptions { effort, switches: switches.into(), threads, ..SearchOptions::default() }
}

#[test]
fn a_budget_decides_what_is_in_memory_and_the_account_says_so() {
    let (_folder, asked, mut index) = graph(3000, 0);
    let found = |index: &Index| index.search(&asked.bytes, &by_codes(1), &Quiet).unwrap();
    let on_disk = found(&index);
    assert!(on_disk.stats.reads > 0);
    assert!(!index.make_resident(&Quiet).unwrap(), "without a budget nothing is moved");
    let parts = |index: &Index| {
        let account = index.account();
        ["adjacency lists", "vectors", "block cache"].map(|name| account.bytes_of(name))
    };
    index.set_cache_budget(1 << 30);
    assert!(index.make_resident(&Quiet).unwrap() && index.is_resident());
    let [lists, vectors, _] = parts(&index);
    assert!(lists > 4 * 3000 && vectors == 3000 * (24 + 4), "{lists} {vectors}");
    assert_eq!(index.block_cache_bytes(), (1 << 30) - lists - vectors);
    let in_memory = found(&index);
    assert_eq!((in_memory.stats.reads_asked(), &in_memory.ids), (0, &on_disk.ids));
    // Many threads, too.
    let many = index.search(&asked.bytes, &by_codes(64), &Quiet).unwrap();
    assert_eq!((many.stats.reads_asked(), &many.ids), (0, &on_disk.ids));
    // Vectors go first; lists alone stay where they are an eighth of the budget. What is left caches blocks.
    for (budget, expected) in [(lists + vectors - 1, [0, 0]), (lists - 1, [0, 0]), (0, [0, 0])] {
        index.set_cache_budget(budget);
        assert_eq!(parts(&index)[..2], expected, "{budget}");
        assert_eq!(index.block_cache_bytes(), budget - expected[0]);
        let found = found(&index);
        assert_eq!((found.stats.reads > 0, &found.ids), (true, &on_disk.ids), "{budget}");
    }
    // And come back: as much as there is room for.
    for (budget, expected) in [(lists, [0, 0]), (lists + vectors, [lists, vectors])] {
        index.set_cache_budget(budget);
        assert_eq!(index.make_resident(&Quiet).unwrap(), expected[1] > 0);
        assert_eq!(parts(&index)[..2], expected, "{budget}");
        assert_eq!(found(&index).ids, on_disk.ids);
    }
}

/// Rules that stop a search by reads count what was in memory instead, on one thread and on many.
#[test]
fn whole_blocks_of_a_graph_in_memory_are_not_read() {
    let (_folder, asked, mut index) = graph(3000, 0);
    for (whole_blocks, patience) in [(true, None), (true, Some(4)), (false, None), (false, Some(4))] {
        let switches = GraphSwitches { rerank: Some(0), whole_blocks, patience, ..GraphSwitches::default() };
        let search = |index: &Index, threads| {
            let effort = Effort::SearchList(60, Some(1.5));
            let options =
                SearchOptions { effort, switches: switches.into(), threads, ..SearchOptions::default() };
            index.search(&asked.bytes, &options, &Quiet).unwrap()
        };
        index.set_cache_budget(0);
        let on_disk = search(&index, 1);
        index.set_cache_budget(1 << 30);
        assert!(index.make_resident(&Quiet).unwrap());
        assert!(on_disk.stats.reads > 0);
        for threads in [1, 3] {
            let in_memory = search(&index, threads);
            assert_eq!((&in_memory.ids, &in_memory.distances), (&on_disk.ids, &on_disk.distances));
            let without = QueryStats { reads: 0, pages_read: 0, bytes_read: 0, ..on_disk.stats };
            assert_eq!(in_memory.stats, without);
        }
        let queries = |answers: &Answers| answers.account.bytes_of("queries in flight");
        assert!(queries(&search(&index, 1)) < queries(&on_disk), "without buffers for reads");
    }
}

/// Lists of long vectors stay in memory without these: then candidates alone are read, all at once.
#[test]
fn lists_alone_are_in_memory_where_they_are_short_beside_vectors() {
    let (set, asked) = rows(DType::F32, 1200, 900, 3);
    let folder = built(&set, &quick(IndexKind::DiskGraph, Metric::L2));
    let mut index = Index::open(folder.path(), OpenOptions::default()).unwrap();
    let found = |index: &Index| index.search(&asked.bytes, &by_codes(1), &Quiet).unwrap();
    let on_disk = found(&index);
    index.set_cache_budget(1200 * 900 * 2);
    assert!(!index.make_resident(&Quiet).unwrap());
    let account = index.account();
    assert!(account.bytes_of("adjacency lists") > 0 && account.bytes_of("vectors") == 0);
    let of_lists = found(&index);
    assert_eq!(of_lists.ids, on_disk.ids);
    let asked_reads = |answers: &Answers| answers.stats.reads_asked() / QUERIES as u64;
    assert!(asked_reads(&of_lists) <= 20 && asked_reads(&on_disk) >= 40, "{}", asked_reads(&on_disk));
}

#[test]
fn any_number_of_rows_can_be_in_memory() {
    for count in [1, 2, 20, 255] {
        let (_folder, asked, mut index) = graph(count, 0);
        let found = |index: &Index| index.search(&asked.bytes, &by_codes(1), &Quiet).unwrap();
        let on_disk = found(&index);
        index.set_cache_budget(1 << 20);
        assert!(index.make_resident(&Quiet).unwrap());
        let in_memory = found(&index);
        assert_eq!((in_memory.stats.reads_asked(), &in_memory.ids), (0, &on_disk.ids), "{count}");
        assert_eq!(in_memory.counts, on_disk.counts);
    }
}

/// A block that is damaged before it could be moved: the index stays on disk, and queries that do not meet the
/// block are answered.
#[test]
fn damage_leaves_a_graph_on_disk() {
    let (folder, asked, mut index) = graph(3000, 1 << 30);
    let good = index.search(&asked.bytes, &by_codes(1), &Quiet).unwrap();
    let blocks = std::fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path());
    let path = blocks.filter(|path| path.to_string_lossy().ends_with("blocks.bin")).last().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.len() / 2 + 99;
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    index.set_cache_budget(1 << 30);
    assert!(!index.make_resident(&Quiet).unwrap() && !index.is_resident());
    let warning = index.warnings().last().unwrap();
    assert!(warning.contains("stays on disk") && warning.contains("stratann verify"), "{warning}");
    let found = index.search(&asked.bytes, &by_codes(1), &Quiet).unwrap();
    let failed: Vec<usize> = found.failed.iter().map(|failed| failed.0).collect();
    assert!(failed.len() < QUERIES);
    let answers = |all: &Answers, query: usize| all.ids[query * all.k..(query + 1) * all.k].to_vec();
    for query in (0..QUERIES).filter(|query| !failed.contains(query)) {
        assert_eq!(answers(&found, query), answers(&good, query), "{query}");
    }
}

/// Vectors of a `gpu-ivf` are in memory as a whole or not at all; what is left of the budget caches blocks.
#[test]
fn vectors_of_ranked_codes_move_into_memory_and_out() {
    let (set, asked) = rows(DType::U8, 3000, 24, 3);
    let folder = built(&set, &quick(IndexKind::GpuIvf, Metric::L2));
    let mut index = Index::open(folder.path(), OpenOptions::default()).unwrap();
    let search = |index: &Index, effort, threads| {
        let options = SearchOptions { effort, threads, ..SearchOptions::default() };
        let found = index.search(&asked.bytes, &options, &Quiet).unwrap();
        assert!(found.failed.is_empty());
        (found.stats, found.ids, found.distances)
    };
    let efforts = [Effort::Nprobe(20, None, None), Effort::Recall(1.0)];
    let on_disk = efforts.map(|effort| search(&index, effort, 1));
    assert!(on_disk.iter().all(|found| found.0.reads > 0));
    assert!(!index.make_resident(&Quiet).unwrap(), "without a budget nothing is moved");
    let all = stratann_engine::kinds::resident_bytes_max(index.manifest()).unwrap();
    assert_eq!(all, 3000 * (24 + 4));
    for (budget, is_resident) in [(all, true), (1 << 20, true), (all - 1, false), (0, false), (all, true)] {
        index.set_cache_budget(budget);
        assert_eq!(index.make_resident(&Quiet).unwrap(), is_resident, "{budget}");
        assert_eq!(
            (index.is_resident(), index.account().bytes_of("vectors") == all),
            (is_resident, is_resident)
        );
        assert_eq!(index.block_cache_bytes(), budget - if is_resident { all } else { 0 });
        for threads in [1, 3] {
            for (effort, disk) in efforts.iter().zip(&on_disk) {
                let found = search(&index, *effort, threads);
                assert_eq!((&found.1, &found.2), (&disk.1, &disk.2));
                assert_eq!(found.0.full_comparisons, disk.0.full_comparisons);
                assert_eq!(found.0.reads_asked() == 0, is_resident, "{budget}");
            }
        }
    }
}
