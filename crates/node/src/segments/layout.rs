//! Which segments a collection has, as its rows say it.

use serde::{Deserialize, Serialize};
use stratann_storage::data_file::FileEntry;

use crate::rows::{Key, RowKind};

/// Level of the largest segment.
pub(crate) const LARGEST: u8 = 2;
/// Version of this form.
const VERSION: u32 = 1;

/// Segments of a collection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Layout {
    version: u32,
    /// Sequence number up to which segments hold everything; rows of the tail up to it are dead.
    pub(crate) watermark: u64,
    /// Number of the next segment.
    pub(crate) next_segment: u64,
    /// The segments.
    pub(crate) segments: Vec<SegmentEntry>,
}

/// A segment of a layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SegmentEntry {
    /// Its number in the collection.
    pub(crate) number: u64,
    /// 0 for a checkpoint, 1 for one between, 2 for the largest.
    pub(crate) level: u8,
    /// Kind of its index; nothing where vectors have names.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) kind: String,
    /// Identity of its index; nothing where vectors have names.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) build: String,
    /// Rows, dead ones included.
    pub(crate) rows: u64,
    /// The table of ids.
    pub(crate) ids: FileEntry,
    /// Vectors as they were given, where the index has them turned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) vectors: Option<FileEntry>,
    /// Payloads, where some point has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) payloads: Option<PayloadFiles>,
    /// Sum over all rows, see [`Content`](super::Content).
    pub(crate) content: String,
    /// Bytes of all files.
    pub(crate) bytes: u64,
    /// Rows of the segment on which its recall curves were measured, where they are those of another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) measured_rows: Option<u64>,
    /// An index for each name of vectors that some row has, where vectors have names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) indexes: Vec<IndexEntry>,
}

/// An index of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IndexEntry {
    /// Place of the name of its vectors in the order of names.
    pub(crate) name: usize,
    /// Kind of the index.
    pub(crate) kind: String,
    /// Identity of the index.
    pub(crate) build: String,
    /// Rows that have a vector of the name, dead ones included.
    pub(crate) rows: u64,
    /// Vectors as they were given, where the index has them turned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) vectors: Option<FileEntry>,
    /// Which rows of the segment it has, where vectors have names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) places: Option<FileEntry>,
    /// Rows on which its recall curves were measured, where they are those of another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) measured_rows: Option<u64>,
}

impl SegmentEntry {
    /// All indexes of the segment.
    pub(crate) fn all_indexes(&self) -> Vec<IndexEntry> {
        if self.kind.is_empty() {
            return self.indexes.clone();
        }
        vec![IndexEntry {
            name: 0,
            kind: self.kind.clone(),
            build: self.build.clone(),
            rows: self.rows,
            vectors: self.vectors.clone(),
            places: None,
            measured_rows: self.measured_rows,
        }]
    }

    /// The index of the place of a name.
    pub(crate) fn index_of(&self, name: usize) -> Option<IndexEntry> {
        self.all_indexes().into_iter().find(|own| own.name == name)
    }
}

/// Files of the payloads of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PayloadFiles {
    /// The payloads.
    pub(crate) rows: FileEntry,
    /// Which index of them counts.
    pub(crate) generation: u32,
    /// The index.
    pub(crate) index: FileEntry,
}

impl PayloadFiles {
    /// Bytes of the files.
    pub(crate) fn bytes(&self) -> u64 {
        self.rows.bytes + self.index.bytes
    }
}

impl Default for Layout {
    fn default() -> Layout {
        Layout { version: VERSION, watermark: 0, next_segment: 1, segments: Vec::new() }
    }
}

impl Layout {
    /// Segments that hold everything up to `watermark`.
    pub(crate) fn new(watermark: u64, next_segment: u64, segments: Vec<SegmentEntry>) -> Layout {
        Layout { version: VERSION, watermark, next_segment, segments }
    }

    /// Key of the layout of a collection.
    pub(crate) fn key(collection: u64) -> Key {
        Key::first(collection, RowKind::Segments)
    }

    /// Key of a dead row of a segment, by its ordinal.
    pub(crate) fn death_key(collection: u64, segment: u64, ordinal: u32) -> Key {
        Key::first(collection, RowKind::Deletes).number(segment).number(u64::from(ordinal))
    }

