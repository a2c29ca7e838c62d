//! `--recall`: what is asked for is reached on queries unlike the rows, never refused, and exact at 1.

mod common;

use common::{Built, Set, clustered, hits, list_options, nearest, normal, quick};
use stratann_core::format::directory::LocalKind;
use stratann_engine::build::IndexKind;
use stratann_engine::exec::Width;
use stratann_engine::kinds::options::LocalPlan;
use stratann_engine::search::{Answers, Effort, SearchOptions};
use stratann_engine::{DType, Metric};
use stratann_storage::Quiet;

const DIM: usize = 20;

fn search(built: &Built, queries: &Set, k: usize, recall: f64) -> Answers {
    let options = SearchOptions {
        k,
        effort: Effort::Recall(recall),
        threads: 2,
        width: Width::Fixed(1),
        ..SearchOptions::default()
    };
    built.index.search(&queries.bytes, &options, &Quiet).unwrap()
}

#[test]
fn a_recall_of_one_is_exact_for_every_kind_type_and_metric() {
    for dtype in DType::ALL {
        for metric in Metric::ALL {
            let set = Set::new(dtype, DIM, &clustered(700, DIM, 9, 1));
            let asked = Set::new(dtype, DIM, &clustered(12, DIM, 9, 2));
            let flat = Built::new(set.clone(), &quick(IndexKind::Flat, metric));
            let expected = search(&flat, &asked, 10, 1.0);
            let lists = |kind| {
                list_options(quick(IndexKind::HybridIvf, metric), |own| {
                    (own.clusters, own.plan) = (Some(12), LocalPlan::Uniform(kind).into());
                })
            };
            for options in [
                quick(IndexKind::DiskGraph, metric),
                lists(LocalKind::Flat),
                lists(LocalKind::Ivf),
                lists(LocalKind::Graph),
            ] {
                let built = Built::new(set.clone(), &options);
                let found = search(&built, &asked, 10, 1.0);
                assert_eq!(found.ids, expected.ids, "{dtype:?} {metric:?} {:?}", options.kind());
                let bits = |d: &[f32]| d.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&found.distances), bits(&expected.distances));
            }
        }
    }
}

/// Rows of clusters of unequal sizes and widths. Queries come from all clusters alike, mostly from small ones.
fn hot_spots(rows: usize, count: usize) -> (Set, Set) {
    const CLUSTERS: u64 = 60;
    let place = |cluster: u64, i: u64| 1.2 * normal(5, cluster, i);
    let width = |cluster: u64| 0.5 + 0.25 * (cluster % 5) as f32;
    let point = |stream: u64, cluster: u64, number: u64| {
        let value = move |i| place(cluster, i) + width(cluster) * normal(stream, 1000 + number, i);
        (0..DIM as u64).map(value).collect::<Vec<f32>>()
    };
    // Cluster c has a share of the rows that falls with its number.
    let of_row = |row: u64| {
        let x = row as f32 / rows as f32;
        ((x * x * CLUSTERS as f32) as u64).min(CLUSTERS - 1)
    };
    let base: Vec<f32> = (0..rows as u64).flat_map(|row| point(1, of_row(row), row)).collect();
    let asked: Vec<f32> = (0..count as u64).flat_map(|q| point(2, CLUSTERS - 1 - q * q % 40, q)).collect();
    (Set::new(DType::F32, DIM, &base), Set::new(DType::F32, DIM, &asked))
}

#[test]
fn queries_unlike_the_rows_reach_the_recall_that_is_asked_for() {
    let (set, asked) = hot_spots(6000, 150);
    let truth: Vec<Vec<u64>> =
        (0..asked.len()).map(|q| nearest(&set, Metric::L2, asked.row(q), 10, |_| false)).collect();
    for kind in [IndexKind::DiskGraph, IndexKind::HybridIvf] {
        let mut options = quick(kind, Metric::L2);
        options.calibration_queries = 300;
        let built = Built::new(set.clone(), &options);
        for wanted in [0.9, 0.95, 0.99] {
            let answers = search(&built, &asked, 10, wanted);
            let found: usize = answers.ids.chunks(10).zip(&truth).map(|(ids, truth)| hits(ids, truth)).sum();
            let recall = found as f64 / (10 * asked.len()) as f64;
            assert!(recall >= wanted - 0.02, "{kind:?}: {recall} of {wanted}");
        }
        for wanted in [0.999, 0.9999] {
            let answers = search(&built, &asked, 10, wanted);
            let found: usize = answers.ids.chunks(10).zip(&truth).map(|(ids, truth)| hits(ids, truth)).sum();
            assert!(found as f64 >= 0.99 * (10 * asked.len()) as f64, "{kind:?} {wanted}: {found}");
        }
    }
}

/// Rows of clusters, and queries that lie between two of these: neighbours of each are in many lists.
fn questions(rows: usize, count: usize) -> (Set, Set) {
    let base = clustered(rows, DIM, 40, 1);
    let row = |number: usize| &base[number * DIM..(number + 1) * DIM];
    let mut asked = Vec::new();
    for q in 0..count {
        let (near, far) = (row(q * 7 % rows), row((q * 13 + rows / 2) % rows));
        asked.extend(near.iter().zip(far).map(|(near, far)| 0.8 * near + 0.2 * far));
    }
    (Set::new(DType::F32, DIM, &base), Set::new(DType::F32, DIM, &asked))
}

#[test]
fn clusters_of_a_remote_index_reach_the_recall_that_questions_ask_for() {
    let (set, asked) = questions(8000, 300);
    let truth: Vec<Vec<u64>> =
        (0..asked.len()).map(|q| nearest(&set, Metric::L2, asked.row(q), 10, |_| false)).collect();
    let mut options = quick(IndexKind::RemoteHnsw, Metric::L2);
    options.calibration_queries = 300;
    let built = Built::new(set, &options);
    for wanted in [0.9, 0.95, 0.98, 0.99] {
        let answers = search(&built, &asked, 10, wanted);
        let found: usize = answers.ids.chunks(10).zip(&truth).map(|(ids, truth)| hits(ids, truth)).sum();
        let recall = found as f64 / (10 * asked.len()) as f64;
        assert!(recall >= wanted - 0.005, "{recall} of {wanted}");
        assert!(recall < 1.0, "all clusters were searched");
    }
}

#[test]
fn a_recall_of_one_needs_no_curve() {
    let set = Set::new(DType::F32, DIM, &clustered(500, DIM, 9, 1));
    let built = Built::new(set, &quick(IndexKind::DiskGraph, Metric::L2));
    let options = |recall| SearchOptions { effort: Effort::Recall(recall), ..SearchOptions::default() };
    assert!(built.index.params(&options(1.0)).is_ok());
    let refused = built.index.params(&options(0.99)).unwrap_err();
    assert!(refused.message.contains("no recall curve"), "{}", refused.message);
    assert!(built.index.params(&options(1.01)).is_err());
}
