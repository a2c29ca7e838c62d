//! State that callers and the two threads of a device share: jobs, requests of loads, batches under way, totals.

use crate::counters::{Counters, Totals};
use crate::job::{Prepared, Ranked};
use crate::queue::{CodesNumber, Queue, Waiting, answer_lost};
use crate::request::{Action, Outcome, Request};
use crate::{Done, Error, Failure};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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

/// A batch under way.
pub(crate) struct Running {
    pub(crate) replies: Vec<Reply>,
    pub(crate) deadline: Instant,
    // Of its codes.
    pub(crate) totals: Arc<Totals>,
}

/// Calls of the driver that belong to no batch: a part of a load, or the end of codes.
pub(crate) struct Step {
    reply: Option<Sender<Result<Outcome, Error>>>,
    start: Instant,
    deadline: Instant,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) queue: Queue,
    pub(crate) requests: VecDeque<Request>,
    // By stream.
    pub(crate) running: Vec<Option<Running>>,
    // What the batcher does beside batches.
    step: Option<Step>,
    // No more jobs and requests come.
    pub(crate) is_closed: bool,
    // The batcher has ended and has closed or abandoned the device.
    pub(crate) is_ended: bool,
}

impl State {
    /// Streams whose batches are overdue at `now`; `None` where nothing is. During a step batches cannot be looked at:
    /// only the step can be overdue then.
    fn overdue(&self, now: Instant) -> Option<Vec<usize>> {
        let is_late = |running: &Option<Running>| running.as_ref().is_some_and(|r| r.deadline <= now);
        let streams: Vec<usize> = (0..self.running.len()).filter(|&s| is_late(&self.running[s])).collect();
        let is_overdue = match &self.step {
            Some(step) => step.deadline <= now,
            None => !streams.is_empty(),
        };
        is_overdue.then_some(streams)
    }

    /// The next time at which something can be overdue.
    fn deadline(&self) -> Option<Instant> {
        let of_step = self.step.as_ref().map(|step| step.deadline);
        of_step.or_else(|| self.running.iter().flatten().map(|r| r.deadline).min())
    }
}

/// See the module.
pub(crate) struct Shared {
    state: Mutex<State>,
    // New jobs and requests, or the end, for the batcher.
    pub(crate) work: Condvar,
    // A new batch or step, or the end, for the watchdog and for the drop of the device.
    pub(crate) watch: Condvar,
    is_lost: AtomicBool,
    totals: Totals,
    codes_numbers: AtomicU64,
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
            codes_numbers: AtomicU64::new(0),
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
        self.totals.counters()
    }

    /// A number that no other codes have.
    pub(crate) fn next_number(&self) -> CodesNumber {
        self.codes_numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds the totals of a batch that has ended well, to the device's and to those of its codes.
    pub(crate) fn count(&self, of_codes: &Totals, batch: &Counters, kernel_time: Duration) {
        self.totals.count(batch, kernel_time);
        of_codes.count(batch, kernel_time);
    }

    /// Adds a job to the queue, or answers it at once where the device is lost.
    pub(crate) fn push(&self, codes: CodesNumber, job: Prepared, reply: Reply) {
        let waiting = Waiting::new(job, reply);
        let mut state = self.state();
        // Checked under the lock: `lose` drains the queue under it.
        let refused = if self.is_lost() { Some(waiting) } else { state.queue.push(codes, waiting) };
        drop(state);
        match refused {
            None => self.work.notify_one(),
            Some(waiting) => waiting.reply.send(Err(Failure::Lost)),
        }
    }

    /// Asks the batcher for something. The outcome, or that the device is lost, can be received from the result.
    pub(crate) fn request(&self, action: Action) -> Receiver<Result<Outcome, Error>> {
        let (reply, receiver) = channel();
        let mut state = self.state();
        // A request that is dropped is an error for the receiver.
        if !self.is_lost() && !state.is_closed {
            state.requests.push_back(Request { action, reply });
            drop(state);
            self.work.notify_one();
        }
        receiver
    }

    /// Refuses new jobs of these codes. Their memory is freed behind their last job.
    pub(crate) fn close_codes(&self, codes: CodesNumber) {
        self.state().queue.close(codes);
        self.work.notify_one();
    }

    /// Registers a step before it begins, so that the watchdog sees a driver that hangs. False when the device is lost.
    pub(crate) fn begin_step(
        &self,
        reply: Option<Sender<Result<Outcome, Error>>>,
        timeout: Duration,
    ) -> bool {
        let start = Instant::now();
        let mut state = self.state();
        if self.is_lost() {
            return false;
        }
        state.step = Some(Step { reply, start, deadline: start + timeout });
        drop(state);
        self.watch.notify_all();
        true
    }

    /// Ends a step and sends its outcome. Batches under way get the time that nobody could look at them.
    pub(crate) fn end_step(&self, outcome: Result<Outcome, Error>) {
        let mut state = self.state();
        // Where the watchdog took the step, it has answered.
        let Some(step) = state.step.take() else { return };
        let time = step.start.elapsed();
        for running in state.running.iter_mut().flatten() {
            running.deadline += time;
        }
        drop(state);
        self.watch.notify_all();
        if let Some(reply) = step.reply {
            // Whoever asked may be gone.
            let _ = reply.send(outcome);
        }
    }

    /// Marks the device lost and answers everything: the jobs on `streams` with `failure`, other jobs with `Lost`, and
    /// requests with an error.
    pub(crate) fn lose(&self, streams: &[usize], failure: &Failure) {
        let mut state = self.state();
        self.is_lost.store(true, Ordering::Release);
        let running: Vec<(usize, Running)> =
            state.running.iter_mut().enumerate().filter_map(|(s, r)| Some((s, r.take()?))).collect();
        let queue = state.queue.drain();
        let mut requests: Vec<_> = state.requests.drain(..).map(|request| request.reply).collect();
        requests.extend(state.step.take().and_then(|step| step.reply));
        drop(state);
        self.work.notify_all();
        self.watch.notify_all();
        for reply in requests {
            // Whoever asked may be gone.
            let _ = reply.send(Err(Error::Lost(failure.clone())));
        }
        for (stream, running) in running {
            let is_cause = streams.contains(&stream);
            if is_cause {
                self.totals.count_failure();
                running.totals.count_failure();
            }
            for reply in running.replies {
                reply.send(Err(if is_cause { failure.clone() } else { Failure::Lost }));
            }
        }
        answer_lost(queue);
    }

    /// Ends batches and steps that are overdue, until the batcher has ended or the device is lost.
    pub(crate) fn watch(&self) {
        let mut state = self.state();
        while !state.is_ended && !self.is_lost() {
            let now = Instant::now();
            if let Some(streams) = state.overdue(now) {
                drop(state);
                self.lose(&streams, &Failure::TimedOut);
                return;
            }
            state = match state.deadline() {
                None => self.watch.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let wait = self.watch.wait_timeout(state, deadline.saturating_duration_since(now));
                    wait.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Refuses new jobs and requests; jobs that wait are still scored.
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

#[cfg(test)]
mod tests;
