//! Answers of a device, compared with those of the twin.

mod common;

use common::{Shape, Task, admitted, answer, answers, device_options, layouts, open, options, shapes, twin};
use proptest::prelude::*;
use stratann_gpu::{CodesOptions, Device, DeviceCodes, DeviceOptions, Error, Failure, Faults, Job, Ranked};
use stratann_kernel::bits::{Extras, Layout, Segment};
use stratann_testing::{Need, leave_out};

fn shape(layout: Option<Layout>) -> Shape {
    let layout = layout.expect("a layout");
    let centroids = if layout.is_numbered() { 37 } else { 0 };
    Shape { seed: 7, layout, centroids, ip: false, scale: 1.0 }
}

/// A shape of 8 dimensions of two bits.
fn small() -> Shape {
    shape(Layout::even(8, 2, 0, false))
}

/// Checks random jobs over random codes.
fn check(shape: &Shape, options: &CodesOptions, (seed, count, jobs): (u64, u64, u64)) {
    let codes = shape.codes(seed, count as usize);
    let Some(device) = open(options, &shape.coder(), &codes) else { return };
    let tasks: Vec<Task> = (0..jobs).map(|n| shape.task(seed ^ n, count)).collect();
    for (n, (answer, task)) in answers(&device, &tasks).into_iter().zip(&tasks).enumerate() {
        assert_eq!(answer, Ok(twin(&codes, task)), "job {n} of {shape:?}");
    }
}

proptest! {
    #[test]
    fn answers_are_those_of_the_twin(shape in shapes(), seed: u64, count in 1..700u64, jobs in 1..12u64) {
        check(&shape, &options(), (seed, count, jobs));
    }

    #[test]
    fn the_smallest_budget_has_room_for_every_layout(layout in layouts(), seed: u64) {
        let shape = Shape { ip: seed.is_multiple_of(2), ..shape(Some(layout)) };
        let codes_bytes = 100 * shape.layout.code_bytes() as u64;
        let needed = DeviceCodes::needed_bytes(&options(), &shape.coder(), codes_bytes);
        check(&shape, &CodesOptions { budget_bytes: Some(needed), ..options() }, (seed, 100, 3));
    }
}

#[test]
fn every_number_of_bits_and_form_is_scored() {
    for numbered in [false, true] {
        for bits in 1..=8 {
            for finer in [0, 1, 30, 60] {
                let layout = Layout::even(61, bits, if bits < 8 { finer } else { 0 }, numbered);
                for ip in [false, true] {
                    check(&Shape { ip, ..shape(layout) }, &options(), (bits as u64, 300, 4));
                }
            }
        }
        // Eight segments, and the most planes.
        let bits = (1..=8).rev().map(|bits| Segment { dims: 5 + bits, bits, shift: 0 });
        let extras = Extras { numbered, long: true, spread: false };
        check(&shape(Layout::of(80, &bits.collect::<Vec<_>>(), extras)), &options(), (9, 300, 4));
        for coded in [1, 7, 8, 33, 61] {
            check(&shape(Layout::projected(61, coded, numbered)), &options(), (coded as u64, 300, 4));
        }
    }
}

#[test]
fn components_beyond_shared_memory_are_scored() {
    // The planes of 7 bits meet 12 KiB of components; an emulated device has 8 KiB.
    for (dim, bits) in [(4096, 7), (4095, 8), (4096, 1)] {
        check(&shape(Layout::even(dim, bits, 0, true)), &options(), (3, 60, 2));
    }
}

/// Options for thousands of candidates and results.
fn large() -> CodesOptions {
    CodesOptions { ids_max: 60_000, keep_max: 4096, queries_in_flight: 2, ..options() }
}

#[test]
fn thousands_of_candidates_are_selected_and_sorted() {
    let shape = small();
    let codes = shape.codes(3, 20_000);
    let Some(device) = open(&large(), &shape.coder(), &codes) else { return };
    for keep in [1, 100, 4095, 4096] {
        // Every third id as a replica, twice, and half of all in ranges.
        let ids: Vec<u32> = (0..20_000).step_by(3).flat_map(|id| [id, id]).collect();
        let ranges = (0..100).map(|n| [n * 200 + n, 100]).collect();
        let task = Task { query: shape.query(5), job: Job { ranges, ids, keep, exclude: 300 } };
        let ranked = answer(&device, &task).expect("a score");
        assert_eq!(ranked, twin(&codes, &task));
        assert_eq!(ranked.distinct, admitted(&task.job, 20_000).len() as u64);
    }
}

