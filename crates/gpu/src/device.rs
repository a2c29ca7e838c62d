//! The interface of a device.

use crate::backend::{Backend, DeviceInfo};
use crate::batcher::Batcher;
use crate::job::{Job, Prepared, Ranked, Rows};
use crate::layout::{Addresses, BlockLayout, MemoryAccount, Params};
use crate::limits::{self, Limits};
use crate::shared::{Counters, Reply, Shared};
use crate::{DeviceOptions, Error, Failure, cuda};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use stratann_kernel::bits::{BitCoder, BitQuery};

/// The callback of a job. It is called once, on a thread of the device or within [`Device::submit`]; it must not block.
pub type Done = Box<dyn FnOnce(Result<Ranked, Failure>) + Send>;

/// Bytes of one copy while codes are loaded.
const COPY_BYTES: usize = 64 << 20;

/// Share of the free memory that is used where no budget is given.
const FREE_SHARE: (u64, u64) = (9, 10);

/// Time that the end of a device waits for a driver that does not return.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// A GPU with codes in its memory.
///
/// Dropping it ends its threads; jobs that were submitted before are still answered.
pub struct Device {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    limits: Limits,
    memory: MemoryAccount,
    info: DeviceInfo,
}

impl Device {
    /// Opens a GPU, compiles the kernels for it, and copies the codes into its memory.
    ///
    /// `codes` are whole codes of `coder`; the first one has id 0.
    pub fn open(options: &DeviceOptions, coder: &BitCoder, codes: &[u8]) -> Result<Device, Error> {
        // A thread of its own: CUDA binds its context to the thread, and the caller's thread may have another one.
        std::thread::scope(|scope| {
            let open =
                || Device::start(options, coder, codes, || Ok(Box::new(cuda::Gpu::open(options.device)?)));
            let thread = Builder::new().name("gpu-open".to_string()).spawn_scoped(scope, open);
            let thread = thread.map_err(|e| Error::Thread(e.to_string()))?;
            thread
                .join()
                .unwrap_or_else(|_| Err(Error::Call("a thread panicked while it was opened".to_string())))
        })
    }

    /// Opens an emulated device: the same kernels on the CPU, with faults on demand.
    #[cfg(feature = "emulated")]
    pub fn emulated(
        options: &DeviceOptions,
        faults: &crate::Faults,
        coder: &BitCoder,
        codes: &[u8],
    ) -> Result<Device, Error> {
        Device::start(options, coder, codes, || {
            Ok(Box::new(crate::emulated::Emulator::open(faults.clone())?))
        })
    }

    /// Returns the smallest budget with which [`open`](Self::open) works, in bytes.
    pub fn needed_bytes(options: &DeviceOptions, coder: &BitCoder, codes_bytes: u64) -> u64 {
        MemoryAccount::new(options, coder, codes_bytes, 1).total()
    }

    /// Checks what is given before the backend is opened, loads it, and starts the threads.
    pub(crate) fn start(
        options: &DeviceOptions,
        coder: &BitCoder,
        codes: &[u8],
        open: impl FnOnce() -> Result<Box<dyn Backend>, Error>,
    ) -> Result<Device, Error> {
        options.check()?;
        let codes_count = limits::check_codes(coder, codes)?;
        let needed = Device::needed_bytes(options, coder, codes.len() as u64);
        if let Some(given) = options.budget_bytes.filter(|&given| given < needed) {
            return Err(Error::Budget { needed, given });
        }
        let block = BlockLayout::new(options, coder);
        if block.bytes > u64::from(u32::MAX) {
            let what = format!("a block of {} bytes exceeds 4 GiB; lower ids_max", block.bytes);
            return Err(Error::Codes(what));
        }
        let mut backend = open()?;
        let free = backend.info().memory_free_bytes / FREE_SHARE.1 * FREE_SHARE.0;
        let budget = options.budget_bytes.unwrap_or(free);
        let memory = MemoryAccount::plan(options, coder, codes.len() as u64, budget)?;
        let addresses = load(backend.as_mut(), codes, &memory)?;
        backend.prepare(memory.block_count, block.staging_bytes(), options.streams)?;
        let params = Params::new(&block, coder, codes_count, addresses, backend.shared_bytes_max());
        let info = backend.info().clone();
        let shared = Shared::new(options.streams, memory.block_count);
        let mut device = Device {
            shared: shared.clone(),
            threads: Vec::new(),
            limits: Limits::new(options, coder, codes_count),
            memory,
            info,
        };
        let watchdog = shared.clone();
        let batcher = Batcher::new(backend, shared, params, options.clone());
        device.spawn("gpu-batcher", move || batcher.run())?;
        device.spawn("gpu-watchdog", move || watchdog.watch())?;
        Ok(device)
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let thread = Builder::new().name(name.to_string()).spawn(run);
        self.threads.push(thread.map_err(|e| Error::Thread(e.to_string()))?);
        Ok(())
    }

    /// Starts a job and returns at once. While no block is free the job waits in a queue.
    ///
    /// Ids at or beyond [`held_codes`](Self::held_codes) are skipped. Of `query` only what the kernels need is copied.
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
            Ok(Some(job)) => self.shared.push(job, reply),
        }
    }

    /// Number of codes on the device.
    pub fn held_codes(&self) -> u64 {
        u64::from(self.limits.codes_count)
    }

    /// Memory of the device, part by part.
    pub fn memory(&self) -> MemoryAccount {
        self.memory
    }

    /// Totals since the device was opened.
    pub fn counters(&self) -> Counters {
        self.shared.counters()
    }

    /// Whether the device failed. All its jobs fail then; another device must be opened.
    pub fn is_lost(&self) -> bool {
        self.shared.is_lost()
    }

    /// The GPU.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.shared.close();
        let current = std::thread::current().id();
        // A callback may own the device: a thread cannot wait for its own end.
        let is_own = self.threads.iter().any(|thread| thread.thread().id() == current);
        // A thread that hangs in a call into the driver is left behind.
        if self.threads.is_empty() || is_own || !self.shared.wait_for_end(CLOSE_GRACE) {
            return;
        }
        for thread in self.threads.drain(..) {
            // A panic of a thread has answered its jobs with `Lost` already.
            let _ = thread.join();
        }
    }
}

/// Copies the codes, and allocates the blocks.
fn load(backend: &mut dyn Backend, codes: &[u8], memory: &MemoryAccount) -> Result<Addresses, Error> {
    let addresses = Addresses {
        // An allocation of no bytes is an error for some drivers.
        codes: backend.allocate("codes", memory.codes.max(256))?,
        blocks: backend.allocate("blocks of queries", memory.blocks)?,
    };
    let mut address = addresses.codes;
    for part in codes.chunks(COPY_BYTES) {
        backend.write(address, part)?;
        address += part.len() as u64;
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_can_be_shared_by_threads() {
        fn check<T: Send + Sync>() {}
        check::<Device>();
    }
}
