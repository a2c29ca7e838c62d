//! Many queries over an open index: threads, parameters, and what it cost.

use std::io;
use std::sync::Mutex;
use std::time::Instant;

use stratann_core::query::{Budget, Params};
use stratann_storage::tier::{self, IoChoice, Tier};
use stratann_storage::{Error, Progress, Result, budget, threads};

use crate::exec::{Admission, BatchLoads, BatchOptions, Driver, DriverOptions, OTHER_THREAD_FAILED, Ring};
use crate::index::Index;
use crate::kinds;
use crate::kinds::known::IN_MEMORY_NODES;

mod account;
mod answers;
mod batch;
pub(crate) mod live;
pub(crate) mod options;
mod params;
mod record;
mod scan;
mod together;
mod traffic;
mod truth;

pub use crate::kinds::answers::ExactCost;
pub use crate::kinds::effort::Effort;
pub use crate::kinds::shares_loads::RecordedVisit;
pub use account::{DOORBELLS, reserve, usual_reserve};
pub use answers::{Answers, Latency, recall};
pub use options::{SearchOptions, mode_of};
use record::Recording;
pub use record::{RecordedBatch, RecordedLoad, RecordedQuery};
pub use together::{INDEXES_MAX, Together};
pub use traffic::{Traffic, TrafficOptions};

pub use crate::index::Reserve;
pub use crate::kinds::IN_FLIGHT;
use batch::{Batch, Share};
use live::LiveBatches;
use scan::{EXACT_SCAN, SCAN_BACKEND};

/// Purpose of a search.
enum Purpose<'a> {
    /// Answers to its queries: the index learns from them.
    Answer,
    /// A measurement of its cost.
    Measure,
    /// A record of its batches.
    Record(&'a Recording),
}

impl Index {
    /// Default budget of a query.
    pub fn query_budget(&self) -> Budget {
        self.view().budget()
    }

    /// Queries in flight per thread.
    pub(crate) fn in_flight(&self, options: &SearchOptions) -> usize {
        if self.base.facts().shares_reads {
            return options.batch_options.batch.div_ceil(options.threads.max(1)).max(1);
        }
        let wanted = options.in_flight.unwrap_or(self.kind.in_flight());
        if options.admission == Admission::One { 1 } else { wanted.clamp(1, 4096) }
    }

    /// Most of `count` queries that a search has in flight at once, on all threads.
    pub fn queries_in_flight(&self, options: &SearchOptions, count: usize) -> usize {
        if let Some(plan) = self.usual_scan(options, count) {
            return plan.pass_queries;
        }
        let fitted = self.fitted(options, count);
        (fitted.threads * self.in_flight(&fitted)).min(count)
    }

    /// No more threads, and no more room for queries on each, than `count` queries can use: one alone should not wait
    /// for a ring of hundreds.
    fn fitted(&self, options: &SearchOptions, count: usize) -> SearchOptions {
        let threads = options.threads.clamp(1, 1024).min(count.max(1));
        let in_flight = self.in_flight(options).min(count.div_ceil(threads).max(1));
        SearchOptions { threads, in_flight: Some(in_flight), ..*options }
    }

    /// Answers `queries`: rows of `dim` components of the index' element type, as bytes.
    ///
    /// # Errors
    /// Bad options, a budget too small, an interruption, a disk that is gone. A query that fails alone is in
    /// [`Answers::failed`].
    pub fn search(
        &self,
        queries: &[u8],
        options: &SearchOptions,
        progress: &dyn Progress,
    ) -> Result<Answers> {
        if !self.base.facts().shares_reads && options.batch_options != BatchOptions::default() {
            return Err(Error::bad_input(format!(
                "--batch, --doorbell, and the baselines naive, no-doorbell and no-overlap are for a {}, and \
                 this index is a {}; leave them out",
                IN_MEMORY_NODES.name(),
                self.base.kind.name()
            )));
        }
        let params = self.params(options)?;
        self.search_batch(queries, params, &|_| u32::MAX, options, progress, Purpose::Answer)
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
        self.search_batch(queries, params, exclude, options, progress, Purpose::Measure)
    }

