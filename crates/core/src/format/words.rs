//! The words of a region, which compute nodes change by atomic operations.

use super::region::{Address, CONTROL_BYTES, Descriptor, GROUP_ALIGN, GROUP_WORDS_BYTES, Span, number, put};

/// The words that all compute nodes share.
///
/// The clock is the number of tombstones that were reserved. A record has the clock that it was inserted at. A
/// tombstone has the clock after itself, and it deletes what has a lower clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlWords {
    /// Tombstones that were reserved since the index was loaded.
    pub tombstones: u64,
    /// The first of them that still counts: those before were folded into all groups.
    pub first_tombstone: u64,
    /// The first of them whose place is not free for another one. It follows `first_tombstone`.
    pub held_tombstone: u64,
    /// Counts groups that were replaced. Their space is reused once no reader is of an earlier epoch.
    pub epoch: u64,
    /// Compute node that frees tombstones.
    pub freer: Owner,
}

impl ControlWords {
    /// Byte offset of each word from [`Superblock::control_at`].
    pub const HELD_TOMBSTONE: u64 = 0;
    /// See [`ControlWords::HELD_TOMBSTONE`].
    pub const TOMBSTONES: u64 = 8;
    /// See [`ControlWords::HELD_TOMBSTONE`].
    pub const FIRST_TOMBSTONE: u64 = 16;
    /// See [`ControlWords::HELD_TOMBSTONE`].
    pub const EPOCH: u64 = 24;
    /// See [`ControlWords::HELD_TOMBSTONE`].
    pub const FREER: u64 = 32;
    /// Numbers that were given to compute nodes. It is not among the words that are read.
    pub const READERS: u64 = 40;

    /// Reads them; `None` where there are too few bytes.
    pub fn decode(bytes: &[u8]) -> Option<ControlWords> {
        Some(ControlWords {
            held_tombstone: number(bytes, 0)?,
            tombstones: number(bytes, 1)?,
            first_tombstone: number(bytes, 2)?,
            epoch: number(bytes, 3)?,
            freer: Owner(number(bytes, 4)?),
        })
    }

    /// Bytes of the words.
    pub fn encode(&self) -> [u8; CONTROL_BYTES as usize] {
        let mut out = [0; CONTROL_BYTES as usize];
        let words = [self.held_tombstone, self.tombstones, self.first_tombstone, self.epoch, self.freer.0];
        words.into_iter().enumerate().for_each(|(at, word)| put(&mut out, at, word));
        out
    }
}

/// Numbers of fresh records that the clusters of a group have reserved: one word that is only added to, with the
/// version that it belongs to and a seal that ends reservations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reservations(pub u64);

impl Reservations {
    /// Amounts that a reservation for A or for B adds.
    pub const STEPS: [u64; 2] = [1, 1 << 24];
    /// Set by compare-and-swap, never by addition.
    pub const SEAL: u64 = 1 << 63;
    const MASK: u64 = (1 << 24) - 1;
    const TAG: u64 = 0x7FFF << 48;

    /// No reservations of a version.
    pub fn empty(version: u32) -> Reservations {
        Reservations((u64::from(version) << 48) & Reservations::TAG)
    }

    /// Whether the word belongs to this version. A word returns to the same tag only after 32,768 rebuilds.
    pub fn is_of(self, version: u32) -> bool {
        self.0 & Reservations::TAG == Reservations::empty(version).0
    }

    /// Reserved by A or by B. Reservations that did not fit are among them.
    pub fn count(self, side: usize) -> u64 {
        (self.0 >> (24 * side)) & Reservations::MASK
    }

    /// Whether nothing can be reserved any more.
    pub fn is_sealed(self) -> bool {
        self.0 & Reservations::SEAL != 0
    }

    /// Whether one more record fits, as the word was before it was added to.
    pub fn admits(self, capacity: u32) -> bool {
        !self.is_sealed() && self.count(0) + self.count(1) < u64::from(capacity)
    }

    /// Slots of this side that may hold records. Reservations that did not fit are counted too, so that the slots of
    /// both sides overlap where their sum passes the capacity: a slot in both holds a record of either.
    pub fn used(self, side: usize, capacity: u32) -> u32 {
        self.count(side).min(u64::from(capacity)) as u32
    }

    /// Slots from the end of A and from that of B that hold all records, each slot once.
    pub fn disjoint(self, capacity: u32) -> [u32; 2] {
        let a = self.used(0, capacity);
        [a, self.used(1, capacity).min(capacity - a)]
    }
}

