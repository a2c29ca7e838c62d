//! Calls on open indexes, and the threads that answer them: one driver a thread, whatever the number of indexes.

use std::sync::{Arc, Mutex};

use stratann_core::query::{Params, QueryState, Step};
use stratann_core::sieve::Sieve;
use stratann_storage::budget::Account;
use stratann_storage::tier::Tier;
use stratann_storage::{Error, ErrorKind, Progress, Result, threads};

use super::batch::{Batch, Share};
use super::live::LiveBatches;
use super::scan::{EXACT_SCAN, SCAN_BACKEND, ScanPlan};
use super::sieved::Filters;
use super::waves::Wave;
use super::{Answers, Purpose, SearchOptions};
use crate::exec::{
    BatchLoads, Driver, DriverOptions, MergedReads, OTHER_THREAD_FAILED, Queries, Ring, RingShape,
    SharedReads, Snapshot, Times,
};
use crate::index::Index;
use crate::kinds;

/// Questions to one index.
pub(super) struct Call<'a> {
    pub(super) queries: &'a [u8],
    pub(super) params: Params,
    /// The node that a query must not see.
    pub(super) exclude: &'a (dyn Fn(usize) -> u32 + Sync),
    /// The rows that a query may return.
    pub(super) filters: Filters<'a>,
    pub(super) progress: &'a dyn Progress,
    pub(super) purpose: Purpose<'a>,
    pub(super) wave: Wave<'a>,
}

/// A call that has begun: its options fit the budget, and its memory is counted.
pub(super) struct Run<'a> {
    index: &'a Index,
    pub(super) batch: Batch<'a>,
    options: SearchOptions,
    account: Account,
    scan: Option<ScanPlan>,
    is_recorded: bool,
    // Queries that a scan has answered.
    scanned: usize,
}

impl<'a> Run<'a> {
    /// Begins a call, one of `calls` that share their threads and what is in flight on each. The account of the first,
    /// whose `number` is 0, has the threads.
    ///
    /// # Errors
    /// A budget too small; memory nodes that do not answer.
    pub(super) fn begin(
        index: &'a Index,
        call: Call<'a>,
        options: &SearchOptions,
        (number, calls): (usize, usize),
    ) -> Result<Run<'a>> {
        let Call { queries, params, exclude, filters, progress, purpose, wave } = call;
        let count = queries.len() / index.base.row_bytes();
        let threads = options.threads.clamp(1, 1024);
        let options = &index.with_fitting_doorbells(&SearchOptions { threads, ..*options }, count);
        // Calls at once share what is in flight, and their threads: the first has those in its account.
        let divided = |options: &SearchOptions| {
            let in_flight = Some((index.in_flight(options) / calls).max(1));
            SearchOptions { in_flight, ..*options }
        };
        let (sieves_bytes, more_bytes) = (filters.bytes(), filters.more_bytes(&params));
        let account_of = |options: &SearchOptions| {
            let mut account = index.driver_account(options, count);
            account.components.retain(|component| number == 0 || component.0 != "threads");
            let in_flight = (options.threads * index.in_flight(options)).min(count) as u64;
            match sieves_bytes + in_flight * more_bytes {
                0 => {}
                bytes => account.add(FILTERS, bytes),
            }
            account
        };
        let fits = |options: &SearchOptions| {
            index.ram_budget.is_none_or(|budget| account_of(&divided(options)).total() <= budget)
        };
        let options = index.with_fitting_in_flight(options, &fits);
        let options = divided(&with_fitting_batch(&options, more_bytes, &fits));
        let account = account_of(&options);
        let taken_bytes = index.taken_bytes(&account);
        let scan = index.plan_call_scan(&params, &filters, (&options, count), taken_bytes);
        let options = index.fitted(&options, count);
        let options = SearchOptions { width: kinds::width(&params, options.width), ..options };
        account.check(index.ram_budget, "search this index so")?;
        let mut batch = Batch::new(index, queries, params, exclude, progress, options.threads);
        (batch.filters, batch.wave) = (filters, wave);
        match purpose {
            Purpose::Answer => batch.learning = index.learning(),
            Purpose::Record(recording) => batch.recording = Some(recording),
            Purpose::Measure => {}
        }
        batch.first_number = batch.learning.map_or(0, |l| if l.is_on() { l.number(count as u64) } else { 0 });
        if let Some(region) = index.kind.live() {
            batch.live = Some(LiveBatches::new(region)?);
        }
        let is_recorded = matches!(purpose, Purpose::Record(_));
        Ok(Run { index, batch, options, account, scan, is_recorded, scanned: 0 })
    }

    /// Answers what a scan of all vectors answers at once.
    fn scan(&mut self) {
        let Some(plan) = self.scan.filter(|_| !self.is_recorded) else { return };
        self.account.add(EXACT_SCAN, plan.bytes);
        let width = self.index.most_reads(&self.options, self.options.width);
        self.scanned = self.index.scan(&self.batch, plan, width);
        self.batch.next = self.scanned.into();
    }

    fn is_scanned(&self) -> bool {
        self.scanned == self.batch.count && self.batch.count > 0
    }

    /// Queries in flight on a thread.
    fn in_flight(&self) -> usize {
        self.index.in_flight(&self.options)
    }

    /// Reads under way of a thread.
    fn depth(&self) -> usize {
        match self.index.base.facts().shares_reads {
            true => 2 * self.options.batch_options.doorbell,
            // Nothing is read, and buffers would not be used.
            false if self.index.is_resident() => 0,
            false => self.in_flight() * self.index.most_reads(&self.options, self.options.width) as usize,
        }
    }

    /// The answers, once [`answer`] has returned how they were read.
    pub(super) fn into_answers(self, name: &str) -> Answers {
        let name = if self.is_scanned() { SCAN_BACKEND } else { name };
        let io_backend = self.index.base.backend_name(name);
        Answers { io_backend, account: self.account, ..self.batch.into_answers() }
    }
}

