//! Builds of sets of every type, size and oddity.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use stratann_params::choices::OnBadRow;

use common::{Built, Set, clustered, hits, nearest, normal, quick};
use stratann_engine::build::{BuildOptions, GrowFrom, IndexKind, build};
use stratann_engine::dataset::Shape;
use stratann_engine::exec::Width;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::search::{Effort, SearchOptions};
use stratann_engine::{DType, Metric, verify};
use stratann_storage::Quiet;

fn list(k: usize, search_list: u32) -> SearchOptions {
    SearchOptions { k, effort: Effort::SearchList(search_list, None), ..SearchOptions::default() }
}

/// Mean recall@k of the first `count` rows of `asked`, against the definition.
fn recall(built: &Built, asked: &Set, count: usize, k: usize, search_list: u32) -> f64 {
    let metric = built.index.view().base.metric;
    let bytes = &asked.bytes[..count * asked.shape.row_bytes()];
    let answers = built.index.search(bytes, &list(k, search_list), &Quiet).unwrap();
    assert!(answers.failed.is_empty());
    let found: usize = (0..count)
        .map(|q| {
            hits(
                &answers.ids[q * answers.k..(q + 1) * answers.k],
                &nearest(&built.set, metric, asked.row(q), k, |_| false),
            )
        })
        .sum();
    found as f64 / (count * k) as f64
}

fn assert_sound(built: &Built) {
    let report = verify::verify(built.dir.path(), &Quiet).unwrap();
    assert_eq!(report.violations_found, 0, "{:?}", report.violations);
    assert_eq!(report.nodes, built.set.shape.rows);
}

#[test]
fn every_type_and_metric_is_built_and_found() {
    let (rows, asked) = (clustered(1200, 20, 10, 1), clustered(25, 20, 10, 2));
    for dtype in [DType::F32, DType::F16, DType::U8, DType::I8] {
        for metric in [Metric::L2, Metric::Ip, Metric::Cosine] {
            let built = Built::new(Set::new(dtype, 20, &rows), &quick(IndexKind::DiskGraph, metric));
            assert_sound(&built);
            let share = recall(&built, &Set::new(dtype, 20, &asked), 25, 10, 100);
            assert!(share >= 0.95, "{dtype:?} {metric:?}: {share}");
        }
    }
}

/// The rows of a set whose numbers are wanted.
fn some_of(set: &Set, is_wanted: impl Fn(usize) -> bool) -> Set {
    let rows: Vec<usize> = (0..set.len()).filter(|row| is_wanted(*row)).collect();
    let bytes = rows.iter().flat_map(|row| set.row(*row)).copied().collect();
    Set { shape: Shape { rows: rows.len() as u64, ..set.shape }, bytes }
}

/// The older index has the first 3,000 rows, of which those are gone that `is_gone`.
fn grown(older: &Arc<Index>, all: &Set, is_gone: impl Fn(usize) -> bool, threads: usize) -> (Built, u64) {
    let set = some_of(all, |row| row >= 3000 || !is_gone(row));
    let mut places = vec![u32::MAX; all.len()];
    let left = (0..all.len()).filter(|row| *row >= 3000 || !is_gone(*row));
    left.zip(0..).for_each(|(row, place)| places[row] = place);
    let mut rows = vec![0; 3000];
    older.for_each_row(&Quiet, &mut |row| rows[row.number as usize] = places[row.id as usize]).unwrap();
    let mut options = quick(IndexKind::DiskGraph, older.view().base.metric);
    options.threads = threads;
    options.grow_from = Some(GrowFrom { graph: older.clone(), rows: Arc::new(rows) });
    let dir = tempfile::tempdir().unwrap();
    let report = build(&set.reader(), dir.path(), &options, &Quiet).unwrap();
    let index = Index::open(dir.path(), OpenOptions::default()).unwrap();
    let taken_over = report.facts.get("taken_over").map_or(0, |rows| rows.as_u64().unwrap());
    (Built { dir, index, set }, taken_over)
}

