//! What the planner's way to the points of a filter costs beside every other way, by exact counters: `make bench-ways`.
//!
//! ways [ROWS]
#![allow(clippy::print_stdout, reason = "a program that reports")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::sync::Arc;

use common::Noise;
use common::points::{components, number, open};
use stratann_core::query::QueryStats;
use stratann_engine::search::SieveWay;
use stratann_kernel::distance::Exact;
use stratann_kernel::{DType, Metric};
use stratann_node::collections::{Collection, SearchOptions, Spec};
use stratann_params::IndexKind;
use stratann_payload::{Filter, IndexKind as FieldKind, Path, Schema};
use stratann_storage::Quiet;

const DIM: usize = 24;
const K: usize = 10;
const RECALL: f64 = 0.9;
/// A way counts as one that reaches the recall, if it lacks no more than this of it and of what the planner reached.
const RECALL_MARGIN: f64 = 0.01;
/// The planner's price over that of the cheapest way, in a cell where it chose well.
const WELL: f64 = 1.5;

// Prices of a usual machine, as those that a disk-graph plans by.
const READ_NS: f64 = 20_000.0;
const CODE_NS: f64 = 15.0;
const VECTOR_NS: f64 = 10.0;
const COMPONENT_NS: f64 = 0.4;

const WAYS: [SieveWay; 3] = [SieveWay::Exact, SieveWay::Codes, SieveWay::Search];

/// Vectors around some centres.
struct Data {
    rows: Vec<Vec<f32>>,
    /// Queries of any place, and those near the first of them.
    anywhere: Vec<Vec<f32>>,
    near: Vec<Vec<f32>>,
    /// Places of the rows in an order by chance, and in that of their distances from the first query.
    by_chance: Vec<u64>,
    by_distance: Vec<u64>,
}

fn normal(noise: &mut Noise) -> f32 {
    (0..6).map(|_| noise.below(1000) as f32 / 500.0 - 1.0).sum::<f32>()
}

impl Data {
    fn new(count: usize) -> Data {
        let mut noise = Noise(7);
        let centres: Vec<Vec<f32>> =
            (0..60).map(|_| (0..DIM).map(|_| 6.0 * normal(&mut noise)).collect()).collect();
        let mut drawn = |spread: f32, from: &[f32]| -> Vec<f32> {
            from.iter().map(|x| x + spread * normal(&mut noise)).collect()
        };
        let of_centre = |at: usize| centres[at * 31 % centres.len()].clone();
        let rows: Vec<_> = (0..count).map(|at| drawn(2.0, &of_centre(at))).collect();
        let anywhere: Vec<_> = (0..40).map(|at| drawn(2.0, &of_centre(7 * at))).collect();
        let near: Vec<_> = (0..40).map(|_| drawn(0.3, &anywhere[0])).collect();
        let ranks = |value: &dyn Fn(usize) -> f32| {
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by(|one, two| value(*one).total_cmp(&value(*two)).then(one.cmp(two)));
            let mut ranks = vec![0; count];
            order.iter().zip(0..).for_each(|(row, rank)| ranks[*row] = rank);
            ranks
        };
        let by_chance = ranks(&|row| Noise(row as u64).below(1 << 20) as f32);
        let by_distance = ranks(&|row| distance(&rows[row], &anywhere[0]));
        Data { rows, anywhere, near, by_chance, by_distance }
    }

