//! Several processes and threads at one data folder, and the memory of one.

mod common;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Noise, Notes, batch, is_there, job, job_command, key, notes, open, run, setting};
use stratann_node::rows::{Batch, CHUNK_BYTES, Key, MEMORY_BYTES_MIN, Options, Outcome, RowKind, Rows};
use stratann_storage::{Progress, Quiet, Result};

const MIB: u64 = 1 << 20;
/// The program, its threads and what the test holds itself.
const PROGRAM_BYTES: u64 = 8 * MIB;

#[test]
fn child() {
    let Some(job) = job() else { return };
    let folder = PathBuf::from(setting("ROWS_FOLDER"));
    let mut notes = Notes::new(Path::new(&setting("ROWS_NOTES")));
    match job.as_str() {
        "open" => notes.write(&open(&folder).map(|_| ()).unwrap_err().message),
        "fork" => fork(&folder),
        "load" => load(&folder, &mut notes),
        _ => panic!("{job}"),
    }
}

fn command(job: &str, place: &Path) -> std::process::Command {
    let mut command = job_command(job, &place.join("data"));
    command.env("ROWS_NOTES", place.join("notes"));
    command
}

#[test]
fn a_second_process_is_told_which_one_has_the_folder() {
    let place = tempfile::tempdir().unwrap();
    let rows = open(&place.path().join("data")).unwrap();
    let (status, text) = run(command("open", place.path()));
    assert!(status.success(), "{text}");
    let said = notes(&place.path().join("notes"))[0].join(" ");
    assert!(said.contains(&format!("process {}", std::process::id())) && said.contains("stop it"), "{said}");
    // Nor does this process have it twice.
    assert!(open(&place.path().join("data")).is_err());
    drop(rows);
    open(&place.path().join("data")).unwrap();
}

/// Exit status of a forked child to which everything was refused.
const REFUSED: i32 = 7;

/// Forks while rows are open. The child's handle is an error, and the parent's goes on.
fn fork(folder: &Path) {
    let rows = open(folder).unwrap();
    rows.write(batch(0, 100)).durable().unwrap();
    // SAFETY: the child only uses what it has, and ends by `_exit`.
    let process = unsafe { libc::fork() };
    if process == 0 {
        let refused = catch_unwind(AssertUnwindSafe(|| {
            let refused = rows.get(&key(0, 0)).is_err_and(|e| e.message.contains("which it forked"))
                && matches!(rows.write(batch(1, 100)), Outcome::NotWritten(_))
                && rows.scan(&key(0, 0), &key(9, 0), 1).is_err()
                && rows.reopen(&Quiet).is_err();
            drop(rows);
            refused
        }));
        // SAFETY: ends the child, which must not run other tests.
        unsafe { libc::_exit(if refused.is_ok_and(|refused| refused) { REFUSED } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: the pointer is to a live number.
    assert_eq!(unsafe { libc::waitpid(process, &raw mut status, 0) }, process);
    assert_eq!(libc::WEXITSTATUS(status), REFUSED, "the child's handle worked, or it panicked");
    rows.write(batch(1, 100)).durable().unwrap();
    assert!(is_there(&rows, 0, 100).unwrap() && is_there(&rows, 1, 100).unwrap());
    drop(rows);
    assert!(is_there(&open(folder).unwrap(), 1, 100).unwrap());
}

#[test]
fn a_forked_child_has_no_rows() {
    let place = tempfile::tempdir().unwrap();
    let (status, text) = run(command("fork", place.path()));
    assert!(status.success(), "{text}");
}

#[test]
fn batches_that_wait_at_once_share_a_sync() {
    const THREADS: u64 = 16;
    const EACH: u64 = 40;
    let place = tempfile::tempdir().unwrap();
    let rows = open(&place.path().join("data")).unwrap();
    rows.write(batch(0, 100)).durable().unwrap();
    assert_eq!((rows.counters().batches, rows.counters().groups, rows.counters().syncs), (1, 1, 1));
    std::thread::scope(|scope| {
        for thread in 1..=THREADS {
            let rows = &rows;
            let write = move |number| rows.write(batch(thread * 1000 + number, 100)).durable().unwrap();
            scope.spawn(move || (0..EACH).map(write).is_sorted_by(|a, b| a < b).then_some(()).unwrap());
        }
    });
    let counters = rows.counters();
    assert_eq!(counters.batches, 1 + THREADS * EACH);
    assert!(counters.groups < counters.batches / 2, "{counters:?}");
    for number in (1..=THREADS).flat_map(|thread| (0..EACH).map(move |number| thread * 1000 + number)) {
        assert!(is_there(&rows, number, 100).unwrap());
    }
}

#[test]
fn a_reader_sees_a_batch_whole() {
    let place = tempfile::tempdir().unwrap();
    let rows = open(&place.path().join("data")).unwrap();
    let ends = AtomicBool::new(false);
    let counter = |row: u64| Key::first(1, RowKind::Overlay).number(row);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0_u64..300 {
                let mut batch = Batch::new();
                (0..50).for_each(|row| batch.put(counter(row), &number.to_le_bytes()));
                rows.write(batch).durable().unwrap();
            }
            ends.store(true, Ordering::Release);
        });
        while !ends.load(Ordering::Acquire) {
            let chunk = rows.scan(&counter(0), &counter(50), CHUNK_BYTES).unwrap();
            assert!(chunk.rows.is_empty() || chunk.rows.len() == 50);
            assert!(chunk.rows.windows(2).all(|two| two[0].1 == two[1].1), "half a batch");
        }
    });
}

