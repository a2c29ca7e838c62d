use std::path::PathBuf;
use std::sync::Mutex;

use proptest::prelude::*;
use stratann_kernel::DType;
use stratann_kernel::distance::{Exact, inverse_norm};
use stratann_kernel::element::widen;
use stratann_storage::{ErrorKind, Quiet};

use super::*;
use crate::dataset::Shape;

const PLENTY: u64 = 1 << 30;

fn set(dtype: DType, dim: usize, values: &[i8]) -> Reader {
    let bytes: Vec<u8> = match dtype {
        DType::F32 => values.iter().flat_map(|&x| (f32::from(x) / 3.0).to_le_bytes()).collect(),
        DType::F16 => {
            values.iter().flat_map(|&x| half::f16::from_f32(f32::from(x) / 3.0).to_le_bytes()).collect()
        }
        DType::U8 | DType::I8 => values.iter().map(|&x| x as u8).collect(),
    };
    Reader::from_memory(Shape { rows: (values.len() / dim) as u64, dim, dtype }, bytes).expect("a set")
}

fn rows_of(reader: &Reader) -> Vec<Vec<u8>> {
    let shape = reader.shape();
    let mut all = Vec::new();
    reader.read_rows(0, shape.rows as usize, &mut all).expect("rows");
    all.chunks(shape.row_bytes()).map(<[u8]>::to_vec).collect()
}

/// Pair by pair and a full sort.
fn naive(base: &Reader, query: &[u8], metric: Metric, k: usize, own: Option<u64>) -> Vec<(u32, u32)> {
    let shape = base.shape();
    let mut exact = Exact::default();
    exact.set(metric, shape.dtype, shape.dim, query);
    let scored = (0..)
        .zip(rows_of(base))
        .filter(|(id, _)| Some(*id) != own)
        .map(|(id, row)| Scored { distance: exact.distance(&row, inverse_norm(shape.dtype, &row)), id });
    let mut all: Vec<Scored> = scored.collect();
    all.sort_by(Scored::order);
    all.iter().take(k).map(|s| (s.id as u32, s.distance.to_bits())).collect()
}

fn pairs_of(truth: &GroundTruth) -> Vec<(u32, u32)> {
    truth.ids.iter().copied().zip(truth.distances.iter().map(|d| d.to_bits())).collect()
}

/// The smallest budget that is accepted.
fn least_budget(base: &Reader, queries: &Reader, metric: Metric, k: usize) -> u64 {
    let search = Search { base, metric, k, on_bad_row: OnBadRow::Fail, only: Only::All, progress: &Quiet };
    let (mut low, mut high) = (0, PLENTY);
    while low < high {
        let middle = (low + high) / 2;
        match search.plan(&QuerySource::Set(queries), middle) {
            Ok(_) => high = middle,
            Err(_) => low = middle + 1,
        }
    }
    low
}

/// Few different values, so that many distances tie; never a zero row.
fn values(rows: std::ops::Range<usize>) -> impl Strategy<Value = (usize, Vec<i8>)> {
    (1usize..20, rows).prop_flat_map(|(dim, rows)| {
        let value = prop::sample::select(vec![-128i8, -3, -1, 1, 2, 127]);
        (Just(dim), prop::collection::vec(value, dim * rows))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn equals_the_naive_twin(
        (dim, values) in values(1..600), nq in 1usize..70, k in 1usize..40,
        dtype in prop::sample::select(DType::ALL.to_vec()), metric in prop::sample::select(Metric::ALL.to_vec()),
    ) {
        let base = set(dtype, dim, &values);
        let asked: Vec<i8> = values.iter().rev().cycle().take(nq * dim).map(|x| x ^ 4).collect();
        let queries = set(dtype, dim, &asked);
        let mut expected = Vec::new();
        for query in rows_of(&queries) {
            expected.extend(naive(&base, &query, metric, k, None));
        }
        for budget in [PLENTY, least_budget(&base, &queries, metric, k)] {
            let truth = exact(&base, &queries, metric, k, budget, &Quiet).expect("truth");
            prop_assert_eq!(truth.k, k.min(values.len() / dim));
            prop_assert_eq!(&pairs_of(&truth), &expected);
        }
    }

    #[test]
    fn neighbours_leave_out_the_row_itself(
        (dim, values) in values(2..300), k in 1usize..20,
        dtype in prop::sample::select(DType::ALL.to_vec()), metric in prop::sample::select(Metric::ALL.to_vec()),
    ) {
        let base = set(dtype, dim, &values);
        let all = rows_of(&base);
        let rows: Vec<u64> = (0..all.len() as u64).rev().step_by(7).collect();
        let truth = neighbours(&base, &rows, metric, k, PLENTY, &Quiet).expect("truth");
        let expected: Vec<_> =
            rows.iter().flat_map(|&r| naive(&base, &all[r as usize], metric, k, Some(r))).collect();
        prop_assert_eq!(pairs_of(&truth), expected);
    }
}

fn noise(count: usize) -> Vec<i8> {
    let mut state = 7u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 56) as i8).max(1)
    };
    (0..count).map(next).collect()
}

