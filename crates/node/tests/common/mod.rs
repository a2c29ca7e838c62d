//! Batches whose rows can be told from each other, and children that write them while something goes wrong.
#![allow(dead_code, unreachable_pub, reason = "no test program uses all of it")]

pub mod points;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use stratann_node::rows::{Batch, ExternalId, Key, Options, Outcome, RowKind, Rows};
use stratann_storage::{Quiet, Result};
use stratann_testing::{Need, leave_out};

/// A child that does not end within this has come to a halt.
const PATIENCE: Duration = Duration::from_secs(300);

/// Small enough that tables in memory become files after a few MiB.
pub fn options() -> Options {
    Options { memory_bytes: 32 << 20, reserve_bytes: 1 << 20, log_bytes_kept: 1 << 10 }
}

pub fn open(folder: &Path) -> Result<Rows> {
    Rows::open(folder, &options(), &Quiet)
}

/// A sequence of numbers that looks random.
pub struct Noise(pub u64);

impl Noise {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.bits() % limit
    }
}

/// Rows of a batch.
pub const ROWS: u64 = 4;

pub fn value(batch: u64, row: u64, bytes: usize) -> Vec<u8> {
    let mut noise = Noise(batch * 1000 + row);
    (0..bytes.div_ceil(8)).flat_map(|_| noise.bits().to_le_bytes()).take(bytes).collect()
}

/// Key of a row of a batch: in two collections, so that no batch is of one alone.
pub fn key(batch: u64, row: u64) -> Key {
    match row % 2 {
        0 => Key::first(1, RowKind::Tail).number(batch).number(row),
        _ => {
            let id = ExternalId::text(&format!("batch {batch:08} row {row}")).unwrap();
            Key::first(2, RowKind::Overlay).id(&id)
        }
    }
}

/// Bytes of the values of a batch: from a few to `bytes_max`.
fn length(batch: u64, row: u64, bytes_max: u64) -> usize {
    Noise(batch ^ (row << 40)).below(bytes_max) as usize + 1
}

pub fn batch(number: u64, bytes_max: u64) -> Batch {
    let mut batch = Batch::new();
    for row in 0..ROWS {
        batch.put(key(number, row), &value(number, row, length(number, row, bytes_max)));
    }
    batch
}

/// Whether a batch is there. None of it is, or all.
pub fn is_there(rows: &Rows, number: u64, bytes_max: u64) -> Result<bool> {
    let mut found = 0;
    for row in 0..ROWS {
        if let Some(bytes) = rows.get(&key(number, row))? {
            let expected = value(number, row, length(number, row, bytes_max));
            assert!(bytes == expected, "another value in row {row} of batch {number}");
            found += 1;
        }
    }
    assert!(found == 0 || found == ROWS, "{found} rows of batch {number}");
    Ok(found == ROWS)
}

/// Notes of a child that survive it.
pub struct Notes(File);

impl Notes {
    pub fn new(path: &Path) -> Notes {
        Notes(OpenOptions::new().create(true).append(true).open(path).unwrap())
    }

    pub fn write(&mut self, line: &str) {
        self.0.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

pub fn notes(path: &Path) -> Vec<Vec<String>> {
    let text = fs::read_to_string(path).unwrap_or_default();
    // A line without its end was cut by a kill.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let words = |line: &str| line.split(' ').map(String::from).collect();
    whole.lines().map(words).collect()
}

pub fn note(batch: u64, outcome: &Outcome) -> String {
    match outcome {
        Outcome::Durable(group) => format!("durable {batch} {group}"),
        Outcome::NotWritten(_) | Outcome::NoRoom(_) => format!("not {batch}"),
        Outcome::Unknown { group, .. } => format!("unknown {batch} {group}"),
    }
}

/// Name of the job that this process is to do, when it is a child of a test.
pub fn job() -> Option<String> {
    std::env::var("ROWS_JOB").ok()
}

pub fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

/// This test program as a child that does a job in the test `child`.
pub fn job_command(job: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
    command.env("ROWS_JOB", job).env("ROWS_FOLDER", folder).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Waits for a child.
pub fn wait(child: &mut Child) -> ExitStatus {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if begin.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("the child has come to a halt");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs a child to its end; its status and what it complained of.
pub fn run(mut command: Command) -> (ExitStatus, String) {
    let file = tempfile::tempfile().unwrap();
    let mut child = command.stderr(file.try_clone().unwrap()).spawn().unwrap();
    let status = wait(&mut child);
    let mut file = file;
    let mut text = String::new();
    std::io::Seek::rewind(&mut file).unwrap();
    std::io::Read::read_to_string(&mut file, &mut text).unwrap();
    (status, text)
}

/// The library of faults, compiled; `None` where there is no compiler.
pub fn faults(place: &Path) -> Option<PathBuf> {
    let library = place.join("faults.so");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_string());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/faults.c");
    let mut command = Command::new(&compiler);
    command.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).arg("-ldl");
    match command.output() {
        Ok(done) if done.status.success() => Some(library),
        Ok(done) => panic!("{}", String::from_utf8_lossy(&done.stderr)),
        Err(e) => {
            leave_out(Need::Compiler, &format!("faults of the disk under the rows ({compiler}: {e})"));
            None
        }
    }
}

/// Failures of one call in `step` of so many, one at a time and then all that follow, with EIO and ENOSPC: number of the
/// call, how many fail, and the error.
pub fn failures(calls: i64, step: usize) -> impl Iterator<Item = (i64, i64, i32)> {
    [(libc::EIO, 1), (libc::ENOSPC, 2)].into_iter().flat_map(move |(errno, offset)| {
        [1, i64::MAX / 2]
            .into_iter()
            .flat_map(move |count| (offset..=calls).step_by(step).map(move |at| (at, count, errno)))
    })
}

/// Copies a folder, without the holes of its files.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            copy_file(&entry.path(), &target);
        }
    }
}

fn copy_file(from: &Path, to: &Path) {
    let bytes = fs::read(from).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    fs::write(to, &bytes[..used]).unwrap();
    OpenOptions::new().write(true).open(to).unwrap().set_len(bytes.len() as u64).unwrap();
}

/// All files below a folder.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files(&entry.path())),
            false => found.push(entry.path()),
        }
    }
    found.sort();
    found
}
