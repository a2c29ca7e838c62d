//! Each kernel, compared with its twin in Rust.

use super::*;
use crate::common::{self, BitShape, Random, Shape, admitted, floats};
use crate::job::{Prepared, encode_table};
use crate::layout::{self, Addresses, BlockLayout};
use crate::limits::{self, Limits};
use crate::pool::{Claim, TableRequest};
use crate::{DeviceOptions, Job, Query, Ranked};
use proptest::prelude::*;
use std::collections::BTreeSet;
use stratann_kernel::bits::Layout;
use stratann_kernel::coder::Coder;
use stratann_kernel::trained_codes::Table;

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

/// Number of the launches that build a table.
const TABLE_LAUNCHES: usize = 3;

/// Runs the first `launches` launches of a job in the order `order` of threads. Where it `is_early`, those of the table
/// are a batch of their own, and the job follows without its query. `None` without a compiler.
fn run(
    options: &DeviceOptions,
    coder: &Coder,
    codes: &[u8],
    job: &Job,
    launches: usize,
    (order, is_early): (u32, bool),
) -> Option<Ran> {
    let program = common::opened(Program::get())?;
    let count = limits::check_codes(coder, codes).expect("whole codes");
    let query = job.query.clone();
    let mut job = Prepared::new(job.clone(), &Limits::new(options, coder, count)).expect("fits")?;
    let layout = BlockLayout::new(options, coder);
    let mut device = Emulator::open(Faults::default()).expect("the kernels are compiled");
    let mut allocate = |bytes: u64| device.allocate("a test", bytes.max(1)).expect("memory");
    let addresses = Addresses {
        codes: allocate(codes.len() as u64),
        codebook: allocate(1 << 24),
        blocks: allocate(layout.bytes),
    };
    let starts = layout::codebook_addresses(coder, addresses.codebook);
    for (address, part) in starts.into_iter().zip(layout::codebook_parts(coder)) {
        device.write(address, part).expect("within the allocation");
    }
    device.write(addresses.codes, codes).expect("within the allocation");
    device.write(addresses.blocks, &vec![0xa5; layout.bytes as usize]).expect("within the allocation");
    let params = Params::new(&layout, coder, count, addresses, SHARED_BYTES);
    let staging = [Area::new(layout.staging_bytes()).expect("memory")];
    // SAFETY: the area has these bytes.
    let area = unsafe {
        std::slice::from_raw_parts_mut(staging[0].address as *mut u8, layout.staging_bytes() as usize)
    };
    let mut launches = launches;
    let mut run = |mut batch: Batch| {
        let count = batch.launches.len();
        // A launch that is left out is a launch over no thread blocks.
        batch.launches[launches.min(count)..].iter_mut().for_each(|launch| launch.grid_x = 0);
        launches = launches.saturating_sub(count);
        program.run(&batch, &staging, order);
        count
    };
    if is_early {
        // All places of the hash table are full.
        assert!(encode_table(floats(&query), 2 * options.ids_max, area));
        let tables = Batch::of_tables(&params, std::iter::once(&TableRequest::new(0, floats(&query))));
        assert_eq!(run(tables), TABLE_LAUNCHES);
        job.claim(Claim::Built);
    }
    assert!(job.encode(area));
    let all = run(Batch::new(&params, std::iter::once((0, &job))));
    let before = if coder.trained().is_none() { 1 } else { TABLE_LAUNCHES };
    assert_eq!(all, if is_early { 3 } else { 3 + before });
    // SAFETY: the block was allocated with these bytes, and the batch has ended.
    let block =
        unsafe { std::slice::from_raw_parts(addresses.blocks as *const u8, layout.bytes as usize) }.to_vec();
    Some(Ran { block, layout, candidates: job.candidates() as usize })
}

fn case() -> impl Strategy<Value = (Shape, u64, u64, (u32, bool))> {
    (common::shapes(), any::<u64>(), 1..500u64, (0..9u32, any::<bool>()))
}

fn bits(floats: &[f32]) -> Vec<u32> {
    floats.iter().map(|x| x.to_bits()).collect()
}

