//! Rows on a disk that fails: calls that return EIO or ENOSPC, syncs that are lost, a disk that is full.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{
    Noise, Notes, batch, failures, faults, is_there, job, job_command, key, note, notes, open, run, setting,
};
use stratann_node::rows::{Batch, Key, Outcome, RowKind, Rows};
use stratann_storage::Quiet;

/// Times that the rows are opened, and batches that are written each time.
const ROUNDS: u64 = 5;
const BATCHES: u64 = 4;
/// Most bytes of a value.
const VALUE_BYTES: u64 = 1500;
/// Attempts to open rows while calls fail.
const ATTEMPTS: usize = 3;

#[test]
fn child() {
    let Some(job) = job() else { return };
    let folder = PathBuf::from(setting("ROWS_FOLDER"));
    let mut notes = Notes::new(Path::new(&setting("ROWS_NOTES")));
    match job.as_str() {
        "rounds" => rounds(&folder, &mut notes),
        "one round" => write(&open(&folder).unwrap(), 0, &mut notes),
        "load" => load(&folder, &mut notes),
        "full" => fill(&folder, &mut notes),
        "renames" => refuse_renames(&folder, &mut notes),
        _ => panic!("{job}"),
    }
}

/// Opens rows and writes batches, again and again. What fails is opened again.
fn rounds(folder: &Path, notes: &mut Notes) {
    for round in 0..ROUNDS {
        let opened =
            (0..ATTEMPTS).find_map(|_| open(folder).inspect_err(|e| notes.write(&format!("open {e}"))).ok());
        let Some(rows) = opened else { return };
        write(&rows, round * BATCHES, notes);
    }
    notes.write(&format!("calls {}", calls()));
}

fn write(rows: &Rows, first: u64, notes: &mut Notes) {
    for number in first..first + BATCHES {
        let outcome = rows.write(batch(number, VALUE_BYTES));
        notes.write(&note(number, &outcome));
        if matches!(outcome, Outcome::Durable(_)) {
            assert!(is_there(rows, number, VALUE_BYTES).unwrap_or(true));
            continue;
        }
        assert!(rows.get(&key(0, 0)).is_err(), "the rows must stand still");
        let failed = |e: &stratann_storage::Error| assert!(rows.get(&key(0, 0)).is_err(), "{e}");
        let Some(found) = (0..ATTEMPTS).find_map(|_| rows.reopen(&Quiet).inspect_err(failed).ok()) else {
            return;
        };
        let there = is_there(rows, number, VALUE_BYTES).unwrap();
        if let Outcome::Unknown { group, .. } = outcome {
            assert_eq!(rows.has_group(group), Some(there), "{found:?}");
            notes.write(&format!("found {number} {there}"));
        } else {
            assert!(!there, "it was said not to be written");
        }
    }
}

/// Calls that the library of faults has counted.
fn calls() -> i64 {
    // SAFETY: the name ends in a zero byte.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"rows_calls".as_ptr()) };
    assert!(!found.is_null(), "the library of faults is not there");
    // SAFETY: the library has this function, without arguments.
    let function: extern "C" fn() -> libc::c_long = unsafe { std::mem::transmute(found) };
    function()
}

struct Place {
    folder: PathBuf,
    notes: PathBuf,
    library: PathBuf,
    // Removed in the end.
    place: tempfile::TempDir,
}

fn place(library: &Path) -> Place {
    let place = tempfile::tempdir().unwrap();
    let (folder, notes) = (place.path().join("data"), place.path().join("notes"));
    Place { folder, notes, library: library.to_path_buf(), place }
}

impl Place {
    fn command(&self, job: &str) -> Command {
        let mut command = job_command(job, &self.folder);
        command
            .env("LD_PRELOAD", &self.library)
            .env("ROWS_ROOT", &self.folder)
            .env("ROWS_NOTES", &self.notes);
        command
    }

