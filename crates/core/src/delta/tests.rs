use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;
use stratann_kernel::distance::{Exact, inverse_norm};
use stratann_kernel::{DType, Metric};

use super::*;

/// All rows, and the nearest of them that a search was shown.
struct Nearest<'a> {
    rows: &'a [Vec<u8>],
    dead: &'a BTreeSet<u64>,
    exact: Exact,
    shape: Shape,
    k: usize,
    found: Vec<(f32, u64, u32)>,
}

impl<'a> Nearest<'a> {
    fn of(
        shape: Shape,
        query: &[u8],
        (rows, dead): (&'a [Vec<u8>], &'a BTreeSet<u64>),
        k: usize,
    ) -> Nearest<'a> {
        let mut exact = Exact::default();
        exact.set(shape.metric, shape.dtype, shape.dim, query);
        Nearest { rows, dead, exact, shape, k, found: vec![] }
    }

    fn results(&self) -> Vec<(u32, u64)> {
        self.found.iter().map(|found| (found.0.to_bits(), found.1)).collect()
    }
}

impl Points for Nearest<'_> {
    fn limit(&self) -> f32 {
        self.found.get(self.k - 1).map_or(f32::INFINITY, |last| last.0)
    }

    fn score(&mut self, list: u32, row: u64) -> f32 {
        if self.dead.contains(&row) {
            return f32::INFINITY;
        }
        let vector = &self.rows[row as usize];
        let norm =
            if self.shape.metric == Metric::Cosine { inverse_norm(self.shape.dtype, vector) } else { 0.0 };
        let distance = self.exact.distance(vector, norm);
        let distance = if distance.is_nan() { f32::INFINITY } else { distance + 0.0 };
        let before = |one: &(f32, u64, u32)| one.0.total_cmp(&distance).then(one.1.cmp(&row)).is_lt();
        self.found.insert(self.found.partition_point(before), (distance, row, list));
        self.found.truncate(self.k);
        distance
    }
}

/// Components as a type has them.
fn vector(dtype: DType, components: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F32 => components.iter().flat_map(|x| x.to_le_bytes()).collect(),
        DType::F16 => stratann_kernel::element::narrow_f16(components).collect(),
        DType::U8 => components.iter().map(|x| (x.abs() * 40.0) as u8).collect(),
        DType::I8 => components.iter().map(|x| (x * 40.0) as i8 as u8).collect(),
    }
}

fn random(state: &mut u64) -> f32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 40) as f32 / (1u32 << 24) as f32
}

/// Rows around a few centres, or around none.
fn rows(shape: Shape, count: usize, (clusters, spread, scale): (usize, f32, f32), seed: u64) -> Vec<Vec<u8>> {
    let mut state = seed;
    let centres: Vec<f32> = (0..clusters * shape.dim).map(|_| 4.0 * random(&mut state) - 2.0).collect();
    let mut row = || -> Vec<u8> {
        let cluster = (random(&mut state) * clusters as f32) as usize;
        let centre = centres.get(cluster * shape.dim..(cluster + 1) * shape.dim);
        let component = |at: usize, state: &mut u64| {
            let sum: f32 = (0..4).map(|_| random(state) - 0.5).sum();
            scale * (centre.map_or(0.0, |centre| centre[at]) + spread * sum)
        };
        let components: Vec<f32> = (0..shape.dim).map(|at| component(at, &mut state)).collect();
        vector(shape.dtype, &components)
    };
    (0..count).map(|_| row()).collect()
}

fn filed(shape: Shape, rows: &[Vec<u8>], lists: usize) -> Lists {
    let sample: Vec<u8> = rows.iter().take(lists * SAMPLE_OF_LIST).flatten().copied().collect();
    let coarse = Coarse::of_sample(shape, &sample, lists);
    // Rows of zeros have no direction.
    let coarse = coarse.or_else(|| Coarse::of_sample(shape, &vector(shape.dtype, &vec![1.0; shape.dim]), 1));
    let mut lists = Lists::new(Arc::new(coarse.unwrap()));
    let mut pushing = Pushing::default();
    (0..).zip(rows).for_each(|(at, row)| _ = lists.push(row, at, &mut pushing));
    lists
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn at_a_recall_of_one_results_are_those_of_all_distances(
        metric in prop::sample::select(&Metric::ALL[..]),
        dtype in prop::sample::select(&DType::ALL[..]),
        (dim, count, lists, k) in (1usize..40, 1usize..400, 1usize..40, 1usize..30),
        kind in (0usize..9, prop::sample::select(&[0.0f32, 1e-6, 0.05, 1.0][..]),
                 prop::sample::select(&[1.0f32, 1e-3, 1e-12, 1e-22, 1e4, 1e14, 1e17][..])),
        seed in any::<u64>(),
    ) {
        let shape = Shape { dim, dtype, metric };
        let all = rows(shape, count + 4, kind, seed);
        let (all, queries) = all.split_at(count);
        let lists = filed(shape, all, lists);
        prop_assert_eq!(lists.rows(), count as u64);
        let dead: BTreeSet<u64> = (0..count as u64).filter(|row| row % 7 == seed % 9).collect();
        let mut query = Query::default();
        for vector in queries.iter().chain([&all[count / 2]]) {
            let mut expected = Nearest::of(shape, vector, (all, &dead), k);
            (0..count as u64).for_each(|row| _ = expected.score(0, row));
            let mut found = Nearest::of(shape, vector, (all, &dead), k);
            lists.search(&mut query, vector, Effort { recall: 1.0, k, share: 1.0 }, &mut found);
            prop_assert_eq!(found.results(), expected.results());
        }
    }
}

