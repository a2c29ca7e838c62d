//! The table against a comparison with all centroids, bit for bit, and every form against its definition.

use super::*;
use crate::isa::Isa;
use proptest::prelude::*;

/// How the numbers of a case are spread.
#[derive(Clone, Copy, Debug)]
enum Spread {
    /// About zero.
    Even,
    /// Whole numbers, so that many distances are equal.
    Whole,
    /// Far from zero.
    Offset(f32),
    /// All multiplied.
    Scaled(f32),
    /// Near a few centroids, many of which are repeated.
    Repeated,
    /// A few rows are very long.
    Outliers,
    /// Any finite numbers.
    Wild,
}

const SPREADS: [Spread; 12] = [
    Spread::Even,
    Spread::Whole,
    Spread::Offset(10.0),
    Spread::Offset(100.0),
    Spread::Offset(1e6),
    Spread::Scaled(1e-20),
    Spread::Scaled(1e-11),
    Spread::Scaled(1e11),
    Spread::Scaled(1e18),
    Spread::Repeated,
    Spread::Outliers,
    Spread::Wild,
];

fn values(count: usize, dim: usize, spread: Spread, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut value = |i: usize| {
        let bits = next();
        let x = (bits >> 40) as f32 / (1 << 23) as f32 - 1.0;
        match spread {
            Spread::Even => x,
            Spread::Whole => (x * 3.0).round(),
            Spread::Offset(offset) => x + offset,
            Spread::Scaled(scale) => x * scale,
            Spread::Repeated => {
                ((i / dim % 5) * (i % dim) % 7) as f32 + if bits.is_multiple_of(64) { x } else { 0.0 }
            }
            Spread::Outliers => x * if (i / dim).is_multiple_of(9) { 1e4 } else { 1.0 },
            Spread::Wild => Some(f32::from_bits(bits as u32)).filter(|x| x.is_finite()).unwrap_or(f32::MAX),
        }
    };
    (0..count * dim).map(&mut value).collect()
}

fn nearest_of(table: &CentroidTable<'_>, rows: &[f32], dim: usize) -> Vec<(u32, u32)> {
    let mut out = vec![Nearest { number: 0, distance: 0.0 }; rows.len() / dim];
    table.nearest(rows, &mut Scratch::default(), &mut out);
    out.iter().map(|nearest| (nearest.number, nearest.distance.to_bits())).collect()
}

fn few_of(table: &CentroidTable<'_>, rows: &[f32], dim: usize, few: usize) -> Vec<u32> {
    let mut out = vec![7; rows.len() / dim * few];
    table.nearest_few(rows, &mut Scratch::default(), &mut out);
    out
}

/// Every instruction set that this machine has.
fn scorers() -> impl Iterator<Item = Scorer> {
    [Isa::Scalar, Isa::Neon, Isa::Avx2, Isa::Avx512].into_iter().filter_map(Scorer::of)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn integers_change_no_bit(
        spread in prop::sample::select(&SPREADS[..]), of_rows in prop::sample::select(&SPREADS[..]),
        same in any::<bool>(), dim in 1usize..90, k in 1usize..90, n in 1usize..90, few in 1usize..9,
        seed in any::<u64>(),
    ) {
        let centroids = values(k, dim, spread, seed);
        let rows = values(n, dim, if same { spread } else { of_rows }, seed ^ 1);
        let table = |integers| CentroidTable { integers, ..CentroidTable::new(&centroids, dim) };
        let expected = nearest_of(&table(None), &rows, dim);
        let expected_few = few_of(&table(None), &rows, dim, few);
        prop_assert_eq!(&nearest_of(&CentroidTable::new(&centroids, dim), &rows, dim), &expected);
        for scorer in scorers() {
            let integers = || Integers::new(&centroids, dim, scorer);
            prop_assert_eq!(&nearest_of(&table(integers()), &rows, dim), &expected);
            prop_assert_eq!(&few_of(&table(integers()), &rows, dim, few), &expected_few);
        }
    }

    #[test]
    fn scores_have_the_bits_of_their_definition(
        pairs in 1usize..70, integers in prop::collection::vec(-8192i16..8192, 1..400), half in any::<i16>(),
    ) {
        let width = 2 * pairs;
        let all = |count: usize, step: usize| -> Vec<i16> {
            (0..count * width).map(|i| integers[i * step % integers.len()]).collect()
        };
        let (rows, group) = (all(TILE, 1), all(GROUP, 3));
        let halves = std::array::from_fn(|c| i32::from(half) * c as i32);
        let mut scorers = scorers().map(|scorer| scorer.tile(&rows, &group, width, &halves));
        let expected = scorers.next().unwrap();
        prop_assert!(scorers.all(|scores| scores == expected));
        let product = |c: usize, i: usize| i32::from(rows[i]) * i32::from(group[i / 2 * 2 * GROUP + 2 * c + i % 2]);
        // Sums of such long rows may wrap.
        let sum = (0..width).map(|i| product(5, i)).fold(0i32, i32::wrapping_add);
        prop_assert_eq!(expected[0][5], halves[5].wrapping_sub(sum));
    }
}

