//! Memory of codes: all of it is freed, whatever happens to a load and to jobs.

use super::*;
use crate::common::{self, Shape, Task, answers, device_options, options, twin};
use crate::emulated::{Emulator, Faults};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;
use stratann_kernel::bits::Layout;

/// An emulated device, and the bytes of its memory and of staging that are allocated.
struct Counted {
    device: Arc<Device>,
    bytes: [Arc<AtomicU64>; 2],
}

impl Counted {
    /// `None` where there is no C++ compiler.
    fn open(faults: Faults) -> Option<Counted> {
        let emulator = common::opened(Emulator::open(faults))?;
        let bytes = emulator.allocated();
        let device = Device::start(&device_options(), || Ok(Box::new(emulator))).expect("opens");
        Some(Counted { device, bytes })
    }

    /// Allocated bytes once the memory of codes that were dropped is free.
    fn allocated(&self) -> [u64; 2] {
        self.device.usable_bytes().expect("an answer");
        [0, 1].map(|of| self.bytes[of].load(Ordering::Relaxed))
    }
}

struct Case {
    shape: Shape,
    codes: Vec<u8>,
}

impl Case {
    fn new(dim: usize) -> Case {
        let layout = Layout::even(dim, 3, 0, true).expect("a layout");
        let shape = Shape { seed: 5, layout, centroids: 9, ip: false, scale: 1.0 };
        Case { codes: shape.codes(6, 1000), shape }
    }

    fn load(&self, counted: &Counted) -> Result<DeviceCodes, Error> {
        counted.device.load(&options(), &self.shape.coder(), &self.codes)
    }

    fn tasks(&self) -> Vec<Task> {
        (0..20).map(|n| self.shape.task(n, 1000)).collect()
    }

    fn check(&self, loaded: &DeviceCodes) {
        let tasks = self.tasks();
        for (answer, task) in answers(loaded, &tasks).into_iter().zip(&tasks) {
            assert_eq!(answer, Ok(twin(&self.codes, task)));
        }
    }
}

fn account(loaded: &DeviceCodes) -> [u64; 2] {
    let memory = loaded.memory();
    [memory.codes + memory.blocks, memory.host_staging]
}

#[test]
fn codes_that_are_dropped_with_jobs_under_way_are_freed_behind_them() {
    let [own, other] = [16, 45].map(Case::new);
    let faults = Faults { delay: Duration::from_millis(5), ..Faults::default() };
    let Some(counted) = Counted::open(faults) else { return };
    let [dropped, kept] = [&own, &other].map(|case| case.load(&counted).expect("fits"));
    let [first, second] = [&dropped, &kept].map(account);
    assert_eq!(counted.allocated(), [first[0] + second[0], first[1] + second[1]]);
    let (sender, receiver) = channel();
    for (n, (Task { query, job }, of_other)) in own.tasks().iter().zip(other.tasks()).enumerate() {
        let [of_dropped, of_kept] = [sender.clone(), sender.clone()];
        let done = move |answer| of_dropped.send((n, true, answer)).expect("the test waits");
        dropped.submit(query, job.clone(), Box::new(done));
        let done = move |answer| of_kept.send((n, false, answer)).expect("the test waits");
        kept.submit(&of_other.query, of_other.job.clone(), Box::new(done));
    }
    drop((dropped, sender));
    // The emulator refuses to free what a batch uses.
    assert_eq!(counted.allocated(), second);
    let mut received: Vec<_> = receiver.try_iter().collect();
    assert_eq!(received.iter().filter(|(_, is_dropped, _)| *is_dropped).count(), 20);
    received.extend(receiver.iter());
    assert_eq!(received.len(), 40);
    let cases = [(&other, other.tasks()), (&own, own.tasks())];
    for (n, is_dropped, answer) in received {
        let (case, tasks) = &cases[usize::from(is_dropped)];
        assert_eq!(answer, Ok(twin(&case.codes, &tasks[n])));
    }
    other.check(&kept);
    drop(kept);
    assert_eq!(counted.allocated(), [0, 0]);
}

#[test]
fn codes_that_are_dropped_during_a_hang_do_not_hang() {
    let case = Case::new(16);
    let faults = Faults { hang_at: Some(0), ..Faults::default() };
    let emulator = Emulator::open(faults);
    let Some(emulator) = common::opened(emulator) else { return };
    let options = crate::DeviceOptions { timeout: Duration::from_secs(2), ..device_options() };
    let device = Device::start(&options, || Ok(Box::new(emulator))).expect("opens");
    let loaded = device.load(&common::options(), &case.shape.coder(), &case.codes).expect("fits");
    let (sender, receiver) = channel();
    let Task { query, job } = &case.tasks()[0];
    let job = Job { keep: 1, ids: vec![1], ..job.clone() };
    loaded.submit(query, job, Box::new(move |answer| sender.send(answer).expect("the test waits")));
    let start = std::time::Instant::now();
    drop(loaded);
    assert!(start.elapsed() < Duration::from_secs(1), "the drop waits for a batch");
    // A load waits for the memory, and the job for the end of its time.
    let refused = device.load(&common::options(), &case.shape.coder(), &case.codes).err();
    assert_eq!(refused, Some(Error::Lost(Failure::TimedOut)));
    assert_eq!(receiver.recv_timeout(Duration::from_secs(60)), Ok(Err(Failure::TimedOut)));
}

#[test]
fn a_load_that_fails_leaves_nothing_and_others_work() {
    let [own, large] = [16, 300].map(Case::new);
    let Some(counted) = Counted::open(Faults::default()) else { return };
    let loaded = own.load(&counted).expect("fits");
    let (mine, needs) = (account(&loaded), account(&large.load(&counted).expect("fits")));
    drop((loaded, counted));
    // Too little memory for the codes, and for the blocks behind them.
    let codes_bytes = large.codes.len() as u64;
    for more in [codes_bytes / 2, codes_bytes + 1000, needs[0] - 1] {
        let faults = Faults { allocation_limit: Some(mine[0] + more), ..Faults::default() };
        let Some(counted) = Counted::open(faults) else { return };
        let loaded = own.load(&counted).expect("fits");
        let error = large.load(&counted).err();
        assert!(matches!(error, Some(Error::Memory { .. })), "{more}: {error:?}");
        assert_eq!(counted.allocated(), mine, "{more}");
        own.check(&loaded);
        let again = own.load(&counted);
        assert!(again.is_ok() || more < mine[0], "{more}: {:?}", again.err());
    }
    // The second part of the second codes: the first write is that of the others.
    let faults = Faults { fail_write: Some(2), ..Faults::default() };
    let Some(counted) = Counted::open(faults) else { return };
    let loaded = own.load(&counted).expect("fits");
    let many = large.codes.repeat(1 + 3 * COPY_BYTES / large.codes.len());
    let error = counted.device.load(&options(), &large.shape.coder(), &many).err();
    assert!(matches!(error, Some(Error::Call(_))), "{error:?}");
    assert_eq!(counted.allocated(), mine);
    own.check(&loaded);
    large.check(&large.load(&counted).expect("fits"));
    drop(loaded);
    assert_eq!(counted.allocated(), [0, 0]);
}

#[test]
fn the_end_of_a_device_frees_everything() {
    let case = Case::new(16);
    let Some(counted) = Counted::open(Faults::default()) else { return };
    let loaded = case.load(&counted).expect("fits");
    let Counted { device, bytes } = counted;
    drop(device);
    case.check(&loaded);
    drop(loaded);
    assert!(bytes.iter().all(|bytes| bytes.load(Ordering::Relaxed) == 0), "{bytes:?}");
}
