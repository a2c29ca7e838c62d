//! Many queries over an open index: threads, parameters, and what it cost.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use serde::Serialize;
use stratann_core::query::{
    Bounds, Budget, MAX_K, MAX_PROBES, MAX_SEARCH_LIST, Mode, Order, Outcome, Params, QueryState, QueryStats,
    Step,
};

use crate::budget::{self, Account};
use crate::driver::{Admission, Driver, DriverOptions, Queries, Times, Width, allowance, failure};
use crate::index::Index;
use crate::kinds::hybrid_ivf::learning::Learning;
use crate::kinds::snapshot::Snapshot;
use crate::recall::curve::{self, clusters_params};
use crate::tier::{self, IoChoice};
use crate::{Error, Progress, Result};

mod memory;

pub use memory::{Reserve, reserve, usual_reserve};

/// How hard to look.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effort {
    /// Mean recall@k wanted; the index' curve picks the parameters.
    Recall(f64),
    /// Length of the beam, and the slack of the adaptive stop (`None` turns it off).
    List(u32, Option<f32>),
    /// Clusters visited at most (nprobe), the slack of bounds (`None` for bounds that hold), and the share of fruitless clusters in a row that end the
    /// visits (`None` for all).
    Clusters(u32, Option<f32>, Option<f32>),
}

/// Options of a search.
#[derive(Clone, Copy, Debug)]
pub struct SearchOptions {
    /// Results wanted per query.
    pub k: usize,
    /// How hard to look.
    pub effort: Effort,
    /// When what arrived is used.
    pub mode: Mode,
    /// Reads in one round.
    pub width: Width,
    /// Queries in flight per thread; `None` picks.
    pub in_flight: Option<usize>,
    /// When the next query is admitted.
    pub admission: Admission,
    /// Threads.
    pub threads: usize,
    /// How blocks are read.
    pub io: IoChoice,
    /// Make equal reads under way once.
    pub merge: bool,
    /// Begin at the head graph's best, or at the medoid.
    pub head: bool,
    /// Use all nodes of a block, or those asked for only.
    pub whole_blocks: bool,
    /// Stop after so many reads in a row that changed nothing; `None` leaves it to the effort, 0 turns it off.
    pub patience: Option<u32>,
    /// Techniques of `hybrid-ivf` that may be switched off.
    pub probe: ProbeSwitches,
}

/// What `hybrid-ivf` does unless told otherwise (OrchANN §5.3).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProbeSwitches {
    /// Which clusters are visited first; `None` for what the index was calibrated with.
    pub order: Option<Order>,
    /// Stop when clusters bring nothing more.
    pub early_stop: bool,
    /// Weigh what fruitless clusters tell by what was to be expected of them.
    pub weighed: bool,
    /// Bounds that discard vectors before they are read.
    pub bounds: Bounds,
    /// Lists that are scanned of a divided cluster; `None` for as many as its plan says.
    pub local_lists: Option<u32>,
    /// Length of the beam in a cluster that is a graph.
    pub local_list: Option<u32>,
    /// Members found by the navigation that speak for their clusters.
    pub votes: Option<u32>,
}

impl Default for ProbeSwitches {
    fn default() -> Self {
        ProbeSwitches {
            order: None,
            weighed: true,
            early_stop: true,
            bounds: Bounds::Both,
            local_lists: None,
            local_list: None,
            votes: None,
        }
    }
}

impl Default for SearchOptions {
    fn default() -> Self {
        SearchOptions {
            k: 10,
            effort: Effort::Recall(0.95),
            mode: Mode::Barrier,
            width: Width::Auto,
            in_flight: None,
            admission: Admission::Fixed,
            threads: 1,
            io: IoChoice::Auto,
            merge: true,
            head: true,
            whole_blocks: true,
            patience: None,
            probe: ProbeSwitches::default(),
        }
    }
}

/// Queries in flight per thread: what keeps the disk's queue long enough. See `decisions/` for the measurement.
pub const IN_FLIGHT: usize = 64;

/// The same of queries that read lists: their reads are longer.
pub const IN_FLIGHT_CLUSTERS: usize = 16;
/// The same where not all codes come into RAM: more of them do, and eight reads under way keep a thread busy.
pub const IN_FLIGHT_TIGHT: usize = 8;

