//! Keys of rows, whose order is that of their bytes.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | collection, big-endian; 0 is the data folder itself |
//! | 1 | kind of row, a letter |
//! | rest | what the kind names, at most 1,015 bytes |
//!
//! An external id begins with a tag: 1 and a `u64`, big-endian; 2 and the 16 bytes of a UUID; 3 and a string. So ids
//! are sorted by tag, then by value. An id is the last part of a key, since a string has no end mark.

use std::fmt;

use stratann_storage::{Error, Result};

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 1024;
/// Longest string that is an external id, in bytes.
pub const ID_BYTES_MAX: usize = 255;

const HEAD_BYTES: usize = 9;

/// A kind of row. The letter `p` is taken: older data folders have rows of it, for places of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum RowKind {
    /// Collections, aliases, keys of access and jobs.
    Catalogue = b'c',
    /// Deleted rows of a segment, by chunk.
    Deletes = b'd',
    /// Which fields of payloads are indexed.
    Fields = b'f',
    /// Number of the last group of batches; the rows themselves write it.
    Group = b'g',
    /// Manifest of a collection.
    Manifest = b'm',
    /// Payload of a point whose vectors stay in a segment.
    Overlay = b'o',
    /// Which segments a collection has.
    Segments = b's',
    /// Newest points, by sequence number.
    Tail = b'v',
}

impl RowKind {
    const ALL: [RowKind; 8] = [
        RowKind::Catalogue,
        RowKind::Deletes,
        RowKind::Fields,
        RowKind::Group,
        RowKind::Manifest,
        RowKind::Overlay,
        RowKind::Segments,
        RowKind::Tail,
    ];

    /// Name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            RowKind::Catalogue => "catalogue",
            RowKind::Deletes => "deletes",
            RowKind::Fields => "schema",
            RowKind::Group => "group",
            RowKind::Manifest => "manifest",
            RowKind::Overlay => "overlay",
            RowKind::Segments => "segments",
            RowKind::Tail => "tail",
        }
    }
}

/// Key of a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Vec<u8>);

impl Key {
    /// First possible key of a kind in a collection. Parts are appended with [`Key::number`] and the like.
    pub fn first(collection: u64, kind: RowKind) -> Key {
        let mut bytes = collection.to_be_bytes().to_vec();
        bytes.push(kind as u8);
        Key(bytes)
    }

    /// Key behind all those of a kind in a collection.
    pub fn end(collection: u64, kind: RowKind) -> Key {
        let mut key = Key::first(collection, kind);
        key.0[HEAD_BYTES - 1] += 1;
        key
    }

    /// Key before all those of a collection.
    pub fn first_of_collection(collection: u64) -> Key {
        Key(collection.to_be_bytes().to_vec())
    }

    /// Key behind all those of a collection.
    pub fn end_of_collection(collection: u64) -> Key {
        Key([&collection.to_be_bytes()[..], &[u8::MAX]].concat())
    }

    /// Appends a number; numbers are sorted by value.
    pub fn number(mut self, number: u64) -> Key {
        self.0.extend(number.to_be_bytes());
        self
    }

    /// Appends an external id, as the last part.
    pub fn id(mut self, id: &ExternalId) -> Key {
        id.append(&mut self.0);
        self
    }

    /// Appends bytes, as the last part.
    pub fn bytes(mut self, bytes: &[u8]) -> Key {
        self.0.extend(bytes);
        self
    }

    /// Collection of the row.
    pub fn collection(&self) -> u64 {
        self.0.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
    }

    /// Kind of the row; `None` for a key that only bounds a range, or that this version does not know.
    pub fn kind(&self) -> Option<RowKind> {
        let letter = self.0.get(HEAD_BYTES - 1)?;
        RowKind::ALL.into_iter().find(|kind| *kind as u8 == *letter)
    }

    /// What stands behind collection and kind.
    pub fn rest(&self) -> &[u8] {
        self.0.get(HEAD_BYTES..).unwrap_or_default()
    }

    /// The bytes, whose order is that of the keys.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The next key in order.
    pub(super) fn successor(&self) -> Key {
        Key([&self.0[..], &[0]].concat())
    }

