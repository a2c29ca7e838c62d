//! Changes that are made together, and the checksum of each value.
//!
//! A value is stored behind 8 bytes: xxh3 of the value, little-endian, seeded with xxh3 of the key. So a value that
//! stands under another key is damaged too.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::key::{KEY_BYTES_MAX, Key};
use stratann_storage::{Error, Result};

/// Largest batch, keys and values together.
pub const BATCH_BYTES_MAX: u64 = 8 << 20;

const SUM_BYTES: usize = 8;
/// Memory of a change besides its key and its value.
const CHANGE_BYTES: u64 = 128;

/// Changes of rows, made all or none. Of several changes of a key the last one counts.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// A value with its checksum, or none for a row to remove.
    pub(super) changes: BTreeMap<Key, Option<Vec<u8>>>,
    bytes: u64,
    puts: bool,
}

impl Batch {
    /// Creates a batch without changes.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Sets the value of a row.
    pub fn put(&mut self, key: Key, value: &[u8]) {
        let sum = checksum(&key, value);
        self.bytes += (key.as_bytes().len() + SUM_BYTES + value.len()) as u64;
        self.puts = true;
        self.changes.insert(key, Some([&sum.to_le_bytes()[..], value].concat()));
    }

    /// Sets the value of a small row that tells of the removals, such as their number. The batch stays one that only
    /// removes.
    pub fn put_beside(&mut self, key: Key, value: &[u8]) {
        let puts = self.puts;
        self.put(key, value);
        self.puts = puts;
    }

    /// Removes a row, if it is there.
    pub fn remove(&mut self, key: Key) {
        self.bytes += key.as_bytes().len() as u64;
        self.changes.insert(key, None);
    }

    /// Adds the changes of another batch.
    pub(crate) fn append(&mut self, mut other: Batch) {
        self.changes.append(&mut other.changes);
        self.bytes += other.bytes;
        self.puts |= other.puts;
    }

    /// Bytes of all keys and values that were given.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that the batch takes in memory, about.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.bytes + CHANGE_BYTES * self.changes.len() as u64
    }

    /// Whether the batch only removes rows. Such a batch is admitted when the disk is full.
    pub fn only_removes(&self) -> bool {
        !self.puts
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.bytes > BATCH_BYTES_MAX {
            let message =
                format!("a batch has {} bytes; write at most {BATCH_BYTES_MAX} at once", self.bytes);
            return Err(Error::bad_input(message));
        }
        match self.changes.keys().find(|key| key.as_bytes().len() > KEY_BYTES_MAX) {
            Some(key) => {
                Err(Error::bad_input(format!("{key}: the key is longer than {KEY_BYTES_MAX} bytes")))
            }
            None => Ok(()),
        }
    }
}

fn checksum(key: &Key, value: &[u8]) -> u64 {
    xxh3_64_with_seed(value, xxh3_64(key.as_bytes()))
}

/// The value in what an engine stores.
///
/// # Errors
/// `Corrupt` when the checksum differs; the message names collection and row.
pub(super) fn unseal<'a>(key: &Key, stored: &'a [u8]) -> Result<&'a [u8]> {
    match stored.split_first_chunk::<SUM_BYTES>() {
        Some((sum, value)) if u64::from_le_bytes(*sum) == checksum(key, value) => Ok(value),
        _ => Err(damaged(key, "the value differs from its checksum")),
    }
}

/// The error of a row that cannot be read as it was written.
pub(super) fn damaged(key: &Key, why: &str) -> Error {
    Error::corrupt(format!("{key} is damaged: {why}; restore the collection from a snapshot, or drop it"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::RowKind;

    #[test]
    fn a_value_that_differs_in_a_bit_is_damaged() {
        let key = Key::first(3, RowKind::Manifest);
        let mut batch = Batch::new();
        batch.put(key.clone(), b"first");
        batch.put(key.clone(), b"value");
        let stored = batch.changes[&key].clone().unwrap();
        assert_eq!(unseal(&key, &stored).unwrap(), b"value");
        for bit in 0..8 * stored.len() {
            let mut other = stored.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            let error = unseal(&key, &other).unwrap_err();
            assert!(error.message.contains("collection 3, manifest row"), "{error}");
        }
        for length in 0..stored.len() {
            assert!(unseal(&key, &stored[..length]).is_err());
        }
        assert!(unseal(&Key::first(4, RowKind::Manifest), &stored).is_err(), "under another key");
    }

    #[test]
    fn batches_have_limits() {
        let key = Key::first(1, RowKind::Tail);
        let mut batch = Batch::new();
        batch.remove(key.clone());
        batch.put_beside(Key::first(1, RowKind::Manifest), b"one fewer");
        assert!(batch.only_removes() && batch.check().is_ok());
        batch.put(key.clone(), &vec![0; 9 << 20]);
        assert!(!batch.only_removes() && batch.check().is_err());
        let mut batch = Batch::new();
        batch.remove(key.bytes(&[0; 1024]));
        assert!(batch.check().is_err());
    }
}
