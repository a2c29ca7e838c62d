//! Operations on a region, and their limits.

use super::MemoryError;

/// Most operations of a request.
pub const OPERATIONS_MAX: usize = 1024;
/// Most bytes that one request reads.
pub const READ_BYTES_MAX: u64 = 256 << 20;
/// Most bytes that one request writes.
pub const WRITE_BYTES_MAX: u64 = 16 << 20;
/// Bytes of a word that atomic operations change.
pub(super) const WORD: u64 = 8;

/// One operation of a request.
#[derive(Debug)]
pub enum Operation<'a> {
    /// Reads the bytes at `offset`.
    Read {
        /// The first byte.
        offset: u64,
        /// Receives the bytes.
        into: &'a mut [u8],
    },
    /// Writes the bytes at `offset`.
    Write {
        /// The first byte.
        offset: u64,
        /// The bytes.
        from: &'a [u8],
    },
    /// Adds to a word, and wraps around.
    FetchAdd {
        /// The word, at a multiple of 8.
        offset: u64,
        /// The summand.
        add: u64,
        /// Receives the value before.
        old: u64,
    },
    /// Replaces a word if it has the expected value.
    CompareSwap {
        /// The word, at a multiple of 8.
        offset: u64,
        /// The value that is replaced.
        expected: u64,
        /// The value that replaces it.
        new: u64,
        /// Receives the value before.
        old: u64,
    },
}

impl Operation<'_> {
    /// Value before an atomic operation; 0 for others.
    pub fn old(&self) -> u64 {
        match self {
            Operation::FetchAdd { old, .. } | Operation::CompareSwap { old, .. } => *old,
            Operation::Read { .. } | Operation::Write { .. } => 0,
        }
    }

    /// Whether it changes the region.
    pub(super) fn changes(&self) -> bool {
        !matches!(self, Operation::Read { .. })
    }

    /// The part of it that limits are checked against.
    pub(super) fn access(&self) -> Access {
        match self {
            Operation::Read { offset, into } => Access::Read { offset: *offset, bytes: into.len() as u64 },
            Operation::Write { offset, from } => Access::Write { offset: *offset, bytes: from.len() as u64 },
            Operation::FetchAdd { offset, .. } | Operation::CompareSwap { offset, .. } => {
                Access::Atomic { offset: *offset }
            }
        }
    }
}

/// Range and direction of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read { offset: u64, bytes: u64 },
    Write { offset: u64, bytes: u64 },
    Atomic { offset: u64 },
}

/// Checks the number of operations of a request, and their bytes.
pub(super) fn check_limits(accesses: impl ExactSizeIterator<Item = Access>) -> Result<(), MemoryError> {
    if accesses.len() > OPERATIONS_MAX {
        return Err(MemoryError::TooMany { operations: accesses.len() as u64, limit: OPERATIONS_MAX as u64 });
    }
    let (mut read, mut written) = (0u64, 0u64);
    for access in accesses {
        match access {
            Access::Read { bytes, .. } => read = read.saturating_add(bytes),
            Access::Write { bytes, .. } => written = written.saturating_add(bytes),
            Access::Atomic { .. } => {}
        }
    }
    if read > READ_BYTES_MAX {
        return Err(MemoryError::TooLarge { bytes: read, limit: READ_BYTES_MAX });
    }
    if written > WRITE_BYTES_MAX {
        return Err(MemoryError::TooLarge { bytes: written, limit: WRITE_BYTES_MAX });
    }
    Ok(())
}

/// Checks that ranges are in the region, and words at their multiples.
pub(super) fn check_bounds(
    mut accesses: impl Iterator<Item = Access>,
    region_bytes: u64,
) -> Result<(), MemoryError> {
    accesses.try_for_each(|access| {
        let (offset, bytes) = match access {
            Access::Read { offset, bytes } | Access::Write { offset, bytes } => (offset, bytes),
            Access::Atomic { offset } if !offset.is_multiple_of(WORD) => {
                return Err(MemoryError::Unaligned { offset });
            }
            Access::Atomic { offset } => (offset, WORD),
        };
        match offset.checked_add(bytes) {
            Some(end) if end <= region_bytes => Ok(()),
            _ => Err(MemoryError::OutOfBounds { offset, bytes, region_bytes }),
        }
    })
}
