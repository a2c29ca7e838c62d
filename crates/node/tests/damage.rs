//! Files of the engine that are cut or have other bits: the right rows or an error that names a place, never others.

mod common;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

use common::{Noise, Notes, ROWS, copy, files, job, job_command, key, notes, open, run, setting, value};
use stratann_node::rows::{Batch, CHUNK_BYTES, Key, RowKind, Rows};

/// Batches that are in files of the engine, and those that only its log has.
const SETTLED: u64 = 60;
const LOGGED: u64 = 12;
/// Bytes of a value.
const VALUE_BYTES: usize = 700;

fn batch(number: u64) -> Batch {
    let mut batch = Batch::new();
    for row in 0..ROWS {
        batch.put(key(number, row), &value(number, row, VALUE_BYTES));
    }
    batch
}

#[test]
fn child() {
    let Some(job) = job() else { return };
    let folder = PathBuf::from(setting("ROWS_FOLDER"));
    match job.as_str() {
        "write" => {
            // Three files of the engine, and a log.
            for third in 0..3 {
                let rows = open(&folder).unwrap();
                let of_third = third * SETTLED / 3..(third + 1) * SETTLED / 3;
                of_third.for_each(|number| _ = rows.write(batch(number)).durable().unwrap());
            }
            let rows = open(&folder).unwrap();
            let logged = SETTLED..SETTLED + LOGGED;
            logged.for_each(|number| _ = rows.write(batch(number)).durable().unwrap());
            std::process::abort();
        }
        "look" => look_at_damage(&folder, &mut Notes::new(Path::new(&setting("ROWS_NOTES")))),
        _ => panic!("{job}"),
    }
}

/// What damage was found.
#[derive(Debug, Default)]
struct Found {
    /// The folder was refused.
    refused: u64,
    /// Some rows could not be read.
    unreadable: u64,
    /// Everything was there.
    whole: u64,
}

/// Checks that every row is right or an error. Returns whether all of them were there.
fn all_is_right(rows: &Rows, what: &str) -> bool {
    let mut errors = 0;
    for number in 0..SETTLED + LOGGED {
        for row in 0..ROWS {
            let key = key(number, row);
            match rows.get(&key) {
                Ok(Some(bytes)) => {
                    assert!(bytes == value(number, row, VALUE_BYTES), "{what}: another value of {key}")
                }
                Ok(None) => panic!("{what}: {key} is missing, and nobody said so"),
                Err(e) => {
                    let of = format!("collection {}", key.collection());
                    assert!(e.message.contains(&of) && e.message.contains("damaged"), "{what}: {e}");
                    errors += 1;
                }
            }
        }
    }
    for (collection, kind) in [(1, RowKind::Tail), (2, RowKind::Overlay)] {
        let (mut from, end, mut found) = (Key::first(collection, kind), Key::end(collection, kind), 0);
        loop {
            match rows.scan(&from, &end, CHUNK_BYTES) {
                Ok(chunk) => {
                    found += chunk.rows.len() as u64;
                    let Some(next) = chunk.next else { break };
                    from = next;
                }
                Err(e) => {
                    assert!(e.message.contains(&format!("collection {collection}")), "{what}: {e}");
                    errors += 1;
                    found = (SETTLED + LOGGED) * ROWS / 2;
                    break;
                }
            }
        }
        assert_eq!(found, (SETTLED + LOGGED) * ROWS / 2, "{what}: rows of collection {collection}");
    }
    errors == 0
}

/// Ways to damage a file: a length to cut it to, or a place whose bits are flipped.
enum Damage {
    Cut(usize),
    Flip(usize),
}

/// Places in the bytes of a file that are not a hole at its end.
fn damages(bytes: &[u8], noise: &mut Noise) -> Vec<Damage> {
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let scale = if setting("ROWS_ALL").is_empty() { 1 } else { 12 };
    let mut found = vec![Damage::Cut(0), Damage::Cut(used / 2), Damage::Cut(used.saturating_sub(1))];
    found.extend((0..3 * scale).map(|_| Damage::Cut(noise.below(used.max(1) as u64) as usize)));
    found.extend([0, used / 2, used.saturating_sub(1)].map(Damage::Flip));
    found.extend((0..16 * scale).map(|_| Damage::Flip(noise.below(used.max(1) as u64) as usize)));
    found.retain(|damage| used > 0 || matches!(damage, Damage::Cut(_)));
    found
}

