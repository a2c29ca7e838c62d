//! Measures the costs of work on this machine: a second or two of real searches and real reads.
//!
//! Queries are run one by one over blocks in memory, several times; the fastest time of each step counts, because other
//! programs rarely disturb it. Building the tables gives the cost of preparing a query; the head graph's time over its
//! comparisons gives the cost of a comparison; the rest of the steps gives the cost of a step. Then real searches with
//! two beams follow: the CPU time beyond all this, over its reads, is the cost of a read. So the model spends as much
//! CPU time as the process did, however it is split.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use serde::Serialize;
use stratann_core::peer::Run;
use stratann_core::peer::message::{Message, QueryId, decode};
use stratann_core::query::{
    self, Arrival, Arrived, Budget, Extent, Loss, Params, QueryState, QueryStats, Scratch, Step, Tag, wire,
};
use stratann_engine::driver::Width;
use stratann_engine::index::Index;
use stratann_engine::search::{Answers, Effort, Latency, SearchOptions};
use stratann_engine::tier::IoChoice;
use stratann_engine::{Progress, Result, doctor};

use super::costs::{CostArgs, Prices, network};
use crate::options;

/// Searches that count as one step of a stage; an interruption still counts.
struct Unheard<'a>(&'a dyn Progress);

impl Progress for Unheard<'_> {
    fn stage(&self, _: &str, _: u64, _: &str) {}
    fn advance(&self, _: u64) {}
    fn note(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        self.0.interrupted()
    }
}

/// Queries that are searched for, and those of them that are run one by one.
const SAMPLE: usize = 1000;
const WALKED: usize = 100;
/// Rounds of timing in memory; the fastest counts.
const ROUNDS: usize = 3;
const MESSAGES: u32 = 2000;
/// Least queries of the search that the model is compared with.
const COMPARED: usize = 4000;

/// Measures all costs that are not given.
pub(super) fn measure(
    index: &Index,
    rows: &[u8],
    params: Params,
    args: &CostArgs,
    progress: &dyn Progress,
) -> Result<Prices> {
    progress.stage("measuring costs of work", 4, "steps");
    let size = index.row_bytes();
    let rows = &rows[..rows.len().min(SAMPLE * size)];
    let cores = options::all_cores();
    let threads = args.threads.unwrap_or(cores);
    let mut searches = Vec::new();
    for times in [1, 2] {
        let effort = Effort::times(&params, times);
        let options = SearchOptions {
            k: params.k as usize,
            effort,
            width: Width::Fixed(1),
            threads: threads.min(cores),
            ..SearchOptions::default()
        };
        searches.push(index.search(rows, &options, &Unheard(progress))?);
        progress.advance(1);
    }
    let full_ns = time_full(index, rows);
    let message_ns = rows.get(..size).map_or(0, |vector| time_messages(index, vector, params));
    progress.advance(1);
    let (disk_iops, disk_latency_us) = disk(index, args)?;
    progress.advance(1);
    let (network_latency_us, network_gbps) = network(args);
    let work = solve(&Walks::time(index, rows, params), full_ns, &searches);
    Ok(Prices {
        threads,
        prepare_ns: work.prepare_ns.round() as u64,
        step_ns: work.step_ns.round() as u64,
        read_ns: work.read_ns.round() as u64,
        code_comparison_ps: (1000.0 * work.code_ns).round() as u64,
        full_comparison_ps: (1000.0 * full_ns).round() as u64,
        message_ns,
        disk_iops: disk_iops.round(),
        disk_latency_us: (10.0 * disk_latency_us).round() / 10.0,
        network_latency_us,
        network_gbps,
    })
}

fn disk(index: &Index, args: &CostArgs) -> Result<(f64, f64)> {
    if let (Some(iops), Some(latency_us)) = (args.disk_iops, args.disk_latency_us) {
        return Ok((iops, latency_us));
    }
    let probed = doctor::probe_disk(index.folder(), IoChoice::Auto).map_err(|e| stratann_engine::Error {
        message: format!("{}; or give --disk-iops and --disk-latency-us", e.message),
        ..e
    })?;
    Ok((probed.iops, probed.latency_us))
}

/// Times of queries that were run one after another, nanoseconds, and their counters.
#[derive(Default)]
struct Walks {
    queries: u64,
    prepare_ns: u64,
    head_ns: u64,
    steps_ns: u64,
    head_comparisons: u64,
    stats: QueryStats,
}

