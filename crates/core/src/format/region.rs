//! The layout of a region: the memory of a memory node that holds a `remote-hnsw` (d-HNSW §3.2).
//!
//! | at | content |
//! |---|---|
//! | 0 | two superblocks of [`SUPERBLOCK_BYTES`]; the valid one with the higher sequence counts |
//! | [`Superblock::control_at`] | [`CONTROL_BYTES`]: words that all compute nodes share |
//! | after it | for each group [`GROUP_WORDS_BYTES`]: its version, reservations, and who rebuilds it |
//! | [`Superblock::descriptors_at`] | for each group two descriptors of [`DESCRIPTOR_BYTES`], for loaded versions |
//! | [`Superblock::readers_at`] | [`READERS_MAX`] lines of [`READER_BYTES`]: compute nodes that read |
//! | [`Superblock::tombstones_at`] | [`Superblock::tombstones`] tombstones of [`TOMBSTONE_BYTES`] |
//! | [`Superblock::meta_at`] | the meta-HNSW, then the manifest |
//! | [`Superblock::groups_at`] | groups, and free space up to [`Superblock::end`] |
//! | [`Superblock::end`] | a bit for each page of [`GROUP_ALIGN`] bytes before it, set where the page is in use |
//!
//! The first node of an index has all of it. Others have a superblock and groups, and their other sections are empty.
//!
//! A group has two clusters of vectors, A and B, and room for fresh records between them. Those of A grow up from the
//! end of A, those of B down from the start of B, so that a cluster and its fresh records are one range:
//!
//! | bytes | content |
//! |---|---|
//! | `clusters[0].bytes` | the sub-HNSW of A |
//! | `capacity` × `record_bytes` | fresh records |
//! | `clusters[1].bytes` | the sub-HNSW of B |
//! | a bit each | marks: members of A, members of B, and fresh records that are deleted |
//!
//! Marks are set and never cleared. The image of a region in a folder has none, and no bits of pages.
//!
//! The descriptor of a group that was rebuilt is not in the table but stands [`DESCRIPTOR_BYTES`] before the group, in
//! space that its rebuilder alone writes. So a rebuilder that was replaced and goes on cannot overwrite it.
//!
//! An address has the number of its node in its upper 8 bits and an offset in its lower 40.

use super::seeded_checksum;
pub use super::words::{
    ControlWords, Folded, FreeSpan, GroupWords, Owner, ReaderEpoch, Reservations, Version,
};

/// Bytes of a superblock.
pub const SUPERBLOCK_BYTES: u64 = 4096;
/// Bytes of the words that all compute nodes share. They are read together with those of the groups.
pub const CONTROL_BYTES: u64 = 64;
/// Bytes of the words of a group.
pub const GROUP_WORDS_BYTES: u64 = 64;
/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: u64 = 64;
/// Most compute nodes that read at once.
pub const READERS_MAX: u64 = 64;
/// Bytes of the line of a compute node.
pub const READER_BYTES: u64 = 64;
/// Bytes of a tombstone.
pub const TOMBSTONE_BYTES: u64 = 32;
/// A group begins at a multiple of so many bytes.
pub const GROUP_ALIGN: u64 = 4096;
/// Bytes of a node that an address can name.
pub const NODE_BYTES_MAX: u64 = 1 << 40;

/// The offset of an extent of a version of a group. The version is in the bits above those of the offset on the node,
/// so that equal extents of two versions differ.
pub const fn versioned_offset(version: u32, offset: u64) -> u64 {
    (version as u64 & 0xFF_FFFF) << 40 | offset & (NODE_BYTES_MAX - 1)
}

/// The offset on the node.
pub const fn node_offset(versioned: u64) -> u64 {
    versioned & (NODE_BYTES_MAX - 1)
}

const MAGIC: u64 = u64::from_le_bytes(*b"STRATREG");
/// Format of a region in memory nodes.
const FORMAT: u64 = 3;
/// Format of the image of a region in a folder.
const IMAGE_FORMAT: u64 = 1;

/// A place in the memory of all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address(pub u64);

impl Address {
    /// The address of an offset, which is below [`NODE_BYTES_MAX`], on a node.
    pub fn new(node: u8, offset: u64) -> Address {
        Address(u64::from(node) << 56 | (offset & (NODE_BYTES_MAX - 1)))
    }

    /// The number of the node.
    pub fn node(self) -> u8 {
        (self.0 >> 56) as u8
    }

