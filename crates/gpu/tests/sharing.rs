//! Several codes on one device.

mod common;

use common::{
    PATIENCE, Shape, Task, answer, answers, device_options, open_device, opened, options, shapes, twin,
};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use stratann_gpu::{CodesOptions, Device, DeviceCodes, DeviceOptions, Error, Failure, Faults, Job, Ranked};
use stratann_kernel::bits::Layout;
use stratann_testing::{Need, leave_out};

fn shape(dim: usize) -> Shape {
    let layout = Layout::even(dim, 3, 0, true).expect("a layout");
    Shape { seed: 5, layout, centroids: 9, ip: false, scale: 1.0 }
}

/// Codes of a shape, here and on a device.
struct Loaded {
    shape: Shape,
    codes: Vec<u8>,
    on_device: DeviceCodes,
}

impl Loaded {
    fn new(device: &Arc<Device>, shape: Shape, options: &CodesOptions) -> Loaded {
        let codes = shape.codes(shape.seed ^ 6, 500);
        let on_device = device.load(options, &shape.coder(), &codes).expect("fits");
        Loaded { shape, codes, on_device }
    }

    fn check(&self, seed: u64, jobs: u64) {
        let tasks: Vec<Task> = (0..jobs).map(|n| self.shape.task(seed ^ n, 500)).collect();
        for (answer, task) in answers(&self.on_device, &tasks).into_iter().zip(&tasks) {
            assert_eq!(answer, Ok(twin(&self.codes, task)), "{:?}", self.shape);
        }
    }

    /// A job that has an answer of the device.
    fn task(&self) -> Task {
        let job = Job { ids: (0..100).collect(), keep: 10, exclude: u32::MAX, ..Job::default() };
        Task { query: self.shape.query(1), job }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn all_codes_are_searched_at_once(all in prop::collection::vec(shapes(), 2..5), seed: u64) {
        let Some(device) = open_device(&device_options(), &Faults::default()) else { return Ok(()) };
        // One block, two, and so on: more jobs than blocks wait.
        let with_blocks = |n| CodesOptions { queries_in_flight: n, ..options() };
        let all: Vec<Loaded> =
            all.into_iter().zip(1..).map(|(shape, n)| Loaded::new(&device, shape, &with_blocks(n))).collect();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let all = &all;
                scope.spawn(move || (0..6).for_each(|n| all[(thread + n) % all.len()].check(seed ^ n as u64, 5)));
            }
        });
        let counters: Vec<_> = all.iter().map(|loaded| loaded.on_device.counters()).collect();
        let total = device.counters();
        prop_assert_eq!(total.batches, counters.iter().map(|c| c.batches).sum::<u64>());
        prop_assert_eq!(total.jobs, counters.iter().map(|c| c.jobs).sum::<u64>());
        prop_assert_eq!(total.bytes_to_device, counters.iter().map(|c| c.bytes_to_device).sum::<u64>());
        prop_assert_eq!(total.bytes_from_device, counters.iter().map(|c| c.bytes_from_device).sum::<u64>());
    }
}

#[test]
fn others_are_searched_while_codes_are_loaded() {
    // Each part takes far longer than a batch.
    let faults = Faults { write_delay: Duration::from_millis(30), ..Faults::default() };
    let Some(device) = open_device(&device_options(), &faults) else { return };
    let searched = Loaded::new(&device, shape(16), &options());
    let (large, few) = (shape(100), shape(100).codes(3, 1000));
    // Twelve parts of 4 MiB, and whole codes of which some lie in two.
    let codes = few.repeat((48 << 20) / few.len());
    let is_loaded = AtomicBool::new(false);
    let (answered, loaded) = std::thread::scope(|scope| {
        let search = || {
            let mut answered = 0;
            while !is_loaded.load(Ordering::Acquire) {
                searched.check(answered, 1);
                answered += 1;
            }
            answered
        };
        let searching = scope.spawn(search);
        let loaded = device.load(&options(), &large.coder(), &codes).expect("fits");
        is_loaded.store(true, Ordering::Release);
        (searching.join().expect("right answers"), loaded)
    });
    // One may be answered before the load, and one behind it.
    assert!(answered >= 4, "{answered} answers during a load of twelve parts");
    let part = (4 << 20) / large.layout.code_bytes() as u32;
    let ids = (0..10).flat_map(|n| [n * part, n * part + 1]).collect();
    let job = Job { ranges: vec![[3 * part - 9, 20]], ids, keep: 100, exclude: u32::MAX };
    let task = Task { query: large.query(1), job };
    assert_eq!(answer(&loaded, &task), Ok(twin(&codes, &task)));
}

