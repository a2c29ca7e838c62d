//! Rows of a collection: points of the tail, and the manifest.
//!
//! | value of a tail row `v/<seq>/<ordinal>` | bytes | content, little-endian |
//! |---|---|---|
//! | 0 | 1 | version of the layout, 1 |
//! | 1 | 2 | bytes of the id |
//! | 3 | | the id as it ends a key, then the vector |
//!
//! | value of the manifest `m` | bytes | content, little-endian |
//! |---|---|---|
//! | 0 | 1 | version of the layout, 1 |
//! | 1 | 8 | newest sequence number |
//! | 9 | 8 | points |
//! | 17 | 8 | points of them in the tail |
//! | 25 | 8 | bytes of the ids of these |

use crate::rows::{ExternalId, Key, RowKind};

const VERSION: u8 = 1;

/// Place of a point in the tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    /// Sequence number of the change that wrote the point.
    pub(super) seq: u64,
    /// Its place in that change.
    pub(super) ordinal: u32,
}

impl Place {
    /// Key of the tail row.
    pub(super) fn tail_key(self, collection: u64) -> Key {
        Key::first(collection, RowKind::Tail).number(self.seq).number(u64::from(self.ordinal))
    }

    /// Reads the key of a tail row.
    pub(super) fn of_tail_key(key: &Key) -> Option<Place> {
        let (seq, ordinal) = key.rest().split_first_chunk::<8>()?;
        let ordinal = u64::from_be_bytes(ordinal.try_into().ok()?);
        Some(Place { seq: u64::from_be_bytes(*seq), ordinal: ordinal.try_into().ok()? })
    }
}

/// Bytes of an id as it ends a key.
pub(super) fn id_bytes(id: &ExternalId) -> usize {
    match id {
        ExternalId::Number(_) => 9,
        ExternalId::Uuid(_) => 17,
        ExternalId::Text(text) => 1 + text.len(),
    }
}

/// Value of a tail row.
pub(super) fn encode_point(id: &ExternalId, vector: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(3 + id_bytes(id) + vector.len());
    bytes.push(VERSION);
    bytes.extend((id_bytes(id) as u16).to_le_bytes());
    id.append(&mut bytes);
    bytes.extend(vector);
    bytes
}

/// Id and vector in the value of a tail row.
pub(super) fn decode_point(bytes: &[u8]) -> Option<(ExternalId, &[u8])> {
    let ([VERSION, low, high], rest) = bytes.split_first_chunk::<3>()? else { return None };
    let (id, vector) = rest.split_at_checked(usize::from(u16::from_le_bytes([*low, *high])))?;
    Some((ExternalId::decode(id)?, vector))
}

/// Largest sequence number. Adding to one never overflows.
const SEQ_MAX: u64 = u64::MAX / 2;

/// What a collection holds, as its newest change left it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Manifest {
    /// Newest sequence number; 0 before the first change.
    pub(super) seq: u64,
    /// Points.
    pub(super) points: u64,
    /// Points of them in the tail.
    pub(super) tail_points: u64,
    /// Bytes of the ids of these.
    pub(super) id_bytes: u64,
}

impl Manifest {
    pub(super) fn key(collection: u64) -> Key {
        Key::first(collection, RowKind::Manifest)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let numbers = [self.seq, self.points, self.tail_points, self.id_bytes].map(u64::to_le_bytes).concat();
        [&[VERSION][..], &numbers].concat()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Manifest> {
        let ([VERSION], numbers) = bytes.split_first_chunk::<1>()? else { return None };
        let (numbers, []) = numbers.as_chunks::<8>() else { return None };
        let [seq, points, tail_points, id_bytes] = numbers else { return None };
        let numbers = [seq, points, tail_points, id_bytes].map(|bytes| u64::from_le_bytes(*bytes));
        let [seq, points, tail_points, id_bytes] = numbers;
        (seq <= SEQ_MAX).then_some(Manifest { seq, points, tail_points, id_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_decoded_was_encoded() {
        let ids =
            [ExternalId::Number(7), ExternalId::Uuid([3; 16]), ExternalId::text(&"é".repeat(127)).unwrap()];
        for id in ids {
            let bytes = encode_point(&id, b"vector");
            assert_eq!(decode_point(&bytes), Some((id.clone(), &b"vector"[..])));
            for length in 0..bytes.len() - 6 {
                assert_ne!(decode_point(&bytes[..length]).map(|(id, _)| id), Some(id.clone()));
            }
            assert_eq!(Key::first(1, RowKind::Overlay).id(&id).rest().len(), id_bytes(&id));
        }
        let place = Place { seq: 1 << 40, ordinal: 9 };
        assert_eq!(Place::of_tail_key(&place.tail_key(3)), Some(place));
        assert_eq!(Place::of_tail_key(&Manifest::key(3)), None);
        let manifest = Manifest { seq: 5, points: 9, tail_points: 6, id_bytes: 7 };
        let bytes = manifest.encode();
        assert_eq!(Manifest::decode(&bytes), Some(manifest));
        (0..bytes.len()).for_each(|length| assert_eq!(Manifest::decode(&bytes[..length]), None));
    }
}
