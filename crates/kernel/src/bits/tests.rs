use super::query::PADDING;
use super::*;
use crate::distance::l2_f32;
use crate::isa::{Isa, is_available};
use proptest::prelude::*;

const ISAS: [Isa; 4] = [Isa::Scalar, Isa::Neon, Isa::Avx2, Isa::Avx512];

/// Numbers without pattern, nearly normally distributed.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        let mut sum = 0.0;
        for _ in 0..6 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            sum += (self.0 >> 40) as f32 / (1u64 << 24) as f32;
        }
        (sum - 3.0) * 1.414
    }

    fn rows(&mut self, count: usize, dim: usize) -> Vec<f32> {
        (0..count * dim).map(|_| self.next()).collect()
    }
}

fn encode_all(coder: &BitCoder, rows: &[f32]) -> Vec<u8> {
    let (dim, size) = (coder.layout().dim(), coder.layout().code_bytes());
    let mut codes = vec![0; rows.len() / dim * size];
    for (row, code) in rows.chunks_exact(dim).zip(codes.chunks_exact_mut(size)) {
        let mut placed = row.to_vec();
        coder.place(&mut placed);
        coder.encode(&mut placed, code);
    }
    codes
}

fn bytes_of(floats: &[f32]) -> &[u8] {
    bytemuck::cast_slice(floats)
}

#[test]
fn layouts_use_the_bytes_that_they_are_given() {
    assert_eq!(Layout::even(128, 2, 0, false).unwrap().code_bytes(), 36);
    assert_eq!(Layout::even(384, 4, 0, false).unwrap().code_bytes(), 200);
    assert_eq!(Layout::within(128, 36, false), Layout::even(128, 2, 0, false));
    // 12 bytes more than one bit a dimension: 96 dimensions have two.
    assert_eq!(Layout::within(128, 32, false), Layout::even(128, 1, 96, false));
    // Less than one bit a dimension: the first ones have one.
    assert_eq!(Layout::within(128, 19, false), Layout::projected(128, 120, false));
    assert_eq!(Layout::within(384, 32, false), Layout::projected(384, 224, false));
    assert_eq!(Layout::within(128, 4, false), None);
    assert!(Layout::projected(8, 9, false).is_none() && Layout::projected(8, 0, false).is_none());
    assert_eq!(Layout::within(128, 20, false), Layout::even(128, 1, 0, false));
    assert_eq!(Layout::within(128, 4000, false), Layout::even(128, 8, 0, false));
    for dim in [1, 2, 3, 7, 8, 9, 96, 100, 384, 4096] {
        for room in 1..3 * dim + 40 {
            if let Some(layout) = Layout::within(dim, room, false) {
                assert!(layout.code_bytes() <= room && layout.dim() == dim, "{layout:?} in {room}");
            }
        }
    }
    assert!(Layout::even(0, 1, 0, false).is_none() && Layout::even(4097, 1, 0, false).is_none());
    assert!(
        Layout::even(9, 0, 0, false).is_none()
            && Layout::even(9, 9, 0, false).is_none()
            && Layout::even(9, 8, 1, false).is_none()
    );
}

#[test]
fn rotations_keep_lengths_and_spread_components() {
    for dim in [1, 2, 3, 5, 8, 96, 100, 128, 384, 768, 1000, 4096] {
        let rotation = Rotation::new(dim, 7);
        let mut one = vec![0f32; dim];
        one[dim / 2] = 3.0;
        rotation.apply(&mut one);
        let squared: f32 = one.iter().map(|x| x * x).sum();
        assert!((squared - 9.0).abs() < 1e-3, "{dim}: {squared}");
        let largest = one.iter().fold(0f32, |most, x| most.max(x.abs()));
        // Normally distributed components of this length would be as small.
        assert!(dim < 64 || largest < 6.0 * 3.0 / (dim as f32).sqrt(), "{dim}: {largest}");
        assert_eq!(rotation, Rotation::new(dim, 7));
        assert!(dim < 8 || rotation != Rotation::new(dim, 8));
    }
}