/// Recall over queries among one row in `every`, and the share of all codes that was compared.
fn measured(shape: Shape, kind: (usize, f32, f32), (recall, k, every): (f64, usize, u64)) -> (f64, f64) {
    const ROWS: usize = 12_000;
    let all = rows(shape, ROWS + 300, kind, 7);
    let (all, queries) = all.split_at(ROWS);
    let dead: BTreeSet<u64> = (0..ROWS as u64).filter(|row| !row.is_multiple_of(every)).collect();
    let mut lists = filed(shape, all, 128);
    let mut query = Query::default();
    for at in (0..ROWS as u64).step_by(128) {
        let own = BTreeSet::from([at]);
        let vector = &all[at as usize];
        let mut found = Nearest::of(shape, vector, (all, &own), PROBE_RESULTS);
        lists.search(&mut query, vector, Effort { recall: 1.0, k: PROBE_RESULTS, share: 1.0 }, &mut found);
        lists.learn(&query, &found.found.iter().map(|hit| (hit.0, hit.2)).collect::<Vec<_>>());
    }
    let (mut hits, mut codes) = (0, 0);
    for vector in queries {
        let mut expected = Nearest::of(shape, vector, (all, &dead), k);
        lists.search(&mut query, vector, Effort { recall: 1.0, k, share: 1.0 }, &mut expected);
        let mut found = Nearest::of(shape, vector, (all, &dead), k);
        let effort = Effort { recall, k, share: 1.0 / every as f64 };
        codes += lists.search(&mut query, vector, effort, &mut found).codes;
        let last = expected.limit();
        hits += found.found.iter().filter(|hit| hit.0 <= last).count();
    }
    let queries = queries.len() as f64;
    (hits as f64 / (queries * k as f64), codes as f64 / (queries * ROWS as f64))
}

#[test]
fn a_recall_is_reached_by_few_codes() {
    for metric in Metric::ALL {
        let shape = Shape { dim: 16, dtype: DType::F32, metric };
        for kind in [(0, 1.0, 1.0), (40, 0.3, 1.0), (40, 1.0, 1.0)] {
            for (recall, k, every) in [(0.9, 10, 1), (0.95, 10, 1), (0.95, 1, 1), (0.9, 50, 1), (0.9, 10, 6)]
            {
                let (reached, codes) = measured(shape, kind, (recall, k, every));
                let what = alloc::format!(
                    "{metric:?} {kind:?} {recall} {k} {every}: {reached} by {codes} of all codes"
                );
                assert!(reached >= recall - 0.02, "{what}");
                assert!(codes < 0.95 || every > 1, "{what}");
            }
        }
    }
}

#[test]
fn a_clone_stays_as_it_is() {
    let shape = Shape { dim: 3, dtype: DType::F32, metric: Metric::L2 };
    let all = rows(shape, 600, (3, 0.5, 1.0), 5);
    let none = BTreeSet::new();
    let mut lists = filed(shape, &all[..300], 8);
    let mut query = Query::default();
    let mut results = |lists: &Lists| {
        let mut found = Nearest::of(shape, &all[0], (&all, &none), 40);
        lists.search(&mut query, &all[0], Effort { recall: 1.0, k: 40, share: 1.0 }, &mut found);
        (found.results(), lists.rows())
    };
    let (held, before) = (lists.clone(), results(&lists));
    let mut pushing = Pushing::default();
    (300..600).for_each(|row| _ = lists.push(&all[row as usize], row, &mut pushing));
    assert_eq!(results(&held), before);
    assert_ne!(results(&lists), before);
    let renamed = lists.renamed(|row| (row < 300).then_some(row));
    assert_eq!(results(&renamed), before);
    assert_eq!(results(&Lists::after(&lists)), (vec![], 0));
}