#[test]
fn equal_distances_are_ordered_by_id() {
    let shape = small();
    // Three different codes only: the selection must go on to the bits of the id.
    let some = shape.codes(4, 3);
    let size = some.len() / 3;
    let codes: Vec<u8> = (0..30_000).flat_map(|n| &some[n * 7 % 3 * size..][..size]).copied().collect();
    let Some(device) = open(&large(), &shape.coder(), &codes) else { return };
    for keep in [1, 2, 77, 4096] {
        let job = Job { ranges: vec![[5, 29_000]], ids: vec![0], keep, exclude: u32::MAX };
        let task = Task { query: shape.query(1), job };
        assert_eq!(answer(&device, &task), Ok(twin(&codes, &task)));
    }
}

#[test]
fn jobs_without_candidates_are_empty() {
    let shape = small();
    let Some(device) = open(&options(), &shape.coder(), &shape.codes(3, 10)) else { return };
    let base = Job { keep: 5, exclude: u32::MAX, ..Job::default() };
    let jobs = [
        base.clone(),
        Job { keep: 0, ids: vec![1], ..base.clone() },
        Job { ids: vec![3, 3, 3], exclude: 3, ..base.clone() },
        Job { ids: vec![10, u32::MAX], ranges: vec![[10, 5], [u32::MAX, u32::MAX], [3, 0]], ..base },
    ];
    for job in jobs {
        assert_eq!(answer(&device, &Task { query: shape.query(1), job }), Ok(Ranked::default()));
    }
}

#[test]
fn a_device_without_codes_answers_nothing() {
    let shape = small();
    let Some(device) = open(&options(), &shape.coder(), &[]) else { return };
    assert_eq!(device.count(), 0);
    let job = Job { ranges: vec![[0, 100]], ids: vec![0, 1], keep: 5, exclude: u32::MAX };
    assert_eq!(answer(&device, &Task { query: shape.query(1), job }), Ok(Ranked::default()));
}

#[test]
fn jobs_that_do_not_fit_are_refused() {
    let shape = small();
    let codes = shape.codes(3, 5000);
    let Some(device) = open(&options(), &shape.coder(), &codes) else { return };
    let base = Job { keep: 5, exclude: u32::MAX, ..Job::default() };
    let task = |job| Task { query: shape.query(1), job };
    let ranges = vec![[0, 3000], [2500, 1000]];
    let fitting = [
        Job { ranges: ranges.clone(), ids: vec![9; 500], ..base.clone() },
        // The largest input of a block: nothing but ids, and nothing but ranges of two ids.
        Job { ids: (0..4000).collect(), keep: 100, ..base.clone() },
        Job { ranges: (0..1600).map(|n| [3 * n, 2]).collect(), keep: 100, ..base.clone() },
        Job { ranges: (0..2500).map(|n| [2 * n, 1]).collect(), ..base.clone() },
    ];
    for job in fitting {
        let task = task(job);
        assert_eq!(answer(&device, &task), Ok(twin(&codes, &task)));
    }
    let many = task(Job { ranges, ids: vec![9; 501], ..base.clone() });
    assert_eq!(answer(&device, &many), Err(Failure::TooLarge { what: "ids", given: 4001, limit: 4000 }));
    let keeps = task(Job { keep: 101, ids: vec![1], ..base });
    assert_eq!(answer(&device, &keeps), Err(Failure::TooLarge { what: "keep", given: 101, limit: 100 }));
    assert!(!device.is_lost());
}

#[test]
fn queries_for_other_codes_are_refused() {
    let own = shape(Layout::even(12, 2, 0, true));
    let Some(device) = open(&options(), &own.coder(), &own.codes(1, 100)) else { return };
    let job = Job { ids: vec![1, 2], keep: 5, exclude: u32::MAX, ..Job::default() };
    let others = [
        shape(Layout::even(12, 3, 0, true)),
        shape(Layout::even(12, 2, 0, false)),
        shape(Layout::even(13, 2, 0, true)),
        shape(Layout::projected(12, 5, true)),
    ];
    for query in others.iter().map(|other| other.query(1)).chain([Default::default()]) {
        let refused = answer(&device, &Task { query, job: job.clone() });
        assert!(matches!(refused, Err(Failure::Query { .. })), "{refused:?}");
    }
    let part = device.device().load(&options(), &own.coder(), &[0; 9]).err();
    assert!(matches!(part, Some(Error::Codes(_))), "{part:?}");
}

