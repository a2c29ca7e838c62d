//! Rows of a collection: points of the tail, and the manifest.
//!
//! | value of a tail row `v/<seq>/<ordinal>` | bytes | content, little-endian |
//! |---|---|---|
//! | 0 | 1 | version of the layout: 1 without a payload, 2 with one |
//! | 1 | 2 | bytes of the id |
//! | 3 | 4 | only with a payload: its bytes |
//! | | | the id as it ends a key, then the record of its [vectors](super::spec), then the payload as compact JSON |
//!
//! | value of the manifest `m` | bytes | content, little-endian |
//! |---|---|---|
//! | 0 | 1 | version of the layout: 1 without payloads in the tail, 2 with some |
//! | 1 | 8 | newest sequence number |
//! | 9 | 8 | points |
//! | 17 | 8 | points of them in the tail |
//! | 25 | 8 | bytes of the ids of these |
//! | 33 | 8 | only in version 2: bytes of their payloads |

use std::ops::{AddAssign, SubAssign};

use crate::rows::{ExternalId, Key, RowKind};

const VERSION: u8 = 1;
/// Version of a point with a payload, and of a manifest that counts some.
const WITH_PAYLOAD: u8 = 2;

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

/// Bytes of points beside their vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PointBytes {
    /// Bytes of ids.
    pub(super) ids: u64,
    /// Bytes of payloads as compact JSON.
    pub(super) payloads: u64,
}

impl PointBytes {
    /// Those of a point.
    pub(super) fn of(id: &ExternalId, payload: Option<&[u8]>) -> PointBytes {
        PointBytes { ids: id_bytes(id) as u64, payloads: payload.map_or(0, |json| json.len() as u64) }
    }
}

impl AddAssign for PointBytes {
    fn add_assign(&mut self, other: PointBytes) {
        self.ids = self.ids.saturating_add(other.ids);
        self.payloads = self.payloads.saturating_add(other.payloads);
    }
}

impl SubAssign for PointBytes {
    fn sub_assign(&mut self, other: PointBytes) {
        self.ids = self.ids.saturating_sub(other.ids);
        self.payloads = self.payloads.saturating_sub(other.payloads);
    }
}

/// A point in a tail row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TailPoint<'a> {
    /// Its id.
    pub(super) id: ExternalId,
    /// The record of its vectors.
    pub(super) vectors: &'a [u8],
    /// Its payload as compact JSON; `None` for a point without.
    pub(super) payload: Option<&'a [u8]>,
}

/// Value of a tail row.
pub(super) fn encode_point(id: &ExternalId, vectors: &[u8], payload: Option<&[u8]>) -> Vec<u8> {
    let of_payload = payload.map_or(0, |json| 4 + json.len());
    let mut bytes = Vec::with_capacity(3 + id_bytes(id) + vectors.len() + of_payload);
    bytes.push(if payload.is_some() { WITH_PAYLOAD } else { VERSION });
    bytes.extend((id_bytes(id) as u16).to_le_bytes());
    if let Some(json) = payload {
        bytes.extend((json.len() as u32).to_le_bytes());
    }
    id.append(&mut bytes);
    bytes.extend(vectors);
    bytes.extend(payload.unwrap_or_default());
    bytes
}

/// The point in the value of a tail row.
pub(super) fn decode_point(bytes: &[u8]) -> Option<TailPoint<'_>> {
    let ([version, low, high], rest) = bytes.split_first_chunk::<3>()?;
    let (payload, rest) = match *version {
        VERSION => (None, rest),
        WITH_PAYLOAD => {
            let (length, rest) = rest.split_first_chunk::<4>()?;
            let at = rest.len().checked_sub(u32::from_le_bytes(*length) as usize)?;
            let (rest, payload) = rest.split_at_checked(at)?;
            (Some(payload), rest)
        }
        _ => return None,
    };
    let (id, vectors) = rest.split_at_checked(usize::from(u16::from_le_bytes([*low, *high])))?;
    Some(TailPoint { id: ExternalId::decode(id)?, vectors, payload })
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
    /// Bytes of the ids and payloads of these.
    pub(super) bytes: PointBytes,
}

impl Manifest {
    pub(super) fn key(collection: u64) -> Key {
        Key::first(collection, RowKind::Manifest)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let PointBytes { ids, payloads } = self.bytes;
        let mut bytes = vec![if payloads > 0 { WITH_PAYLOAD } else { VERSION }];
        let numbers = [self.seq, self.points, self.tail_points, ids];
        numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        if payloads > 0 {
            bytes.extend(payloads.to_le_bytes());
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Manifest> {
        let (version, numbers) = bytes.split_first()?;
        let (numbers, []) = numbers.as_chunks::<8>() else { return None };
        let numbers: Vec<u64> = numbers.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        let (seq, points, tail_points, ids, payloads) = match (*version, &numbers[..]) {
            (VERSION, &[seq, points, tail_points, ids]) => (seq, points, tail_points, ids, 0),
            (WITH_PAYLOAD, &[seq, points, tail_points, ids, payloads]) => {
                (seq, points, tail_points, ids, payloads)
            }
            _ => return None,
        };
        let bytes = PointBytes { ids, payloads };
        (seq <= SEQ_MAX).then_some(Manifest { seq, points, tail_points, bytes })
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
            for payload in [None, Some(&b"{}"[..])] {
                let bytes = encode_point(&id, b"vector", payload);
                let point = TailPoint { id: id.clone(), vectors: b"vector", payload };
                assert_eq!(decode_point(&bytes), Some(point));
                for length in 0..bytes.len() - 8 {
                    assert_ne!(decode_point(&bytes[..length]).map(|point| point.id), Some(id.clone()));
                }
            }
            assert_eq!(Key::first(1, RowKind::Overlay).id(&id).rest().len(), id_bytes(&id));
        }
        let place = Place { seq: 1 << 40, ordinal: 9 };
        assert_eq!(Place::of_tail_key(&place.tail_key(3)), Some(place));
        assert_eq!(Place::of_tail_key(&Manifest::key(3)), None);
        for payloads in [0, 8] {
            let bytes = PointBytes { ids: 7, payloads };
            let manifest = Manifest { seq: 5, points: 9, tail_points: 6, bytes };
            let bytes = manifest.encode();
            assert_eq!(Manifest::decode(&bytes), Some(manifest));
            (0..bytes.len()).for_each(|length| assert_eq!(Manifest::decode(&bytes[..length]), None));
        }
    }
}
