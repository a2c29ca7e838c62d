//! What the planner's way to the points of a filter costs beside every other way, by exact counters: `make bench-ways`.
//!
//! ways [ROWS [KIND...]]
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
/// A way reaches the recall if it lacks no more than this of it. Of the queries of a cell, or of their errors, many are
/// alike, so chance moves its recall by as much.
const RECALL_MARGIN: f64 = 0.02;
/// The planner's price over that of the cheapest way, in a cell where it chose well.
const WELL: f64 = 1.5;

// Prices of a usual machine, as those that a disk-graph plans by.
const READ_NS: f64 = 20_000.0;
const CODE_NS: f64 = 15.0;
const VECTOR_NS: f64 = 10.0;
const COMPONENT_NS: f64 = 0.4;

const SHARES: [f64; 4] = [0.5, 0.1, 0.01, 0.001];
const PLACES: [&str; 3] = ["chance", "near", "far"];
const QUERIES: usize = 100;
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
        let anywhere: Vec<_> = (0..QUERIES).map(|at| drawn(2.0, &of_centre(7 * at))).collect();
        let near: Vec<_> = (0..QUERIES).map(|_| drawn(0.3, &anywhere[0])).collect();
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

/// What a way found, and what it cost.
#[derive(Clone, Copy)]
struct Measured {
    recall: f64,
    price: f64,
    /// Results that are missing where more rows match than were returned.
    missing: usize,
}

impl Measured {
    fn reaches(&self) -> bool {
        self.recall >= RECALL - RECALL_MARGIN && self.missing == 0
    }
}

/// What a way finds and costs; `None` of one that the kind does not have.
fn measured(
    points: &Collection,
    (queries, truth): (&[Vec<f32>], &[Vec<f32>]),
    options: &SearchOptions,
) -> Option<Measured> {
    let bytes: Vec<u8> = queries.iter().flat_map(|query| components(DType::F32, query)).collect();
    let found = points.search_with(&bytes, options).ok()?;
    let (mut hits, mut wanted, mut missing) = (0, 0, 0);
    for (own, truth) in found.hits.iter().zip(truth) {
        let last = truth.last().copied().unwrap_or(f32::INFINITY);
        // Distances of an index are rounded in another order.
        hits += own.iter().filter(|hit| hit.distance <= last * (1.0 + 1e-4)).count();
        (wanted, missing) = (wanted + truth.len(), missing + truth.len() - own.len());
    }
    let recall = hits as f64 / f64::from(wanted.max(1) as u32);
    Some(Measured { recall, price: price(&found.stats, queries.len()), missing })
}

/// What is to be said of the planner in a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It reached the recall at about the price of the cheapest way that does.
    Well,
    /// It reached the recall, and another way does for much less.
    Dear,
    /// It missed the recall.
    Misses,
    /// It returned fewer results than there are.
    Short,
}

/// The planner beside all ways in one cell.
struct Cell {
    planner: Measured,
    ways: Vec<(SieveWay, Measured)>,
}

impl Cell {
    /// The price of the cheapest way that reaches the recall, the planner's among them.
    fn best(&self) -> f64 {
        let ways = self.ways.iter().map(|(_, way)| way).chain([&self.planner]);
        ways.filter(|way| way.reaches()).map(|way| way.price).fold(f64::INFINITY, f64::min)
    }

    /// The planner's price over the best one.
    fn times(&self) -> f64 {
        self.planner.price / self.best()
    }

    fn verdict(&self) -> Verdict {
        match self.planner {
            Measured { missing: 1.., .. } => Verdict::Short,
            own if !own.reaches() => Verdict::Misses,
            own if own.price <= WELL * self.best() => Verdict::Well,
            _ => Verdict::Dear,
        }
    }
}

/// The nearest of the rows that match, of each query.
fn truth(data: &Data, queries: &[Vec<f32>], is_match: &dyn Fn(usize) -> bool) -> Vec<Vec<f32>> {
    let matching: Vec<Vec<u8>> = (0..data.rows.len())
        .filter(|row| is_match(*row))
        .map(|row| components(DType::F32, &data.rows[row]))
        .collect();
    let mut exact = Exact::default();
    let nearest = |query: &Vec<f32>| {
        exact.set(Metric::L2, DType::F32, DIM, &components(DType::F32, query));
        let mut all: Vec<f32> = matching.iter().map(|row| exact.distance(row, 0.0)).collect();
        all.sort_by(f32::total_cmp);
        all.truncate(K);
        all
    };
    queries.iter().map(nearest).collect()
}