#[test]
fn ranges_are_scanned_and_removed_in_pieces() {
    let place = tempfile::tempdir().unwrap();
    let rows = open(&place.path().join("data")).unwrap();
    let tail = |collection, row| Key::first(collection, RowKind::Tail).number(row);
    for collection in [6, 7, 8] {
        for first in (0..4000).step_by(1000) {
            let mut batch = Batch::new();
            (first..first + 1000).for_each(|row| batch.put(tail(collection, row), &row.to_le_bytes()));
            rows.write(batch).durable().unwrap();
        }
    }
    let count = |collection: u64| {
        let (mut from, end, mut found) =
            (Key::first_of_collection(collection), Key::end_of_collection(collection), 0);
        loop {
            let chunk = rows.scan(&from, &end, 1000).unwrap();
            assert!(chunk.rows.len() < 50, "a chunk is larger than was asked");
            for (key, value) in chunk.rows {
                assert_eq!(key.collection(), collection);
                assert_eq!(key.rest(), u64::from_le_bytes(value.try_into().unwrap()).to_be_bytes());
                found += 1;
            }
            let Some(next) = chunk.next else { return found };
            from = next;
        }
    };
    assert_eq!((count(6), count(7), count(8)), (4000, 4000, 4000));
    let removed = rows.remove_range(&tail(7, 0), &tail(7, 3000)).unwrap();
    assert_eq!(removed.rows, 3000);
    assert_eq!((count(6), count(7), count(8)), (4000, 1000, 4000));
    rows.remove_range(&Key::first_of_collection(7), &Key::end_of_collection(7)).unwrap();
    assert_eq!((count(6), count(7), count(8)), (4000, 0, 4000));
    assert_eq!(rows.counters().reclaimed_bytes, 4000 * (17 + 16));
    // The last change of a key counts, within a batch too.
    let mut batch = Batch::new();
    batch.put(tail(7, 1), b"a");
    batch.remove(tail(7, 1));
    batch.remove(tail(7, 2));
    batch.put(tail(7, 2), b"b");
    rows.write(batch).durable().unwrap();
    assert_eq!(rows.get(&tail(7, 1)).unwrap(), None);
    assert_eq!(rows.get(&tail(7, 2)).unwrap().as_deref(), Some(&b"b"[..]));
}

#[test]
fn what_cannot_work_is_refused_before() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("data");
    let small = Options { memory_bytes: MEMORY_BYTES_MIN - 1, ..common::options() };
    let error = Rows::open(&folder, &small, &Quiet).map(|_| ()).unwrap_err();
    assert!(error.message.contains("32.0 MiB or more"), "{error}");
    let rows = open(&folder).unwrap();
    let mut large = Batch::new();
    large.put(key(0, 0), &vec![1; 9 << 20]);
    assert!(matches!(rows.write(large), Outcome::NotWritten(e) if e.message.contains("at most 8388608")));
    assert!(rows.get(&key(0, 0)).unwrap().is_none());
    assert_eq!(rows.reopen(&Quiet).unwrap().last_group, 0, "they do not stand still");
}

/// Stages that were reported.
#[derive(Default)]
struct Stages(Mutex<Vec<String>>);