impl Walks {
    fn time(index: &Index, rows: &[u8], params: Params) -> Walks {
        let mut sum = Walks::default();
        for vector in rows.chunks_exact(index.row_bytes()).take(WALKED) {
            let (mut held, mut best, mut last) = (BTreeMap::new(), Vec::new(), (0, QueryStats::default()));
            for _ in 0..ROUNDS {
                let mut taken_ns = Vec::new();
                last = walk(index, vector, params, &mut held, &mut taken_ns);
                best.resize(taken_ns.len(), u64::MAX);
                best.iter_mut().zip(&taken_ns).for_each(|(best, &ns)| *best = ns.min(*best));
            }
            let [prepare_ns, head_ns, steps_ns @ ..] = best.as_slice() else { continue };
            sum.queries += 1;
            sum.prepare_ns += prepare_ns;
            sum.head_ns += head_ns;
            sum.steps_ns += steps_ns.iter().sum::<u64>();
            sum.head_comparisons += last.0;
            sum.stats.add(&last.1);
        }
        sum
    }
}

/// Runs one query over blocks that are read once and kept. Adds the times of its tables and of each step to `taken_ns`.
/// Returns the comparisons of the first step, and all counters.
fn walk(
    index: &Index,
    vector: &[u8],
    params: Params,
    held: &mut BTreeMap<Extent, Option<Vec<u8>>>,
    taken_ns: &mut Vec<u64>,
) -> (u64, QueryStats) {
    let view = index.view();
    let (mut scratch, mut state) = (Scratch::default(), QueryState::new(params, Budget::default()));
    let started = Instant::now();
    scratch.prepare(&view, vector);
    taken_ns.push(started.elapsed().as_nanos() as u64);
    let (mut came, mut first): (Vec<(Tag, Extent)>, _) = (Vec::new(), None);
    loop {
        let bytes = |at: &Extent| held.get(at).and_then(Option::as_deref);
        let arrivals: Vec<Arrival<'_>> = came
            .iter()
            .map(|(tag, at)| Arrival {
                tag: *tag,
                what: bytes(at).map_or(Arrived::Lost(Loss::Failed), Arrived::Bytes),
            })
            .collect();
        let started = Instant::now();
        let step = state.step(&view, &mut scratch, &arrivals);
        taken_ns.push(started.elapsed().as_nanos() as u64);
        let first = *first.get_or_insert(state.stats().code_comparisons);
        if step != Step::Wait || state.wants().is_empty() {
            return (first, *state.stats());
        }
        came = state.fetches().collect();
        for &(tag, at) in &came {
            held.entry(at).or_insert_with(|| read(index, &state.read_of(tag)?));
        }
    }
}

/// The verified bytes of a read; `None` when there are none.
fn read(index: &Index, read: &query::Read) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    index.read_extent(read.at, &mut bytes).and_then(|()| index.view().verify(read, &bytes)).ok()?;
    Some(bytes)
}

/// Nanoseconds of each kind of work.
struct Solved {
    prepare_ns: f64,
    code_ns: f64,
    step_ns: f64,
    read_ns: f64,
}

fn solve(walks: &Walks, full_ns: f64, searches: &[Answers]) -> Solved {
    let per = |a: f64, b: u64| if b > 0 { (a / b as f64).max(0.0) } else { 0.0 };
    let prepare_ns = per(walks.prepare_ns as f64, walks.queries);
    let mut code_ns = per(walks.head_ns as f64, walks.head_comparisons);
    let codes = walks.stats.code_comparisons.saturating_sub(walks.head_comparisons);
    let stepped_ns = walks.steps_ns as f64 - walks.stats.full_comparisons as f64 * full_ns;
    let left_ns = stepped_ns - codes as f64 * code_ns;
    if left_ns < 0.0 {
        // Comparisons of the graph search are cheaper than those of the head graph, and are nearly all.
        code_ns = per(stepped_ns, codes);
    }
    let step_ns = per(left_ns, walks.stats.hops);
    let (mut beyond_ns, mut reads) = (0.0, 0);
    for search in searches {
        let (queries, stats) = (search.latency_ns.len() as f64, &search.stats);
        beyond_ns += 1000.0 * search.cpu_us as f64
            - queries * prepare_ns
            - stats.code_comparisons as f64 * code_ns
            - stats.full_comparisons as f64 * full_ns
            - (stats.hops as f64 + queries) * step_ns;
        reads += stats.reads;
    }
    Solved { prepare_ns, code_ns, step_ns, read_ns: per(beyond_ns, reads) }
}