/// The version of a group, and where the group is if it was rebuilt. One compare-and-swap of it publishes a rebuild.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version(pub u64);

impl Version {
    const NUMBER: u64 = (1 << 24) - 1;
    const PAGE: u64 = (1 << 28) - 1;

    /// A version that was loaded with the index.
    pub fn loaded(number: u32) -> Version {
        Version(u64::from(number) & Version::NUMBER)
    }

    /// The version after this one, in a group that begins at a multiple of [`GROUP_ALIGN`] other than 0.
    pub fn next(self, at: Address) -> Version {
        let page = (at.offset() / GROUP_ALIGN) & Version::PAGE;
        Version(u64::from(self.number() + 1) & Version::NUMBER | page << 24 | u64::from(at.node()) << 52)
    }

    /// The same version, which nobody can replace any more who knew the word before. Of 16 words the first one comes
    /// again.
    pub fn fenced(self) -> Version {
        Version(self.0.wrapping_add(1 << 60))
    }

    /// The number of the version.
    pub fn number(self) -> u32 {
        (self.0 & Version::NUMBER) as u32
    }

    /// Address of the rebuilt group; `None` where it was loaded.
    pub fn rebuilt_at(self) -> Option<Address> {
        let page = self.0 >> 24 & Version::PAGE;
        (page > 0).then(|| Address::new((self.0 >> 52) as u8, page * GROUP_ALIGN))
    }

    /// The whole space of this version, which a rebuilt group shares with its descriptor.
    pub fn space(self, descriptor: &Descriptor) -> Span {
        let before = if self.rebuilt_at().is_some() { GROUP_ALIGN } else { 0 };
        Span { offset: descriptor.at.offset().saturating_sub(before), bytes: descriptor.space }
    }
}

/// Compute node that rebuilds a group. Each change of hands has a number of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner(pub u64);

impl Owner {
    const HOLDER: u64 = 0xFFFF;
    const REPLACED: u64 = 1 << 16;

    /// The holder, a number other than 0, or 0.
    pub fn holder(self) -> u16 {
        (self.0 & Owner::HOLDER) as u16
    }

    /// Whether a rebuilder of this version was replaced. It may go on, so the space of the version is not reused.
    pub fn is_replaced(self) -> bool {
        self.0 & Owner::REPLACED != 0
    }

    /// The word once somebody holds the group.
    pub fn taken_by(self, holder: u16) -> Owner {
        let was_held = if self.holder() == 0 { 0 } else { Owner::REPLACED };
        Owner((self.0 & !Owner::HOLDER | was_held | u64::from(holder)).wrapping_add(1 << 17))
    }

    /// Added by a holder that lives, where the heartbeat has no word of its own.
    pub const BEAT: u64 = 1 << 17;

    /// The word after a beat.
    pub fn beat(self) -> Owner {
        Owner(self.0.wrapping_add(Owner::BEAT))
    }

    /// The word once nobody holds it. After a publish nothing is known of those who were replaced.
    pub fn released(self, is_published: bool) -> Owner {
        let cleared = if is_published { Owner::HOLDER | Owner::REPLACED } else { Owner::HOLDER };
        Owner(self.0 & !cleared)
    }
}

/// Space that a replaced group left, in one word. Who swaps it for 0 frees its pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeSpan(pub u64);

impl FreeSpan {
    /// Space that no reader of this epoch or a later one reads; `None` where it does not fit into the word.
    pub fn new(space: Span, epoch: u64) -> Option<FreeSpan> {
        let (page, pages) = (space.offset / GROUP_ALIGN, space.bytes / GROUP_ALIGN);
        let fits = page > 0 && page < 1 << 28 && pages > 0 && pages < 1 << 20;
        fits.then_some(FreeSpan(page | pages << 28 | epoch << 48))
    }

    /// The space; no bytes where there is none.
    pub fn space(self) -> Span {
        let (page, pages) = (self.0 & ((1 << 28) - 1), self.0 >> 28 & ((1 << 20) - 1));
        Span { offset: page * GROUP_ALIGN, bytes: pages * GROUP_ALIGN }
    }

    /// The epoch since which no reader reads it, or a later one. The word has its lowest 16 bits.
    pub fn epoch(self, now: u64) -> u64 {
        now.saturating_sub(now.wrapping_sub(self.0 >> 48) & 0xFFFF)
    }
}

/// The clock up to which the marks of a version of a group have tombstones, in one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Folded(pub u64);

impl Folded {
    const CLOCK: u64 = (1 << 48) - 1;
    const TAG: u64 = 0x7FFF;
    const BUSY: u64 = 1 << 63;

