//! Newer payloads of points whose vectors stay in a segment.
//!
//! | value of the row `o/<segment>/<ordinal>` | bytes | content, little-endian |
//! |---|---|---|
//! | 0 | 1 | version of the layout, 1 |
//! | 1 | 8 | number of the change that wrote it |
//! | 9 | | the payload as compact JSON; nothing for a point without one |

use std::collections::BTreeMap;
use std::sync::Arc;

const VERSION: u8 = 1;
/// Rows of a chunk: a change copies the chunks of its rows.
const CHUNK_ROWS: u32 = 1024;
/// Memory of a payload besides its bytes.
const FIXED_BYTES: u64 = 96;

/// A newer payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Newer {
    /// Number of the change that wrote it.
    pub(crate) seq: u64,
    /// Place of the point in the order of ids.
    pub(crate) ordinal: u32,
    /// Compact JSON; `None` for a point without a payload.
    pub(crate) payload: Option<Arc<[u8]>>,
}

impl Newer {
    fn bytes(&self) -> u64 {
        Overlay::bytes_of(self.payload.as_deref())
    }

    /// Value of its row.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let json = self.payload.as_deref().unwrap_or_default();
        let mut bytes = Vec::with_capacity(9 + json.len());
        bytes.push(VERSION);
        bytes.extend(self.seq.to_le_bytes());
        bytes.extend(json);
        bytes
    }

    /// The payload in the value of a row.
    pub(crate) fn decode(ordinal: u32, bytes: &[u8]) -> Option<Newer> {
        let ([VERSION], rest) = bytes.split_first_chunk::<1>()? else { return None };
        let (seq, json) = rest.split_first_chunk::<8>()?;
        let payload = (!json.is_empty()).then(|| json.into());
        Some(Newer { seq: u64::from_le_bytes(*seq), ordinal, payload })
    }
}

type Chunk = Arc<BTreeMap<u32, Newer>>;

/// Newer payloads of a segment, by row. Copies share what does not change.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overlay {
    chunks: Arc<BTreeMap<u32, Chunk>>,
    count: u64,
    bytes: u64,
    version: u64,
}

impl Overlay {
    /// Memory of a payload, bytes.
    pub(crate) fn bytes_of(payload: Option<&[u8]>) -> u64 {
        FIXED_BYTES + payload.map_or(0, |json| json.len() as u64)
    }

    /// The newer payload of a row.
    pub(crate) fn get(&self, row: u32) -> Option<&Newer> {
        self.chunks.get(&(row / CHUNK_ROWS))?.get(&row)
    }

    /// Puts a newer payload in place of an earlier one.
    pub(crate) fn set(&mut self, row: u32, newer: Newer) {
        self.version = self.version.max(newer.seq);
        self.count += 1;
        self.bytes += newer.bytes();
        let chunk = Arc::make_mut(&mut self.chunks).entry(row / CHUNK_ROWS).or_default();
        let earlier = Arc::make_mut(chunk).insert(row, newer);
        self.count -= u64::from(earlier.is_some());
        self.bytes -= earlier.map_or(0, |earlier| earlier.bytes());
    }

    /// Forgets rows that are dead.
    pub(crate) fn remove(&mut self, rows: &[u32]) {
        for row in rows.iter().filter(|row| self.get(**row).is_some()).copied().collect::<Vec<_>>() {
            let Some(chunk) = Arc::make_mut(&mut self.chunks).get_mut(&(row / CHUNK_ROWS)) else { continue };
            if let Some(gone) = Arc::make_mut(chunk).remove(&row) {
                self.count -= 1;
                self.bytes -= gone.bytes();
            }
        }
    }

    /// Rows with their newer payloads, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Newer)> {
        self.chunks.values().flat_map(|chunk| chunk.iter().map(|(row, newer)| (*row, newer)))
    }

    /// Rows that have one.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Memory, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of the newest change of a payload; 0 without any. What matches a filter follows from it.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_payloads_are_counted_and_copies_stay() {
        let newer = |seq, json: &str| Newer { seq, ordinal: 7, payload: Some(json.as_bytes().into()) };
        let mut overlay = Overlay::default();
        overlay.set(5, newer(1, "{}"));
        let earlier = overlay.clone();
        overlay.set(5, newer(2, "{abc}"));
        overlay.set(5000, Newer { payload: None, ..newer(3, "") });
        assert_eq!((overlay.count(), overlay.bytes(), overlay.version()), (2, 2 * FIXED_BYTES + 5, 3));
        assert_eq!(earlier.iter().map(|(row, own)| (row, own.seq)).collect::<Vec<_>>(), [(5, 1)]);
        overlay.remove(&[4, 5]);
        assert_eq!((overlay.get(5), overlay.count(), overlay.bytes()), (None, 1, FIXED_BYTES));
        for newer in [newer(1 << 40, "{}"), Newer { payload: None, ..newer(4, "") }] {
            let bytes = newer.encode();
            assert_eq!(Newer::decode(7, &bytes), Some(newer));
            (0..9).for_each(|length| assert_eq!(Newer::decode(7, &bytes[..length]), None));
        }
    }
}