#[test]
fn a_graph_that_grows_from_an_older_one_finds_as_much_as_one_that_is_built() {
    let (rows, asked) = (clustered(4000, 20, 10, 1), clustered(100, 20, 10, 2));
    for (dtype, metric) in [(DType::F32, Metric::L2), (DType::I8, Metric::Cosine)] {
        let (all, asked) = (Set::new(dtype, 20, &rows), Set::new(dtype, 20, &asked));
        let older = Built::new(some_of(&all, |row| row < 3000), &quick(IndexKind::DiskGraph, metric));
        let older = Arc::new(older.index);
        for every in [usize::MAX, 7] {
            let is_gone = |row: usize| row % every == 3;
            let (own, taken_over) = grown(&older, &all, is_gone, 2);
            assert_eq!(taken_over, (0..3000).filter(|row| !is_gone(*row)).count() as u64);
            assert_sound(&own);
            let whole = Built::new(own.set.clone(), &quick(IndexKind::DiskGraph, metric));
            let [own_share, whole_share] = [&own, &whole].map(|built| recall(built, &asked, 100, 10, 14));
            assert!(own_share > whole_share - 0.01, "{dtype:?} {metric:?}: {own_share}, whole {whole_share}");
            assert_eq!(*own.blocks(), *grown(&older, &all, is_gone, 3).0.blocks(), "threads");
        }
        let (built, taken_over) = grown(&older, &all, |row| row % 4 == 1, 2);
        assert_eq!(taken_over, 0, "too many are gone");
        assert_sound(&built);
    }
    let all = Set::new(DType::F32, 20, &rows);
    let older = Built::new(some_of(&all, |row| row < 3000), &quick(IndexKind::DiskGraph, Metric::Ip));
    assert_eq!(grown(&Arc::new(older.index), &all, |_| false, 2).1, 0, "lengths decide about neighbours");
}

#[test]
fn any_dimension_is_built_and_found() {
    for (dim, rows) in [(1, 500), (2, 500), (3, 800), (17, 800), (384, 500), (1536, 150), (4096, 40)] {
        let options = quick(IndexKind::DiskGraph, Metric::L2);
        let built = Built::new(Set::new(DType::F32, dim, &clustered(rows, dim, 5, 1)), &options);
        assert_sound(&built);
        let share = recall(&built, &Set::new(DType::F32, dim, &clustered(10, dim, 5, 2)), 10, 10, 100);
        assert!(share >= 0.9, "{dim} dimensions: {share}");
    }
}

#[test]
fn tiny_sets_give_all_they_have() {
    for rows in [1, 2, 5, 30, 300] {
        for metric in [Metric::L2, Metric::Ip, Metric::Cosine] {
            for kind in [IndexKind::DiskGraph, IndexKind::Flat] {
                let set = Set::new(DType::F32, 9, &clustered(rows, 9, 3, 1));
                let built =
                    Built::new(set.clone(), &BuildOptions { calibration_queries: 20, ..quick(kind, metric) });
                assert_sound(&built);
                let answers = built.index.search(set.row(0), &list(400, 400), &Quiet).unwrap();
                let mut ids = answers.ids.clone();
                ids.sort_unstable();
                assert_eq!(
                    (answers.k, ids),
                    (rows, (0..rows as u64).collect::<Vec<_>>()),
                    "{rows} rows, {metric:?}, {kind:?}"
                );
            }
        }
    }
}

#[test]
fn identical_rows_are_all_as_good() {
    let one: Vec<f32> = (0..16).map(|i| normal(1, 1, i)).collect();
    for (dtype, metric) in [
        (DType::F32, Metric::L2),
        (DType::U8, Metric::L2),
        (DType::F32, Metric::Cosine),
        (DType::F32, Metric::Ip),
    ] {
        let built = Built::new(Set::new(dtype, 16, &one.repeat(5000)), &quick(IndexKind::DiskGraph, metric));
        assert_sound(&built);
        for k in [1, 10, 100] {
            let answers = built.index.search(built.set.row(0), &list(k, 100), &Quiet).unwrap();
            let mut ids = answers.ids.clone();
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), k, "{dtype:?} {metric:?} k={k}");
            assert!(ids.iter().all(|&id| id < 5000));
            if metric != Metric::Ip {
                assert!(answers.distances.iter().all(|d| d.abs() < 1e-6));
            }
        }
    }
}

