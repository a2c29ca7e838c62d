//! Small sets, indexes of them, and a plain way to run one query, shared by the tests.
// Each test binary uses a part of this.
#![allow(dead_code, unreachable_pub)]

pub mod nodes;
pub mod sorted;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stratann_params::build::{GraphOptions, ListOptions};

use stratann_core::build::hash;
use stratann_core::kinds::{IndexView, KindParams, KindView, disk_graph, hybrid_ivf};
use stratann_core::query::{
    Arrival, Arrived, Budget, Loss, Mode, Params, QueryState, Read, Scratch, Step, Tag,
};
use stratann_core::sieve::Sieve;
use stratann_engine::build::{BuildOptions, IndexKind, KindOptions, build};
use stratann_engine::dataset::{Reader, Shape};
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::search::{Answers, Effort, Filter, Filters, Naming, SearchOptions};
use stratann_engine::{DType, Metric};
use stratann_storage::profile::{
    ComputeCosts, DiskCosts, DistanceCost, LocalCosts, Origin, Profile, ReadLine,
};
use stratann_storage::{Progress, Quiet};
use tempfile::TempDir;

/// Rows of one element type.
#[derive(Clone)]
pub struct Set {
    pub shape: Shape,
    pub bytes: Vec<u8>,
}

impl Set {
    pub fn new(dtype: DType, dim: usize, values: &[f32]) -> Set {
        let bytes = values.iter().flat_map(|&x| component(dtype, x)).collect();
        Set { shape: Shape { rows: (values.len() / dim) as u64, dim, dtype }, bytes }
    }

    pub fn reader(&self) -> Reader {
        Reader::from_memory(self.shape, self.bytes.clone()).unwrap()
    }

    pub fn row(&self, i: usize) -> &[u8] {
        let size = self.shape.row_bytes();
        &self.bytes[i * size..(i + 1) * size]
    }

    pub fn len(&self) -> usize {
        self.shape.rows as usize
    }

    /// A row in double precision, decoded here and not by the code under test.
    pub fn wide(&self, i: usize) -> Vec<f64> {
        wide(self.shape.dtype, self.row(i))
    }
}

fn component(dtype: DType, x: f32) -> Vec<u8> {
    match dtype {
        DType::F32 => x.to_le_bytes().to_vec(),
        DType::F16 => half::f16::from_f32(x).to_le_bytes().to_vec(),
        DType::U8 => vec![(x * 20.0 + 128.0).round().clamp(0.0, 255.0) as u8],
        DType::I8 => vec![(x * 20.0).round().clamp(-128.0, 127.0) as i8 as u8],
    }
}

fn wide(dtype: DType, row: &[u8]) -> Vec<f64> {
    match dtype {
        DType::F32 => {
            row.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect()
        }
        DType::F16 => row.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f64()).collect(),
        DType::U8 => row.iter().map(|&b| f64::from(b)).collect(),
        DType::I8 => row.iter().map(|&b| f64::from(b as i8)).collect(),
    }
}

/// A number that looks normal with deviation 1, drawn from the arguments.
pub fn normal(seed: u64, stream: u64, index: u64) -> f32 {
    let x = hash(seed, stream, index);
    let four = [x, x >> 16, x >> 32, x >> 48].map(|p| (p & 0xFFFF) as f32 / 65536.0);
    (four.iter().sum::<f32>() - 2.0) * 1.732
}

/// `n` rows around `clusters` centres, as floats.
pub fn clustered(n: usize, dim: usize, clusters: usize, seed: u64) -> Vec<f32> {
    let centre = |c: u64, i: u64| 1.5 * normal(7, c, i);
    let value =
        |row: u64, i: u64| centre(hash(seed, 1, row) % clusters as u64, i) + normal(seed, 100 + row, i);
    (0..n as u64).flat_map(|row| (0..dim as u64).map(move |i| value(row, i))).collect()
}

