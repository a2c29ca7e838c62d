//! What a search with lists finds among few or scattered matches: as many results as there are, and the recall that is
//! asked for.

mod common;

use common::{Built, Set, clustered, filter, hits, nearest, normal, options, quick, search};
use stratann_core::build::hash;
use stratann_engine::build::IndexKind;
use stratann_engine::exec::scorer::{EmulatedFault, ScorerChoice, ScorerOptions};
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::search::{Answers, Effort, Filters, Naming, SearchOptions};
use stratann_engine::{DType, Metric};
use stratann_storage::Quiet;

/// Rows that lie anywhere, without clusters.
fn scattered(dtype: DType, (rows, dim): (usize, usize), seed: u64) -> Set {
    let values: Vec<f32> = (0..(rows * dim) as u64).map(|at| normal(seed, 3, at)).collect();
    Set::new(dtype, dim, &values)
}

/// One in so many of the rows, by chance.
fn by_chance(rows: usize, share: f64) -> Vec<u64> {
    (0..rows as u64).filter(|&row| (hash(9, 4, row) as f64) < share * u64::MAX as f64).collect()
}

/// The same index with codes on a device that runs on the processor.
fn on_emulated_device(built: &Built) -> Index {
    let choice = ScorerChoice::Emulated(EmulatedFault::None);
    let scorer = ScorerOptions { choice, ..ScorerOptions::default() };
    Index::open(built.dir.path(), OpenOptions { scorer, ..OpenOptions::default() }).unwrap()
}

fn answered(answers: &Answers) -> (&[u64], &[f32], &[u32]) {
    (&answers.ids, &answers.distances, &answers.counts)
}

/// The lists that a short search visits have fewer matches than k.
#[test]
fn a_short_search_returns_as_many_results_as_there_are() {
    for (at, kind) in [IndexKind::GridIvf, IndexKind::GpuIvf].into_iter().enumerate() {
        for (metric, dtype) in Metric::ALL.into_iter().zip([DType::F32, DType::U8, DType::I8]) {
            let set = Set::new(dtype, 16, &clustered(1500, 16, 12, at as u64));
            let asked = Set::new(dtype, 16, &clustered(30, 16, 12, 77));
            let built = Built::new(set, &quick(kind, metric));
            let mut resident = Index::open(built.dir.path(), OpenOptions::default()).unwrap();
            resident.set_cache_budget(1 << 30);
            resident.make_resident(&Quiet).unwrap();
            let emulated = (kind == IndexKind::GpuIvf).then(|| on_emulated_device(&built));
            for (share, k) in [(0.3, 100), (0.22, 10), (0.05, 40), (0.02, 10)] {
                let rows = by_chance(1500, share);
                let options = SearchOptions { k, effort: Effort::Nprobe(1, None, None), ..options(k, 0.9) };
                let own = filter(&built.index, &rows, Naming::Only, &options);
                let on_disk = search(&built.index, &asked, Filters::Shared(&own), &options);
                let wanted = rows.len().min(k);
                let least = on_disk.counts.iter().min().copied().unwrap_or(0);
                assert_eq!(least as usize, wanted, "{kind:?} {metric:?} {dtype:?} {share}");
                for index in [Some(&resident), emulated.as_ref()].into_iter().flatten() {
                    let own = filter(index, &rows, Naming::Only, &options);
                    let there = search(index, &asked, Filters::Shared(&own), &options);
                    assert_eq!(answered(&there), answered(&on_disk), "{kind:?} {metric:?}");
                }
            }
        }
    }
}

/// Recalls and shares that lie between those that are measured: a setting for a recall between two others may be of
/// another path, and visit fewer lists than either.
#[test]
fn recall_between_those_that_were_measured_is_reached() {
    const ROWS: usize = 4000;
    for (kind, metric, dtype) in [
        (IndexKind::GpuIvf, Metric::L2, DType::U8),
        (IndexKind::GpuIvf, Metric::Cosine, DType::F32),
        (IndexKind::HybridIvf, Metric::L2, DType::U8),
        (IndexKind::GridIvf, Metric::L2, DType::F32),
        (IndexKind::RemoteHnsw, Metric::Cosine, DType::F32),
    ] {
        let mut build = quick(kind, metric);
        build.calibration_queries = 200;
        let built = Built::new(scattered(dtype, (ROWS, 8), 1), &build);
        let asked = scattered(dtype, (150, 8), 2);
        let mut all = (0, 0);
        for share in [0.7, 0.3, 0.12, 0.07, 0.03] {
            let rows = by_chance(ROWS, share);
            let skip = |row: usize| rows.binary_search(&(row as u64)).is_err();
            let truth: Vec<Vec<u64>> = (0..asked.len())
                .map(|query| nearest(&built.set, metric, asked.row(query), 10, skip))
                .collect();
            for recall in [0.85, 0.9, 0.95] {
                let options = options(10, recall);
                let own = filter(&built.index, &rows, Naming::Only, &options);
                let answers = search(&built.index, &asked, Filters::Shared(&own), &options);
                let found = answers.ids.chunks(10).zip(&truth).map(|(ids, truth)| hits(ids, truth));
                let (found, wanted) = (found.sum::<usize>(), 10 * asked.len());
                let reached = found as f64 / wanted as f64;
                let what = format!("{kind:?} {metric:?} {dtype:?}, {share} match, {:?}", own.way());
                assert!(reached >= recall - 0.04, "{what}: {reached} for {recall}");
                all = (all.0 + found, all.1 + wanted);
            }
        }
        let reached = f64::from(all.0 as u32) / f64::from(all.1 as u32);
        assert!(reached >= 0.9, "{kind:?} {metric:?} {dtype:?}: {reached}");
    }
}