    /// Checks what a child has noted against what is there.
    fn check(&self, rows: &Rows, bytes_max: u64) -> Tally {
        let mut tally = Tally::default();
        let mut last = BTreeMap::new();
        for words in notes(&self.notes) {
            match words[0].as_str() {
                "open" => tally.not_opened += 1,
                "calls" => tally.calls = words[1].parse().unwrap(),
                _ => _ = last.insert(words[1].parse::<u64>().unwrap(), words),
            }
        }
        for (number, words) in last {
            let there = is_there(rows, number, bytes_max).unwrap();
            match words[0].as_str() {
                "durable" => assert!(there, "batch {number} was acknowledged and is lost"),
                "not" => assert!(!there, "batch {number} was refused and is there"),
                "found" => assert_eq!(words[2], there.to_string(), "batch {number} was told otherwise"),
                _ => {}
            }
            match words[0].as_str() {
                "durable" => tally.durable += 1,
                "not" => tally.refused += 1,
                _ => tally.unknown += 1,
            }
        }
        tally
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    calls: i64,
    durable: u64,
    refused: u64,
    unknown: u64,
    not_opened: u64,
}

/// Runs rounds in which calls from number `at` on fail, and checks what is there afterwards.
fn fail_at(library: &Path, at: i64, count: i64, errno: i32) -> Tally {
    let place = place(library);
    let mut command = place.command("rounds");
    command.env("ROWS_FAIL_AT", at.to_string()).env("ROWS_FAIL_COUNT", count.to_string());
    command.env("ROWS_FAIL_ERRNO", errno.to_string());
    let (status, text) = run(command);
    let what = format!("{count} calls from {at} on failed with {errno}");
    assert!(status.success(), "{what}: {status}\n{text}");
    let rows = open(&place.folder).unwrap_or_else(|e| panic!("{what}: {e}\n{text}"));
    let tally = place.check(&rows, VALUE_BYTES);
    // What is left can be written to.
    rows.write(batch(99, VALUE_BYTES)).durable().unwrap();
    assert!(is_there(&rows, 99, VALUE_BYTES).unwrap(), "{what}");
    tally
}

/// Fails one call in `step`, one at a time and then all that follow, with EIO and ENOSPC.
fn fail_calls(step: usize) {
    let place = tempfile::tempdir().unwrap();
    let Some(library) = faults(place.path()) else { return };
    let whole = fail_at(&library, 0, 0, 0);
    assert_eq!((whole.durable, whole.not_opened), (ROUNDS * BATCHES, 0));
    let mut sum = Tally { calls: whole.calls, ..Tally::default() };
    let mut runs = 0;
    for (at, count, errno) in failures(whole.calls, step) {
        let tally = fail_at(&library, at, count, errno);
        runs += 1;
        sum.durable += tally.durable;
        sum.refused += tally.refused;
        sum.unknown += tally.unknown;
        sum.not_opened += tally.not_opened;
    }
    eprintln!("{runs} runs: {sum:?}");
    assert!(sum.unknown > 0 && sum.not_opened > 0, "{sum:?}");
}

#[test]
fn failed_calls_lose_nothing_that_was_acknowledged() {
    fail_calls(11);
}

#[test]
#[ignore = "some minutes; make test-rows"]
fn each_failed_call_loses_nothing_that_was_acknowledged() {
    fail_calls(1);
}

/// Threads and batches of each under load, with values so large that tables in memory are written and merged.
const THREADS: u64 = 3;
const LOAD: u64 = 120;
const LOAD_VALUE_BYTES: u64 = 120_000;

/// Writes from several threads until a batch fails.
fn load(folder: &Path, notes: &mut Notes) {
    let rows = open(folder).unwrap();
    let ends = AtomicBool::new(false);
    let of_thread = |thread: u64| {
        let mut said = Vec::new();
        for number in thread * LOAD..(thread + 1) * LOAD {
            let outcome = rows.write(batch(number, LOAD_VALUE_BYTES));
            said.push(note(number, &outcome));
            if ends.load(Ordering::Acquire) || !matches!(outcome, Outcome::Durable(_)) {
                ends.store(true, Ordering::Release);
                break;
            }
        }
        said
    };
    let said = std::thread::scope(|scope| {
        let of_thread = &of_thread;
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || of_thread(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    notes.write(&said.join("\n"));
    notes.write(&format!("calls {}", calls()));
}

/// Fails calls while tables are written and merged, so often. Nobody may wait for a thread that has ended.
fn fail_under_load(times: u64) {
    let library_place = tempfile::tempdir().unwrap();
    let Some(library) = faults(library_place.path()) else { return };
    let mut noise = Noise(times);
    let (mut calls, mut sum) = (20_000, Tally::default());
    for time in 0..=times {
        let place = place(&library);
        let mut command = place.command("load");
        // The first run tells how many calls there are.
        let at = if time == 0 { 0 } else { 400 + noise.below(calls) };
        command.env("ROWS_FAIL_AT", at.to_string());
        command.env("ROWS_FAIL_COUNT", if time % 2 == 0 { "1" } else { "1000000000" });
        let (status, text) = run(command);
        assert!(status.success(), "call {at}: {status}\n{text}");
        let rows = open(&place.folder).unwrap_or_else(|e| panic!("call {at}: {e}"));
        let tally = place.check(&rows, LOAD_VALUE_BYTES);
        if time == 0 {
            assert_eq!(tally.durable, THREADS * LOAD);
            calls = tally.calls as u64;
        }
        sum.durable += tally.durable;
        sum.refused += tally.refused;
        sum.unknown += tally.unknown;
    }
    eprintln!("{times} failures in {calls} calls under load: {sum:?}");
    assert!(sum.unknown + sum.refused > 0);
}

#[test]
fn nobody_waits_for_an_engine_that_failed() {
    fail_under_load(4);
}

#[test]
#[ignore = "some minutes; make test-rows"]
fn nobody_waits_for_an_engine_that_failed_anywhere() {
    fail_under_load(100);
}

/// A folder of what a disk had after the last sync of each file and folder.
fn after_power_loss(shadow: &Path, inode: u64, to: &Path) {
    fs::create_dir_all(to).unwrap();
    // A folder that was never synced has no names.
    let text = fs::read_to_string(shadow.join(format!("{inode}.names"))).unwrap_or_default();
    for line in text.lines() {
        let mut words = line.splitn(3, ' ');
        let inode: u64 = words.next().unwrap().parse().unwrap();
        let (is_folder, name) = (words.next().unwrap() == "1", words.next().unwrap());
        if is_folder {
            after_power_loss(shadow, inode, &to.join(name));
        } else if fs::copy(shadow.join(inode.to_string()), to.join(name)).is_err() {
            fs::write(to.join(name), "").unwrap();
        }
    }
}

/// Ends a child before each sync, drops what was not synced, and checks the rest.
#[test]
fn acknowledged_batches_survive_a_loss_of_power() {
    let library_place = tempfile::tempdir().unwrap();
    let Some(library) = faults(library_place.path()) else { return };
    let (mut runs, mut tipped) = (0, 0);
    for at in 1.. {
        let place = place(&library);
        let (shadow, left) = (place.place.path().join("shadow"), place.place.path().join("left"));
        fs::create_dir_all(&shadow).unwrap();
        fs::create_dir_all(&place.folder).unwrap();
        let mut command = place.command("rounds");
        let (status, text) = run({
            command.env("ROWS_SHADOW", &shadow).env("ROWS_EXIT_AT", at.to_string());
            command
        });
        assert!(status.success() || status.code() == Some(99), "{status}\n{text}");
        let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(&place.folder).unwrap());
        after_power_loss(&shadow, inode, &left);
        // The unsynced file of the tip may have reached the disk or not. It must not be ahead of the engine.
        for with_tip in [false, true] {
            if with_tip && fs::copy(place.folder.join("tip"), left.join("tip")).is_ok() {
                tipped += 1;
            }
            let rows = open(&left).unwrap_or_else(|e| panic!("after sync {at}: {e}\n{text}"));
            place.check(&rows, VALUE_BYTES);
        }
        runs += 1;
        if status.success() {
            break;
        }
    }
    eprintln!("{runs} losses of power, {tipped} with the newest tip");
    assert!(runs > 5 && tipped > 3);
}

/// Has the kernel refuse to rename files, also for calls that no library sees, and goes on.
fn refuse_renames(folder: &Path, notes: &mut Notes) {
    let rows = open(folder).unwrap();
    write(&rows, 0, notes);
    let errno: u32 = setting("ROWS_FAIL_ERRNO").parse().unwrap();
    let statement = |code: u32, jt: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let is = |call: libc::c_long, jt| statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, call as u32);
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    #[cfg(target_arch = "x86_64")]
    filter.push(is(libc::SYS_rename, 3));
    filter.extend([is(libc::SYS_renameat, 2), is(libc::SYS_renameat2, 1)]);
    filter.push(statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW));
    filter.push(statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | errno));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program lives as long as the calls, which only limit this process.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        let tsync = libc::SECCOMP_FILTER_FLAG_TSYNC;
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, tsync, &raw const program)
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    assert!(fs::rename(folder.join("tip"), folder.join("tip")).is_err());
    write(&rows, BATCHES, notes);
    drop(rows);
    // The log is to become a file, whose name is renamed into place.
    let error = open(folder).map(|_| ()).unwrap_err();
    notes.write(&format!("open {error}"));
}

