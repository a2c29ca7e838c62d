//! Durable changes of collections beside the same vectors in bare rows, in turns on one disk: `make bench-rows`.
#![allow(clippy::print_stdout, reason = "a program that reports")]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use stratann_kernel::{DType, Metric};
use stratann_node::collections::{Collection, Node, Options, Result, Spec};
use stratann_node::rows::{self, Batch, ExternalId, Key, RowKind, Rows};
use stratann_storage::Quiet;

const SPEC: Spec = Spec { dim: 128, metric: Metric::L2, dtype: DType::F32, kind: None };
const BATCH_ROWS: u64 = 100;
/// Points of a collection.
const POINTS: u64 = 16_000;
/// Collections that are filled.
const COLLECTIONS: u64 = 4;
/// Batches of one side before it is the other's turn.
const TURN: u64 = 20;

/// Numbers that look random.
struct Noise(u64);

impl Noise {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn vectors(&mut self, count: u64) -> Vec<u8> {
        let mut component = || (self.bits() as f32 / 2_147_483_648.0).to_le_bytes();
        (0..count * SPEC.dim as u64).flat_map(|_| component()).collect()
    }
}

/// Vectors in rows, under numbers.
fn write_rows(rows: &Rows, numbers: &[u64], vectors: &[u8]) -> Result<()> {
    let mut batch = Batch::new();
    for (number, vector) in numbers.iter().zip(vectors.chunks(SPEC.row_bytes())) {
        batch.put(Key::first(1, RowKind::Tail).number(*number), vector);
    }
    rows.write(batch).durable()?;
    Ok(())
}

/// Vectors in collections, each of which has its share of the numbers.
fn write_points(points: &[Collection], numbers: &[u64], vectors: &[u8]) -> Result<()> {
    let ids: Vec<_> = numbers.iter().map(|number| ExternalId::Number(*number)).collect();
    let of = numbers.first().map_or(0, |number| number / POINTS) as usize;
    points[of].upsert(&ids, vectors)?;
    Ok(())
}

/// Writes batches by turns, and reports the rates of both sides.
fn compare(
    what: &str,
    rows: &Rows,
    points: &[Collection],
    batches: u64,
    mut numbers: impl FnMut(u64) -> Vec<u64>,
) -> Result<()> {
    let (mut noise, mut times) = (Noise(7), [Duration::ZERO; 2]);
    for turn in 0..batches / TURN {
        let prepared = (turn * TURN..(turn + 1) * TURN).map(|at| (numbers(at), noise.vectors(BATCH_ROWS)));
        let prepared: Vec<_> = prepared.collect();
        let begin = Instant::now();
        prepared.iter().try_for_each(|(numbers, vectors)| write_rows(rows, numbers, vectors))?;
        times[0] += begin.elapsed();
        let begin = Instant::now();
        prepared.iter().try_for_each(|(numbers, vectors)| write_points(points, numbers, vectors))?;
        times[1] += begin.elapsed();
    }
    let rate = |time: Duration| (batches * BATCH_ROWS) as f64 / time.as_secs_f64();
    let [bare, whole] = times.map(rate);
    println!("{what}: {whole:.0} points/s, {bare:.0} bare rows/s, ratio {:.2}", whole / bare);
    Ok(())
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("give a folder, which is made")?);
    let rows = Rows::open(&folder.join("bare"), &rows::Options::default(), &Quiet)?;
    let node = Node::open(&folder.join("points"), &Options::default(), &Quiet)?;
    let made: Result<Vec<_>> =
        (0..COLLECTIONS).map(|of| node.create_collection(&format!("points {of}"), SPEC)).collect();
    let points = made?;
    let new = |batch: u64| (batch * BATCH_ROWS..(batch + 1) * BATCH_ROWS).collect();
    compare("new ids", &rows, &points, COLLECTIONS * POINTS / BATCH_ROWS, new)?;
    let mut noise = Noise(1);
    let random = |_| (0..BATCH_ROWS).map(|_| noise.bits() % POINTS).collect();
    compare("overwrites at random", &rows, &points, 400, random)?;

    let queries = Noise(3).vectors(200);
    let begin = Instant::now();
    points[0].search(&queries, 10)?;
    println!("search of {POINTS} points, k = 10: {:?} each", begin.elapsed() / 200);
    drop((node, points));
    let node = Node::open(&folder.join("points"), &Options::default(), &Quiet)?;
    let begin = Instant::now();
    let count = node.collection("points 1")?.count()?;
    println!("opened a collection of {count} points in {:?}", begin.elapsed());
    println!("{} KiB reserved for its points", node.deltas_bytes() >> 10);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