#[test]
fn estimates_are_unbiased_and_better_with_each_bit() {
    let (dim, count) = (96, 400);
    let mut noise = Noise(3);
    let (rows, query) = (noise.rows(count, dim), noise.rows(1, dim));
    let mut before = f64::INFINITY;
    for bits in 1..=8 {
        for finer in [0, if bits < 8 { dim / 2 } else { 0 }] {
            let coder =
                BitCoder::new(Layout::even(dim, bits, finer, false).unwrap(), 1, &vec![0.0; dim], &[], false);
            let codes = encode_all(&coder, &rows);
            let (mut asked, mut keys) = (BitQuery::default(), Vec::new());
            asked.set(&coder, &query, &mut Vec::new());
            asked.rows(&codes, &mut keys);
            let errors: Vec<f64> = keys
                .iter()
                .zip(rows.chunks_exact(dim))
                .map(|(&key, row)| f64::from(asked.to_float(key)) - f64::from(l2_f32(&query, bytes_of(row))))
                .collect();
            let mean = errors.iter().sum::<f64>() / count as f64;
            let deviation = (errors.iter().map(|e| e * e).sum::<f64>() / count as f64).sqrt();
            // Four standard errors.
            assert!(
                mean.abs() < 4.0 * deviation / (count as f64).sqrt() + 1e-3,
                "{bits} bits: {mean} {deviation}"
            );
            if finer == 0 || dim > 2 * finer {
                assert!(deviation < 1.02 * before, "{bits} bits: {deviation}, with fewer {before}");
            }
            before = deviation;
        }
    }
    // The components of the query have 8 bits themselves.
    assert!(before < 1.0, "{before}");
}

#[test]
fn a_query_equal_to_a_vector_is_near_it() {
    let dim = 128;
    for offset in [0.0, 1e6] {
        let rows: Vec<f32> = Noise(5).rows(60, dim).iter().map(|x| x + offset).collect();
        let coder = BitCoder::new(Layout::even(dim, 4, 0, false).unwrap(), 2, &vec![offset; dim], &[], false);
        let codes = encode_all(&coder, &rows);
        for (i, row) in rows.chunks_exact(dim).enumerate() {
            let (mut asked, mut keys) = (BitQuery::default(), Vec::new());
            asked.set(&coder, row, &mut Vec::new());
            asked.rows(&codes, &mut keys);
            let nearest = (0..60).min_by_key(|&j| keys[j]).unwrap();
            assert_eq!(nearest, i, "offset {offset}");
        }
    }
}

#[test]
fn centroids_make_codes_of_clusters_better() {
    let (dim, clusters) = (64, 20);
    let mut noise = Noise(11);
    let centroids: Vec<f32> = noise.rows(clusters, dim).iter().map(|x| 5.0 * x).collect();
    let near = |noise: &mut Noise, i: usize| -> Vec<f32> {
        let centroid = &centroids[i % clusters * dim..][..dim];
        noise.rows(1, dim).iter().zip(centroid).map(|(x, c)| x + c).collect()
    };
    let rows: Vec<f32> = (0..300).flat_map(|i| near(&mut noise, i)).collect();
    let query = near(&mut noise, 3);
    let error = |numbered: bool| {
        let layout = Layout::even(dim, 2, 0, numbered).unwrap();
        let coder = BitCoder::new(layout, 1, &vec![0.0; dim], if numbered { &centroids } else { &[] }, false);
        let (mut asked, mut keys) = (BitQuery::default(), Vec::new());
        asked.set(&coder, &query, &mut Vec::new());
        asked.rows(&encode_all(&coder, &rows), &mut keys);
        let exact = rows.chunks_exact(dim).map(|row| l2_f32(&query, bytes_of(row)));
        keys.iter().zip(exact).map(|(&key, exact)| (asked.to_float(key) - exact).powi(2)).sum::<f32>()
    };
    assert!(error(true) < 0.2 * error(false), "{} {}", error(true), error(false));
}