/// Answers to a batch of queries, and their cost.
#[derive(Debug)]
pub struct Answers {
    /// Results per query: k, or the number of rows when that is less.
    pub k: usize,
    /// `queries × k` external ids, closest first.
    pub ids: Vec<u64>,
    /// `queries × k` distances.
    pub distances: Vec<f32>,
    /// Per query, nanoseconds from admission to answer.
    pub latency_ns: Vec<u64>,
    /// Sum over the queries.
    pub stats: QueryStats,
    /// Sum over the queries: where their time went.
    pub times: Times,
    /// Queries that have no answer, and why. Their rows hold id `u64::MAX` and distance infinity.
    pub failed: Vec<(usize, String)>,
    /// Queries with fewer than k results, because the graph led the search to no more. The rest of their rows holds id `u64::MAX`.
    pub short: usize,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Processor time of the process meanwhile, microseconds.
    pub cpu_us: u64,
    /// The parameters that were used.
    pub params: Params,
    /// How blocks were read.
    pub io_backend: String,
    /// Memory while searching, by component.
    pub account: Account,
}

/// Percentiles of a set of latencies, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl Latency {
    /// Of nanoseconds, in any order.
    pub fn of(latency_ns: &[u64]) -> Latency {
        let mut sorted = latency_ns.to_vec();
        sorted.sort_unstable();
        let at = |share: f64| {
            let rank = (share * sorted.len() as f64).ceil() as usize;
            sorted.get(rank.saturating_sub(1)).map_or(0.0, |&ns| ns as f64 / 1000.0)
        };
        let mean = sorted.iter().sum::<u64>() as f64 / 1000.0 / sorted.len().max(1) as f64;
        Latency { mean, p50: at(0.5), p95: at(0.95), p99: at(0.99) }
    }
}

impl Index {
    /// The parameters that `options` come to on this index.
    ///
    /// # Errors
    /// Values out of range, a recall that the curve does not reach, an index without a curve.
    pub fn params(&self, options: &SearchOptions) -> Result<Params> {
        if options.k == 0 || options.k > MAX_K as usize {
            return Err(Error::bad_input(format!("k is {}; ask for 1 to {MAX_K} results", options.k)));
        }
        let k = options.k.min(self.manifest.rows as usize) as u32;
        let mut params = match options.effort {
            Effort::List(list, slack) => {
                if list == 0 || list > MAX_SEARCH_LIST {
                    return Err(Error::bad_input(format!(
                        "search list is {list}; use {k} to {MAX_SEARCH_LIST}"
                    )));
                }
                Params { stop_slack: slack.unwrap_or(f32::INFINITY), ..Params::new(k, list) }
            }
            Effort::Clusters(clusters, slack, early_stop) => {
                if clusters == 0 || clusters > MAX_PROBES {
                    return Err(Error::bad_input(format!("--nprobe is {clusters}; use 1 to {MAX_PROBES}")));
                }
                clusters_params(k, clusters, slack, early_stop)
            }
            Effort::Recall(recall) => self.params_for_recall(k, recall)?,
        };
        self.check_effort(options)?;
        self.switch(&mut params, options)?;
        if params.stop_slack.is_nan() || params.stop_slack < -16.0 {
            return Err(Error::bad_input(
                "the slack of the adaptive stop is a number of standard errors, from -16 up",
            ));
        }
        params.mode = options.mode;
        params.head = options.head;
        params.whole_blocks = options.whole_blocks;
        if let Some(patience) = options.patience {
            params.patience = patience;
        }
        Ok(params)
    }

    /// Refuses a beam where there are clusters, and the other way round.
    fn check_effort(&self, options: &SearchOptions) -> Result<()> {
        let (clusters, kind) = (self.clusters.is_some(), &self.manifest.kind);
        match options.effort {
            Effort::List(..) if clusters => Err(Error::bad_input(format!(
                "--search-list is the beam of a graph, this index is a {kind}; give --nprobe or --recall"
            ))),
            Effort::Clusters(..) if !clusters => Err(Error::bad_input(format!(
                "--nprobe is a number of clusters, this index is a {kind}; give --search-list or --recall"
            ))),
            _ => Ok(()),
        }
    }

    fn switch(&self, params: &mut Params, options: &SearchOptions) -> Result<()> {
        let (probe, switches) = (&mut params.probe, &options.probe);
        probe.order = switches.order.unwrap_or_else(|| curve::order(&self.manifest.curves, params.k));
        probe.weighed = switches.weighed;
        probe.bounds = switches.bounds;
        if !switches.early_stop {
            probe.early_stop = f32::INFINITY;
        }
        if let Some(lists) = switches.local_lists {
            probe.local_lists = lists.max(1);
        }
        if let Some(list) = switches.local_list {
            probe.local_list = list;
        }
        if let Some(votes) = switches.votes {
            probe.votes = votes;
        }
        if probe.is_valid() {
            Ok(())
        } else {
            Err(Error::bad_input(format!(
                "--early-stop is a share above 0, --votes is 1 to {MAX_PROBES}, --local-list is 1 to {MAX_SEARCH_LIST}; check them"
            )))
        }
    }