#[test]
fn threads_and_budgets_do_not_change_a_bit() {
    let base = set(DType::F32, 8, &noise(8 * 9000));
    for nq in [1, 40, 300] {
        let queries = set(DType::F32, 8, &noise(8 * 400)[8 * 100..8 * (100 + nq)]);
        let least = least_budget(&base, &queries, Metric::Cosine, 10);
        let run = |threads, budget| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
            pool.install(|| exact(&base, &queries, Metric::Cosine, 10, budget, &Quiet)).expect("truth")
        };
        let first = run(1, PLENTY);
        for (threads, budget) in [(2, PLENTY), (3, PLENTY), (1, least), (2, 2 * least), (3, 2 * least)] {
            assert_eq!(pairs_of(&run(threads, budget)), pairs_of(&first), "{threads} threads");
        }
    }
}

#[test]
fn half_and_single_precision_mix() {
    let values = noise(6 * 50);
    let (single, half) = (set(DType::F32, 6, &values), set(DType::F16, 6, &values));
    let widened: Vec<u8> = rows_of(&half)
        .iter()
        .flat_map(|row| {
            let mut wide = vec![0f32; 6];
            widen(DType::F16, row, &mut wide);
            bytemuck::cast_slice::<f32, u8>(&wide).to_vec()
        })
        .collect();
    let wide = Reader::from_memory(single.shape(), widened).expect("a set");
    let run = |b, q| pairs_of(&exact(b, q, Metric::L2, 5, PLENTY, &Quiet).expect("truth"));
    assert_eq!(run(&half, &single), run(&wide, &single));
    assert_eq!(run(&single, &half), run(&single, &wide));
}

#[derive(Default)]
struct Listener {
    notes: Mutex<Vec<String>>,
    stop: bool,
}

impl Progress for Listener {
    fn stage(&self, _: &str, _: u64, _: &str) {}
    fn advance(&self, _: u64) {}
    fn note(&self, line: &str) {
        self.notes.lock().expect("notes").push(line.to_owned());
    }
    fn interrupted(&self) -> bool {
        self.stop
    }
}

#[test]
fn a_small_base_gives_fewer_columns_and_a_note() {
    let (base, query) = (set(DType::I8, 2, &[1, 2, 3, 4, 5, 6]), set(DType::I8, 2, &[1, 1]));
    let listener = Listener::default();
    let truth = exact(&base, &query, Metric::L2, 10, PLENTY, &listener).expect("truth");
    assert_eq!((truth.k, truth.ids), (3, vec![0, 1, 2]));
    assert_eq!(
        *listener.notes.lock().expect("notes"),
        ["only 3 rows can be neighbours: 3 columns instead of 10"]
    );
    let others = neighbours(&base, &[2, 0], Metric::L2, 10, PLENTY, &Quiet).expect("truth");
    assert_eq!((others.k, others.ids), (2, vec![1, 0, 1, 2]));
    let nobody = neighbours(&base, &[], Metric::L2, 10, PLENTY, &Quiet).expect("nobody asked");
    assert_eq!(nobody.queries(), 0);
    let lonely = neighbours(&query, &[0], Metric::L2, 1, PLENTY, &Quiet).expect_err("alone");
    assert!(lonely.message.contains("no row can be a neighbour"), "{lonely}");
}

