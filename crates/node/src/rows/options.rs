//! How a data folder is opened.

/// How a data folder is opened.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Memory of the storage engine: its cache, tables that are not yet in a file, and merges.
    pub memory_bytes: u64,
    /// Disk that is kept for removals when the disk is full.
    pub reserve_bytes: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { memory_bytes: 128 << 20, reserve_bytes: 64 << 20 }
    }
}