#[test]
fn nothing_but_codes_and_blocks_lies_on_the_device() {
    let shape = shape(Layout::even(30, 2, 0, true));
    let codes = shape.codes(3, 1000);
    let Some(device) = open(&options(), &shape.coder(), &codes) else { return };
    let memory = device.memory();
    assert_eq!(memory.codes, (codes.len() as u64).next_multiple_of(256));
    assert_eq!(memory.total(), memory.codes + memory.blocks + memory.module);
    // Header, query and ids; results; keys and hash table of 4000 ids; four groups of two words of components.
    let query = 8 + 4 * 256 + 32u64;
    let parts = [48 + query + 16_000, 16 + 800, 32_000, 32_000, 32];
    let block: u64 = parts.iter().map(|part: &u64| part.next_multiple_of(256)).sum();
    assert_eq!(memory.blocks, block * u64::from(memory.block_count));
    let ranges = vec![[0, 10], [500, 20], [505, 30]];
    let job = Job { ranges, ids: vec![1, 700, 700], keep: 6, exclude: u32::MAX };
    let task = Task { query: shape.query(1), job };
    for _ in 0..3 {
        assert_eq!(answer(&device, &task), Ok(twin(&codes, &task)));
    }
    let counters = device.counters();
    assert_eq!((counters.jobs, counters.failed_batches), (3, 0));
    // The last two ranges are one when they are sent.
    assert_eq!(counters.bytes_to_device, 3 * (48 + query + 8 * 2 + 4 * 3));
    assert_eq!(counters.bytes_from_device, 3 * (16 + 8 * 6));
}

#[test]
fn many_threads_get_their_answers_once() {
    let shape = shape(Layout::even(16, 4, 0, true));
    let codes = shape.codes(9, 2000);
    let Some(device) = open(&options(), &shape.coder(), &codes) else { return };
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (device, shape, codes) = (&device, &shape, &codes);
            scope.spawn(move || {
                let tasks: Vec<Task> = (0..40).map(|n| shape.task(thread << 32 | n, 2000)).collect();
                for ((n, answer), task) in answers(device, &tasks).into_iter().enumerate().zip(&tasks) {
                    assert_eq!(answer, Ok(twin(codes, task)), "job {n}");
                }
            });
        }
    });
    let counters = device.counters();
    assert!(counters.batches < counters.jobs, "no batch had several jobs: {counters:?}");
}

/// Where there is a GPU, it gives the same answers.
#[test]
fn a_gpu_gives_the_answers_of_the_twin() {
    if !stratann_gpu::probe().is_usable() {
        return leave_out(Need::Gpu, "`stratann doctor` says what is missing");
    }
    let even = [(100, 0, false), (384, 37, true), (1000, 0, true), (4096, 0, true)];
    let of_bits = |bits: usize| {
        even.map(|(dim, finer, numbered)| Layout::even(dim, bits, if bits < 8 { finer } else { 0 }, numbered))
    };
    let segments: Vec<Segment> =
        (1..=8).rev().map(|bits| Segment { dims: 5 + bits, bits, shift: 0 }).collect();
    let long = Extras { numbered: true, long: true, spread: false };
    let others = [Layout::projected(384, 100, true), Layout::of(80, &segments, long)];
    let device = Device::open(&device_options()).expect("the GPU opens");
    for layout in (1..=8).flat_map(of_bits).chain(others) {
        for ip in [false, true] {
            let shape = Shape { ip, ..shape(layout) };
            let codes = shape.codes(3, 3000);
            let device = device.load(&options(), &shape.coder(), &codes).expect("the codes fit");
            let tasks: Vec<Task> = (0..20).map(|n| shape.task(n, 3000)).collect();
            for (answer, task) in answers(&device, &tasks).into_iter().zip(&tasks) {
                assert_eq!(answer, Ok(twin(&codes, task)), "{shape:?}");
            }
        }
    }
}

/// Where there is a GPU, it selects and sorts as many results as a job may have, of jobs of a full batch.
#[test]
fn a_gpu_sorts_large_batches() {
    if !stratann_gpu::probe().is_usable() {
        return leave_out(Need::Gpu, "`stratann doctor` says what is missing");
    }
    let of_device = DeviceOptions { batch_max: 64, streams: 4, ..device_options() };
    let options = CodesOptions { queries_in_flight: 64, ..large() };
    let shape = shape(Layout::even(128, 2, 0, true));
    let codes = shape.codes(5, 50_000);
    let device = Device::open(&of_device).expect("the GPU opens");
    let device = device.load(&options, &shape.coder(), &codes).expect("the codes fit");
    let task = |n: u32| {
        let ids = (0..9_000).map(|i| (i * 37 + n * 101) % 50_000).collect();
        let job = Job { ranges: vec![[n, 30_000]], ids, keep: 4096, exclude: n + 7 };
        Task { query: shape.query(n.into()), job }
    };
    let tasks: Vec<Task> = (0..200).map(task).collect();
    for (answer, task) in answers(&device, &tasks).into_iter().zip(&tasks) {
        assert_eq!(answer, Ok(twin(&codes, task)));
    }
}
