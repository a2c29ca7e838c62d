//! Exact means exact in every kind, wherever vectors lie and however far from each other, and distances are right.

mod common;

use std::fmt::Debug;

use common::{Set, clustered, normal, quick};
use stratann_engine::build::{BuildOptions, IndexKind, build};
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::search::{Effort, SearchOptions};
use stratann_engine::{DType, Metric};
use stratann_storage::Quiet;

const ROWS: usize = 700;
const K: usize = 10;
/// Queries of each set, near its first rows.
const QUERIES: usize = 24;

/// Rows of a set, by its name.
struct Spread {
    name: &'static str,
    dim: usize,
    values: Vec<f32>,
}

fn spreads() -> Vec<Spread> {
    let plain = clustered(ROWS, 32, 8, 1);
    let shaped = |name, change: &dyn Fn(usize, f32) -> f32| {
        let values = plain.iter().enumerate().map(|(at, &x)| change(at / 32, x)).collect();
        Spread { name, dim: 32, values }
    };
    let islands = |name, dim: usize, far: f32, near: f32| {
        let at = |row: u64, i: u64| far * normal(3, row / 50, i) + near * normal(4, row, i);
        let values = (0..ROWS as u64).flat_map(|row| (0..dim as u64).map(move |i| at(row, i))).collect();
        Spread { name, dim, values }
    };
    vec![
        shaped("plain", &|_, x| x),
        shaped("one far row", &|row, x| if row == 7 { 1e6 * x } else { x }),
        shaped("one row farther", &|row, x| if row == 7 { 1e12 * x } else { x }),
        shaped("one short row", &|row, x| if row == 7 { 1e-6 * x } else { x }),
        shaped("an offset", &|_, x| x + 1e5),
        shaped("small", &|_, x| 1e-12 * x),
        shaped("tiny", &|_, x| 1e-22 * x),
        shaped("large", &|_, x| 1e12 * x),
        shaped("all lengths", &|row, x| x * 10f32.powi((row % 13) as i32 - 6)),
        shaped("equal rows", &|row, x| if row % 3 == 0 { 1.0 } else { x }),
        islands("islands in metres", 3, 4e6, 40.0),
        islands("islands", 48, 1e4, 0.5),
        islands("near islands", 48, 30.0, 0.1),
        islands("one component", 1, 1e3, 0.1),
    ]
}

/// Queries a little away from rows.
fn queries(set: &Spread) -> Vec<f32> {
    let rows: Vec<&[f32]> = set.values.chunks_exact(set.dim).collect();
    let near = |i: usize| {
        let pairs = rows[i].iter().zip(rows[i + 1]);
        pairs.map(|(&x, &y)| (f64::from(x) + 0.02 * (f64::from(x) - f64::from(y))) as f32)
    };
    (0..QUERIES).flat_map(near).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn distance(metric: Metric, a: &[f64], b: &[f64]) -> f64 {
    match metric {
        Metric::L2 => a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum(),
        Metric::Ip => -dot(a, b),
        Metric::Cosine => 1.0 - dot(a, b) / (dot(a, a) * dot(b, b)).sqrt(),
    }
}

/// By how much a distance may be off.
fn tolerance(metric: Metric, distance: f64, a: &[f64], b: &[f64]) -> f64 {
    match metric {
        Metric::L2 => 1e-5 * distance,
        Metric::Ip => 1e-5 * (dot(a, a) * dot(b, b)).sqrt(),
        Metric::Cosine => 1e-5,
    }
}

/// Each result is at its distance, and no row is nearer than the last one.
fn assert_exact(set: &Set, asked: &Set, kind: IndexKind, metric: Metric, what: &dyn Debug) {
    let dir = tempfile::tempdir().unwrap();
    build(&set.reader(), dir.path(), &quick(kind, metric), &Quiet)
        .unwrap_or_else(|e| panic!("{what:?}: {e}"));
    let index = Index::open(dir.path(), OpenOptions::default()).unwrap();
    let options = SearchOptions { k: K, effort: Effort::Recall(1.0), ..SearchOptions::default() };
    let found = index.search(&asked.bytes, &options, &Quiet).unwrap();
    assert!(found.failed.is_empty(), "{what:?}: {:?}", found.failed);
    let rows: Vec<Vec<f64>> = (0..set.len()).map(|i| set.wide(i)).collect();
    for at in 0..asked.len() {
        let query = asked.wide(at);
        let mut wanted: Vec<f64> = rows.iter().map(|row| distance(metric, &query, row)).collect();
        for (&id, &found) in found.ids[at * K..][..K].iter().zip(&found.distances[at * K..]) {
            let exact = wanted[id as usize];
            let allowed = tolerance(metric, exact, &query, &rows[id as usize]);
            let error = (f64::from(found) - exact).abs();
            assert!(error <= allowed, "{what:?}: row {id} of query {at} is at {exact:e}, not {found:e}");
        }
        let ids = &found.ids[at * K..][..K];
        let mut sorted = ids.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), K, "{what:?}: {ids:?}");
        let last = ids.iter().map(|&id| wanted[id as usize]).fold(f64::NEG_INFINITY, f64::max);
        ids.iter().for_each(|&id| wanted[id as usize] = f64::INFINITY);
        for (row, &nearer) in wanted.iter().enumerate() {
            let allowed = tolerance(metric, last, &query, &rows[row]);
            assert!(
                nearer >= last - allowed,
                "{what:?}: row {row} of query {at} is at {nearer:e}, not {last:e}"
            );
        }
    }
}

