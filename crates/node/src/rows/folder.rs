//! The data folder: its lock, its format, and the file that keeps some disk in reserve.

use std::fs::{File, TryLockError};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use stratann_storage::budget::free_disk_bytes;
use stratann_storage::{Error, ErrorKind, Progress, Result, durable, input};

/// Version of the layout of a data folder.
pub const FORMAT_VERSION: u32 = 1;

const FORMAT_TEXT: &str = "StratANN data folder, format ";
const ENGINE: &str = "db";
const FORMAT: &str = "format";
const UNFINISHED: &str = "db.new";
const LOG_COPY: &str = "log.copy";
const LOCK: &str = "LOCK";
const RESERVE: &str = "reserve";
/// A piece of the reserve that is written at once.
const PIECE_BYTES: usize = 1 << 20;
/// A process that is being started has the open files of the one that starts it for a moment, locks included.
const STARTING: Duration = Duration::from_secs(2);
/// Pause between two attempts to lock.
const PAUSE: Duration = Duration::from_millis(2);

/// A data folder that this process has locked.
pub(super) struct Folder {
    path: PathBuf,
    reserve_bytes: u64,
    has_reserve: Mutex<bool>,
    // Unlocked when it is closed.
    _lock: File,
}

impl Folder {
    /// Locks a data folder, which is made where there is none.
    ///
    /// # Errors
    /// `BadInput` for a folder that another process has, that holds something else or is of a newer format; `Io`, also
    /// where nothing can be written.
    pub(super) fn lock(path: &Path, reserve_bytes: u64) -> Result<Folder> {
        std::fs::create_dir_all(path).map_err(|e| unusable(path, &e))?;
        check_format(path)?;
        let lock = lock(path)?;
        // Once more, as another process may just have made the folder.
        if !check_format(path)? {
            durable::write_synced(&path.join(FORMAT), format_text().as_bytes())
                .map_err(|e| unusable(path, &e))?;
            durable::sync_folder(path)?;
        }
        Ok(Folder { path: path.to_path_buf(), reserve_bytes, has_reserve: Mutex::new(false), _lock: lock })
    }

    /// The folder.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The engine's folder.
    pub(super) fn engine(&self) -> PathBuf {
        self.path.join(ENGINE)
    }

    /// Folder in which a new engine is made.
    pub(super) fn unfinished_engine(&self) -> PathBuf {
        self.path.join(UNFINISHED)
    }

    /// Copy of a log that may be damaged in its first batch.
    pub(super) fn log_copy(&self) -> PathBuf {
        self.path.join(LOG_COPY)
    }

    /// Free bytes on the disk; the most where the system does not tell.
    pub(super) fn free_bytes(&self) -> u64 {
        free_disk_bytes(&self.path).unwrap_or(u64::MAX)
    }

    /// Makes the reserve when it is missing and `spare` bytes stay free beside it.
    pub(super) fn keep_reserve(&self, spare: u64, progress: &dyn Progress) {
        let mut has = self.has_reserve.lock().unwrap_or_else(|e| e.into_inner());
        let path = self.path.join(RESERVE);
        if *has || is_allocated(&path, self.reserve_bytes) {
            *has = true;
            return;
        }
        if self.free_bytes() < spare.saturating_add(self.reserve_bytes) {
            return;
        }
        match write_reserve(&path, self.reserve_bytes) {
            Ok(()) => *has = true,
            Err(e) => {
                progress.note(&format!("no reserve for a full disk: {}: {e}", path.display()));
                let _ = std::fs::remove_file(&path);
            }
        }
    }

    /// Gives the reserve back to the disk.
    pub(super) fn release_reserve(&self) {
        let mut has = self.has_reserve.lock().unwrap_or_else(|e| e.into_inner());
        let _ = std::fs::remove_file(self.path.join(RESERVE));
        *has = false;
    }
}

/// Whether the folder has a format. A folder with anything else than a lock is not taken.
fn check_format(path: &Path) -> Result<bool> {
    let file = path.join(FORMAT);
    let text = match input::read_up_to(&file, 4096) {
        Ok(text) => String::from_utf8_lossy(&text).into_owned(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let failed = |e: std::io::Error| Error::io("reading", path, &e);
            for entry in std::fs::read_dir(path).map_err(failed)? {
                let name = entry.map_err(failed)?.file_name();
                if name != LOCK && name != "lost+found" {
                    return Err(Error::bad_input(format!(
                        "{} is no data folder of StratANN, and holds {}; give an empty folder",
                        path.display(),
                        name.to_string_lossy()
                    )));
                }
            }
            return Ok(false);
        }
        Err(e) => return Err(Error::io("reading", &file, &e)),
    };
    // A crash while the folder was made leaves a part of the text.
    if format_text().starts_with(&text) && text != format_text() && !path.join(ENGINE).exists() {
        return Ok(false);
    }
    match text.strip_prefix(FORMAT_TEXT).and_then(|version| version.trim_end().parse::<u32>().ok()) {
        Some(1..=FORMAT_VERSION) => Ok(true),
        Some(version) if version > FORMAT_VERSION => Err(Error::bad_input(format!(
            "{} has format {version}, and this program reads up to {FORMAT_VERSION}; use a newer StratANN",
            path.display()
        ))),
        _ => Err(Error::corrupt(format!("{} does not name a format; restore it", file.display()))),
    }
}

