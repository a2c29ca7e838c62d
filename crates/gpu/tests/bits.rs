//! Answers of a device with codes of bits, compared with those of the twin.

mod common;

use common::{BitShape, Random, Shape, bit_layouts, bit_shapes, options, twin};
use proptest::prelude::*;
use std::sync::mpsc::channel;
use std::time::Duration;
use stratann_gpu::{Device, DeviceOptions, Error, Failure, Faults, Job, Query, Ranked, Rows};
use stratann_kernel::DType;
use stratann_kernel::bits::{Extras, Layout, Segment};
use stratann_kernel::coder::Coder;
use stratann_testing::{Need, leave_out};

/// Opens an emulated device, or leaves the test out where there is no C++ compiler.
fn open(options: &DeviceOptions, coder: &Coder, codes: &[u8]) -> Option<Device> {
    common::opened(Device::emulated(options, &Faults::default(), coder, codes))
}

/// Answers in the order of the jobs.
fn answers(device: &Device, jobs: &[Job]) -> Vec<Result<Ranked, Failure>> {
    let (sender, receiver) = channel();
    for (n, job) in jobs.iter().enumerate() {
        let sender = sender.clone();
        let done = move |answer| sender.send((n, answer)).expect("the test waits");
        device.submit(job.clone(), Box::new(done));
    }
    drop(sender);
    let mut all = Vec::new();
    while let Ok(answer) = receiver.recv_timeout(Duration::from_secs(120)) {
        all.push(answer);
    }
    all.sort_by_key(|answer| answer.0);
    assert_eq!(all.iter().map(|answer| answer.0).collect::<Vec<_>>(), (0..jobs.len()).collect::<Vec<_>>());
    all.into_iter().map(|answer| answer.1).collect()
}

fn answer(device: &Device, job: Job) -> Result<Ranked, Failure> {
    answers(device, &[job]).remove(0)
}

fn shape(layout: Option<Layout>) -> BitShape {
    let layout = layout.expect("a layout");
    let centroids = if layout.is_numbered() { 37 } else { 0 };
    BitShape { seed: 7, layout, centroids, ip: false, scale: 1.0 }
}

/// Checks random jobs over random codes.
fn check(shape: &BitShape, options: &DeviceOptions, (seed, count, jobs): (u64, u64, u64)) {
    let (bits, coder) = (shape.bits(), shape.coder());
    let codes = shape.codes(seed, count as usize);
    let Some(device) = open(options, &coder, &codes) else { return };
    let jobs: Vec<Job> = (0..jobs).map(|n| shape.job(&bits, seed ^ n, count)).collect();
    for (n, (answer, job)) in answers(&device, &jobs).into_iter().zip(&jobs).enumerate() {
        assert_eq!(answer, Ok(twin(&coder, &codes, job)), "job {n} of {shape:?}");
    }
}

proptest! {
    #[test]
    fn answers_are_those_of_the_twin(shape in bit_shapes(), seed: u64, count in 1..500u64, jobs in 1..8u64) {
        check(&shape, &options(), (seed, count, jobs));
    }

    #[test]
    fn the_smallest_budget_has_room_for_every_layout(layout in bit_layouts(), seed: u64) {
        let shape = BitShape { ip: seed.is_multiple_of(2), ..shape(Some(layout)) };
        let coder = shape.coder();
        let codes_bytes = 100 * coder.code_bytes() as u64;
        let needed = Device::needed_bytes(&options(), &coder, codes_bytes);
        check(&shape, &DeviceOptions { budget_bytes: Some(needed), ..options() }, (seed, 100, 3));
    }
}