#[test]
fn duplicates_do_not_hide_the_others() {
    let mut rows = clustered(2000, 16, 10, 1);
    let one: Vec<f32> = rows[..16].to_vec();
    rows.extend(one.repeat(1000));
    let built = Built::new(Set::new(DType::F32, 16, &rows), &quick(IndexKind::DiskGraph, Metric::L2));
    assert_sound(&built);
    let (mut found, mut asked) = (0, 0);
    for row in (1..2000).step_by(20) {
        let answers = built.index.search(built.set.row(row), &list(10, 60), &Quiet).unwrap();
        // The duplicates share a distance, so any of them will do: compare distances.
        let truth = nearest(&built.set, Metric::L2, built.set.row(row), 10, |_| false);
        let worst = truth.last().map(|&t| squared_l2(&built.set, row, t as usize)).unwrap();
        found += answers
            .ids
            .iter()
            .filter(|&&id| squared_l2(&built.set, row, id as usize) <= worst * (1.0 + 1e-9))
            .count();
        asked += 10;
        assert_eq!(answers.ids[0], row as u64);
    }
    assert!(found as f64 >= 0.93 * f64::from(asked), "{found} of {asked}");
}

fn squared_l2(set: &Set, a: usize, b: usize) -> f64 {
    set.wide(a).iter().zip(set.wide(b)).map(|(x, y)| (x - y) * (x - y)).sum()
}

#[test]
fn far_clusters_are_both_found() {
    let mut rows = clustered(1000, 12, 4, 1);
    rows.extend(clustered(1000, 12, 4, 3).iter().map(|x| x + 5000.0));
    let built = Built::new(Set::new(DType::F32, 12, &rows), &quick(IndexKind::DiskGraph, Metric::L2));
    assert_sound(&built);
    let mut asked = clustered(10, 12, 4, 2);
    asked.extend(clustered(10, 12, 4, 4).iter().map(|x| x + 5000.0));
    let share = recall(&built, &Set::new(DType::F32, 12, &asked), 20, 10, 100);
    assert!(share >= 0.9, "{share}");
}

fn precision(set: &Set) -> String {
    let dir = tempfile::tempdir().unwrap();
    let report = build(&set.reader(), dir.path(), &quick(IndexKind::DiskGraph, Metric::L2), &Quiet).unwrap();
    report.facts["points"].as_str().unwrap().to_string()
}

/// Bytes for the graph where they keep the order of neighbours, floats where they would not.
#[test]
fn precision_follows_the_spread_of_the_values() {
    assert_eq!(precision(&Set::new(DType::F32, 16, &clustered(1000, 16, 5, 1))), "byte");
    for small in [0..200, 800..1000, 0..500, 100..1000] {
        let mut rows = clustered(1000, 16, 5, 1);
        for (row, values) in rows.chunks_exact_mut(16).enumerate() {
            let scale = if small.contains(&row) { 1e-3 } else { 1e6 };
            values.iter_mut().for_each(|x| *x *= scale);
        }
        assert_eq!(precision(&Set::new(DType::F32, 16, &rows)), "float", "small rows {small:?}");
    }
}

#[test]
fn mixed_scales_are_both_found() {
    let mut rows = clustered(1500, 16, 5, 1);
    rows[..300 * 16].iter_mut().for_each(|x| *x *= 1e-3);
    rows[300 * 16..].iter_mut().for_each(|x| *x *= 1e6);
    let built = Built::new(Set::new(DType::F32, 16, &rows), &quick(IndexKind::DiskGraph, Metric::L2));
    assert_sound(&built);
    let large: Vec<f32> = clustered(20, 16, 5, 2).iter().map(|x| x * 1e6).collect();
    let share = recall(&built, &Set::new(DType::F32, 16, &large), 20, 10, 100);
    assert!(share >= 0.9, "{share}");
}

/// Every file of an index folder by name.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    entries.map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap())).collect()
}

#[test]
fn the_number_of_threads_changes_no_byte() {
    for (kind, metric) in [
        (IndexKind::DiskGraph, Metric::L2),
        (IndexKind::DiskGraph, Metric::Ip),
        (IndexKind::Flat, Metric::Cosine),
    ] {
        let set = Set::new(DType::F32, 16, &clustered(1500, 16, 8, 1));
        let made: Vec<_> = [1, 2, 3]
            .map(|threads| {
                Built::new(
                    set.clone(),
                    &BuildOptions { threads, calibration_queries: 40, ..quick(kind, metric) },
                )
            })
            .iter()
            .map(|b| files(b.dir.path()))
            .collect();
        assert!(made[0].keys().any(|name| name.contains("blocks")));
        assert!(made[0] == made[1] && made[0] == made[2], "{kind:?} {metric:?}");
        let other =
            Built::new(set, &BuildOptions { seed: 2, calibration_queries: 40, ..quick(kind, metric) });
        assert_ne!(files(other.dir.path()), made[0]);
    }
}

