//! Nanoseconds per distance for every instruction set that this machine has, one process each.
//!
//! `pair` scores rows one by one, `many` with one call for all rows, `block` all rows against all rows. The rows start
//! at a cache line and stay in the cache; of several rounds the fastest counts.
#![allow(clippy::print_stdout, reason = "the table is the result")]

mod each_isa;

use std::hint::black_box;
use std::time::Instant;
use stratann_kernel::distance::{self, Exact};
use stratann_kernel::{DType, Metric};

const DIMS: [usize; 5] = [96, 128, 384, 768, 1536];
const ROWS: usize = 128;

/// Measured forms.
const FORMS: [&str; 3] = ["pair", "many", "block"];

fn main() {
    let cases: Vec<_> = cases().collect();
    let label = |(metric, dtype, dim, form): &(Metric, DType, usize, &str)| {
        format!("{:<7} {:<5} {:<5} {:>5}", metric.name(), dtype.name(), form, dim)
    };
    let labels: Vec<String> = cases.iter().map(label).collect();
    let head = format!("{:<7} {:<5} {:<5} {:>5}", "metric", "dtype", "form", "dim");
    each_isa::compare(&head, "ns per distance", &labels, |case| {
        let (metric, dtype, dim, form) = cases[case];
        measure(metric, dtype, dim, form)
    });
}

fn cases() -> impl Iterator<Item = (Metric, DType, usize, &'static str)> {
    let forms = |(metric, dtype, dim)| FORMS.into_iter().map(move |form| (metric, dtype, dim, form));
    let dims = move |(metric, dtype)| DIMS.into_iter().map(move |dim| (metric, dtype, dim)).flat_map(forms);
    let metrics = [Metric::L2, Metric::Ip].into_iter();
    metrics
        .flat_map(move |metric| DType::ALL.into_iter().map(move |dtype| (metric, dtype)).flat_map(dims))
        // There is no block form of f16.
        .filter(|&(_, dtype, _, form)| (dtype, form) != (DType::F16, "block"))
}

fn measure(metric: Metric, dtype: DType, dim: usize, form: &str) -> f64 {
    let count = dim * ROWS;
    let value = |i: usize| (i * 7919 % 251) as u8;
    let floats = aligned((0..count).map(|i| f32::from(value(i)) / 251.0), 0.0);
    let floats = &floats.0[floats.1..];
    let rows = match dtype {
        DType::F32 => aligned(floats.iter().flat_map(|x| x.to_le_bytes()), 0),
        DType::F16 => aligned(floats.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()), 0),
        DType::U8 | DType::I8 => aligned((0..count).map(value), 0),
    };
    let rows = &rows.0[rows.1..];
    let row_bytes = dim * dtype.size();
    let mut exact = Exact::default();
    exact.set(metric, dtype, dim, &rows[..row_bytes]);
    let mut out = Vec::new();
    match form {
        "pair" => fastest(ROWS, || {
            let sum: f32 = rows.chunks_exact(row_bytes).map(|row| exact.distance(black_box(row), 0.0)).sum();
            black_box(sum);
        }),
        "many" => fastest(ROWS, || {
            exact.distances(black_box(rows), &[], &mut out);
            black_box(&out);
        }),
        _ => fastest(ROWS * ROWS, || block(metric, dtype, floats, rows, dim)),
    }
}

/// The values, and the index of the first of them: a cache line starts there, as at the start of a page.
fn aligned<T: Copy>(values: impl Iterator<Item = T>, filler: T) -> (Vec<T>, usize) {
    let mut all = vec![filler; 64];
    all.extend(values);
    // The vector does not move after this.
    let start = all.as_ptr().align_offset(64);
    all.copy_within(64.., start);
    all.truncate(all.len() - 64 + start);
    (all, start)
}

fn block(metric: Metric, dtype: DType, floats: &[f32], bytes: &[u8], dim: usize) {
    let mut out = vec![0f32; ROWS * ROWS];
    let integers: &mut [u32] = bytemuck::cast_slice_mut(&mut out);
    match (metric, dtype) {
        (Metric::L2, DType::F32) => distance::block_l2_f32(floats, floats, dim, &mut out),
        (_, DType::F32) => distance::block_dot_f32(floats, floats, dim, &mut out),
        (Metric::L2, DType::U8) => distance::block_l2_u8(bytes, bytes, dim, integers),
        (_, DType::U8) => distance::block_dot_u8(bytes, bytes, dim, integers),
        (Metric::L2, DType::I8) => distance::block_l2_i8(bytes, bytes, dim, integers),
        (_, DType::I8) => distance::block_dot_i8(bytes, bytes, dim, bytemuck::cast_slice_mut(integers)),
        (_, DType::F16) => unreachable!("no such case"),
    }
    black_box(&out);
}

/// Nanoseconds per distance of the fastest of several rounds of about a millisecond.
fn fastest(distances: usize, mut work: impl FnMut()) -> f64 {
    let start = Instant::now();
    work();
    let once = start.elapsed().as_nanos().max(1);
    let repeats = (1_000_000 / once).clamp(1, 10_000) as usize;
    let round = |_| {
        let start = Instant::now();
        (0..repeats).for_each(|_| work());
        start.elapsed().as_nanos() as f64 / (repeats * distances) as f64
    };
    (0..5).map(round).fold(f64::INFINITY, f64::min)
}
