//! Nanoseconds a pair of a row and a centroid, to find the nearest centroid, for every instruction set that this
//! machine has, one process each.
//!
//! `bytes` and `products` compute inner products alone, of unsigned bytes and of floats; `floats` also finds the
//! smallest distance, and `integers` is the table of centroids. Rows lie about centroids; of many short rounds the
//! fastest counts.
#![allow(clippy::print_stdout, reason = "the table is the result")]

use std::hint::black_box;
use std::process::Command;
use std::time::Instant;
use stratann_kernel::centroids::{CentroidTable, Nearest, Scratch};
use stratann_kernel::{distance, isa};

const DIMS: [usize; 5] = [96, 128, 384, 784, 1536];
const CENTROIDS: [usize; 3] = [64, 256, 1024];
const ROWS: usize = 64;
const CHILD: &str = "STRATANN_BENCH_CHILD";

/// Measured forms, in the order in which a child prints their times.
const FORMS: [&str; 4] = ["bytes", "products", "floats", "integers"];

fn main() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    let names = ["scalar", "neon", "avx2", "avx512"];
    let runs: Vec<(&str, Vec<f64>)> =
        names.into_iter().filter_map(|name| run(name).map(|times| (name, times))).collect();
    print!("{:>5} {:>9} {:<9}", "dim", "centroids", "form");
    runs.iter().for_each(|(name, _)| print!(" {name:>9}"));
    println!("   ns a pair");
    for (i, (dim, count, form)) in cases().enumerate() {
        print!("{dim:>5} {count:>9} {form:<9}");
        runs.iter().for_each(|(_, times)| print!(" {:>9.2}", times[i]));
        println!();
    }
}

fn cases() -> impl Iterator<Item = (usize, usize, &'static str)> {
    let counts = |dim| CENTROIDS.into_iter().map(move |count| (dim, count));
    let forms = |(dim, count)| FORMS.into_iter().map(move |form| (dim, count, form));
    DIMS.into_iter().flat_map(counts).flat_map(forms)
}

/// The times of one instruction set, or none where this machine lacks it.
fn run(name: &str) -> Option<Vec<f64>> {
    let exe = std::env::current_exe().ok()?;
    let output = Command::new(exe).env(CHILD, "1").env("STRATANN_ISA", name).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (used, times) = text.split_once('\n')?;
    (used == name).then(|| times.lines().filter_map(|line| line.parse().ok()).collect())
}

fn child() {
    println!("{}", isa::current().name());
    for (dim, count, form) in cases() {
        println!("{}", measure(dim, count, form));
    }
}

fn measure(dim: usize, count: usize, form: &str) -> f64 {
    let mut state = 1u64;
    let mut value = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let centroids: Vec<f32> = (0..count * dim).map(|_| value()).collect();
    let rows: Vec<f32> =
        (0..ROWS * dim).map(|i| centroids[i * 7 / dim % count * dim + i % dim] + value()).collect();
    if form == "integers" {
        let table = CentroidTable::new(&centroids, dim);
        let mut scratch = Scratch::default();
        let mut out = vec![Nearest { number: 0, distance: 0.0 }; ROWS];
        return fastest(ROWS * count, || {
            table.nearest(black_box(&rows), &mut scratch, &mut out);
            black_box(&out);
        });
    }
    if form == "bytes" {
        let bytes = |floats: &[f32]| floats.iter().map(|x| (x * 64.0) as i8 as u8).collect::<Vec<u8>>();
        let (rows, centroids) = (bytes(&rows), bytes(&centroids));
        let mut products = vec![0; ROWS * count];
        return fastest(ROWS * count, || {
            distance::block_dot_u8(black_box(&rows), &centroids, dim, &mut products);
            black_box(&products);
        });
    }
    let norms: Vec<f32> =
        centroids.chunks(dim).map(|c| distance::dot_f32(c, bytemuck::cast_slice(c))).collect();
    let mut products = vec![0f32; ROWS * count];
    fastest(ROWS * count, || {
        distance::block_dot_f32(black_box(&rows), &centroids, dim, &mut products);
        if form == "floats" {
            products.chunks(count).for_each(|products| {
                black_box(smallest(&norms, products));
            });
        }
        black_box(&products);
    })
}

fn smallest(norms: &[f32], products: &[f32]) -> (u32, f32) {
    let mut best = (0, f32::INFINITY);
    for ((&norm, &product), c) in norms.iter().zip(products).zip(0..) {
        let score = norm - 2.0 * product;
        if score < best.1 {
            best = (c, score);
        }
    }
    best
}

/// Nanoseconds a pair of the fastest of many short rounds.
fn fastest(pairs: usize, mut work: impl FnMut()) -> f64 {
    work();
    let round = |_| {
        let start = Instant::now();
        work();
        start.elapsed().as_nanos() as f64 / pairs as f64
    };
    (0..40).map(round).fold(f64::INFINITY, f64::min)
}