    /// The offset in the region of the node.
    pub fn offset(self) -> u64 {
        self.0 & (NODE_BYTES_MAX - 1)
    }
}

/// Content of a region, and the places of its parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Superblock {
    /// The superblock with the highest one counts. In memory nodes it is the number of the load, equal on all of them.
    pub sequence: u64,
    /// The build of the index, as a number.
    pub build: u64,
    /// The number of this node, and how many have parts of the index.
    pub node: u64,
    /// Nodes that have parts of the index.
    pub nodes: u64,
    /// Groups of two clusters each.
    pub groups: u64,
    /// Clusters of vectors: twice the groups, or one fewer.
    pub clusters: u64,
    /// Bytes of a fresh record.
    pub record_bytes: u64,
    /// Offset of the control words.
    pub control_at: u64,
    /// Offset of the descriptors.
    pub descriptors_at: u64,
    /// Offset of the lines of compute nodes.
    pub readers_at: u64,
    /// Offset of the tombstones.
    pub tombstones_at: u64,
    /// Tombstones that there is room for.
    pub tombstones: u64,
    /// Offset of the meta-HNSW.
    pub meta_at: u64,
    /// Bytes of the meta-HNSW.
    pub meta_bytes: u64,
    /// Bytes of the manifest, which follows the meta-HNSW.
    pub manifest_bytes: u64,
    /// Offset of the groups.
    pub groups_at: u64,
    /// End of the free space, where the bits of pages begin.
    pub end: u64,
}

impl Superblock {
    const NUMBERS: usize = 17;

    /// The places of all sections of the first node, for so many groups, tombstones and bytes.
    pub fn with_sections(mut self) -> Superblock {
        self.control_at = 2 * SUPERBLOCK_BYTES;
        self.descriptors_at = self.control_at + CONTROL_BYTES + self.groups * GROUP_WORDS_BYTES;
        self.readers_at = self.descriptors_at + 2 * self.groups * DESCRIPTOR_BYTES;
        self.tombstones_at = self.readers_at + READERS_MAX * READER_BYTES;
        self.meta_at = self.tombstones_at + self.tombstones * TOMBSTONE_BYTES;
        self.groups_at = (self.meta_at + self.meta_bytes + self.manifest_bytes).next_multiple_of(GROUP_ALIGN);
        self
    }

    /// Offset of the words of a group.
    pub fn words_at(&self, group: u32) -> u64 {
        self.control_at + CONTROL_BYTES + u64::from(group) * GROUP_WORDS_BYTES
    }

    /// Bytes of the control words and of the words of all groups, which are one range.
    pub fn headers_bytes(&self) -> u64 {
        CONTROL_BYTES + self.groups * GROUP_WORDS_BYTES
    }

    /// Offset of the descriptor of a version of a group.
    pub fn descriptor_at(&self, group: u32, version: u32) -> u64 {
        self.descriptors_at + (2 * u64::from(group) + u64::from(version & 1)) * DESCRIPTOR_BYTES
    }

    /// Address of the descriptor of a version of a group.
    pub fn descriptor_of(&self, group: u32, version: Version) -> Address {
        match version.rebuilt_at() {
            Some(at) => Address(at.0 - DESCRIPTOR_BYTES),
            None => Address::new(self.node as u8, self.descriptor_at(group, version.number())),
        }
    }

    /// The line of a compute node.
    pub fn reader_at(&self, line: u64) -> u64 {
        self.readers_at + line % READERS_MAX * READER_BYTES
    }

    /// The place of a tombstone: the places are a ring.
    pub fn tombstone_at(&self, tombstone: u64) -> u64 {
        self.tombstones_at + tombstone % self.tombstones.max(1) * TOMBSTONE_BYTES
    }

    /// End of the free space of a region of so many bytes; the bits of its pages follow.
    pub fn end_of(region_bytes: u64) -> u64 {
        let pages = region_bytes / GROUP_ALIGN;
        // A page has the bits of 32,768 others.
        pages.saturating_sub(pages.div_ceil(8 * GROUP_ALIGN + 1)) * GROUP_ALIGN
    }

    /// Bytes of the bits of pages, whole words.
    pub fn page_bits_bytes(&self) -> u64 {
        (self.end / GROUP_ALIGN).div_ceil(64) * 8
    }