#[test]
fn each_has_a_budget_and_others_take_what_is_left() {
    let (small, large) = (shape(16), shape(200));
    let needed = |shape: &Shape| {
        DeviceCodes::needed_bytes(&options(), &shape.coder(), shape.codes(1, 500).len() as u64)
    };
    let Some(device) = open_device(&device_options(), &Faults::default()) else { return };
    let [of_small, of_large] =
        [&small, &large].map(|shape| Loaded::new(&device, shape.clone(), &options()).on_device.memory());
    let block = of_small.blocks / 8;
    // Room for few blocks of the small ones, for all of the large ones, and then again for some of the small ones.
    let first_two = of_small.codes + 3 * block + of_large.codes + of_large.blocks;
    let memory_bytes = first_two + (needed(&small) + 3 * block) / 9 * 10 + 100;
    let faults = Faults { memory_bytes: Some(memory_bytes), ..Faults::default() };
    let Some(device) = open_device(&device_options(), &faults) else { return };
    let budget_bytes = Some(needed(&small) + 2 * block);
    let with_budget = Loaded::new(&device, small.clone(), &CodesOptions { budget_bytes, ..options() });
    assert_eq!(with_budget.on_device.memory().block_count, 3);
    let first = Loaded::new(&device, large.clone(), &options());
    let second = Loaded::new(&device, small.clone(), &options());
    let blocks = [&first, &second].map(|loaded| loaded.on_device.memory().block_count);
    assert_eq!(blocks, [8, 4]);
    let left = device.usable_bytes().expect("an answer");
    let error = device.load(&options(), &large.coder(), &first.codes).err();
    assert_eq!(error, Some(Error::Budget { needed: needed(&large), given: left }));
    for loaded in [&with_budget, &first, &second] {
        loaded.check(3, 10);
    }
    // What is dropped before a load is free in it.
    drop(first);
    Loaded::new(&device, large, &options()).check(4, 10);
    second.check(5, 10);
}

#[test]
fn a_device_that_is_lost_fails_the_jobs_of_all_codes() {
    let faults = Faults { fail_launch: Some(0), delay: Duration::from_millis(1), ..Faults::default() };
    let Some(device) = open_device(&device_options(), &faults) else { return };
    let all = [16, 30, 45].map(|dim| Loaded::new(&device, shape(dim), &options()));
    let (sender, receiver) = channel();
    for n in 0..30 {
        let loaded = &all[n % all.len()];
        let (Task { query, job }, sender) = (loaded.task(), sender.clone());
        let done = move |answer| sender.send(answer).expect("the test waits");
        loaded.on_device.submit(&query, job, Box::new(done));
    }
    drop(sender);
    let answers: Vec<Result<Ranked, Failure>> = receiver.iter().collect();
    let lost = answers.iter().filter(|answer| **answer == Err(Failure::Lost)).count();
    let failed = answers.iter().filter(|answer| matches!(answer, Err(Failure::Failed { .. }))).count();
    assert!(answers.len() == 30 && lost + failed == 30 && (1..=4).contains(&failed), "{answers:?}");
    let failures = all.iter().map(|loaded| loaded.on_device.counters().failed_batches).sum::<u64>();
    assert!(all.iter().all(|loaded| loaded.on_device.is_lost()));
    assert_eq!((failures, device.counters().failed_batches), (1, 1));
    let error = device.load(&options(), &all[0].shape.coder(), &all[0].codes).err();
    assert_eq!(error, Some(Error::Lost(Failure::Lost)));
    assert_eq!(device.usable_bytes(), Err(Error::Lost(Failure::Lost)));
    // Another one beside it.
    let Some(device) = open_device(&device_options(), &Faults::default()) else { return };
    Loaded::new(&device, shape(16), &options()).check(1, 10);
}

#[test]
fn a_driver_that_does_not_return_from_a_load_times_out() {
    let timeout = Duration::from_millis(300);
    let of_device = DeviceOptions { timeout, ..device_options() };
    // The first write is that of the codes that are searched.
    let faults = Faults { block_write: Some((1, Duration::from_secs(8))), ..Faults::default() };
    let Some(device) = open_device(&of_device, &faults) else { return };
    let searched = Loaded::new(&device, shape(16), &options());
    let start = Instant::now();
    let answered = std::thread::scope(|scope| {
        let search = || {
            let mut answered = 0;
            while answer(&searched.on_device, &searched.task()).is_ok() {
                answered += 1;
            }
            answered
        };
        let searching = scope.spawn(search);
        let other = shape(30);
        let error = device.load(&options(), &other.coder(), &other.codes(1, 500)).err();
        assert_eq!(error, Some(Error::Lost(Failure::TimedOut)));
        searching.join().expect("answers")
    });
    assert!(searched.on_device.is_lost(), "{answered} answers");
    drop((device, searched));
    assert!(start.elapsed() < Duration::from_secs(7), "somebody waited for the driver");
}

