use super::*;
use crate::distance::l2_f32;
use proptest::prelude::*;

/// Uniform in [−1, 1).
fn uniform(state: &mut u64) -> f32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

fn floats(state: &mut u64, n: usize) -> Vec<f32> {
    (0..n).map(|_| uniform(state)).collect()
}

fn codebook(seed: u64, dim: usize, m: usize, coarse: usize, ip: bool) -> Codebook {
    let state = &mut (seed + 1);
    let book = Codebook {
        dim,
        ip,
        rotation: Vec::new(),
        coarse: floats(state, coarse * dim),
        starts: (0..=m).map(|j| (j * dim / m) as u32).collect(),
        centroids: floats(state, CENTROIDS * dim),
        correction_low: -3.0,
        correction_step: 0.02,
    };
    assert!(book.is_consistent());
    book
}

prop_compose! {
    fn shapes()(dim in 1usize..70, seed in 0u64..1 << 40, part in 1usize..70, coarse in 0usize..5, ip: bool)
        -> (u64, Codebook) {
        (seed, codebook(seed, dim, part.min(dim), [1, 7, 256, 512, 1024][coarse], ip))
    }
}

/// The distance that the module's documentation promises, from the decoded vector.
fn expected(book: &Codebook, q: &[f32], code: &[u8]) -> f64 {
    let mut decoded = vec![0f32; book.dim];
    book.decode_rotated(code, &mut decoded);
    let pairs = || q.iter().zip(&decoded).map(|(&a, &b)| (f64::from(a), f64::from(b)));
    if book.ip {
        return -pairs().map(|(a, b)| a * b).sum::<f64>();
    }
    let exact: f64 = pairs().map(|(a, b)| (a - b) * (a - b)).sum();
    if book.prefix() == 0 {
        return exact;
    }
    exact - end_of_distance(book, code, &decoded) + f64::from(book.correction_of(code[1]))
}

/// `2⟨c − o, v⟩ + ‖v‖² − ‖r‖²`
fn end_of_distance(book: &Codebook, code: &[u8], decoded: &[f32]) -> f64 {
    let c = (code[0] as usize).min(book.coarse_count().min(256) - 1);
    let mut without = book.clone();
    without.coarse = vec![0.0; book.dim];
    let mut r = vec![0f32; book.dim];
    without.decode_rotated(&code[book.prefix()..], &mut r);
    let term = |i: usize| {
        let [o, c, y, r] = [book.coarse[i], book.coarse[c * book.dim + i], decoded[i], r[i]].map(f64::from);
        2.0 * (c - o) * (y - c) + (y - c) * (y - c) - r * r
    };
    (0..book.dim).map(term).sum()
}

