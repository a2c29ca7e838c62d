//! GPUs that are open in this process. Indexes on the same one share it: its threads, its kernels and its queue.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use stratann_gpu::{Device, Error};
use stratann_storage::process::PerProcess;

/// A GPU that indexes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DeviceId {
    /// The one with this number, as the driver counts.
    Cuda(u32),
    /// The one whose kernels run on the processor.
    #[cfg(feature = "emulated")]
    Emulated,
}

/// Devices that are open. Each ends with the last index that has codes on it.
#[derive(Default)]
pub(super) struct OpenDevices {
    // A lock for each device: who opens one does not wait for another.
    devices: Mutex<BTreeMap<DeviceId, Arc<Mutex<Weak<Device>>>>>,
}

impl OpenDevices {
    /// Those of this process. A forked child begins without: it has none of the threads.
    pub(super) fn of_process() -> &'static OpenDevices {
        static OPEN: PerProcess<OpenDevices> = PerProcess::new();
        OPEN.get(OpenDevices::default)
    }

    /// Returns the open device, or what `open` opens where there is none or it is lost. Of several threads one opens
    /// it, and the others wait.
    pub(super) fn get(
        &self,
        id: DeviceId,
        open: impl FnOnce() -> Result<Arc<Device>, Error>,
    ) -> Result<Arc<Device>, Error> {
        // Nothing panics under the outer lock; under the inner one the device is whole or absent.
        let own = {
            let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
            devices.entry(id).or_default().clone()
        };
        let mut known = own.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = known.upgrade().filter(|device| !device.is_lost()) {
            return Ok(device);
        }
        let device = open()?;
        *known = Arc::downgrade(&device);
        Ok(device)
    }
}

#[cfg(all(test, feature = "emulated"))]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use stratann_gpu::{CodesOptions, DeviceOptions, Faults, Job};
    use stratann_kernel::bits::{BitCoder, BitQuery, CoderParts, Layout, Scaling};
    use stratann_testing::{Need, leave_out};

    use super::*;

    /// `None` where there is no C++ compiler.
    fn emulated() -> Option<Arc<Device>> {
        with_faults(&Faults::default())
    }

    fn with_faults(faults: &Faults) -> Option<Arc<Device>> {
        match Device::emulated(&DeviceOptions::default(), faults) {
            Err(error @ Error::Missing { .. }) => {
                leave_out(Need::Compiler, &error.to_string());
                None
            }
            opened => Some(opened.expect("opens")),
        }
    }

    #[test]
    fn threads_that_open_at_once_get_the_same_device() {
        if emulated().is_none() {
            return;
        }
        let (devices, opened) = (OpenDevices::default(), AtomicU64::new(0));
        let get = |id| {
            let open = || {
                opened.fetch_add(1, Ordering::Relaxed);
                Ok(emulated().expect("a compiler"))
            };
            devices.get(id, open).expect("opens")
        };
        let (of_threads, get) = (Mutex::new(Vec::new()), &get);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| of_threads.lock().expect("no panic").push(get(DeviceId::Emulated)));
            }
        });
        let of_threads = of_threads.into_inner().expect("no panic");
        assert!(of_threads.iter().all(|device| Arc::ptr_eq(device, &of_threads[0])));
        assert_eq!(opened.load(Ordering::Relaxed), 1);
        let other = get(DeviceId::Cuda(1));
        assert!(!Arc::ptr_eq(&other, &of_threads[0]));
        // It ends with its last owner, and another one is opened.
        drop(of_threads);
        get(DeviceId::Emulated);
        assert_eq!(opened.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_lost_device_is_not_handed_out() {
        let faults = Faults { fail_launch: Some(0), ..Faults::default() };
        let Some(device) = with_faults(&faults) else { return };
        let devices = OpenDevices::default();
        let get = |open: &Arc<Device>| devices.get(DeviceId::Emulated, || Ok(open.clone())).expect("opens");
        assert!(Arc::ptr_eq(&get(&device), &device));
        let other = emulated().expect("a compiler");
        assert!(Arc::ptr_eq(&get(&other), &device));

        let coder = BitCoder::of_parts(CoderParts {
            layout: Layout::even(8, 2, 0, false).expect("a layout"),
            step: 0.3,
            seed: 1,
            basis: Vec::new(),
            centre: vec![0.0; 8],
            centroids: Vec::new(),
            ip: false,
            scaling: Scaling::Unbiased,
        });
        let codes = vec![0; 10 * coder.layout().code_bytes()];
        let loaded = device.load(&CodesOptions::default(), &coder, &codes).expect("fits");
        let mut query = BitQuery::default();
        query.set(&coder, &[1.0; 8], &mut Vec::new());
        let job = Job { ids: vec![1], keep: 1, exclude: u32::MAX, ..Job::default() };
        let (sender, receiver) = std::sync::mpsc::channel();
        loaded.submit(&query, job, Box::new(move |answer| sender.send(answer).expect("the test waits")));
        assert!(receiver.recv().expect("an answer").is_err() && device.is_lost());
        assert!(Arc::ptr_eq(&get(&other), &other));
    }

    #[test]
    fn an_error_is_not_kept() {
        let devices = OpenDevices::default();
        let failed = devices.get(DeviceId::Cuda(0), || Err(Error::Call("a failure".into())));
        assert!(failed.is_err());
        let Some(device) = emulated() else { return };
        let got = devices.get(DeviceId::Cuda(0), || Ok(device.clone())).expect("opens");
        assert!(Arc::ptr_eq(&got, &device));
    }
}