/// Answers of an index to queries with filters, none of which fails.
pub fn search(index: &Index, asked: &Set, filters: Filters<'_>, options: &SearchOptions) -> Answers {
    let answers = index.search_filtered(&asked.bytes, filters, options, &Quiet).unwrap();
    assert!(answers.failed.is_empty(), "{:?}", answers.failed);
    answers
}

/// A filter of the rows with these ids, or of all others.
pub fn filter(index: &Index, ids: &[u64], naming: Naming, options: &SearchOptions) -> Filter {
    index.filter(ids, naming, options, &Quiet).unwrap()
}

/// Options of a search for k results at a recall.
pub fn options(k: usize, recall: f64) -> SearchOptions {
    SearchOptions { k, effort: Effort::Recall(recall), threads: 2, ..SearchOptions::default() }
}

/// Options for a quick build: short lists, no calibration.
pub fn quick(kind: IndexKind, metric: Metric) -> BuildOptions {
    let mut options = BuildOptions::new(kind, metric);
    options.threads = 2;
    options.calibration_queries = 0;
    options.profile = Some(profile());
    if let KindOptions::DiskGraph(own) = &mut options.kind {
        (own.degree, own.build_list) = (32, 64);
    }
    options
}

/// Changes the options of a `disk-graph`.
pub fn graph_options(mut options: BuildOptions, change: impl FnOnce(&mut GraphOptions)) -> BuildOptions {
    let KindOptions::DiskGraph(own) = &mut options.kind else { panic!("{:?}", options.kind()) };
    change(own);
    options
}

/// Changes the options of a `hybrid-ivf`.
pub fn list_options(mut options: BuildOptions, change: impl FnOnce(&mut ListOptions)) -> BuildOptions {
    let KindOptions::HybridIvf(own) = &mut options.kind else { panic!("{:?}", options.kind()) };
    change(own);
    options
}

/// A machine that never was, with constants fitted: builds measure nothing.
pub fn profile() -> Profile {
    let distance = |fixed_ns, ns_per_unit| DistanceCost { fixed_ns, ns_per_unit, measured: Vec::new() };
    Profile {
        format_version: 1,
        origin: Origin {
            cpu: "test".into(),
            cores: 2,
            isa: "test".into(),
            file_system: "test".into(),
            device: "test".into(),
            io_backend: "pread".into(),
        },
        seconds: 0.0,
        measurement: None,
        disk: DiskCosts {
            direct: true,
            file_bytes: 1 << 30,
            sequential_bytes_per_s: 1.2e9,
            latency_us: 90.0,
            latency_mean_us: 95.0,
            random: Vec::new(),
            alone: ReadLine { depth: 1, fixed_us: 86.0, ns_per_byte: 1.0 },
            loaded: ReadLine { depth: 32, fixed_us: 384.0, ns_per_byte: 21.8 },
        },
        compute: ComputeCosts {
            full_f32: distance(4.0, 0.1),
            full_f16: distance(4.0, 0.2),
            full_u8: distance(4.0, 0.05),
            codes: distance(10.0, 0.4),
        },
        local: Some(LocalCosts {
            alpha_flat: 1.5,
            hops_a: 3.0,
            hops_b: 2.0,
            beta_scan: 1.4,
            lists_a: 2.0,
            lists_b: -2.0,
        }),
    }
}

/// An index and the folder it lives in.
pub struct Built {
    pub dir: TempDir,
    pub index: Index,
    pub set: Set,
}

impl Built {
    pub fn new(set: Set, options: &BuildOptions) -> Built {
        let dir = tempfile::tempdir().unwrap();
        build(&set.reader(), dir.path(), options, &Quiet).unwrap();
        let index = Index::open(dir.path(), OpenOptions::default()).unwrap();
        Built { dir, index, set }
    }

    /// The file of blocks.
    pub fn blocks(&self) -> Arc<Vec<u8>> {
        Arc::new(std::fs::read(blocks_path(self.dir.path())).unwrap())
    }
}

