//! A recall of one is exact in every kind, wherever the rows lie: the answers are those of a plain scan in double
//! precision, and distances are as near to it as floats allow.

mod common;

use common::{Built, Set, normal, quick};
use stratann_engine::build::{BuildOptions, GridOptions, Kind, KindOptions};
use stratann_engine::search::{Effort, SearchOptions};
use stratann_engine::{DType, Metric, Quiet, groundtruth};

const K: usize = 10;
const KINDS: [Kind; 5] = [Kind::Flat, Kind::GridIvf, Kind::DiskGraph, Kind::GpuIvf, Kind::HybridIvf];

/// Where rows lie: a name, and component `i` of a row as its own draw makes it.
type Spread = (&'static str, fn(row: u64, i: u64) -> f64);

fn drawn(row: u64, i: u64) -> f64 {
    f64::from(normal(1, row, i))
}

/// Row 7 lies at a million times its distance.
fn one_far(row: u64, i: u64) -> f64 {
    if row == 7 { 1e6 * drawn(row, i) } else { drawn(row, i) }
}

/// Twenty islands, as places on the ground are in metres from the centre of the Earth.
fn islands(row: u64, i: u64) -> f64 {
    4e6 * f64::from(normal(2, row % 20, i)) + 40.0 * drawn(row, i)
}

const SPREADS: [Spread; 9] = [
    ("around zero", drawn),
    ("one far row", one_far),
    ("islands", islands),
    ("an offset", |row, i| 1e5 + drawn(row, i)),
    ("an offset of one component", |row, i| if i == 0 { 3e7 } else { drawn(row, i) }),
    ("far away", |row, i| 1e15 * drawn(row, i)),
    ("tiny", |row, i| 1e-15 * drawn(row, i)),
    ("many sizes", |row, i| drawn(row, i) * 10f64.powi((row % 7) as i32 - 3)),
    ("with zero rows", |row, i| if row % 9 == 0 { 0.0 } else { drawn(row, i) }),
];

/// Those whose neighbours are much nearer than the rest.
const UNEVEN: [&str; 3] = ["one far row", "islands", "many sizes"];

/// Directions alone count: squares of these components are no floats.
const DIRECTIONS: [Spread; 4] = [
    ("around zero", drawn),
    ("tiny", |row, i| 1e-22 * drawn(row, i)),
    ("minute", |row, i| 1e-30 * drawn(row, i)),
    ("huge", |row, i| 1e30 * drawn(row, i)),
];

fn values(rows: u64, dim: u64, spread: Spread) -> Vec<f32> {
    (0..rows).flat_map(|row| (0..dim).map(move |i| spread.1(row, i) as f32)).collect()
}

/// Near rows of the set: a hundredth of the way to the next one, and a millionth, and a row itself.
fn queries(values: &[f32], dim: usize) -> Vec<f32> {
    let part = |query: usize| [0.01, 1e-6, 0.0][query % 3];
    let at = |row: usize, i: usize| f64::from(values[row * dim + i]);
    let moved = |q: usize, i: usize| at(q, i) + part(q) * (at(q + 1, i) - at(q, i));
    (0..12).flat_map(|q| (0..dim).map(move |i| moved(q, i) as f32)).collect()
}

fn options(kind: Kind, metric: Metric) -> BuildOptions {
    let mut options = quick(kind, metric);
    if let KindOptions::GridIvf(own) = &mut options.kind {
        *own = GridOptions { lists: Some(12), centroids: None };
    }
    options
}

/// A distance in double precision, and how far a float may be from it.
fn twin(metric: Metric, a: &[f64], b: &[f64]) -> (f64, f64) {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    match metric {
        Metric::L2 => {
            let distance = a.iter().zip(b).map(|(x, y)| (x - y) * (x - y)).sum();
            // Below the smallest float of full precision there are fewer digits.
            (distance, 1e-5 * distance + f64::from(f32::MIN_POSITIVE))
        }
        Metric::Ip => (-dot(a, b), 1e-5 * lengths),
        Metric::Cosine => (1.0 - dot(a, b) / lengths, 1e-5),
    }
}

/// A `grid-ivf` of floats that are spread evenly has a rotated copy alone, which is off by so much of the extent.
const ROTATION: f64 = 1e-6;

/// Compares one answer with the twin: the ids but for equally near ones, and the distances. `moved` is the share of the
/// extent by which stored vectors may be off.
fn check(
    set: &Set,
    metric: Metric,
    query: &[f64],
    (ids, distances): (&[u64], &[f32]),
    (what, moved): (&str, f64),
) {
    let mut all: Vec<(f64, f64)> = (0..set.len()).map(|i| twin(metric, query, &set.wide(i))).collect();
    let off = moved * all.iter().fold(0f64, |most, a| most.max(a.0)).sqrt();
    all.iter_mut().for_each(|(exact, room)| *room += off * (2.0 * exact.abs().sqrt() + off));
    let mut sorted: Vec<f64> = all.iter().map(|a| a.0).collect();
    sorted.sort_by(f64::total_cmp);
    let mut seen = ids.to_vec();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), K, "{what}: {ids:?}");
    for (rank, (&id, &distance)) in ids.iter().zip(distances).enumerate() {
        let (exact, room) = all[id as usize];
        let error = (f64::from(distance) - exact).abs();
        assert!(error <= room, "{what}: {id} at rank {rank} is at {exact:e}, not {distance:e}");
        assert!(
            exact - sorted[rank] <= 2.0 * room,
            "{what}: {id} at rank {rank} is at {exact:e}, another at {:e}",
            sorted[rank]
        );
    }
}