/// Whether a type holds all rows: bytes are steps of a twentieth, and floats of 16 bits end at 65,504.
fn fits(spread: &Spread, dtype: DType) -> bool {
    let sizes = match dtype {
        DType::F32 => 0.0..f32::INFINITY,
        DType::F16 => 1e-7..6e4,
        DType::U8 | DType::I8 => 0.1..6.0,
    };
    let largest = |row: &[f32]| row.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    spread.values.chunks_exact(spread.dim).all(|row| sizes.contains(&largest(row)))
}

/// Squares of tiny components are no floats, but they have directions.
fn metrics(spread: &Spread) -> &'static [Metric] {
    if spread.name == "tiny" { &[Metric::Cosine] } else { &Metric::ALL }
}

fn assert_kind(kind: IndexKind) {
    for spread in spreads() {
        let asked = queries(&spread);
        for dtype in DType::ALL {
            if !fits(&spread, dtype) {
                continue;
            }
            for &metric in metrics(&spread) {
                let what = (kind, spread.name, dtype, metric);
                let set = Set::new(dtype, spread.dim, &spread.values);
                assert_exact(&set, &Set::new(dtype, spread.dim, &asked), kind, metric, &what);
            }
        }
    }
}

#[test]
fn flat_is_exact_at_every_spread() {
    assert_kind(IndexKind::Flat);
}

#[test]
fn a_grid_is_exact_at_every_spread() {
    assert_kind(IndexKind::GridIvf);
}

#[test]
fn a_graph_is_exact_at_every_spread() {
    assert_kind(IndexKind::DiskGraph);
}

#[test]
fn lists_on_disk_are_exact_at_every_spread() {
    assert_kind(IndexKind::HybridIvf);
}

#[test]
fn codes_of_a_gpu_are_exact_at_every_spread() {
    assert_kind(IndexKind::GpuIvf);
}

/// The share of wanted neighbours that a search finds, of equally far ones any.
fn recall(set: &Set, asked: &Set, kind: IndexKind, wanted: f64) -> f64 {
    let dir = tempfile::tempdir().unwrap();
    let options = BuildOptions { calibration_queries: 200, ..quick(kind, Metric::L2) };
    build(&set.reader(), dir.path(), &options, &Quiet).unwrap();
    let index = Index::open(dir.path(), OpenOptions::default()).unwrap();
    let options = SearchOptions { k: K, effort: Effort::Recall(wanted), ..SearchOptions::default() };
    let found = index.search(&asked.bytes, &options, &Quiet).unwrap();
    let rows: Vec<Vec<f64>> = (0..set.len()).map(|i| set.wide(i)).collect();
    let mut near = 0;
    for at in 0..asked.len() {
        let query = asked.wide(at);
        let all: Vec<f64> = rows.iter().map(|row| distance(Metric::L2, &query, row)).collect();
        let mut sorted = all.clone();
        sorted.sort_by(f64::total_cmp);
        let is_near = |&&id: &&u64| all.get(id as usize).is_some_and(|&x| x <= sorted[K - 1] * (1.0 + 1e-4));
        near += found.ids[at * K..][..K].iter().filter(is_near).count();
    }
    near as f64 / (K * asked.len()) as f64
}

/// Coordinates in metres from the centre of the Earth.
#[test]
fn a_recall_that_is_asked_holds_where_vectors_lie_in_groups_far_apart() {
    let at = |stream: u64, row: u64, i: u64| 4e6 * normal(3, row / 150, i) + 40.0 * normal(stream, row, i);
    let rows = |stream: u64, step: u64| -> Vec<f32> {
        (0..3000).step_by(step as usize).flat_map(|row| (0..3).map(move |i| at(stream, row, i))).collect()
    };
    let (set, asked) = (Set::new(DType::F32, 3, &rows(4, 1)), Set::new(DType::F32, 3, &rows(5, 20)));
    for kind in [IndexKind::GridIvf, IndexKind::DiskGraph, IndexKind::HybridIvf, IndexKind::GpuIvf] {
        let found = recall(&set, &asked, kind, 0.95);
        assert!(found >= 0.93, "{kind:?}: {found}");
    }
}