#[test]
fn inner_products_are_estimated_whatever_the_centre() {
    let dim = 100;
    let mut noise = Noise(9);
    let (rows, query, centre) = (noise.rows(200, dim), noise.rows(1, dim), noise.rows(1, dim));
    let coder = BitCoder::new(Layout::even(dim, 6, 0, false).unwrap(), 3, &centre, &[], true);
    let codes = encode_all(&coder, &rows);
    let (mut asked, mut keys) = (BitQuery::default(), Vec::new());
    asked.set(&coder, &query, &mut Vec::new());
    asked.rows(&codes, &mut keys);
    for (&key, row) in keys.iter().zip(rows.chunks_exact(dim)) {
        let exact: f32 = -row.iter().zip(&query).map(|(a, b)| a * b).sum::<f32>();
        assert!((asked.to_float(key) - exact).abs() < 1.5, "{} {exact}", asked.to_float(key));
    }
}

/// A coder of even bits, of an allocation by variance, or of bits for half of the dimensions.
fn coder_of(
    dim: usize,
    (bits, part): (usize, usize),
    numbered: bool,
    ip: bool,
    seed: u64,
) -> Option<BitCoder> {
    let mut noise = Noise(seed);
    let centre = noise.rows(1, dim);
    let centroids = if numbered { noise.rows(5, dim) } else { Vec::new() };
    if part < 4 {
        let layout = layout_of(dim, bits, part, numbered)?;
        return Some(BitCoder::new(layout, seed, &centre, &centroids, ip));
    }
    let variances: Vec<f64> = (0..dim).map(|i| 1.0 / (1.0 + 0.3 * i as f64)).collect();
    let bytes = (bits * dim).div_ceil(8) + 9 + usize::from(numbered);
    let allocation = Allocation::of(&variances, bytes, numbered)?;
    Some(BitCoder::of_basis(&allocation, seed, identity(dim), (&centre, &centroids), ip))
}

fn identity(dim: usize) -> Vec<f32> {
    let mut basis = vec![0.0; dim * dim];
    basis.iter_mut().step_by(dim + 1).for_each(|x| *x = 1.0);
    basis
}

/// Whole bits, or one more for some dimensions, or bits for half of them.
fn layout_of(dim: usize, bits: usize, part: usize, numbered: bool) -> Option<Layout> {
    match (bits, part) {
        (1, 3) => Layout::projected(dim, dim.div_ceil(2), numbered),
        (8, _) | (_, 0) => Layout::even(dim, bits, 0, numbered),
        (_, part) => Layout::even(dim, bits, part * dim / 4, numbered),
    }
}

/// Rows of every odd kind: zeros, equal components, one huge component, many decades.
fn odd_rows(dim: usize, seed: u64) -> Vec<f32> {
    let mut noise = Noise(seed);
    let mut rows = vec![0.0; dim];
    rows.extend(vec![5.0; dim]);
    rows.extend((0..dim).map(|i| if i == dim / 2 { 1e9 } else { 1e-3 }));
    for decade in -5..=5 {
        rows.extend(noise.rows(1, dim).iter().map(|x| x * 10f32.powi(decade)));
    }
    rows.extend(noise.rows(1, dim).iter().map(|x| x * 1e25));
    rows
}

