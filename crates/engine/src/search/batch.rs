//! The queries of one call, shared by its threads.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use stratann_core::query::{Budget, Hit, Loss, Outcome, Params, QueryState, QueryStats, Read, Scratch, Step};
use stratann_core::sieve::Sieve;
use stratann_storage::Progress;
use stratann_storage::budget::Account;

use super::Answers;
use super::live::LiveBatches;
use super::record::Recording;
use super::sieved::{Filter, Filters};
use super::waves::Wave;
use crate::exec::{Loads, MergedReads, Queries, Snapshot, Times, failure};
use crate::index::Index;
use crate::kinds::Learning;

/// The queries of one call, and their answers as they come in from all threads.
pub(super) struct Batch<'a> {
    pub(super) index: &'a Index,
    pub(super) learning: Option<&'a Learning>,
    pub(super) live: Option<LiveBatches<'a>>,
    pub(super) recording: Option<&'a Recording>,
    pub(super) first_number: u64,
    pub(super) queries: &'a [u8],
    pub(super) params: Params,
    pub(super) budget: Budget,
    pub(super) exclude: &'a (dyn Fn(usize) -> u32 + Sync),
    pub(super) filters: Filters<'a>,
    pub(super) wave: Wave<'a>,
    pub(super) progress: &'a dyn Progress,
    pub(super) threads: usize,
    pub(super) count: usize,
    pub(super) next: AtomicUsize,
    pub(super) stopped: AtomicBool,
    pub(super) ids: Vec<AtomicU64>,
    pub(super) distances: Vec<AtomicU32>,
    pub(super) counts: Vec<AtomicU32>,
    pub(super) latency_ns: Vec<AtomicU64>,
    // Of several calls that are answered together: nanoseconds from `begun` to the end of each query.
    ended_ns: Option<(Instant, Vec<AtomicU64>)>,
    pub(super) failed: Mutex<Vec<(usize, String)>>,
    pub(super) sums: Mutex<Sums>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(
        index: &'a Index,
        queries: &'a [u8],
        params: Params,
        exclude: &'a (dyn Fn(usize) -> u32 + Sync),
        progress: &'a dyn Progress,
        threads: usize,
    ) -> Batch<'a> {
        let count = queries.len() / index.base.row_bytes();
        let cells = count * params.k as usize;
        Batch {
            index,
            learning: None,
            live: None,
            recording: None,
            first_number: 0,
            queries,
            params,
            budget: index.query_budget(),
            exclude,
            filters: Filters::None,
            wave: Wave::Alone,
            progress,
            threads,
            count,
            next: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
            ids: (0..cells).map(|_| AtomicU64::new(u64::MAX)).collect(),
            distances: (0..cells).map(|_| AtomicU32::new(f32::INFINITY.to_bits())).collect(),
            counts: (0..count).map(|_| AtomicU32::new(0)).collect(),
            latency_ns: (0..count).map(|_| AtomicU64::new(0)).collect(),
            ended_ns: None,
            failed: Mutex::default(),
            sums: Mutex::default(),
        }
    }

    /// Notes when its queries end, counted from `begun`.
    pub(super) fn note_ends(&mut self, begun: Instant) {
        self.ended_ns = Some((begun, (0..self.count).map(|_| AtomicU64::new(0)).collect()));
    }

    /// The time from admission to answer of a query, in nanoseconds since the ends are noted. `None` of one that has
    /// not ended, and where they are not noted.
    pub(super) fn span_ns(&self, number: usize) -> Option<Range<u64>> {
        let ended = self.ended_ns.as_ref()?.1.get(number)?.load(Ordering::Relaxed);
        let latency = self.latency_ns[number].load(Ordering::Relaxed);
        (latency > 0).then_some(ended.saturating_sub(latency)..ended)
    }

    fn note_latency(&self, number: usize, latency_ns: u64) {
        if let Some((begun, ended)) = &self.ended_ns {
            ended[number].store(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
        self.latency_ns[number].store(latency_ns, Ordering::Relaxed);
    }

    fn epoch(&self, number: usize) -> u64 {
        self.learning.map_or(0, |l| if l.is_on() { l.epoch(self.counted(number)) } else { 0 })
    }

    /// The number of a query among all that are counted for learning.
    fn counted(&self, number: usize) -> u64 {
        self.first_number + number as u64
    }

    /// Queries that will not run any more are no longer waited for.
    pub(super) fn give_up(&self) {
        let Some(learning) = self.learning.filter(|l| l.is_on()) else { return };
        for (number, latency) in self.latency_ns.iter().enumerate() {
            if latency.load(Ordering::Relaxed) == 0 {
                learning.ended(0, self.counted(number), None);
            }
        }
    }

    /// Takes the answer of a query that a scan has found.
    pub(super) fn scanned(
        &self,
        number: usize,
        hits: impl ExactSizeIterator<Item = Hit>,
        stats: &QueryStats,
        times: Times,
    ) {
        {
            let mut sums = self.sums.lock().unwrap_or_else(|e| e.into_inner());
            sums.stats.add(stats);
            sums.largest = sums.largest.max(stats);
            sums.times.add(&times);
        }
        self.note_latency(number, times.latency.max(1));
        self.answered(number, hits);
    }

    /// Counts reads that were made for several queries at once.
    pub(super) fn merged(&self, reads: MergedReads) {
        self.sums.lock().unwrap_or_else(|e| e.into_inner()).merged.add(&reads);
    }

    fn answered(&self, number: usize, hits: impl ExactSizeIterator<Item = Hit>) {
        let at = number * self.params.k as usize;
        let count = hits.len();
        self.counts[number].store(hits.len() as u32, Ordering::Relaxed);
        for (i, hit) in hits.enumerate() {
            self.ids[at + i].store(hit.external_id, Ordering::Relaxed);
            self.distances[at + i].store(hit.distance.to_bits(), Ordering::Relaxed);
        }
        let distances = self.distances[at..at + count].iter();
        self.wave.ended(number, distances.map(|bits| f32::from_bits(bits.load(Ordering::Relaxed))));
    }

    /// Takes back the answer of a query that is asked again.
    fn take_back(&self, number: usize) {
        let k = self.params.k as usize;
        for at in number * k..(number + 1) * k {
            self.ids[at].store(u64::MAX, Ordering::Relaxed);
            self.distances[at].store(f32::INFINITY.to_bits(), Ordering::Relaxed);
        }
        self.counts[number].store(0, Ordering::Relaxed);
        self.failed.lock().unwrap_or_else(|e| e.into_inner()).retain(|failed| failed.0 != number);
    }

    /// Results that a query can have at least: k, or as many as its filter has rows, or as are left.
    fn wanted(&self, number: usize) -> u32 {
        let left = self.index.base.live.as_ref().map_or(u32::MAX, |live| live.count()).min(self.params.k);
        self.filters.of(number).map_or(left, |filter| filter.results_min(self.params.k))
    }

    /// Queries that have fewer results than there are, or than were asked for.
    fn short(&self) -> usize {
        let failed = self.failed.lock().unwrap_or_else(|e| e.into_inner());
        let failed: BTreeSet<usize> = failed.iter().map(|failed| failed.0).collect();
        let is_short = |&number: &usize| {
            self.latency_ns[number].load(Ordering::Relaxed) > 0
                && self.counts[number].load(Ordering::Relaxed) < self.wanted(number)
        };
        (0..self.count).filter(is_short).filter(|number| !failed.contains(number)).count()
    }

    pub(super) fn into_answers(self) -> Answers {
        let short = self.short();
        let mut failed = self.failed.into_inner().unwrap_or_else(|e| e.into_inner());
        let Sums { stats, largest, times, merged } =
            self.sums.into_inner().unwrap_or_else(|e| e.into_inner());
        failed.sort_unstable_by_key(|f| f.0);
        Answers {
            k: self.params.k as usize,
            ids: self.ids.into_iter().map(AtomicU64::into_inner).collect(),
            distances: self.distances.into_iter().map(|d| f32::from_bits(d.into_inner())).collect(),
            counts: self.counts.into_iter().map(AtomicU32::into_inner).collect(),
            latency_ns: self.latency_ns.into_iter().map(AtomicU64::into_inner).collect(),
            stats,
            largest,
            times,
            merged,
            failed,
            short,
            seconds: 0.0,
            cpu_us: 0,
            params: self.params,
            io_backend: String::new(),
            account: Account::default(),
        }
    }
}

/// Counters and times of the queries that have ended.
#[derive(Default)]
pub(super) struct Sums {
    stats: QueryStats,
    largest: QueryStats,
    times: Times,
    merged: MergedReads,
}

impl Sums {
    pub(super) fn add(&mut self, other: &Sums) {
        self.stats.add(&other.stats);
        self.largest = self.largest.max(&other.largest);
        self.times.add(&other.times);
        self.merged.add(&other.merged);
    }
}

/// One thread's share of a batch.
pub(super) struct Share<'a, 'b> {
    batch: &'a Batch<'b>,
    worker: usize,
    // A number that was taken before the snapshot for it was published.
    waiting: Option<usize>,
    sums: Sums,
    unreported: u64,
}

impl<'a, 'b> Share<'a, 'b> {
    pub(super) fn new(batch: &'a Batch<'b>, worker: usize) -> Share<'a, 'b> {
        Share { batch, worker, waiting: None, sums: Sums::default(), unreported: 0 }
    }

    /// The query that [`Queries::next`] would give, if another thread does not take it; `None` after the last.
    pub(super) fn upcoming(&self) -> Option<usize> {
        let next = self.waiting.unwrap_or_else(|| self.batch.next.load(Ordering::Relaxed));
        (next < self.batch.count).then_some(next)
    }

    /// Adds what this thread has counted to the batch.
    pub(super) fn end(self) {
        self.batch.progress.advance(self.unreported);
        self.batch.sums.lock().unwrap_or_else(|e| e.into_inner()).add(&self.sums);
    }
}

const REPORT_EVERY: u64 = 256;

impl Queries for Share<'_, '_> {
    fn next(&mut self) -> Option<usize> {
        if self.batch.stopped.load(Ordering::Relaxed) || self.batch.wave.is_given_up() {
            return None;
        }
        let again = self.batch.live.as_ref().and_then(LiveBatches::next);
        if again.is_some() {
            return again;
        }
        let waited = self.waiting.take();
        let number = waited.unwrap_or_else(|| self.batch.next.fetch_add(1, Ordering::Relaxed));
        if number >= self.batch.count {
            return None;
        }
        if self.batch.wave.known(number).is_none() {
            // The first wave has not answered this query yet.
            self.waiting = Some(number);
            return None;
        }
        if let Some(learning) = self.batch.learning
            && learning.snapshot_for(self.batch.epoch(number)).is_none()
        {
            // The snapshot is being made: queries under way go on meanwhile.
            if waited.is_none() {
                learning.note_wait();
            }
            self.waiting = Some(number);
            return None;
        }
        Some(number)
    }

    fn stays(&self) -> bool {
        let is_over = self.batch.stopped.load(Ordering::Relaxed) || self.batch.wave.is_given_up();
        self.waiting.is_some() && !is_over
    }

    fn may_wait(&mut self, _: bool) -> bool {
        if self.waiting.is_some() {
            std::thread::yield_now();
        }
        true
    }

    fn lost(&mut self, _: Read, loss: Loss) {
        self.batch.live.iter().for_each(|live| live.lose(loss));
    }

    fn snapshot(&mut self, number: usize) -> Option<Arc<dyn Snapshot>> {
        if self.batch.live.is_some() {
            let seen = self.batch_snapshot()?;
            return Some(match self.batch.filters.of(number) {
                Some(filter) => filter.seen(seen),
                None => seen,
            });
        }
        let learning = self.batch.learning?;
        learning.snapshot_for(self.batch.epoch(number)).map(|seen| seen as Arc<dyn Snapshot>)
    }

    fn sieve(&mut self, number: usize) -> Option<Arc<Sieve>> {
        self.batch.filters.of(number).and_then(Filter::sieve).cloned()
    }

    fn remaining(&self) -> usize {
        self.batch.count.saturating_sub(self.batch.next.load(Ordering::Relaxed)) / self.batch.threads
    }

    fn begin(&mut self, number: usize, (approach_width, width): (u32, u32), state: &mut QueryState) -> &[u8] {
        let batch = self.batch;
        let exclude = (batch.exclude)(number);
        let own = batch.filters.of(number).map_or(batch.params, Filter::params);
        let params = Params { exclude, approach_width, width, ..own };
        state.restart(params, batch.budget);
        state.set_known(batch.wave.known(number).unwrap_or_default());
        let size = batch.index.base.row_bytes();
        &batch.queries[number * size..(number + 1) * size]
    }

    fn merged(&mut self, reads: MergedReads) {
        self.sums.merged.add(&reads);
    }

    fn ended(&mut self, number: usize, _: Step, state: &QueryState, times: Times) {
        let batch = self.batch;
        let is_lost = matches!(state.outcome(), Outcome::Lost { .. });
        if batch.live.as_ref().is_some_and(|live| live.ended(number, is_lost)) {
            return;
        }
        if let Some(learning) = batch.learning {
            learning.ended(self.worker, batch.counted(number), Some(state));
        }
        self.sums.stats.add(state.stats());
        self.sums.largest = self.sums.largest.max(state.stats());
        self.sums.times.add(&times);
        batch.note_latency(number, times.latency);
        let why = match state.outcome() {
            Outcome::OutOfBudget => {
                Some("the query ran out of its allowance of reads; ask for a lower recall".into())
            }
            Outcome::Lost { at, loss, .. } if let Some(memory) = batch.index.base.memory_nodes() => {
                Some(memory.failure(at, loss))
            }
            lost @ Outcome::Lost { at, .. } => {
                failure(lost, &batch.index.kind.store_path(&batch.index.base, at.store))
            }
            other => failure(other, &batch.index.base.blocks_path),
        };
        if let Some(why) = why {
            batch.failed.lock().unwrap_or_else(|e| e.into_inner()).push((number, why));
            batch.wave.ended(number, std::iter::empty());
        } else {
            batch.answered(number, state.results().iter().copied());
        }
        self.unreported += 1;
        if self.unreported == REPORT_EVERY {
            batch.progress.advance(REPORT_EVERY);
            self.unreported = 0;
        }
        if batch.progress.interrupted() {
            batch.stopped.store(true, Ordering::Relaxed);
            batch.wave.give_up();
        }
    }

    fn loads(&mut self) -> Option<&mut dyn Loads> {
        Some(self)
    }
}

impl Loads for Share<'_, '_> {
    fn loaded(&mut self, loads: &QueryStats) {
        self.sums.stats.add(loads);
    }

    fn is_recorded(&self) -> bool {
        self.batch.recording.is_some()
    }

    fn on_doorbell(&mut self, loads: &[(Read, bool)]) {
        self.batch.recording.iter().for_each(|recording| recording.on_doorbell(loads));
    }

    fn traced(&mut self, number: usize, scratch: &Scratch) {
        self.batch.recording.iter().for_each(|recording| recording.ended(number, scratch));
    }

    fn begin_batch(&mut self) -> io::Result<()> {
        self.batch.recording.iter().for_each(|recording| recording.begin_batch());
        let Some(live) = &self.batch.live else { return Ok(()) };
        let cost = live.begin()?;
        self.loaded(&cost);
        Ok(())
    }

    fn end_batch(&mut self) {
        let Some(live) = &self.batch.live else { return };
        live.end().into_iter().for_each(|number| self.batch.take_back(number));
    }

    fn batch_snapshot(&mut self) -> Option<Arc<dyn Snapshot>> {
        self.batch.live.as_ref().map(LiveBatches::snapshot)
    }
}
