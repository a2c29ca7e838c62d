//! Every form that this machine can run against its scalar twin, bit for bit.

use super::block::{block, block_f32, block_l2_bytes, one_to_many};
use super::forms::{self, Forms, Kernels, Pair};
use super::*;
use crate::isa::Isa;
use half::f16;
use proptest::prelude::*;

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Mostly ordinary numbers; with `wild`, also any finite bit pattern, denormals, both zeros and the extremes.
    fn float(&mut self, wild: bool) -> f32 {
        let ordinary = (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0;
        if !wild {
            return ordinary;
        }
        match self.below(8) {
            0 => -0.0,
            1 => 0.0,
            2 => f32::from_bits(self.next() as u32 & 0x807f_ffff),
            3 => Some(f32::from_bits(self.next() as u32)).filter(|x| x.is_finite()).unwrap_or(f32::MAX),
            4 => ordinary * 1e-30,
            5 => ordinary * 1e18,
            _ => ordinary,
        }
    }

    fn half(&mut self, wild: bool) -> f16 {
        if wild {
            let any = f16::from_bits(self.next() as u16);
            return if any.is_finite() { any } else { f16::from_bits(self.next() as u16 & 0x83ff) };
        }
        f16::from_f32(self.float(false))
    }

    fn floats(&mut self, n: usize, wild: bool) -> Vec<f32> {
        (0..n).map(|_| self.float(wild)).collect()
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n)
            .map(|_| match self.below(4) {
                0 => [0, 255, 127, 128][self.below(4)],
                _ => self.next() as u8,
            })
            .collect()
    }
}

/// A row of bytes at any alignment, with nothing after its last byte.
struct Row(Vec<u8>, usize);

impl Row {
    fn new(random: &mut Random, bytes: impl IntoIterator<Item = u8>) -> Row {
        let offset = random.below(64);
        Row((0..offset).map(|_| 0xff).chain(bytes).collect(), offset)
    }

    fn get(&self) -> &[u8] {
        &self.0[self.1..]
    }
}

fn f32_row(random: &mut Random, n: usize, wild: bool) -> Row {
    let values = random.floats(n, wild);
    Row::new(random, values.into_iter().flat_map(f32::to_le_bytes))
}

fn f16_row(random: &mut Random, n: usize, wild: bool) -> Row {
    let values: Vec<f16> = (0..n).map(|_| random.half(wild)).collect();
    Row::new(random, values.into_iter().flat_map(f16::to_le_bytes))
}

fn byte_row(random: &mut Random, n: usize) -> Row {
    let values = random.bytes(n);
    Row::new(random, values)
}

/// The bits; sums of huge numbers may overflow to a NaN, whose payload is not compared.
fn bits(x: f32) -> u32 {
    if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }
}

fn tables() -> Vec<(Isa, &'static Kernels)> {
    let all = [Isa::Scalar, Isa::Neon, Isa::Avx2, Isa::Avx512];
    all.into_iter().filter_map(|isa| forms::of(isa).map(|table| (isa, table))).collect()
}

fn check_pairs(random: &mut Random, dim: usize, wild: bool) {
    let query = random.floats(dim, wild);
    let (row, half) = (f32_row(random, dim, wild), f16_row(random, dim, wild));
    let (a, b) = (byte_row(random, dim), byte_row(random, dim));
    let (row, half, a, b) = (row.get(), half.get(), a.get(), b.get());
    for (isa, table) in tables() {
        // SAFETY: the table is one that this machine can run.
        unsafe {
            let float = |pair: Pair<f32, f32>, row| bits(pair(&query, row));
            assert_eq!(float(table.l2_f32.pair, row), bits(scalar::l2_f32(&query, row)), "{isa:?} {dim}");
            assert_eq!(float(table.dot_f32.pair, row), bits(scalar::dot_f32(&query, row)), "{isa:?} {dim}");
            assert_eq!(float(table.l2_f16.pair, half), bits(scalar::l2_f16(&query, half)), "{isa:?} {dim}");
            assert_eq!(float(table.dot_f16.pair, half), bits(scalar::dot_f16(&query, half)), "{isa:?} {dim}");
            assert_eq!((table.l2_u8)(a, b), scalar::l2_u8(a, b), "{isa:?} {dim}");
            assert_eq!((table.l2_i8)(a, b), scalar::l2_i8(a, b), "{isa:?} {dim}");
            let (ab, none) = (scalar::l2_u8(a, b), scalar::l2_u8(b, b));
            assert_eq!((table.l2_u8_strip)(b, [a, b, b, a]), [ab, none, none, ab], "{isa:?} {dim}");
            assert_eq!((table.dot_u8.pair)(a, b), scalar::dot_u8(a, b), "{isa:?} {dim}");
            assert_eq!((table.dot_i8.pair)(a, b) as i32, scalar::dot_i8(a, b), "{isa:?} {dim}");
            let (mut wide, mut expected) = (vec![7f32; dim], vec![7f32; dim]);
            (table.widen_f16)(half, &mut wide);
            scalar::widen_f16(half, &mut expected);
            assert!(wide.iter().zip(&expected).all(|(x, y)| x.to_bits() == y.to_bits()), "{isa:?} {dim}");
        }
    }
}