impl Progress for Stages {
    fn stage(&self, name: &str, _: u64, _: &str) {
        self.0.lock().unwrap().push(name.to_string());
    }
    fn advance(&self, _: u64) {}
    fn note(&self, line: &str) {
        self.0.lock().unwrap().push(line.to_string());
    }
    fn interrupted(&self) -> bool {
        false
    }
}

#[test]
fn lost_groups_are_noticed_when_the_folder_is_opened() {
    let place = tempfile::tempdir().unwrap();
    let (folder, older) = (place.path().join("data"), place.path().join("older"));
    let open_and_write = |number| open(&folder).unwrap().write(batch(number, 100)).durable().unwrap();
    open_and_write(0);
    common::copy(&folder.join("db"), &older);
    open_and_write(1);
    fs::remove_dir_all(folder.join("db")).unwrap();
    common::copy(&older, &folder.join("db"));
    let error = open(&folder).map(|_| ()).unwrap_err();
    assert!(error.message.contains("group 1") && error.message.contains("group 2"), "{error}");
    fs::remove_dir_all(folder.join("db")).unwrap();
    assert!(open(&folder).is_err(), "an engine that is gone is not made again in silence");
    fs::remove_dir_all(folder.join("db")).unwrap();
    common::copy(&older, &folder.join("db"));
    // The remedy that the message names.
    fs::remove_file(folder.join("tip")).unwrap();
    let stages = Stages::default();
    let rows = Rows::open(&folder, &common::options(), &stages).unwrap();
    assert!(is_there(&rows, 0, 100).unwrap() && !is_there(&rows, 1, 100).unwrap());
    let said = stages.0.into_inner().unwrap();
    assert!(said.iter().any(|line| line == "opening the storage engine"), "{said:?}");
    assert!(said.iter().any(|line| line.contains("no file says which batches")), "{said:?}");
}

/// Writes 300 MiB with overwrites, scans and reads, by four threads, and notes the largest resident memory.
fn load(folder: &Path, notes: &mut Notes) {
    let memory_bytes = setting("ROWS_MEMORY").parse().unwrap();
    let row_bytes: usize = setting("ROWS_BYTES").parse().unwrap();
    let rows = Rows::open(folder, &Options { memory_bytes, ..common::options() }, &Quiet).unwrap();
    assert_eq!(rows.memory_bytes(), memory_bytes);
    let total: u64 = setting("ROWS_TOTAL").parse().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let rows = &rows;
            scope.spawn(move || write_load(rows, thread, total / 4, row_bytes).unwrap());
        }
    });
    notes.write(&format!("peak {}", peak_bytes()));
    notes.write(&format!("written {}", rows.counters().written_bytes));
}

fn write_load(rows: &Rows, thread: u64, bytes: u64, row_bytes: usize) -> Result<()> {
    let mut noise = Noise(thread);
    let mut written = 0;
    let value = common::value(thread, 0, row_bytes);
    while written < bytes {
        let mut batch = Batch::new();
        while batch.bytes() < MIB / 4 {
            batch.put(Key::first(thread, RowKind::Tail).number(noise.below(4_000_000)), &value);
        }
        written += batch.bytes();
        rows.write(batch).durable()?;
        let from = Key::first(thread, RowKind::Tail).number(noise.below(4_000_000));
        rows.scan(&from, &Key::end(thread, RowKind::Tail), CHUNK_BYTES / 4)?;
        rows.get(&from)?;
    }
    Ok(())
}

fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn memory_stays_within_the_budget() {
    for (memory_mib, row_bytes, total_mib) in
        [(32, 600, 300), (64, 600, 100), (32, 40, 100), (32, 200_000, 100)]
    {
        let place = tempfile::tempdir().unwrap();
        let mut command = command("load", place.path());
        command.env("ROWS_MEMORY", (memory_mib * MIB).to_string()).env("ROWS_BYTES", row_bytes.to_string());
        command.env("ROWS_TOTAL", (total_mib * MIB).to_string());
        let (status, text) = run(command);
        assert!(status.success(), "{text}");
        let noted = notes(&place.path().join("notes"));
        let peak: u64 = noted[0][1].parse().unwrap();
        eprintln!(
            "{total_mib} MiB of rows of {row_bytes} bytes in {memory_mib} MiB: peak {} MiB",
            peak / MIB
        );
        assert!(peak <= memory_mib * MIB + PROGRAM_BYTES, "{peak} bytes resident, rows of {row_bytes}");
    }
}
