//! Faults of an emulated device: every job gets one answer, and the device is given up.

mod common;

use common::{Shape, Task, answers, device_options, opened, options, twin};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use stratann_gpu::{CodesOptions, Device, DeviceCodes, DeviceOptions, Error, Failure, Faults, Job, Ranked};
use stratann_kernel::bits::{BitCoder, Layout};

struct Case {
    shape: Shape,
    coder: BitCoder,
    codes: Vec<u8>,
}

fn case() -> Case {
    let layout = Layout::even(16, 3, 0, true).expect("a layout");
    let shape = Shape { seed: 5, layout, centroids: 9, ip: false, scale: 1.0 };
    Case { coder: shape.coder(), codes: shape.codes(6, 1000), shape }
}

impl Case {
    /// Opens a device with faults; `None` where there is no C++ compiler.
    fn open(&self, options: &DeviceOptions, faults: &Faults) -> Option<DeviceCodes> {
        opened(self.load(&common::open_device(options, faults)?, &common::options()))
    }

    fn load(&self, device: &Arc<Device>, options: &CodesOptions) -> Result<DeviceCodes, Error> {
        device.load(options, &self.coder, &self.codes)
    }

    fn task(&self, seed: u64) -> Task {
        let ids = (0..50).map(|n| (seed as u32 * 31 + n * 17) % 1000).collect();
        let job = Job { ranges: vec![[10, 200]], ids, keep: 20, exclude: u32::MAX };
        Task { query: self.shape.query(seed), job }
    }

    fn answers(&self, device: &DeviceCodes, jobs: u64) -> Vec<Result<Ranked, Failure>> {
        answers(device, &(0..jobs).map(|n| self.task(n)).collect::<Vec<_>>())
    }

    fn twin(&self, seed: u64) -> Ranked {
        twin(&self.codes, &self.task(seed))
    }

    /// Checks the answers of a device that was lost on the way, and how it behaves from then on. Returns how many jobs
    /// had the failure of the cause.
    fn check_lost(
        &self,
        device: DeviceCodes,
        answers: &[Result<Ranked, Failure>],
        cause: fn(&Failure) -> bool,
    ) -> usize {
        let mut causes = 0;
        for (n, answer) in answers.iter().enumerate() {
            match answer {
                Ok(ranked) => assert_eq!(*ranked, self.twin(n as u64)),
                Err(Failure::Lost) => {}
                Err(failure) if cause(failure) => causes += 1,
                Err(failure) => panic!("job {n}: {failure}"),
            }
        }
        assert!(device.is_lost());
        assert!(device.counters().failed_batches >= 1);
        let later = self.answers(&device, 3);
        assert!(later.iter().all(|answer| *answer == Err(Failure::Lost)), "{later:?}");
        let start = Instant::now();
        drop(device);
        assert!(start.elapsed() < Duration::from_secs(30), "the drop of a lost device waits");
        causes
    }
}

fn one_by_one() -> DeviceOptions {
    DeviceOptions { batch_max: 1, streams: 1, ..device_options() }
}

#[test]
fn a_failed_launch_fails_its_batch_and_loses_the_device() {
    let case = case();
    // Four launches a batch: one of the third batch.
    let faults = Faults { fail_launch: Some(10), ..Faults::default() };
    let Some(device) = case.open(&one_by_one(), &faults) else { return };
    let answers = case.answers(&device, 6);
    assert!(answers[0].is_ok() && answers[1].is_ok());
    assert_eq!(case.check_lost(device, &answers, |f| matches!(f, Failure::Failed { .. })), 1);
    assert!(answers[3..].iter().all(|answer| *answer == Err(Failure::Lost)));
}

#[test]
fn a_batch_that_hangs_times_out() {
    let case = case();
    let options = DeviceOptions { timeout: Duration::from_millis(300), ..device_options() };
    let Some(device) = case.open(&options, &Faults { hang_at: Some(1), ..Faults::default() }) else { return };
    let answers = case.answers(&device, 20);
    assert!(case.check_lost(device, &answers, |f| *f == Failure::TimedOut) >= 1);
}

