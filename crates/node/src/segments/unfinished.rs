//! A merge that was begun: what it is made of, so that the next process can go on with it.
//!
//! | `merge.bin` | content, little-endian |
//! |---|---|
//! | 0 | `u8` version, 1; `u8` level of the new segment; `u32` sources |
//! | for each source | `u64` number, `u32` rows, `u32` bytes, and the rows that were left, as a sieve is encoded |
//! | end | `u64` xxh3 of all before |

use std::path::Path;
use std::sync::Arc;

use stratann_core::sieve::Sieve;
use stratann_storage::durable::{sync_folder, write_synced};
use stratann_storage::{Error, Result, input};
use xxhash_rust::xxh3::xxh3_64;

/// Name of the file in the folder of the new segment.
const NAME: &str = "merge.bin";
const VERSION: u8 = 1;

/// What a merge was begun with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Unfinished {
    /// Level of the new segment.
    pub(crate) level: u8,
    /// Number of each source, and its rows that were left.
    pub(crate) sources: Vec<(u64, Arc<Sieve>)>,
}

impl Unfinished {
    /// Notes what a merge is made of, in the folder of the new segment.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(NAME);
        write_synced(&path, &self.encode()).map_err(|e| Error::io("writing", &path, &e))?;
        sync_folder(folder)
    }

    /// What the merge in a folder was begun with; `None` where none was, or nobody can tell.
    pub(crate) fn read(folder: &Path) -> Option<Unfinished> {
        Unfinished::decode(&input::read(&folder.join(NAME)).ok()?)
    }

    /// Ends the note, when the segment is whole.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn remove(folder: &Path) -> Result<()> {
        let path = folder.join(NAME);
        std::fs::remove_file(&path).map_err(|e| Error::io("removing", &path, &e))
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION, self.level];
        bytes.extend((self.sources.len() as u32).to_le_bytes());
        for (number, left) in &self.sources {
            let mut rows = Vec::new();
            left.encode(&mut rows);
            bytes.extend(number.to_le_bytes());
            bytes.extend(left.rows().to_le_bytes());
            bytes.extend((rows.len() as u32).to_le_bytes());
            bytes.extend(rows);
        }
        let sum = xxh3_64(&bytes);
        bytes.extend(sum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Unfinished> {
        let (content, sum) = bytes.split_last_chunk::<8>()?;
        if u64::from_le_bytes(*sum) != xxh3_64(content) {
            return None;
        }
        let ([VERSION, level], rest) = content.split_first_chunk::<2>()? else { return None };
        let (count, mut rest) = rest.split_first_chunk::<4>()?;
        let mut sources = Vec::new();
        for _ in 0..u32::from_le_bytes(*count) {
            let (number, after) = rest.split_first_chunk::<8>()?;
            let (rows, after) = after.split_first_chunk::<4>()?;
            let (length, after) = after.split_first_chunk::<4>()?;
            let (left, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            let left = Sieve::decode(u32::from_le_bytes(*rows), left).ok()?;
            sources.push((u64::from_le_bytes(*number), Arc::new(left)));
            rest = after;
        }
        rest.is_empty().then_some(Unfinished { level: *level, sources })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_begun_is_read_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let left = |rows, gone: &[u32]| Arc::new(Sieve::all(rows).without(gone));
        let begun =
            Unfinished { level: 2, sources: vec![(3, left(100_000, &[1, 70_000])), (9, left(5, &[]))] };
        begun.write(place.path()).unwrap();
        assert_eq!(Unfinished::read(place.path()), Some(begun.clone()));
        let bytes = begun.encode();
        (0..bytes.len()).for_each(|length| assert_eq!(Unfinished::decode(&bytes[..length]), None));
        Unfinished::remove(place.path()).unwrap();
        assert_eq!(Unfinished::read(place.path()), None);
    }
}
