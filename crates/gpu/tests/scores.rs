//! Answers of a device, compared with those of the twin.

mod common;

use common::{Random, Shape, admitted, options, shapes, twin};
use proptest::prelude::*;
use std::sync::mpsc::channel;
use std::time::Duration;
use stratann_gpu::{Device, DeviceOptions, Error, Failure, Faults, Job, Query, Ranked};
use stratann_kernel::coder::Coder;

/// Opens an emulated device, or leaves the test out where there is no C++ compiler.
fn open(options: &DeviceOptions, coder: &Coder, codes: &[u8]) -> Option<Device> {
    common::opened(Device::emulated(options, &Faults::default(), coder, codes))
}

fn answer(device: &Device, job: Job) -> Result<Ranked, Failure> {
    let (sender, receiver) = channel();
    device.submit(job, Box::new(move |answer| sender.send(answer).expect("the test waits")));
    receiver.recv_timeout(Duration::from_secs(120)).expect("an answer")
}

proptest! {
    #[test]
    fn answers_are_those_of_the_twin(shape in shapes(), seed: u64, count in 1..700u64, jobs in 1..12usize) {
        let coder = shape.coder();
        let codes = Random(seed).bytes(count as usize * coder.code_bytes());
        let Some(device) = open(&options(), &coder, &codes) else { return Ok(()) };
        let (sender, receiver) = channel();
        let jobs: Vec<Job> = (0..jobs).map(|n| common::job(&shape, seed ^ n as u64, count)).collect();
        for (n, job) in jobs.iter().enumerate() {
            let sender = sender.clone();
            device.submit(job.clone(), Box::new(move |answer| sender.send((n, answer)).expect("the test waits")));
        }
        let mut answered = vec![false; jobs.len()];
        for _ in 0..jobs.len() {
            let (n, answer) = receiver.recv_timeout(Duration::from_secs(120)).expect("an answer");
            prop_assert!(!std::mem::replace(&mut answered[n], true));
            prop_assert_eq!(answer.expect("a score"), twin(&coder, &codes, &jobs[n]));
        }
    }
}

fn shape(coarse: usize, dim: usize) -> Shape {
    Shape { seed: 7, dim, subspaces: dim.min(4), coarse, ip: false, is_rotated: true, scale: 1.0 }
}

/// Options for thousands of candidates and results.
fn large() -> DeviceOptions {
    DeviceOptions { ids_max: 60_000, keep_max: 4096, queries_in_flight: 2, ..options() }
}

#[test]
fn thousands_of_candidates_are_selected_and_sorted() {
    let shape = shape(256, 8);
    let coder = shape.coder();
    let count = 20_000u32;
    let codes = Random(3).bytes(count as usize * coder.code_bytes());
    let Some(device) = open(&large(), &coder, &codes) else { return };
    for keep in [1, 100, 4095, 4096] {
        let mut random = Random(u64::from(keep));
        // Every third id as a replica, twice, and half of all in ranges.
        let ids: Vec<u32> = (0..count).step_by(3).flat_map(|id| [id, id]).collect();
        let ranges = (0..100).map(|n| [n * 200 + random.below(100) as u32, 100]).collect();
        let job = Job { query: shape.query(5).into(), ranges, ids, keep, exclude: 300 };
        let ranked = answer(&device, job.clone()).expect("a score");
        assert_eq!(ranked, twin(&coder, &codes, &job));
        assert_eq!(ranked.distinct, admitted(&job, u64::from(count)).len() as u64);
    }
}

#[test]
fn equal_distances_are_ordered_by_id() {
    let shape = shape(1, 4);
    let coder = shape.coder();
    // Three different codes only: the selection must go on to the bits of the id.
    let count = 30_000usize;
    let codes: Vec<u8> = (0..count).flat_map(|n| vec![(n * 7 % 3) as u8; coder.code_bytes()]).collect();
    let Some(device) = open(&large(), &coder, &codes) else { return };
    for keep in [1, 2, 77, 4096] {
        let job = Job {
            query: shape.query(1).into(),
            ranges: vec![[5, 29_000]],
            ids: vec![0],
            keep,
            exclude: u32::MAX,
        };
        assert_eq!(answer(&device, job.clone()).expect("a score"), twin(&coder, &codes, &job));
    }
}

#[test]
fn jobs_without_candidates_are_empty() {
    let shape = shape(256, 8);
    let coder = shape.coder();
    let codes = Random(3).bytes(10 * coder.code_bytes());
    let Some(device) = open(&options(), &coder, &codes) else { return };
    let query = shape.query(1).into();
    let base = Job { query, keep: 5, exclude: u32::MAX, ..Job::default() };
    let jobs = [
        base.clone(),
        Job { keep: 0, ids: vec![1], ..base.clone() },
        Job { ids: vec![3, 3, 3], exclude: 3, ..base.clone() },
        Job { ids: vec![10, u32::MAX], ranges: vec![[10, 5], [u32::MAX, u32::MAX], [3, 0]], ..base },
    ];
    for job in jobs {
        assert_eq!(answer(&device, job), Ok(Ranked::default()));
    }
}

