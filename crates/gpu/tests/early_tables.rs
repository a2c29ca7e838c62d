//! Tables that are built before their jobs come: equal answers, exact counters, and no block and no answer is lost.

mod common;

use common::{Random, Shape, floats, options, shapes, twin};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};
use stratann_gpu::{Counters, Device, DeviceOptions, EarlyTable, Error, Failure, Faults, Job, Query, Ranked};
use stratann_kernel::coder::Coder;

type Answer = Result<Ranked, Failure>;

const PATIENCE: Duration = Duration::from_secs(120);

struct Case {
    shape: Shape,
    coder: Coder,
    codes: Vec<u8>,
}

impl Case {
    fn new(shape: Shape, count: u64) -> Case {
        let coder = shape.coder();
        let codes = Random(shape.seed).bytes(count as usize * coder.code_bytes());
        Case { shape, coder, codes }
    }

    fn usual() -> Case {
        let shape =
            Shape { seed: 5, dim: 16, subspaces: 8, coarse: 256, ip: false, is_rotated: true, scale: 1.0 };
        Case::new(shape, 1000)
    }

    /// Opens a device with faults; `None` where there is no C++ compiler.
    fn open(&self, options: &DeviceOptions, faults: &Faults) -> Option<Device> {
        common::opened(Device::emulated(options, faults, &self.coder, &self.codes))
    }

    fn job(&self, seed: u64) -> Job {
        let ids = (0..60).map(|n| (seed as u32 * 31 + n * 17) % 1000).collect();
        Job {
            query: self.shape.query(seed).into(),
            ranges: vec![[10, 200]],
            ids,
            keep: 20,
            exclude: u32::MAX,
        }
    }

    fn answer_to(&self, job: &Job) -> Answer {
        Ok(twin(&self.coder, &self.codes, job))
    }
}

/// One block for each job, and a batch for each.
fn one_by_one() -> DeviceOptions {
    DeviceOptions { batch_max: 1, streams: 1, ..options() }
}

/// Submits a job, without its query where there is a table.
fn submit(device: &Device, job: &Job, table: Option<EarlyTable>) -> Receiver<Answer> {
    let (sender, receiver) = channel();
    let done = Box::new(move |answer| sender.send(answer).expect("the test waits"));
    match table {
        Some(table) => device.submit_with_table(Job { query: Query::default(), ..job.clone() }, table, done),
        None => device.submit(job.clone(), done),
    }
    receiver
}

fn answer(device: &Device, job: &Job, table: Option<EarlyTable>) -> Answer {
    submit(device, job, table).recv_timeout(PATIENCE).expect("an answer")
}

