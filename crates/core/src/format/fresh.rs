//! The layout of a fresh record: a vector that was inserted after its cluster was built.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | checksum of the rest, the highest bit set; written last, by compare-and-swap from 0 |
//! | 8 | the user's id |
//! | 8 | the clock of the insert: tombstones that were reserved before, or up to its own under an upsert |
//! | 4 | cluster |
//! | 4 | f32, what makes the vector a unit vector; 1 but under cosine |
//! | vector, filled up to a multiple of 8 | components |
//!
//! The seed of the checksum is that of a version of a group, so that what an earlier version left in the same place is
//! no record. A slot that was reserved and not written yet, or never, is no record either.
//!
//! A tombstone has the same head: checksum, id and clock. It deletes what was inserted under the id before.

use alloc::vec::Vec;

use super::region::TOMBSTONE_BYTES;
use super::seeded_checksum;

/// Bytes before the vector.
pub const HEAD_BYTES: usize = 32;
const PUBLISHED: u64 = 1 << 63;
/// The first word of a slot that was reserved too long: its writer cannot publish there any more, but may still write.
pub const KILLED: u64 = 1;
/// The first word of a slot whose writer gave it up.
pub const GIVEN_UP: u64 = 2;

/// Bytes of a fresh record whose vector has so many bytes.
pub const fn record_bytes(vector_bytes: usize) -> usize {
    HEAD_BYTES + vector_bytes.next_multiple_of(8)
}

/// The seed of the checksums of a version of a group.
pub fn seed(build: u64, group: u32, version: u32) -> u64 {
    crate::hash::hash(build, u64::from(group), u64::from(version))
}

/// A fresh record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FreshRecord<'a> {
    /// The user's id.
    pub id: u64,
    /// The clock of the insert.
    pub clock: u64,
    /// Cluster of the record.
    pub cluster: u32,
    /// Factor that makes the vector a unit vector; 1 but under cosine.
    pub inverse_norm: f32,
    /// Components.
    pub vector: &'a [u8],
}

impl<'a> FreshRecord<'a> {
    /// Appends the record.
    pub fn encode(&self, seed: u64, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.clock.to_le_bytes());
        out.extend_from_slice(&self.cluster.to_le_bytes());
        out.extend_from_slice(&self.inverse_norm.to_le_bytes());
        out.extend_from_slice(self.vector);
        out.resize(start + record_bytes(self.vector.len()), 0);
        seal(seed, &mut out[start..]);
    }

    /// Reads the record in a slot. `None` where there is none, or not all of it yet.
    pub fn decode(seed: u64, vector_bytes: usize, slot: &'a [u8]) -> Option<FreshRecord<'a>> {
        let slot = slot.get(..record_bytes(vector_bytes))?;
        is_sealed(seed, slot).then_some(())?;
        FreshRecord::of_masked(vector_bytes, slot)
    }

    /// Reads the record in a slot that [`mask_unwritten`] has seen. `None` where there is none.
    pub fn of_masked(vector_bytes: usize, slot: &'a [u8]) -> Option<FreshRecord<'a>> {
        let slot = slot.get(..record_bytes(vector_bytes))?;
        (number(slot, 0)? & PUBLISHED != 0).then_some(())?;
        Some(FreshRecord {
            id: number(slot, 8)?,
            clock: number(slot, 16)?,
            cluster: number(slot, 24)? as u32,
            inverse_norm: f32::from_bits((number(slot, 24)? >> 32) as u32),
            vector: &slot[HEAD_BYTES..HEAD_BYTES + vector_bytes],
        })
    }
}

/// Empties a slot that has a part of a record. Returns whether it has one, or will never have one.
pub fn mask_unwritten(seed: u64, slot: &mut [u8]) -> bool {
    if is_sealed(seed, slot) {
        return true;
    }
    let is_closed = [Some(KILLED), Some(GIVEN_UP)].contains(&number(slot, 0));
    if let Some(first) = slot.first_chunk_mut::<8>().filter(|_| !is_closed) {
        *first = [0; 8];
    }
    is_closed
}

/// A deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tombstone {
    /// The user's id.
    pub id: u64,
    /// Clock of the deletion: an insert under the id at an earlier clock is deleted.
    pub clock: u64,
}

