//! Random coders and codes, and the twin of a device in plain Rust.
//! The unit tests include this file, too.

#![allow(dead_code)]

use super::{CodesOptions, Device, DeviceCodes, DeviceOptions, Error, Failure, Faults, Job, Ranked};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;
use stratann_kernel::bits::{BITS_MAX, BitCoder, BitQuery, CoderParts, Extras, Layout, Scaling, Segment};
use stratann_testing::{Need, leave_out};

/// Longest wait for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Random numbers from a seed (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// A float from -1 to 1.
    pub(crate) fn float(&mut self) -> f32 {
        self.below(1 << 24) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

/// Shape of a coder.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) seed: u64,
    pub(crate) layout: Layout,
    pub(crate) centroids: usize,
    pub(crate) ip: bool,
    pub(crate) scale: f32,
}

/// Layouts of every kind: one and several planes and segments, dimensions without bits, short and long factors, codes
/// with and without the number of a centroid.
pub(crate) fn layouts() -> impl Strategy<Value = Layout> {
    let dim = prop_oneof![4 => 1..80usize, 1 => 250..400usize];
    let even = (dim.clone(), 0..=8usize, any::<prop::sample::Index>(), any::<bool>());
    let even = even.prop_map(|(dim, bits, part, numbered)| match bits {
        0 => Layout::projected(dim, 1 + part.index(dim), numbered),
        8 => Layout::even(dim, 8, 0, numbered),
        bits => Layout::even(dim, bits, part.index(dim), numbered),
    });
    let segments = (dim, any::<u64>(), any::<[bool; 3]>());
    let segments = segments.prop_map(|(dim, seed, flags)| {
        let [numbered, long, spread] = flags;
        Layout::of(dim, &segments_of(dim, &mut Random(seed)), Extras { numbered, long, spread })
    });
    prop_oneof![even, segments].prop_map(|layout| layout.expect("a layout"))
}

/// Segments of fewer and fewer bits, of some or all dimensions.
fn segments_of(dim: usize, random: &mut Random) -> Vec<Segment> {
    let mut segments = Vec::new();
    let (mut left, mut bits) = (dim, BITS_MAX);
    while left > 0 && bits > 0 {
        let dims = 1 + random.below(left as u64) as usize;
        bits = 1 + random.below(bits as u64) as usize;
        let shift = random.below((BITS_MAX - bits + 1) as u64) as u32;
        segments.push(Segment { dims, bits, shift });
        (left, bits) = (left - dims, bits - 1);
    }
    segments
}

pub(crate) fn shapes() -> impl Strategy<Value = Shape> {
    let scale = prop_oneof![Just(1f32), Just(1e-3), Just(3e4), Just(1e-22), Just(1e18), Just(0.0)];
    (any::<u64>(), layouts(), 0..=256usize, any::<bool>(), scale).prop_map(
        |(seed, layout, centroids, ip, scale)| {
            let centroids = if layout.is_numbered() { centroids } else { 0 };
            Shape { seed, layout, centroids, ip, scale }
        },
    )
}

impl Shape {
    pub(crate) fn coder(&self) -> BitCoder {
        let (mut random, dim) = (Random(self.seed), self.layout.dim());
        let mut scaled =
            |count| random.floats(count).into_iter().map(|x| x * self.scale).collect::<Vec<f32>>();
        let (centre, centroids) = (scaled(dim), scaled(self.centroids * dim));
        let Shape { seed, layout, ip, .. } = *self;
        let (basis, scaling) = (Vec::new(), Scaling::Unbiased);
        BitCoder::of_parts(CoderParts { layout, step: 0.3, seed, basis, centre, centroids, ip, scaling })
    }

    /// Codes of random vectors, and among them as many bytes of any content.
    pub(crate) fn codes(&self, seed: u64, count: usize) -> Vec<u8> {
        let (mut random, coder, size) = (Random(seed), self.coder(), self.layout.code_bytes());
        let mut codes = random.bytes(count * size);
        for code in codes.chunks_exact_mut(size) {
            if random.below(2) == 0 {
                let mut vector = random.floats(self.layout.dim());
                vector.iter_mut().for_each(|x| *x *= self.scale);
                coder.place(&mut vector);
                coder.encode(&mut vector, code);
            }
        }
        codes
    }

    /// A query as the host prepares it.
    pub(crate) fn query(&self, seed: u64) -> BitQuery {
        let mut query = BitQuery::default();
        let mut random = Random(seed);
        let floats: Vec<f32> =
            (0..self.layout.dim()).map(|_| random.float() * self.scale.max(1e-3)).collect();
        query.set(&self.coder(), &floats, &mut Vec::new());
        query
    }

    /// A task whose candidates overlap, repeat, and lie beyond the codes.
    pub(crate) fn task(&self, seed: u64, codes: u64) -> Task {
        Task { query: self.query(seed ^ 0x51), job: candidates(seed, codes) }
    }
}

/// A query and its candidates.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) query: BitQuery,
    pub(crate) job: Job,
}

