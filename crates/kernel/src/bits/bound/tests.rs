use super::*;
use crate::bits::{Allocation, BitQuery};
use proptest::prelude::*;

/// Numbers without pattern (SplitMix64), also those of the rotation.
fn mixed(seed: u64, at: u64) -> u64 {
    let mut x = seed.wrapping_add(at.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A vector as a coder rotates it, in f64.
fn turned(coder: &BitCoder, vector: &[f32]) -> Vec<f64> {
    if coder.basis().is_empty() {
        return rotated(vector, coder.seed());
    }
    let product =
        |row: &[f32]| row.iter().zip(vector).map(|(&b, &x)| f64::from(b) * f64::from(x)).sum::<f64>();
    coder.basis().chunks_exact(vector.len()).map(product).collect()
}

/// The rotation of a seed by its definition, in f64.
fn rotated(vector: &[f32], seed: u64) -> Vec<f64> {
    let dim = vector.len();
    let window = 1 << dim.ilog2();
    let mut x: Vec<f64> = vector.iter().map(|&x| f64::from(x)).collect();
    let hadamard = |x: &mut [f64]| {
        let mut sums = x.to_vec();
        let mut half = 1;
        while half < window {
            for i in (0..window).filter(|i| i & half == 0) {
                (sums[i], sums[i + half]) = (sums[i] + sums[i + half], sums[i] - sums[i + half]);
            }
            half *= 2;
        }
        x.iter_mut().zip(sums).for_each(|(x, sum)| *x = sum / (window as f64).sqrt());
    };
    for round in 0..3 {
        for (i, x) in x.iter_mut().enumerate() {
            *x *= if mixed(seed, (round * dim + i) as u64) >> 63 == 0 { 1.0 } else { -1.0 };
        }
        hadamard(&mut x[..window]);
        if window < dim {
            hadamard(&mut x[dim - window..]);
        }
    }
    x
}

fn noise(seed: u64, at: u64, dim: usize) -> impl Iterator<Item = f32> {
    let share = move |i: u64| (mixed(seed, i) >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
    (0..dim as u64).map(move |i| (0..4).map(|j| share(at + 4 * i + j)).sum())
}

/// Rows that are hard to encode: zeros, equal components, one huge component, twenty decades, extreme bytes, a distant
/// cluster, denormals, and numbers whose squares overflow.
fn hard_rows(dim: usize, seed: u64) -> Vec<Vec<f32>> {
    let mut rows = vec![vec![0.0; dim], vec![-7.25; dim]];
    rows.push((0..dim).map(|i| if i == dim / 2 { 1e9 } else { 1e-3 }).collect());
    for (at, decade) in (-10..=10).enumerate() {
        rows.push(noise(seed, 1000 * at as u64, dim).map(|x| x * 10f32.powi(decade)).collect());
    }
    rows.push(noise(seed, 77, dim).map(|x| if x < 0.0 { -128.0 } else { (100.0 * x).round() }).collect());
    rows.push(noise(seed, 78, dim).map(|x| 1e6 + x).collect());
    rows.push((0..dim).map(|i| f32::from_bits(i as u32 % 40)).collect());
    rows.push(noise(seed, 79, dim).map(|x| x * 1e-37).collect());
    rows.push(noise(seed, 80, dim).map(|x| x * 1e18).collect());
    rows.push(noise(seed, 81, dim).map(|x| x * 1e30).collect());
    rows.push(vec![3e38; dim]);
    rows
}

fn coder(dim: usize, (bits, part): (usize, usize), seed: u64) -> BitCoder {
    if part == 4 {
        let variances: Vec<f64> = (0..dim).map(|i| 1.0 / (1.0 + 0.2 * i as f64)).collect();
        let allocation = Allocation::of(&variances, 9 + (bits * dim).div_ceil(8), false).unwrap();
        let rows = |i: usize| (0..dim).map(move |j| if i == j { 1.0 } else { 0.0 }).collect::<Vec<f32>>();
        let basis = (0..dim).flat_map(|i| rotated(&rows(i), seed)).map(|x| x as f32).collect();
        return BitCoder::of_residuals_by(&allocation, seed, basis);
    }
    let layout = match (bits, part) {
        (1, 3) => Layout::projected(dim, dim.div_ceil(2), false),
        (8, _) | (_, 0) => Layout::even(dim, bits, 0, false),
        (_, part) => Layout::even(dim, bits, part * dim / 4, false),
    };
    BitCoder::of_residuals(layout.unwrap(), seed)
}

fn encoded(coder: &BitCoder, row: &[f32]) -> Vec<u8> {
    let mut code = vec![0; coder.layout().code_bytes()];
    let mut placed = row.to_vec();
    coder.place(&mut placed);
    coder.encode(&mut placed, &mut code);
    code
}

fn asked(coder: &BitCoder, query: &[f32]) -> BitQuery {
    let mut asked = BitQuery::default();
    asked.set(coder, query, &mut Vec::new());
    asked
}

/// Minus the inner product of a query with what a code stands for, in f64.
fn exact(coder: &BitCoder, query: &[f64], code: &[u8]) -> f64 {
    let mut decoded = vec![0.0; coder.layout().dim()];
    coder.decode(code, &mut decoded);
    -query.iter().zip(&decoded).map(|(q, &x)| q * f64::from(x)).sum::<f64>()
}

fn check(coder: &BitCoder, rows: &[Vec<f32>]) -> Result<(), TestCaseError> {
    let codes: Vec<Vec<u8>> = rows.iter().map(|row| encoded(coder, row)).collect();
    for (at, query) in rows.iter().enumerate() {
        let (asked, query) = (asked(coder, query), turned(coder, query));
        for (of, code) in codes.iter().enumerate() {
            let most = asked.error_max(code);
            if most == f32::INFINITY {
                continue;
            }
            let found = f64::from(asked.to_float(asked.distance(code)));
            let exact = exact(coder, &query, code);
            // Of the sum in f64.
            let most = f64::from(most) * (1.0 + 1e-12);
            prop_assert!((found - exact).abs() <= most, "query {at}, code {of}: {found} {exact} {most}");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn no_error_exceeds_its_bound(dim in 1usize..=130, bits in 1usize..=8, part in 0usize..=4, seed: u64) {
        check(&coder(dim, (bits, part), seed), &hard_rows(dim, seed))?;
    }

    #[test]
    fn codes_of_any_scale_are_within_it_too(
        dim in 1usize..=130, bits in 1usize..=8, part in 0usize..=4, seed: u64, scale in 0f32..1e6,
    ) {
        // Any scale, with the sum that belongs to it.
        let coder = coder(dim, (bits, part), seed);
        let layout = coder.layout();
        let mut code = encoded(&coder, &noise(seed, 3, dim).collect::<Vec<f32>>());
        let mut plain = code.clone();
        factor::write(1.0, &mut plain[layout.factor_bytes()..2 * layout.factor_bytes()]);
        let mut e = vec![0.0; dim];
        coder.decode(&plain, &mut e);
        let sum = e.iter().map(|x| x.abs()).sum();
        write_factors(layout, (scale, 1.0, sum), &mut code);
        for query in hard_rows(dim, seed) {
            let (asked, query) = (asked(&coder, &query), turned(&coder, &query));
            let (found, most) = (f64::from(asked.to_float(asked.distance(&code))), f64::from(asked.error_max(&code)));
            prop_assert!(most == f64::INFINITY || (found - exact(&coder, &query, &code)).abs() <= most);
        }
    }

    #[test]
    fn the_nearest_multiple_is_nearer_than_the_unbiased_one(dim in 1usize..=130, bits in 1usize..=8, seed: u64) {
        let nearest = coder(dim, (bits, 0), seed);
        let unbiased = BitCoder::new(*nearest.layout(), seed, &vec![0.0; dim], &[], true);
        let row: Vec<f32> = noise(seed, 5, dim).collect();
        let lost = |coder: &BitCoder| {
            let mut decoded = vec![0.0; dim];
            coder.decode(&encoded(coder, &row), &mut decoded);
            let placed = turned(coder, &row);
            placed.iter().zip(decoded).map(|(x, y)| (x - f64::from(y)).powi(2)).sum::<f64>()
        };
        let squared: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
        // Scales have 8 bits behind the first.
        prop_assert!(lost(&nearest) <= lost(&unbiased) + 1e-5 * squared);
        let short = &[0u8; 1][..];
        prop_assert_eq!(asked(&nearest, &row).error_max(short), f32::INFINITY);
        prop_assert_eq!(asked(&unbiased, &row).error_max(&encoded(&unbiased, &row)), f32::INFINITY);
    }
}

#[test]
fn usual_vectors_have_a_bound_that_is_little_above_half_a_unit() {
    for (dim, bits, part) in [(16, 2, 0), (128, 1, 0), (128, 2, 4), (128, 4, 0), (384, 3, 0), (1000, 8, 0)] {
        let coder = coder(dim, (bits, part), 3);
        let rows: Vec<Vec<f32>> = (0..60).map(|i| noise(9, 10_000 * i, dim).collect()).collect();
        check(&coder, &rows).unwrap();
        let (mut of_deviation, mut count) = (0.0, 0.0);
        for query in &rows {
            let (prepared, placed) = (asked(&coder, query), turned(&coder, query));
            let largest = placed.iter().fold(0f64, |most, x| most.max(x.abs()));
            for row in &rows {
                let code = encoded(&coder, row);
                let mut decoded = vec![0.0; dim];
                coder.decode(&code, &mut decoded);
                let half: f64 = decoded.iter().map(|&x| f64::from(x).abs()).sum::<f64>() * largest / 254.0;
                let (most, deviation) = (prepared.error_max(&code), prepared.error_deviation(&code));
                assert!(f64::from(most) < 1.05 * half && deviation < most, "{dim} {bits}: {most} {half}");
                let error =
                    f64::from(prepared.to_float(prepared.distance(&code))) - exact(&coder, &placed, &code);
                of_deviation += (error / f64::from(deviation)).powi(2);
                count += 1.0;
            }
        }
        // The deviation is what errors have, and a little more for few bits.
        let measured = (of_deviation / count).sqrt();
        assert!((0.75..1.05).contains(&measured), "{dim} {bits}: {measured}");
    }
}
