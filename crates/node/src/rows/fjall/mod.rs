//! Rows on `fjall`: a log, tables in memory, and sorted files that are merged by one thread of the engine.
//!
//! The engine limits no memory by itself and waits without end for files that its thread cannot write. So tables in
//! memory are given to its thread here, and a write waits here for room, while the thread is alive.

mod journal;
mod manifests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fjall::compaction::Leveled;
use fjall::config::{BlockSizePolicy, PartitioningPolicy, PinningPolicy};
use fjall::{
    AbstractTree, Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode, Readable,
};

use super::engine::{Engine, EngineKind, Trouble, Written};
use super::key::Key;
use super::memory::Memory;
use stratann_storage::durable;
use stratann_storage::error::quoted;

/// The one keyspace.
const ROWS: &str = "rows";
/// Files of the engine that are open at once.
const OPEN_FILES: usize = 128;
/// Size of a sorted file. A merge writes about twelve of them, and tables wait in memory meanwhile.
const FILE_BYTES: u64 = 8 << 20;
/// Unit of reading. The tail is scanned, and has values of half a KiB and more.
const BLOCK_BYTES: u32 = 16 << 10;
/// Pause between two looks at what the engine's thread has done. It tells nobody.
const PAUSE: Duration = Duration::from_micros(500);

/// An open database.
pub(super) struct Fjall {
    // Dropped first: a keyspace keeps the lock of the database.
    rows: Keyspace,
    database: Database,
    memory: Memory,
}

/// The engine, as the rows open it.
pub(super) const FJALL: EngineKind = EngineKind {
    open,
    end_of_log: journal::end_of_log,
    cut_log: journal::cut_log,
    empty_log: journal::empty_log,
};

/// Opens a database, or creates one.
fn open(folder: &Path, memory: &Memory) -> Result<Box<dyn Engine>, Trouble> {
    let opened = guarded(|| {
        if folder.exists() {
            manifests::check(folder)?;
        }
        let database = Database::builder(folder)
            .cache_size(memory.cache)
            .max_cached_files(Some(OPEN_FILES))
            .worker_threads(1)
            .manual_journal_persist(true)
            .open()?;
        let options = || {
            KeyspaceCreateOptions::default()
                // Tables are rotated here: the engine would keep the first budget for ever.
                .max_memtable_size(u64::MAX)
                .manual_journal_persist(true)
                .data_block_size_policy(BlockSizePolicy::all(BLOCK_BYTES))
                // Indexes and filters are in the cache, whose size is known.
                .index_block_pinning_policy(PinningPolicy::all(false))
                .filter_block_pinning_policy(PinningPolicy::all(false))
                .index_block_partitioning_policy(PartitioningPolicy::all(true))
                .filter_block_partitioning_policy(PartitioningPolicy::all(true))
                .compaction_strategy(Arc::new(Leveled::default().with_table_target_size(FILE_BYTES)))
        };
        let rows = database.keyspace(ROWS, options)?;
        // The engine does not sync the names of new keyspaces.
        for folder in [folder, &folder.join("keyspaces")] {
            durable::sync_folder(folder).map_err(|e| std::io::Error::other(e.message))?;
        }
        Ok(Box::new(Fjall { rows, database, memory: *memory }) as Box<dyn Engine>)
    });
    opened.map_err(Trouble::from)
}