#[test]
fn the_number_of_threads_changes_no_byte_of_odd_sets() {
    let of = |rows: usize, dim: usize| clustered(rows, dim, 6, 3);
    let mut constants = of(257, 6);
    constants.iter_mut().step_by(3).for_each(|x| *x = 7.0);
    let few = [1, 2, 20, 255, 257].map(|rows| (3, of(rows, 3)));
    let wide =
        [(1, 255), (2, 257), (96, 255), (100, 257), (768, 130)].map(|(dim, rows)| (dim, of(rows, dim)));
    let equal = [(6, constants), (16, of(1, 16).repeat(300))];
    for (dim, rows) in few.into_iter().chain(wide).chain(equal) {
        for (dtype, metric) in
            [(DType::F32, Metric::Ip), (DType::U8, Metric::L2), (DType::I8, Metric::Cosine)]
        {
            let set = Set::new(dtype, dim, &rows);
            let options = BuildOptions { on_bad_row: OnBadRow::Skip, ..quick(IndexKind::DiskGraph, metric) };
            let made = [1, 2].map(|threads| {
                files(Built::new(set.clone(), &BuildOptions { threads, ..options.clone() }).dir.path())
            });
            assert!(made[0] == made[1], "{} rows, {dim} dimensions, {dtype:?} {metric:?}", set.len());
        }
    }
}

#[test]
fn a_row_of_a_huge_norm_does_not_hide_the_others() {
    const HUGE: usize = 777;

    let (mut rows, asked) = (clustered(2500, 20, 10, 1), clustered(60, 20, 10, 2));
    let asked = Set::new(DType::F32, 20, &asked);
    let search = |rows: &[f32]| {
        let built = Built::new(Set::new(DType::F32, 20, rows), &quick(IndexKind::DiskGraph, Metric::Ip));
        assert_sound(&built);
        let answers = built.index.search(&asked.bytes, &list(11, 40), &Quiet).unwrap();
        let is_other = |id: &u64| *id != HUGE as u64;
        let found = answers.ids.chunks(11).enumerate().map(|(q, ids)| {
            let ids: Vec<u64> = ids.iter().copied().filter(is_other).take(10).collect();
            hits(&ids, &nearest(&built.set, Metric::Ip, asked.row(q), 10, |row| row == HUGE))
        });
        found.sum::<usize>() as f64 / 600.0
    };
    let without = search(&rows);
    for scale in [1e4, 1e9] {
        (0..20).for_each(|i| rows[HUGE * 20 + i] = scale * normal(5, 5, i as u64));
        let with = search(&rows);
        assert!(with >= without - 0.02, "norm about {scale}: {with} instead of {without}");
    }
}

/// Rows that cannot be indexed are left out, and nothing else changes for those that remain.
#[test]
fn bad_rows_are_refused_or_skipped() {
    for metric in [Metric::L2, Metric::Cosine] {
        let mut rows = clustered(1200, 16, 8, 1);
        for row in [0, 16, 17, 160, 1199] {
            rows[row * 16 + 3] = f32::NAN;
        }
        if metric == Metric::Cosine {
            rows[500 * 16..501 * 16].fill(0.0);
        }
        let set = Set::new(DType::F32, 16, &rows);
        let dir = tempfile::tempdir().unwrap();
        let error =
            build(&set.reader(), dir.path(), &quick(IndexKind::DiskGraph, metric), &Quiet).unwrap_err();
        assert!(error.message.contains("row 0"), "{}", error.message);
        for kind in [IndexKind::DiskGraph, IndexKind::Flat] {
            let options =
                BuildOptions { on_bad_row: OnBadRow::Skip, calibration_queries: 30, ..quick(kind, metric) };
            let dir = tempfile::tempdir().unwrap();
            let report = build(&set.reader(), dir.path(), &options, &Quiet).unwrap();
            let skipped = if metric == Metric::Cosine { 6 } else { 5 };
            assert_eq!((report.skipped_rows, report.rows), (skipped, 1200 - skipped));
            let index = Index::open(dir.path(), OpenOptions::default()).unwrap();
            let found = index.search(set.row(77), &list(10, 80), &Quiet).unwrap();
            assert_eq!(found.ids[0], 77);
        }
    }
}