    fn numbers(&self) -> [u64; Self::NUMBERS] {
        [
            self.sequence,
            self.build,
            self.node,
            self.nodes,
            self.groups,
            self.clusters,
            self.record_bytes,
            self.control_at,
            self.descriptors_at,
            self.readers_at,
            self.tombstones_at,
            self.tombstones,
            self.meta_at,
            self.meta_bytes,
            self.manifest_bytes,
            self.groups_at,
            self.end,
        ]
    }

    /// The bytes of the superblock of a region in memory nodes.
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES as usize] {
        self.encode_as(FORMAT)
    }

    /// The bytes of the superblock of an image in a folder.
    pub fn encode_image(&self) -> [u8; SUPERBLOCK_BYTES as usize] {
        self.encode_as(IMAGE_FORMAT)
    }

    fn encode_as(&self, format: u64) -> [u8; SUPERBLOCK_BYTES as usize] {
        let mut out = [0; SUPERBLOCK_BYTES as usize];
        put(&mut out, 0, MAGIC);
        put(&mut out, 1, format);
        (2..).zip(self.numbers()).for_each(|(at, number)| put(&mut out, at, number));
        let sum = seeded_checksum(MAGIC, &out[..8 * (2 + Self::NUMBERS)]);
        put(&mut out, 2 + Self::NUMBERS, sum);
        out
    }

    /// Reads one superblock of a memory node. `None` where the bytes are none, or their numbers cannot be.
    pub fn decode(bytes: &[u8]) -> Option<Superblock> {
        Superblock::decode_as(FORMAT, bytes)
    }

    /// The format of the bytes, where it is not that of a memory node of this program.
    pub fn other_format(bytes: &[u8]) -> Option<u64> {
        let format = number(bytes, 1).filter(|&format| format != FORMAT)?;
        (number(bytes, 0)? == MAGIC).then_some(format)
    }

    fn decode_as(format: u64, bytes: &[u8]) -> Option<Superblock> {
        if number(bytes, 0)? != MAGIC || number(bytes, 1)? != format {
            return None;
        }
        let sum = seeded_checksum(MAGIC, bytes.get(..8 * (2 + Self::NUMBERS))?);
        if number(bytes, 2 + Self::NUMBERS)? != sum {
            return None;
        }
        let mut n = [0; Self::NUMBERS];
        for (at, n) in (2..).zip(&mut n) {
            *n = number(bytes, at)?;
        }
        let own = Superblock {
            sequence: n[0],
            build: n[1],
            node: n[2],
            nodes: n[3],
            groups: n[4],
            clusters: n[5],
            record_bytes: n[6],
            control_at: n[7],
            descriptors_at: n[8],
            readers_at: n[9],
            tombstones_at: n[10],
            tombstones: n[11],
            meta_at: n[12],
            meta_bytes: n[13],
            manifest_bytes: n[14],
            groups_at: n[15],
            end: n[16],
        };
        own.is_sane().then_some(own)
    }

    /// The newer one of the two superblocks at the start of a region in memory nodes; `None` where neither is whole.
    pub fn newest(bytes: &[u8]) -> Option<Superblock> {
        Superblock::newest_as(FORMAT, bytes)
    }

    /// The newest superblock of an image in a folder.
    pub fn newest_of_image(bytes: &[u8]) -> Option<Superblock> {
        Superblock::newest_as(IMAGE_FORMAT, bytes)
    }

    fn newest_as(format: u64, bytes: &[u8]) -> Option<Superblock> {
        let (first, rest) = bytes.split_at_checked(SUPERBLOCK_BYTES as usize)?;
        let both = [first, rest].map(|bytes| Superblock::decode_as(format, bytes));
        both.into_iter().flatten().max_by_key(|own| own.sequence)
    }

    fn is_sane(&self) -> bool {
        let small = [self.groups, self.tombstones, self.record_bytes, self.meta_bytes, self.manifest_bytes];
        small.iter().all(|&n| n < 1 << 32)
            && self.nodes <= 256
            && self.node < self.nodes
            && self.clusters.div_ceil(2) == self.groups
            && self.record_bytes.is_multiple_of(8)
            && self.end <= NODE_BYTES_MAX
            && self.groups_at <= self.end
            && Superblock { ..*self }.with_sections() == *self
    }
}

/// A cluster in a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterPlace {
    /// Vectors in its sub-HNSW.
    pub members: u32,
    /// Bytes of its sub-HNSW, a multiple of 8.
    pub bytes: u32,
}