#[test]
fn a_driver_that_does_not_return_from_the_end_of_codes_times_out() {
    let of_device = DeviceOptions { timeout: Duration::from_millis(200), ..device_options() };
    let faults = Faults { block_free: Some(Duration::from_secs(8)), ..Faults::default() };
    let Some(device) = open_device(&of_device, &faults) else { return };
    let [dropped, kept] = [16, 30].map(|dim| Loaded::new(&device, shape(dim), &options()));
    let start = Instant::now();
    drop(dropped);
    assert_eq!(device.usable_bytes(), Err(Error::Lost(Failure::TimedOut)));
    assert_eq!(answer(&kept.on_device, &kept.task()), Err(Failure::Lost));
    drop((device, kept));
    assert!(start.elapsed() < Duration::from_secs(7), "somebody waited for the driver");
}

#[test]
fn a_slow_load_takes_no_time_from_batches() {
    let timeout = Duration::from_millis(1500);
    let of_device = DeviceOptions { timeout, batch_wait: Duration::ZERO, ..device_options() };
    // A part takes longer than a batch may, and less than a part may.
    let block_write = Some((1, Duration::from_secs(2)));
    let faults = Faults { block_write, delay: Duration::from_millis(100), ..Faults::default() };
    let Some(device) = open_device(&of_device, &faults) else { return };
    let searched = Loaded::new(&device, shape(16), &options());
    let (Task { query, job }, (sender, receiver)) = (searched.task(), channel());
    let done = move |answer: Result<Ranked, Failure>| sender.send(answer).expect("the test waits");
    searched.on_device.submit(&query, job, Box::new(done));
    Loaded::new(&device, shape(20), &options()).check(1, 3);
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok(Ok(twin(&searched.codes, &searched.task()))));
    assert!(!device.is_lost());
}

#[test]
fn a_callback_may_own_codes() {
    let Some(device) = open_device(&device_options(), &Faults::default()) else { return };
    let loaded = Loaded::new(&device, shape(16), &options());
    drop(device);
    let (Task { query, job }, owner) = (loaded.task(), Arc::new(loaded));
    let ((sender, receiver), own) = (channel(), owner.clone());
    let (go, wait) = channel::<()>();
    let done = move |answer: Result<Ranked, Failure>| {
        // This drop is that of the codes, and of the device: the other owner is gone.
        let _ = wait.recv_timeout(PATIENCE);
        drop(own);
        sender.send(answer.is_ok()).expect("the test waits");
    };
    owner.on_device.submit(&query, job, Box::new(done));
    drop(owner);
    drop(go);
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok(true));
}

#[test]
fn codes_may_be_loaded_by_several_threads() {
    let Some(device) = open_device(&device_options(), &Faults::default()) else { return };
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let device = &device;
            scope.spawn(move || {
                for n in 0..5 {
                    let loaded = Loaded::new(device, shape(10 + 7 * thread + n), &options());
                    loaded.check(n as u64, 10);
                }
            });
        }
    });
    assert_eq!(opened(device.usable_bytes()), Some((1 << 30) / 10 * 9));
}

/// Where there is a GPU, it has the codes of several indexes, which come and go while they are searched.
#[test]
fn a_gpu_is_shared() {
    if !stratann_gpu::probe().is_usable() {
        return leave_out(Need::Gpu, "`stratann doctor` says what is missing");
    }
    let device = Device::open(&device_options()).expect("the GPU opens");
    let free = device.usable_bytes().expect("an answer");
    let kept = [20, 100, 384].map(|dim| Loaded::new(&device, shape(dim), &options()));
    let few = shape(64).codes(3, 1000);
    let many = few.repeat((200 << 20) / few.len());
    std::thread::scope(|scope| {
        for loaded in &kept {
            scope.spawn(move || (0..20).for_each(|n| loaded.check(n, 40)));
        }
        scope.spawn(|| {
            for n in 0..10 {
                let loaded = Loaded::new(&device, shape(30 + n), &options());
                loaded.check(n as u64, 20);
            }
        });
        let loaded = device.load(&options(), &shape(64).coder(), &many).expect("fits");
        let count = loaded.count() as u32;
        let job = Job { ranges: vec![[count - 3000, 3000]], ids: vec![0, 5], keep: 100, exclude: u32::MAX };
        let task = Task { query: shape(64).query(1), job };
        assert_eq!(answer(&loaded, &task), Ok(twin(&many, &task)));
    });
    let jobs = kept.iter().map(|loaded| loaded.on_device.counters().jobs).sum::<u64>();
    assert!(device.counters().jobs > jobs && !device.is_lost());
    drop(kept);
    // The driver keeps some of what it was given back, but not the codes.
    let left = device.usable_bytes().expect("an answer");
    assert!(left + (100 << 20) > free, "{free} bytes before, {left} after");
}