fn look_at_damage(whole: &Path, notes: &mut Notes) {
    let mut noise = Noise(5);
    let place = tempfile::tempdir().unwrap();
    for file in files(whole) {
        let name = file.strip_prefix(whole).unwrap();
        if ["LOCK", "reserve", "format"].iter().any(|other| name == Path::new(other)) {
            continue;
        }
        let bytes = fs::read(&file).unwrap();
        let mut found = Found::default();
        for damage in damages(&bytes, &mut noise) {
            let folder = place.path().join("damaged");
            _ = fs::remove_dir_all(&folder);
            copy(whole, &folder);
            let mut damaged = bytes.clone();
            let what = match damage {
                Damage::Cut(length) => {
                    damaged.truncate(length);
                    format!("{} cut to {length} of {}", name.display(), bytes.len())
                }
                Damage::Flip(at) => {
                    damaged[at] ^= 1 << noise.below(8);
                    format!("{} flipped at {at} of {}", name.display(), bytes.len())
                }
            };
            notes.write(&format!("looking {what}"));
            fs::write(folder.join(name), damaged).unwrap();
            match open(&folder) {
                Err(e) => {
                    assert!(
                        e.message.contains(folder.to_str().unwrap()) || e.message.contains("group"),
                        "{what}: {e}"
                    );
                    found.refused += 1;
                }
                Ok(rows) if all_is_right(&rows, &what) => found.whole += 1,
                Ok(_) => found.unreadable += 1,
            }
        }
        notes.write(&format!("found {}: {found:?}", name.display()));
    }
    notes.write("end");
}

fn damage_every_file(all: &str) {
    let place = tempfile::tempdir().unwrap();
    let (folder, noted) = (place.path().join("data"), place.path().join("notes"));
    let (status, text) = run({
        let mut command = job_command("write", &folder);
        command.env("ROWS_NOTES", &noted);
        command
    });
    assert_eq!(status.signal(), Some(libc::SIGABRT), "{text}");
    let (status, text) = run({
        let mut command = job_command("look", &folder);
        command.env("ROWS_NOTES", &noted).env("ROWS_ALL", all);
        command
    });
    let lines: Vec<String> = notes(&noted).iter().map(|words| words.join(" ")).collect();
    let last = lines.last().cloned().unwrap_or_default();
    assert!(status.success() && last == "end", "{status} while {last}:\n{text}");
    lines.iter().filter(|line| line.starts_with("found")).for_each(|line| eprintln!("{line}"));
}

#[test]
fn damage_is_told_or_harmless() {
    damage_every_file("");
}

#[test]
#[ignore = "some minutes; make test-rows"]
fn damage_at_many_places_is_told_or_harmless() {
    damage_every_file("all");
}

#[test]
fn a_damaged_log_is_left_as_it_is() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("data");
    let (status, text) = run(job_command("write", &folder));
    assert_eq!(status.signal(), Some(libc::SIGABRT), "{text}");
    let log = folder.join("db/0.jnl");
    let whole = fs::read(&log).unwrap();
    let used = whole.iter().rposition(|byte| *byte != 0).unwrap();
    // In the batches that only the log has, and not in the first one of them.
    for at in (used - 8 * 2900..used).step_by(1777) {
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        fs::write(&log, &bytes).unwrap();
        let error = open(&folder).map(|_| ()).unwrap_err();
        assert!(error.message.contains("was left as it is"), "at {at} of {used}: {error}");
        assert!(fs::read(&log).unwrap() == bytes, "the log was changed");
    }
    // In the first batch: nothing tells which groups the log had, so it is copied.
    let mut bytes = whole.clone();
    bytes[100] ^= 4;
    fs::write(&log, &bytes).unwrap();
    for _ in 0..2 {
        let error = open(&folder).map(|_| ()).unwrap_err();
        assert!(error.message.contains("copied to"), "{error}");
        assert!(fs::read(folder.join("log.copy")).unwrap() == bytes, "the copy differs");
    }
    fs::write(&log, whole).unwrap();
    assert!(all_is_right(&open(&folder).unwrap(), "restored"));
    assert!(!folder.join("log.copy").exists());
}

#[test]
fn a_batch_that_was_never_acknowledged_and_is_torn_is_dropped() {
    let place = tempfile::tempdir().unwrap();
    let (whole, folder) = (place.path().join("whole"), place.path().join("data"));
    let (status, text) = run(job_command("write", &whole));
    assert_eq!(status.signal(), Some(libc::SIGABRT), "{text}");
    // As if the last group had not been acknowledged.
    fs::remove_file(whole.join("tip")).unwrap();
    let log = fs::read(whole.join("db/0.jnl")).unwrap();
    let used = log.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    for from in (used - ROWS as usize * VALUE_BYTES..used - 1).step_by(131) {
        // Sectors reach a disk in any order: some are missing before the end.
        for to in [from + 1, (from + 512).min(used), used] {
            _ = fs::remove_dir_all(&folder);
            copy(&whole, &folder);
            let mut torn = log.clone();
            torn[from..to].fill(0xa5);
            fs::write(folder.join("db/0.jnl"), torn).unwrap();
            let rows = open(&folder).unwrap_or_else(|e| panic!("torn from {from} to {to} of {used}: {e}"));
            for number in 0..SETTLED + LOGGED {
                let found =
                    (0..ROWS).filter(|row| rows.get(&key(number, *row)).unwrap().is_some()).count() as u64;
                assert_eq!(found, if number + 1 < SETTLED + LOGGED { ROWS } else { 0 }, "batch {number}");
            }
            rows.write(batch(SETTLED + LOGGED)).durable().unwrap();
        }
    }
}