#[test]
fn a_driver_that_does_not_return_times_out() {
    let case = case();
    let options = DeviceOptions { timeout: Duration::from_millis(200), ..one_by_one() };
    let faults = Faults { block_at: Some((1, Duration::from_secs(8))), ..Faults::default() };
    let Some(device) = case.open(&options, &faults) else { return };
    let start = Instant::now();
    let answers = case.answers(&device, 5);
    assert!(answers[0].is_ok());
    assert_eq!(answers[1], Err(Failure::TimedOut));
    assert_eq!(case.check_lost(device, &answers, |f| *f == Failure::TimedOut), 1);
    assert!(start.elapsed() < Duration::from_secs(7), "somebody waited for the driver");
}

#[test]
fn a_device_that_is_gone_fails_its_batch() {
    let case = case();
    let faults = Faults { lose_at: Some(2), ..Faults::default() };
    let Some(device) = case.open(&one_by_one(), &faults) else { return };
    let answers = case.answers(&device, 5);
    assert_eq!(case.check_lost(device, &answers, |f| matches!(f, Failure::Failed { .. })), 1);
}

#[test]
fn results_that_are_not_possible_fail() {
    let case = case();
    let faults = Faults { garble_at: Some(1), ..Faults::default() };
    let Some(device) = case.open(&one_by_one(), &faults) else { return };
    let answers = case.answers(&device, 3);
    assert_eq!(case.check_lost(device, &answers, |f| matches!(f, Failure::Failed { .. })), 1);
}

#[test]
fn a_budget_below_the_smallest_is_refused_and_names_it() {
    let case = case();
    let Some(device) = common::open_device(&device_options(), &Faults::default()) else { return };
    let needed = DeviceCodes::needed_bytes(&options(), &case.coder, case.codes.len() as u64);
    let with = |budget| CodesOptions { budget_bytes: Some(budget), ..options() };
    let error = case.load(&device, &with(needed - 1)).err().expect("refused");
    assert_eq!(error, Error::Budget { needed, given: needed - 1 });
    assert!(error.to_string().contains(&needed.to_string()));
    let codes = case.load(&device, &with(needed)).expect("fits");
    assert_eq!((codes.memory().block_count, codes.memory().total()), (1, needed));
    // Header, query and ids; results. Both begin at multiples of 256.
    assert_eq!(codes.memory().host_staging, 17_152 + 1024);
    // One block for many jobs: the others wait.
    for (n, answer) in case.answers(&codes, 10).into_iter().enumerate() {
        assert_eq!(answer, Ok(case.twin(n as u64)));
    }
    let block = codes.memory().blocks;
    let codes = case.load(&device, &with(needed + 2 * block + 1)).expect("fits");
    assert_eq!(codes.memory().block_count, 3);
}

#[test]
fn too_little_memory_is_an_error_before_any_job() {
    let case = case();
    let needed = DeviceCodes::needed_bytes(&options(), &case.coder, case.codes.len() as u64);
    let refused = |faults| {
        let device = common::open_device(&device_options(), &faults)?;
        Some(case.load(&device, &options()).err().expect("refused"))
    };
    let faults = Faults { memory_bytes: Some(needed / 2), ..Faults::default() };
    let Some(error) = refused(faults) else { return };
    assert!(matches!(error, Error::Budget { needed: n, .. } if n == needed), "{error}");
    // The memory seems free, but is not given.
    let faults = Faults { allocation_limit: Some(case.codes.len() as u64 + 1000), ..Faults::default() };
    let Some(error) = refused(faults) else { return };
    assert!(matches!(error, Error::Memory { .. }), "{error}");
}

