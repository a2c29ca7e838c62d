//! What a new version of a group is built of.

use alloc::vec::Vec;

use crate::format::fresh::{FreshRecord, Tombstone};

/// A fresh record that goes into a sub-HNSW.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// The user's id.
    pub id: u64,
    /// The clock of its insert.
    pub clock: u64,
    /// Its cluster.
    pub cluster: u32,
    /// What makes the vector a unit vector; 1 but under cosine.
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
    /// Tombstones since the version before, by id.
    pub(super) tombstones: Vec<Tombstone>,
    /// The clock of members of the version before.
    pub(super) members_clock: u64,
}

impl Contents {
    /// Whether a member of the old sub-HNSWs stays in the new one.
    pub fn keeps(&self, id: u64) -> bool {
        let is_replaced = self.records.binary_search_by_key(&id, |record| record.id).is_ok();
        !is_replaced && !self.is_deleted(id, self.members_clock)
    }

    fn is_deleted(&self, id: u64, clock: u64) -> bool {
        let after =
            self.tombstones.partition_point(|tombstone| (tombstone.id, tombstone.clock) <= (id, clock));
        self.tombstones.get(after).is_some_and(|tombstone| tombstone.id == id)
    }

    /// Drops records that were deleted, and all but the latest of each id.
    pub(super) fn fold(&mut self, mut tombstones: Vec<Tombstone>) {
        tombstones.sort_unstable_by_key(|tombstone| (tombstone.id, tombstone.clock));
        self.tombstones = tombstones;
        let mut records = core::mem::take(&mut self.records);
        records.retain(|record| !self.is_deleted(record.id, record.clock));
        records.sort_by_key(|record| (record.id, core::cmp::Reverse(record.clock)));
        records.dedup_by_key(|record| record.id);
        self.records = records;
    }
}