#[test]
fn pairs_match_the_scalar_twin_at_every_dimension() {
    let mut random = Random(1);
    for dim in (0..=300).chain([768, 1000, 1536, 4096]) {
        for wild in [false, true] {
            check_pairs(&mut random, dim, wild);
        }
    }
}

proptest! {
    #[test]
    fn pairs_match_the_scalar_twin(seed: u64, dim in 0usize..600, wild: bool) {
        check_pairs(&mut Random(seed), dim, wild);
    }

    #[test]
    fn longer_arguments_are_truncated(seed: u64, n in 0usize..200, m in 0usize..200, rest in 0usize..4) {
        let mut random = Random(seed);
        let query = random.floats(n, false);
        let row = random.bytes(4 * m + rest).iter().map(|x| x & 0x3f).collect::<Vec<u8>>();
        for (_, table) in tables() {
            // SAFETY: the table is one that this machine can run.
            unsafe {
                prop_assert_eq!(bits((table.l2_f32.pair)(&query, &row)), bits(scalar::l2_f32(&query, &row)));
                prop_assert_eq!(bits((table.dot_f16.pair)(&query, &row)), bits(scalar::dot_f16(&query, &row)));
                prop_assert_eq!((table.dot_u8.pair)(&row, &row[rest..]), scalar::dot_u8(&row, &row[rest..]));
                prop_assert_eq!((table.l2_i8)(&row[rest..], &row), scalar::l2_i8(&row[rest..], &row));
                let (mut wide, mut expected) = (vec![7f32; n], vec![7f32; n]);
                (table.widen_f16)(&row, &mut wide);
                scalar::widen_f16(&row, &mut expected);
                prop_assert_eq!(wide, expected);
            }
        }
    }

    #[test]
    fn blocks_match_pairs(seed: u64, nq in 0usize..12, nr in 0usize..14, dim in 1usize..150, wild: bool) {
        check_blocks(&mut Random(seed), nq, nr, dim, wild);
    }

    #[test]
    fn narrow_blocks_match_pairs(seed: u64, nq in 0usize..40, nr in 0usize..70, dim in 1usize..18, wild: bool) {
        let mut random = Random(seed);
        let (queries, rows) = (random.floats(nq * dim, wild), random.floats(nr * dim, wild));
        let mut out = vec![0.0; nq * nr];
        for (_, table) in tables() {
            let narrow = table.narrow.as_ref();
            for (form, groups, twin) in [
                (&table.l2_f32, narrow.map(|n| &n.l2), scalar::l2_f32 as fn(&[f32], &[u8]) -> f32),
                (&table.dot_f32, narrow.map(|n| &n.dot), scalar::dot_f32),
            ] {
                block_f32(form, groups, &queries, &rows, dim, &mut out);
                for (q, query) in queries.chunks_exact(dim).enumerate() {
                    for (r, row) in rows.chunks_exact(dim).enumerate() {
                        let expected = twin(query, bytemuck::cast_slice(row));
                        prop_assert_eq!(bits(out[q * nr + r]), bits(expected), "{} {} of dim {}", q, r, dim);
                    }
                }
            }
        }
    }

    #[test]
    fn distances_match_distance(seed: u64, nr in 0usize..14, dim in 1usize..150) {
        let mut random = Random(seed);
        for dtype in DType::ALL {
            let mut row = |n| match dtype {
                DType::F32 => f32_row(&mut random, n, false),
                DType::F16 => f16_row(&mut random, n, false),
                DType::U8 | DType::I8 => byte_row(&mut random, n),
            };
            let (query, rows) = (row(dim), row(nr * dim));
            let each = || rows.get().chunks_exact(dim * dtype.size());
            let norms: Vec<f32> = each().map(|row| inverse_norm(dtype, row)).collect();
            for metric in Metric::ALL {
                let mut exact = Exact::default();
                exact.set(metric, dtype, dim, query.get());
                let mut out = vec![3.0];
                exact.distances(rows.get(), if metric == Metric::Cosine { &norms } else { &[] }, &mut out);
                let pairwise = each().zip(&norms).map(|(row, &norm)| exact.distance(row, norm));
                prop_assert!(out.iter().copied().map(f32::to_bits).eq(pairwise.map(f32::to_bits)));
            }
        }
    }
}

