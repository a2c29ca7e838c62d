//! Rows of all collections, on one storage engine for a data folder.
//!
//! A batch of changes is atomic, and durable before [`Rows::write`] returns. Batches of several callers that wait at
//! once are written by one thread with one sync. Nothing above this room knows which engine there is.

mod batch;
mod counters;
mod engine;
#[cfg(test)]
pub(crate) mod fake;
mod fjall;
mod folder;
mod id_text;
mod key;
mod log;
mod memory;
mod open;
mod options;
mod read_only;
mod tip;

use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, RwLockReadGuard};
use std::thread::JoinHandle;

pub use batch::{BATCH_BYTES_MAX, Batch};
pub use counters::Counters;
pub use folder::FORMAT_VERSION;
pub use key::{ExternalId, ID_BYTES_MAX, KEY_BYTES_MAX, Key, RowKind};
pub use log::Outcome;
pub use memory::MEMORY_BYTES_MIN;
pub use open::Reopened;
pub use options::Options;

use engine::{EngineKind, Trouble};
use open::{Core, State};
use stratann_storage::{Error, ErrorKind, Progress, Result};

/// Bytes of a scan that are in memory at once, where a caller has no reason for another size.
pub const CHUNK_BYTES: u64 = 1 << 20;

/// Bytes of keys that are removed at once: short keys take many times as much in memory.
const REMOVED_BYTES: u64 = 1 << 20;

/// Some rows of a range, in ascending order.
#[derive(Clone, Debug, Default)]
pub struct Chunk {
    /// Keys and values.
    pub rows: Vec<(Key, Vec<u8>)>,
    /// Where the next chunk begins; `None` at the end of the range.
    pub next: Option<Key>,
}

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Rows.
    pub rows: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
}

/// The rows of an open data folder.
pub struct Rows {
    core: Arc<Core>,
    thread: Option<JoinHandle<()>>,
}

impl Rows {
    /// Opens a data folder, or makes one: locks it, has the engine read its log, and writes what only the log held
    /// into files, so that nothing hangs on pages that an earlier failed sync left.
    ///
    /// # Errors
    /// `BadInput` when another process has the folder, or it is of a newer format; `Budget`; `Corrupt` when the engine
    /// cannot read its files, or acknowledged batches are missing; `Io`, also for a folder that cannot be written.
    pub fn open(folder: &Path, options: &Options, progress: &dyn Progress) -> Result<Rows> {
        Rows::open_on(folder, options, &fjall::FJALL, progress)
    }

    /// The same with an engine of another kind.
    pub(crate) fn open_on(
        folder: &Path,
        options: &Options,
        kind: &'static EngineKind,
        progress: &dyn Progress,
    ) -> Result<Rows> {
        Rows::with(folder, Core::open(folder, options, kind, progress)?)
    }

    fn with(folder: &Path, core: Core) -> Result<Rows> {
        let core = Arc::new(core);
        let of_thread = core.clone();
        let spawned =
            std::thread::Builder::new().name("stratann-log".into()).spawn(move || of_thread.run_log());
        let thread = spawned.map_err(|e| Error::io("starting a thread for", folder, &e))?;
        Ok(Rows { core, thread: Some(thread) })
    }

    /// Rows of a data folder whose engine is damaged: these alone, which are read and never written. `why` is the error
    /// of each change.
    ///
    /// # Errors
    /// `BadInput` when another process has the folder; `Io`.
    pub(crate) fn read_only(folder: &Path, options: &Options, rows: Batch, why: Error) -> Result<Rows> {
        Rows::with(folder, Core::read_only(folder, options, rows, why)?)
    }

    /// Writes a batch, and returns when it is durable or has failed. Waiting batches share a sync; a lone one does not
    /// wait for others.
    pub fn write(&self, batch: Batch) -> Outcome {
        if let Err(error) = self.core.check_process().and_then(|()| batch.check()) {
            return Outcome::NotWritten(error);
        }
        let (reply, outcome) = sync_channel(1);
        self.core.queue.push(log::Waiting { batch, reply });
        match outcome.recv() {
            Ok(outcome) => outcome,
            Err(_) => Outcome::NotWritten(Error::bad_input("the data folder was closed; open it again")),
        }
    }

    /// Value of a row; `None` where there is none.
    ///
    /// # Errors
    /// `Corrupt` for a damaged row or file, which names the collection; the error of rows that stand still.
    pub fn get(&self, key: &Key) -> Result<Option<Vec<u8>>> {
        let state = self.state()?;
        let stored = state.engine()?.get(key).map_err(|trouble| unreadable(key, trouble))?;
        stored.map(|stored| batch::unseal(key, &stored).map(<[u8]>::to_vec)).transpose()
    }

    /// Rows from `from` up to `to`, exclusive, until they have `bytes_max` together, but at least one. Each chunk is of
    /// one state of the rows; the next one may be of a later state.
    ///
    /// # Errors
    /// As [`Rows::get`].
    pub fn scan(&self, from: &Key, to: &Key, bytes_max: u64) -> Result<Chunk> {
        let mut chunk = Chunk::default();
        let mut take = |key, value| {
            chunk.rows.push((key, value?));
            Ok(())
        };
        chunk.next = self.scan_each(from, to, bytes_max, &mut take)?;
        Ok(chunk)
    }