    fn params_for_recall(&self, k: u32, recall: f64) -> Result<Params> {
        if !(recall > 0.0 && recall <= 1.0) {
            return Err(Error::bad_input(format!("recall is {recall}; give a share above 0 and up to 1")));
        }
        if self.graph.is_none() && self.clusters.is_none() {
            return Ok(Params::new(k, k));
        }
        let instead = if self.clusters.is_some() { "--nprobe" } else { "--search-list" };
        match curve::choose(&self.manifest.curves, k, recall) {
            Some(Ok(point)) if self.clusters.is_some() => Ok(point.cluster_params(k)),
            Some(Ok(point)) => Ok(point.params(k)),
            Some(Err(best)) => Err(Error::bad_input(format!(
                "recall {recall} is beyond this index' curve, which ends at {best:.4}; ask for less, or give {instead}"
            ))),
            None => Err(Error::bad_input(format!(
                "this index has no recall curve; run `stratann tune`, or give {instead}"
            ))),
        }
    }

    pub(crate) fn in_flight(&self, options: &SearchOptions) -> usize {
        let usual = match (&self.graph, &self.clusters) {
            (Some(_), _) => IN_FLIGHT,
            (None, Some(_)) if self.is_tight => IN_FLIGHT_TIGHT,
            (None, Some(_)) => IN_FLIGHT_CLUSTERS,
            (None, None) => 1,
        };
        let wanted = options.in_flight.unwrap_or(usual);
        if options.admission == Admission::One { 1 } else { wanted.clamp(1, 4096) }
    }

    /// No more threads, and no more room for queries on each, than `count` queries can use: one alone should not wait for a ring of hundreds.
    fn fitted(&self, options: &SearchOptions, count: usize) -> SearchOptions {
        let threads = options.threads.clamp(1, 1024).min(count.max(1));
        let in_flight = self.in_flight(options).min(count.div_ceil(threads).max(1));
        SearchOptions { threads, in_flight: Some(in_flight), ..*options }
    }

    /// Answers `queries`: rows of `dim` components of the index' element type, as bytes.
    ///
    /// # Errors
    /// Bad options, a budget too small, an interruption, a disk that is gone. A query that fails alone is in [`Answers::failed`].
    pub fn search(
        &self,
        queries: &[u8],
        options: &SearchOptions,
        progress: &dyn Progress,
    ) -> Result<Answers> {
        let params = self.params(options)?;
        self.search_batch(queries, params, &|_| u32::MAX, options, progress, true)
    }

    /// Like [`Index::search`], with given parameters and, for each query, a node that it must not see.
    pub(crate) fn search_each(
        &self,
        queries: &[u8],
        params: Params,
        exclude: &(dyn Fn(usize) -> u32 + Sync),
        options: &SearchOptions,
        progress: &dyn Progress,
    ) -> Result<Answers> {
        self.search_batch(queries, params, exclude, options, progress, false)
    }

    fn search_batch(
        &self,
        queries: &[u8],
        params: Params,
        exclude: &(dyn Fn(usize) -> u32 + Sync),
        options: &SearchOptions,
        progress: &dyn Progress,
        learns: bool,
    ) -> Result<Answers> {
        let count = queries.len() / self.block.vector_bytes;
        let threads = options.threads.clamp(1, 1024);
        let account = self.search_account(&SearchOptions { threads, ..*options }, count);
        let options = &self.fitted(options, count);
        account.check(self.ram_budget, "search this index so")?;
        let mut batch = Batch::new(self, queries, params, exclude, progress, options.threads);
        batch.learning = self.learning.as_ref().filter(|_| learns);
        batch.first_number = batch.learning.map_or(0, |l| if l.is_on() { l.number(count as u64) } else { 0 });
        let (cpu, started) = (budget::process().cpu_us, Instant::now());
        let name = std::thread::scope(|scope| {
            let others = 1..options.threads;
            let batch = &batch;
            let workers: Vec<_> =
                others.map(|number| scope.spawn(move || self.work(batch, options, number))).collect();
            let mut name = self.work(batch, options, 0);
            for worker in workers {
                let ended = worker
                    .join()
                    .map_err(|_| Error::corrupt("a search thread ended unexpectedly; please report it"));
                name = name.and_then(|name| ended.and_then(|other| other.map(|_| name)));
            }
            name
        });
        batch.give_up();
        let name = name?;
        let seconds = started.elapsed().as_secs_f64();
        let cpu_us = budget::process().cpu_us.saturating_sub(cpu);
        if progress.interrupted() {
            return Err(Error::interrupted());
        }
        let io_backend = self.backend_name(name);
        Ok(Answers { seconds, cpu_us, io_backend, account, ..batch.into_answers() })
    }