fn floats(rows: &[[f32; 2]]) -> Reader {
    let bytes: Vec<u8> = rows.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
    Reader::from_memory(Shape { rows: rows.len() as u64, dim: 2, dtype: DType::F32 }, bytes).expect("a set")
}

#[test]
fn bad_rows_are_refused_by_number_or_left_out() {
    let good = floats(&[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]);
    let bad = floats(&[[1.0, 0.0], [0.0, 1.0], [0.0, f32::NAN], [0.0, 0.0], [f32::INFINITY, 1.0]]);
    let run = |base, queries, metric, policy| {
        exact_with(base, queries, (metric, 9), PLENTY, Rows { on_bad_row: policy, only: Only::All }, &Quiet)
            .map(|truth| truth.ids)
    };
    let message = |result: Result<Vec<u32>>| result.expect_err("refused").message;
    let nan = "row 2 of <memory>: component 1 is NaN; correct or remove it";
    assert_eq!(message(run(&good, &bad, Metric::L2, OnBadRow::Skip)), nan);
    assert_eq!(message(run(&bad, &good, Metric::L2, OnBadRow::Fail)), nan);
    let zero = floats(&[[1.0, 0.0], [0.0, 0.0]]);
    assert!(
        message(run(&good, &zero, Metric::Cosine, OnBadRow::Fail)).starts_with("row 1 of <memory>: a zero")
    );
    let one = floats(&[[1.0, 0.1]]);
    assert_eq!(run(&bad, &one, Metric::L2, OnBadRow::Skip).expect("truth"), [0, 3, 1]);
    assert_eq!(run(&bad, &one, Metric::Cosine, OnBadRow::Skip).expect("truth"), [0, 1]);
    let error = neighbours(&bad, &[0, 4], Metric::Ip, 2, PLENTY, &Quiet).expect_err("refused");
    assert!(error.message.starts_with("row 4 of <memory>: component 0 is infinite"), "{error}");
    let error = neighbours(&bad, &[5], Metric::Ip, 2, PLENTY, &Quiet).expect_err("refused");
    assert!(error.message.contains("outside"), "{error}");
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let base = set(DType::F32, 2, &[1, 2, 3, 4]);
    let run = |queries: &Reader, k, budget, stop| {
        let listener = Listener { stop, ..Listener::default() };
        exact(&base, queries, Metric::L2, k, budget, &listener).expect_err("refused")
    };
    let same = set(DType::F32, 2, &[1, 1]);
    let cases = [
        (run(&set(DType::F32, 1, &[1]), 1, PLENTY, false), ErrorKind::BadInput, "1 dimensions"),
        (
            run(&set(DType::U8, 2, &[1, 1]), 1, PLENTY, false),
            ErrorKind::BadInput,
            "convert the queries to f32",
        ),
        (run(&same, 0, PLENTY, false), ErrorKind::BadInput, "k is 0"),
        (run(&same, 1, 1000, false), ErrorKind::Budget, "the budget is 0 MiB; raise it"),
        (run(&same, 1, PLENTY, true), ErrorKind::Interrupted, "interrupted"),
    ];
    for (error, kind, words) in cases {
        assert_eq!(error.kind, kind);
        assert!(error.message.contains(words), "{error}");
    }
}

fn datasets() -> PathBuf {
    let near = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/datasets"));
    std::env::var_os("STRATANN_DATASETS").map_or_else(near, PathBuf::from)
}