    /// Key of a newer payload of a segment, by the ordinal of its point.
    pub(crate) fn overlay_key(collection: u64, segment: u64, ordinal: u32) -> Key {
        Key::first(collection, RowKind::Overlay).number(segment).number(u64::from(ordinal))
    }

    /// Segment and ordinal of the key of a dead row, or of a newer payload.
    pub(crate) fn of_row_key(key: &Key) -> Option<(u64, u32)> {
        let (segment, ordinal) = key.rest().split_first_chunk::<8>()?;
        let ordinal = u64::from_be_bytes(ordinal.try_into().ok()?);
        Some((u64::from_be_bytes(*segment), u32::try_from(ordinal).ok()?))
    }

    /// Keys of all rows of a kind that a segment has: the first, and the one behind the last.
    pub(crate) fn rows_of(collection: u64, kind: RowKind, segment: u64) -> (Key, Key) {
        let key = |segment| Key::first(collection, kind).number(segment);
        (key(segment), key(segment.saturating_add(1)))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The layout in a row; `None` for one that is none, or of a newer version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Layout> {
        let layout: Layout = serde_json::from_slice(bytes).ok()?;
        let numbers: std::collections::BTreeSet<u64> = layout.segments.iter().map(|own| own.number).collect();
        let is_sane = layout.version == VERSION
            && numbers.len() == layout.segments.len()
            && numbers.last().is_none_or(|last| *last < layout.next_segment);
        is_sane.then_some(layout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_comes_back_and_a_senseless_one_does_not() {
        let file = FileEntry { bytes: 3, xxh3: "00".into() };
        let entry = SegmentEntry {
            number: 4,
            level: 2,
            kind: "flat".into(),
            build: "b".into(),
            rows: 9,
            payloads: Some(PayloadFiles { rows: file.clone(), generation: 1, index: file.clone() }),
            ids: file.clone(),
            vectors: None,
            content: "0".into(),
            bytes: 12,
            measured_rows: Some(6),
            indexes: Vec::new(),
        };
        let layout =
            Layout { watermark: 7, next_segment: 5, segments: vec![entry.clone()], ..Layout::default() };
        assert_eq!(Layout::decode(&layout.encode()), Some(layout.clone()));
        assert_eq!(Layout::decode(b"{}"), None);
        // One that an earlier version wrote has no payloads, and curves of its own.
        let mut older: serde_json::Value = serde_json::from_slice(&layout.encode()).unwrap();
        let of_entry = older["segments"][0].as_object_mut().unwrap();
        assert!(of_entry.remove("payloads").is_some() && of_entry.remove("measured_rows").is_some());
        let older = Layout::decode(&serde_json::to_vec(&older).unwrap()).unwrap();
        assert_eq!(older.segments[0], SegmentEntry { payloads: None, measured_rows: None, ..entry.clone() });
        // Of a segment with names each index is named; those without say no word of that.
        assert!(!String::from_utf8(layout.encode()).unwrap().contains("indexes"));
        let one = IndexEntry { name: 3, places: Some(file.clone()), ..entry.index_of(0).unwrap() };
        let named = SegmentEntry {
            kind: String::new(),
            build: String::new(),
            measured_rows: None,
            indexes: vec![one.clone()],
            ..entry.clone()
        };
        assert_eq!((named.index_of(3), named.index_of(0)), (Some(one), None));
        let of_names = Layout { segments: vec![named], ..layout.clone() };
        assert_eq!(Layout::decode(&of_names.encode()), Some(of_names));
        for wrong in [
            Layout { next_segment: 4, ..layout.clone() },
            Layout { version: 2, ..layout.clone() },
            Layout { segments: vec![entry.clone(), entry], ..layout },
        ] {
            assert_eq!(Layout::decode(&wrong.encode()), None);
        }
        let key = Layout::death_key(3, 4, 5);
        assert_eq!(Layout::of_row_key(&key), Some((4, 5)));
        let (first, end) = Layout::rows_of(3, RowKind::Deletes, 4);
        assert!(first < key && key < end && end <= Layout::death_key(3, 5, 0));
    }
}