impl Tombstone {
    /// Bytes of the tombstone. The seed is the build of the index.
    pub fn encode(&self, build: u64) -> [u8; TOMBSTONE_BYTES as usize] {
        let mut out = [0; TOMBSTONE_BYTES as usize];
        out[8..16].copy_from_slice(&self.id.to_le_bytes());
        out[16..24].copy_from_slice(&self.clock.to_le_bytes());
        seal(build, &mut out);
        out
    }

    /// Reads a tombstone. `None` where there is none, or not all of it yet.
    pub fn decode(build: u64, slot: &[u8]) -> Option<Tombstone> {
        let slot = slot.get(..TOMBSTONE_BYTES as usize)?;
        is_sealed(build, slot).then_some(())?;
        Some(Tombstone { id: number(slot, 8)?, clock: number(slot, 16)? })
    }
}

fn seal(seed: u64, slot: &mut [u8]) {
    let sum = seeded_checksum(seed, &slot[8..]) | PUBLISHED;
    slot[..8].copy_from_slice(&sum.to_le_bytes());
}

fn is_sealed(seed: u64, slot: &[u8]) -> bool {
    // A slot that was never written needs no checksum.
    let held = number(slot, 0).unwrap_or(0);
    held & PUBLISHED != 0 && held == seeded_checksum(seed, &slot[8..]) | PUBLISHED
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_record_is_read_whole_or_not_at_all(
            vector in prop::collection::vec(any::<u8>(), 1..50),
            written in 0usize..80,
            at in 0usize..80,
            change in 1u8..,
        ) {
            let seed = seed(7, 3, 2);
            let own = FreshRecord { id: 9, clock: 4, cluster: 6, inverse_norm: 0.5, vector: &vector };
            let mut slot = Vec::new();
            own.encode(seed, &mut slot);
            prop_assert_eq!(FreshRecord::decode(seed, vector.len(), &slot), Some(own));
            prop_assert_eq!(FreshRecord::decode(super::seed(7, 3, 3), vector.len(), &slot), None);
            let mut torn = slot.clone();
            // Writes may arrive in any order: here the last bytes come first, and the first ones are missing.
            let missing = written % slot.len();
            torn[..=missing].fill(0);
            // First bytes that are zero anyway cannot be missed.
            prop_assume!(torn != slot);
            prop_assert_eq!(FreshRecord::decode(seed, vector.len(), &torn), None);
            prop_assert!(!mask_unwritten(seed, &mut torn));
            prop_assert_eq!(FreshRecord::of_masked(vector.len(), &torn), None);
            prop_assert!(mask_unwritten(seed, &mut slot), "a whole record stays");
            prop_assert_eq!(FreshRecord::of_masked(vector.len(), &slot), Some(own));
            let at = at % slot.len();
            slot[at] ^= change;
            prop_assert_eq!(FreshRecord::decode(seed, vector.len(), &slot), None);
            // A slot that is closed has no record either, and the change may have made it one.
            let is_closed = [KILLED, GIVEN_UP].contains(&number(&slot, 0).unwrap());
            prop_assert_eq!(mask_unwritten(seed, &mut slot), is_closed);
            prop_assert_eq!(FreshRecord::of_masked(vector.len(), &slot), None);
        }

        #[test]
        fn a_tombstone_with_any_byte_changed_is_none(at in 0usize..32, change in 1u8..) {
            let own = Tombstone { id: u64::MAX, clock: 12 };
            let mut slot = own.encode(5);
            prop_assert_eq!(Tombstone::decode(5, &slot), Some(own));
            slot[at] ^= change;
            prop_assert_eq!(Tombstone::decode(5, &slot), None);
        }
    }
}
