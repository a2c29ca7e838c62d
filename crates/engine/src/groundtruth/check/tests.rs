use proptest::prelude::*;

use super::*;

const DIM: usize = 8;
const K: usize = 5;

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum()
}

fn exact(metric: Metric, a: &[f32], b: &[f32]) -> f64 {
    match metric {
        Metric::L2 => a.iter().zip(b).map(|(&x, &y)| (f64::from(x) - f64::from(y)).powi(2)).sum(),
        Metric::Ip => -dot(a, b),
        Metric::Cosine => 1.0 - dot(a, b) / (dot(a, a) * dot(b, b)).sqrt(),
    }
}

/// As libraries compute many distances at once: by sums of f32, squares expanded.
fn by_products(metric: Metric, a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).fold(0f32, |sum, (x, y)| sum + x * y);
    f64::from(match metric {
        Metric::L2 => dot(a, a) + dot(b, b) - 2.0 * dot(a, b),
        Metric::Ip => -dot(a, b),
        Metric::Cosine => 1.0 - dot(a, b) / dot(a, a).sqrt() / dot(b, b).sqrt(),
    })
}

/// The k nearest rows, by distance and number.
fn nearest(base: &[Vec<f32>], distance: impl Fn(&[f32]) -> f64) -> Vec<(u32, f32)> {
    let mut all: Vec<(u32, f32)> = (0..).zip(base.iter().map(|row| distance(row) as f32)).collect();
    all.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    all.truncate(K);
    all
}

fn truth_of(rows: &[Vec<(u32, f32)>]) -> GroundTruth {
    let all = || rows.iter().flatten();
    GroundTruth { k: K, ids: all().map(|n| n.0).collect(), distances: all().map(|n| n.1).collect() }
}

fn compare(truth: GroundTruth, owner: Owner, queries: &[Vec<f32>], found: &[Vec<(u32, f32)>]) -> Result<()> {
    let bytes: Vec<u8> = queries.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
    let ids: Vec<u64> = found.iter().flatten().map(|n| u64::from(n.0)).collect();
    let distances: Vec<f32> = found.iter().flatten().map(|n| n.1).collect();
    let mut checked = CheckedTruth::new(truth, Path::new("truth"), owner)?;
    checked.compare(&Found { first: 0, queries: &bytes, k: K, ids: &ids, distances: &distances })
}

fn metrics() -> impl Strategy<Value = Metric> {
    prop_oneof![Just(Metric::L2), Just(Metric::Ip), Just(Metric::Cosine)]
}

/// Vectors of small whole numbers, so that many distances are equal, far from the origin.
fn vectors(count: usize) -> impl Strategy<Value = Vec<Vec<f32>>> {
    let row = prop::collection::vec((-3i8..4).prop_map(f32::from), DIM);
    (prop::collection::vec(row, count), prop_oneof![Just(1.0f32), Just(7.5), Just(40.0)]).prop_map(
        |(rows, far)| rows.into_iter().map(|r| r.into_iter().map(|x| 0.3 * x + far).collect()).collect(),
    )
}

proptest! {
    #[test]
    fn rounding_and_ties_are_no_contradiction(
        (base, queries) in (vectors(60), vectors(4)),
        metric in metrics(),
        has_distances: bool,
    ) {
        let owner = Owner { metric, dtype: DType::F32, rows: 60, dim: DIM };
        let found: Vec<_> = queries.iter().map(|q| nearest(&base, |row| exact(metric, q, row))).collect();
        let given: Vec<_> = queries.iter().map(|q| nearest(&base, |row| by_products(metric, q, row))).collect();
        let mut truth = truth_of(&given);
        if !has_distances {
            truth.distances.clear();
        }
        let compared = compare(truth, owner, &queries, &found);
        prop_assert!(compared.is_ok(), "{compared:?}");
    }

    #[test]
    fn vectors_that_moved_are_a_contradiction(mut base in vectors(60), near in 0usize..60, has_distances: bool) {
        // Ten apart in the first component, so that each row has its own neighbours.
        (0u16..).zip(&mut base).for_each(|(row, vector)| vector[0] = 10.0 * f32::from(row));
        let moved: Vec<Vec<f32>> = base[30..].iter().chain(&base[..30]).cloned().collect();
        let owner = Owner { metric: Metric::L2, dtype: DType::F32, rows: 60, dim: DIM };
        let query = base[near].clone();
        let nearest_in = |base: &[Vec<f32>]| vec![nearest(base, |row| exact(Metric::L2, &query, row))];
        let (found, mut truth) = (nearest_in(&base), truth_of(&nearest_in(&moved)));
        if !has_distances {
            truth.distances.clear();
        }
        let compared = compare(truth, owner, std::slice::from_ref(&query), &found);
        // Without distances, and without an id in both, results alone show nothing.
        prop_assert_eq!(compared.is_err(), has_distances, "{:?}", compared);
    }
}

#[test]
fn distances_that_no_metric_gives_are_refused_at_once() {
    let of = |metric, distances: [f32; K]| {
        let owner = Owner { metric, dtype: DType::F32, rows: 60, dim: DIM };
        CheckedTruth::new(
            GroundTruth { k: K, ids: vec![0, 1, 2, 3, 4], distances: distances.to_vec() },
            Path::new("truth.ibin"),
            owner,
        )
        .map(drop)
    };
    let cases = [
        (Metric::L2, [-5.0, -4.0, -3.0, -2.0, -1.0], "metric l2"),
        (Metric::L2, [5.0, 4.0, 3.0, 2.0, 1.0], "metric l2"),
        (Metric::Cosine, [10.0, 11.0, 12.0, 13.0, 14.0], "metric cosine"),
        (Metric::Ip, [1.0, 3.0, 2.0, 5.0, 4.0], "metric ip"),
        (Metric::L2, [0.0, 1.0, f32::NAN, 2.0, 3.0], "not a number"),
    ];
    for (metric, distances, named) in cases {
        let error = of(metric, distances).unwrap_err().message;
        assert!(error.contains(named) && error.starts_with("truth.ibin: query 0"), "{error}");
    }
    assert!(of(Metric::Ip, [5.0, 4.0, 3.0, 2.0, 1.0]).is_ok());
    assert!(of(Metric::Cosine, [1.0, 0.9, 0.8, 0.2, -0.3]).is_ok());
    assert!(of(Metric::L2, [0.0, 1e-7, 1.0, 1.0, 2.0]).is_ok());
}
