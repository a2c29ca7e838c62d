//! Processor time of a query that is searched for alone, of the same queries together, both on one thread, and of calls
//! with 16 queries on two threads.
//!
//! `cargo bench -p stratann-engine --bench lone_query -- INDEX QUERIES [ROUNDS [LIST]]`, with a beam of LIST instead of
//! the usual recall. The difference is what a call costs
//! besides its query. The index is in memory where its kind can be, or else the blocks that queries need are after the
//! first round, which does not count.
#![allow(clippy::print_stdout, reason = "the figures are the result")]

use std::path::Path;
use std::time::Instant;

use stratann_engine::dataset::Reader;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::search::{Effort, SearchOptions};
use stratann_storage::budget;
use stratann_storage::progress::Quiet;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let [index, queries, more @ ..] = &args[..] else {
        return println!(
            "give an index, a file of queries, how many rounds (usually 5), and the length of a beam"
        );
    };
    let number = |at: usize| more.get(at).map(|text: &String| text.parse().expect("a number"));
    let rounds = number(0).unwrap_or(5);
    let open = OpenOptions { cache_budget: 1 << 30, ..OpenOptions::default() };
    let mut index = Index::open(Path::new(index), open).expect("an index");
    let is_resident = index.make_resident(&Quiet).expect("blocks");
    let reader = Reader::open(Path::new(queries)).expect("queries");
    let shape = reader.shape();
    let mut rows = Vec::new();
    reader.read_rows(0, shape.rows as usize, &mut rows).expect("rows of queries");
    let usual = SearchOptions::default();
    let effort = number(1).map_or(usual.effort, |list| Effort::SearchList(list as u32, None));
    let options = SearchOptions { effort, ..usual };
    let alone = |row: &[u8]| index.search(row, &options, &Quiet).expect("a search").ids;
    let together = || index.search(&rows, &options, &Quiet).expect("a search").ids;
    let each: Vec<u64> = rows.chunks_exact(shape.row_bytes()).flat_map(alone).collect();
    let (equal, place) = (equal_share(&each, &together()), if is_resident { "memory" } else { "a cache" });
    println!("{} queries in {place}, {equal:.4} of results equal", shape.rows);
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
    let two = SearchOptions { threads: 2, ..options };
    println!(
        "16 on 2  {}",
        of_queries(shape.rows as usize * rounds, || (0..rounds).for_each(|_| {
            let calls = rows.chunks(16 * shape.row_bytes());
            calls.for_each(|rows| drop(index.search(rows, &two, &Quiet).expect("a search")));
        }))
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
