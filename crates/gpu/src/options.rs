//! Options of a device.

use crate::Error;
use std::time::Duration;

/// Most jobs of one batch: the kernels get their blocks in an array of this size.
pub(crate) const JOBS_MAX: usize = 64;

/// Most results of a job: as many keys are sorted in shared memory.
const KEEP_MAX: u64 = 4096;

/// Most candidates of a job, so that offsets in a block fit 32 bits.
const IDS_MAX: u64 = 1 << 26;

/// Most bytes of vectors, so that offsets in a block fit 32 bits.
const ROWS_BYTES_MAX: u64 = 1 << 30;

const BLOCKS_MAX: u64 = 1 << 16;
const STREAMS_MAX: u64 = 16;

/// Options of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceOptions {
    /// Number of the GPU, as the driver counts them.
    pub device: u32,
    /// Device memory to use, in bytes; `None` for what is free.
    pub budget_bytes: Option<u64>,
    /// Most candidates of a job, ranges expanded.
    pub ids_max: u32,
    /// Most results of a job, at most 4096.
    pub keep_max: u32,
    /// Most blocks: jobs that are on the device at the same time.
    pub queries_in_flight: usize,
    /// Most bytes of the vectors that come with a job of [`Rows`](crate::Rows); 0 where there are no such jobs.
    pub rows_bytes_max: u32,
    /// Most jobs of a batch, at most 64.
    pub batch_max: usize,
    /// Longest time that a job waits for others to join its batch.
    pub batch_wait: Duration,
    /// Batches on the device at the same time.
    pub streams: usize,
    /// Time after which a batch that has not ended is given up, and the device with it.
    pub timeout: Duration,
}

impl Default for DeviceOptions {
    fn default() -> DeviceOptions {
        DeviceOptions {
            device: 0,
            budget_bytes: None,
            ids_max: 1 << 16,
            keep_max: 1024,
            queries_in_flight: 128,
            rows_bytes_max: 0,
            batch_max: 16,
            batch_wait: Duration::from_micros(50),
            streams: 4,
            timeout: Duration::from_secs(2),
        }
    }
}

impl DeviceOptions {
    /// Checks every option against its limits.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let limits = [
            ("ids_max", u64::from(self.ids_max), IDS_MAX),
            ("keep_max", u64::from(self.keep_max), KEEP_MAX),
            ("queries_in_flight", self.queries_in_flight as u64, BLOCKS_MAX),
            ("batch_max", self.batch_max as u64, JOBS_MAX as u64),
            ("streams", self.streams as u64, STREAMS_MAX),
        ];
        for (option, given, high) in limits {
            if !(1..=high).contains(&given) {
                return Err(Error::Option { option, given, low: 1, high });
            }
        }
        if u64::from(self.rows_bytes_max) > ROWS_BYTES_MAX {
            let given = u64::from(self.rows_bytes_max);
            return Err(Error::Option { option: "rows_bytes_max", given, low: 0, high: ROWS_BYTES_MAX });
        }
        if self.timeout.is_zero() {
            return Err(Error::Option { option: "timeout", given: 0, low: 1, high: u64::MAX });
        }
        Ok(())
    }
}