    fn work(&self, batch: &Batch<'_>, options: &SearchOptions, worker: usize) -> Result<&'static str> {
        let in_flight = self.in_flight(options);
        let depth = (in_flight * self.width_limit(options) as usize).clamp(1, 1024);
        let tier =
            tier::open(&self.blocks_file, depth, self.block.block_bytes, options.io).map_err(|e| Error {
                kind: crate::Kind::Io,
                message: format!("io_uring was asked for but refused: {e}; use --io auto or pread"),
            })?;
        let name = tier.name();
        let driver_options = DriverOptions { in_flight, admission: options.admission, width: options.width };
        let mut share = Share {
            batch,
            worker,
            held: None,
            stats: QueryStats::default(),
            times: Times::default(),
            left_to_tell: 0,
        };
        let shared_reads = options.merge.then_some(&self.shared_reads);
        let ran = Driver::new(self.view(), self.cache.as_ref(), tier, driver_options)
            .sharing(shared_reads)
            .run(&mut share);
        batch.progress.advance(share.left_to_tell);
        let mut sums = batch.sums.lock().unwrap_or_else(|e| e.into_inner());
        sums.0.add(&share.stats);
        sums.1.add(&share.times);
        ran.map(|()| name).map_err(|e| Error::io("reading", &self.blocks_path, &e))
    }
}

/// The queries of one call, and their answers as they come in from all threads.
struct Batch<'a> {
    index: &'a Index,
    learning: Option<&'a Learning>,
    first_number: u64,
    queries: &'a [u8],
    params: Params,
    allowance: Budget,
    exclude: &'a (dyn Fn(usize) -> u32 + Sync),
    progress: &'a dyn Progress,
    threads: usize,
    count: usize,
    next: AtomicUsize,
    stopped: AtomicBool,
    ids: Vec<AtomicU64>,
    distances: Vec<AtomicU32>,
    latency_ns: Vec<AtomicU64>,
    failed: Mutex<Vec<(usize, String)>>,
    short: AtomicUsize,
    sums: Mutex<(QueryStats, Times)>,
}

impl<'a> Batch<'a> {
    fn new(
        index: &'a Index,
        queries: &'a [u8],
        params: Params,
        exclude: &'a (dyn Fn(usize) -> u32 + Sync),
        progress: &'a dyn Progress,
        threads: usize,
    ) -> Batch<'a> {
        let count = queries.len() / index.block.vector_bytes;
        let cells = count * params.k as usize;
        Batch {
            index,
            learning: None,
            first_number: 0,
            queries,
            params,
            allowance: allowance(&index.view()),
            exclude,
            progress,
            threads,
            count,
            next: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
            ids: (0..cells).map(|_| AtomicU64::new(u64::MAX)).collect(),
            distances: (0..cells).map(|_| AtomicU32::new(f32::INFINITY.to_bits())).collect(),
            latency_ns: (0..count).map(|_| AtomicU64::new(0)).collect(),
            failed: Mutex::default(),
            short: AtomicUsize::new(0),
            sums: Mutex::default(),
        }
    }

    fn epoch(&self, number: usize) -> u64 {
        self.learning.map_or(0, |l| if l.is_on() { l.epoch(self.first_number + number as u64) } else { 0 })
    }

    /// Queries that will not run any more are no longer waited for.
    fn give_up(&self) {
        let Some(learning) = self.learning.filter(|l| l.is_on()) else { return };
        for (number, latency) in self.latency_ns.iter().enumerate() {
            if latency.load(Ordering::Relaxed) == 0 {
                learning.ended(0, self.epoch(number), None);
            }
        }
    }

    fn into_answers(self) -> Answers {
        let mut failed = self.failed.into_inner().unwrap_or_else(|e| e.into_inner());
        let (stats, times) = self.sums.into_inner().unwrap_or_else(|e| e.into_inner());
        failed.sort_unstable_by_key(|f| f.0);
        Answers {
            k: self.params.k as usize,
            ids: self.ids.into_iter().map(AtomicU64::into_inner).collect(),
            distances: self.distances.into_iter().map(|d| f32::from_bits(d.into_inner())).collect(),
            latency_ns: self.latency_ns.into_iter().map(AtomicU64::into_inner).collect(),
            stats,
            times,
            failed,
            short: self.short.into_inner(),
            seconds: 0.0,
            cpu_us: 0,
            params: self.params,
            io_backend: String::new(),
            account: Account::default(),
        }
    }
}

