//! The catalogue: which collections there are.
//!
//! | key, behind collection 0 and `c` | value |
//! |---|---|
//! | `n`, name, a zero byte, number of the collection as `u64`, big-endian | its [`Specs`] |
//! | `d`, number of a dropped collection as `u64`, big-endian, whose rows may still be there | nothing |
//! | `i` | number that the next collection gets, `u64`, little-endian |
//! | `l`, number of the collection as `u64`, big-endian | its memory quota and its minimum as `u64`, little-endian, 0 for no quota; no row where both are 0 |
//!
//! Name and number stand in the key, so that a collection can be dropped whose value is damaged.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::error::{Error, Result};
use super::limits::MemoryLimits;
use super::live::Slot;
use super::live::opening::damaged;
use super::spec::Specs;
use crate::rows::{Batch, CHUNK_BYTES, Key, RowKind, Rows};

/// A collection of the catalogue.
pub(super) struct Entry {
    pub(super) id: u64,
    /// The collection, or why it cannot be used.
    pub(super) slot: Result<Arc<Slot>>,
    /// Limits of its memory.
    pub(super) limits: MemoryLimits,
}

/// What the rows say of collections.
#[derive(Default)]
pub(super) struct Catalogue {
    pub(super) entries: BTreeMap<String, Entry>,
    /// Dropped collections whose rows may still be there.
    pub(super) dropped: Vec<u64>,
    pub(super) next_id: u64,
    /// Whether the rows may say something else, after an unknown outcome.
    pub(super) is_stale: bool,
}

fn key(letter: u8) -> Key {
    Key::first(0, RowKind::Catalogue).bytes(&[letter])
}

fn entry_key(name: &str, id: u64) -> Key {
    key(b'n').bytes(name.as_bytes()).bytes(&[0]).number(id)
}

fn parse_entry(rest: &[u8]) -> Option<(String, u64)> {
    let (name, id) = rest.strip_prefix(b"n")?.split_last_chunk::<8>()?;
    let name = std::str::from_utf8(name.strip_suffix(&[0])?).ok()?;
    Some((name.to_string(), u64::from_be_bytes(*id)))
}

/// Key of a dropped collection.
pub(super) fn dropped_key(id: u64) -> Key {
    key(b'd').number(id)
}

/// Key of the memory limits of a collection.
fn limits_key(id: u64) -> Key {
    key(b'l').number(id)
}

/// The number behind a letter.
fn parse_number(rest: &[u8]) -> Option<u64> {
    rest.get(1..).and_then(|id| id.try_into().ok()).map(u64::from_be_bytes)
}

/// Sets the memory limits of a collection.
pub(super) fn change_of_limits(id: u64, limits: &MemoryLimits) -> Batch {
    let mut batch = Batch::new();
    match *limits == MemoryLimits::default() {
        true => batch.remove(limits_key(id)),
        false => batch.put(limits_key(id), &limits.encode()),
    }
    batch
}

/// Makes a collection.
pub(super) fn creation(name: &str, id: u64, specs: &Specs, limits: &MemoryLimits) -> Batch {
    let mut batch = match *limits == MemoryLimits::default() {
        true => Batch::new(),
        false => change_of_limits(id, limits),
    };
    batch.put(entry_key(name, id), &specs.encode());
    batch.put(key(b'i'), &id.saturating_add(1).to_le_bytes());
    batch
}

/// Takes a collection out of the catalogue. A full disk admits it.
pub(super) fn removal(name: &str, id: u64) -> Batch {
    let mut batch = Batch::new();
    batch.remove(entry_key(name, id));
    batch.remove(limits_key(id));
    batch.put_beside(dropped_key(id), &[]);
    batch
}