/// Compares the planner with all ways for the filter of a share of the rows in a place.
fn cell(points: &Collection, data: &Data, share: f64, place: &str) -> Cell {
    let rows = data.rows.len() as u64;
    let most = (rows as f64 * share) as u64;
    let far = rows - most;
    let (text, queries) = match place {
        "chance" => (format!("chance < {most}"), &data.anywhere),
        "near" => (format!("rank < {most}"), &data.near),
        _ => (format!("rank >= {far}"), &data.near),
    };
    let is_match = |row: usize| match place {
        "chance" => data.by_chance[row] < most,
        "near" => data.by_distance[row] < most,
        _ => data.by_distance[row] >= far,
    };
    let truth = truth(data, queries, &is_match);
    let filter = Some(Arc::new(Filter::from_where(&text).unwrap().compile()));
    let options = SearchOptions { k: K, recall: RECALL, filter, ..SearchOptions::default() };
    let asked = (&queries[..], &truth[..]);
    let by_way = |way| {
        let options = SearchOptions { way: Some(way), ..options.clone() };
        Some((way, measured(points, asked, &options)?))
    };
    let planner = measured(points, asked, &options).unwrap();
    Cell { planner, ways: WAYS.into_iter().filter_map(by_way).collect() }
}

fn report(kind: &str, (share, place): (f64, &str), cell: &Cell) {
    let shown = |name: &str, own: &Measured| {
        let short = if own.missing > 0 { format!(", lacks {}", own.missing) } else { String::new() };
        format!("{name} {:.1} ({:.3}{short})", own.price, own.recall)
    };
    let ways: Vec<String> = cell.ways.iter().map(|(way, own)| shown(way.name(), own)).collect();
    let mark = match cell.verdict() {
        Verdict::Well => String::new(),
        Verdict::Dear => format!("  <-- {:.1} times the cheapest", cell.times()),
        verdict => format!("  <-- {verdict:?}"),
    };
    let own = shown("planner", &cell.planner);
    println!("{kind:12} {:5} % {place:7} {own:38} {}{mark}", 100.0 * share, ways.join("  "));
}

fn planner_is_near_the_cheapest_way(rows: usize, kinds: &[IndexKind]) {
    let data = Data::new(rows);
    let place = tempfile::tempdir().unwrap();
    let node = open(place.path()).unwrap();
    let mut verdicts = Vec::new();
    for &kind in kinds {
        let points = data.collection(&node, kind);
        let (mut own, mut worst) = (Vec::new(), 0f64);
        for (share, place) in SHARES.into_iter().flat_map(|share| PLACES.map(|place| (share, place))) {
            let cell = cell(&points, &data, share, place);
            report(kind.name(), (share, place), &cell);
            own.push(cell.verdict());
            worst = worst.max(cell.times());
        }
        let well = own.iter().filter(|verdict| **verdict == Verdict::Well).count();
        let (cells, name) = (own.len(), kind.name());
        println!(
            "{name}: {well} of {cells} cells within {WELL} of the cheapest way; the worst {worst:.2} times"
        );
        verdicts.extend(own);
    }
    let count = |verdict: Verdict| verdicts.iter().filter(|own| **own == verdict).count();
    let [well, dear, misses, short] =
        [Verdict::Well, Verdict::Dear, Verdict::Misses, Verdict::Short].map(count);
    println!(
        "{well} of {} cells are well, {dear} dear, {misses} miss the recall, {short} are short",
        verdicts.len()
    );
    assert!(short == 0 && misses == 0, "a planner that finds too little is none");
    assert!(well as f64 >= 0.9 * verdicts.len() as f64, "{well} of {}", verdicts.len());
}

fn main() {
    let mut given = std::env::args().skip(1);
    let rows = given.next().map_or(8_000, |rows| rows.parse().expect("a number of rows"));
    let all = [
        IndexKind::DiskGraph,
        IndexKind::HybridIvf,
        IndexKind::GridIvf,
        IndexKind::GpuIvf,
        IndexKind::RemoteHnsw,
    ];
    let named: Vec<String> = given.collect();
    let is_asked = |kind: &IndexKind| named.is_empty() || named.iter().any(|name| name == kind.name());
    planner_is_near_the_cheapest_way(rows, &all.into_iter().filter(is_asked).collect::<Vec<_>>());
}