impl Task {
    /// The same query with other candidates.
    pub(crate) fn with(&self, job: Job) -> Task {
        Task { query: self.query.clone(), job }
    }
}

/// Options for small devices.
pub(crate) fn device_options() -> DeviceOptions {
    DeviceOptions {
        batch_max: 4,
        batch_wait: Duration::from_micros(200),
        streams: 2,
        timeout: Duration::from_secs(60),
        ..DeviceOptions::default()
    }
}

/// Options for few codes.
pub(crate) fn options() -> CodesOptions {
    CodesOptions { ids_max: 4000, keep_max: 100, queries_in_flight: 8, ..CodesOptions::default() }
}

fn candidates(seed: u64, codes: u64) -> Job {
    let mut random = Random(seed);
    let hostile = |random: &mut Random| match random.below(12) {
        0 => u32::MAX,
        1 => u32::MAX - 1 - random.below(3) as u32,
        2 => (codes + random.below(3)) as u32,
        _ => random.below(codes) as u32,
    };
    let mut ranges = Vec::new();
    for _ in 0..random.below(6) {
        let count = if random.below(20) == 0 { u32::MAX } else { random.below(60) as u32 };
        ranges.push([hostile(&mut random), count]);
    }
    let mut ids = Vec::new();
    for _ in 0..random.below(200) {
        let id = hostile(&mut random);
        ids.extend(std::iter::repeat_n(id, 1 + random.below(3) as usize));
    }
    let keep = match random.below(6) {
        0 => 0,
        1 => 1,
        2 => 100,
        _ => random.below(100) as u32,
    };
    let exclude = if random.below(2) == 0 { u32::MAX } else { random.below(codes) as u32 };
    Job { ranges, ids, keep, exclude }
}

/// The distinct admitted ids of a job, ascending.
pub(crate) fn admitted(job: &Job, codes: u64) -> BTreeSet<u32> {
    let in_ranges = job.ranges.iter().flat_map(|&[first, count]| {
        let end = (u64::from(first) + u64::from(count)).min(codes);
        (u64::from(first)..end).map(|id| id as u32)
    });
    let mut ids: BTreeSet<u32> = in_ranges.chain(job.ids.iter().copied()).collect();
    ids.retain(|&id| u64::from(id) < codes && id != job.exclude);
    ids
}

/// The answer to a task, the slow way.
pub(crate) fn twin(codes: &[u8], Task { query, job }: &Task) -> Ranked {
    if job.keep == 0 {
        return Ranked::default();
    }
    let size = query.code_bytes();
    let ids = admitted(job, (codes.len() / size) as u64);
    let score = |&id: &u32| (query.distance(&codes[id as usize * size..]), id);
    let mut nearest: Vec<(u32, u32)> = ids.iter().map(score).collect();
    nearest.sort_unstable();
    nearest.truncate(job.keep as usize);
    Ranked { nearest, distinct: ids.len() as u64 }
}

/// Submits all tasks at once. Returns the answers in the order of the tasks; each must come once.
pub(crate) fn answers(on_device: &DeviceCodes, tasks: &[Task]) -> Vec<Result<Ranked, Failure>> {
    let (sender, receiver) = channel();
    for (n, Task { query, job }) in tasks.iter().enumerate() {
        let sender = sender.clone();
        let done = move |answer| sender.send((n, answer)).expect("the test waits");
        on_device.submit(query, job.clone(), Box::new(done));
    }
    drop(sender);
    let mut all: Vec<(usize, Result<Ranked, Failure>)> = Vec::new();
    while let Ok(answer) = receiver.recv_timeout(PATIENCE) {
        all.push(answer);
    }
    all.sort_by_key(|answer| answer.0);
    assert_eq!(all.iter().map(|answer| answer.0).collect::<Vec<_>>(), (0..tasks.len()).collect::<Vec<_>>());
    all.into_iter().map(|answer| answer.1).collect()
}

/// The answer to one task.
pub(crate) fn answer(on_device: &DeviceCodes, task: &Task) -> Result<Ranked, Failure> {
    answers(on_device, std::slice::from_ref(task)).remove(0)
}

/// Opens an emulated device with faults, or leaves the test out where there is no C++ compiler.
pub(crate) fn open_device(options: &DeviceOptions, faults: &Faults) -> Option<Arc<Device>> {
    opened(Device::emulated(options, faults))
}

/// Codes on an emulated device of their own, without faults.
pub(crate) fn open(options: &CodesOptions, coder: &BitCoder, codes: &[u8]) -> Option<DeviceCodes> {
    let device = open_device(&device_options(), &Faults::default())?;
    opened(device.load(options, coder, codes))
}

/// Returns the opened or compiled thing. Without a C++ compiler it is `None`, and the test is left out.
pub(crate) fn opened<T>(result: Result<T, Error>) -> Option<T> {
    match result {
        Ok(opened) => Some(opened),
        Err(error @ Error::Missing { .. }) => {
            leave_out(Need::Compiler, &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}