/// Waits until the counters are as wanted.
fn wait_for(device: &Device, wanted: impl Fn(&Counters) -> bool) {
    let start = Instant::now();
    while !wanted(&device.counters()) {
        assert!(start.elapsed() < PATIENCE, "{:?}", device.counters());
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Begins a table where a block is or soon will be free.
fn begin(device: &Device, query: &[f32]) -> EarlyTable {
    let start = Instant::now();
    loop {
        if let Some(table) = device.begin_table(query) {
            return table;
        }
        assert!(start.elapsed() < PATIENCE, "no block comes back");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Begins tables until there is none, and returns them.
fn begin_all(device: &Device, query: &[f32]) -> Vec<EarlyTable> {
    std::iter::from_fn(|| device.begin_table(query)).collect()
}

proptest! {
    #[test]
    fn answers_are_those_of_the_twin(
        shape in shapes(), count in 1..700u64, delay_us in 0..300u64,
        jobs in prop::collection::vec((any::<u64>(), 0..6u8), 1..24),
    ) {
        let case = Case::new(shape, count);
        let faults = Faults { delay: Duration::from_micros(delay_us), ..Faults::default() };
        let Some(device) = case.open(&options(), &faults) else { return Ok(()) };
        let mut waiting = Vec::new();
        let mut begun = Vec::new();
        for (seed, way) in jobs {
            let job = common::job(&case.shape, seed, count);
            match way {
                // Without a table, with one that was just begun, and with one that has had time.
                0 => waiting.push((submit(&device, &job, None), job)),
                1 => waiting.push((submit(&device, &job, device.begin_table(floats(&job.query))), job)),
                2 | 3 => begun.push((device.begin_table(floats(&job.query)), job)),
                4 => drop(device.begin_table(floats(&job.query))),
                _ => waiting.extend(begun.drain(..).map(|(table, job)| (submit(&device, &job, table), job))),
            }
        }
        for (receiver, job) in waiting {
            let answer = receiver.recv_timeout(PATIENCE).expect("an answer");
            prop_assert_eq!(answer, case.answer_to(&job));
            prop_assert!(receiver.recv().is_err(), "a second answer");
        }
        drop(begun);
        let counters = device.counters();
        let with_tables = counters.tables_ready + counters.tables_awaited + counters.tables_with_job;
        prop_assert_eq!(with_tables, counters.jobs);
        prop_assert!(counters.tables_built >= counters.jobs);
        // All blocks come back.
        let tables: Vec<EarlyTable> = (0..4).map(|n| begin(&device, &case.shape.query(n))).collect();
        prop_assert_eq!(tables.len(), device.memory().block_count as usize / 2);
    }
}

#[test]
fn bytes_and_tables_are_counted() {
    let case = Case::usual();
    let Some(device) = case.open(&one_by_one(), &Faults::default()) else { return };
    let jobs: Vec<Job> = (0..3).map(|n| case.job(n)).collect();
    for (n, job) in jobs.iter().enumerate() {
        let table = device.begin_table(floats(&job.query)).expect("a block");
        wait_for(&device, |counters| counters.table_batches == n as u64 + 1);
        assert_eq!(answer(&device, job, Some(table)), case.answer_to(job));
    }
    assert_eq!(answer(&device, &jobs[0], None), case.answer_to(&jobs[0]));
    drop(device.begin_table(floats(&jobs[1].query)));
    let begun = device.begin_table(floats(&jobs[2].query));
    wait_for(&device, |counters| counters.table_batches >= 4);
    drop(begun);
    let counters = device.counters();
    let unused = counters.table_batches - 3;
    let wanted = Counters {
        batches: 4,
        jobs: 4,
        table_batches: 3 + unused,
        // A header and a query of 16 floats for a table; a header, a range and 60 ids for its job.
        bytes_to_device: (3 + unused) * (48 + 64) + 3 * (48 + 8 + 240) + (48 + 64 + 8 + 240),
        bytes_from_device: 4 * (16 + 8 * 20),
        tables_built: 4 + unused,
        tables_ready: 3,
        tables_awaited: 0,
        tables_with_job: 1,
        failed_batches: 0,
        kernel_us: counters.kernel_us,
    };
    assert_eq!(counters, wanted);
}

#[test]
fn a_job_that_comes_before_its_table_has_a_batch_builds_it() {
    let case = Case::usual();
    // The batch of the first table ends with that of the job. Tables have one batch at a time.
    let faults = Faults { ends_in_pairs: true, ..Faults::default() };
    let options = DeviceOptions { batch_max: 1, streams: 2, ..options() };
    let Some(device) = case.open(&options, &faults) else { return };
    let job = case.job(1);
    let _first = device.begin_table(&case.shape.query(2)).expect("a block");
    let table = device.begin_table(floats(&job.query)).expect("a block");
    assert_eq!(answer(&device, &job, Some(table)), case.answer_to(&job));
    wait_for(&device, |counters| counters.table_batches == 1);
    let counters = device.counters();
    assert_eq!((counters.tables_with_job, counters.batches, counters.tables_unused()), (1, 1, 1));
    assert_eq!(counters.bytes_to_device, (48 + 64) + (48 + 64 + 8 + 240));
}

#[test]
fn a_batch_has_jobs_with_and_without_tables() {
    let case = Case::usual();
    let options =
        DeviceOptions { batch_max: 4, batch_wait: Duration::from_secs(30), streams: 1, ..options() };
    let Some(device) = case.open(&options, &Faults::default()) else { return };
    let jobs: Vec<Job> = (0..4).map(|n| case.job(n)).collect();
    // Four blocks are the tables' half.
    let mut tables: Vec<EarlyTable> =
        jobs.iter().map(|job| device.begin_table(floats(&job.query)).expect("a block")).collect();
    wait_for(&device, |counters| counters.tables_built == 4);
    tables.truncate(2);
    let mut tables = tables.into_iter();
    let receivers = [0, 1, 2, 3].map(|n| {
        let table = if n % 2 == 1 { tables.next() } else { None };
        // The tables are those of the first two queries.
        let job = if n % 2 == 1 { &jobs[n / 2] } else { &jobs[n] };
        (submit(&device, job, table), job)
    });
    for (receiver, job) in receivers {
        assert_eq!(receiver.recv_timeout(PATIENCE).expect("an answer"), case.answer_to(job));
    }
    let counters = device.counters();
    assert_eq!((counters.batches, counters.tables_ready, counters.tables_with_job), (1, 2, 2));
}

#[test]
fn tables_that_are_held_do_not_starve_jobs() {
    let case = Case::usual();
    let Some(device) = case.open(&options(), &Faults::default()) else { return };
    let held = begin_all(&device, &case.shape.query(1));
    assert_eq!(held.len(), 4);
    // More jobs than all blocks, without tables.
    let jobs: Vec<Job> = (0..40).map(|n| case.job(n)).collect();
    let receivers: Vec<Receiver<Answer>> = jobs.iter().map(|job| submit(&device, job, None)).collect();
    for (receiver, job) in receivers.into_iter().zip(&jobs) {
        assert_eq!(receiver.recv_timeout(PATIENCE).expect("an answer"), case.answer_to(job));
    }
    assert!(device.begin_table(&case.shape.query(2)).is_none());
    drop(held);
    assert_eq!(begin_all(&device, &case.shape.query(1)).len(), 4);
}

#[test]
fn tables_that_come_all_the_time_do_not_starve_jobs() {
    let case = Case::usual();
    let faults = Faults { delay: Duration::from_micros(500), ..Faults::default() };
    let Some(device) = case.open(&options(), &faults) else { return };
    let (device, case) = (&device, &case);
    std::thread::scope(|scope| {
        let (stop, stopped) = channel::<()>();
        scope.spawn(move || {
            let mut held = VecDeque::new();
            while stopped.try_recv() == Err(TryRecvError::Empty) {
                held.extend(device.begin_table(&case.shape.query(3)));
                if held.len() > 3 {
                    held.pop_front();
                }
                std::thread::yield_now();
            }
        });
        for n in 0..100 {
            let job = case.job(n);
            assert_eq!(answer(device, &job, None), case.answer_to(&job));
        }
        drop(stop);
    });
    assert!(device.counters().table_batches > 0);
}

#[test]
fn a_job_that_is_refused_gives_the_block_of_its_table_back() {
    let case = Case::usual();
    let Some(device) = case.open(&options(), &Faults::default()) else { return };
    let Some(other) = case.open(&options(), &Faults::default()) else { return };
    let fits = case.job(1);
    let many = Job { ids: vec![1; 4001], ..fits.clone() };
    let empty = Job { keep: 0, ..fits.clone() };
    for _ in 0..8 {
        let table = begin(&device, floats(&fits.query));
        assert!(matches!(answer(&device, &many, Some(table)), Err(Failure::TooLarge { .. })));
        let table = begin(&device, floats(&fits.query));
        assert_eq!(answer(&device, &empty, Some(table)), Ok(Ranked::default()));
        let table = begin(&device, floats(&fits.query));
        assert!(matches!(answer(&other, &fits, Some(table)), Err(Failure::Query { .. })));
    }
    for query in [vec![0.0; 15], vec![f32::NAN; 16], vec![1e30; 16]] {
        assert!(device.begin_table(&query).is_none());
    }
    assert!(!device.is_lost() && !other.is_lost());
}

#[test]
fn a_device_of_one_block_has_no_early_tables() {
    let case = Case::usual();
    let needed = Device::needed_bytes(&options(), &case.coder, case.codes.len() as u64);
    let least = DeviceOptions { budget_bytes: Some(needed), ..options() };
    let Some(device) = case.open(&least, &Faults::default()) else { return };
    assert!(device.begin_table(&case.shape.query(1)).is_none());
    assert_eq!(answer(&device, &case.job(1), None), case.answer_to(&case.job(1)));
}

/// A device whose first batch, of a table, meets a fault: all its jobs are answered once, without a ranking, and
/// nothing is begun from then on.
fn check_lost(case: &Case, options: &DeviceOptions, faults: &Faults) {
    let Some(device) = case.open(options, faults) else { return };
    let start = Instant::now();
    let job = case.job(1);
    let (table, unused) = (device.begin_table(floats(&job.query)), device.begin_table(floats(&job.query)));
    let table = table.expect("a block");
    // Long enough for the batch of the table to be sent.
    std::thread::sleep(Duration::from_millis(50));
    let receivers = [submit(&device, &job, Some(table)), submit(&device, &case.job(2), None)];
    for receiver in receivers {
        let answer = receiver.recv_timeout(PATIENCE).expect("an answer");
        assert!(
            matches!(answer, Err(Failure::Lost | Failure::TimedOut | Failure::Failed { .. })),
            "{answer:?}"
        );
        assert!(receiver.recv().is_err(), "a second answer");
    }
    assert!(device.is_lost() && device.counters().failed_batches >= 1);
    assert!(device.begin_table(floats(&job.query)).is_none());
    assert_eq!(answer(&device, &job, unused), Err(Failure::Lost));
    drop(device);
    assert!(start.elapsed() < Duration::from_secs(30), "somebody waited for the driver");
}

#[test]
fn a_batch_of_tables_that_fails_loses_the_device() {
    let case = Case::usual();
    check_lost(&case, &one_by_one(), &Faults { fail_launch: Some(1), ..Faults::default() });
    check_lost(&case, &one_by_one(), &Faults { lose_at: Some(0), ..Faults::default() });
}

#[test]
fn a_batch_of_tables_that_does_not_end_loses_the_device() {
    let case = Case::usual();
    let options = DeviceOptions { timeout: Duration::from_millis(300), ..one_by_one() };
    check_lost(&case, &options, &Faults { hang_at: Some(0), ..Faults::default() });
    let block_at = Some((0, Duration::from_secs(4)));
    check_lost(&case, &options, &Faults { block_at, ..Faults::default() });
}

#[test]
fn a_table_that_nobody_waits_for_loses_the_device_too() {
    let case = Case::usual();
    let options = DeviceOptions { timeout: Duration::from_millis(100), ..one_by_one() };
    let faults = Faults { hang_at: Some(0), ..Faults::default() };
    let Some(device) = case.open(&options, &faults) else { return };
    let table = device.begin_table(&case.shape.query(1));
    wait_for(&device, |counters| counters.failed_batches == 1);
    drop(table);
    assert!(device.is_lost());
}

#[test]
fn a_table_may_outlive_its_device() {
    let case = Case::usual();
    let faults = Faults { delay: Duration::from_millis(20), ..Faults::default() };
    let Some(device) = case.open(&options(), &faults) else { return };
    let jobs: Vec<Job> = (0..4).map(|n| case.job(n)).collect();
    let mut tables: Vec<EarlyTable> =
        jobs.iter().map(|job| device.begin_table(floats(&job.query)).expect("a block")).collect();
    let receivers: Vec<Receiver<Answer>> =
        jobs.iter().take(2).map(|job| submit(&device, job, Some(tables.remove(0)))).collect();
    // Jobs that were submitted are answered; tables without one are not waited for.
    drop(device);
    for (receiver, job) in receivers.into_iter().zip(&jobs) {
        assert_eq!(receiver.recv_timeout(PATIENCE).expect("an answer"), case.answer_to(job));
    }
    drop(tables);
}