#[test]
fn bits_go_where_the_variance_is() {
    let variances: Vec<f64> = (0..64).map(|i| if i < 16 { 100.0 } else { 1.0 }).collect();
    let of = |bytes| Allocation::of(&variances, bytes, false).unwrap().layout;
    let bits = |layout: Layout| layout.segments().iter().map(|s| (s.dims, s.bits)).collect::<Vec<_>>();
    assert_eq!(bits(of(8)), [(16, 2)]);
    // The first get bits until what they lack is as little as what the others have.
    assert_eq!(bits(of(4 + 14)), [(16, 5), (32, 1)]);
    for dim in [1, 2, 7, 8, 9, 100, 4096] {
        let falling: Vec<f64> = (0..dim).map(|i| 0.99f64.powi(i)).collect();
        for bytes in [0, 3, 4, 5, 6, 32, 200, 10_000] {
            let Some(Allocation { layout, step, .. }) = Allocation::of(&falling, bytes, true) else {
                assert!(bytes < 6, "{dim} {bytes}");
                continue;
            };
            assert!(layout.code_bytes() <= bytes && layout.dim() == dim as usize && step > 0.0, "{layout:?}");
        }
    }
    // Equal vectors, and what no variance can be.
    for odd in [0.0, f64::NAN, f64::INFINITY, -1.0] {
        let found = Allocation::of(&[odd; 24], 20, false).unwrap();
        assert!(found.layout.code_bytes() <= 20, "{odd}");
    }
    assert!(Allocation::of(&[], 20, false).is_none());
}

#[test]
fn few_bits_of_the_right_dimensions_are_better_than_of_all() {
    let (dim, bytes) = (64, 20);
    let mut noise = Noise(13);
    let deviation = |i: usize| 8.0 / (1 + i) as f32;
    let row = |noise: &mut Noise| (0..dim).map(|i| deviation(i) * noise.next()).collect::<Vec<f32>>();
    let rows: Vec<f32> = (0..300).flat_map(|_| row(&mut noise)).collect();
    let query = row(&mut noise);
    let variances: Vec<f64> = (0..dim).map(|i| f64::from(deviation(i).powi(2))).collect();
    let centre = vec![0.0; dim];
    let allocation = Allocation::of(&variances, bytes, false).unwrap();
    let error = |coder: &BitCoder| {
        let (mut asked, mut keys) = (BitQuery::default(), Vec::new());
        asked.set(coder, &query, &mut Vec::new());
        asked.rows(&encode_all(coder, &rows), &mut keys);
        let exact = rows.chunks_exact(dim).map(|row| l2_f32(&query, bytes_of(row)));
        keys.iter().zip(exact).map(|(&key, exact)| (asked.to_float(key) - exact).powi(2)).sum::<f32>()
    };
    let even = BitCoder::new(Layout::within(dim, bytes, false).unwrap(), 1, &centre, &[], false);
    let allocated = BitCoder::of_basis(&allocation, 1, identity(dim), (&centre, &[]), false);
    assert!(error(&allocated) < 0.2 * error(&even), "{} {}", error(&allocated), error(&even));
}