#[test]
fn more_centroids_than_a_chunk_and_the_longest_rows_change_no_bit() {
    for (n, k, dim) in [(70, 1100, 33), (9, 513, 4096), (1000, 600, 96)] {
        let centroids = values(k, dim, Spread::Even, 1);
        let rows = values(n, dim, Spread::Even, 2);
        let table = CentroidTable::new(&centroids, dim);
        assert!(table.integers.is_some());
        let (found, few) = (nearest_of(&table, &rows, dim), few_of(&table, &rows, dim, 8));
        let floats = CentroidTable { integers: None, ..table };
        assert_eq!(found, nearest_of(&floats, &rows, dim));
        assert_eq!(few, few_of(&floats, &rows, dim, 8));
    }
}

#[test]
fn few_centroids_are_left_to_exact_distances() {
    // Rows about their centroids, as after a round of k-means.
    let (dim, k) = (128, 500);
    let centroids = values(k, dim, Spread::Even, 5);
    let noise = values(k, dim, Spread::Even, 6);
    let rows: Vec<f32> = centroids.iter().zip(&noise).map(|(c, x)| c + x).collect();
    let table = Integers::new(&centroids, dim, Scorer::current()).unwrap();
    let mut scratch = Scratch::default();
    let found: usize = rows
        .chunks(PANEL * dim)
        .map(|rows| {
            table.candidates(rows, (k, 1), &mut scratch);
            scratch.candidates[..rows.len() / dim].iter().map(Vec::len).sum::<usize>()
        })
        .sum();
    assert!((k..k + k / 10).contains(&found), "{found}");
}

#[test]
fn the_nearest_few_are_those_of_all_distances_in_order() {
    let (dim, k) = (24, 600);
    let (centroids, rows) = (values(k, dim, Spread::Even, 3), values(50, dim, Spread::Even, 4));
    let found = few_of(&CentroidTable::new(&centroids, dim), &rows, dim, 8);
    for (row, found) in rows.chunks_exact(dim).zip(found.chunks_exact(8)) {
        let distance = |c: usize| -> f64 {
            let pairs = row.iter().zip(&centroids[c * dim..][..dim]);
            pairs.map(|(&x, &c)| (f64::from(x) - f64::from(c)).powi(2)).sum()
        };
        let mut all: Vec<(f64, u32)> = (0..k).map(|c| (distance(c), c as u32)).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(all.iter().zip(found).all(|(expected, &found)| expected.1 == found));
    }
}

#[test]
fn no_centroids_and_no_rows() {
    let mut out = [Nearest { number: 7, distance: 0.0 }];
    CentroidTable::new(&[], 3).nearest(&[1.0; 3], &mut Scratch::default(), &mut out);
    assert_eq!(out, [Nearest { number: 0, distance: f32::INFINITY }]);
    CentroidTable::new(&[1.0; 99], 3).nearest(&[], &mut Scratch::default(), &mut []);
    CentroidTable::new(&[], 0).nearest(&[], &mut Scratch::default(), &mut []);
    assert_eq!(few_of(&CentroidTable::new(&[], 3), &[1.0; 6], 3, 2), [NONE; 4]);
    assert_eq!(few_of(&CentroidTable::new(&[1.0; 6], 3), &[1.0; 3], 3, 4), [0, 1, NONE, NONE]);
    assert_eq!(few_of(&CentroidTable::new(&[1.0; 6], 3), &[], 3, 4), []);
}
