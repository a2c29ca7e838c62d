//! The threads of a device: one forms batches and takes their answers, the other watches deadlines.
//!
//! The batcher alone calls the driver. A call that never returns must not keep jobs waiting, so a second thread, the
//! watchdog, ends batches that are overdue. The thread that takes a batch out of [`State::running`] answers its jobs,
//! so each is answered once.

use crate::backend::Backend;
use crate::batch::Batch;
use crate::job::{Prepared, Ranked};
use crate::layout::Params;
use crate::{DeviceOptions, Done, Failure};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time between two looks at batches under way.
const POLL: Duration = Duration::from_micros(20);

/// Totals since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Batches that ended well.
    pub batches: u64,
    /// Jobs in them.
    pub jobs: u64,
    /// Bytes of copies to the device for them: headers, queries, ranges and ids.
    pub bytes_to_device: u64,
    /// Bytes of copies from the device for them: result headers and results.
    pub bytes_from_device: u64,
    /// Look-up tables that the device built, one for each job with codes to score.
    pub tables_built: u64,
    /// Batches that failed or did not end in time.
    pub failed_batches: u64,
    /// Time of all kernels as the device measured it, in microseconds; 0 where it does not.
    pub kernel_us: u64,
}

#[derive(Debug, Default)]
struct Totals {
    batches: AtomicU64,
    jobs: AtomicU64,
    bytes_to_device: AtomicU64,
    bytes_from_device: AtomicU64,
    tables_built: AtomicU64,
    failed_batches: AtomicU64,
    kernel_ns: AtomicU64,
}

/// A callback that is called once, with [`Failure::Lost`] when it is dropped before.
pub(crate) struct Reply(Option<Done>);

impl Reply {
    pub(crate) fn new(done: Done) -> Reply {
        Reply(Some(done))
    }

    /// Calls the callback. A panic of the callback ends here, so that other jobs get their answers.
    pub(crate) fn send(mut self, answer: Result<Ranked, Failure>) {
        self.call(answer);
    }

