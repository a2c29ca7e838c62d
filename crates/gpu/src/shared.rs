//! State that callers and the two threads of a device share: queues, blocks, batches under way, totals.

use crate::job::{Prepared, Ranked};
use crate::{DeviceOptions, Done, Failure};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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
    /// Batches that failed or did not end in time.
    pub failed_batches: u64,
    /// Time of all kernels as the device measured it, in microseconds; 0 where it does not.
    pub kernel_us: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Totals {
    batches: AtomicU64,
    jobs: AtomicU64,
    bytes_to_device: AtomicU64,
    bytes_from_device: AtomicU64,
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

/// A job without a batch.
pub(crate) struct Waiting {
    pub(crate) job: Prepared,
    pub(crate) reply: Reply,
    since: Instant,
}

/// A batch under way.
pub(crate) struct Running {
    pub(crate) replies: Vec<Reply>,
    pub(crate) deadline: Instant,
}

/// The jobs of the next batch, each with its block.
pub(crate) enum Due {
    Now(Vec<(u32, Waiting)>),
    /// Others may still join it for this time.
    In(Duration),
    Never,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) queue: VecDeque<Waiting>,
    // Blocks without a job.
    pub(crate) free: Vec<u32>,
    // By stream.
    pub(crate) running: Vec<Option<Running>>,
    // No more jobs come.
    pub(crate) is_closed: bool,
    // The batcher has ended and has closed or abandoned the device.
    pub(crate) is_ended: bool,
}

impl State {
    /// Takes the jobs of the next batch, each with its block. They are of one kind: that of the oldest. A job for which
    /// no block is free stays in the queue.
    pub(crate) fn take_jobs(&mut self, options: &DeviceOptions) -> Due {
        let Some(oldest) = self.queue.front().filter(|_| !self.free.is_empty()) else { return Due::Never };
        let kind = oldest.job.has_vectors();
        let most = options.batch_max.min(self.free.len());
        let of_kind = self.queue.iter().filter(|waiting| waiting.job.has_vectors() == kind).count();
        let left = options.batch_wait.saturating_sub(oldest.since.elapsed());
        if of_kind < most && !left.is_zero() && !self.is_closed {
            return Due::In(left);
        }
        let (mut jobs, mut others) = (Vec::with_capacity(most), VecDeque::new());
        while jobs.len() < most
            && let Some(waiting) = self.queue.pop_front()
        {
            if waiting.job.has_vectors() != kind {
                others.push_back(waiting);
            } else if let Some(block) = self.free.pop() {
                jobs.push((block, waiting));
            }
        }
        others.append(&mut self.queue);
        self.queue = others;
        Due::Now(jobs)
    }
}

/// State that callers and the two threads share.
pub(crate) struct Shared {
    state: Mutex<State>,
    // New jobs, or the end, for the batcher.
    pub(crate) work: Condvar,
    // A new batch, or the end, for the watchdog and for the drop of the device.
    pub(crate) watch: Condvar,
    is_lost: AtomicBool,
    totals: Totals,
}

impl Shared {
    pub(crate) fn new(streams: usize, blocks: u32) -> Arc<Shared> {
        let running = (0..streams).map(|_| None).collect();
        Arc::new(Shared {
            state: Mutex::new(State { running, free: (0..blocks).rev().collect(), ..State::default() }),
            work: Condvar::new(),
            watch: Condvar::new(),
            is_lost: AtomicBool::new(false),
            totals: Totals::default(),
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
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
            failed_batches: get(&totals.failed_batches),
            kernel_us: get(&totals.kernel_ns) / 1000,
        }
    }

    /// Adds the totals of a batch that has ended well.
    pub(crate) fn count(&self, batch: &Counters, kernel_time: Duration) {
        let totals = &self.totals;
        for (total, more) in [
            (&totals.batches, batch.batches),
            (&totals.jobs, batch.jobs),
            (&totals.bytes_to_device, batch.bytes_to_device),
            (&totals.bytes_from_device, batch.bytes_from_device),
            (&totals.kernel_ns, kernel_time.as_nanos() as u64),
        ] {
            total.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Adds a job to the queue, or answers it at once where the device is lost.
    pub(crate) fn push(&self, job: Prepared, reply: Reply) {
        let since = Instant::now();
        let mut state = self.state();
        // Checked under the lock: `lose` drains the queue under it.
        if self.is_lost() || state.is_closed {
            drop(state);
            reply.send(Err(Failure::Lost));
            return;
        }
        state.queue.push_back(Waiting { job, reply, since });
        drop(state);
        self.work.notify_one();
    }

    /// Marks the device lost and answers all its jobs: those on `streams` with `failure`, the others with `Lost`.
    pub(crate) fn lose(&self, streams: &[usize], failure: &Failure) {
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