impl Catalogue {
    /// Reads the catalogue. Collections that `earlier` has keep what they have in memory.
    ///
    /// # Errors
    /// `Corrupt` for a key that names nothing; `Io`. A damaged value is an error of its collection alone.
    pub(super) fn read(rows: &Rows, earlier: &Catalogue) -> Result<Catalogue> {
        let mut read = Catalogue { next_id: earlier.next_id.max(1), ..Catalogue::default() };
        let (mut from, end) = (key(0), Key::end(0, RowKind::Catalogue));
        let (mut wrong, mut limits) = (None, BTreeMap::new());
        let mut take = |key: Key, value: stratann_storage::Result<Vec<u8>>| {
            let is_known = match key.rest().first() {
                Some(b'l') => {
                    parse_number(key.rest()).map(|id| limits.insert(id, limits_of(&key, value))).is_some()
                }
                _ => read.take(&key, value, earlier),
            };
            if !is_known {
                wrong.get_or_insert(key);
            }
            Ok(())
        };
        while let Some(next) = rows.scan_each(&from, &end, CHUNK_BYTES, &mut take)? {
            from = next;
        }
        if let Some(key) = wrong {
            return Err(damaged(&key, "its key is none of the catalogue"));
        }
        for (name, entry) in &mut read.entries {
            let known = earlier.entries.get(name).filter(|known| known.id == entry.id);
            match (limits.remove(&entry.id).unwrap_or_else(|| Ok(MemoryLimits::default())), known) {
                (Ok(limits), _) => entry.limits = limits,
                (Err(_), Some(known)) if known.slot.is_ok() => entry.limits = known.limits,
                (Err(e), _) => entry.slot = Err(e.of_collection(name)),
            }
        }
        Ok(read)
    }

    /// Takes a row in; false for a key that names nothing.
    fn take(&mut self, key: &Key, value: stratann_storage::Result<Vec<u8>>, earlier: &Catalogue) -> bool {
        match key.rest().first() {
            Some(b'n') => {
                let Some((name, id)) = parse_entry(key.rest()) else { return false };
                self.next_id = self.next_id.max(id.saturating_add(1));
                let slot = match earlier.slot(&name, id) {
                    Some(slot) => Ok(slot),
                    None => value.map_err(Error::from).and_then(|value| {
                        let specs = Specs::decode(&value);
                        let specs =
                            specs.ok_or_else(|| damaged(key, "it is no collection of this version"))?;
                        Ok(Arc::new(Slot::new(id, &name, specs)))
                    }),
                };
                let slot = slot.map_err(|e| e.of_collection(&name));
                self.entries.insert(name, Entry { id, slot, limits: MemoryLimits::default() });
            }
            Some(b'd') => {
                let Some(id) = parse_number(key.rest()) else { return false };
                self.dropped.push(id);
                self.next_id = self.next_id.max(id.saturating_add(1));
            }
            // Where it is damaged, the numbers of the others say enough: rows of smaller ones are gone.
            Some(b'i') => {
                let next = value.ok().and_then(|value| value.try_into().ok()).map(u64::from_le_bytes);
                self.next_id = self.next_id.max(next.unwrap_or(0));
            }
            _ => return false,
        }
        true
    }

    /// Limits of the memory of a collection; `None` for one that is not there.
    pub(super) fn limits(&self, name: &str, id: u64) -> Option<MemoryLimits> {
        self.entries.get(name).filter(|entry| entry.id == id).map(|entry| entry.limits)
    }

    fn slot(&self, name: &str, id: u64) -> Option<Arc<Slot>> {
        let entry = self.entries.get(name).filter(|entry| entry.id == id)?;
        entry.slot.as_ref().ok().cloned()
    }

    /// Whether a collection is in it.
    pub(super) fn has(&self, name: &str, id: u64) -> bool {
        self.entries.get(name).is_some_and(|entry| entry.id == id)
    }

    /// The collection of a name.
    ///
    /// # Errors
    /// `Missing`; `Corrupt` for one whose row is damaged.
    pub(super) fn find(&self, name: &str) -> Result<Arc<Slot>> {
        self.entries.get(name).ok_or_else(|| Error::missing(name))?.slot.clone()
    }
}

/// Reads a row of memory limits.
fn limits_of(key: &Key, value: stratann_storage::Result<Vec<u8>>) -> Result<MemoryLimits> {
    let limits = value.ok().and_then(|value| MemoryLimits::decode(&value));
    limits.ok_or_else(|| Error::corrupt(format!("{key} is damaged: its memory limits; set them again")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_name_and_number() {
        for (name, id) in [("a", 1), ("é b", u64::MAX), ("n", 0)] {
            let key = entry_key(name, id);
            assert_eq!(parse_entry(key.rest()), Some((name.to_string(), id)));
        }
        for rest in [&b""[..], b"n", b"n12345678", b"d\x0012345678", b"n\xff\x0012345678"] {
            assert_eq!(parse_entry(rest), None);
        }
    }
}