    fn search_batch(
        &self,
        queries: &[u8],
        params: Params,
        exclude: &(dyn Fn(usize) -> u32 + Sync),
        options: &SearchOptions,
        progress: &dyn Progress,
        purpose: Purpose<'_>,
    ) -> Result<Answers> {
        let count = queries.len() / self.base.row_bytes();
        let threads = options.threads.clamp(1, 1024);
        let options = &self.with_fitting_doorbells(&SearchOptions { threads, ..*options }, count);
        let fits = |options: &SearchOptions| {
            self.ram_budget.is_none_or(|budget| self.driver_account(options, count).total() <= budget)
        };
        let options = &self.with_fitting_in_flight(options, &fits);
        let mut account = self.driver_account(options, count);
        let is_recorded = matches!(purpose, Purpose::Record(_));
        let scan = self.plan_scan(&params, (options, count), self.taken_bytes(&account));
        let options = &self.fitted(options, count);
        let options = &SearchOptions { width: kinds::width(&params, options.width), ..*options };
        account.check(self.ram_budget, "search this index so")?;
        let mut batch = Batch::new(self, queries, params, exclude, progress, options.threads);
        match purpose {
            Purpose::Answer => batch.learning = self.learning(),
            Purpose::Record(recording) => batch.recording = Some(recording),
            Purpose::Measure => {}
        }
        batch.first_number = batch.learning.map_or(0, |l| if l.is_on() { l.number(count as u64) } else { 0 });
        if let Some(region) = self.kind.live() {
            batch.live = Some(LiveBatches::new(region)?);
        }
        let (cpu, started) = (budget::cpu_us(), Instant::now());
        let scanned = scan.filter(|_| !is_recorded).map_or(0, |plan| {
            account.add(EXACT_SCAN, plan.bytes);
            self.scan(&batch, plan, self.most_reads(options, options.width))
        });
        batch.next = scanned.into();
        let is_scanned = scanned == count && count > 0;
        let name = if is_scanned { Ok(SCAN_BACKEND) } else { self.work_on_threads(&batch, options) };
        batch.give_up();
        let name = name?;
        let seconds = started.elapsed().as_secs_f64();
        let cpu_us = budget::cpu_us().saturating_sub(cpu);
        progress.check_interrupted()?;
        let io_backend = self.base.backend_name(name);
        Ok(Answers { seconds, cpu_us, io_backend, account, ..batch.into_answers() })
    }

    /// Has the queries of a batch run by drivers, one on each thread.
    fn work_on_threads(&self, batch: &Batch<'_>, options: &SearchOptions) -> Result<&'static str> {
        let batch_loads =
            self.base.facts().shares_reads.then(|| BatchLoads::new(options.batch_options, options.threads));
        let batch_loads = batch_loads.as_ref();
        let ended: Mutex<Vec<Result<&'static str>>> = Mutex::default();
        threads::together(options.threads, &|number| {
            let name = self.work(batch, (options, batch_loads), number);
            ended.lock().unwrap_or_else(|e| e.into_inner()).push(name);
        })?;
        let ended = ended.into_inner().unwrap_or_else(|e| e.into_inner());
        let mut all: Result<&'static str> = Ok("");
        for name in ended {
            all = match (all, name) {
                // The thread whose failure ended the others says why.
                (Err(own), Err(other)) if own.message.ends_with(OTHER_THREAD_FAILED) => Err(other),
                (all, name) => all.and(name),
            };
        }
        all
    }

    /// Source of a thread's reads: files, or memory nodes.
    ///
    /// # Errors
    /// io_uring is refused; no memory node answers.
    pub(crate) fn tier(&self, depth: usize, io: IoChoice, doorbell: usize) -> io::Result<Box<dyn Tier>> {
        if let Some(memory) = self.base.memory_nodes() {
            return memory.tier(depth, doorbell);
        }
        let file = self.base.blocks_file().map_err(io::Error::other)?;
        let mut stores = vec![file.clone()];
        stores.extend_from_slice(self.kind.stores());
        tier::open_stores(&stores, depth, self.base.block.block_bytes, io)
    }

    fn work(
        &self,
        batch: &Batch<'_>,
        (options, batch_loads): (&SearchOptions, Option<&BatchLoads>),
        worker: usize,
    ) -> Result<&'static str> {
        // A thread that does not get to its driver must not be waited for.
        let member = batch_loads.map(|batch_loads| batch_loads.member(worker));
        let in_flight = self.in_flight(options);
        let depth = match batch_loads {
            Some(_) => 2 * options.batch_options.doorbell,
            // Nothing is read, and buffers would not be used.
            None if self.is_resident() => 0,
            None => in_flight * self.most_reads(options, options.width) as usize,
        };
        let depth = depth.clamp(1, 1024);
        let make = || self.tier(depth, options.io, options.batch_options.doorbell);
        let ring = Ring::take(&self.rings, depth, options.io, make);
        let mut ring = ring.map_err(|e| {
            let message = match self.base.memory_nodes() {
                Some(_) => e.to_string(),
                None => format!("io_uring was asked for but refused: {e}; use --io auto or pread"),
            };
            Error { kind: stratann_storage::ErrorKind::Io, message }
        })?;
        let name = ring.tier.name();
        let driver_options = DriverOptions {
            buffer_bytes: self.base.block.block_bytes,
            in_flight,
            admission: options.admission,
            width: options.width,
            ..DriverOptions::default()
        };
        let mut share = Share::new(batch, worker);
        let query = ring.query.take();
        let mut driver =
            Driver::new(self.view(), self.cache.as_ref(), Box::new(&mut *ring.tier), driver_options)
                .sharing(options.merge.then_some(&self.shared_reads))
                .scoring(self.kind.scorer())
                .with_batch_loads(member.map(|member| (member, &self.shared_reads)))
                .reusing(query);
        let ran = driver.run(&mut share);
        // A trace goes on in the memory that it was begun in.
        let query = driver.into_memory().filter(|_| batch.recording.is_none());
        ring.query = query.filter(|memory| memory.state_bytes() <= self.usual_state_bytes());
        batch.progress.advance(share.unreported);
        batch.sums.lock().unwrap_or_else(|e| e.into_inner()).add(&share.sums);
        if ran.is_ok() {
            ring.keep();
        }
        ran.map(|()| name).map_err(|e| Error::io("reading", &self.base.blocks_path, &e))
    }
}
