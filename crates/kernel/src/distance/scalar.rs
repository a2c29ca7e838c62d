//! The scalar twins: the definition of every distance, bit for bit.

use half::f16;

/// Lanes of every floating-point sum, whatever the instruction set.
pub const LANES: usize = 16;

/// Folds the lanes in the one fixed order: 8 apart, 4, 2, 1.
pub fn fold(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

fn sum(query: &[f32], row: impl Iterator<Item = f32>, term: impl Fn(f32, f32, f32) -> f32) -> f32 {
    let mut lanes = [0f32; LANES];
    for (i, (&q, x)) in query.iter().zip(row).enumerate() {
        lanes[i % LANES] = term(lanes[i % LANES], q, x);
    }
    fold(lanes)
}

fn square(acc: f32, q: f32, x: f32) -> f32 {
    let diff = q - x;
    diff.mul_add(diff, acc)
}

fn product(acc: f32, q: f32, x: f32) -> f32 {
    q.mul_add(x, acc)
}

fn f32s(row: &[u8]) -> impl Iterator<Item = f32> + '_ {
    row.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]]))
}

fn f16s(row: &[u8]) -> impl Iterator<Item = f32> + '_ {
    row.chunks_exact(2).map(|c| f16::from_le_bytes([c[0], c[1]]).to_f32())
}

/// Squared Euclidean distance; `row` is f32 as bytes.
pub fn l2_f32(query: &[f32], row: &[u8]) -> f32 {
    sum(query, f32s(row), square)
}

/// Inner product; `row` is f32 as bytes.
pub fn dot_f32(query: &[f32], row: &[u8]) -> f32 {
    sum(query, f32s(row), product)
}

/// Squared Euclidean distance; `row` is f16 as bytes.
pub fn l2_f16(query: &[f32], row: &[u8]) -> f32 {
    sum(query, f16s(row), square)
}

/// Inner product; `row` is f16 as bytes.
pub fn dot_f16(query: &[f32], row: &[u8]) -> f32 {
    sum(query, f16s(row), product)
}

/// Squared Euclidean distance of unsigned bytes, exact.
pub fn l2_u8(a: &[u8], b: &[u8]) -> u32 {
    a.iter().zip(b).map(|(&x, &y)| u32::from(x.abs_diff(y)).pow(2)).sum()
}

/// Inner product of unsigned bytes, exact.
pub fn dot_u8(a: &[u8], b: &[u8]) -> u32 {
    a.iter().zip(b).map(|(&x, &y)| u32::from(x) * u32::from(y)).sum()
}

/// Squared Euclidean distance of signed bytes (given as their bit patterns), exact.
pub fn l2_i8(a: &[u8], b: &[u8]) -> u32 {
    a.iter().zip(b).map(|(&x, &y)| u32::from((x as i8).abs_diff(y as i8)).pow(2)).sum()
}

/// Inner product of signed bytes (given as their bit patterns), exact.
pub fn dot_i8(a: &[u8], b: &[u8]) -> i32 {
    a.iter().zip(b).map(|(&x, &y)| i32::from(x as i8) * i32::from(y as i8)).sum()
}

/// Widens f16 (as bytes) to f32, as many components as both slices have.
pub fn widen_f16(row: &[u8], out: &mut [f32]) {
    out.iter_mut().zip(f16s(row)).for_each(|(o, x)| *o = x);
}