impl Fjall {
    /// Waits until `bytes` more fit into the tables in memory.
    fn wait_for_room(&self, bytes: u64) -> fjall::Result<()> {
        loop {
            let held = self.database.write_buffer_size();
            if held == 0 || held.saturating_add(bytes) <= self.memory.tables {
                return Ok(());
            }
            self.check()?;
            if self.rows.tree.sealed_memtable_count() == 0 && !self.rows.rotate_memtable()? {
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// An error when the engine's thread has ended.
    fn check(&self) -> fjall::Result<()> {
        self.database.persist(PersistMode::Buffer)
    }

    fn commit(&self, batch: OwnedWriteBatch) -> Written {
        match guarded(|| batch.commit()) {
            Ok(()) => Written::Durable,
            Err(Stopped { before_writing: true, trouble }) => Written::Nothing(trouble),
            Err(Stopped { trouble, .. }) => Written::Unknown(trouble),
        }
    }
}

impl Engine for Fjall {
    fn write(&self, changes: &mut dyn Iterator<Item = (Key, Option<Vec<u8>>)>, bytes: u64) -> Written {
        if let Err(stopped) = guarded(|| self.wait_for_room(bytes)) {
            return Written::Nothing(stopped.trouble);
        }
        let mut batch = self.database.batch().durability(Some(PersistMode::SyncData));
        for (key, value) in changes {
            match value {
                Some(value) => batch.insert(&self.rows, key.as_bytes(), value),
                None => batch.remove(&self.rows, key.as_bytes()),
            }
        }
        let written = self.commit(batch);
        let is_full = self.rows.tree.active_memtable().size() > self.memory.table;
        if matches!(written, Written::Durable) && is_full && self.rows.tree.sealed_memtable_count() < 2 {
            // Where it fails, the engine stands still, and the next group fails.
            let _ = guarded(|| self.rows.rotate_memtable());
        }
        written
    }

    fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, Trouble> {
        let value = guarded(|| self.database.snapshot().get(&self.rows, key.as_bytes()));
        Ok(value?.map(|value| value.to_vec()))
    }

    fn scan(&self, from: &Key, to: &Key, take: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<(), Trouble> {
        let scanned = guarded(|| {
            for row in self.database.snapshot().range(&self.rows, from.as_bytes()..to.as_bytes()) {
                let (key, value) = row.into_inner()?;
                if !take(&key, &value) {
                    break;
                }
            }
            Ok(())
        });
        scanned.map_err(Trouble::from)
    }

    fn settle(&self) -> Result<(), Trouble> {
        let settled = guarded(|| {
            self.rows.rotate_memtable()?;
            while self.rows.tree.sealed_memtable_count() > 0 {
                self.check()?;
                std::thread::sleep(PAUSE);
            }
            self.check()
        });
        settled.map_err(Trouble::from)
    }
}

struct Stopped {
    /// The engine had stopped before, so that it wrote nothing.
    before_writing: bool,
    trouble: Trouble,
}

impl From<Stopped> for Trouble {
    fn from(stopped: Stopped) -> Trouble {
        stopped.trouble
    }
}

/// Runs the engine. It has assertions about what it reads, which must not end the process.
fn guarded<T>(run: impl FnOnce() -> fjall::Result<T>) -> Result<T, Stopped> {
    let (before_writing, is_disk, why) = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(done)) => return Ok(done),
        Ok(Err(fjall::Error::Poisoned)) => {
            (true, true, "its thread stopped after a failure of the disk".to_string())
        }
        Ok(Err(error)) => match io_error(&error) {
            Some(e) => (false, is_refusal(e), quoted(&e.to_string())),
            None => (false, false, quoted(&error.to_string())),
        },
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            (false, false, format!("it panicked: {}", quoted(text)))
        }
    };
    Err(Stopped { before_writing, trouble: Trouble { why, is_disk } })
}

/// The error of the operating system that an error has, if any.
fn io_error(error: &fjall::Error) -> Option<&std::io::Error> {
    match error {
        fjall::Error::Io(e) | fjall::Error::Storage(fjall::LsmError::Io(e)) => Some(e),
        _ => None,
    }
}

/// Whether an operation was refused. A file that is missing or ends too early is damage.
fn is_refusal(e: &std::io::Error) -> bool {
    use std::io::ErrorKind::{InvalidData, NotFound, UnexpectedEof};
    !matches!(e.kind(), InvalidData | NotFound | UnexpectedEof)
}
