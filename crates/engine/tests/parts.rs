//! Several indexes searched as one: what is known of some saves work in the others, and recall is that of the whole.

mod common;

use std::collections::BTreeSet;

use common::{Built, Set, clustered, graph_set, list_options, nearest, queries, quick};
use stratann_core::query::QueryStats;
use stratann_engine::build::{BuildOptions, IndexKind};
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::search::{Answers, Effort, Filters, SearchOptions, Together};
use stratann_engine::{DType, Metric};
use stratann_params::choices::PartsName;
use stratann_storage::{ErrorKind, Quiet};

const K: usize = 10;

fn calibrated(kind: IndexKind) -> BuildOptions {
    let options = BuildOptions { calibration_queries: 40, ..quick(kind, Metric::L2) };
    match kind {
        IndexKind::HybridIvf => list_options(options, |own| own.clusters = Some(20)),
        _ => options,
    }
}

fn open(built: &Built) -> Index {
    Index::open(built.dir.path(), OpenOptions { head_budget: Some(0), ..OpenOptions::default() }).unwrap()
}

fn options(parts: PartsName) -> SearchOptions {
    SearchOptions { k: K, effort: Effort::Recall(0.9), parts, ..SearchOptions::default() }
}

fn compared(stats: &QueryStats) -> u64 {
    stats.full_comparisons + stats.components + stats.reads
}

#[test]
fn results_that_are_known_save_work_in_every_kind() {
    let asked = queries(80, 24);
    let kinds =
        [IndexKind::DiskGraph, IndexKind::HybridIvf, IndexKind::GridIvf, IndexKind::GpuIvf, IndexKind::Flat];
    for kind in kinds {
        let index = open(&Built::new(graph_set(), &calibrated(kind)));
        let together = Together::new([&index]).unwrap();
        // Bounds of a recall leave out some vectors by chance; those of so many lists hold.
        let lists = Effort::Nprobe(8, None, None);
        let usual = options(PartsName::Whole);
        let effort = if kind == IndexKind::HybridIvf { lists } else { usual.effort };
        let options = SearchOptions { effort, ..usual };
        let search = |known: &[Vec<f32>]| {
            together.search_beside(&asked.bytes, (&[Filters::None], known), &options, false, &Quiet).unwrap()
        };
        let plain = index.search(&asked.bytes, &options, &Quiet).unwrap();
        let same = |found: &Answers| {
            assert_eq!((&found.ids, &found.distances), (&plain.ids, &plain.distances), "{kind:?}");
            assert_eq!(found.stats, plain.stats, "{kind:?}");
        };
        same(&search(&[]));
        same(&search(&vec![vec![f32::INFINITY; K]; asked.len()]));
        same(&search(&vec![vec![0.0; K - 1]; asked.len()]));
        // The bound is the distance of the fifth result: the first five are found again, with less work.
        let bound = |query: usize| plain.distances[query * K + 4];
        let known: Vec<Vec<f32>> = (0..asked.len()).map(|query| vec![bound(query); K]).collect();
        let bounded = search(&known);
        let within = |answers: &Answers, query: usize| -> BTreeSet<u64> {
            answers.results(query).filter(|hit| hit.1 <= bound(query)).map(|hit| hit.0).collect()
        };
        let found = (0..asked.len()).map(|q| within(&bounded, q).intersection(&within(&plain, q)).count());
        let wanted: usize = (0..asked.len()).map(|query| within(&plain, query).len()).sum();
        let found: usize = found.sum();
        let is_exact = !matches!(kind, IndexKind::DiskGraph | IndexKind::GpuIvf);
        assert!(found == wanted || !is_exact && 100 * found >= 92 * wanted, "{kind:?}: {found} of {wanted}");
        assert_eq!((bounded.short, bounded.failed.len()), (0, 0));
        match kind {
            IndexKind::Flat => assert_eq!(compared(&bounded.stats), compared(&plain.stats)),
            _ => {
                assert!(compared(&bounded.stats) < compared(&plain.stats), "{kind:?}");
                assert!(bounded.stats.bounded > 0 && plain.stats.bounded == 0, "{kind:?}");
            }
        }
    }
}

