//! What changes of payloads cost beside upserts, and payloads of results: `make bench-payloads`.
//!
//! payloads FOLDER VECTORS QUERIES [rows=N]
//!
//! It loads vectors with payloads, changes the payloads of a tenth by a filter and folds them in, writes the same
//! points as upserts and merges them, and searches with and without payloads and filters. Costs are processor time of
//! the process.
#![allow(clippy::print_stdout, reason = "a program that reports")]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use stratann_engine::dataset::Reader;
use stratann_kernel::Metric;
use stratann_node::collections::{Chosen, Collection, Kind, Node, Options, Result, SearchOptions, Spec};
use stratann_node::rows::ExternalId;
use stratann_payload::{Filter, IndexKind, Path as Field, Schema};
use stratann_storage::Quiet;
use stratann_storage::budget::{cpu_us, thread_cpu_ns};

const K: usize = 10;
/// Rows of a batch.
const BATCH: u64 = 1000;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, base, queries] = [0, 1, 2].map(|at| Path::new(&arguments[at]));
    let (base, queries) = (Reader::open(base)?, Reader::open(queries)?);
    let given = arguments.iter().find_map(|own| own.strip_prefix("rows="));
    let rows = given.map_or(base.shape().rows, |own| own.parse().expect("a number")).min(base.shape().rows);
    let spec = Spec { dim: base.shape().dim, metric: Metric::L2, dtype: base.shape().dtype, kind: None };
    let node = Node::open(folder, &Options::of_budget(None), &Quiet)?;
    let points = node.create_collection("points", spec)?;
    let mut schema = Schema::new();
    for (field, kind) in [("n", IndexKind::Integer), ("brand", IndexKind::Keyword)] {
        schema.add(Field::parse(field)?, kind)?;
    }
    points.set_schema(&schema)?;
    for first in (0..rows).step_by(BATCH as usize) {
        write(&points, &base, first..(first + BATCH).min(rows))?;
    }
    points.compact(&Quiet)?;
    let built = points.facts()?.indexes_built;
    let tenth = Arc::new(Filter::from_where(&format!("n < {}", rows / 10))?.compile());
    let set = measured("set_payload of a tenth", || {
        while let Err(e) = points.set_payload(Chosen::Matching(&tenth), br#"{"seen":true}"#, None) {
            waits(e)?;
        }
        Ok(())
    })?;
    let fold = measured("fold", || points.compact(&Quiet))?;
    let facts = points.facts()?;
    println!("indexes built {}, payloads folded {}", facts.indexes_built - built, facts.payloads_folded);
    search(&points, &queries)?;
    let upsert = measured("upsert of the same points", || {
        (0..rows / 10)
            .step_by(BATCH as usize)
            .try_for_each(|first| write(&points, &base, first..(first + BATCH).min(rows / 10)))
    })?;
    let merge = measured("merge", || points.compact(&Quiet))?;
    println!("payloads cost {:.4} of upserts", (set + fold) / (upsert + merge));
    Ok(())
}

fn waits(e: stratann_node::collections::Error) -> Result<()> {
    if e.kind != Kind::Busy {
        return Err(e);
    }
    std::thread::sleep(std::time::Duration::from_millis(20));
    Ok(())
}

/// Writes points with payloads of some hundred bytes.
fn write(points: &Collection, base: &Reader, ids: std::ops::Range<u64>) -> Result<()> {
    let mut vectors = Vec::new();
    base.read_rows(ids.start, (ids.end - ids.start) as usize, &mut vectors)?;
    let payload = |id: u64| {
        let words = ["red", "chair", "with", "four", "legs", "of", "oak"];
        let text: Vec<&str> = (0..12).map(|at| words[(id.wrapping_mul(at + 3) >> at) as usize % 7]).collect();
        format!(r#"{{"n":{id},"brand":"b{}","title":"{}"}}"#, id % 97, text.join(" "))
    };
    let json: Vec<String> = ids.clone().map(payload).collect();
    let json: Vec<_> = json.iter().map(|own| Some(own.as_bytes())).collect();
    let ids: Vec<_> = ids.map(ExternalId::Number).collect();
    while let Err(e) = points.upsert_points(&ids, &vectors, &json) {
        waits(e)?;
    }
    Ok(())
}

/// Seconds of processor time that something takes.
fn measured(what: &str, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let (begin, cpu) = (Instant::now(), cpu_us());
    work()?;
    let cpu = (cpu_us() - cpu) as f64 / 1e6;
    println!("{what}: {cpu:.2} s of processor time, {:.2} s", begin.elapsed().as_secs_f64());
    Ok(cpu)
}

/// Processor time of a search with the payloads of its results and without, and of one with filters.
fn search(points: &Collection, queries: &Reader) -> Result<()> {
    let mut all = Vec::new();
    queries.read_rows(0, 1000.min(queries.shape().rows) as usize, &mut all)?;
    let usual = SearchOptions { k: K, ..SearchOptions::default() };
    let with_payload = SearchOptions { with_payload: true, ..usual.clone() };
    // The first ones find tables cold.
    for options in [&usual, &with_payload] {
        median_us(points, &all, options)?;
    }
    let [without, with] = [&usual, &with_payload].map(|options| median_us(points, &all, options));
    println!("a search takes {:.1} us, with payloads of {K} results {:.1}", without?, with?);
    for part in [2, 10, 100, 1000] {
        let filter = Filter::from_where(&format!("n < {}", points.count()? / part))?.compile();
        let options = SearchOptions { filter: Some(Arc::new(filter)), ..usual.clone() };
        median_us(points, &all, &options)?;
        println!("with a filter of one in {part} {:.1} us", median_us(points, &all, &options)?);
    }
    Ok(())
}

/// The median of the processor time of searches for one query each.
fn median_us(points: &Collection, all: &[u8], options: &SearchOptions) -> Result<f64> {
    let mut times = Vec::new();
    for query in all.chunks_exact(points.specs().row_bytes()) {
        let cpu = thread_cpu_ns();
        points.search_with(query, options)?;
        times.push(thread_cpu_ns() - cpu);
    }
    times.sort_unstable();
    Ok(times[times.len() / 2] as f64 / 1000.0)
}