fn check_form<Q, T: Copy + Default + PartialEq + std::fmt::Debug>(
    form: &Forms<Q, T>,
    pair: Pair<Q, T>,
    (queries, rows): (&[Q], &[u8]),
    (dim, row_bytes): (usize, usize),
    bits: impl Fn(T) -> u32,
) {
    // SAFETY: the pair is the scalar twin.
    let twin = |query: &[Q], row: &[u8]| bits(unsafe { pair(query, row) });
    let (nq, nr) = (queries.len() / dim, rows.len() / row_bytes);
    let mut out = vec![T::default(); nq * nr];
    block(form, queries, rows, dim, row_bytes, &mut out);
    let mut many = vec![T::default(); nr];
    for (q, query) in queries.chunks_exact(dim).enumerate() {
        one_to_many(form, query, rows, row_bytes, &mut many);
        for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
            let expected = twin(query, row);
            assert_eq!(bits(out[q * nr + r]), expected, "query {q} of {nq}, row {r} of {nr}, dim {dim}");
            assert_eq!(bits(many[r]), expected, "row {r} of {nr}, dim {dim}");
        }
    }
}

fn check_blocks(random: &mut Random, nq: usize, nr: usize, dim: usize, wild: bool) {
    let queries = random.floats(nq * dim, wild);
    let (rows, half) = (f32_row(random, nr * dim, wild), f16_row(random, nr * dim, wild));
    let (a, b) = (byte_row(random, nq * dim), byte_row(random, nr * dim));
    let twin = forms::of(Isa::Scalar).unwrap();
    for (_, table) in tables() {
        let (singles, halves) = ((dim, 4 * dim), (dim, 2 * dim));
        let (x, y, z) = ((&queries[..], rows.get()), (&queries[..], half.get()), (a.get(), b.get()));
        check_form(&table.l2_f32, twin.l2_f32.pair, x, singles, bits);
        check_form(&table.dot_f32, twin.dot_f32.pair, x, singles, bits);
        check_form(&table.l2_f16, twin.l2_f16.pair, y, halves, bits);
        check_form(&table.dot_f16, twin.dot_f16.pair, y, halves, bits);
        check_form(&table.dot_u8, twin.dot_u8.pair, z, (dim, dim), |x| x);
        check_form(&table.dot_i8, twin.dot_i8.pair, z, (dim, dim), |x| x);
        for (form, pair) in [(&table.dot_u8, twin.l2_u8), (&table.dot_i8, twin.l2_i8)] {
            let mut out = vec![0; nq * nr];
            block_l2_bytes(form, a.get(), b.get(), dim, &mut out);
            let pairs =
                a.get().chunks_exact(dim).flat_map(|q| b.get().chunks_exact(dim).map(move |x| (q, x)));
            // SAFETY: the pair is the scalar twin.
            assert!(out.into_iter().eq(pairs.map(|(q, x)| unsafe { pair(q, x) })));
        }
    }
}

#[test]
fn blocks_of_several_panels_match_pairs() {
    check_blocks(&mut Random(2), 150, 9, 1021, false);
}

#[test]
fn byte_sums_are_exact_at_the_largest_dimension() {
    let (full, none) = (vec![255u8; MAX_DIM], vec![0u8; MAX_DIM]);
    let (low, high) = (vec![0x80u8; MAX_DIM], vec![0x7fu8; MAX_DIM]);
    let n = MAX_DIM as u32;
    for (isa, table) in tables() {
        // SAFETY: the table is one that this machine can run.
        unsafe {
            assert_eq!((table.l2_u8)(&full, &none), n * 65_025, "{isa:?}");
            let strip = (table.l2_u8_strip)(&full, [&none, &full, &none, &none]);
            assert_eq!(strip, [n * 65_025, 0, n * 65_025, n * 65_025], "{isa:?}");
            assert_eq!((table.dot_u8.pair)(&full, &full), n * 65_025, "{isa:?}");
            assert_eq!((table.l2_i8)(&low, &high), n * 65_025, "{isa:?}");
            assert_eq!((table.dot_i8.pair)(&low, &low), n * 16_384, "{isa:?}");
            assert_eq!((table.dot_i8.pair)(&low, &high) as i32, -(n as i32) * 16_256, "{isa:?}");
        }
        let mut out = [0];
        block_l2_bytes(&table.dot_u8, &full, &none, MAX_DIM, &mut out);
        assert_eq!(out[0], n * 65_025, "{isa:?}");
    }
}