#[test]
fn refused_renames_lose_nothing_that_was_acknowledged() {
    for errno in [libc::EIO, libc::ENOSPC] {
        let place = place(Path::new(""));
        let mut command = job_command("renames", &place.folder);
        command.env("ROWS_NOTES", &place.notes).env("ROWS_FAIL_ERRNO", errno.to_string());
        let (status, text) = run(command);
        assert!(status.success(), "{text}");
        let tally = place.check(&open(&place.folder).unwrap(), VALUE_BYTES);
        assert_eq!((tally.durable, tally.not_opened), (2 * BATCHES, 1));
    }
}

fn set_free(bytes: u64) {
    fs::write(setting("ROWS_FREE"), bytes.to_string()).unwrap();
}

/// Fills a disk, and makes room again.
fn fill(folder: &Path, notes: &mut Notes) {
    const GIB: u64 = 1 << 30;
    let reserve = folder.join("reserve");
    set_free(GIB);
    let rows = open(folder).unwrap();
    assert!(reserve.exists());
    notes.write(&note(0, &rows.write(batch(0, VALUE_BYTES))));
    notes.write(&note(1, &rows.write(batch(1, VALUE_BYTES))));
    set_free(6 << 20);
    let Outcome::NoRoom(error) = rows.write(batch(2, VALUE_BYTES)) else { panic!("it was admitted") };
    assert!(
        error.message.contains("6.0 MiB left") && error.message.contains("nothing was written"),
        "{error}"
    );
    assert!(is_there(&rows, 1, VALUE_BYTES).unwrap() && reserve.exists(), "reads go on");
    let removed =
        rows.remove_range(&Key::first(2, RowKind::Overlay), &Key::end(2, RowKind::Overlay)).unwrap();
    assert_eq!(removed.rows, 4);
    assert!(!reserve.exists(), "it is released for removals");
    set_free(1 << 20);
    let mut batch_of_one = Batch::new();
    batch_of_one.remove(key(0, 0));
    assert!(matches!(rows.write(batch_of_one), Outcome::NoRoom(_)), "nothing is left at all");
    set_free(GIB);
    notes.write(&note(3, &rows.write(batch(3, VALUE_BYTES))));
    assert!(reserve.exists(), "it is made again");
    assert_eq!(rows.counters().failed_batches, 2);
    assert!(rows.counters().reclaimed_bytes > 0);
}

#[test]
fn a_full_disk_admits_removals() {
    let place = tempfile::tempdir().unwrap();
    let Some(library) = faults(place.path()) else { return };
    let place = self::place(&library);
    let mut command = place.command("full");
    command.env("ROWS_FREE", place.place.path().join("free"));
    let (status, text) = run(command);
    assert!(status.success(), "{text}");
    assert_eq!(notes(&place.notes).iter().filter(|words| words[0] == "durable").count(), 3);
}

#[test]
fn a_folder_that_cannot_be_written_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let Some(library) = faults(place.path()) else { return };
    let place = self::place(&library);
    drop(open(&place.folder).unwrap());
    let mut command = place.command("one round");
    command.env("ROWS_FAIL_AT", "1").env("ROWS_FAIL_ERRNO", libc::EROFS.to_string());
    let (status, text) = run(command);
    assert!(!status.success() && text.contains("cannot be written"), "{text}");
}
