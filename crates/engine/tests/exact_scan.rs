//! Queries of one call that score every vector are answered together: with the ids, distances and counters of queries
//! that run one by one.

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use common::{Impatient, Set, blocks_path, clustered, quick};
use proptest::prelude::*;
use proptest::sample::select;
use stratann_core::query::{QueryState, QueryStats, Scratch, Step, run};
use stratann_engine::build::{BuildOptions, IndexKind, KindOptions, build};
use stratann_engine::exec::Width;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::search::{Answers, Effort, Filters, Naming, SearchOptions, SieveWay};
use stratann_engine::{DType, Metric};
use stratann_params::build::GridOptions;
use stratann_params::search::GridSwitches;
use stratann_storage::{ErrorKind, Quiet};
use tempfile::TempDir;

const QUERIES: usize = 70;

fn built(kind: IndexKind, metric: Metric, (dtype, rows, dim): (DType, usize, usize)) -> (TempDir, Set) {
    let dir = tempfile::tempdir().unwrap();
    let set = Set::new(dtype, dim, &clustered(rows, dim, 12, 5));
    build(&set.reader(), dir.path(), &quick(kind, metric), &Quiet).unwrap();
    (dir, Set::new(dtype, dim, &clustered(QUERIES, dim, 12, 6)))
}

fn exact(k: usize, threads: usize) -> SearchOptions {
    SearchOptions {
        k,
        threads,
        effort: Effort::Recall(1.0),
        width: Width::Fixed(3),
        ..SearchOptions::default()
    }
}

fn opened(folder: &Path, options: OpenOptions) -> Index {
    Index::open(folder, options).unwrap()
}

/// The same, one query after another, by the core's own loop.
fn one_by_one(index: &Index, queries: &[u8], options: &SearchOptions) -> (Vec<u64>, Vec<u32>, QueryStats) {
    let (mut ids, mut distances, mut sum) = (Vec::new(), Vec::new(), QueryStats::default());
    let params =
        stratann_core::query::Params { width: 3, approach_width: 3, ..index.params(options).unwrap() };
    for query in queries.chunks_exact(index.row_bytes()) {
        let mut state = QueryState::new(params, index.query_budget());
        let mut scratch = Scratch::default();
        scratch.prepare_for(&index.view(), query, &state);
        let step = run(&mut state, &index.view(), &mut scratch, |at| {
            let mut bytes = Vec::new();
            index.read_extent(at, &mut bytes).map(|()| bytes)
        });
        assert_eq!(step, Step::Done);
        ids.extend(state.results().iter().map(|hit| hit.external_id));
        distances.extend(state.results().iter().map(|hit| hit.distance.to_bits()));
        sum.add(state.stats());
    }
    (ids, distances, sum)
}