/// Measures an exact distance with rows in cache, nanoseconds.
fn time_full(index: &Index, rows: &[u8]) -> f64 {
    let view = index.view();
    let size = index.row_bytes();
    let mut scratch = Scratch::default();
    let rows = &rows[..rows.len().min(64 * size)];
    let count = rows.len() / size;
    let (norms, mut out) = (vec![1.0; count], Vec::new());
    let mut best = f64::INFINITY;
    for vector in rows.chunks_exact(size).take(ROUNDS) {
        scratch.prepare(&view, vector);
        let started = Instant::now();
        for _ in 0..64 {
            scratch.exact().distances(rows, &norms, &mut out);
        }
        best = best.min(started.elapsed().as_nanos() as f64 / (64 * count) as f64);
    }
    if best.is_finite() { best } else { 0.0 }
}

/// Measures one side's time of a hand-over message, nanoseconds: half of encoding it, a loopback connection, and
/// decoding it. Without a loopback device: without the connection.
fn time_messages(index: &Index, vector: &[u8], params: Params) -> u64 {
    let view = index.view();
    let (mut scratch, mut state) = (Scratch::default(), QueryState::new(params, Budget::default()));
    scratch.prepare(&view, vector);
    state.step(&view, &mut scratch, &[]);
    let mut wire_pair = loopback().ok();
    let (mut bytes, mut frame) = (Vec::new(), Vec::new());
    let carry = index.carry(None).unwrap_or(wire::Carry::Distances);
    let run = Run { query: QueryId { origin: 0, incarnation: 0, number: 0 }, attempt: 0, job: None };
    let started = Instant::now();
    for _ in 0..MESSAGES {
        bytes.clear();
        frame.clear();
        wire::encode(&state, carry, &mut bytes);
        Message::Baton { run, visited: 1, left_us: 1, vector: &[][..], state: &bytes[..] }
            .encode(0, 0, &mut frame);
        if let Some((near, far)) = &mut wire_pair
            && near.write_all(&frame).and_then(|()| far.read_exact(&mut frame)).is_err()
        {
            break;
        }
        if let Ok((Message::Baton { state: came, .. }, _)) = decode(&frame, 0) {
            std::hint::black_box(wire::decode(came).is_ok());
        }
    }
    started.elapsed().as_nanos() as u64 / u64::from(2 * MESSAGES)
}

fn loopback() -> std::io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    near.set_nodelay(true)?;
    Ok((near, listener.accept()?.0))
}

/// Measured or predicted figures of one server.
#[derive(Clone, Debug, Serialize)]
pub(super) struct OneServer {
    pub(super) qps: f64,
    pub(super) latency_us: Latency,
    pub(super) cpu_us: f64,
}

/// Comparison of the model with the machine.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Comparison {
    pub(super) real: OneServer,
    pub(super) simulated: OneServer,
    /// Simulated over real, less 1.
    pub(super) qps_error: f64,
}

/// Searches for real, three times; the run with the median rate counts.
pub(super) fn search(
    index: &Index,
    rows: &[u8],
    options: &SearchOptions,
    progress: &dyn Progress,
) -> Result<OneServer> {
    let size = index.row_bytes();
    let many = rows.repeat(COMPARED.div_ceil((rows.len() / size).max(1)));
    progress.stage("searching, to compare", ROUNDS as u64, "rounds");
    let mut runs = Vec::new();
    for _ in 0..ROUNDS {
        let answers = index.search(&many, options, &Unheard(progress))?;
        let queries = answers.latency_ns.len() as f64;
        runs.push(OneServer {
            qps: queries / answers.seconds.max(1e-9),
            latency_us: Latency::of(&answers.latency_ns),
            cpu_us: answers.cpu_us as f64 / queries.max(1.0),
        });
        progress.advance(1);
    }
    runs.sort_by(|a, b| a.qps.total_cmp(&b.qps));
    Ok(runs.swap_remove(ROUNDS / 2))
}
