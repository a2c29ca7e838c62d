//! Rows of a process that is killed: what was acknowledged is there, once and whole.

mod common;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{Noise, Notes, job, job_command, notes, open, setting};
use stratann_node::rows::{Batch, CHUNK_BYTES, Key, RowKind, Rows};

/// Threads of a child that write at once, each into a collection of its own.
const WRITERS: u64 = 3;
/// Batches of a collection that are kept. Older ones are removed as newer ones are written.
const KEPT: u64 = 40;
/// Rows of a batch.
const ROWS: u64 = 5;
/// Most bytes of a value.
const VALUE_BYTES: u64 = 40_000;

fn value(collection: u64, batch: u64, row: u64) -> Vec<u8> {
    let seed = collection << 50 | batch << 8 | row;
    common::value(seed, 0, Noise(seed).below(VALUE_BYTES) as usize)
}

fn tail(collection: u64, batch: u64) -> Key {
    Key::first(collection, RowKind::Tail).number(batch)
}

fn manifest(collection: u64) -> Key {
    Key::first(collection, RowKind::Manifest)
}

/// A batch adds rows, overwrites the manifest, and removes an older batch.
fn batch(collection: u64, number: u64) -> Batch {
    let mut batch = Batch::new();
    for row in 0..ROWS {
        batch.put(tail(collection, number).number(row), &value(collection, number, row));
        if number > KEPT {
            batch.remove(tail(collection, number - KEPT).number(row));
        }
    }
    batch.put(manifest(collection), &number.to_le_bytes());
    batch
}

fn last(rows: &Rows, collection: u64) -> u64 {
    let bytes = rows.get(&manifest(collection)).unwrap();
    bytes.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
}

/// Checks every row of a collection. Returns the number of its last batch.
fn check(rows: &Rows, collection: u64) -> u64 {
    let last = last(rows, collection);
    let first = last.saturating_sub(KEPT - 1).max(1);
    let mut expected = (first..=last).flat_map(|batch| (0..ROWS).map(move |row| (batch, row)));
    let (mut from, end) = (tail(collection, 0), Key::end(collection, RowKind::Tail));
    loop {
        let chunk = rows.scan(&from, &end, CHUNK_BYTES).unwrap();
        for (key, bytes) in chunk.rows {
            let (batch, row) = expected.next().unwrap_or_else(|| panic!("one row too many: {key}"));
            assert_eq!(key, tail(collection, batch).number(row), "of collection {collection} up to {last}");
            assert!(bytes == value(collection, batch, row), "the value of {key}");
        }
        match chunk.next {
            Some(next) => from = next,
            None => break,
        }
    }
    assert_eq!(expected.next(), None, "rows of collection {collection} up to {last} are missing");
    last
}

#[test]
fn child() {
    let Some(job) = job() else { return };
    let folder = setting("ROWS_FOLDER");
    let rows = open(Path::new(&folder)).unwrap();
    if job == "fill" {
        fill(&rows);
        std::process::abort();
    }
    std::thread::scope(|scope| {
        for collection in 1..=WRITERS {
            let rows = &rows;
            let mut notes = Notes::new(Path::new(&setting("ROWS_NOTES")));
            scope.spawn(move || {
                for number in last(rows, collection) + 1.. {
                    rows.write(batch(collection, number)).durable().unwrap();
                    notes.write(&format!("{collection} {number}"));
                }
            });
        }
    });
}

