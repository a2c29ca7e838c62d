//! Nanoseconds a pair of a row and a centroid, to find the nearest centroid, for every instruction set that this
//! machine has, one process each.
//!
//! `bytes` and `products` compute inner products alone, of unsigned bytes and of floats; `floats` also finds the
//! smallest distance, and `integers` is the table of centroids. Rows lie about centroids; of many short rounds the
//! fastest counts.
#![allow(clippy::print_stdout, reason = "the table is the result")]

mod each_isa;

use std::hint::black_box;
use std::time::Instant;
use stratann_kernel::centroids::{CentroidTable, Nearest, Scratch};
use stratann_kernel::distance;

const DIMS: [usize; 5] = [96, 128, 384, 784, 1536];
const CENTROIDS: [usize; 3] = [64, 256, 1024];
const ROWS: usize = 64;

/// Measured forms.
const FORMS: [&str; 4] = ["bytes", "products", "floats", "integers"];

fn main() {
    let cases: Vec<_> = cases().collect();
    let label = |(dim, count, form): &(usize, usize, &str)| format!("{dim:>5} {count:>9} {form:<9}");
    let labels: Vec<String> = cases.iter().map(label).collect();
    let head = format!("{:>5} {:>9} {:<9}", "dim", "centroids", "form");
    each_isa::compare(&head, "ns a pair", &labels, |case| {
        let (dim, count, form) = cases[case];
        measure(dim, count, form)
    });
}

fn cases() -> impl Iterator<Item = (usize, usize, &'static str)> {
    let counts = |dim| CENTROIDS.into_iter().map(move |count| (dim, count));
    let forms = |(dim, count)| FORMS.into_iter().map(move |form| (dim, count, form));
    DIMS.into_iter().flat_map(counts).flat_map(forms)
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