proptest! {
    #[test]
    fn tables_have_the_bits_of_the_cpu((shape, seed, _, order) in case()) {
        let codebook = shape.codebook();
        let codes = Random(seed).bytes(4 * codebook.code_bytes());
        let job = Job { query: shape.query(seed).into(), ids: vec![1], keep: 1, ..Job::default() };
        let coder = shape.coder();
        let Some(ran) = run(&common::options(), &coder, &codes, &job, TABLE_LAUNCHES, order) else { return Ok(()) };
        let (mut table, mut rotated) = (Table::default(), vec![0.0; shape.dim]);
        codebook.rotate(floats(&job.query), &mut rotated);
        prop_assert_eq!(ran.words(ran.layout.rotated_at, shape.dim), bits(&rotated));
        table.set(&codebook, floats(&job.query), &mut rotated);
        let mut entries_at = ran.layout.table_at;
        if codebook.stages() > 0 {
            prop_assert_eq!(ran.words(entries_at, 256), table.coarse());
            prop_assert_eq!(ran.words(entries_at + 1024, 256), table.correction());
            entries_at += 2048;
        }
        let words = ran.words(entries_at, table.entries().len() / 2);
        let entries: Vec<u16> = words.iter().flat_map(|&word| [word as u16, (word >> 16) as u16]).collect();
        prop_assert_eq!(entries, table.entries());
    }

    #[test]
    fn candidates_are_distinct_and_scored((shape, seed, count, order) in case()) {
        let codebook = shape.codebook();
        let size = codebook.code_bytes();
        let codes = Random(seed).bytes(count as usize * size);
        let job = Job { keep: 1, ..common::job(&shape, seed, count) };
        let expected = admitted(&job, count);
        let Some(ran) = run(&common::options(), &shape.coder(), &codes, &job, 4, order) else { return Ok(()) };
        let kept: Vec<u64> = ran.keys().into_iter().filter(|&key| key != u64::MAX).collect();
        let distinct: BTreeSet<u32> = kept.iter().map(|&key| key as u32).collect();
        prop_assert_eq!(kept.len(), distinct.len());
        prop_assert_eq!(&distinct, &expected);
        prop_assert_eq!(ran.words(ran.layout.results_at + 4, 1)[0] as usize, expected.len());

        let Some(ran) = run(&common::options(), &shape.coder(), &codes, &job, 5, order) else { return Ok(()) };
        let mut table = Table::default();
        table.set(&codebook, floats(&job.query), &mut Vec::new());
        let mut keys: Vec<u64> = ran.keys().into_iter().filter(|&key| key != u64::MAX).collect();
        keys.sort_unstable();
        let distance = |id: u32| u64::from(table.distance(&codes[id as usize * size..]));
        let mut expected: Vec<u64> = expected.iter().map(|&id| distance(id) << 32 | u64::from(id)).collect();
        expected.sort_unstable();
        let largest = expected.last().map_or(0, |key| (key >> 32) as u32);
        prop_assert_eq!(ran.words(ran.layout.results_at + 8, 1)[0], largest);
        prop_assert_eq!(keys, expected);
    }
}

#[test]
fn results_do_not_depend_on_the_order_of_threads() {
    let shape = Shape { seed: 1, dim: 8, subspaces: 8, coarse: 256, ip: true, is_rotated: false, scale: 1.0 };
    let coder = shape.coder();
    let codes = Random(4).bytes(12_000 * coder.code_bytes());
    check_orders(&coder, &codes, shape.query(2).into());
    let layout = Layout::even(19, 3, 7, true).expect("a layout");
    let shape = BitShape { seed: 3, layout, centroids: 200, ip: false, scale: 1.0 };
    check_orders(&shape.coder(), &shape.codes(5, 12_000), shape.query(&shape.bits(), 6));
}

fn check_orders(coder: &Coder, codes: &[u8], query: Query) {
    let options = DeviceOptions { ids_max: 20_000, keep_max: 4096, ..common::options() };
    let ids = (0..4000).map(|n| n * 7 % 12_000).collect();
    let job = Job { query, ranges: vec![[100, 9000]], ids, keep: 4096, exclude: u32::MAX };
    let expected = common::twin(coder, codes, &job);
    for order in [0, 1, 2, 5, 77] {
        let is_early = order % 2 == 0 && coder.trained().is_some();
        let Some(ran) = run(&options, coder, codes, &job, 6, (order, is_early)) else { return };
        let results = &ran.block[ran.layout.results_at as usize..];
        let ranked = Ranked::decode(results, job.keep).expect("possible results");
        assert_eq!(ranked.nearest, expected.nearest, "order {order}");
        assert_eq!(ranked.distinct, expected.distinct);
    }
}
