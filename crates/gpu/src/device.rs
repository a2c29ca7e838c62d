//! A device: its threads and its queue, which all codes on it share.

use crate::backend::{Backend, DeviceInfo};
use crate::batcher::Batcher;
use crate::counters::Counters;
use crate::request::{Action, Outcome, wait_for};
use crate::shared::Shared;
use crate::{CodesOptions, DeviceCodes, DeviceOptions, Error, Failure, Ranked, cuda};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use stratann_kernel::bits::BitCoder;

/// The callback of a job. It is called once, on a thread of the device or within [`DeviceCodes::submit`]. It must not
/// block, nor load codes.
pub type Done = Box<dyn FnOnce(Result<Ranked, Failure>) + Send>;

/// Time that the end of a device waits for a driver that does not return.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// An open GPU, to which indexes [`load`](Device::load) their codes.
///
/// Dropping the last owner, codes included, ends its threads; jobs that were submitted before are still answered.
pub struct Device {
    pub(crate) shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    info: DeviceInfo,
    pub(crate) shared_bytes_max: u32,
}

impl Device {
    /// Opens a GPU and compiles the kernels for it.
    pub fn open(options: &DeviceOptions) -> Result<Arc<Device>, Error> {
        // A thread of its own: CUDA binds its context to the thread, and the caller's thread may have another one.
        std::thread::scope(|scope| {
            let open = || Device::start(options, || Ok(Box::new(cuda::Gpu::open(options.device)?)));
            let thread = Builder::new().name("gpu-open".to_string()).spawn_scoped(scope, open);
            let thread = thread.map_err(|e| Error::Thread(e.to_string()))?;
            thread
                .join()
                .unwrap_or_else(|_| Err(Error::Call("a thread panicked while it was opened".to_string())))
        })
    }

    /// Opens an emulated device: the same kernels on the CPU, with faults on demand.
    #[cfg(feature = "emulated")]
    pub fn emulated(options: &DeviceOptions, faults: &crate::Faults) -> Result<Arc<Device>, Error> {
        Device::start(options, || Ok(Box::new(crate::emulated::Emulator::open(faults.clone())?)))
    }

    /// Checks the options before the backend is opened, and starts the threads.
    pub(crate) fn start(
        options: &DeviceOptions,
        open: impl FnOnce() -> Result<Box<dyn Backend>, Error>,
    ) -> Result<Arc<Device>, Error> {
        options.check()?;
        let mut backend = open()?;
        backend.start_streams(options.streams)?;
        let shared = Shared::new(options.streams);
        let mut device = Device {
            shared: shared.clone(),
            threads: Vec::new(),
            info: backend.info().clone(),
            shared_bytes_max: backend.shared_bytes_max(),
        };
        let watchdog = shared.clone();
        let batcher = Batcher::new(backend, shared, options.clone());
        device.spawn("gpu-batcher", move || batcher.run())?;
        device.spawn("gpu-watchdog", move || watchdog.watch())?;
        Ok(Arc::new(device))
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let thread = Builder::new().name(name.to_string()).spawn(run);
        self.threads.push(thread.map_err(|e| Error::Thread(e.to_string()))?);
        Ok(())
    }

    /// Allocates memory for codes and for blocks of their jobs, and copies the codes. Waits until they can be searched;
    /// other codes are searched meanwhile. Memory of codes that were dropped before is free by then.
    ///
    /// `codes` are whole codes of `coder`; the first one has id 0.
    pub fn load(
        self: &Arc<Device>,
        options: &CodesOptions,
        coder: &BitCoder,
        codes: &[u8],
    ) -> Result<DeviceCodes, Error> {
        DeviceCodes::load(self, options, coder, codes)
    }

    /// Returns how much memory codes without a budget may use now, in bytes: a share of what is free. Waits until the
    /// memory of codes that were dropped before is free.
    pub fn usable_bytes(&self) -> Result<u64, Error> {
        match wait_for(self.shared.request(Action::UsableBytes))? {
            Outcome::UsableBytes(bytes) => Ok(bytes),
            _ => Err(Error::Lost(Failure::Lost)),
        }
    }

    /// Totals since the device was opened.
    pub fn counters(&self) -> Counters {
        self.shared.counters()
    }

    /// Whether the device failed. The jobs of all codes fail then; another device must be opened.
    pub fn is_lost(&self) -> bool {
        self.shared.is_lost()
    }

    /// The GPU, with the memory that was free when it was opened.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_and_its_codes_can_be_shared_by_threads() {
        fn check<T: Send + Sync>() {}
        check::<Device>();
        check::<DeviceCodes>();
    }
}
