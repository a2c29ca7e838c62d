//! How a data folder is opened.

/// How a data folder is opened.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Memory of the storage engine: its cache, tables that are not yet in a file, and merges.
    pub memory_bytes: u64,
    /// Disk that is kept for removals when the disk is full.
    pub reserve_bytes: u64,
    /// Log that stays when a folder is opened and all of it is in files of the engine, too. Each opening reads it
    /// again.
    pub log_bytes_kept: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { memory_bytes: 128 << 20, reserve_bytes: 64 << 20, log_bytes_kept: 4 << 20 }
    }
}
