//! Counters of the rows of a data folder.

use std::sync::atomic::{AtomicU64, Ordering};

/// What has been written since the data folder was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Batches that are durable.
    pub batches: u64,
    /// Groups of batches that are durable.
    pub groups: u64,
    /// Syncs of groups that were asked of the engine, failed ones included. The engine syncs its files besides.
    pub syncs: u64,
    /// Bytes of keys and values in durable batches.
    pub written_bytes: u64,
    /// Bytes of keys and values in ranges that were removed.
    pub reclaimed_bytes: u64,
    /// Batches that were refused, or whose outcome is unknown.
    pub failed_batches: u64,
}

#[derive(Default)]
pub(super) struct Counts {
    pub(super) batches: AtomicU64,
    pub(super) groups: AtomicU64,
    pub(super) syncs: AtomicU64,
    pub(super) written_bytes: AtomicU64,
    pub(super) reclaimed_bytes: AtomicU64,
    pub(super) failed_batches: AtomicU64,
}

impl Counts {
    pub(super) fn read(&self) -> Counters {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            batches: value(&self.batches),
            groups: value(&self.groups),
            syncs: value(&self.syncs),
            written_bytes: value(&self.written_bytes),
            reclaimed_bytes: value(&self.reclaimed_bytes),
            failed_batches: value(&self.failed_batches),
        }
    }
}

pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