pub fn blocks_path(folder: &Path) -> std::path::PathBuf {
    folder.join("v1-blocks.bin")
}

/// A float index that most tests share: 3000 rows of 24 components, l2.
pub fn graph_set() -> Set {
    Set::new(DType::F32, 24, &clustered(3000, 24, 12, 1))
}

pub fn ids(found: &[stratann_core::query::Hit]) -> Vec<u64> {
    found.iter().map(|hit| hit.external_id).collect()
}

/// The external id of each row of a disk-graph.
pub fn row_ids(built: &Built) -> Vec<u64> {
    let view = on_disk(&built.index.view());
    let (blocks, rows) = (built.blocks(), built.set.len() as u32);
    let params = Params { width: 8, approach_width: 8, ..Params::disk_graph(10, 10) };
    let params = with_graph(params, |own| own.scan = true);
    // Each row alone is the only result of a scan.
    let of = |row: u32| {
        let sieve = Sieve::from_sorted(rows, &[row]).unwrap();
        let view = with_sieve(&view, &sieve);
        let state = run_plain(&view, &blocks, built.set.row(0), params, Budget::default(), 1);
        assert_eq!(state.stats().reads, 1);
        ids(state.results())[0]
    };
    (0..rows).map(of).collect()
}

pub fn with_sieve<'a>(view: &IndexView<'a>, sieve: &'a Sieve) -> IndexView<'a> {
    let mut view = *view;
    view.base.sieve = Some(sieve);
    view
}

pub fn on_disk<'a>(view: &IndexView<'a>) -> IndexView<'a> {
    let mut view = *view;
    let KindView::DiskGraph(own) = &mut view.kind else { panic!("not disk-graph") };
    own.resident = None;
    view
}

pub fn queries(count: usize, dim: usize) -> Set {
    Set::new(DType::F32, dim, &clustered(count, dim, 12, 2))
}

/// The ids of the k nearest rows, by definition and in double precision.
pub fn nearest(set: &Set, metric: Metric, query: &[u8], k: usize, skip: impl Fn(usize) -> bool) -> Vec<u64> {
    let q = wide(set.shape.dtype, query);
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    let mut all: Vec<(f64, u64)> = (0..set.len())
        .filter(|&i| !skip(i))
        .map(|i| {
            let row = set.wide(i);
            let distance = match metric {
                Metric::L2 => q.iter().zip(&row).map(|(x, y)| (x - y) * (x - y)).sum(),
                Metric::Ip => -dot(&q, &row),
                Metric::Cosine => 1.0 - dot(&q, &row) / (dot(&q, &q) * dot(&row, &row)).sqrt(),
            };
            (distance, i as u64)
        })
        .collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    all.truncate(k);
    all.into_iter().map(|a| a.1).collect()
}

/// Number of members of `truth` that are in `found`.
pub fn hits(found: &[u64], truth: &[u64]) -> usize {
    truth.iter().filter(|t| found.contains(t)).count()
}

