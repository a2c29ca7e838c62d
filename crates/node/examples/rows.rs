//! Durable batches on the storage engine, beside one append and `fdatasync` on the same disk: `make bench-rows`.
#![allow(clippy::print_stdout, reason = "a program that reports")]

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use stratann_node::rows::{Batch, CHUNK_BYTES, Key, Options, RowKind, Rows};
use stratann_storage::{Error, Quiet, Result};

const DIM: usize = 128;
const BATCH_ROWS: u64 = 100;
/// Durable writes of one row, each after the one before.
const LONE: u64 = 2000;

fn row(seed: u64) -> Vec<u8> {
    let mut bits = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        (bits >> 40) as f32 / 16_777_216.0
    };
    (0..DIM).flat_map(|_| next().to_le_bytes()).collect()
}

fn key(number: u64) -> Key {
    Key::first(1, RowKind::Tail).number(number)
}

fn write(rows: &Rows, numbers: impl Iterator<Item = u64>) -> Result<()> {
    let mut batch = Batch::new();
    numbers.for_each(|number| batch.put(key(number), &row(number)));
    rows.write(batch).durable()?;
    Ok(())
}

/// The median, and the 99th percentile.
fn percentiles(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

fn rate(count: u64, begin: Instant) -> u64 {
    (count as f64 / begin.elapsed().as_secs_f64()) as u64
}

/// Appends of one row to a file, each with `fdatasync`.
fn appends(folder: &Path) -> std::io::Result<Vec<Duration>> {
    let path = folder.join("appended");
    let mut file = File::create(&path)?;
    let times = (0..LONE).map(|number| {
        let bytes = row(number);
        let begin = Instant::now();
        file.write_all(&bytes).and_then(|()| file.sync_data())?;
        Ok(begin.elapsed())
    });
    let times = times.collect();
    fs::remove_file(&path)?;
    times
}

/// Lone durable rows and appends in turns, so that both meet the same disk.
fn lone(rows: &Rows, folder: &Path, first: u64) -> Result<()> {
    let (mut lone, mut appended) = (Vec::new(), Vec::new());
    for turn in 0..3 {
        for number in 0..LONE {
            let mut batch = Batch::new();
            batch.put(key(first + turn * LONE + number), &row(number));
            let begin = Instant::now();
            rows.write(batch).durable()?;
            lone.push(begin.elapsed());
        }
        appended.extend(appends(folder).map_err(|e| Error::io("appending in", folder, &e))?);
    }
    for (what, times) in [("one durable row", lone), ("one append and fdatasync", appended)] {
        let (p50, p99) = percentiles(times);
        println!("{what}: p50 {p50:?}, p99 {p99:?}");
    }
    Ok(())
}

/// Batches by several callers at once.
fn together(rows: &Rows, count: u64) {
    const CALLERS: u64 = 8;
    let begin = Instant::now();
    let batches = count / BATCH_ROWS / CALLERS / 4;
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            scope.spawn(move || {
                (0..batches).for_each(|number| {
                    let first = ((caller + 2) * batches + number) * BATCH_ROWS + 2 * count;
                    write(rows, first..first + BATCH_ROWS).expect("a durable batch");
                });
            });
        }
    });
    println!("new rows by {CALLERS} callers: {} rows/s", rate(batches * CALLERS * BATCH_ROWS, begin));
}

fn scan(rows: &Rows) -> Result<()> {
    let begin = Instant::now();
    let (mut from, mut found) = (key(0), 0);
    loop {
        let chunk = rows.scan(&from, &key(u64::MAX), CHUNK_BYTES)?;
        found += chunk.rows.len() as u64;
        let Some(next) = chunk.next else { break };
        from = next;
    }
    println!("scan: {} rows/s", rate(found, begin));
    Ok(())
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().ok_or("give a folder, which is made")?);
    let count: u64 = arguments.next().map_or(Ok(400_000), |text| text.parse())?;
    let memory_mib: u64 = arguments.next().map_or(Ok(128), |text| text.parse())?;
    let options = Options { memory_bytes: memory_mib << 20, ..Options::default() };
    let rows = Rows::open(&folder.join("data"), &options, &Quiet)?;

    let begin = Instant::now();
    for first in (0..count).step_by(BATCH_ROWS as usize) {
        write(&rows, first..first + BATCH_ROWS)?;
    }
    println!("new rows, durable batches of {BATCH_ROWS}: {} rows/s", rate(count, begin));
    let begin = Instant::now();
    let mut seed = 1_u64;
    for _ in 0..count / BATCH_ROWS {
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % count
        };
        write(&rows, (0..BATCH_ROWS).map(|_| random()))?;
    }
    println!("overwrites at random, durable batches of {BATCH_ROWS}: {} rows/s", rate(count, begin));
    lone(&rows, &folder, count)?;
    together(&rows, count);
    scan(&rows)?;
    let begin = Instant::now();
    (0..20_000).try_for_each(|number| rows.get(&key(number * 7919 % count)).map(|_| ()))?;
    println!("get at random: {:?}", begin.elapsed() / 20_000);
    let begin = Instant::now();
    let removed = rows.remove_range(&key(0), &key(u64::MAX))?;
    println!("removed {} rows: {} rows/s", removed.rows, rate(removed.rows, begin));
    println!("{:?}", rows.counters());
    let status = fs::read_to_string("/proc/self/status")?;
    println!("{}", status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default());
    drop(rows);
    let begin = Instant::now();
    drop(Rows::open(&folder.join("data"), &options, &Quiet)?);
    println!("opened again in {:?}", begin.elapsed());
    fs::remove_dir_all(&folder)?;
    Ok(())
}
