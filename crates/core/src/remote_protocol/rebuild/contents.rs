//! Content of a new version of a group.

use alloc::vec::Vec;

use crate::format::fresh::{FreshRecord, Tombstone};
use crate::format::region::{Descriptor, has_bit};

/// A fresh record that goes into a sub-HNSW.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// The user's id.
    pub id: u64,
    /// The clock of its insert.
    pub clock: u64,
    /// Cluster of the record.
    pub cluster: u32,
    /// Factor that makes the vector a unit vector; 1 but under cosine.
    pub inverse_norm: f32,
    /// Components.
    pub vector: Vec<u8>,
}

impl From<FreshRecord<'_>> for Record {
    fn from(record: FreshRecord<'_>) -> Record {
        let FreshRecord { id, clock, cluster, inverse_norm, vector } = record;
        Record { id, clock, cluster, inverse_norm, vector: vector.to_vec() }
    }
}

/// The old sub-HNSWs, and what changes in them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contents {
    /// The version to build, whose seed the new sub-HNSWs take.
    pub version: u32,
    /// The sub-HNSWs of the version before.
    pub clusters: [Vec<u8>; 2],
    /// Fresh records to add, by id, each id once.
    pub records: Vec<Record>,
    /// Tombstones that are not among the marks, by id.
    pub(super) tombstones: Vec<Tombstone>,
    /// Place of the version before.
    pub(super) old: Descriptor,
    /// Marks of the version.
    pub(super) marks: Vec<u64>,
}

impl Contents {
    /// Whether a member of an old sub-HNSW, which has this id, stays in the new one.
    pub fn keeps(&self, side: usize, member: u32, id: u64) -> bool {
        let is_replaced = self.records.binary_search_by_key(&id, |record| record.id).is_ok();
        let is_marked = has_bit(&self.marks, self.old.member_mark(side) + u64::from(member));
        !is_replaced && !is_marked && !self.is_deleted(id, self.old.clock)
    }

    /// Drops records that have marks. They are in the order of `disjoint` slots of A and of B.
    pub(super) fn drop_marked(&mut self, slots: Vec<Option<Record>>, disjoint: [u32; 2]) {
        let marks = [0, 1].map(|side| {
            let first = self.old.slot_mark(side, disjoint[side]);
            first..first + u64::from(disjoint[side])
        });
        let marked = marks.into_iter().flatten().zip(slots);
        self.records = marked
            .filter(|(mark, _)| !has_bit(&self.marks, *mark))
            .filter_map(|(_, record)| record)
            .collect();
    }

    fn is_deleted(&self, id: u64, clock: u64) -> bool {
        let after =
            self.tombstones.partition_point(|tombstone| (tombstone.id, tombstone.clock) <= (id, clock));
        self.tombstones.get(after).is_some_and(|tombstone| tombstone.id == id)
    }

    /// Drops records that were deleted, and all but the latest of each id.
    pub(super) fn fold(&mut self) {
        self.tombstones.sort_unstable_by_key(|tombstone| (tombstone.id, tombstone.clock));
        let mut records = core::mem::take(&mut self.records);
        records.retain(|record| !self.is_deleted(record.id, record.clock));
        records.sort_by_key(|record| (record.id, core::cmp::Reverse(record.clock)));
        records.dedup_by_key(|record| record.id);
        self.records = records;
    }
}
