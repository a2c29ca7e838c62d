//! Nanoseconds a code of some bits a dimension, equally many of all dimensions or in segments, for every instruction
//! set that this machine has, one process each.
//!
//! `rows` scores codes that lie together and stay in the cache, `gathered` codes of random ids from 100 MB, `beside
//! lists` random runs of 64 codes there, as those of a node's neighbours would lie beside its list. Of several rounds
//! the fastest counts.
#![allow(clippy::print_stdout, reason = "the table is the result")]

mod each_isa;

use std::hint::black_box;
use std::time::Instant;
use stratann_kernel::bits::{Allocation, BitCoder, BitQuery, Layout};

/// Dimensions and bits of a dimension.
const CASES: [(usize, usize); 8] =
    [(96, 1), (128, 1), (128, 2), (128, 4), (384, 2), (384, 4), (384, 8), (1536, 4)];
const ROWS: usize = 512;
const GATHERED_BYTES: usize = 100 << 20;

/// Measured forms.
const FORMS: [&str; 4] = ["bits, rows", "segments, rows", "bits, gathered", "bits, beside lists"];
/// Neighbours of a node.
const LIST: usize = 64;

fn main() {
    let cases: Vec<_> = cases().collect();
    let label = |((dim, bits), form): &((usize, usize), &str)| format!("{dim:>5} {bits:>5} {form:<18}");
    let labels: Vec<String> = cases.iter().map(label).collect();
    let head = format!("{:>5} {:>5} {:<18}", "dim", "bits", "form");
    each_isa::compare(&head, "ns a code", &labels, |case| {
        let ((dim, bits), form) = cases[case];
        measure(dim, bits, form)
    });
}

fn cases() -> impl Iterator<Item = ((usize, usize), &'static str)> {
    let all = CASES.into_iter().flat_map(|case| FORMS.into_iter().map(move |form| (case, form)));
    // For a profiler: STRATANN_BENCH_ONLY='128 2 bits, rows'
    let only = std::env::var("STRATANN_BENCH_ONLY").unwrap_or_default();
    all.filter(move |((dim, bits), form)| format!("{dim} {bits} {form}").starts_with(&only))
}

fn measure(dim: usize, bits: usize, form: &str) -> f64 {
    let query: Vec<f32> = (0..dim).map(|i| ((i * 7919) % 251) as f32 / 125.0 - 1.0).collect();
    let coder = coder(dim, bits, form);
    let size = coder.layout().code_bytes();
    let count = if form.ends_with("rows") { ROWS } else { GATHERED_BYTES / size };
    let codes: Vec<u8> = (0..count * size).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    // Ids without pattern, as the neighbours of a node have them.
    let ids: Vec<u32> = (0..ROWS).map(|i| ((i * 7_368_787) % count) as u32).collect();
    let mut out = Vec::new();
    let mut asked = BitQuery::default();
    asked.set(&coder, &query, &mut Vec::new());
    match form {
        "bits, gathered" => {
            fastest(|round| asked.distances(black_box(&codes), &moved(&ids, round, count), &mut out))
        }
        "bits, beside lists" => fastest(|round| {
            let lists = moved(&ids, round, count - LIST);
            let runs: Vec<u32> = (0..ROWS).map(|i| lists[i / LIST] + (i % LIST) as u32).collect();
            asked.distances(black_box(&codes), &runs, &mut out);
        }),
        _ => fastest(|_| asked.rows(black_box(&codes), &mut out)),
    }
}

/// A coder of equally many bits of all dimensions, or of as many bits in segments of dimensions that vary less and
/// less.
fn coder(dim: usize, bits: usize, form: &str) -> BitCoder {
    let centre = vec![0.0; dim];
    let layout = Layout::even(dim, bits, 0, false).unwrap_or_else(|| unreachable!("a layout of the cases"));
    let variances: Vec<f64> = (0..dim).map(|i| (-4.0 * i as f64 / dim as f64).exp()).collect();
    match Allocation::of(&variances, layout.code_bytes(), false) {
        Some(allocation) if form.starts_with("segments") => {
            let mut basis = vec![0f32; dim * dim];
            basis.iter_mut().step_by(dim + 1).for_each(|x| *x = 1.0);
            BitCoder::of_basis(&allocation, 1, basis, (&centre, &[]), false)
        }
        _ => BitCoder::new(layout, 1, &centre, &[], false),
    }
}

/// Other ids in each round, so that their codes are not in the cache.
fn moved(ids: &[u32], round: usize, count: usize) -> Vec<u32> {
    ids.iter().map(|&id| ((id as usize + round * 104_729) % count) as u32).collect()
}

/// Nanoseconds a code of the fastest of several rounds.
fn fastest(mut work: impl FnMut(usize)) -> f64 {
    const REPEATS: usize = 20;
    let mut repeat = 0;
    let mut round = |_| {
        let start = Instant::now();
        for _ in 0..REPEATS {
            repeat += 1;
            work(repeat);
        }
        start.elapsed().as_nanos() as f64 / (REPEATS * ROWS) as f64
    };
    (0..15).map(&mut round).fold(f64::INFINITY, f64::min)
}