/// One thread's share of a batch.
struct Share<'a, 'b> {
    batch: &'a Batch<'b>,
    worker: usize,
    // A number that was taken before the version for it was there.
    held: Option<usize>,
    stats: QueryStats,
    times: Times,
    left_to_tell: u64,
}

const TELL_EVERY: u64 = 256;

impl Queries for Share<'_, '_> {
    fn next(&mut self) -> Option<usize> {
        if self.batch.stopped.load(Ordering::Relaxed) {
            return None;
        }
        let number = self.held.take().unwrap_or_else(|| self.batch.next.fetch_add(1, Ordering::Relaxed));
        if number >= self.batch.count {
            return None;
        }
        if let Some(learning) = self.batch.learning
            && learning.snapshot_for(self.batch.epoch(number)).is_none()
        {
            // Another version is being made: the queries under way go on meanwhile.
            self.held = Some(number);
            return None;
        }
        Some(number)
    }

    fn stays(&self) -> bool {
        self.held.is_some() && !self.batch.stopped.load(Ordering::Relaxed)
    }

    fn may_wait(&mut self, _: bool) -> bool {
        if self.held.is_some() {
            std::thread::yield_now();
        }
        true
    }

    fn snapshot(&mut self, number: usize) -> Option<Snapshot> {
        let learning = self.batch.learning?;
        learning.snapshot_for(self.batch.epoch(number)).map(Snapshot::HybridIvf)
    }

    fn remaining(&self) -> usize {
        self.batch.count.saturating_sub(self.batch.next.load(Ordering::Relaxed)) / self.batch.threads
    }

    fn begin(&mut self, number: usize, (approach_width, width): (u32, u32), state: &mut QueryState) -> &[u8] {
        let batch = self.batch;
        let exclude = (batch.exclude)(number);
        let params = Params { exclude, approach_width, width, ..batch.params };
        state.restart(params, batch.allowance);
        let size = batch.index.block.vector_bytes;
        &batch.queries[number * size..(number + 1) * size]
    }

    fn ended(&mut self, number: usize, _: Step, state: &QueryState, times: Times) {
        let batch = self.batch;
        if let Some(learning) = batch.learning {
            learning.ended(self.worker, batch.epoch(number), Some(state));
        }
        self.stats.add(state.stats());
        self.times.add(&times);
        batch.latency_ns[number].store(times.latency, Ordering::Relaxed);
        let why = match state.outcome() {
            Outcome::OutOfBudget => {
                Some("the query ran out of its allowance of reads; ask for a lower recall".into())
            }
            other => failure(other, &batch.index.blocks_path, batch.index.block.block_bytes),
        };
        if let Some(why) = why {
            batch.failed.lock().unwrap_or_else(|e| e.into_inner()).push((number, why));
        } else {
            if state.results().len() < batch.params.k as usize {
                batch.short.fetch_add(1, Ordering::Relaxed);
            }
            let at = number * batch.params.k as usize;
            for (i, hit) in state.results().iter().enumerate() {
                batch.ids[at + i].store(hit.external_id, Ordering::Relaxed);
                batch.distances[at + i].store(hit.distance.to_bits(), Ordering::Relaxed);
            }
        }
        self.left_to_tell += 1;
        if self.left_to_tell == TELL_EVERY {
            batch.progress.advance(TELL_EVERY);
            self.left_to_tell = 0;
        }
        if batch.progress.interrupted() {
            batch.stopped.store(true, Ordering::Relaxed);
        }
    }
}

/// Share of the true first k ids that were found, over all queries. `truth` has `truth_k >= k` ids per query.
pub fn recall(ids: &[u64], k: usize, truth: &[u64], truth_k: usize) -> f64 {
    if k == 0 || ids.is_empty() {
        return 0.0;
    }
    let wanted = k.min(truth_k);
    let found: usize = ids
        .chunks_exact(k)
        .zip(truth.chunks_exact(truth_k))
        .map(|(ids, truth)| truth[..wanted].iter().filter(|t| ids.contains(t)).count())
        .sum();
    found as f64 / (ids.len() / k * wanted) as f64
}
