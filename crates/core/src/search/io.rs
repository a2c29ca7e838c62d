//! Wants of a query, and their arrivals.

use alloc::vec::Vec;

use super::QueryStats;
use crate::PAGE;
use crate::score::Ranked;

/// Ties an arrival to the want that it answers; unique within a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u32);

/// One of the stores of an index: a data file, or a section of one that is verified in its own way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId(pub u8);

/// A range of bytes of one store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// The store.
    pub store: StoreId,
    /// The first byte.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: u32,
}

impl Extent {
    /// The offset of the first byte behind it; saturates.
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes as u64)
    }

    /// The number of the page that holds its first byte.
    pub const fn first_page(&self) -> u64 {
        self.offset / PAGE as u64
    }

    /// The number of pages that it touches.
    pub const fn pages(&self) -> u64 {
        self.end().div_ceil(PAGE as u64) - self.first_page()
    }
}

/// Something that the query needs from the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// The bytes of an extent.
    Fetch {
        /// To be repeated in the arrival.
        tag: Tag,
        /// The extent.
        at: Extent,
    },
    /// Scores of vectors by a scorer. For another server the job is the state that `QueryState::job` makes for the
    /// tag; for a scorer of codes it is `Scratch::code_job`.
    Score {
        /// To be repeated in the arrival.
        tag: Tag,
        /// The scorer.
        to: ScorerId,
    },
    /// A lower threshold for the jobs of this query on a server. Nothing comes back, and nothing is lost without it.
    Tell {
        /// The server.
        to: u8,
        /// The threshold, as the kind orders it.
        threshold: Threshold,
    },
}

/// Bound of the sum of a candidate that may be among the results. It belongs to one attempt at a query and only falls.
/// The order is that of the sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Threshold(u64);

impl Threshold {
    /// The threshold of this sum; `None` when it is not a number.
    pub fn new(sum: f64) -> Option<Threshold> {
        // With the sign turned, and all bits of negative numbers, the bits of doubles are in their order.
        let bits = (sum + 0.0).to_bits();
        let key = if bits >> 63 == 0 { bits | 1 << 63 } else { !bits };
        (!sum.is_nan()).then_some(Threshold(key))
    }

    /// The sum.
    pub fn get(self) -> f64 {
        f64::from_bits(if self.0 >> 63 == 1 { self.0 & !(1 << 63) } else { !self.0 })
    }
}

/// Scorers of vectors for a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScorerId {
    /// Another server, which has some of the vectors.
    Server(u8),
    /// The holder of the codes of all vectors: a GPU, or the memory of this machine.
    Codes,
}

/// Use of lists and vectors of other servers by a query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScoringMode {
    /// The query is handed over to where they are.
    #[default]
    HandOver,
    /// Each server scores its own, all at once.
    Score,
    /// As [`ScoringMode::Score`], but one job visits the servers one after another. Each adds its scores and prunes by
    /// all of those before; the last one replies (HARMONY §4.3).
    Forward,
}

/// Reason why a want was not met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Loss {
    /// The read failed.
    Failed = 0,
    /// The file ended too early.
    Short = 1,
    /// The bytes are damaged: checksum, place or layout.
    Damaged = 2,
    /// The query's time was up.
    Expired = 3,
}

/// Arrival for one want.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant, reason = "there are few at a time, and none is kept")]
pub enum Arrived<'a> {
    /// The bytes, verified by [`crate::kinds::IndexView::check_read`].
    Bytes(&'a [u8]),
    /// Scores of a scorer, read by [`crate::query::wire::read_scores`].
    Scores(Scores<'a>),
    /// Candidates that a scorer of codes ranked.
    Ranked(Ranked<'a>),
    /// Nothing will come.
    Lost(Loss),
}

/// The reply to a job.
#[derive(Clone, Copy, Debug)]
pub struct Scores<'a> {
    /// Whether the job was done. What could not be read is named in the content.
    pub is_complete: bool,
    /// Counters of the job.
    pub stats: QueryStats,
    /// The content, as the kind writes it.
    pub(crate) content: &'a [u8],
}

/// The answer to one want.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// The tag of the want.
    pub tag: Tag,
    /// Content of the arrival.
    pub what: Arrived<'a>,
}