    fn call(&mut self, answer: Result<Ranked, Failure>) {
        if let Some(done) = self.0.take() {
            let _ = catch_unwind(AssertUnwindSafe(|| done(answer)));
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.call(Err(Failure::Lost));
    }
}

struct Waiting {
    job: Prepared,
    reply: Reply,
    since: Instant,
}

/// A batch under way.
struct Running {
    replies: Vec<Reply>,
    deadline: Instant,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Waiting>,
    // By stream.
    running: Vec<Option<Running>>,
    // No more jobs come.
    is_closed: bool,
    // The batcher has ended and has closed or abandoned the device.
    is_ended: bool,
}

/// What callers and the two threads share.
pub(crate) struct Shared {
    state: Mutex<State>,
    // New jobs, or the end, for the batcher.
    work: Condvar,
    // A new batch, or the end, for the watchdog and for the drop of the device.
    watch: Condvar,
    is_lost: AtomicBool,
    totals: Totals,
}

impl Shared {
    pub(crate) fn new(streams: usize) -> Arc<Shared> {
        let running = (0..streams).map(|_| None).collect();
        Arc::new(Shared {
            state: Mutex::new(State { running, ..State::default() }),
            work: Condvar::new(),
            watch: Condvar::new(),
            is_lost: AtomicBool::new(false),
            totals: Totals::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics under the lock; the state is whole in any case.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    pub(crate) fn counters(&self) -> Counters {
        let get = |total: &AtomicU64| total.load(Ordering::Relaxed);
        let totals = &self.totals;
        Counters {
            batches: get(&totals.batches),
            jobs: get(&totals.jobs),
            bytes_to_device: get(&totals.bytes_to_device),
            bytes_from_device: get(&totals.bytes_from_device),
            tables_built: get(&totals.tables_built),
            failed_batches: get(&totals.failed_batches),
            kernel_us: get(&totals.kernel_ns) / 1000,
        }
    }

    /// Adds a job to the queue, or answers it at once where the device is lost.
    pub(crate) fn push(&self, job: Prepared, reply: Reply) {
        let waiting = Waiting { job, reply, since: Instant::now() };
        let mut state = self.state();
        // Checked under the lock: `lose` drains the queue under it.
        if self.is_lost() || state.is_closed {
            drop(state);
            waiting.reply.send(Err(Failure::Lost));
            return;
        }
        state.queue.push_back(waiting);
        drop(state);
        self.work.notify_one();
    }

    /// Marks the device lost and answers all its jobs: those on `streams` with `failure`, the others with `Lost`.
    fn lose(&self, streams: &[usize], failure: &Failure) {
        let mut state = self.state();
        self.is_lost.store(true, Ordering::Release);
        let running: Vec<(usize, Running)> =
            state.running.iter_mut().enumerate().filter_map(|(s, r)| Some((s, r.take()?))).collect();
        let queue = std::mem::take(&mut state.queue);
        drop(state);
        self.work.notify_all();
        self.watch.notify_all();
        for (stream, running) in running {
            let is_cause = streams.contains(&stream);
            self.totals.failed_batches.fetch_add(u64::from(is_cause), Ordering::Relaxed);
            for reply in running.replies {
                reply.send(Err(if is_cause { failure.clone() } else { Failure::Lost }));
            }
        }
        queue.into_iter().for_each(|waiting| waiting.reply.send(Err(Failure::Lost)));
    }

    /// Ends batches that are overdue, until the batcher has ended or the device is lost.
    pub(crate) fn watch(&self) {
        let mut state = self.state();
        while !state.is_ended && !self.is_lost() {
            let now = Instant::now();
            let overdue = |r: &Option<Running>| r.as_ref().is_some_and(|r| r.deadline <= now);
            let streams: Vec<usize> =
                (0..state.running.len()).filter(|&s| overdue(&state.running[s])).collect();
            if !streams.is_empty() {
                drop(state);
                self.lose(&streams, &Failure::TimedOut);
                return;
            }
            state = match state.running.iter().flatten().map(|r| r.deadline).min() {
                None => self.watch.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let wait = self.watch.wait_timeout(state, deadline.saturating_duration_since(now));
                    wait.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Refuses new jobs; those that wait are still scored.
    pub(crate) fn close(&self) {
        self.state().is_closed = true;
        self.work.notify_all();
        self.watch.notify_all();
    }

    /// Waits until the batcher has ended, for at most `grace` where it no longer has anything to do. Returns whether it
    /// has ended: a call into a driver that hangs never does.
    pub(crate) fn wait_for_end(&self, grace: Duration) -> bool {
        let mut state = self.state();
        let mut idle_since = None;
        loop {
            if state.is_ended {
                return true;
            }
            let is_busy = !state.queue.is_empty() || state.running.iter().any(Option::is_some);
            let now = Instant::now();
            idle_since = if is_busy { None } else { idle_since.or(Some(now)) };
            if idle_since.is_some_and(|since| now - since >= grace) {
                return false;
            }
            let wait = self.watch.wait_timeout(state, Duration::from_millis(10));
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A batch under way, as the batcher sees it.
struct Sent {
    // Block and `keep` of each job.
    jobs: Vec<(u32, u32)>,
    bytes_to_device: u64,
    bytes_from_device: u64,
    tables: u64,
}

/// The thread that owns the device.
pub(crate) struct Batcher {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) params: Params,
    pub(crate) options: DeviceOptions,
    pub(crate) block_count: u32,
}

/// What the batcher does next.
enum Next {
    Send(usize, Vec<Waiting>),
    Poll,
    End,
}

impl Batcher {
    /// Runs until the device is closed and idle, or lost.
    pub(crate) fn run(mut self) {
        let shared = self.shared.clone();
        // A panic must not leave jobs without an answer, nor a device that seems to work.
        let ended = catch_unwind(AssertUnwindSafe(|| self.serve()));
        if !matches!(ended, Ok(true)) {
            shared.lose(&[], &Failure::Lost);
            self.backend.abandon();
        }
        drop(self);
        shared.state().is_ended = true;
        shared.watch.notify_all();
    }

    /// Returns true after an orderly end, and false when the device is lost.
    fn serve(&mut self) -> bool {
        if self.backend.enter().is_err() {
            return false;
        }
        let mut free: Vec<u32> = (0..self.block_count).rev().collect();
        let mut sent: Vec<Option<Sent>> = (0..self.options.streams).map(|_| None).collect();
        loop {
            for (stream, slot) in sent.iter_mut().enumerate() {
                if let Some(batch) = slot.take() {
                    match self.backend.is_done(stream) {
                        Ok(false) => *slot = Some(batch),
                        Ok(true) if self.finish(stream, &batch) => {
                            free.extend(batch.jobs.iter().map(|job| job.0))
                        }
                        Ok(true) => return false,
                        Err(what) => return self.fail(stream, what),
                    }
                }
            }
            if self.shared.is_lost() {
                return false;
            }
            match self.next(&sent, free.len()) {
                Next::End => return true,
                Next::Poll => {}
                Next::Send(stream, waiting) => match self.send(stream, waiting, &mut free) {
                    Ok(batch) => sent[stream] = Some(batch),
                    Err(what) => return self.fail(stream, what),
                },
            }
        }
    }

    fn fail(&self, stream: usize, what: String) -> bool {
        self.shared.lose(&[stream], &Failure::Failed { what });
        false
    }

    /// Takes the jobs of the next batch, or waits a while.
    fn next(&self, sent: &[Option<Sent>], free: usize) -> Next {
        let mut state = self.shared.state();
        let stream = sent.iter().position(Option::is_none);
        let is_idle = sent.iter().all(Option::is_none);
        let room = free.min(self.options.batch_max);
        let mut wait = (!is_idle).then_some(POLL);
        if let (Some(stream), Some(oldest)) = (stream, state.queue.front()) {
            let left = self.options.batch_wait.saturating_sub(oldest.since.elapsed());
            let is_ready = state.queue.len() >= room || left.is_zero() || state.is_closed;
            if room > 0 && is_ready {
                // The jobs of a batch are of one kind.
                let has_vectors = state.queue.front().is_some_and(|waiting| waiting.job.has_vectors());
                let same = |waiting: &&Waiting| waiting.job.has_vectors() == has_vectors;
                let count = state.queue.iter().take(room).take_while(same).count();
                return Next::Send(stream, state.queue.drain(..count).collect());
            }
            wait = Some(wait.map_or(left, |wait| wait.min(left)).max(Duration::from_micros(1)));
        }
        if is_idle && state.queue.is_empty() && state.is_closed {
            return Next::End;
        }
        match wait {
            Some(wait) => drop(self.shared.work.wait_timeout(state, wait)),
            None => drop(self.shared.work.wait(state)),
        }
        Next::Poll
    }

    /// Starts a batch. Its jobs are registered first, so that the watchdog sees a driver that hangs.
    fn send(&mut self, stream: usize, waiting: Vec<Waiting>, free: &mut Vec<u32>) -> Result<Sent, String> {
        let mut jobs = Vec::with_capacity(waiting.len());
        let mut replies = Vec::with_capacity(waiting.len());
        for Waiting { job, reply, .. } in waiting {
            replies.push(reply);
            jobs.extend(free.pop().map(|block| (block, job)));
        }
        let deadline = Instant::now() + self.options.timeout;
        let mut state = self.shared.state();
        if self.shared.is_lost() {
            // The replies answer as they are dropped, outside of the lock.
            drop(state);
            return Err("the device was lost".to_string());
        }
        state.running[stream] = Some(Running { replies, deadline });
        drop(state);
        self.shared.watch.notify_all();
        for (block, job) in &jobs {
            if !job.encode(self.backend.staging(*block)) {
                return Err("a job exceeds its block".to_string());
            }
        }
        let batch = Batch::new(&self.params, jobs.iter().map(|(block, job)| (*block, job)));
        self.backend.enqueue(stream, &batch)?;
        Ok(Sent {
            jobs: jobs.iter().map(|(block, job)| (*block, job.keep)).collect(),
            bytes_to_device: batch.bytes_to_device(),
            bytes_from_device: batch.bytes_from_device(),
            tables: jobs.iter().filter(|(_, job)| !job.has_vectors()).count() as u64,
        })
    }

    /// Answers the jobs of a batch that has ended. False when the device is lost.
    fn finish(&mut self, stream: usize, batch: &Sent) -> bool {
        let results_at = self.params.results_at as usize;
        let mut answers = Vec::with_capacity(batch.jobs.len());
        for &(block, keep) in &batch.jobs {
            let bytes = self.backend.staging(block).get(results_at..).unwrap_or_default();
            let Some(ranked) = Ranked::decode(bytes, keep) else {
                return self.fail(stream, "its results are not possible".to_string());
            };
            answers.push(ranked);
        }
        let time = self.backend.kernel_time(stream).unwrap_or_default();
        let taken = self.shared.state().running.get_mut(stream).and_then(Option::take);
        let Some(running) = taken else { return false };
        self.shared.watch.notify_all();
        let totals = &self.shared.totals;
        for (total, more) in [
            (&totals.batches, 1),
            (&totals.jobs, batch.jobs.len() as u64),
            (&totals.bytes_to_device, batch.bytes_to_device),
            (&totals.bytes_from_device, batch.bytes_from_device),
            (&totals.tables_built, batch.tables),
            (&totals.kernel_ns, time.as_nanos() as u64),
        ] {
            total.fetch_add(more, Ordering::Relaxed);
        }
        for (reply, ranked) in running.replies.into_iter().zip(answers) {
            reply.send(Ok(ranked));
        }
        true
    }
}