/// Runs one query to its end with blocks that lie in memory, in an order of arrival drawn from `seed`. `between` sees
/// the state after every step, with what it asked for taken out already, and may put another in its place.
pub fn run(
    view: &IndexView<'_>,
    blocks: &[u8],
    query: &[u8],
    mut state: QueryState,
    seed: u64,
    mut between: impl FnMut(QueryState, &mut Scratch, &[(Tag, u32)]) -> QueryState,
) -> QueryState {
    let mut scratch = Scratch::default();
    scratch.prepare(view, query);
    let mut under_way: Vec<(Tag, Read)> = Vec::new();
    let mut arrived: Vec<(Tag, Read)> = Vec::new();
    for round in 0.. {
        assert!(round < 200_000, "the query does not end");
        let arrivals: Vec<Arrival<'_>> = arrived
            .iter()
            .map(|(tag, read)| Arrival { tag: *tag, what: arrival(view, blocks, read) })
            .collect();
        let mut step = state.step(view, &mut scratch, &arrivals);
        loop {
            let Some(tag) = state.code_wants().next() else { break };
            let ranking = scratch.rank_codes(view);
            step =
                state.step(view, &mut scratch, &[Arrival { tag, what: Arrived::Ranked(ranking.ranked()) }]);
        }
        if step == Step::Done {
            break;
        }
        let asked: Vec<(Tag, Read)> = wanted(&state);
        under_way.extend(&asked);
        assert_eq!(under_way.len(), state.pending());
        // A scan of many codes ends a step before it needs a read.
        let scans_codes =
            state.params().kind.disk_graph().is_some_and(|own| own.sieving.code_scan || own.sieving.to_codes);
        let yields = scans_codes || view.kind.disk_graph().is_some_and(|own| own.resident.is_some());
        assert!(!under_way.is_empty() || yields, "a query that waits for nothing");
        let units: Vec<(Tag, u32)> = asked.iter().map(|(tag, read)| (*tag, read.unit())).collect();
        state = between(state, &mut scratch, &units);
        shuffle(&mut under_way, seed, round);
        let take = match state.params().mode {
            Mode::Barrier => under_way.len(),
            Mode::Eager if under_way.is_empty() => 0,
            Mode::Eager => 1 + hash(seed, 3, round) as usize % under_way.len(),
        };
        arrived = under_way.drain(..take).collect();
    }
    state
}

/// The reads that the last step asked for.
pub fn wanted(state: &QueryState) -> Vec<(Tag, Read)> {
    state.fetches().map(|(tag, _)| (tag, state.read_of(tag).expect("pending"))).collect()
}

/// Arrival of a read of a file that is in memory.
pub fn arrival<'a>(view: &IndexView<'_>, file: &'a [u8], read: &Read) -> Arrived<'a> {
    let Some(bytes) = file.get(read.at.offset as usize..read.at.end() as usize) else {
        return Arrived::Lost(Loss::Short);
    };
    match view.check_read(read, bytes) {
        Ok(()) => Arrived::Bytes(bytes),
        Err(loss) => Arrived::Lost(loss),
    }
}

/// The same parameters for the kind of a view: `flat` has none of its own.
pub fn fitted(view: &IndexView<'_>, params: Params) -> Params {
    match view.kind {
        KindView::Flat(_) => Params { kind: Params::flat(1).kind, ..params },
        _ => params,
    }
}

/// Parameters of a `disk-graph` with some of its own changed.
pub fn with_graph(mut params: Params, set: impl FnOnce(&mut disk_graph::Params)) -> Params {
    let KindParams::DiskGraph(own) = &mut params.kind else { panic!("not disk-graph") };
    set(own);
    params
}

/// Parameters of a `hybrid-ivf` with some of its own changed.
pub fn with_lists(mut params: Params, set: impl FnOnce(&mut hybrid_ivf::Params)) -> Params {
    let KindParams::HybridIvf(own) = &mut params.kind else { panic!("not hybrid-ivf") };
    set(own);
    params
}

fn shuffle<T>(items: &mut [T], seed: u64, round: u64) {
    for i in (1..items.len()).rev() {
        items.swap(i, hash(seed, 1000 + round, i as u64) as usize % (i + 1));
    }
}

/// [`run`] with nothing in between.
pub fn run_plain(
    view: &IndexView<'_>,
    blocks: &[u8],
    query: &[u8],
    params: Params,
    budget: Budget,
    seed: u64,
) -> QueryState {
    run(view, blocks, query, QueryState::new(fitted(view, params), budget), seed, |state, _, _| state)
}

/// Interrupts after so many questions whether to.
pub struct Impatient {
    pub asked: AtomicU64,
    pub patience: u64,
}

impl Progress for Impatient {
    fn stage(&self, _: &str, _: u64, _: &str) {}
    fn advance(&self, _: u64) {}
    fn note(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed) > self.patience
    }
}