fn parts(answers: &Answers) -> (Vec<u64>, Vec<u32>) {
    assert!(answers.failed.is_empty() && answers.short == 0, "{:?}", answers.failed);
    (answers.ids.clone(), answers.distances.iter().map(|d| d.to_bits()).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn a_scan_for_many_queries_is_that_for_each(
        kind in select(vec![IndexKind::Flat, IndexKind::DiskGraph, IndexKind::GpuIvf]),
        metric in select(vec![Metric::L2, Metric::Ip, Metric::Cosine]),
        dtype in select(vec![DType::F32, DType::F16, DType::U8, DType::I8]),
        rows in select(vec![20usize, 300, 1500]),
        dim in select(vec![7usize, 32, 100]),
        k in select(vec![1usize, 10, 20]),
        asked in select(vec![1usize, 31, QUERIES]),
    ) {
        let (dir, queries) = built(kind, metric, (dtype, rows, dim));
        let queries = &queries.bytes[..asked * dim * dtype.size()];
        let index = opened(dir.path(), OpenOptions::default());
        let (ids, distances, sum) = one_by_one(&index, queries, &exact(k, 1));
        for threads in [1, 3] {
            let found = index.search(queries, &exact(k, threads), &Quiet).unwrap();
            prop_assert_eq!(parts(&found), (ids.clone(), distances.clone()));
            prop_assert_eq!(found.stats, sum);
            prop_assert!(found.account.bytes_of("exact scan") > 0);
        }
        let cached = OpenOptions { cache_budget: 1 << 30, ..OpenOptions::default() };
        let mut index = opened(dir.path(), cached);
        let first = index.search(queries, &exact(k, 2), &Quiet).unwrap();
        let second = index.search(queries, &exact(k, 2), &Quiet).unwrap();
        prop_assert_eq!(first.stats.reads, sum.reads / asked as u64);
        prop_assert_eq!((first.stats.reads_asked(), second.stats.reads), (sum.reads, 0));
        prop_assert_eq!(parts(&second), (ids.clone(), distances.clone()));
        index.make_resident(&Quiet).unwrap();
        let resident = index.search(queries, &exact(k, 2), &Quiet).unwrap();
        prop_assert_eq!(resident.stats.reads, 0);
        prop_assert_eq!(resident.stats.full_comparisons, sum.full_comparisons);
        prop_assert_eq!(parts(&resident), (ids, distances));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Queries with one filter are scanned together, and each alone where every query has one of its own.
    #[test]
    fn a_scan_of_the_rows_of_a_filter_is_that_for_each(
        kind in select(vec![IndexKind::Flat, IndexKind::DiskGraph, IndexKind::GpuIvf]),
        metric in select(vec![Metric::L2, Metric::Ip, Metric::Cosine]),
        dtype in select(vec![DType::F32, DType::F16, DType::U8, DType::I8]),
        rows in select(vec![20usize, 300, 1500]),
        one_in in select(vec![1usize, 2, 13, 200]),
        is_resident in any::<bool>(),
    ) {
        let (dir, queries) = built(kind, metric, (dtype, rows, 32));
        let mut index = opened(dir.path(), OpenOptions::default());
        if is_resident {
            index.make_resident(&Quiet).unwrap();
        }
        let ids: Vec<u64> = (0..rows as u64).filter(|row| row * 7 % one_in as u64 == 0).collect();
        for threads in [1, 3] {
            let options = exact(10, threads);
            let filter = index.filter(&ids, Naming::Only, &options, &Quiet).unwrap();
            prop_assert_eq!(filter.way(), SieveWay::Exact);
            let each = vec![filter.clone(); QUERIES];
            let search = |filters| index.search_filtered(&queries.bytes, filters, &options, &Quiet).unwrap();
            let (together, apart) = (search(Filters::Shared(&filter)), search(Filters::Each(&each)));
            prop_assert_eq!(&together.counts, &apart.counts);
            prop_assert_eq!(&together.ids, &apart.ids);
            let bits = |answers: &Answers| answers.distances.iter().map(|d| d.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&together), bits(&apart));
            prop_assert_eq!(together.stats, apart.stats);
            prop_assert_eq!(together.stats.full_comparisons, (QUERIES * ids.len()) as u64);
            prop_assert!(together.account.bytes_of("exact scan") > 0);
            prop_assert_eq!(apart.account.bytes_of("exact scan"), 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    /// Inverted lists are scanned for many queries and pruned for few, with equal results.
    #[test]
    fn a_scan_of_lists_finds_what_bounds_leave(
        metric in select(vec![Metric::L2, Metric::Ip, Metric::Cosine]),
        dtype in select(vec![DType::F32, DType::F16, DType::U8, DType::I8]),
        rows in select(vec![60usize, 1500]),
        dim in select(vec![7usize, 32, 100]),
        k in select(vec![1usize, 10]),
        budget in select(vec![None, Some(40u64 << 20)]),
    ) {
        let (dir, queries) = built(IndexKind::HybridIvf, metric, (dtype, rows, dim));
        let row_bytes = dim * dtype.size();
        let index = opened(dir.path(), OpenOptions { ram_budget: budget, ..OpenOptions::default() });
        let (ids, distances, _) = one_by_one(&index, &queries.bytes, &exact(k, 1));
        for threads in [1, 3] {
            let found = index.search(&queries.bytes, &exact(k, threads), &Quiet).unwrap();
            prop_assert_eq!(parts(&found), (ids.clone(), distances.clone()));
            prop_assert_eq!(found.stats.full_comparisons, (QUERIES * rows) as u64);
            prop_assert_eq!((found.stats.code_comparisons, found.stats.clusters), (0, 0));
            let (reads, merged) = (found.stats.reads, found.merged.reads);
            prop_assert!(reads > 0 && merged == reads / QUERIES as u64 * (QUERIES as u64 - 1));
        }
        let few = index.search(&queries.bytes[..31 * row_bytes], &exact(k, 2), &Quiet).unwrap();
        prop_assert_eq!(&few.ids[..], &ids[..31 * few.k]);
        prop_assert!(few.stats.clusters > 0 && few.account.bytes_of("exact scan") == 0);
    }
}

/// A grid of seven lists in the folder `index`, with ids of its own or without.
fn built_grid(
    metric: Metric,
    (dtype, rows, dim): (DType, usize, usize),
    ids: Option<Vec<u64>>,
) -> (TempDir, Set) {
    let dir = tempfile::tempdir().unwrap();
    let set = Set::new(dtype, dim, &clustered(rows, dim, 12, 5));
    let own = KindOptions::GridIvf(GridOptions { lists: Some(7), centroids: None });
    let ids = ids.map(|ids| {
        let path = dir.path().join("ids.u64bin");
        let header = [ids.len() as u32, 1].map(u32::to_le_bytes).concat();
        let ids: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        std::fs::write(&path, [header, ids].concat()).unwrap();
        path
    });
    let options = BuildOptions { kind: own, ids, ..quick(IndexKind::GridIvf, metric) };
    build(&set.reader(), &dir.path().join("index"), &options, &Quiet).unwrap();
    (dir, Set::new(dtype, dim, &clustered(QUERIES, dim, 12, 6)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// Lists in groups of components are scored for many queries and pruned for few, with equal results.
    #[test]
    fn a_pass_over_groups_finds_what_pruning_leaves(
        metric in select(vec![Metric::L2, Metric::Ip, Metric::Cosine]),
        dtype in select(vec![DType::F32, DType::F16, DType::U8, DType::I8]),
        rows in select(vec![1usize, 20, 255, 3000]),
        // The last one has codes, where components are floats of 32 bits.
        dim in select(vec![7usize, 32, 100, 260]),
        k in select(vec![1usize, 10, 20]),
        has_ids in any::<bool>(),
        budget in select(vec![None, Some(40u64 << 20)]),
    ) {
        let ids = has_ids.then(|| (0..rows as u64).map(|i| (1 << 40) | (i * 7919 % 4099)).collect());
        let (dir, queries) = built_grid(metric, (dtype, rows, dim), ids);
        let row_bytes = dim * dtype.size();
        let index = opened(&dir.path().join("index"), OpenOptions { ram_budget: budget, ..OpenOptions::default() });
        for asked in [31, 32, QUERIES] {
            let queries = &queries.bytes[..asked * row_bytes];
            let (ids, distances, sum) = one_by_one(&index, queries, &exact(k, 1));
            for threads in [1, 3] {
                let found = index.search(queries, &exact(k, threads), &Quiet).unwrap();
                prop_assert_eq!(parts(&found), (ids.clone(), distances.clone()));
                let is_pass = asked >= 32;
                prop_assert_eq!(found.account.bytes_of("exact scan") > 0, is_pass);
                if is_pass {
                    let (full, lists) = ((asked * rows) as u64, sum.lists);
                    let components = full * dim as u64;
                    let expected = QueryStats {
                        full_comparisons: full,
                        components,
                        components_unpruned: components,
                        hops: asked as u64,
                        clusters: lists,
                        lists,
                        ..QueryStats::default()
                    };
                    prop_assert_eq!(found.stats, expected);
                } else {
                    prop_assert_eq!(found.stats, sum);
                }
            }
        }
    }
}

#[test]
fn a_technique_of_a_grid_that_is_switched_off_leaves_queries_to_drivers() {
    let (dir, queries) = built_grid(Metric::L2, (DType::F32, 2000, 32), None);
    let index = opened(&dir.path().join("index"), OpenOptions::default());
    let usual = index.search(&queries.bytes, &exact(10, 2), &Quiet).unwrap();
    assert!(usual.account.bytes_of("exact scan") > 0);
    for off in 0..4 {
        let [prune_dimension, prune_code, prune_vector, prewarm] = [0, 1, 2, 3].map(|i| i != off);
        let own =
            GridSwitches { prune_dimension, prune_code, prune_vector, prewarm, ..GridSwitches::default() };
        let options = SearchOptions { switches: own.into(), ..exact(10, 2) };
        let found = index.search(&queries.bytes, &options, &Quiet).unwrap();
        assert_eq!(found.account.bytes_of("exact scan"), 0);
        assert_eq!(parts(&found), parts(&usual));
        assert!(found.stats.code_comparisons > 0, "centroids were ranked");
    }
}

#[test]
fn a_pass_over_groups_fits_its_budget_and_can_be_interrupted() {
    let (dir, queries) = built_grid(Metric::Cosine, (DType::F32, 4000, 64), None);
    let roomy = opened(&dir.path().join("index"), OpenOptions::default());
    let usual = roomy.search(&queries.bytes, &exact(10, 2), &Quiet).unwrap();
    let scan = usual.account.bytes_of("exact scan");
    let drivers = usual.account.total() - scan;
    // So many queries do not fit into one pass.
    for (budget, is_scan) in
        [(drivers + scan / 4, false), (drivers + scan - 20_000, true), (drivers + scan, true)]
    {
        let tight = opened(
            &dir.path().join("index"),
            OpenOptions { ram_budget: Some(budget), ..OpenOptions::default() },
        );
        let found = tight.search(&queries.bytes, &exact(10, 2), &Quiet).unwrap();
        assert_eq!(found.account.bytes_of("exact scan") > 0, is_scan, "{budget}");
        assert!(found.account.total() <= budget);
        assert_eq!(parts(&found), parts(&usual));
        assert_eq!(found.stats == usual.stats, is_scan);
    }
    let stop = Impatient { asked: AtomicU64::new(0), patience: 3 };
    let stopped = roomy.search(&queries.bytes, &exact(10, 2), &stop).unwrap_err();
    assert_eq!(stopped.kind, ErrorKind::Interrupted);
}

#[test]
fn a_damaged_record_fails_only_queries_that_need_it() {
    let (dir, queries) = built(IndexKind::HybridIvf, Metric::L2, (DType::U8, 3000, 32));
    let whole = opened(dir.path(), OpenOptions::default());
    let expected = parts(&whole.search(&queries.bytes, &exact(5, 2), &Quiet).unwrap());
    let path = dir.path().join("v1-lists.bin");
    let nearest = expected.0[0] as usize;
    let vector =
        &Set::new(DType::U8, 32, &clustered(3000, 32, 12, 5)).bytes[32 * nearest..32 * (nearest + 1)];
    let lists = std::fs::read(&path).unwrap();
    let at = lists.windows(32).position(|bytes| bytes == vector).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&[vector[0] ^ 1], at as u64).unwrap();
    let index = opened(dir.path(), OpenOptions::default());
    let found = index.search(&queries.bytes, &exact(5, 2), &Quiet).unwrap();
    assert!(!found.failed.is_empty() && found.failed.len() < QUERIES, "{:?}", found.failed);
    assert!(found.stats.clusters > 0, "drivers have answered");
    for query in (0..QUERIES).filter(|query| found.failed.iter().all(|failed| failed.0 != *query)) {
        let of = 5 * query..5 * query + 5;
        assert_eq!(found.ids[of.clone()], expected.0[of]);
    }
}

#[test]
fn a_budget_without_room_for_a_scan_leaves_queries_to_drivers() {
    let (dir, queries) = built(IndexKind::Flat, Metric::L2, (DType::F32, 4000, 64));
    let roomy = opened(dir.path(), OpenOptions::default());
    let usual = roomy.search(&queries.bytes, &exact(10, 2), &Quiet).unwrap();
    let scan = usual.account.bytes_of("exact scan");
    let drivers = usual.account.total() - scan;
    // So many queries do not fit into one pass.
    for (budget, is_scan) in
        [(drivers + scan / 4, false), (drivers + scan - 20_000, true), (drivers + scan, true)]
    {
        let tight = opened(dir.path(), OpenOptions { ram_budget: Some(budget), ..OpenOptions::default() });
        let found = tight.search(&queries.bytes, &exact(10, 2), &Quiet).unwrap();
        assert_eq!(found.account.bytes_of("exact scan") > 0, is_scan, "{budget}");
        assert!(found.account.total() <= budget);
        assert_eq!((parts(&found), found.stats), (parts(&usual), usual.stats));
    }
}

#[test]
fn a_damaged_block_fails_the_queries_and_says_where() {
    for kind in [IndexKind::Flat, IndexKind::DiskGraph] {
        let (dir, queries) = built(kind, Metric::L2, (DType::U8, 3000, 32));
        let file = std::fs::OpenOptions::new().write(true).open(blocks_path(dir.path())).unwrap();
        file.write_all_at(&[0xff; 9], 2 * 4096 + 100).unwrap();
        let index = opened(dir.path(), OpenOptions::default());
        let found = index.search(&queries.bytes, &exact(5, 2), &Quiet).unwrap();
        assert_eq!(found.failed.len(), QUERIES);
        assert!(
            found.failed[0].1.contains(" bytes) is damaged; run `stratann verify`"),
            "{:?}",
            found.failed[0]
        );
        file.set_len(4096).unwrap();
        let found = index.search(&queries.bytes, &exact(5, 1), &Quiet).unwrap();
        assert_eq!(found.failed.len(), QUERIES);
    }
}