proptest! {
    #[test]
    fn every_instruction_set_gives_the_same_keys(
        dim in prop_oneof![1usize..140, Just(384), Just(1000)], bits in 1usize..=8, part in 0usize..=4,
        ip: bool, numbered: bool, seed: u64,
    ) {
        let Some(coder) = coder_of(dim, (bits, part), numbered, ip, seed) else { return Ok(()) };
        let layout = *coder.layout();
        let rows = odd_rows(dim, seed);
        let codes = encode_all(&coder, &rows);
        let count = (rows.len() / dim) as u32;
        let ids: Vec<u32> = (0..count).rev().chain([count, u32::MAX, 0]).collect();
        for query in rows.chunks_exact(dim) {
            let mut asked = BitQuery::default();
            asked.set(&coder, query, &mut Vec::new());
            let (mut plain, mut plain_rows) = (Vec::new(), Vec::new());
            asked.distances_by(Isa::Scalar, &codes, &ids, &mut plain);
            asked.rows_by(Isa::Scalar, &codes, &mut plain_rows);
            prop_assert_eq!(&plain[ids.len() - 3..], &[u32::MAX, u32::MAX, plain_rows[0]]);
            for isa in ISAS.into_iter().filter(|&isa| is_available(isa)) {
                let (mut found, mut found_rows) = (Vec::new(), Vec::new());
                asked.distances_by(isa, &codes, &ids, &mut found);
                asked.rows_by(isa, &codes, &mut found_rows);
                prop_assert_eq!(&found, &plain, "{:?}", isa);
                prop_assert_eq!(&found_rows, &plain_rows, "{:?}", isa);
            }
            // One by one they are the same.
            for (i, code) in codes.chunks_exact(layout.code_bytes()).enumerate() {
                prop_assert_eq!(asked.distance(code), plain_rows[i]);
            }
        }
    }

    #[test]
    fn keys_are_those_of_what_codes_decode_to(
        dim in 1usize..200, bits in 1usize..=8, part in 0usize..=4, ip: bool, numbered: bool, seed: u64,
    ) {
        let Some(coder) = coder_of(dim, (bits, part), numbered, ip, seed) else { return Ok(()) };
        let layout = *coder.layout();
        let mut noise = Noise(!seed);
        let query = noise.rows(1, dim);
        let rows = noise.rows(12, dim);
        let codes = encode_all(&coder, &rows);
        let (mut asked, mut keys, mut placed) = (BitQuery::default(), Vec::new(), Vec::new());
        asked.set(&coder, &query, &mut placed);
        asked.rows(&codes, &mut keys);
        prop_assert_eq!(asked.components().len(), dim + PADDING);
        for ((row, code), key) in rows.chunks_exact(dim).zip(codes.chunks_exact(layout.code_bytes())).zip(keys) {
            let mut own = row.to_vec();
            coder.place(&mut own);
            let mut decoded = vec![0.0; dim];
            coder.decode(code, &mut decoded);
            let at = if numbered { usize::from(code[2 * layout.factor_bytes()]) * dim } else { 0 };
            let mut centroid = coder.centroids().get(at..at + dim).unwrap_or_default().to_vec();
            centroid.resize(dim, 0.0);
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
            let less = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<f32>>();
            let (residual, coded) = (less(&own, &centroid), less(&decoded, &centroid));
            let (product, squared) = (dot(&decoded, &placed), dot(&residual, &residual));
            let mut rotated = query.clone();
            coder.rotate(&mut rotated);
            let exact = if ip {
                -dot(&rotated, coder.centre()) - product
            } else {
                let norm = squared + 2.0 * dot(&centroid, &coded);
                dot(&placed, &placed) - 2.0 * product + dot(&centroid, &centroid) + norm
            };
            let length = dot(&coded, &coded).sqrt();
            // Factors of 16 bits move the norm by what they move the scale, which is a part of both products.
            let moved = squared + length * dot(&centroid, &centroid).sqrt();
            let room = 2.0 * asked.error_of_products(length) + 0.02 * moved + 1e-3 * (1.0 + exact.abs());
            let found = asked.to_float(key);
            prop_assert!((found - exact).abs() <= room, "{} {} {}", found, exact, room);
        }
    }

    #[test]
    fn any_bytes_are_scored(dim in 1usize..60, bits in 1usize..=8, junk in prop::collection::vec(any::<u8>(), 0..400)) {
        let coder = BitCoder::new(Layout::even(dim, bits, 0, false).unwrap(), 1, &vec![0.0; dim], &[], false);
        let (mut asked, mut out) = (BitQuery::default(), Vec::new());
        // Before it is set, too.
        asked.distances(&junk, &[0, u32::MAX], &mut out);
        prop_assert_eq!(out.len(), 2);
        prop_assert_eq!(out[1], u32::MAX);
        asked.set(&coder, &vec![1.0; dim], &mut Vec::new());
        asked.rows(&junk, &mut out);
        prop_assert_eq!(out.len(), junk.len() / coder.layout().code_bytes());
        prop_assert_eq!(asked.distance(&junk[..junk.len().min(1)]), u32::MAX);
    }
}