#[test]
fn jobs_under_way_are_answered_when_the_device_is_dropped() {
    let case = case();
    let faults = Faults { delay: Duration::from_millis(20), ..Faults::default() };
    let Some(device) = case.open(&device_options(), &faults) else { return };
    let (sender, receiver) = channel();
    for n in 0..20 {
        let (sender, Task { query, job }) = (sender.clone(), case.task(n));
        device.submit(&query, job, Box::new(move |answer| sender.send((n, answer)).expect("the test waits")));
    }
    drop((device, sender));
    let answers: Vec<(u64, Result<Ranked, Failure>)> = receiver.iter().collect();
    assert_eq!(answers.len(), 20);
    for (n, answer) in answers {
        assert_eq!(answer, Ok(case.twin(n)));
    }
}

#[test]
fn batches_overlap() {
    let case = case();
    // A batch that was alone on the device would not end.
    let faults = Faults { ends_in_pairs: true, ..Faults::default() };
    let options = DeviceOptions { batch_max: 1, streams: 2, ..device_options() };
    let Some(device) = case.open(&options, &faults) else { return };
    assert!(case.answers(&device, 8).iter().all(Result::is_ok));
    assert_eq!(device.counters().batches, 8);
}

#[test]
fn a_callback_that_panics_harms_nobody_else() {
    let case = case();
    let Some(device) = case.open(&one_by_one(), &Faults::default()) else { return };
    let Task { query, job } = case.task(0);
    device.submit(&query, job, Box::new(|_| panic!("a callback of a test panics")));
    assert!(case.answers(&device, 3).iter().all(Result::is_ok));
    assert!(!device.is_lost());
}

#[test]
fn a_callback_may_own_the_device() {
    let case = case();
    let Some(device) = case.open(&one_by_one(), &Faults::default()) else { return };
    let device = Arc::new(device);
    let (sender, receiver) = channel();
    let owner = device.clone();
    let done = move |answer: Result<Ranked, Failure>| {
        // Long enough for the other owner to be gone: this drop is that of the device.
        std::thread::sleep(Duration::from_millis(100));
        drop(owner);
        sender.send(answer.is_ok()).expect("the test waits");
    };
    let Task { query, job } = case.task(0);
    device.submit(&query, job, Box::new(done));
    drop(device);
    assert_eq!(receiver.recv_timeout(Duration::from_secs(60)), Ok(true));
}

#[test]
fn options_out_of_their_limits_are_refused() {
    let case = case();
    let refused = [
        DeviceOptions { batch_max: 65, ..device_options() },
        DeviceOptions { streams: 0, ..device_options() },
        DeviceOptions { timeout: Duration::ZERO, ..device_options() },
    ];
    for options in refused {
        let error = Device::emulated(&options, &Faults::default()).err();
        assert!(matches!(error, Some(Error::Option { .. })), "{error:?}");
    }
    let Some(device) = common::open_device(&device_options(), &Faults::default()) else { return };
    let refused = [
        CodesOptions { ids_max: 0, ..options() },
        CodesOptions { keep_max: 4097, ..options() },
        CodesOptions { queries_in_flight: 0, ..options() },
        CodesOptions { rows_bytes_max: u32::MAX, ..options() },
    ];
    for options in refused {
        let error = case.load(&device, &options).err();
        assert!(matches!(error, Some(Error::Option { .. })), "{error:?}");
    }
}

#[test]
fn a_machine_without_libraries_is_told_what_is_missing() {
    let case = case();
    let probe = stratann_gpu::probe();
    let opened = Device::open(&device_options());
    if probe.is_usable() {
        // A GPU: it must give the same answers.
        let device = opened.and_then(|device| case.load(&device, &options())).expect("the GPU opens");
        for (n, answer) in case.answers(&device, 20).into_iter().enumerate() {
            assert_eq!(answer, Ok(case.twin(n as u64)));
        }
        return;
    }
    let error = opened.err().expect("nothing to open");
    for missing in [probe.driver.err(), probe.nvrtc.err()].into_iter().flatten() {
        let text = missing.to_string();
        assert!(text.contains("install"), "{text}");
        assert!(text.contains("lib") && text.contains(".so"), "{text}");
    }
    assert!(!error.to_string().is_empty());
}
