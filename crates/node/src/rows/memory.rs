//! Division of the engine's memory.

use stratann_storage::budget::size;
use stratann_storage::{Error, Result};

/// Smallest budget: two batches of the largest size, and a cache.
pub const MEMORY_BYTES_MIN: u64 = 32 << 20;

/// Memory of an engine, all of which follows from one budget. What is left of it is for merges of the engine's files
/// and for what the allocator cannot give back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// The budget.
    pub(super) budget: u64,
    /// Blocks of files that were read.
    pub(super) cache: u64,
    /// Rows that are in the log and not yet in a file, all tables in memory together, as the engine counts them. Short
    /// rows take half as much again.
    pub(super) tables: u64,
    /// Size from which a table in memory is written to a file.
    pub(super) table: u64,
}

impl Memory {
    /// Divides a budget.
    ///
    /// # Errors
    /// `Budget` below the smallest one, which the message names.
    pub(super) fn of(budget: u64) -> Result<Memory> {
        if budget < MEMORY_BYTES_MIN {
            let message = format!(
                "the storage engine gets {}; give it {} or more",
                size(budget),
                size(MEMORY_BYTES_MIN)
            );
            return Err(Error::budget(message));
        }
        Ok(Memory { budget, cache: budget / 8, tables: budget / 4, table: budget / 12 })
    }
}