/// Kills a child so often, and checks what it leaves each time.
fn kill_again_and_again(kills: u64) {
    let place = tempfile::tempdir().unwrap();
    let (folder, noted) = (place.path().join("data"), place.path().join("notes"));
    let mut noise = Noise(kills);
    let (mut opened, mut files) = (Vec::new(), 0);
    for kill in 0..kills {
        let before = notes(&noted).len();
        let mut command = job_command("write", &folder);
        let mut running = command.env("ROWS_NOTES", &noted).spawn().unwrap();
        let wanted = before + noise.below(120) as usize;
        let begin = Instant::now();
        while notes(&noted).len() < wanted {
            assert!(running.try_wait().unwrap().is_none(), "the child ended");
            assert!(begin.elapsed() < Duration::from_secs(60), "the child has come to a halt");
            std::thread::sleep(Duration::from_micros(300));
        }
        std::thread::sleep(Duration::from_micros(noise.below(3000)));
        running.kill().unwrap();
        running.wait().unwrap();
        let begin = Instant::now();
        let rows = open(&folder).unwrap_or_else(|e| panic!("after kill {kill}: {e}"));
        opened.push(begin.elapsed());
        files = files.max(common::files(&folder).len());
        let mut acknowledged = [0; WRITERS as usize + 1];
        for words in notes(&noted) {
            let (collection, number): (usize, u64) = (words[0].parse().unwrap(), words[1].parse().unwrap());
            acknowledged[collection] = number.max(acknowledged[collection]);
        }
        for collection in 1..=WRITERS {
            let (last, acknowledged) = (check(&rows, collection), acknowledged[collection as usize]);
            let may_be = acknowledged..=acknowledged + kill + 1;
            assert!(may_be.contains(&last), "kill {kill}: {last} there, {acknowledged} acknowledged");
        }
    }
    opened.sort();
    let batches = notes(&noted).len();
    eprintln!(
        "{kills} kills, {batches} batches, at most {files} files; opened in {:?} to {:?}",
        opened[0],
        opened.last()
    );
    assert!(files > 8, "no table was ever written to a file");
}

#[test]
fn acknowledged_batches_survive_kills() {
    kill_again_and_again(50);
}

#[test]
#[ignore = "some minutes; make test-rows"]
fn acknowledged_batches_survive_a_thousand_kills() {
    kill_again_and_again(1000);
}

/// Batches of a full tail, and rows of each.
const FULL: (u64, u64) = (512, 1000);

/// Sixteen collections with a full delta each: 16 MiB of rows of 512 bytes.
fn fill(rows: &Rows) {
    for number in 0..FULL.0 {
        let mut batch = Batch::new();
        for row in 0..FULL.1 {
            batch.put(tail(1 + number % 16, number).number(row), &common::value(number, row, 512));
        }
        rows.write(batch).durable().unwrap();
    }
}

#[test]
fn a_full_tail_is_opened_after_a_kill() {
    let place = tempfile::tempdir().unwrap();
    let left = place.path().join("data");
    let (status, _) = common::run(job_command("fill", &left));
    assert_eq!(status.signal(), Some(libc::SIGABRT));
    let begin = Instant::now();
    let rows = open(&left).unwrap();
    let opened = begin.elapsed();
    let begin = Instant::now();
    let mut found = 0;
    let (mut from, end) = (Key::first_of_collection(0), Key::end_of_collection(u64::MAX));
    while let Ok(chunk) = rows.scan(&from, &end, CHUNK_BYTES) {
        found += chunk.rows.iter().filter(|(key, _)| key.kind() == Some(RowKind::Tail)).count();
        let Some(next) = chunk.next else { break };
        from = next;
    }
    assert_eq!(found as u64, FULL.0 * FULL.1);
    eprintln!("a tail of {found} rows: opened in {opened:?}, scanned in {:?}", begin.elapsed());
    let folder_bytes: u64 = common::files(&left).iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    eprintln!("{} MiB of files", folder_bytes >> 20);
}

#[test]
fn the_log_of_openings_that_write_little_does_not_grow() {
    let place = tempfile::tempdir().unwrap();
    let mut rows = open(place.path()).unwrap();
    let log_bytes = || {
        let files = common::files(&place.path().join("db")).into_iter();
        let logs = files.filter(|file| file.extension().is_some_and(|ending| ending == "jnl"));
        logs.map(|file| fs::metadata(file).unwrap().len()).sum::<u64>()
    };
    for number in 0..20 {
        let mut batch = Batch::new();
        batch.put(tail(1, 7), &common::value(number, 0, 60_000));
        batch.put(tail(1, 1000 + number), b"kept");
        rows.write(batch).durable().unwrap();
        drop(rows);
        rows = open(place.path()).unwrap();
        assert!(log_bytes() < 100_000, "{number}: {}", log_bytes());
        assert_eq!(rows.get(&tail(1, 7)).unwrap().unwrap(), common::value(number, 0, 60_000));
    }
    assert!((0..20).all(|number| rows.get(&tail(1, 1000 + number)).unwrap().is_some()));
}
