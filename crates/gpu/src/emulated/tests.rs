//! Each kernel, compared with its twin in Rust.

use super::*;
use crate::common::{self, Shape, Task, admitted};
use crate::job::Prepared;
use crate::layout::BlockLayout;
use crate::limits::{self, Limits};
use crate::{CodesOptions, Job, Ranked};
use proptest::prelude::*;
use std::collections::BTreeSet;
use stratann_kernel::bits::Layout;

/// The memory of one block after a batch of one job.
struct Ran {
    block: Vec<u8>,
    layout: BlockLayout,
    candidates: usize,
}

impl Ran {
    fn words(&self, at: u64, count: usize) -> Vec<u32> {
        let bytes = &self.block[at as usize..][..4 * count];
        bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect()
    }

    fn keys(&self) -> Vec<u64> {
        let bytes = &self.block[self.layout.keys_at as usize..][..8 * self.candidates];
        bytes.as_chunks().0.iter().map(|&key| u64::from_le_bytes(key)).collect()
    }
}

/// Runs the first `launches` launches of a task in the order `order` of threads. `None` without a compiler.
fn run(
    (options, shape): (&CodesOptions, &Shape),
    codes: &[u8],
    Task { query, job }: &Task,
    launches: usize,
    order: u32,
) -> Option<Ran> {
    let (program, coder) = (common::opened(Program::get())?, shape.coder());
    let count = limits::check_codes(&coder, codes).expect("whole codes");
    let job = Prepared::new(query, job.clone(), &Limits::new(options, &coder, count)).expect("fits")?;
    let layout = BlockLayout::new(options, &coder);
    let mut device = Emulator::open(Faults::default()).expect("the kernels are compiled");
    let mut allocate = |bytes: u64| device.allocate("a test", bytes.max(1)).expect("memory");
    let addresses = [allocate(codes.len() as u64), allocate(layout.bytes)];
    device.write(addresses[0], codes).expect("within the allocation");
    device.write(addresses[1], &vec![0xa5; layout.bytes as usize]).expect("within the allocation");
    let params = Params::new(&layout, &coder, count, SHARED_BYTES);
    let params = Params { codes: addresses[0], blocks: addresses[1], ..params };
    let staging = device.allocate_staging(1, layout.staging_bytes()).expect("memory");
    assert!(job.encode(device.staging(staging, 0)));
    let mut batch = Batch::new(&params, staging, std::iter::once((0, &job)));
    assert_eq!(batch.launches.len(), 4);
    batch.launches.truncate(launches);
    program.run(&batch, order);
    // SAFETY: the block was allocated with these bytes, and the batch has ended.
    let block =
        unsafe { std::slice::from_raw_parts(addresses[1] as *const u8, layout.bytes as usize) }.to_vec();
    Some(Ran { block, layout, candidates: job.candidates() as usize })
}

proptest! {
    #[test]
    fn candidates_are_distinct_and_scored(
        shape in common::shapes(), seed: u64, count in 1..500u64, order in 0..9u32
    ) {
        let (codes, of) = (shape.codes(seed, count as usize), (&common::options(), &shape));
        let task = shape.task(seed, count);
        let task = task.with(Job { keep: 1, ..task.job.clone() });
        let expected = admitted(&task.job, count);
        let Some(ran) = run(of, &codes, &task, 2, order) else { return Ok(()) };
        let kept: Vec<u64> = ran.keys().into_iter().filter(|&key| key != u64::MAX).collect();
        let distinct: BTreeSet<u32> = kept.iter().map(|&key| key as u32).collect();
        prop_assert_eq!(kept.len(), distinct.len());
        prop_assert_eq!(&distinct, &expected);
        prop_assert_eq!(ran.words(ran.layout.results_at + 4, 1)[0] as usize, expected.len());

        let Some(ran) = run(of, &codes, &task, 3, order) else { return Ok(()) };
        let mut keys: Vec<u64> = ran.keys().into_iter().filter(|&key| key != u64::MAX).collect();
        keys.sort_unstable();
        let size = shape.layout.code_bytes();
        let distance = |id: u32| u64::from(task.query.distance(&codes[id as usize * size..]));
        let mut expected: Vec<u64> = expected.iter().map(|&id| distance(id) << 32 | u64::from(id)).collect();
        expected.sort_unstable();
        let largest = expected.last().map_or(0, |key| (key >> 32) as u32);
        prop_assert_eq!(ran.words(ran.layout.results_at + 8, 1)[0], largest);
        prop_assert_eq!(keys, expected);
    }
}

#[test]
fn results_do_not_depend_on_the_order_of_threads() {
    let layout = Layout::even(19, 3, 7, true).expect("a layout");
    let shape = Shape { seed: 3, layout, centroids: 200, ip: false, scale: 1.0 };
    let codes = shape.codes(5, 12_000);
    let options = CodesOptions { ids_max: 20_000, keep_max: 4096, ..common::options() };
    let ids = (0..4000).map(|n| n * 7 % 12_000).collect();
    let job = Job { ranges: vec![[100, 9000]], ids, keep: 4096, exclude: u32::MAX };
    let task = Task { query: shape.query(6), job };
    let expected = common::twin(&codes, &task);
    for order in [0, 1, 2, 5, 77] {
        let Some(ran) = run((&options, &shape), &codes, &task, 4, order) else { return };
        let results = &ran.block[ran.layout.results_at as usize..];
        let ranked = Ranked::decode(results, task.job.keep).expect("possible results");
        assert_eq!(ranked, expected, "order {order}");
    }
}