    fn collection(&self, node: &stratann_node::collections::Node, kind: IndexKind) -> Collection {
        let spec = Spec { dim: DIM, metric: Metric::L2, dtype: DType::F32, kind: Some(kind) };
        let points = node.create_collection(kind.name(), spec).unwrap();
        let mut schema = Schema::new();
        for field in ["chance", "rank"] {
            schema.add(Path::parse(field).unwrap(), FieldKind::Float).unwrap();
        }
        points.set_schema(&schema).unwrap();
        for first in (0..self.rows.len()).step_by(1000) {
            let some = first..self.rows.len().min(first + 1000);
            let ids: Vec<_> = some.clone().map(|row| number(row as u64)).collect();
            let vectors: Vec<u8> =
                some.clone().flat_map(|row| components(DType::F32, &self.rows[row])).collect();
            let texts: Vec<String> = some
                .map(|row| {
                    format!(r#"{{"chance":{},"rank":{}}}"#, self.by_chance[row], self.by_distance[row])
                })
                .collect();
            let payloads: Vec<_> = texts.iter().map(|text| Some(text.as_bytes())).collect();
            points.upsert_points(&ids, &vectors, &payloads).unwrap();
        }
        points.compact(&Quiet).unwrap();
        assert_eq!(points.facts().unwrap().segments[0].kind, Some(kind));
        points
    }
}

fn distance(one: &[f32], two: &[f32]) -> f32 {
    one.iter().zip(two).map(|(a, b)| (a - b) * (a - b)).sum()
}

/// The price of a query, microseconds.
fn price(stats: &QueryStats, queries: usize) -> f64 {
    let vector = VECTOR_NS + COMPONENT_NS * DIM as f64;
    // Where vectors are compared group by group, their components are counted, and vectors are not.
    let compared = match stats.components {
        0 => stats.full_comparisons as f64 * vector,
        components => components as f64 * (COMPONENT_NS + VECTOR_NS / DIM as f64),
    };
    let reads = (stats.reads + stats.cache_hits) as f64 * READ_NS;
    (reads + stats.code_comparisons as f64 * CODE_NS + compared) / 1000.0 / queries as f64
}

/// Recall and price of a way; `None` of one that the kind does not have.
fn measured(
    points: &Collection,
    (queries, truth): (&[Vec<f32>], &[Vec<f32>]),
    options: &SearchOptions,
) -> Option<(f64, f64)> {
    let bytes: Vec<u8> = queries.iter().flat_map(|query| components(DType::F32, query)).collect();
    let found = points.search_with(&bytes, options).ok()?;
    let (mut hits, mut wanted) = (0, 0);
    for (own, truth) in found.hits.iter().zip(truth) {
        // What is not found is missed.
        let last = truth.last().copied().unwrap_or(f32::INFINITY);
        // Distances of an index are rounded in another order.
        hits += own.iter().filter(|hit| hit.distance <= last * (1.0 + 1e-4)).count();
        wanted += truth.len();
    }
    Some((hits as f64 / f64::from(wanted.max(1) as u32), price(&found.stats, queries.len())))
}

/// Compares the planner with all ways in each cell. Returns how many cells there are, and in how many it chose well.
fn compare(points: &Collection, data: &Data) -> (u32, u32) {
    let (mut cells, mut well) = (0, 0);
    let rows = data.rows.len() as f64;
    let kind = points.name();
    for share in [0.5, 0.1, 0.01, 0.001] {
        let most = (rows * share) as u64;
        let far = rows as u64 - most;
        for (place, text, queries) in [
            ("chance", format!("chance < {most}"), &data.anywhere),
            ("near", format!("rank < {most}"), &data.near),
            ("far", format!("rank >= {far}"), &data.near),
        ] {
            let is_match = |row: &usize| match place {
                "chance" => data.by_chance[*row] < most,
                "near" => data.by_distance[*row] < most,
                _ => data.by_distance[*row] >= far,
            };
            let mut exact = Exact::default();
            let matching: Vec<usize> = (0..data.rows.len()).filter(is_match).collect();
            let truth: Vec<Vec<f32>> = queries
                .iter()
                .map(|query| {
                    exact.set(Metric::L2, DType::F32, DIM, &components(DType::F32, query));
                    let own = |row: &usize| exact.distance(&components(DType::F32, &data.rows[*row]), 0.0);
                    let mut all: Vec<f32> = matching.iter().map(own).collect();
                    all.sort_by(f32::total_cmp);
                    all.truncate(K);
                    all
                })
                .collect();
            let filter = Some(Arc::new(Filter::from_where(&text).unwrap().compile()));
            let options = SearchOptions { k: K, recall: RECALL, filter, ..SearchOptions::default() };
            let asked = (&queries[..], &truth[..]);
            let (recall, own) = measured(points, asked, &options).unwrap();
            let ways = WAYS.into_iter().filter_map(|way| {
                Some((way, measured(points, asked, &SearchOptions { way: Some(way), ..options.clone() })?))
            });
            let ways: Vec<_> = ways.collect();
            let reaches =
                |(_, (found, _)): &&(SieveWay, (f64, f64))| *found >= RECALL.min(recall) - RECALL_MARGIN;
            let best = ways.iter().filter(reaches).map(|(_, (_, price))| *price).fold(own, f64::min);
            cells += 1;
            well += u32::from(own <= WELL * best);
            let shown: Vec<String> = ways
                .iter()
                .map(|(way, (recall, price))| format!("{} {price:.1} ({recall:.3})", way.name()))
                .collect();
            let mark = if own <= WELL * best { "" } else { "  <-- dear" };
            println!(
                "{kind:12} {:5} % {place:7} planner {own:8.1} us ({recall:.3})   {}{mark}",
                100.0 * share,
                shown.join("  ")
            );
        }
    }
    (cells, well)
}

fn planner_is_near_the_cheapest_way(rows: usize) {
    let data = Data::new(rows);
    let place = tempfile::tempdir().unwrap();
    let node = open(place.path()).unwrap();
    let (mut cells, mut well) = (0, 0);
    for kind in [
        IndexKind::DiskGraph,
        IndexKind::HybridIvf,
        IndexKind::GridIvf,
        IndexKind::GpuIvf,
        IndexKind::RemoteHnsw,
    ] {
        let own = compare(&data.collection(&node, kind), &data);
        (cells, well) = (cells + own.0, well + own.1);
    }
    println!("{well} of {cells} cells within {WELL} of the cheapest way");
    assert!(f64::from(well) >= 0.9 * f64::from(cells), "{well} of {cells}");
}

fn main() {
    let given = std::env::args().nth(1);
    planner_is_near_the_cheapest_way(given.map_or(8_000, |rows| rows.parse().expect("a number of rows")));
}
