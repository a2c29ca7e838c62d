//! Searches of points in memory beside a segment, with and without their codes.
//!
//! `delta FOLDER BASE.u8bin QUERIES.u8bin ROWS`: the last ROWS vectors of the file stay in memory.
#![allow(clippy::print_stdout, reason = "a program that reports")]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use stratann_kernel::{DType, Metric};
use stratann_node::collections::{Collection, Node, Options, SearchOptions, SegmentOptions, Spec};
use stratann_node::rows::ExternalId;
use stratann_storage::Quiet;

const K: usize = 10;

/// Dimensions and vectors of a file.
fn read(path: &str) -> std::io::Result<(usize, Vec<u8>)> {
    let bytes = std::fs::read(path)?;
    let dim = bytes.get(4..8).and_then(|dim| dim.try_into().ok()).map_or(0, u32::from_le_bytes);
    Ok((dim as usize, bytes.get(8..).unwrap_or_default().to_vec()))
}

/// Writes vectors in batches of `rows`. Returns how many a second.
fn write(
    points: &Collection,
    from: u64,
    vectors: &[u8],
    rows: usize,
) -> stratann_node::collections::Result<f64> {
    let size = points.specs().row_bytes();
    let begin = Instant::now();
    for (batch, at) in vectors.chunks(rows * size).zip((from..).step_by(rows)) {
        let ids: Vec<_> = (at..at + (batch.len() / size) as u64).map(ExternalId::Number).collect();
        points.upsert(&ids, batch)?;
    }
    Ok((vectors.len() / size) as f64 / begin.elapsed().as_secs_f64())
}

/// Searches by each query, and reports what that took.
fn search(
    points: &Collection,
    queries: &[u8],
    options: &SearchOptions,
) -> stratann_node::collections::Result<()> {
    let size = points.specs().row_bytes();
    let all = SearchOptions { recall: 1.0, scan_all_in_memory: true, ..options.clone() };
    let (mut time, mut hits, mut count) = (Duration::ZERO, 0, 0);
    let mut cost = (0, 0, 0);
    for query in queries.chunks_exact(size) {
        let truth = points.search_with(query, &all)?;
        let last = truth.hits[0].last().map_or(f32::INFINITY, |last| last.distance);
        let mut shortest = Duration::MAX;
        for _ in 0..5 {
            let begin = Instant::now();
            points.search_with(query, options)?;
            shortest = shortest.min(begin.elapsed());
        }
        time += shortest;
        let found = points.search_with(query, options)?;
        hits += found.hits[0].iter().filter(|hit| hit.distance <= last).count();
        let delta = found.delta;
        cost = (cost.0 + delta.lists, cost.1 + delta.codes, cost.2 + delta.distances);
        count += 1;
    }
    let each = |sum: u64| sum as f64 / f64::from(count);
    println!(
        "recall {} {}: {:.4} in {:?}; lists {:.1}, codes {:.0}, distances {:.0}",
        options.recall,
        if options.scan_all_in_memory { "by all distances" } else { "by codes" },
        hits as f64 / (f64::from(count) * K as f64),
        time / count,
        each(cost.0),
        each(cost.1),
        each(cost.2)
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, base, queries, rows] = &arguments[..] else {
        return Err("give a folder, which is made, two files of u8bin, and a number of rows".into());
    };
    let ((dim, base), (_, queries), rows) = (read(base)?, read(queries)?, rows.parse::<usize>()?);
    let spec = Spec { dim, metric: Metric::L2, dtype: DType::F32, kind: None };
    let wide = |bytes: &[u8]| -> Vec<u8> { bytes.iter().flat_map(|x| f32::from(*x).to_le_bytes()).collect() };
    let (base, queries) = (wide(&base), wide(&queries));
    let queries = &queries[..(300 * spec.row_bytes()).min(queries.len())];
    let (first, last) = base.split_at(base.len().saturating_sub(rows * spec.row_bytes()));
    let segments = SegmentOptions {
        checkpoint_rows: 1 << 20,
        checkpoint_bytes: 1 << 40,
        first_rows: 1 << 20,
        in_background: false,
        ..SegmentOptions::default()
    };
    let folder = PathBuf::from(folder);
    let node =
        Node::open(&folder, &Options { segments, deltas_bytes: 1 << 30, ..Options::default() }, &Quiet)?;
    let points = node.create_collection("points", spec)?;
    write(&points, 0, first, 4000)?;
    points.compact(&Quiet)?;
    let from = (first.len() / spec.row_bytes()) as u64;
    println!("{:.0} durable rows a second in batches of 100", write(&points, from, last, 100)?);
    println!("{} KiB reserved for {rows} rows in memory", node.deltas_bytes() >> 10);
    for recall in [0.9, 0.95, 1.0] {
        for scan_all_in_memory in [true, false] {
            let options = SearchOptions { k: K, recall, scan_all_in_memory, ..SearchOptions::default() };
            search(&points, queries, &options)?;
        }
    }
    drop((points, node));
    let begin = Instant::now();
    let node =
        Node::open(&folder, &Options { segments, deltas_bytes: 1 << 30, ..Options::default() }, &Quiet)?;
    node.collection("points")?.count()?;
    println!("opened in {:?}", begin.elapsed());
    drop(node);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
