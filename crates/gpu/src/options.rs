//! Options of a device, and of codes on it.

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
        check_sizes(&[
            ("batch_max", self.batch_max as u64, JOBS_MAX as u64),
            ("streams", self.streams as u64, STREAMS_MAX),
        ])?;
        if self.timeout.is_zero() {
            return Err(Error::Option { option: "timeout", given: 0, low: 1, high: u64::MAX });
        }
        Ok(())
    }
}

/// Options of the codes of one index on a device: their memory, and limits of their jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct CodesOptions {
    /// Device memory to use for codes and blocks, in bytes; `None` for a share of what is free.
    pub budget_bytes: Option<u64>,
    /// Most candidates of a job, ranges expanded.
    pub ids_max: u32,
    /// Most results of a job, at most 4096.
    pub keep_max: u32,
    /// Most blocks: jobs that are on the device at the same time.
    pub queries_in_flight: usize,
    /// Most bytes of the vectors that come with a job of [`Rows`](crate::Rows); 0 where there are no such jobs.
    pub rows_bytes_max: u32,
}

impl Default for CodesOptions {
    fn default() -> CodesOptions {
        CodesOptions {
            budget_bytes: None,
            ids_max: 1 << 16,
            keep_max: 1024,
            queries_in_flight: 128,
            rows_bytes_max: 0,
        }
    }
}

impl CodesOptions {
    /// Checks every option against its limits.
    pub(crate) fn check(&self) -> Result<(), Error> {
        check_sizes(&[
            ("ids_max", u64::from(self.ids_max), IDS_MAX),
            ("keep_max", u64::from(self.keep_max), KEEP_MAX),
            ("queries_in_flight", self.queries_in_flight as u64, BLOCKS_MAX),
        ])?;
        if u64::from(self.rows_bytes_max) > ROWS_BYTES_MAX {
            let given = u64::from(self.rows_bytes_max);
            return Err(Error::Option { option: "rows_bytes_max", given, low: 0, high: ROWS_BYTES_MAX });
        }
        Ok(())
    }
}

/// Checks that each option is from 1 to its largest value.
fn check_sizes(sizes: &[(&'static str, u64, u64)]) -> Result<(), Error> {
    match sizes.iter().find(|(_, given, high)| !(1..=*high).contains(given)) {
        Some(&(option, given, high)) => Err(Error::Option { option, given, low: 1, high }),
        None => Ok(()),
    }
}
