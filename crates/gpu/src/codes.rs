//! Codes of one index on a device.

use crate::counters::{Counters, Totals};
use crate::job::{Job, Prepared, Ranked, Rows};
use crate::layout::{BlockLayout, MemoryAccount, Params};
use crate::limits::{self, Limits};
use crate::queue::CodesNumber;
use crate::request::{Action, Outcome, Plan, wait_for};
use crate::shared::Reply;
use crate::{CodesOptions, Device, DeviceInfo, Done, Error, Failure};
use std::sync::Arc;
use stratann_kernel::bits::{BitCoder, BitQuery};

/// Bytes of one copy while codes are loaded. Batches of other codes are not looked at during a copy: it must be short
/// beside the time that a search takes.
const COPY_BYTES: usize = 4 << 20;

/// Codes of one index in the memory of a [`Device`], with blocks for their jobs.
///
/// Dropping them does not wait: jobs that were submitted before are still answered, and the memory is freed behind the
/// last of them. The last codes and the last other owner of a device end it.
pub struct DeviceCodes {
    device: Arc<Device>,
    number: CodesNumber,
    limits: Limits,
    memory: MemoryAccount,
    totals: Arc<Totals>,
}

impl DeviceCodes {
    /// Returns the smallest budget with which [`Device::load`] works, in bytes.
    pub fn needed_bytes(options: &CodesOptions, coder: &BitCoder, codes_bytes: u64) -> u64 {
        MemoryAccount::new(&BlockLayout::new(options, coder), codes_bytes, 1).total()
    }

    /// Allocates memory, and copies the codes in parts between batches of other codes.
    pub(crate) fn load(
        device: &Arc<Device>,
        options: &CodesOptions,
        coder: &BitCoder,
        codes: &[u8],
    ) -> Result<DeviceCodes, Error> {
        options.check()?;
        let codes_count = limits::check_codes(coder, codes)?;
        let needed = DeviceCodes::needed_bytes(options, coder, codes.len() as u64);
        if let Some(given) = options.budget_bytes.filter(|&given| given < needed) {
            return Err(Error::Budget { needed, given });
        }
        let block = BlockLayout::new(options, coder);
        if block.bytes > u64::from(u32::MAX) {
            let what = format!("a block of {} bytes exceeds 4 GiB; lower ids_max", block.bytes);
            return Err(Error::Codes(what));
        }
        let (number, totals) = (device.shared.next_number(), Arc::new(Totals::default()));
        let plan = Plan {
            codes: number,
            totals: totals.clone(),
            codes_bytes: codes.len() as u64,
            block,
            blocks_max: options.queries_in_flight,
            budget_bytes: options.budget_bytes,
            params: Params::new(&block, coder, codes_count, device.shared_bytes_max),
        };
        let allocate = device.shared.request(Action::Allocate(Box::new(plan)));
        let Outcome::Allocated(memory) = wait_for(allocate)? else {
            return Err(Error::Lost(Failure::Lost));
        };
        let limits = Limits::new(options, coder, codes_count);
        // The drop of these frees the memory where a copy fails.
        let loaded = DeviceCodes { device: device.clone(), number, limits, memory, totals };
        loaded.write(codes)?;
        Ok(loaded)
    }

    /// Copies the codes. While one part is copied to the device, the next is copied here: the batcher owns what it
    /// copies, so nobody waits for a driver that does not return.
    fn write(&self, codes: &[u8]) -> Result<(), Error> {
        let shared = &self.device.shared;
        let mut buffers = [Arc::default(), Arc::default()];
        let mut under_way = None;
        for (n, part) in codes.chunks(COPY_BYTES).enumerate() {
            let bytes: &mut Arc<Vec<u8>> = &mut buffers[n % 2];
            // The batcher has dropped its share before it answers.
            let own = Arc::make_mut(bytes);
            own.clear();
            own.extend_from_slice(part);
            let (codes, at, bytes) = (self.number, (n * COPY_BYTES) as u64, bytes.clone());
            let request = shared.request(Action::Write { codes, at, bytes });
            if let Some(before) = under_way.replace(request) {
                wait_for(before)?;
            }
        }
        if let Some(last) = under_way {
            wait_for(last)?;
        }
        wait_for(shared.request(Action::EndWrites)).map(drop)
    }

    /// Starts a job and returns at once. While no block is free the job waits in the queue of the device.
    ///
    /// Ids at or beyond [`count`](Self::count) are skipped. Of `query` only what the kernels need is copied.
    pub fn submit(&self, query: &BitQuery, job: Job, done: Done) {
        self.start_job(Prepared::new(query, job, &self.limits), done);
    }

    /// As [`submit`](Self::submit), for the exact distances of vectors that come with the job.
    ///
    /// The ids of the answer are the numbers of the rows; its distances are turned into floats by
    /// [`Ranked::to_float`].
    pub fn submit_rows(&self, rows: Rows, done: Done) {
        self.start_job(Prepared::of_rows(rows, &self.limits), done);
    }

    fn start_job(&self, job: Result<Option<Prepared>, Failure>, done: Done) {
        let reply = Reply::new(done);
        match job {
            _ if self.is_lost() => reply.send(Err(Failure::Lost)),
            Err(failure) => reply.send(Err(failure)),
            Ok(None) => reply.send(Ok(Ranked::default())),
            Ok(Some(job)) => self.device.shared.push(self.number, job, reply),
        }
    }

    /// Number of the codes.
    pub fn count(&self) -> u64 {
        u64::from(self.limits.codes_count)
    }

    /// Memory of the codes, part by part.
    pub fn memory(&self) -> MemoryAccount {
        self.memory
    }

    /// Totals of the batches of these codes.
    pub fn counters(&self) -> Counters {
        self.totals.counters()
    }

    /// Whether the device failed, with these codes or with others. All its jobs fail then; another one must be opened.
    pub fn is_lost(&self) -> bool {
        self.device.is_lost()
    }

    /// The GPU.
    pub fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    /// The device that has the codes.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for DeviceCodes {
    fn drop(&mut self) {
        self.device.shared.close_codes(self.number);
    }
}

#[cfg(test)]
mod tests;