    pub(super) fn from_engine(bytes: &[u8]) -> Key {
        Key(bytes.to_vec())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind().map_or("unknown", RowKind::name);
        write!(f, "collection {}, {kind} row", self.collection())?;
        if !self.rest().is_empty() {
            f.write_str(" ")?;
        }
        self.rest().iter().take(40).try_for_each(|byte| write!(f, "{byte:02x}"))?;
        if self.rest().len() > 40 { f.write_str("…") } else { Ok(()) }
    }
}

/// Identifier of a point that its user chose.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExternalId {
    /// A number.
    Number(u64),
    /// The bytes of a UUID.
    Uuid([u8; 16]),
    /// A string of 1 to 255 bytes.
    Text(String),
}

impl ExternalId {
    /// A string as an id.
    ///
    /// # Errors
    /// `BadInput` for an empty string, or one of more than 255 bytes.
    pub fn text(text: &str) -> Result<ExternalId> {
        match text.len() {
            1..=ID_BYTES_MAX => Ok(ExternalId::Text(text.to_string())),
            0 => Err(Error::bad_input("an id is an empty string; give 1 to 255 bytes")),
            bytes => Err(Error::bad_input(format!("an id has {bytes} bytes; give 1 to {ID_BYTES_MAX}"))),
        }
    }

    /// Appends the id as it ends a key.
    pub(crate) fn append(&self, bytes: &mut Vec<u8>) {
        match self {
            ExternalId::Number(number) => {
                bytes.push(1);
                bytes.extend(number.to_be_bytes());
            }
            ExternalId::Uuid(uuid) => {
                bytes.push(2);
                bytes.extend(uuid);
            }
            ExternalId::Text(text) => {
                bytes.push(3);
                bytes.extend(text.as_bytes());
            }
        }
    }

    /// Reads an id from the end of a key; `None` for bytes that are none.
    pub fn decode(bytes: &[u8]) -> Option<ExternalId> {
        let (tag, rest) = bytes.split_first()?;
        match tag {
            1 => rest.try_into().ok().map(|number| ExternalId::Number(u64::from_be_bytes(number))),
            2 => rest.try_into().ok().map(ExternalId::Uuid),
            3 => ExternalId::text(std::str::from_utf8(rest).ok()?).ok(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(collection: u64, id: &ExternalId) -> Key {
        Key::first(collection, RowKind::Overlay).id(id)
    }

    #[test]
    fn keys_are_in_the_order_of_what_they_name() {
        let text = |text: &str| ExternalId::text(text).unwrap();
        let ids = [
            ExternalId::Number(0),
            ExternalId::Number(255),
            ExternalId::Number(256),
            ExternalId::Number(u64::MAX),
            ExternalId::Uuid([0; 16]),
            ExternalId::Uuid([255; 16]),
            text("A"),
            text("AB"),
            text("é"),
            text(&"z".repeat(255)),
        ];
        let mut sorted = ids.clone();
        sorted.sort_by_key(|id| place(7, id));
        let is_sorted = |ids: &[ExternalId]| ids.windows(2).all(|two| two[0] < two[1]);
        assert_eq!(sorted[..6], ids[..6]);
        assert!(is_sorted(&sorted[..6]) && is_sorted(&sorted[6..]));
        for id in &ids {
            let key = place(7, id);
            assert_eq!(ExternalId::decode(key.rest()).as_ref(), Some(id));
            assert!(Key::first(7, RowKind::Overlay) < key && key < Key::end(7, RowKind::Overlay));
            assert!(Key::first_of_collection(7) < key && key < Key::end_of_collection(7));
            assert!(Key::end_of_collection(6) < key && key < place(8, &ids[0]));
        }
    }

    #[test]
    fn a_key_says_what_it_is() {
        let key = Key::first(7, RowKind::Tail).number(9);
        assert_eq!((key.collection(), key.kind()), (7, Some(RowKind::Tail)));
        assert_eq!(key.to_string(), "collection 7, tail row 0000000000000009");
        assert_eq!(Key::from_engine(&[1, 2]).kind(), None);
        assert!(key < key.successor() && key.successor() < Key::first(7, RowKind::Tail).number(10));
        assert!(ExternalId::text("").is_err() && ExternalId::text(&"x".repeat(256)).is_err());
        for bytes in [&[][..], &[1, 2], &[2; 4], &[3], &[3, 255], &[4, 1]] {
            assert_eq!(ExternalId::decode(bytes), None);
        }
    }
}