fn format_text() -> String {
    format!("{FORMAT_TEXT}{FORMAT_VERSION}\n")
}

fn lock(path: &Path) -> Result<File> {
    let file = path.join(LOCK);
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    let lock = options.open(&file).map_err(|e| unusable(path, &e))?;
    let begin = Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(e)) => return Err(Error::io("locking", &file, &e)),
        }
        let holder = holder(&lock);
        if holder.is_none_or(|process| !may_be_its_child(process)) || begin.elapsed() > STARTING {
            let holder = match holder {
                Some(process) => format!("process {process}, or one that it started,"),
                None => "another process".to_string(),
            };
            return Err(Error::bad_input(format!(
                "{holder} has the data folder {} open; stop it, or ask it for the data over its address",
                path.display()
            )));
        }
        std::thread::sleep(PAUSE);
    }
    // In place and of one length: on a full disk it takes no new block. Where that fails, the lock is what counts.
    let text = format!("{:<15}\n", std::process::id());
    match lock.write_all_at(text.as_bytes(), 0) {
        Err(e) if e.kind() != std::io::ErrorKind::StorageFull => Err(unusable(path, &e)),
        _ => Ok(lock),
    }
}

/// The process that wrote its number into the file of the lock last.
fn holder(lock: &File) -> Option<u32> {
    let mut text = [0; 16];
    let count = lock.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(text.get(..count)?).ok()?.trim().parse().ok()
}

/// Whether the lock of a process may be with one that it started alone: this process, or one that has ended.
fn may_be_its_child(process: u32) -> bool {
    process == std::process::id() || !Path::new(&format!("/proc/{process}")).exists()
}

fn unusable(path: &Path, e: &std::io::Error) -> Error {
    match e.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => Error {
            kind: ErrorKind::Io,
            message: format!(
                "the data folder {} cannot be written ({e}); a data folder has a lock and a log, so give one that this \
                 user may write",
                path.display()
            ),
        },
        _ => Error::io("making the data folder", path, e),
    }
}

fn is_allocated(path: &Path, bytes: u64) -> bool {
    let found = std::fs::symlink_metadata(path);
    found.is_ok_and(|found| found.is_file() && found.len() == bytes && found.blocks() * 512 >= bytes)
}

/// Writes bytes that no file system can compress, so that the disk is really taken.
fn write_reserve(path: &Path, bytes: u64) -> std::io::Result<()> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut file = File::create(path)?;
    let mut left = bytes;
    let mut piece = vec![0; PIECE_BYTES];
    while left > 0 {
        for word in piece.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        let count = left.min(PIECE_BYTES as u64);
        file.write_all(&piece[..count as usize])?;
        left -= count;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratann_storage::Quiet;

    fn refusal(path: &Path) -> String {
        Folder::lock(path, 0).map(|_| ()).unwrap_err().message
    }

    #[test]
    fn a_folder_of_something_else_or_of_a_newer_format_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("new/data");
        drop(Folder::lock(&path, 0).unwrap());
        std::fs::write(path.join("unknown"), "kept").unwrap();
        drop(Folder::lock(&path, 0).unwrap());
        assert_eq!(std::fs::read(path.join("unknown")).unwrap(), b"kept");
        std::fs::write(path.join(FORMAT), format!("{FORMAT_TEXT}17\n")).unwrap();
        let error = refusal(&path);
        assert!(error.contains("format 17") && error.contains("up to 1"), "{error}");
        std::fs::write(path.join(FORMAT), FORMAT_TEXT).unwrap();
        drop(Folder::lock(&path, 0).unwrap());
        std::fs::write(path.join(FORMAT), "something").unwrap();
        assert!(refusal(&path).contains("does not name a format"));
        std::fs::remove_file(path.join(FORMAT)).unwrap();
        assert!(refusal(&path).contains("holds unknown"));
    }

    #[test]
    fn a_lock_that_a_starting_process_still_has_is_waited_for() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::lock(place.path(), 0).unwrap();
        let inherited = folder._lock.try_clone().unwrap();
        drop(folder);
        let begin = Instant::now();
        let freed = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(inherited);
        });
        drop(Folder::lock(place.path(), 0).unwrap());
        assert!(begin.elapsed() >= Duration::from_millis(50), "it was free at once");
        freed.join().unwrap();
        std::fs::write(place.path().join(LOCK), format!("{:<15}\n", 1)).unwrap();
        let other = File::open(place.path().join(LOCK)).unwrap();
        other.lock().unwrap();
        let begin = Instant::now();
        assert!(refusal(place.path()).contains("process 1,") && begin.elapsed() < STARTING);
    }

    #[test]
    fn the_reserve_takes_disk_and_gives_it_back() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::lock(place.path(), 3 << 20).unwrap();
        let path = place.path().join(RESERVE);
        folder.keep_reserve(u64::MAX, &Quiet);
        assert!(!path.exists(), "there is no room");
        folder.keep_reserve(0, &Quiet);
        assert!(is_allocated(&path, 3 << 20));
        File::create(&path).unwrap().set_len(3 << 20).unwrap();
        assert!(!is_allocated(&path, 3 << 20), "a hole is no reserve");
        folder.release_reserve();
        assert!(!path.exists());
    }
}
