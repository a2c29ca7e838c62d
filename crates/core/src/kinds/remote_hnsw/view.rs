//! Part of a `remote-hnsw` in RAM.

use alloc::vec::Vec;
use core::ops::Range;

use crate::format::fresh::{self, Tombstone};
use crate::format::hnsw::{self, HnswLayout, HnswName, SubHnsw};
use crate::format::region::{Descriptor, Span, versioned_offset};
use crate::search::{Extent, Read, StoreId};
use crate::sieve::IdSieve;
use crate::view::Base;

/// The `note` of a read of a sub-HNSW, and of fresh records.
pub(super) const BASE: u64 = 0;
/// See [`BASE`].
pub(super) const FRESH: u64 = 1;

/// Parts of the room for fresh records. Each is read and cached by itself, so that a record more does not make a
/// reader fetch all that it has.
pub(super) const FRESH_PARTS: u32 = 8;

/// The share of a cluster that has all rows with which it was loaded.
pub const WHOLE: u32 = 1 << 16;

/// Place of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Located {
    /// Sub-HNSW of the cluster.
    pub base: Extent,
    /// Fresh records of the cluster that are in use; no bytes where there are none.
    pub fresh: Extent,
    /// The version of its group.
    pub version: u32,
    /// Group of the cluster.
    pub group: u32,
    /// The clock up to which changes are in the sub-HNSW.
    pub clock: u64,
    /// Fresh records that are read at once, at most: a part of them.
    pub part_records: u32,
    /// The mark of its first member, and that of the first of its slots in `fresh`.
    pub first_marks: [u64; 2],
}

impl Located {
    /// A side of a group, and how many of its fresh records are in use.
    pub fn new(at: &Descriptor, group: u32, (side, used): (usize, u32), record_bytes: u64) -> Located {
        let extent = |span: Span| Extent {
            store: StoreId(at.at.node()),
            offset: versioned_offset(at.version, span.offset),
            bytes: u32::try_from(span.bytes).unwrap_or(u32::MAX),
        };
        let (base, fresh) = (at.cluster(side, record_bytes), at.fresh(side, used, record_bytes));
        let Descriptor { version, clock, capacity, .. } = *at;
        let part_records = capacity.div_ceil(FRESH_PARTS).max(1);
        let first_marks = [at.member_mark(side), at.slot_mark(side, used)];
        Located { base: extent(base), fresh: extent(fresh), version, group, clock, part_records, first_marks }
    }

    /// The parts of its fresh records, the oldest first. Those of `A` grow up from the sub-HNSW, those of `B` down.
    pub fn fresh_parts(&self, side: usize, record_bytes: usize) -> impl Iterator<Item = Extent> {
        let (fresh, part) = (self.fresh, self.part_records.saturating_mul(record_bytes as u32).max(1));
        (0..fresh.bytes).step_by(part as usize).map(move |done| {
            let bytes = part.min(fresh.bytes - done);
            let from = if side == 0 { done } else { fresh.bytes - done - bytes };
            Extent { offset: fresh.offset + u64::from(from), bytes, ..fresh }
        })
    }
}

/// Part of a `remote-hnsw` in RAM.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The layout of all sub-HNSWs, and of the meta-HNSW.
    pub layout: &'a HnswLayout,
    /// The meta-HNSW, verified: a vector for each cluster, and a graph over them.
    pub meta: &'a [u8],
    /// The build of the index, as a number.
    pub build: u64,
    /// Places of the clusters: A of group 0, B of group 0, A of group 1 and so on.
    pub clusters: &'a [Located],
    /// Number of the first member of each cluster, then that of all members; empty where members have no numbers.
    pub first: &'a [u32],
    /// Deleted ids, ascending, each with the clock of its last deletion.
    pub tombstones: &'a [Tombstone],
    /// The marks of each group: what of it is deleted. Groups after the last one, or without words, have none.
    pub marks: &'a [Vec<u64>],
    /// The share of its rows at the load that each cluster still has, in parts of [`WHOLE`], as far as the headers
    /// tell; empty where all are whole.
    pub shares: &'a [u32],
    /// The ids that the query may return, where members have no numbers; `None` for all.
    pub id_sieve: Option<&'a IdSieve>,
}

impl View<'_> {
    /// The name of a cluster's sub-HNSW.
    pub fn name(&self, cluster: u32) -> Option<HnswName> {
        let &Located { version, group, .. } = self.clusters.get(cluster as usize)?;
        let seed = hnsw::seed(self.build, group, version, (cluster & 1) as usize);
        Some(HnswName { cluster, version, seed })
    }

    /// Bytes of a fresh record.
    pub fn record_bytes(&self) -> usize {
        fresh::record_bytes(self.layout.vector_bytes)
    }

    /// Whether what was inserted under an id at this clock is deleted.
    pub(super) fn is_hidden(&self, id: u64, clock: u64) -> bool {
        let at = self.tombstones.binary_search_by_key(&id, |tombstone| tombstone.id);
        at.is_ok_and(|at| self.tombstones[at].clock > clock)
    }

    /// Whether rows may be missing that were loaded.
    pub(super) fn is_thinned(&self) -> bool {
        !self.tombstones.is_empty() || !self.shares.is_empty()
    }

    /// The numbers of the members of a cluster, of an index of so many rows.
    pub(super) fn rows_of(&self, cluster: u32, rows: u32) -> Range<u32> {
        let first = |at: usize| self.first.get(at).map_or(rows, |&first| first.min(rows));
        first(cluster as usize)..first(cluster as usize + 1)
    }

    /// The marks of the group of a cluster.
    pub(super) fn marks_of(&self, located: &Located) -> &[u64] {
        self.marks.get(located.group as usize).map_or(&[], |marks| marks)
    }

    /// The share of a cluster. It is 0 where no row is left: the cluster is not read then.
    pub(super) fn share(&self, cluster: u32) -> u32 {
        let is_empty = |own: &Located| own.base.bytes == 0 && own.fresh.bytes == 0;
        if self.is_thinned() && self.clusters.get(cluster as usize).is_none_or(is_empty) {
            return 0;
        }
        self.shares.get(cluster as usize).map_or(WHOLE, |&share| share.min(WHOLE))
    }

    /// Takes what is no whole record out of slots, so that a query needs no checksum. Returns whether nothing more will
    /// be written: every slot has a record, or will never have one.
    pub(super) fn mask_unwritten(&self, read: &Read, bytes: &mut [u8]) -> bool {
        let Some(located) = self.clusters.get(read.unit as usize).filter(|_| read.note == FRESH) else {
            return read.note == BASE;
        };
        let seed = fresh::seed(self.build, located.group, located.version);
        let mut is_final = true;
        for slot in bytes.chunks_exact_mut(self.record_bytes()) {
            is_final &= fresh::mask_unwritten(seed, slot);
        }
        is_final
    }

    /// Whether these bytes are those of a read. Fresh records have a checksum each, which [`View::mask_unwritten`]
    /// checks: one that is written just now is none yet, and no damage.
    pub(super) fn check_read(&self, _: &Base<'_>, read: &Read, bytes: &[u8]) -> bool {
        let Some(located) = self.clusters.get(read.unit as usize) else { return false };
        match read.note {
            BASE => {
                located.base == read.at
                    && self.name(read.unit).is_some_and(|name| SubHnsw::verify(self.layout, &name, bytes))
            }
            FRESH => {
                let mut parts = located.fresh_parts(read.unit as usize % 2, self.record_bytes());
                bytes.len().is_multiple_of(self.record_bytes()) && parts.any(|part| part == read.at)
            }
            _ => false,
        }
    }
}
