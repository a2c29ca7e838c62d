//! Times that queries wait for a slot, and for their turns once they have one.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use crate::exec::Times;

/// Sums over the queries of one class since the start.
#[derive(Default)]
pub(super) struct Waits {
    begun: AtomicU64,
    queued_us: AtomicU64,
    longest_queued_us: AtomicU64,
    ended: AtomicU64,
    in_slot_us: AtomicU64,
    ready_us: AtomicU64,
    computing_us: AtomicU64,
}

impl Waits {
    /// A query has a slot.
    pub(super) fn note_queue(&self, queued_us: u64) {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.queued_us.fetch_add(queued_us, Ordering::Relaxed);
        self.longest_queued_us.fetch_max(queued_us, Ordering::Relaxed);
    }

    /// A query leaves its slot with an answer, or for another server.
    pub(super) fn note_run(&self, times: &Times) {
        self.ended.fetch_add(1, Ordering::Relaxed);
        self.in_slot_us.fetch_add(times.latency / 1000, Ordering::Relaxed);
        self.ready_us.fetch_add(times.ready / 1000, Ordering::Relaxed);
        self.computing_us.fetch_add((times.route + times.verify) / 1000, Ordering::Relaxed);
    }

    pub(super) fn now(&self) -> WaitTimes {
        let of = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        WaitTimes {
            begun: of(&self.begun),
            queued_us: of(&self.queued_us),
            longest_queued_us: of(&self.longest_queued_us),
            ended: of(&self.ended),
            in_slot_us: of(&self.in_slot_us),
            ready_us: of(&self.ready_us),
            computing_us: of(&self.computing_us),
        }
    }
}

/// Waiting times of the queries of one class, summed since the start. Queries from other servers are among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WaitTimes {
    /// Queries that got a slot.
    pub begun: u64,
    /// Time in which they waited for it.
    pub queued_us: u64,
    /// The longest of these times.
    pub longest_queued_us: u64,
    /// Queries that left their slot with an answer, or for another server.
    pub ended: u64,
    /// Time from slot to end.
    pub in_slot_us: u64,
    /// Time in which they waited for their thread with all reads complete.
    pub ready_us: u64,
    /// Time in which they computed. The rest is for reads.
    pub computing_us: u64,
}

/// Waiting times by class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WaitsByClass {
    /// Times of usual queries.
    pub usual: WaitTimes,
    /// Times of heavy queries: large ones, and those of batches.
    pub heavy: WaitTimes,
}
