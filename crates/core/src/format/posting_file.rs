//! Inverted lists on disk, each with copies of all of its vectors or codes, replicas included (SPANN §3). Only
//! comparisons with other systems read them: see `kinds::gpu_ivf`.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | checksum of all that follows, with the seed of the build |
//! | 8 | 4 | number of this list |
//! | 12 | 4 | number of members, c |
//! | 16 | c × 4 | ids |
//! | … | c × entry bytes | vectors in their input format, or codes |
//! | … | c × 4 | 1 / ‖vector‖ as f32; of vectors under cosine alone |
//! | … | c × id bytes | external ids; of vectors alone |
//! | … | | zeros up to a whole page |

use alloc::vec::Vec;

use super::seeded_checksum;
use crate::PAGE;

const HEADER: usize = 16;

/// Layout of all lists of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostingLayout {
    /// Bytes of a vector, or of a code.
    pub entry_bytes: usize,
    /// Bytes of an external id: 4 or 8; 0 in lists of codes.
    pub id_bytes: usize,
    /// Whether inverse norms are stored.
    pub norms: bool,
    /// Seed of the checksums: that of one build.
    pub checksum_seed: u64,
}

impl PostingLayout {
    fn member_bytes(&self) -> usize {
        4 + self.entry_bytes + self.id_bytes + if self.norms { 4 } else { 0 }
    }

    /// Bytes of a list of so many members: whole pages. None for a list without.
    pub fn list_bytes(&self, members: usize) -> usize {
        if members == 0 { 0 } else { (HEADER + members * self.member_bytes()).next_multiple_of(PAGE) }
    }
}

/// A member to be written.
#[derive(Clone, Copy, Debug)]
pub struct PostingMember<'a> {
    /// Id of the member in the index.
    pub id: u32,
    /// Vector of the member, or its code.
    pub entry: &'a [u8],
    /// 1 / ‖vector‖.
    pub inverse_norm: f32,
    /// External id, chosen by the user.
    pub external_id: u64,
}

/// Appends a list; nothing for a list without members.
pub fn write(layout: &PostingLayout, list: u32, members: &[PostingMember<'_>], out: &mut Vec<u8>) {
    if members.is_empty() {
        return;
    }
    let start = out.len();
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&list.to_le_bytes());
    out.extend_from_slice(&(members.len() as u32).to_le_bytes());
    members.iter().for_each(|m| out.extend_from_slice(&m.id.to_le_bytes()));
    members.iter().for_each(|m| out.extend_from_slice(m.entry));
    if layout.norms {
        members.iter().for_each(|m| out.extend_from_slice(&m.inverse_norm.to_le_bytes()));
    }
    members.iter().for_each(|m| out.extend_from_slice(&m.external_id.to_le_bytes()[..layout.id_bytes]));
    out.resize(start + layout.list_bytes(members.len()), 0);
    let sum = seeded_checksum(layout.checksum_seed, &out[start + 8..]);
    out[start..start + 8].copy_from_slice(&sum.to_le_bytes());
}

/// A list in memory. Opening checks the layout, so that every access stays within the bytes.
#[derive(Clone, Copy, Debug)]
pub struct PostingList<'a> {
    layout: PostingLayout,
    bytes: &'a [u8],
    count: usize,
}

impl<'a> PostingList<'a> {
    /// Opens bytes after they were read, with their checksum and number; `None` when one of them is wrong.
    pub fn verify(layout: &PostingLayout, list: u32, bytes: &'a [u8]) -> Option<PostingList<'a>> {
        let opened = PostingList::open(layout, bytes)?;
        let sum = u64::from_le_bytes(*bytes.first_chunk()?);
        let is_right = sum == seeded_checksum(layout.checksum_seed, &bytes[8..]) && word(bytes, 8)? == list;
        is_right.then_some(opened)
    }

    /// Opens bytes that were verified when they were read.
    pub fn open(layout: &PostingLayout, bytes: &'a [u8]) -> Option<PostingList<'a>> {
        let count = word(bytes, 12)? as usize;
        let needed = count.checked_mul(layout.member_bytes())?.checked_add(HEADER)?;
        (needed <= bytes.len()).then_some(PostingList { layout: *layout, bytes, count })
    }

    /// Number of members.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The id of a member in the index.
    pub fn id(&self, member: usize) -> u32 {
        word(self.bytes, HEADER + 4 * member).unwrap_or(u32::MAX)
    }

    /// The vectors or codes, one after another.
    pub fn entries(&self) -> &'a [u8] {
        let at = HEADER + 4 * self.count;
        &self.bytes[at..at + self.count * self.layout.entry_bytes]
    }

    /// 1 / ‖vector‖ of a member; 1 where norms are not stored.
    pub fn inverse_norm(&self, member: usize) -> f32 {
        if !self.layout.norms {
            return 1.0;
        }
        let at = HEADER + self.count * (4 + self.layout.entry_bytes) + 4 * member;
        word(self.bytes, at).map_or(1.0, f32::from_bits)
    }

    /// The external id of a member; 0 in lists of codes.
    pub fn external_id(&self, member: usize) -> u64 {
        let (size, layout) = (self.layout.id_bytes, &self.layout);
        let at = HEADER + self.count * (layout.member_bytes() - size) + size * member;
        let mut id = [0; 8];
        if let Some(bytes) = self.bytes.get(at..at + size) {
            id[..size].copy_from_slice(bytes);
        }
        u64::from_le_bytes(id)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_le_bytes(*b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lists_come_back_and_damage_is_found(
            count in 1usize..300, wide: bool, norms: bool, at in any::<prop::sample::Index>(), bit in 0u8..8,
        ) {
            let layout = PostingLayout { entry_bytes: 5, id_bytes: if wide { 8 } else { 4 }, norms, checksum_seed: 3 };
            let entries: Vec<[u8; 5]> = (0..count).map(|i| [i as u8, 1, 2, 3, (i >> 8) as u8]).collect();
            let member = |i: usize| PostingMember {
                id: 7 * i as u32, entry: &entries[i], inverse_norm: i as f32, external_id: 11 * i as u64,
            };
            let members: Vec<PostingMember<'_>> = (0..count).map(member).collect();
            let mut bytes = vec![];
            write(&layout, 9, &members, &mut bytes);
            prop_assert_eq!(bytes.len(), layout.list_bytes(count));
            let list = PostingList::verify(&layout, 9, &bytes).unwrap();
            prop_assert_eq!((list.count(), list.entries()), (count, entries.as_flattened()));
            for (i, member) in members.iter().enumerate() {
                prop_assert_eq!((list.id(i), list.external_id(i)), (member.id, member.external_id));
                prop_assert_eq!(list.inverse_norm(i), if norms { member.inverse_norm } else { 1.0 });
            }
            prop_assert!(PostingList::verify(&layout, 8, &bytes).is_none());
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(PostingList::verify(&layout, 9, &bytes).is_none());
            if let Some(list) = PostingList::open(&layout, &bytes) {
                let _ = (list.entries(), list.id(list.count()), list.external_id(list.count()));
            }
        }
    }
}