#[test]
fn known_distances_are_of_each_query() {
    let index = open(&Built::new(graph_set(), &quick(IndexKind::Flat, Metric::L2)));
    let together = Together::new([&index]).unwrap();
    let known = [vec![1.0]];
    let asked = queries(2, 24);
    let refused = together.search_beside(
        &asked.bytes,
        (&[Filters::None], &known),
        &options(PartsName::Whole),
        false,
        &Quiet,
    );
    assert_eq!(refused.unwrap_err().kind, ErrorKind::BadInput);
}

/// Rows in parts, each an index; ids are those of the whole.
fn parts_of(rows: &[f32], of: impl Fn(usize) -> usize, count: usize, kind: IndexKind) -> Vec<Built> {
    let part = |part: usize| {
        let ids: Vec<usize> = (0..rows.len() / 24).filter(|&row| of(row) == part).collect();
        let own: Vec<f32> = ids.iter().flat_map(|&row| &rows[row * 24..(row + 1) * 24]).copied().collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ids.u64bin");
        let header = [(ids.len() as u32).to_le_bytes(), 1u32.to_le_bytes()].concat();
        let bytes = ids.iter().flat_map(|&id| (id as u64).to_le_bytes());
        std::fs::write(&path, header.into_iter().chain(bytes).collect::<Vec<u8>>()).unwrap();
        let options = BuildOptions { ids: Some(path), ..calibrated(kind) };
        Built::new(Set::new(DType::F32, 24, &own), &options)
    };
    (0..count).map(part).collect()
}

#[test]
fn the_recall_is_that_of_the_whole() {
    let rows = clustered(6000, 24, 12, 3);
    let (whole, asked) = (Set::new(DType::F32, 24, &rows), queries(60, 24));
    let truth: Vec<Vec<u64>> =
        (0..asked.len()).map(|query| nearest(&whole, Metric::L2, asked.row(query), K, |_| false)).collect();
    // By chance, by size, and by place: rows with a small and a large first component.
    let by_place = |row: usize| usize::from(rows[row * 24] > 0.0) + 2 * usize::from(rows[row * 24 + 1] > 0.0);
    let by_size = |row: usize| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 3][row % 16];
    for kind in [IndexKind::DiskGraph, IndexKind::HybridIvf] {
        let all = [
            parts_of(&rows, |row| row % 4, 4, kind),
            parts_of(&rows, by_size, 4, kind),
            parts_of(&rows, by_place, 4, kind),
        ];
        let mut costs = [0; 2];
        for (number, built) in all.iter().enumerate() {
            let indexes: Vec<Index> = built.iter().map(open).collect();
            let together = Together::new(&indexes).unwrap();
            let search = |parts, threads, in_flight| {
                let options = SearchOptions { threads, in_flight: Some(in_flight), ..options(parts) };
                together.search(&asked.bytes, &options, false, &Quiet).unwrap()
            };
            let (each, found) = (search(PartsName::Each, 1, 4), search(PartsName::Whole, 1, 4));
            let hits = |answers: &Answers| -> usize {
                (0..asked.len())
                    .flat_map(|q| answers.results(q).map(move |hit| (q, hit.0)))
                    .filter(|(query, id)| truth[*query].contains(id))
                    .count()
            };
            let recall = hits(&found) as f64 / (K * asked.len()) as f64;
            assert!(recall >= 0.88, "{kind:?}, parts {number}: {recall}");
            costs = [costs[0] + compared(&found.stats), costs[1] + compared(&each.stats)];
            assert_eq!((each.stats.bounded, found.failed.len(), found.short), (0, 0, 0));
            assert!(found.latency_ns.iter().all(|&ns| ns > 0));
            for (threads, in_flight) in [(1, 1), (2, 7), (3, 64)] {
                let again = search(PartsName::Whole, threads, in_flight);
                assert_eq!((&again.ids, &again.distances), (&found.ids, &found.distances));
                assert_eq!(compared(&again.stats), compared(&found.stats));
            }
        }
        assert!(costs[0] < costs[1], "{kind:?}: {costs:?}");
    }
}
