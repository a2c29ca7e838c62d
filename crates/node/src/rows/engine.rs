//! What the rows ask of a storage engine.

use std::io;
use std::path::{Path, PathBuf};

use super::key::Key;
use super::memory::Memory;

/// Why an engine did not do what it was asked.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    /// Text for a person.
    pub(crate) why: String,
    /// Whether the operating system refused an operation; damage otherwise.
    pub(crate) is_disk: bool,
}

/// Result of writing a group of batches.
#[derive(Debug)]
pub(crate) enum Written {
    /// All of it is on the disk.
    Durable,
    /// Nothing was written, and the engine stands still.
    Nothing(Trouble),
    /// Writing or syncing failed midway; the engine stands still.
    Unknown(Trouble),
}

/// A storage engine: rows in the order of their keys, changed in durable groups.
///
/// An implementation never panics; what its engine panics on becomes an error.
pub(crate) trait Engine: Send + Sync {
    /// Writes all changes or none, and syncs them. A reader sees all of them or none.
    fn write(&self, changes: &mut dyn Iterator<Item = (Key, Option<Vec<u8>>)>, bytes: u64) -> Written;

    /// Value of a row.
    fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, Trouble>;

    /// Passes rows from `from` up to `to`, exclusive, in ascending order, until `take` returns false. They are of one
    /// state of the engine.
    fn scan(&self, from: &Key, to: &Key, take: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<(), Trouble>;

    /// Writes everything that only the log holds into files of its own, and syncs them.
    fn settle(&self) -> Result<(), Trouble>;
}

/// Where the log of an engine ends that nobody has opened yet.
#[derive(Debug, Default)]
pub(crate) struct LogEnd {
    /// The last value of a key in it.
    pub(crate) last: Option<Vec<u8>>,
    /// Whether something follows that is no batch: one that was being written, or damage.
    pub(crate) is_cut: bool,
    /// Bytes of all whole batches.
    pub(crate) bytes: u64,
    /// The newest file of the log, and the bytes of its whole batches.
    pub(crate) whole: Option<(PathBuf, u64)>,
}

/// Opens an engine in a folder, which may be new.
pub(crate) type Open = fn(&Path, &Memory) -> Result<Box<dyn Engine>, Trouble>;

/// A kind of storage engine.
pub(crate) struct EngineKind {
    /// Opens an engine.
    pub(crate) open: Open,
    /// Reads where the log of an engine ends, and the last value of a key in it, without changing anything.
    pub(crate) end_of_log: fn(&Path, &Key) -> io::Result<LogEnd>,
    /// Removes what follows the last whole batch of a log.
    pub(crate) cut_log: fn(&LogEnd) -> io::Result<()>,
    /// Removes all batches from the log of an engine that is settled and closed.
    pub(crate) empty_log: fn(&Path) -> io::Result<()>,
}
