//! Exact distances of vectors that come with a job, compared with those of the CPU.

mod common;

use common::{Random, Shape, Task, options, twin};
use proptest::prelude::*;
use std::sync::mpsc::channel;
use std::time::Duration;
use stratann_gpu::{
    CodesOptions, Device, DeviceCodes, DeviceOptions, Error, Failure, Faults, Job, Ranked, Rows,
};
use stratann_kernel::bits::{BitCoder, Layout};
use stratann_kernel::distance::Exact;
use stratann_kernel::{DType, Metric};

const ROWS_BYTES_MAX: u32 = 100_000;

fn open(coder: &BitCoder, codes: &[u8]) -> Option<DeviceCodes> {
    common::open(&CodesOptions { rows_bytes_max: ROWS_BYTES_MAX, ..options() }, coder, codes)
}

fn shape(dim: usize) -> Shape {
    let layout = Layout::even(dim, 1, 0, false).expect("a layout");
    Shape { seed: 1, layout, centroids: 0, ip: false, scale: 1.0 }
}

/// Components of `dtype`. With `is_hostile` floats are any bits: NaNs, infinities, subnormals.
fn components(random: &mut Random, dtype: DType, count: usize, is_hostile: bool) -> Vec<u8> {
    match dtype {
        DType::F32 if !is_hostile => bytemuck::cast_slice(&random.floats(count)).to_vec(),
        DType::F16 if !is_hostile => stratann_kernel::element::narrow_f16(&random.floats(count)).collect(),
        _ => random.bytes(count * dtype.size()),
    }
}

/// Distances as bits and numbers of rows, in the order of the device.
fn nearest(rows: &Rows, dim: usize) -> Vec<(u32, u32)> {
    let mut exact = Exact::default();
    exact.set(if rows.ip { Metric::Ip } else { Metric::L2 }, rows.dtype, dim, &rows.query);
    let distance = |row| {
        let distance = exact.distance(row, 0.0);
        if distance.is_nan() { f32::from_bits(0x7fc0_0000) } else { distance }
    };
    let mut all: Vec<(f32, u32)> =
        rows.rows.chunks_exact(dim * rows.dtype.size()).map(distance).zip(0..).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    all.truncate(rows.keep as usize);
    all.into_iter().map(|(distance, row)| (distance.to_bits(), row)).collect()
}

fn bits(ranked: &Ranked) -> Vec<(u32, u32)> {
    ranked.nearest.iter().map(|&(distance, row)| (Ranked::to_float(distance).to_bits(), row)).collect()
}

fn answer(device: &DeviceCodes, rows: Rows) -> Result<Ranked, Failure> {
    let (sender, receiver) = channel();
    device.submit_rows(rows, Box::new(move |answer| sender.send(answer).expect("the test waits")));
    receiver.recv_timeout(Duration::from_secs(120)).expect("an answer")
}

proptest! {
    #[test]
    fn distances_have_the_bits_of_the_cpu(
        seed: u64, dim in 1..80usize, count in 0..250usize, dtype in 0..4usize, ip: bool, is_hostile: bool, keep in 0..=100u32
    ) {
        let Some(device) = open(&shape(dim).coder(), &[]) else { return Ok(()) };
        let (mut random, dtype) = (Random(seed), DType::ALL[dtype]);
        let query = components(&mut random, dtype, dim, is_hostile);
        let rows = components(&mut random, dtype, dim * count, is_hostile);
        let rows = Rows { dtype, ip, query, rows, keep };
        let ranked = answer(&device, rows.clone()).expect("a score");
        prop_assert_eq!(bits(&ranked), nearest(&rows, dim));
        prop_assert_eq!(ranked.distinct, if keep > 0 { count as u64 } else { 0 });
    }
}

#[test]
fn both_kinds_of_jobs_share_a_device() {
    let shape = shape(20);
    let codes = shape.codes(5, 500);
    let Some(device) = open(&shape.coder(), &codes) else { return };
    let (sender, receiver) = channel();
    let mut random = Random(6);
    let jobs: Vec<(Task, Rows)> = (0..30)
        .map(|n| {
            let (query, rows) = (random.bytes(20), random.bytes(20 * (100 + n)));
            let rows = Rows { dtype: DType::I8, ip: n % 2 == 0, query, rows, keep: 50 };
            (shape.task(n as u64, 500), rows)
        })
        .collect();
    for (n, (Task { query, job }, rows)) in jobs.iter().enumerate() {
        let (of_job, of_rows) = (sender.clone(), sender.clone());
        let done = move |answer| of_job.send((n, false, answer)).expect("the test waits");
        device.submit(query, job.clone(), Box::new(done));
        let done = move |answer| of_rows.send((n, true, answer)).expect("the test waits");
        device.submit_rows(rows.clone(), Box::new(done));
    }
    drop(sender);
    let mut count = 0;
    for (n, is_rows, answer) in receiver {
        let ranked = answer.expect("a score");
        match is_rows {
            true => assert_eq!(bits(&ranked), nearest(&jobs[n].1, 20)),
            false => assert_eq!(ranked, twin(&codes, &jobs[n].0)),
        }
        count += 1;
    }
    assert_eq!(count, 2 * jobs.len());
}

#[test]
fn a_query_of_floats_may_be_longer_than_one_for_codes() {
    let layout = Layout::projected(500, 8, false).expect("a layout");
    let shape = Shape { layout, ..shape(1) };
    let codes = shape.codes(3, 100);
    let options = CodesOptions { ids_max: 4, rows_bytes_max: 4000, ..options() };
    let Some(device) = common::open(&options, &shape.coder(), &codes) else { return };
    let mut random = Random(6);
    let [query, row] = [0, 1].map(|_| components(&mut random, DType::F32, 500, false));
    let rows = [&query[..], &row].concat();
    let rows = Rows { dtype: DType::F32, ip: false, query, rows, keep: 2 };
    assert_eq!(bits(&answer(&device, rows.clone()).expect("a score")), nearest(&rows, 500));
    let job = Job { ids: vec![5, 3, 9], keep: 3, exclude: 5, ..Job::default() };
    let task = Task { query: shape.query(1), job };
    assert_eq!(common::answer(&device, &task), Ok(twin(&codes, &task)));
}

#[test]
fn rows_that_do_not_fit_are_refused() {
    let Some(device) = open(&shape(4).coder(), &[]) else { return };
    let base = Rows { dtype: DType::F32, ip: false, query: vec![0; 16], rows: Vec::new(), keep: 1 };
    let limit = u64::from(ROWS_BYTES_MAX);
    let large = Rows { rows: vec![0; 100_016], ..base.clone() };
    let refused = Failure::TooLarge { what: "bytes of rows", given: 100_016, limit };
    assert_eq!(answer(&device, large), Err(refused));
    let many = Rows { dtype: DType::U8, query: vec![0; 4], rows: vec![0; 4 * 4001], ..base.clone() };
    assert_eq!(answer(&device, many), Err(Failure::TooLarge { what: "rows", given: 4001, limit: 4000 }));
    let whole = Rows { rows: vec![1; 4000 * 16 + 15], ..base.clone() };
    assert!(matches!(answer(&device, whole), Err(Failure::Query { .. })));
    let short = Rows { query: vec![0; 15], rows: vec![0; 16], ..base };
    assert!(matches!(answer(&device, short), Err(Failure::Query { .. })));
    assert!(!device.is_lost());
}