fn check_kind(kind: Kind, metric: Metric, (set, asked): (&Set, &Set), what: &str, is_even: bool) {
    let is_rotated =
        is_even && kind == Kind::GridIvf && metric == Metric::L2 && set.shape.dtype == DType::F32;
    let moved = if is_rotated && set.shape.dim > 16 { ROTATION } else { 0.0 };
    let built = Built::new(set.clone(), &options(kind, metric));
    let all = SearchOptions { k: K, effort: Effort::Recall(1.0), ..SearchOptions::default() };
    let answers = built.index.search(&asked.bytes, &all, &Quiet).unwrap();
    assert!(answers.failed.is_empty(), "{what}: {:?}", answers.failed);
    for (q, (ids, distances)) in answers.ids.chunks(K).zip(answers.distances.chunks(K)).enumerate() {
        let what = format!("{what}, query {q} of {}", kind.name());
        check(set, metric, &asked.wide(q), (ids, distances), (&what, moved));
    }
}

fn check_all(metric: Metric, dtype: DType, dim: usize, spread: Spread) {
    let what = format!("{} {} {dim} {}", spread.0, dtype.name(), metric.name());
    let floats = values(600, dim as u64, spread);
    let (set, asked) = (Set::new(dtype, dim, &floats), Set::new(dtype, dim, &queries(&floats, dim)));
    let truth = groundtruth::exact(&set.reader(), &asked.reader(), metric, K, 1 << 30, &Quiet).unwrap();
    for (q, (ids, distances)) in truth.ids.chunks(K).zip(truth.distances.chunks(K)).enumerate() {
        let ids: Vec<u64> = ids.iter().map(|&id| id as u64).collect();
        check(
            &set,
            metric,
            &asked.wide(q),
            (&ids, distances),
            (&format!("{what}, ground truth of {q}"), 0.0),
        );
    }
    for kind in KINDS {
        check_kind(kind, metric, (&set, &asked), &what, !UNEVEN.contains(&spread.0));
    }
}

#[test]
fn distances_are_exact_wherever_rows_lie() {
    for spread in SPREADS {
        for dim in [3, 40] {
            check_all(Metric::L2, DType::F32, dim, spread);
        }
    }
}

#[test]
fn products_are_exact_wherever_rows_lie() {
    for spread in SPREADS {
        check_all(Metric::Ip, DType::F32, 40, spread);
    }
}

#[test]
fn directions_are_exact_at_every_length() {
    for spread in DIRECTIONS {
        for dim in [3, 40] {
            check_all(Metric::Cosine, DType::F32, dim, spread);
        }
    }
}

#[test]
fn short_types_are_exact_too() {
    let spreads: [Spread; 3] =
        [SPREADS[0], ("large", |row, i| 3e3 * drawn(row, i)), ("small", |row, i| 1e-5 * drawn(row, i))];
    for metric in Metric::ALL {
        for dtype in [DType::F16, DType::U8, DType::I8] {
            let fitting = if dtype == DType::F16 { 3 } else { 1 };
            spreads[..fitting].iter().for_each(|&spread| check_all(metric, dtype, 40, spread));
        }
    }
}

#[test]
fn what_is_asked_for_is_reached_on_islands() {
    let floats = values(3000, 3, SPREADS[2]);
    let (set, asked) = (Set::new(DType::F32, 3, &floats), Set::new(DType::F32, 3, &queries(&floats, 3)));
    let truth = groundtruth::exact(&set.reader(), &asked.reader(), Metric::L2, K, 1 << 30, &Quiet).unwrap();
    for kind in KINDS.into_iter().filter(|kind| *kind != Kind::Flat) {
        let options = BuildOptions { calibration_queries: 100, ..options(kind, Metric::L2) };
        let built = Built::new(set.clone(), &options);
        let wanted = SearchOptions { k: K, effort: Effort::Recall(0.95), ..SearchOptions::default() };
        let answers = built.index.search(&asked.bytes, &wanted, &Quiet).unwrap();
        let is_near = |(i, &distance): (usize, &f32)| distance <= truth.distances[i / K * K + K - 1] * 1.0001;
        let found = answers.distances.iter().enumerate().filter(|&(i, d)| is_near((i, d))).count();
        assert!(found * 100 >= 93 * answers.ids.len(), "{}: {found} of {}", kind.name(), answers.ids.len());
    }
}