/// The first 64 queries against the ground truth that came with a set, which was ranked in f64.
fn compare_with_published(name: &str, suffix: &str, metric: Metric) {
    let folder = datasets().join(name);
    if !folder.is_dir() {
        let why = format!("no {name}; set STRATANN_DATASETS to the folder of the data sets");
        stratann_testing::leave_out(stratann_testing::Need::DataSets, &why);
        return;
    }
    let base = Reader::open(&folder.join(format!("base.{suffix}"))).expect("base");
    let all = Reader::open(&folder.join(format!("query.{suffix}"))).expect("queries");
    let published = GroundTruth::read(&folder.join("groundtruth.ibin")).expect("ground truth");
    let mut first = Vec::new();
    all.read_rows(0, 64, &mut first).expect("queries");
    let queries = Reader::from_memory(Shape { rows: 64, ..all.shape() }, first).expect("queries");
    let found = exact(&base, &queries, metric, published.k, 64 << 20, &Quiet).expect("truth");
    let near = |a: f32, b: f32| (a - b).abs() <= 1e-5 * b.abs().max(1e-2);
    for (i, (&id, &distance)) in found.ids.iter().zip(&found.distances).enumerate() {
        assert!(near(distance, published.distances[i]), "{name}: query {}", i / found.k);
        if id != published.ids[i] {
            // Another row in this place must tie with it, or with the last place and beyond.
            let line = i / found.k * found.k..(i / found.k + 1) * found.k;
            let place = line.clone().find(|&j| published.ids[j] == id).unwrap_or(line.end - 1);
            assert!(near(distance, published.distances[place]), "{name}: query {} id {id}", i / found.k);
        }
    }
}

#[test]
fn agrees_with_published_ground_truth() {
    compare_with_published("sift-photos-100k", "u8bin", Metric::L2);
    compare_with_published("debian-minilm-60k", "f16bin", Metric::Cosine);
    compare_with_published("debian-minilm-10k", "fbin", Metric::Cosine);
}

#[test]
fn each_query_has_the_nearest_of_its_own_rows_in_every_pass() {
    const K: usize = 7;
    let base = set(DType::F32, 8, &noise(8 * 700));
    let queries = set(DType::F32, 8, &noise(8 * 400)[8 * 100..8 * 300]);
    // Few rows, none, and more than k.
    let own: Vec<Vec<u32>> =
        (0..200).map(|q: u32| (0..700).filter(|row| q > 0 && row % (q * 5) == q % 5).collect()).collect();
    let sieves: Vec<Sieve> =
        own.iter().map(|rows| Sieve::from_sorted(700, rows).expect("they ascend")).collect();
    let mut expected = Vec::new();
    for (query, own) in rows_of(&queries).iter().zip(&own) {
        let all = naive(&base, query, Metric::L2, 700, None).into_iter();
        let near: Vec<_> = all.filter(|(row, _)| own.contains(row)).take(K).collect();
        let fill = (GroundTruth::FILL, f32::INFINITY.to_bits());
        expected.extend(near.iter().copied().chain(std::iter::repeat_n(fill, K - near.len())));
    }
    let least = least_budget(&base, &queries, Metric::L2, K);
    let bytes: u64 = sieves.iter().map(|sieve| sieve.bytes() as u64).sum();
    let run = |only, budget| {
        exact_with(
            &base,
            &queries,
            (Metric::L2, K),
            budget,
            Rows { on_bad_row: OnBadRow::Fail, only },
            &Quiet,
        )
    };
    for budget in [PLENTY, least + bytes] {
        let truth = run(Only::Each(&sieves), budget).expect("truth");
        assert_eq!((truth.k, truth.queries()), (K, 200));
        assert_eq!(pairs_of(&truth), expected);
        assert_eq!(truth.count_of(0), 0);
        assert!(
            truth.neighbours_of(1).len() == K
                && truth.neighbours_of(100).len() == truth.distances_of(100).len()
        );
    }
    // Where no query has k, there are as many columns as one has.
    let few: Vec<Sieve> =
        (0..200).map(|q| Sieve::from_sorted(700, &[3, 9][..q % 3 % 2 + 1]).expect("two")).collect();
    let truth = run(Only::Each(&few), PLENTY).expect("truth");
    assert_eq!((truth.k, truth.ids.len(), truth.distances.len()), (2, 400, 400));
    assert!((0..200).all(|q| truth.count_of(q) == q % 3 % 2 + 1 && truth.neighbours_of(q).contains(&3)));
    let refused = run(Only::Each(&few[..199]), PLENTY).expect_err("199 filters");
    assert!(refused.message.contains("199 filters for 200 queries"), "{refused}");
    let budget = run(Only::Each(&sieves), bytes).expect_err("no memory beside the filters");
    assert_eq!(budget.kind, ErrorKind::Budget);
}