/// Place of one version of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// The version.
    pub version: u32,
    /// Fresh records that there is room for.
    pub capacity: u32,
    /// Address of the group.
    pub at: Address,
    /// Bytes of the space that it was given.
    pub space: u64,
    /// The clock up to which changes are in the sub-HNSWs.
    pub clock: u64,
    /// A and B.
    pub clusters: [ClusterPlace; 2],
}

/// Whether a bit is set in words, the lowest bit of the first word first. Bits after the last word are not.
pub fn has_bit(words: &[u64], bit: u64) -> bool {
    words.get((bit / 64) as usize).is_some_and(|word| word >> (bit % 64) & 1 == 1)
}

/// Number of set bits among `count` from this one on.
pub fn count_bits(words: &[u64], from: u64, count: u64) -> u64 {
    let until = from.saturating_add(count).min(64 * words.len() as u64);
    let (mut at, mut sum) = (from, 0);
    while at < until {
        let bits = (64 - at % 64).min(until - at);
        let word = words[(at / 64) as usize] >> (at % 64);
        sum += u64::from((word & (u64::MAX >> (64 - bits))).count_ones());
        at += bits;
    }
    sum
}

/// Bytes of the fresh records of one cluster that are in use, or of a sub-HNSW.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Offset on the node.
    pub offset: u64,
    /// Length.
    pub bytes: u64,
}

impl Descriptor {
    /// Bytes of the group.
    pub fn bytes(&self, record_bytes: u64) -> u64 {
        self.clusters.iter().map(|cluster| u64::from(cluster.bytes)).sum::<u64>()
            + self.overflow(record_bytes)
    }

    fn overflow(&self, record_bytes: u64) -> u64 {
        u64::from(self.capacity) * record_bytes
    }

    /// The marks of members of A, of members of B, and of slots for fresh records.
    pub fn marks(&self, record_bytes: u64) -> Span {
        let [a, b] = self.clusters.map(|cluster| u64::from(cluster.members));
        let words = (a + b + u64::from(self.capacity)).div_ceil(64);
        Span { offset: self.at.offset() + self.bytes(record_bytes), bytes: 8 * words }
    }

    /// Bytes of the group with its marks.
    pub fn bytes_with_marks(&self, record_bytes: u64) -> u64 {
        self.bytes(record_bytes) + self.marks(record_bytes).bytes
    }

    /// The mark of the first member of A or of B.
    pub fn member_mark(&self, side: usize) -> u64 {
        if side == 0 { 0 } else { self.clusters[0].members.into() }
    }

    /// The mark of the first of so many slots of A or of B, which are in the order of their bytes.
    pub fn slot_mark(&self, side: usize, used: u32) -> u64 {
        let members = self.clusters.iter().map(|cluster| u64::from(cluster.members)).sum::<u64>();
        members + u64::from(if side == 0 { 0 } else { self.capacity - used.min(self.capacity) })
    }

    /// The sub-HNSW of A (0) or of B (1).
    pub fn cluster(&self, side: usize, record_bytes: u64) -> Span {
        let before =
            if side == 0 { 0 } else { u64::from(self.clusters[0].bytes) + self.overflow(record_bytes) };
        Span { offset: self.at.offset() + before, bytes: u64::from(self.clusters[side].bytes) }
    }

    /// The fresh records of A or of B, of which so many slots are in use.
    pub fn fresh(&self, side: usize, used: u32, record_bytes: u64) -> Span {
        let used = u64::from(used.min(self.capacity));
        let skipped = if side == 0 { 0 } else { u64::from(self.capacity) - used };
        let offset = self.at.offset() + u64::from(self.clusters[0].bytes) + skipped * record_bytes;
        Span { offset, bytes: used * record_bytes }
    }

    /// The offset of one slot, counted from the cluster whose record it is for.
    pub fn slot(&self, side: usize, slot: u32, record_bytes: u64) -> u64 {
        let slot = if side == 0 { slot } else { self.capacity.saturating_sub(1).saturating_sub(slot) };
        self.at.offset() + u64::from(self.clusters[0].bytes) + u64::from(slot) * record_bytes
    }