/// `options` with smaller batches, down to a few queries, until they fit whose filters take `more_bytes` each.
fn with_fitting_batch(
    options: &SearchOptions,
    more_bytes: u64,
    fits: &dyn Fn(&SearchOptions) -> bool,
) -> SearchOptions {
    let mut fitting = *options;
    while more_bytes > 0 && fitting.batch_options.batch > FEWEST_OF_BATCH && !fits(&fitting) {
        fitting.batch_options.batch = (fitting.batch_options.batch / 2).max(FEWEST_OF_BATCH);
    }
    fitting
}

/// Queries that a batch has at least, where a budget has little room for their filters.
const FEWEST_OF_BATCH: usize = 16;

/// Answers all calls, whose options have the same threads. Only a lone one may be of an index whose queries share their
/// reads. Returns the way in which blocks were read.
///
/// # Errors
/// io_uring is refused; a disk that is gone; no memory node answers.
pub(super) fn answer(runs: &mut [Run<'_>]) -> Result<&'static str> {
    runs.iter_mut().for_each(Run::scan);
    let left: Vec<&Run<'_>> = runs.iter().filter(|run| !run.is_scanned()).collect();
    let name = if left.is_empty() { Ok(SCAN_BACKEND) } else { work_on_threads(&left) };
    runs.iter().for_each(|run| run.batch.give_up());
    name
}

/// Has the queries of calls run by drivers, one on each thread.
fn work_on_threads(runs: &[&Run<'_>]) -> Result<&'static str> {
    let threads = runs.iter().map(|run| run.options.threads).max().unwrap_or(1);
    let lone = runs.first().filter(|run| run.index.base.facts().shares_reads);
    let batch_loads = lone.map(|run| BatchLoads::new(run.options.batch_options, threads));
    let ended: Mutex<Vec<Result<&'static str>>> = Mutex::default();
    threads::together(threads, &|number| {
        let name = work(runs, batch_loads.as_ref(), number);
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

/// One thread's part of all calls.
fn work(runs: &[&Run<'_>], batch_loads: Option<&BatchLoads>, worker: usize) -> Result<&'static str> {
    let Some(&first) = runs.first() else { return Ok(SCAN_BACKEND) };
    let mut leaving = Leaving { runs, is_done: false };
    // A thread that does not get to its driver must not be waited for.
    let member = batch_loads.map(|batch_loads| batch_loads.member(worker));
    let options = &first.options;
    let block_bytes = runs.iter().map(|run| run.index.base.block.block_bytes).min().unwrap_or(0);
    let depth = runs.iter().map(|run| run.depth()).sum::<usize>().clamp(1, 1024);
    let mut ring = Reads::open(runs, RingShape { depth, bytes: block_bytes, io: options.io })?;
    let name = ring.tier().name();
    let driver_options = DriverOptions {
        buffer_bytes: block_bytes,
        in_flight: runs.iter().map(|run| run.in_flight()).sum(),
        admission: options.admission,
        width: options.width,
        ..DriverOptions::default()
    };
    let memory = first.index.query_memory.take();
    let shared_reads = SharedReads::of_process();
    let mut driver = Driver::new(Arc::new(first.index), Box::new(ring.tier()), driver_options)
        .sharing(options.merge.then_some(shared_reads))
        .with_batch_loads(member.map(|member| (member, shared_reads)))
        .reusing(memory);
    for run in &runs[1..] {
        driver = driver.and(Arc::new(run.index), run.options.width);
    }
    let mut shares = Shares::new(runs, worker);
    let ran = driver.run(shares.queries());
    // A trace goes on in the memory that it was begun in.
    let memory = driver.into_memory().filter(|_| !first.is_recorded);
    if let Some(memory) = memory.filter(|memory| memory.state_bytes() <= first.index.usual_state_bytes()) {
        first.index.query_memory.keep(memory);
    }
    shares.end();
    leaving.is_done = ran.is_ok();
    if ran.is_ok() {
        ring.keep();
    }
    ran.map(|()| name).map_err(|e| Error::io("reading", &first.index.base.blocks_path, &e))
}

/// A thread's part of all calls. Where it ends before it is done, nobody waits for its answers.
struct Leaving<'a, 'b> {
    runs: &'a [&'a Run<'b>],
    is_done: bool,
}

impl Drop for Leaving<'_, '_> {
    fn drop(&mut self) {
        self.runs.iter().filter(|_| !self.is_done).for_each(|run| run.batch.wave.give_up());
    }
}

/// Source of a thread's reads.
enum Reads {
    /// A ring over the files of all indexes.
    Files(Ring),
    /// The memory nodes of the only index.
    MemoryNodes(Box<dyn Tier>),
}

impl Reads {
    fn open(runs: &[&Run<'_>], shape: RingShape) -> Result<Reads> {
        let failed = |message: String| Error { kind: ErrorKind::Io, message };
        if let Some(run) = runs.iter().find(|run| run.index.files.is_none()) {
            let tier = run.index.tier(shape.depth, shape.io, run.options.batch_options.doorbell);
            return tier.map(Reads::MemoryNodes).map_err(|e| failed(e.to_string()));
        }
        let mut ring = Ring::take(shape).map_err(|e| {
            failed(format!("io_uring was asked for but refused: {e}; use --io auto or pread"))
        })?;
        let files: Vec<_> = runs.iter().filter_map(|run| run.index.files.clone()).collect();
        ring.tier.set_files(&files);
        Ok(Reads::Files(ring))
    }

    fn tier(&mut self) -> &mut dyn Tier {
        match self {
            Reads::Files(ring) => &mut *ring.tier,
            Reads::MemoryNodes(tier) => &mut **tier,
        }
    }

    fn keep(self) {
        if let Reads::Files(ring) = self {
            ring.keep();
        }
    }
}

/// The shares of a thread in several calls. Query `q` of call `c` of `n` has number `q n + c`.
struct Shares<'a, 'b> {
    shares: Vec<Share<'a, 'b>>,
    // Of each call: queries in flight now, and at most.
    in_flight: Vec<(usize, usize)>,
    // Of each call: its next query, while one is chosen.
    upcoming: Vec<Option<usize>>,
    // The call that is the first wave, and the most queries by which it is ahead of the others.
    first_wave: Option<(usize, usize)>,
}

/// The calls whose queries may be admitted next: those that no other is behind. Otherwise a query would wait for its
/// answers from the slowest index while later ones are asked of the others. `upcoming` has the next query of each call
/// that has one.
fn hindmost(upcoming: &[Option<usize>]) -> impl Iterator<Item = usize> {
    let least = upcoming.iter().flatten().min();
    (0..upcoming.len()).filter(move |&call| least.is_some() && upcoming[call].as_ref() == least)
}

impl<'a, 'b> Shares<'a, 'b> {
    fn new(runs: &[&'a Run<'b>], worker: usize) -> Shares<'a, 'b> {
        let is_first = |run: &&Run<'_>| matches!(run.batch.wave, Wave::First(_));
        let ahead = |at: usize| (at, 2 * runs[at].in_flight() * runs[at].options.threads);
        Shares {
            shares: runs.iter().map(|run| Share::new(&run.batch, worker)).collect(),
            in_flight: runs.iter().map(|run| (0, run.in_flight())).collect(),
            upcoming: Vec::with_capacity(runs.len()),
            first_wave: runs.iter().position(is_first).map(ahead),
        }
    }

    /// The queries of the only call, or of all.
    fn queries(&mut self) -> &mut dyn Queries {
        if self.shares.len() == 1 { &mut self.shares[0] } else { self }
    }

    fn end(self) {
        self.shares.into_iter().for_each(Share::end);
    }

    fn of(&mut self, number: usize) -> (&mut Share<'a, 'b>, usize) {
        let calls = self.shares.len();
        (&mut self.shares[number % calls], number / calls)
    }
}

/// The component of accounts that filters are.
const FILTERS: &str = "filters";

impl Queries for Shares<'_, '_> {
    fn next(&mut self) -> Option<usize> {
        let Shares { shares, in_flight, upcoming, first_wave } = self;
        upcoming.clear();
        upcoming.extend(shares.iter().map(Share::upcoming));
        let ahead = first_wave.filter(|&(first, most)| {
            let next = upcoming[first].take();
            let least = upcoming.iter().flatten().min();
            next.is_some_and(|next| least.is_none_or(|&least| next < least.saturating_add(most)))
        });
        for call in hindmost(upcoming).chain(ahead.map(|(first, _)| first)) {
            let (now, most) = &mut in_flight[call];
            if now < most
                && let Some(query) = shares[call].next()
            {
                *now += 1;
                return Some(query * shares.len() + call);
            }
        }
        None
    }

    fn segment(&mut self, number: usize) -> usize {
        number % self.shares.len()
    }

    fn remaining(&self) -> usize {
        self.shares.iter().map(Share::remaining).sum()
    }

    fn begin(&mut self, number: usize, widths: (u32, u32), state: &mut QueryState) -> &[u8] {
        let (share, query) = self.of(number);
        share.begin(query, widths, state)
    }

    fn ended(&mut self, number: usize, step: Step, state: &QueryState, times: Times) {
        let call = self.segment(number);
        self.in_flight[call].0 -= 1;
        let (share, query) = self.of(number);
        share.ended(query, step, state, times);
    }

    fn snapshot(&mut self, number: usize) -> Option<Arc<dyn Snapshot>> {
        let (share, query) = self.of(number);
        share.snapshot(query)
    }

    fn sieve(&mut self, number: usize) -> Option<Arc<Sieve>> {
        let (share, query) = self.of(number);
        share.sieve(query)
    }

    fn merged(&mut self, reads: MergedReads) {
        // The counters of all calls are added up in the end.
        self.shares[0].merged(reads);
    }

    fn may_wait(&mut self, has_free_slot: bool) -> bool {
        // Each is asked: one that waits for a snapshot gives way.
        self.shares.iter_mut().filter_map(|share| (!share.may_wait(has_free_slot)).then_some(())).count() == 0
    }

    fn stays(&self) -> bool {
        self.shares.iter().any(Share::stays)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_is_ahead_of_another() {
        // The indexes take 1, 2 and 5 rounds a query; each may have two queries in flight.
        let (rounds, queries) = ([1, 2, 5], 60);
        let (mut next, mut in_flight) = ([0; 3], [const { Vec::new() }; 3]);
        for round in 0.. {
            in_flight.iter_mut().for_each(|ends: &mut Vec<usize>| ends.retain(|&end| end > round));
            let upcoming = |next: &[usize; 3]| next.map(|query| (query < queries).then_some(query));
            while let Some(call) = hindmost(&upcoming(&next)).find(|&call| in_flight[call].len() < 2) {
                next[call] += 1;
                in_flight[call].push(round + rounds[call]);
                let (least, most) = (next.iter().min().unwrap(), next.iter().max().unwrap());
                assert!(most - least <= 1, "{next:?}");
            }
            if next == [queries; 3] {
                break;
            }
            assert!(in_flight[2].len() == 2 || next[2] == queries, "the slowest index is never idle");
        }
    }
}
