//! Processor time of a query that is searched for alone, and of the same queries together, on one thread.
//!
//! `cargo bench -p stratann-engine --bench lone_query -- INDEX QUERIES [ROUNDS]`. The difference is what a call costs
//! besides its query. Blocks that queries need are in memory after the first round, which does not count.
#![allow(clippy::print_stdout, reason = "the figures are the result")]

use std::path::Path;
use std::time::Instant;

use stratann_engine::dataset::Reader;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::search::SearchOptions;
use stratann_storage::budget;
use stratann_storage::progress::Quiet;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let [index, queries, rounds @ ..] = &args[..] else {
        return println!("give an index, a file of queries, and how many rounds: 5 where none are given");
    };
    let rounds: usize = rounds.first().map_or(5, |rounds| rounds.parse().expect("rounds are a number"));
    let open = OpenOptions { cache_budget: 1 << 30, ..OpenOptions::default() };
    let index = Index::open(Path::new(index), open).expect("an index");
    let reader = Reader::open(Path::new(queries)).expect("queries");
    let shape = reader.shape();
    let mut rows = Vec::new();
    reader.read_rows(0, shape.rows as usize, &mut rows).expect("rows of queries");
    let options = SearchOptions::default();
    let alone = |row: &[u8]| index.search(row, &options, &Quiet).expect("a search").ids;
    let together = || index.search(&rows, &options, &Quiet).expect("a search").ids;
    let each: Vec<u64> = rows.chunks_exact(shape.row_bytes()).flat_map(alone).collect();
    println!("{} queries, {:.4} of results equal", shape.rows, equal_share(&each, &together()));
    println!(
        "alone    {}",
        of_queries(shape.rows as usize * rounds, || (0..rounds).for_each(|_| {
            rows.chunks_exact(shape.row_bytes()).for_each(|row| drop(alone(row)));
        }))
    );
    println!(
        "together {}",
        of_queries(shape.rows as usize * rounds, || (0..rounds).for_each(|_| drop(together())))
    );
}

fn equal_share(a: &[u64], b: &[u64]) -> f64 {
    a.iter().zip(b).filter(|(a, b)| a == b).count() as f64 / a.len().max(1) as f64
}

/// Processor and wall time of each of so many queries.
fn of_queries(count: usize, run: impl FnOnce()) -> String {
    let (before_us, started) = (budget::cpu_us(), Instant::now());
    run();
    let us = |us: f64| us / count as f64;
    format!(
        "{:8.1} µs of processor, {:8.1} µs of time",
        us((budget::cpu_us() - before_us) as f64),
        us(started.elapsed().as_secs_f64() * 1e6)
    )
}
