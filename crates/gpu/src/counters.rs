//! Totals of a device, and of the codes of one index on it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Totals since a device was opened, or since codes were loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Batches that ended well.
    pub batches: u64,
    /// Jobs in them.
    pub jobs: u64,
    /// Bytes of copies to the device for them: headers, queries, ranges and ids.
    pub bytes_to_device: u64,
    /// Bytes of copies from the device for them: result headers and results.
    pub bytes_from_device: u64,
    /// Batches that failed or did not end in time.
    pub failed_batches: u64,
    /// Time of all kernels as the device measured it, in microseconds; 0 where it does not.
    pub kernel_us: u64,
}

/// Counters that several threads read and add to.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    batches: AtomicU64,
    jobs: AtomicU64,
    bytes_to_device: AtomicU64,
    bytes_from_device: AtomicU64,
    failed_batches: AtomicU64,
    kernel_ns: AtomicU64,
}

impl Totals {
    pub(crate) fn counters(&self) -> Counters {
        let get = |total: &AtomicU64| total.load(Ordering::Relaxed);
        Counters {
            batches: get(&self.batches),
            jobs: get(&self.jobs),
            bytes_to_device: get(&self.bytes_to_device),
            bytes_from_device: get(&self.bytes_from_device),
            failed_batches: get(&self.failed_batches),
            kernel_us: get(&self.kernel_ns) / 1000,
        }
    }

    /// Adds the totals of a batch that has ended well.
    pub(crate) fn count(&self, batch: &Counters, kernel_time: Duration) {
        for (total, more) in [
            (&self.batches, batch.batches),
            (&self.jobs, batch.jobs),
            (&self.bytes_to_device, batch.bytes_to_device),
            (&self.bytes_from_device, batch.bytes_from_device),
            (&self.kernel_ns, kernel_time.as_nanos() as u64),
        ] {
            total.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Adds a batch that failed.
    pub(crate) fn count_failure(&self) {
        self.failed_batches.fetch_add(1, Ordering::Relaxed);
    }
}