#[test]
fn every_number_of_bits_and_form_is_scored() {
    for numbered in [false, true] {
        for bits in 1..=8 {
            for finer in [0, 1, 30, 60] {
                let layout = Layout::even(61, bits, if bits < 8 { finer } else { 0 }, numbered);
                for ip in [false, true] {
                    check(&BitShape { ip, ..shape(layout) }, &options(), (bits as u64, 300, 4));
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

#[test]
fn thousands_of_candidates_are_selected_and_sorted() {
    let options = DeviceOptions { ids_max: 60_000, keep_max: 4096, queries_in_flight: 2, ..options() };
    let shape = shape(Layout::even(8, 2, 0, false));
    let (bits, coder, codes) = (shape.bits(), shape.coder(), shape.codes(3, 20_000));
    let Some(device) = open(&options, &coder, &codes) else { return };
    for keep in [1, 100, 4096] {
        let ids: Vec<u32> = (0..20_000).step_by(3).flat_map(|id| [id, id]).collect();
        let ranges = (0..100).map(|n| [n * 200 + n, 100]).collect();
        let job = Job { query: shape.query(&bits, 5), ranges, ids, keep, exclude: 300 };
        assert_eq!(answer(&device, job.clone()), Ok(twin(&coder, &codes, &job)));
    }
}

#[test]
fn nothing_but_codes_and_blocks_lies_on_the_device() {
    let shape = shape(Layout::even(30, 2, 0, true));
    let (bits, coder, codes) = (shape.bits(), shape.coder(), shape.codes(3, 1000));
    let Some(device) = open(&options(), &coder, &codes) else { return };
    let memory = device.memory();
    assert_eq!((memory.codebook, memory.codes), (0, (codes.len() as u64).next_multiple_of(256)));
    // Header, query and ids; results; keys and hash table of 4000 ids; four groups of two words of components.
    let query = 8 + 4 * 256 + 32u64;
    let parts = [48 + query + 16_000, 16 + 800, 32_000, 32_000, 32];
    let block: u64 = parts.iter().map(|part: &u64| part.next_multiple_of(256)).sum();
    assert_eq!(memory.blocks, block * u64::from(memory.block_count));
    assert!(device.begin_table(&[0.5; 30]).is_none());
    let job = Job {
        query: shape.query(&bits, 1),
        ranges: vec![[0, 10], [500, 20], [505, 30]],
        ids: vec![1, 700, 700],
        keep: 6,
        exclude: u32::MAX,
    };
    for _ in 0..3 {
        assert_eq!(answer(&device, job.clone()), Ok(twin(&coder, &codes, &job)));
    }
    let counters = device.counters();
    assert_eq!((counters.jobs, counters.tables_built, counters.tables_with_job), (3, 0, 0));
    assert_eq!(counters.bytes_to_device, 3 * (48 + query + 8 * 2 + 4 * 3));
    assert_eq!(counters.bytes_from_device, 3 * (16 + 8 * 6));
}

#[test]
fn queries_for_other_codes_are_refused() {
    let own = shape(Layout::even(12, 2, 0, true));
    let Some(device) = open(&options(), &own.coder(), &own.codes(1, 100)) else { return };
    let base = Job { ids: vec![1, 2], keep: 5, exclude: u32::MAX, ..Job::default() };
    let others = [
        shape(Layout::even(12, 3, 0, true)),
        shape(Layout::even(12, 2, 0, false)),
        shape(Layout::even(13, 2, 0, true)),
        shape(Layout::projected(12, 5, true)),
    ];
    let queries = others.iter().map(|other| other.query(&other.bits(), 1));
    for query in queries.chain([Query::default(), vec![0.5; 12].into()]) {
        let refused = answer(&device, Job { query, ..base.clone() });
        assert!(matches!(refused, Err(Failure::Query { .. })), "{refused:?}");
    }
    let trained =
        Shape { seed: 1, dim: 12, subspaces: 3, coarse: 1, ip: false, is_rotated: false, scale: 1.0 };
    let codes = Random(1).bytes(100 * trained.coder().code_bytes());
    let Some(trained) = open(&options(), &trained.coder(), &codes) else { return };
    let refused = answer(&trained, Job { query: own.query(&own.bits(), 1), ..base });
    assert!(matches!(refused, Err(Failure::Query { .. })), "{refused:?}");
    let part = Device::emulated(&options(), &Faults::default(), &own.coder(), &[0; 9]).err();
    assert!(matches!(part, Some(Error::Codebook(_))), "{part:?}");
}

#[test]
fn jobs_of_vectors_share_the_device() {
    let shape = shape(Layout::projected(500, 8, false));
    let (bits, coder, codes) = (shape.bits(), shape.coder(), shape.codes(3, 100));
    // The query of a job of vectors is longer than one for these codes.
    let options = DeviceOptions { ids_max: 4, rows_bytes_max: 4000, ..options() };
    let Some(device) = open(&options, &coder, &codes) else { return };
    let mut random = Random(6);
    let [query, row] = [0, 1].map(|_| bytemuck::cast_slice(&random.floats(500)).to_vec());
    let rows = [&query[..], &row].concat();
    let (sender, receiver) = channel();
    let rows = Rows { dtype: DType::F32, ip: false, query, rows, keep: 2 };
    device.submit_rows(rows, Box::new(move |answer| sender.send(answer).expect("the test waits")));
    let ranked = receiver.recv_timeout(Duration::from_secs(120)).expect("an answer").expect("a score");
    assert_eq!((ranked.nearest.len(), Ranked::to_float(ranked.nearest[0].0)), (2, 0.0));
    let job = Job { query: shape.query(&bits, 1), ids: vec![5, 3, 9], keep: 3, exclude: 5, ..Job::default() };
    assert_eq!(answer(&device, job.clone()), Ok(twin(&coder, &codes, &job)));
}

/// Where there is a GPU, it gives the same answers.
#[test]
fn a_gpu_gives_the_answers_of_the_twin() {
    if !stratann_gpu::probe().is_usable() {
        return leave_out(Need::Gpu, "`stratann doctor` says what is missing");
    }
    for bits in 1..=8 {
        for (dim, finer, numbered) in [(100, 0, false), (384, 37, true), (1000, 0, true)] {
            let shape = shape(Layout::even(dim, bits, if bits < 8 { finer } else { 0 }, numbered));
            let (own, coder, codes) = (shape.bits(), shape.coder(), shape.codes(3, 3000));
            let device = Device::open(&options(), &coder, &codes).expect("the GPU opens");
            let jobs: Vec<Job> = (0..20).map(|n| shape.job(&own, n, 3000)).collect();
            for (answer, job) in answers(&device, &jobs).into_iter().zip(&jobs) {
                assert_eq!(answer, Ok(twin(&coder, &codes, job)));
            }
        }
    }
}