#[test]
fn a_device_without_codes_answers_nothing() {
    let shape = shape(2, 8);
    let coder = shape.coder();
    let Some(device) = open(&options(), &coder, &[]) else { return };
    assert_eq!(device.held_codes(), 0);
    let (query, ids) = (shape.query(1).into(), vec![0, 1]);
    let job = Job { query, ranges: vec![[0, 100]], ids, keep: 5, exclude: u32::MAX };
    assert_eq!(answer(&device, job), Ok(Ranked::default()));
}

#[test]
fn jobs_that_do_not_fit_are_refused() {
    let shape = shape(256, 8);
    let coder = shape.coder();
    let codes = Random(3).bytes(5000 * coder.code_bytes());
    let Some(device) = open(&options(), &coder, &codes) else { return };
    let base = Job { query: shape.query(1).into(), keep: 5, exclude: u32::MAX, ..Job::default() };
    let ranges = vec![[0, 3000], [2500, 1000]];
    let fits = Job { ranges: ranges.clone(), ids: vec![9; 500], ..base.clone() };
    assert_eq!(answer(&device, fits.clone()), Ok(twin(&coder, &codes, &fits)));
    // The largest input of a block: nothing but ids, and nothing but ranges of two ids.
    let only_ids = Job { ids: (0..4000).collect(), keep: 100, ..base.clone() };
    assert_eq!(answer(&device, only_ids.clone()), Ok(twin(&coder, &codes, &only_ids)));
    let only_ranges = Job { ranges: (0..1600).map(|n| [3 * n, 2]).collect(), keep: 100, ..base.clone() };
    assert_eq!(answer(&device, only_ranges.clone()), Ok(twin(&coder, &codes, &only_ranges)));
    let single_ids = Job { ranges: (0..2500).map(|n| [2 * n, 1]).collect(), ..base.clone() };
    assert_eq!(answer(&device, single_ids.clone()), Ok(twin(&coder, &codes, &single_ids)));
    let many = Job { ranges, ids: vec![9; 501], ..base.clone() };
    assert_eq!(answer(&device, many), Err(Failure::TooLarge { what: "ids", given: 4001, limit: 4000 }));
    let keeps = Job { keep: 101, ids: vec![1], ..base.clone() };
    assert_eq!(answer(&device, keeps), Err(Failure::TooLarge { what: "keep", given: 101, limit: 100 }));
    for query in [vec![0.0; 7], vec![0.0; 9], vec![f32::NAN; 8], vec![f32::INFINITY; 8], vec![1e30; 8]] {
        let job = Job { query: query.into(), ids: vec![1], ..base.clone() };
        assert!(matches!(answer(&device, job), Err(Failure::Query { .. })));
    }
    assert!(!device.is_lost());
}

#[test]
fn bytes_are_counted() {
    let shape = shape(256, 8);
    let coder = shape.coder();
    let codes = Random(3).bytes(1000 * coder.code_bytes());
    let Some(device) = open(&options(), &coder, &codes) else { return };
    let job = Job {
        query: shape.query(1).into(),
        ranges: vec![[0, 10], [500, 20], [505, 30]],
        ids: vec![1, 700, 700],
        keep: 6,
        exclude: u32::MAX,
    };
    for _ in 0..3 {
        answer(&device, job.clone()).expect("a score");
    }
    let counters = device.counters();
    assert_eq!((counters.jobs, counters.tables_built, counters.failed_batches), (3, 3, 0));
    // The last two ranges are one when they are sent.
    assert_eq!(counters.bytes_to_device, 3 * (48 + 4 * 8 + 8 * 2 + 4 * 3));
    assert_eq!(counters.bytes_from_device, 3 * (16 + 8 * 6));
}

#[test]
fn many_threads_get_their_answers_once() {
    let shape = shape(512, 16);
    let coder = shape.coder();
    let codes = Random(9).bytes(2000 * coder.code_bytes());
    let Some(device) = open(&options(), &coder, &codes) else { return };
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (device, shape, coder, codes) = (&device, &shape, &coder, &codes);
            scope.spawn(move || {
                let (sender, receiver) = channel();
                let jobs: Vec<Job> = (0..40).map(|n| common::job(shape, thread << 32 | n, 2000)).collect();
                for (n, job) in jobs.iter().enumerate() {
                    let sender = sender.clone();
                    let done = move |answer| sender.send((n, answer)).expect("the test waits");
                    device.submit(job.clone(), Box::new(done));
                }
                drop(sender);
                // The channel ends with the last callback.
                let mut answers: Vec<(usize, Result<Ranked, Failure>)> = receiver.iter().collect();
                answers.sort_by_key(|answer| answer.0);
                assert_eq!(answers.len(), jobs.len());
                for ((n, answer), job) in answers.into_iter().zip(&jobs) {
                    assert_eq!(answer, Ok(twin(coder, codes, job)), "job {n}");
                }
            });
        }
    });
    let counters = device.counters();
    assert!(counters.batches < counters.jobs, "no batch had several jobs: {counters:?}");
}
