//! A copy of what the rows say of the segments of a collection, beside the segments: where the storage engine is
//! damaged, they are searched as it says.
//!
//! | `copy.bin` | content, little-endian |
//! |---|---|
//! | 0 | `u8` version, 1; `u64` number of the collection; `u64` sequence number of the newest change |
//! | 17 | name, shape, layout as the rows have them; each a `u32` of its bytes before |
//! | for each segment of the layout | `u32` bytes, and the rows that were left, as a sieve is encoded |
//! | end | `u64` xxh3 of all before |

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stratann_core::sieve::Sieve;
use stratann_storage::durable::{sync_folder, write_synced};
use stratann_storage::{Error, Result, input};
use xxhash_rust::xxh3::xxh3_64;

use super::layout::Layout;

const NAME: &str = "copy.bin";
const UNFINISHED: &str = "copy.new";
const VERSION: u8 = 1;

/// Rows that were left of segments, by the numbers of collection and segment.
pub(crate) type Left = BTreeMap<(u64, u64), Sieve>;

/// The segments of a collection as they were after a checkpoint or a merge.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LayoutCopy {
    /// Number of the collection.
    pub(crate) collection: u64,
    /// Sequence number of its newest change then.
    pub(crate) seq: u64,
    /// Its name.
    pub(crate) name: String,
    /// The shape of its vectors, as the catalogue has it.
    pub(crate) spec: Vec<u8>,
    /// Its segments.
    pub(crate) layout: Layout,
    /// Rows of each segment that were left.
    pub(crate) left: Vec<Sieve>,
}

impl LayoutCopy {
    /// Writes the copy into the folder of a collection, in place of an earlier one.
    ///
    /// # Errors
    /// `Io`; then an earlier one stays.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let (unfinished, path) = (folder.join(UNFINISHED), folder.join(NAME));
        let written = write_synced(&unfinished, &self.encode());
        let renamed = written.and_then(|()| std::fs::rename(&unfinished, &path));
        renamed.map_err(|e| Error::io("writing", &path, &e))?;
        sync_folder(folder)
    }

    /// Where the copy of a collection is.
    pub(crate) fn path(folder: &Path) -> PathBuf {
        folder.join(NAME)
    }

    /// Reads the copy in the folder of a collection; `None` where there is none, or it is damaged.
    pub(crate) fn read(folder: &Path) -> Option<LayoutCopy> {
        LayoutCopy::decode(&input::read(&LayoutCopy::path(folder)).ok()?)
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend(self.collection.to_le_bytes());
        bytes.extend(self.seq.to_le_bytes());
        let mut part = |part: &[u8]| {
            bytes.extend((part.len() as u32).to_le_bytes());
            bytes.extend(part);
        };
        [self.name.as_bytes(), &self.spec, &self.layout.encode()].into_iter().for_each(&mut part);
        for left in &self.left {
            let mut rows = Vec::new();
            left.encode(&mut rows);
            part(&rows);
        }
        let sum = xxh3_64(&bytes);
        bytes.extend(sum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<LayoutCopy> {
        let (content, sum) = bytes.split_last_chunk::<8>()?;
        if u64::from_le_bytes(*sum) != xxh3_64(content) {
            return None;
        }
        let ([VERSION], rest) = content.split_first_chunk::<1>()? else { return None };
        let (collection, rest) = rest.split_first_chunk::<8>()?;
        let (seq, mut rest) = rest.split_first_chunk::<8>()?;
        let mut part = || {
            let (length, after) = rest.split_first_chunk::<4>()?;
            let (part, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            rest = after;
            Some(part)
        };
        let name = String::from_utf8(part()?.to_vec()).ok()?;
        let spec = part()?.to_vec();
        let layout = Layout::decode(part()?)?;
        let left =
            layout.segments.iter().map(|own| Sieve::decode(u32::try_from(own.rows).ok()?, part()?).ok());
        let left = left.collect::<Option<Vec<_>>>()?;
        let (collection, seq) = (u64::from_le_bytes(*collection), u64::from_le_bytes(*seq));
        rest.is_empty().then_some(LayoutCopy { collection, seq, name, spec, layout, left })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_read_whole_or_not_at_all() {
        let place = tempfile::tempdir().unwrap();
        let copy = LayoutCopy {
            collection: 3,
            seq: 17,
            name: "é".into(),
            spec: vec![1, 2],
            layout: Layout::default(),
            left: Vec::new(),
        };
        copy.write(place.path()).unwrap();
        assert_eq!(LayoutCopy::read(place.path()), Some(copy.clone()));
        let bytes = copy.encode();
        (0..bytes.len()).for_each(|length| assert_eq!(LayoutCopy::decode(&bytes[..length]), None));
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert_eq!(LayoutCopy::decode(&flipped), None);
        }
    }
}
