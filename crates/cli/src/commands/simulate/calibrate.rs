//! What work costs on this machine: a second or two of real searches and real reads.
//!
//! Searches report how long routing (tables, then the head graph) and stepping took, and the process how much processor time. Tables are
//! timed alone; what routing takes beyond them, over its comparisons, is the price of a comparison; what steps take beyond theirs is the
//! price of a step; and what the process spent beyond both, over its reads, is the price of a read.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use serde::Serialize;
use stratann_core::peer::message::{Message, QueryId, decode};
use stratann_core::query::{Budget, MAX_SEARCH_LIST, Params, QueryState, Scratch, wire};
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

/// Queries that are timed.
const SAMPLE: usize = 1000;
/// Rounds of what is timed in memory; the fastest counts.
const ROUNDS: usize = 3;
const MESSAGES: u32 = 2000;
/// Queries of the search that the model is compared with, at least.
const COMPARED: usize = 4000;

/// Measures all that is not given.
pub(super) fn measure(
    index: &Index,
    rows: &[u8],
    params: Params,
    args: &CostArgs,
    progress: &dyn Progress,
) -> Result<Prices> {
    progress.stage("measuring what work costs", 4, "steps");
    let size = index.view().block.vector_bytes;
    let rows = &rows[..rows.len().min(SAMPLE * size)];
    let cores = options::all_cores();
    let threads = args.threads.unwrap_or(cores);
    let mut walks = Vec::new();
    for list in [params.search_list, params.search_list.saturating_mul(2).min(MAX_SEARCH_LIST)] {
        let effort = Effort::List(list, None);
        let options = SearchOptions {
            k: params.k as usize,
            effort,
            width: Width::Fixed(1),
            threads: threads.min(cores),
            ..SearchOptions::default()
        };
        let answers = index.search(rows, &options, &Unheard(progress))?;
        let heads = Heads::time(index, rows, answers.params);
        walks.push((answers, heads));
        progress.advance(1);
    }
    let full_ns = time_full(index, rows);
    let message_ns = rows.get(..size).map_or(0, |vector| time_messages(index, vector, params));
    progress.advance(1);
    let (disk_iops, disk_latency_us) = disk(index, args)?;
    progress.advance(1);
    let (network_latency_us, network_gbps) = network(args);
    let work = solve(&walks, full_ns);
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

/// Tables and head graphs of all queries, one after another.
struct Heads {
    prepare_ns: f64,
    walk_ns: f64,
    comparisons: u64,
}

impl Heads {
    fn time(index: &Index, rows: &[u8], params: Params) -> Heads {
        let view = index.view();
        let mut best = Heads { prepare_ns: f64::INFINITY, walk_ns: f64::INFINITY, comparisons: 0 };
        let mut scratch = Scratch::default();
        for _ in 0..ROUNDS {
            let (mut prepare_ns, mut walk_ns, mut comparisons) = (0.0, 0.0, 0);
            for vector in rows.chunks_exact(view.block.vector_bytes) {
                let mut state = QueryState::new(params, Budget::default());
                let started = Instant::now();
                scratch.prepare(&view, vector);
                let prepared = Instant::now();
                state.step(&view, &mut scratch, &[]);
                walk_ns += prepared.elapsed().as_nanos() as f64;
                prepare_ns += (prepared - started).as_nanos() as f64;
                comparisons += state.stats().code_comparisons;
            }
            best.prepare_ns = best.prepare_ns.min(prepare_ns);
            best.walk_ns = best.walk_ns.min(walk_ns);
            best.comparisons = comparisons;
        }
        best
    }
}

/// Nanoseconds of each kind of work.
struct Solved {
    prepare_ns: f64,
    code_ns: f64,
    step_ns: f64,
    read_ns: f64,
}

fn solve(walks: &[(Answers, Heads)], full_ns: f64) -> Solved {
    let sum = |of: &dyn Fn(&Answers, &Heads) -> f64| walks.iter().map(|(a, h)| of(a, h)).sum::<f64>();
    let per = |a: f64, b: f64| if b > 0.0 { (a / b).max(0.0) } else { 0.0 };
    let queries = sum(&|a, _| a.latency_ns.len() as f64);
    let prepare_ns = per(sum(&|_, h| h.prepare_ns), queries);
    let head = sum(&|_, h| h.comparisons as f64);
    let routed = sum(&|a, _| a.times.route as f64);
    // Under load caches are shared with other queries; where the clock says less than alone, it was disturbed.
    let alone = per(sum(&|_, h| h.walk_ns), head);
    let mut code_ns = per(routed - prepare_ns * queries, head).max(alone);
    let codes = sum(&|a, h| a.stats.code_comparisons as f64 - h.comparisons as f64);
    let fulls = sum(&|a, _| a.stats.full_comparisons as f64);
    let verified = sum(&|a, _| a.times.verify as f64) - fulls * full_ns;
    let hops = sum(&|a, _| a.stats.hops as f64);
    let left = verified - codes * code_ns;
    if left < 0.0 {
        // Comparisons of the walk are cheaper than those of the head graph: they make up nearly all of the work.
        code_ns = per(verified, codes);
    }
    let cpu_ns = sum(&|a, _| 1000.0 * a.cpu_us as f64);
    let stepped = routed + sum(&|a, _| a.times.verify as f64);
    let reads = sum(&|a, _| a.stats.reads as f64);
    Solved { prepare_ns, code_ns, step_ns: per(left, hops), read_ns: per(cpu_ns - stepped, reads) }
}

/// Nanoseconds of an exact distance, rows in cache.
fn time_full(index: &Index, rows: &[u8]) -> f64 {
    let view = index.view();
    let size = view.block.vector_bytes;
    let mut scratch = Scratch::default();
    let rows = &rows[..rows.len().min(64 * size)];
    let count = rows.len() / size;
    let (norms, mut out) = (vec![1.0; count], Vec::new());
    let mut best = f64::INFINITY;
    for vector in rows.chunks_exact(size).take(ROUNDS) {
        scratch.prepare(&view, vector);
        let started = Instant::now();
        for _ in 0..64 {
            scratch.exact.distances(rows, &norms, &mut out);
        }
        best = best.min(started.elapsed().as_nanos() as f64 / (64 * count) as f64);
    }
    if best.is_finite() { best } else { 0.0 }
}

/// Nanoseconds that one side spends on a message that hands a query over: half of encoding it, a loopback connection, and decoding it.
/// Without a loopback device: without it.
fn time_messages(index: &Index, vector: &[u8], params: Params) -> u64 {
    let view = index.view();
    let (mut scratch, mut state) = (Scratch::default(), QueryState::new(params, Budget::default()));
    scratch.prepare(&view, vector);
    state.step(&view, &mut scratch, &[]);
    let mut wire_pair = loopback().ok();
    let (mut bytes, mut frame) = (Vec::new(), Vec::new());
    let query = QueryId { origin: 0, incarnation: 0, number: 0 };
    let started = Instant::now();
    for _ in 0..MESSAGES {
        bytes.clear();
        frame.clear();
        wire::encode(&state, wire::Carry::Ids, &mut bytes);
        Message::Baton { query, attempt: 0, visited: 1, left_us: 1, vector: &[], state: &bytes }
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

/// What was measured, or foretold, of one server.
#[derive(Clone, Debug, Serialize)]
pub(super) struct OneServer {
    pub(super) qps: f64,
    pub(super) latency_us: Latency,
    pub(super) cpu_us: f64,
}

/// The model beside the machine.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Comparison {
    pub(super) real: OneServer,
    pub(super) simulated: OneServer,
    /// Simulated over real, less 1.
    pub(super) qps_error: f64,
}

/// Searches for real, three times; the run with the middle rate counts.
pub(super) fn search(
    index: &Index,
    rows: &[u8],
    options: &SearchOptions,
    progress: &dyn Progress,
) -> Result<OneServer> {
    let size = index.view().block.vector_bytes;
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