    /// Marks of a version that are set now, or have been set.
    pub fn new(version: u32, clock: u64, is_busy: bool) -> Folded {
        let busy = if is_busy { Folded::BUSY } else { 0 };
        Folded(clock & Folded::CLOCK | (u64::from(version) & Folded::TAG) << 48 | busy)
    }

    /// Whether there are marks of this version. A word returns to the same tag only after 32,768 rebuilds.
    pub fn is_of(self, version: u32) -> bool {
        self.0 != 0 && self.0 >> 48 & Folded::TAG == u64::from(version) & Folded::TAG
    }

    /// No mark is of a later tombstone.
    pub fn clock(self) -> u64 {
        self.0 & Folded::CLOCK
    }

    /// Whether marks up to the clock may be missing.
    pub fn is_busy(self) -> bool {
        self.0 & Folded::BUSY != 0
    }
}

/// The words of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupWords {
    /// The version that counts. Its parity says which reservations belong to it.
    pub version: Version,
    /// Reservations of even and of odd versions.
    pub reserved: [Reservations; 2],
    /// Compute node that rebuilds the group.
    pub owner: Owner,
    /// Grows while the owner lives.
    pub heartbeat: u64,
    /// Spaces on the node of this group that are free once no reader is in them.
    pub free_spans: [FreeSpan; 2],
    /// The tombstones that are in the marks of the group.
    pub folded: Folded,
}

impl GroupWords {
    /// Byte offset of the version from the words of its group.
    pub const VERSION: u64 = 0;
    /// Offset of the reservations of even versions; those of odd ones follow.
    pub const RESERVED: u64 = 8;
    /// Offset of the owner.
    pub const OWNER: u64 = 24;
    /// Offset of the heartbeat.
    pub const HEARTBEAT: u64 = 32;
    /// Offset of the first free span; the second one follows.
    pub const FREE_SPANS: u64 = 40;
    /// Offset of the tombstones that are in the marks.
    pub const FOLDED: u64 = 56;

    /// The reservations of the version that counts.
    pub fn reservations(&self) -> Reservations {
        self.reserved[(self.version.number() & 1) as usize]
    }

    /// Byte offset of the reservations of a version.
    pub fn reserved_at(version: u32) -> u64 {
        GroupWords::RESERVED + 8 * u64::from(version & 1)
    }

    /// Reads them; `None` where there are too few bytes.
    pub fn decode(bytes: &[u8]) -> Option<GroupWords> {
        Some(GroupWords {
            version: Version(number(bytes, 0)?),
            reserved: [Reservations(number(bytes, 1)?), Reservations(number(bytes, 2)?)],
            owner: Owner(number(bytes, 3)?),
            heartbeat: number(bytes, 4)?,
            free_spans: [FreeSpan(number(bytes, 5)?), FreeSpan(number(bytes, 6)?)],
            folded: Folded(number(bytes, 7)?),
        })
    }

    /// Bytes of the words.
    pub fn encode(&self) -> [u8; GROUP_WORDS_BYTES as usize] {
        let mut out = [0; GROUP_WORDS_BYTES as usize];
        let [even, odd] = self.reserved;
        let [first, second] = self.free_spans;
        let Folded(folded) = self.folded;
        let words = [self.version.0, even.0, odd.0, self.owner.0, self.heartbeat, first.0, second.0, folded];
        words.into_iter().enumerate().for_each(|(at, word)| put(&mut out, at, word));
        out
    }
}

/// The line of a compute node in one word, so that one compare-and-swap changes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderEpoch(pub u64);

impl ReaderEpoch {
    /// A line of a node with this number, which is not 0, at a beat of its heart.
    pub fn new(reader: u16, epoch: u64, heartbeat: u16) -> ReaderEpoch {
        ReaderEpoch(u64::from(reader) | u64::from(heartbeat) << 16 | epoch << 32)
    }

    /// Number of the compute node that has the line, or 0.
    pub fn reader(self) -> u16 {
        self.0 as u16
    }

    /// The epoch that it began its batch in, or an earlier one. The word has its lowest 32 bits.
    pub fn epoch(self, now: u64) -> u64 {
        now.saturating_sub(now.wrapping_sub(self.0 >> 32) & 0xFFFF_FFFF)
    }

    /// The line at the next beat.
    pub fn beat(self, epoch: u64) -> ReaderEpoch {
        ReaderEpoch::new(self.reader(), epoch, ((self.0 >> 16) as u16).wrapping_add(1))
    }
}