    /// The bytes of a descriptor of this group.
    pub fn encode(&self, build: u64, group: u32) -> [u8; DESCRIPTOR_BYTES as usize] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let [a, b] = self.clusters;
        let words = [
            pair(self.version, self.capacity),
            self.at.0,
            self.space,
            self.clock,
            pair(a.members, a.bytes),
            pair(b.members, b.bytes),
            u64::from(group),
        ];
        let mut out = [0; DESCRIPTOR_BYTES as usize];
        words.into_iter().enumerate().for_each(|(at, word)| put(&mut out, at, word));
        let sum = seeded_checksum(build, &out[..56]);
        put(&mut out, 7, sum);
        out
    }

    /// Reads the descriptor of this version of a group. `None` where the bytes are of another, or damaged: it may be
    /// written just now.
    pub fn decode(build: u64, group: u32, version: u32, bytes: &[u8]) -> Option<Descriptor> {
        if number(bytes, 7)? != seeded_checksum(build, bytes.get(..56)?)
            || number(bytes, 6)? != u64::from(group)
        {
            return None;
        }
        let pair = |at: usize| number(bytes, at).map(|word| (word as u32, (word >> 32) as u32));
        let place = |(members, bytes): (u32, u32)| ClusterPlace { members, bytes };
        let (own_version, capacity) = pair(0)?;
        let own = Descriptor {
            version: own_version,
            capacity,
            at: Address(number(bytes, 1)?),
            space: number(bytes, 2)?,
            clock: number(bytes, 3)?,
            clusters: [place(pair(4)?), place(pair(5)?)],
        };
        (own.version == version).then_some(own)
    }
}

pub(super) fn put(out: &mut [u8], at: usize, number: u64) {
    out[8 * at..8 * at + 8].copy_from_slice(&number.to_le_bytes());
}