/// Content of a read, as its kind needs to know it to verify the bytes. Reads of equal extents bring the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The extent.
    pub at: Extent,
    /// The first unit in it, as the kind numbers them: a block, a list, a vector.
    pub(crate) unit: u32,
    /// Belongs to the kind.
    pub(crate) note: u64,
}

impl Read {
    /// The first unit in it, as the kind numbers them: a block, a list, a vector.
    pub fn unit(&self) -> u32 {
        self.unit
    }
}

/// A read or a job that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) tag: Tag,
    pub(crate) read: Read,
    /// The scorer; `None` for a read.
    pub(crate) scorer: Option<ScorerId>,
}

/// The reads and jobs of one query: what it asked for and what is under way.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Io {
    pub(crate) next_tag: u32,
    pub(crate) wants: Vec<Want>,
    pub(crate) pending: Vec<Pending>,
}

impl Io {
    /// Forgets everything; keeps the memory.
    pub(crate) fn reset(&mut self) {
        self.next_tag = 0;
        self.wants.clear();
        self.pending.clear();
    }

    /// Forgets what is under way.
    pub(crate) fn clear(&mut self) {
        self.wants.clear();
        self.pending.clear();
    }

    /// Asks for an extent.
    pub(crate) fn fetch(&mut self, read: Read) -> Tag {
        let tag = self.tag();
        self.pending.push(Pending { tag, read, scorer: None });
        self.wants.push(Want::Fetch { tag, at: read.at });
        tag
    }

    /// Asks for scores.
    pub(crate) fn score(&mut self, to: ScorerId) -> Tag {
        let tag = self.tag();
        let read = Read { at: Extent::default(), unit: 0, note: 0 };
        self.pending.push(Pending { tag, read, scorer: Some(to) });
        self.wants.push(Want::Score { tag, to });
        tag
    }

    /// Sends a lower threshold to a server.
    pub(crate) fn tell(&mut self, to: u8, threshold: Threshold) {
        self.wants.push(Want::Tell { to, threshold });
    }

    fn tag(&mut self) -> Tag {
        let tag = Tag(self.next_tag);
        self.next_tag = self.next_tag.wrapping_add(1);
        tag
    }

    /// Whether the last step asked another server for scores.
    pub(crate) fn asks_for_scores(&self) -> bool {
        self.wants.iter().any(|want| matches!(want, Want::Score { to: ScorerId::Server(_), .. }))
    }

    /// The number of reads under way.
    pub(crate) fn reads(&self) -> usize {
        self.pending.iter().filter(|p| p.scorer.is_none()).count()
    }

    /// The read or job of this tag, when it is under way.
    pub(crate) fn get(&self, tag: Tag) -> Option<&Pending> {
        self.pending.iter().find(|p| p.tag == tag)
    }

    /// Whether a read of this unit is under way.
    pub(crate) fn is_pending(&self, unit: u32) -> bool {
        self.pending.iter().any(|p| p.read.unit == unit)
    }

    /// Removes and returns the read or job of this tag.
    pub(crate) fn take(&mut self, tag: Tag) -> Option<Pending> {
        let at = self.pending.iter().position(|p| p.tag == tag)?;
        Some(self.pending.swap_remove(at))
    }

    /// Memory beside the struct itself, bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.wants.capacity() * size_of::<Want>() + self.pending.capacity() * size_of::<Pending>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_in_the_order_of_their_sums() {
        let sums = [f64::NEG_INFINITY, -7e9, -3.5, -0.0, 1e-300, 2.0, 8e20, f64::INFINITY];
        let thresholds = sums.map(|sum| Threshold::new(sum).unwrap());
        assert!(thresholds.is_sorted_by(|a, b| a < b));
        assert_eq!(thresholds.map(Threshold::get), sums);
        assert_eq!(Threshold::new(f64::NAN), None);
    }

    #[test]
    fn pages_cover_the_bytes() {
        let extent = |offset, bytes| Extent { store: StoreId(0), offset, bytes };
        for (offset, bytes, first_page, pages) in [
            (0, 4096, 0, 1),
            (0, 4097, 0, 2),
            (4095, 1, 0, 1),
            (4095, 2, 0, 2),
            (8192, 12288, 2, 3),
            (8191, 4098, 1, 3),
        ] {
            let e = extent(offset, bytes);
            assert_eq!((e.first_page(), e.pages(), e.end()), (first_page, pages, offset + u64::from(bytes)));
        }
        assert_eq!(extent(u64::MAX - 1, 10).end(), u64::MAX);
    }
}