    /// Passes rows as [`Rows::scan`] has them, with an error in place of a damaged value. Returns where the next chunk
    /// begins.
    ///
    /// # Errors
    /// As [`Rows::get`], and the first error of `take`, which ends the scan.
    pub(crate) fn scan_each(
        &self,
        from: &Key,
        to: &Key,
        bytes_max: u64,
        take: &mut dyn FnMut(Key, Result<Vec<u8>>) -> Result<()>,
    ) -> Result<Option<Key>> {
        let (mut next, mut bytes, mut taken) = (None, 0, Ok(()));
        let mut is_first = true;
        let mut each = |key: &[u8], stored: &[u8]| {
            let key = Key::from_engine(key);
            bytes += (key.as_bytes().len() + stored.len()) as u64;
            if !is_first && bytes > bytes_max {
                next = Some(key);
                return false;
            }
            is_first = false;
            let value = batch::unseal(&key, stored).map(<[u8]>::to_vec);
            taken = take(key, value);
            taken.is_ok()
        };
        let state = self.state()?;
        let scanned = state.engine()?.scan(from, to, &mut each);
        drop(state);
        scanned.map_err(|trouble| unreadable(from, trouble))?;
        taken.map(|()| next)
    }

    /// Removes all rows from `from` up to `to`, exclusive, in batches of about a MiB of keys. Damaged values are
    /// removed too.
    ///
    /// # Errors
    /// As [`Rows::get`], and when a batch is not known to be durable. Earlier batches stay.
    pub fn remove_range(&self, from: &Key, to: &Key) -> Result<Removed> {
        let mut removed = Removed::default();
        let mut from = from.clone();
        loop {
            let (mut batch, mut bytes) = (Batch::new(), 0);
            let mut take = |key: &[u8], stored: &[u8]| {
                if batch.bytes() >= REMOVED_BYTES {
                    return false;
                }
                bytes += (key.len() + stored.len()) as u64;
                batch.remove(Key::from_engine(key));
                true
            };
            let state = self.state()?;
            let scanned = state.engine()?.scan(&from, to, &mut take);
            drop(state);
            scanned.map_err(|trouble| unreadable(&from, trouble))?;
            let Some((last, _)) = batch.changes.last_key_value() else {
                return Ok(removed);
            };
            from = last.successor();
            removed.rows += batch.changes.len() as u64;
            self.write(batch).durable()?;
            removed.bytes += bytes;
            counters::add(&self.core.counts.reclaimed_bytes, bytes);
        }
    }

    /// Opens the engine again after an unknown outcome, and tells which group is the last one that is there. Until
    /// then the rows refuse everything. Rows that do not stand still are left as they are.
    ///
    /// # Errors
    /// As [`Rows::open`]; then the rows still stand still, and can be opened again later.
    pub fn reopen(&self, progress: &dyn Progress) -> Result<Reopened> {
        self.core.check_process()?;
        self.core.reopen(progress)
    }

    /// Whether a group whose outcome was unknown is there; `None` while the rows stand still.
    pub fn has_group(&self, group: u64) -> Option<bool> {
        let state = self.core.read_state();
        state.engine().ok().map(|_| state.has_group(group))
    }

    /// Whether everything is refused until the rows are opened again.
    pub fn stand_still(&self) -> bool {
        self.core.read_state().engine().is_err()
    }

    /// Why nothing can be written, whatever is done; `None` for rows that are whole.
    pub(crate) fn why_read_only(&self) -> Option<&Error> {
        self.core.why_read_only.as_ref()
    }

    /// Refuses a process that was forked from the one that opened the folder.
    pub(crate) fn check_process(&self) -> Result<()> {
        self.core.check_process()
    }

    /// Bytes that are reserved for the engine, whatever it uses at the moment.
    pub fn memory_bytes(&self) -> u64 {
        self.core.memory.budget
    }

    /// Counters since the folder was opened.
    pub fn counters(&self) -> Counters {
        self.core.counts.read()
    }

    fn state(&self) -> Result<RwLockReadGuard<'_, State>> {
        self.core.check_process()?;
        Ok(self.core.read_state())
    }
}

/// The error of a row that the engine cannot read.
fn unreadable(key: &Key, trouble: Trouble) -> Error {
    if trouble.is_disk {
        return Error {
            kind: ErrorKind::Io,
            message: format!("{key} cannot be read: {}; check the disk", trouble.why),
        };
    }
    batch::damaged(key, &trouble.why)
}

impl Drop for Rows {
    fn drop(&mut self) {
        // A forked child has no thread to wait for. The thread's share of `core` stays, and with it the engine, which
        // would wait for threads of its own.
        if self.core.check_process().is_err() {
            return;
        }
        self.core.queue.close();
        if let Some(thread) = self.thread.take() {
            // What a thread panicked on was printed when it happened.
            let _ = thread.join();
        }
    }
}