proptest! {
    #[test]
    fn a_table_distance_is_the_distance_to_the_decoded_vector(
        (seed, book) in shapes(), code in prop::collection::vec(any::<u8>(), 80),
    ) {
        let q = floats(&mut (seed + 2), book.dim);
        let mut table = Table::default();
        table.set(&book, &q, &mut Vec::new());
        let code = &code[..book.code_bytes()];
        let got = f64::from(table.to_float(table.distance(code)));
        // Half a step a term, and float rounding.
        let slack = f64::from(table.to_float(1) - table.to_float(0)) * code.len() as f64 + 1e-4 * book.dim as f64;
        prop_assert!((got - expected(&book, &q, code)).abs() <= slack, "{got} {}", expected(&book, &q, code));
    }

    #[test]
    fn distances_of_many_codes_are_those_of_each(
        (seed, book) in shapes(), codes in prop::collection::vec(any::<u8>(), 0..2000),
        ids in prop::collection::vec(0u32..300, 0..60),
    ) {
        let mut table = Table::default();
        // A table that held a larger codebook before.
        table.set(&codebook(9, 90, 80, 3, false), &[0.5; 90], &mut Vec::new());
        table.set(&book, &floats(&mut (seed + 2), book.dim), &mut Vec::new());
        let size = book.code_bytes();
        let mut out = vec![7];
        table.distances(&codes, &ids, &mut out);
        let naive: Vec<u32> = ids
            .iter()
            .map(|&id| codes.chunks_exact(size).nth(id as usize).map_or(u32::MAX, |c| table.distance(c)))
            .collect();
        prop_assert_eq!(&out, &naive);
    }

    #[test]
    fn encoding_picks_the_nearest_centroids_and_what_is_lost((seed, book) in shapes()) {
        let y = floats(&mut (seed + 3), book.dim);
        let (mut residual, mut code) = (vec![0f32; book.dim], vec![0u8; book.code_bytes()]);
        book.encode_rotated(&y, &mut residual, &mut code);
        let mut decoded = vec![0f32; book.dim];
        book.decode_rotated(&code, &mut decoded);
        let best = l2_f32(&y, bytemuck::cast_slice(&decoded));
        for at in book.prefix()..code.len() {
            for k in 0..=255 {
                let mut other = code.clone();
                other[at] = k;
                book.decode_rotated(&other, &mut decoded);
                prop_assert!(l2_f32(&y, bytemuck::cast_slice(&decoded)) >= best * (1.0 - 1e-5) - 1e-6);
            }
        }
        if book.prefix() > 0 {
            book.decode_rotated(&code, &mut decoded);
            prop_assert_eq!(code[0] as usize, nearest(&y, &book.coarse, book.dim).0);
            let want = end_of_distance(&book, &code, &decoded) + 0.5 * f64::from(best);
            let stored = f64::from(book.correction_of(code[1]));
            if book.ip {
                prop_assert_eq!(code[1], 0);
            } else if code[1] > 0 && code[1] < 255 {
                let step = f64::from(book.correction_step);
                prop_assert!((stored - want).abs() <= 0.51 * step + 1e-3, "{} {}", stored, want);
            }
        }
    }

    #[test]
    fn each_stage_takes_the_nearest_to_what_is_left((_, book) in shapes(), seed: u64) {
        let y = floats(&mut (seed | 1), book.dim);
        let mut code = vec![0u8; book.code_bytes()];
        book.encode_rotated(&y, &mut vec![0f32; book.dim], &mut code);
        let mut left = y;
        for (i, stage) in book.coarse.chunks(CENTROIDS * book.dim).enumerate().take(book.stages()) {
            let k = usize::from(code[if i == 0 { 0 } else { i + 1 }]);
            let distance = |c: &[f32]| l2_f32(&left, bytemuck::cast_slice(c));
            let chosen = &stage[k * book.dim..][..book.dim];
            prop_assert!(stage.chunks(book.dim).all(|c| distance(c) >= distance(chosen)));
            left.iter_mut().zip(chosen).for_each(|(x, c)| *x -= c);
        }
    }
}

#[test]
fn sums_do_not_overflow_at_the_limit_of_subspaces() {
    let mut book = codebook(3, 1024, 1024, 256, false);
    // Far coarse centroids and a wide correction beside narrow subspaces.
    book.coarse[..1024].fill(1e6);
    book.correction_low = -1e9;
    book.correction_step = 1e7;
    let mut table = Table::default();
    table.set(&book, &[0.0; 1024], &mut Vec::new());
    let mut code = vec![0u8; 1026];
    for (first, second) in [(0, 0), (0, 255), (1, 0), (1, 255)] {
        code[..2].copy_from_slice(&[first, second]);
        let (got, want) =
            (f64::from(table.to_float(table.distance(&code))), expected(&book, &[0.0; 1024], &code));
        assert!((got - want).abs() <= 1e-5 * 1e15, "{got} {want}");
    }
}

#[test]
fn hostile_numbers_do_not_panic() {
    let book = codebook(4, 16, 4, 7, false);
    for x in [f32::NAN, f32::INFINITY, f32::MAX, f32::MIN_POSITIVE] {
        let mut table = Table::default();
        table.set(&book, &[x; 16], &mut Vec::new());
        table.distance(&[255; 6]);
        assert_eq!(table.distance(&[255; 5]), u32::MAX);
    }
}