#[test]
fn public_functions_give_the_scalar_bits() {
    let mut random = Random(3);
    let query = random.floats(100, false);
    let (row, half) = (f32_row(&mut random, 100, false), f16_row(&mut random, 100, false));
    let (a, b) = (random.bytes(100), random.bytes(100));
    assert_eq!(bits(l2_f32(&query, row.get())), bits(scalar::l2_f32(&query, row.get())));
    assert_eq!(bits(dot_f32(&query, row.get())), bits(scalar::dot_f32(&query, row.get())));
    assert_eq!(bits(l2_f16(&query, half.get())), bits(scalar::l2_f16(&query, half.get())));
    assert_eq!(bits(dot_f16(&query, half.get())), bits(scalar::dot_f16(&query, half.get())));
    assert_eq!((l2_u8(&a, &b), dot_u8(&a, &b)), (scalar::l2_u8(&a, &b), scalar::dot_u8(&a, &b)));
    assert_eq!((l2_i8(&a, &b), dot_i8(&a, &b)), (scalar::l2_i8(&a, &b), scalar::dot_i8(&a, &b)));
    let (mut l2, mut dot) = ([0.0], [0.0]);
    block_l2_f32(&query, &query, 100, &mut l2);
    block_dot_f32(&query, &query, 100, &mut dot);
    assert_eq!((l2[0], bits(dot[0])), (0.0, bits(dot_f32(&query, bytemuck::cast_slice(&query)))));
    let (mut l2, mut dot, mut signed) = ([0; 2], [0; 2], [0; 1]);
    block_l2_u8(&a, &b, 100, &mut l2[..1]);
    block_l2_i8(&a, &b, 100, &mut l2[1..]);
    block_dot_u8(&a, &b, 100, &mut dot[..1]);
    block_dot_i8(&a, &b, 100, &mut signed);
    assert_eq!(l2, [l2_u8(&a, &b), l2_i8(&a, &b)]);
    assert_eq!((dot[0], signed[0]), (dot_u8(&a, &b), dot_i8(&a, &b)));
}

#[test]
fn gathered_rows_have_the_distances_of_pairs() {
    let mut random = Random(5);
    for dim in [1, 3, 16, 100, 128] {
        let (query, rows) = (random.bytes(dim), random.bytes(9 * dim));
        let row = |number: u32| &rows[number as usize * dim..][..dim];
        let mut out = vec![1.0];
        for numbers in [&[][..], &[3], &[8, 0, 1, 1], &[2, 5, 0, 8, 4, 7, 3]] {
            l2_u8_gathered(&query, &rows, numbers, &mut out);
            let pairs: Vec<f32> = numbers.iter().map(|&n| scalar::l2_u8(&query, row(n)) as f32).collect();
            assert_eq!(out, pairs, "{dim}");
        }
    }
}

#[test]
fn nan_and_infinity_do_not_panic() {
    let query = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0];
    let rows = [0xffu8; 64];
    for (_, table) in tables() {
        // SAFETY: the table is one that this machine can run.
        unsafe {
            assert!((table.l2_f32.pair)(&query, &rows).is_nan());
            assert!((table.dot_f16.pair)(&query, &rows).is_nan());
        }
    }
}

#[test]
fn a_negative_zero_in_every_lane_survives_the_tail() {
    for dim in 1..40 {
        let (query, row) = (vec![1e-30f32; dim], vec![-1e-30f32; dim]);
        let row: &[u8] = bytemuck::cast_slice(&row);
        let expected = scalar::dot_f32(&query, row).to_bits();
        assert_eq!(expected == (-0f32).to_bits(), dim >= 16);
        for (isa, table) in tables() {
            // SAFETY: the table is one that this machine can run.
            assert_eq!(unsafe { (table.dot_f32.pair)(&query, row) }.to_bits(), expected, "{isa:?} {dim}");
        }
    }
}