pub(super) fn number(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(8 * at..8 * at + 8)?;
    word.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn superblock() -> Superblock {
        let own = Superblock {
            sequence: 3,
            build: 77,
            nodes: 2,
            groups: 5,
            clusters: 9,
            record_bytes: 160,
            tombstones: 10,
            meta_bytes: 1000,
            manifest_bytes: 500,
            end: 1 << 20,
            ..Superblock::default()
        };
        own.with_sections()
    }

    #[test]
    fn the_newer_superblock_counts_and_a_torn_one_does_not() {
        let own = superblock();
        let newer = Superblock { sequence: 4, ..own };
        let mut region = [own.encode(), newer.encode()].concat();
        assert_eq!(Superblock::newest(&region), Some(newer));
        region[SUPERBLOCK_BYTES as usize + 40] ^= 1;
        assert_eq!(Superblock::newest(&region), Some(own));
        assert_eq!((Superblock::newest_of_image(&region), Superblock::other_format(&region)), (None, None));
        region[9] ^= 1;
        assert_eq!(Superblock::newest(&region), None);
        let image = [own.encode_image(); 2].concat();
        assert_eq!(Superblock::newest_of_image(&image), Some(own));
        assert_eq!(
            (Superblock::newest(&image), Superblock::other_format(&image)),
            (None, Some(IMAGE_FORMAT))
        );
        let apart = own.words_at(4) + GROUP_WORDS_BYTES;
        assert_eq!((own.control_at + own.headers_bytes(), own.descriptors_at), (apart, apart));
    }

    #[test]
    fn the_bits_of_pages_follow_the_pages() {
        for pages in [1, 2, 3, 100, 32_768, 32_769, 32_770, 70_000] {
            let own =
                Superblock { end: Superblock::end_of(pages * GROUP_ALIGN + 5), ..Superblock::default() };
            assert!(own.end + own.page_bits_bytes() <= pages * GROUP_ALIGN, "{pages} pages");
            assert!(own.end + 4 * GROUP_ALIGN >= pages * GROUP_ALIGN, "{pages} pages");
        }
        let words = [0b1010, u64::MAX, 1];
        assert!(has_bit(&words, 1) && !has_bit(&words, 2) && has_bit(&words, 128) && !has_bit(&words, 192));
        let counted =
            [(0, 64), (2, 10), (63, 3), (60, 500), (130, 9)].map(|(at, n)| count_bits(&words, at, n));
        assert_eq!(counted, [2, 1, 2, 65, 0]);
        assert_eq!(count_bits(&words, 0, u64::MAX), 67);
    }

    #[test]
    fn words_hold_what_was_put_into_them() {
        let at = Address::new(3, 5 * GROUP_ALIGN);
        let next = Version::loaded(6).next(at);
        assert_eq!((next.number(), next.rebuilt_at()), (7, Some(at)));
        assert_eq!(Version::loaded(6).rebuilt_at(), None);
        let fenced = next.fenced().fenced();
        assert_eq!((fenced.number(), fenced.rebuilt_at(), fenced == next), (7, Some(at), false));
        let folded = Folded::new(7, 99, true);
        assert_eq!(
            (folded.is_of(7), folded.is_of(8), folded.clock(), folded.is_busy()),
            (true, false, 99, true)
        );
        assert!(!Folded::default().is_of(0) && Folded::new(0, 1, false).is_of(0));
        assert_eq!(superblock().descriptor_of(2, next), Address::new(3, 5 * GROUP_ALIGN - DESCRIPTOR_BYTES));
        assert_eq!(
            superblock().descriptor_of(2, Version::loaded(1)).offset(),
            superblock().descriptor_at(2, 1)
        );

        let held = Owner::default().taken_by(9);
        assert_eq!((held.holder(), held.is_replaced()), (9, false));
        let taken = held.taken_by(4);
        assert_eq!((taken.holder(), taken.is_replaced()), (4, true));
        assert!(taken.released(false).is_replaced() && !taken.released(true).is_replaced());
        assert_ne!(taken.released(true), Owner::default());

        let space = Span { offset: 9 * GROUP_ALIGN, bytes: 3 * GROUP_ALIGN };
        let free_span = FreeSpan::new(space, 0x1_2345).expect("a space that fits");
        assert_eq!(
            (free_span.space(), free_span.epoch(0x1_2346), free_span.epoch(0x1_2345)),
            (space, 0x1_2345, 0x1_2345)
        );
        assert_eq!(FreeSpan::new(Span::default(), 0), None);
        let line = ReaderEpoch::new(7, 20, u16::MAX).beat(21);
        assert_eq!((line.reader(), line.epoch(25)), (7, 21));

        let word = Reservations::empty(5);
        assert!(word.is_of(5) && !word.is_of(6) && !Reservations(word.0 | Reservations::SEAL).admits(8));
        let used = Reservations(word.0 + 2 * Reservations::STEPS[0] + 3 * Reservations::STEPS[1]);
        assert_eq!((used.count(0), used.count(1), used.is_of(5)), (2, 3, true));
        assert!(used.admits(6) && !used.admits(5));
    }

    #[test]
    fn fresh_records_of_both_clusters_meet_in_the_middle() {
        let group = Descriptor {
            version: 1,
            capacity: 10,
            at: Address::new(3, 4096),
            space: 8192,
            clock: 5,
            clusters: [ClusterPlace { members: 3, bytes: 1000 }, ClusterPlace { members: 4, bytes: 800 }],
        };
        let (a, b) = (group.cluster(0, 100), group.cluster(1, 100));
        assert_eq!((a.offset, a.bytes, b.offset, b.bytes), (4096, 1000, 6096, 800));
        let (fresh_a, fresh_b) = (group.fresh(0, 4, 100), group.fresh(1, 6, 100));
        assert_eq!(a.offset + a.bytes, fresh_a.offset);
        assert_eq!(fresh_b.offset + fresh_b.bytes, b.offset);
        assert_eq!(fresh_a.offset + fresh_a.bytes, fresh_b.offset);
        assert_eq!(
            (group.slot(0, 3, 100), group.slot(1, 6, 100)),
            (group.slot(1, 6, 100), group.slot(0, 3, 100))
        );
        assert_eq!((group.at.node(), group.at.offset()), (3, 4096));
    }

    proptest! {
        #[test]
        fn a_descriptor_with_any_byte_changed_is_refused(at in 0usize..64, change in 1u8..) {
            let group = Descriptor { version: 6, capacity: 10, ..Descriptor::default() };
            let mut bytes = group.encode(77, 2);
            prop_assert_eq!(Descriptor::decode(77, 2, 6, &bytes), Some(group));
            prop_assert_eq!(Descriptor::decode(77, 3, 6, &bytes), None);
            prop_assert_eq!(Descriptor::decode(77, 2, 4, &bytes), None);
            bytes[at] ^= change;
            prop_assert_eq!(Descriptor::decode(77, 2, 6, &bytes), None);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Superblock::newest(&bytes);
            let _ = ControlWords::decode(&bytes);
            let _ = GroupWords::decode(&bytes);
            let _ = Descriptor::decode(1, 2, 3, &bytes);
        }
    }
}