#[test]
fn a_few_good_rows_among_many_bad_ones_make_an_index() {
    let mut rows = vec![f32::NAN; 30_000 * 4];
    for row in [11usize, 15_000, 29_998] {
        rows[row * 4..row * 4 + 4].fill(row as f32);
    }
    let set = Set::new(DType::F32, 4, &rows);
    let dir = tempfile::tempdir().unwrap();
    let options = BuildOptions { on_bad_row: OnBadRow::Skip, ..quick(IndexKind::DiskGraph, Metric::L2) };
    build(&set.reader(), dir.path(), &options, &Quiet).unwrap();
    let index = Index::open(dir.path(), OpenOptions::default()).unwrap();
    assert_eq!(index.search(set.row(15_000), &list(5, 10), &Quiet).unwrap().ids, [15_000, 11, 29_998]);
}

/// The megabytes that a refusal names.
fn named_mib(message: &str) -> u64 {
    let after = message.split("--ram-budget ").nth(1).unwrap_or_else(|| panic!("no budget in {message:?}"));
    after.split("MiB").next().unwrap().parse().unwrap()
}

#[test]
fn a_budget_that_is_too_small_names_one_that_works() {
    let set = Set::new(DType::F32, 16, &clustered(2000, 16, 8, 1));
    let built = Built::new(set, &quick(IndexKind::DiskGraph, Metric::L2));
    let open = |ram_budget| {
        Index::open(
            built.dir.path(),
            OpenOptions { ram_budget: Some(ram_budget), cache_budget: 1 << 20, ..OpenOptions::default() },
        )
    };
    let error = open(1 << 20).unwrap_err();
    assert_eq!(error.kind, stratann_storage::ErrorKind::Budget);
    assert!(open(named_mib(&error.message) << 20).is_ok());

    let options = SearchOptions { threads: 4, in_flight: Some(64), width: Width::Fixed(8), ..list(10, 100) };
    let asked = &built.set.bytes[..50 * 64];
    let total = built.index.search_account(&options, 50).total();
    let search = |ram_budget| {
        let index = Index::open(
            built.dir.path(),
            OpenOptions { ram_budget: Some(ram_budget), ..OpenOptions::default() },
        )
        .unwrap();
        index.search(asked, &options, &Quiet).map(|a| a.ids)
    };
    assert!(search(total).is_ok());
    let error = search(total - 1).unwrap_err();
    assert_eq!(error.kind, stratann_storage::ErrorKind::Budget);
    assert!(search(named_mib(&error.message) << 20).is_ok());
}

#[test]
fn a_build_budget_that_is_too_small_names_one_that_works() {
    let set = Set::new(DType::F32, 16, &clustered(2000, 16, 8, 1));
    for kind in [IndexKind::DiskGraph, IndexKind::Flat] {
        let attempt = |ram_budget| {
            let dir = tempfile::tempdir().unwrap();
            let options = BuildOptions { ram_budget: Some(ram_budget), ..quick(kind, Metric::L2) };
            build(&set.reader(), &dir.path().join("index"), &options, &Quiet).map(|_| dir)
        };
        let error = attempt(1 << 20).unwrap_err();
        assert_eq!(error.kind, stratann_storage::ErrorKind::Budget);
        let least = named_mib(&error.message);
        assert!(attempt(least << 20).is_ok(), "{kind:?}: {least} MiB");
        assert_eq!(attempt((least - 2) << 20).unwrap_err().kind, stratann_storage::ErrorKind::Budget);
    }
}

#[test]
fn a_failed_build_leaves_nothing_and_harms_nothing() {
    let set = Set::new(DType::F32, 16, &clustered(500, 16, 8, 1));
    let built = Built::new(set.clone(), &quick(IndexKind::DiskGraph, Metric::L2));
    let before = files(built.dir.path());
    let mut bad = set.clone();
    bad.bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let forced = BuildOptions { force: true, ..quick(IndexKind::DiskGraph, Metric::L2) };
    assert!(build(&bad.reader(), built.dir.path(), &forced, &Quiet).is_err());
    assert!(
        build(&set.reader(), built.dir.path(), &quick(IndexKind::DiskGraph, Metric::L2), &Quiet).is_err(),
        "not without force"
    );
    assert_eq!(files(built.dir.path()), before);
    let fresh = built.dir.path().join("fresh");
    assert!(build(&bad.reader(), &fresh, &forced, &Quiet).is_err());
    assert!(!fresh.exists());
}
