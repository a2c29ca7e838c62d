//! The threads of a device: one forms batches and takes their answers, the other watches deadlines.
//!
//! The batcher alone calls the driver. A call that never returns must not keep jobs waiting, so a second thread, the
//! watchdog, ends batches and requests that are overdue. The thread that takes a batch out of [`State::running`]
//! answers its jobs, so each is answered once.
//!
//! [`State::running`]: crate::shared::State

use crate::backend::{Backend, Staging};
use crate::batch::Batch;
use crate::counters::{Counters, Totals};
use crate::job::Ranked;
use crate::queue::{CodesNumber, Due, DueJobs, Waiting};
use crate::request::{Action, DeviceMemory, Outcome, Request, usable_bytes};
use crate::shared::{Reply, Running, Shared, State};
use crate::{DeviceOptions, Failure};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Time between two looks at batches under way.
const POLL: Duration = Duration::from_micros(20);

/// A batch under way, as the batcher sees it.
struct Sent {
    codes: CodesNumber,
    // Block and `keep` of each job.
    jobs: Vec<(u32, u32)>,
    staging: Staging,
    results_at: usize,
    counters: Counters,
    of_codes: Arc<Totals>,
}

/// The thread that owns the device.
pub(crate) struct Batcher {
    backend: Box<dyn Backend>,
    shared: Arc<Shared>,
    options: DeviceOptions,
    memory: DeviceMemory,
    // Whether requests come before jobs: they take turns, so that neither waits for the end of the other.
    is_turn_of_requests: bool,
}

/// Next action of the batcher.
enum Next {
    Jobs(usize, DueJobs),
    Request(Request),
    Free(CodesNumber),
    Poll,
    End,
}

impl Batcher {
    /// The batcher of a device.
    pub(crate) fn new(backend: Box<dyn Backend>, shared: Arc<Shared>, options: DeviceOptions) -> Batcher {
        Batcher { backend, shared, options, memory: DeviceMemory::default(), is_turn_of_requests: false }
    }

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
        let mut sent: Vec<Option<Sent>> = (0..self.options.streams).map(|_| None).collect();
        loop {
            for (stream, slot) in sent.iter_mut().enumerate() {
                if let Some(batch) = slot.take() {
                    match self.backend.is_done(stream) {
                        Ok(false) => *slot = Some(batch),
                        Ok(true) if self.finish(stream, &batch) => {}
                        Ok(true) => return false,
                        Err(what) => return self.fail(stream, what),
                    }
                }
            }
            if self.shared.is_lost() {
                return false;
            }
            match self.next(&sent) {
                Next::End => return true,
                Next::Poll => {}
                Next::Jobs(stream, jobs) => match self.send(stream, jobs) {
                    Ok(batch) => sent[stream] = Some(batch),
                    Err(what) => return self.fail(stream, what),
                },
                Next::Request(request) => self.perform(request),
                Next::Free(codes) => {
                    if let Err(what) = self.free(codes) {
                        self.shared.lose(&[], &Failure::Failed { what });
                        return false;
                    }
                }
            }
        }
    }

    fn fail(&self, stream: usize, what: String) -> bool {
        self.shared.lose(&[stream], &Failure::Failed { what });
        false
    }

    /// Takes the jobs of the next batch or the next request, or waits a while.
    fn next(&mut self, sent: &[Option<Sent>]) -> Next {
        let mut state = self.shared.state();
        if std::mem::take(&mut self.is_turn_of_requests)
            && let Some(next) = next_request(&mut state)
        {
            return next;
        }
        let is_idle = sent.iter().all(Option::is_none);
        let mut wait = (!is_idle).then_some(POLL);
        if let Some(stream) = sent.iter().position(Option::is_none) {
            let is_closed = state.is_closed;
            match state.queue.take(&self.options, is_closed) {
                Due::Now(jobs) => {
                    self.is_turn_of_requests = true;
                    return Next::Jobs(stream, jobs);
                }
                Due::In(left) => wait = Some(wait.map_or(left, |wait| wait.min(left))),
                Due::Never => {}
            }
        }
        if let Some(next) = next_request(&mut state) {
            return next;
        }
        if is_idle && state.queue.is_empty() && state.is_closed {
            return Next::End;
        }
        match wait {
            Some(wait) => {
                let wait = wait.max(Duration::from_micros(1));
                drop(self.shared.work.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner));
            }
            None => drop(self.shared.work.wait(state).unwrap_or_else(PoisonError::into_inner)),
        }
        Next::Poll
    }

    /// Time that a request may take: the driver may wait for batches under way before it does what is asked.
    fn step_timeout(&self) -> Duration {
        2 * self.options.timeout
    }

    /// Does what is asked. An error is the request's alone; a device that is broken fails in its next batch.
    fn perform(&mut self, Request { action, reply }: Request) {
        if !self.shared.begin_step(Some(reply), self.step_timeout()) {
            return;
        }
        let backend = self.backend.as_mut();
        let outcome = match action {
            Action::UsableBytes => usable_bytes(backend).map(Outcome::UsableBytes),
            Action::Allocate(plan) => self.memory.allocate(backend, &plan).map(|memory| {
                self.shared.state().queue.add(plan.codes, memory.block_count, plan.totals);
                Outcome::Allocated(memory)
            }),
            Action::Write { codes, at, bytes } => {
                self.memory.write(backend, codes, at, &bytes).map(|()| Outcome::Done)
            }
            Action::EndWrites => backend.wait_for_writes().map(|()| Outcome::Done),
        };
        self.shared.end_step(outcome);
    }

    /// Frees the memory of closed codes.
    fn free(&mut self, codes: CodesNumber) -> Result<(), String> {
        if !self.shared.begin_step(None, self.step_timeout()) {
            return Err("the device was lost".to_string());
        }
        let freed = self.memory.free(self.backend.as_mut(), codes);
        self.shared.end_step(Ok(Outcome::Done));
        freed
    }

    /// Registers a batch before it starts, so that the watchdog sees a driver that hangs.
    fn register(&self, stream: usize, replies: Vec<Reply>, totals: Arc<Totals>) -> Result<(), String> {
        let deadline = Instant::now() + self.options.timeout;
        let mut state = self.shared.state();
        if self.shared.is_lost() {
            // The replies answer as they are dropped, outside of the lock.
            drop(state);
            return Err("the device was lost".to_string());
        }
        state.running[stream] = Some(Running { replies, deadline, totals });
        drop(state);
        self.shared.watch.notify_all();
        Ok(())
    }

    /// Starts a batch.
    fn send(&mut self, stream: usize, due: DueJobs) -> Result<Sent, String> {
        let DueJobs { codes, totals: of_codes, jobs: waiting } = due;
        let mut jobs = Vec::with_capacity(waiting.len());
        let mut replies = Vec::with_capacity(waiting.len());
        for (block, Waiting { job, reply, .. }) in waiting {
            replies.push(reply);
            jobs.push((block, job));
        }
        self.register(stream, replies, of_codes.clone())?;
        let placed = self.memory.get(codes).ok_or("the codes have no memory")?;
        let (params, staging) = (&placed.params, placed.staging);
        for (block, job) in &jobs {
            if !job.encode(self.backend.staging(staging, *block)) {
                return Err("a job exceeds its block".to_string());
            }
        }
        let batch = Batch::new(params, staging, jobs.iter().map(|(block, job)| (*block, job)));
        self.backend.enqueue(stream, &batch)?;
        let counters = Counters {
            batches: 1,
            jobs: jobs.len() as u64,
            bytes_to_device: batch.bytes_to_device(),
            bytes_from_device: batch.bytes_from_device(),
            ..Counters::default()
        };
        let jobs = jobs.iter().map(|(block, job)| (*block, job.keep)).collect();
        Ok(Sent { codes, jobs, staging, results_at: params.results_at as usize, counters, of_codes })
    }

    /// Answers the jobs of a batch that has ended. False when the device is lost.
    fn finish(&mut self, stream: usize, batch: &Sent) -> bool {
        let mut answers = Vec::with_capacity(batch.jobs.len());
        for &(block, keep) in &batch.jobs {
            let bytes =
                self.backend.staging(batch.staging, block).get(batch.results_at..).unwrap_or_default();
            let Some(ranked) = Ranked::decode(bytes, keep) else {
                return self.fail(stream, "its results are not possible".to_string());
            };
            answers.push(ranked);
        }
        let time = self.backend.kernel_time(stream).unwrap_or_default();
        let mut state = self.shared.state();
        let Some(running) = state.running.get_mut(stream).and_then(Option::take) else { return false };
        state.queue.release(batch.codes, batch.jobs.iter().map(|&(block, _)| block));
        drop(state);
        self.shared.watch.notify_all();
        self.shared.count(&batch.of_codes, &batch.counters, time);
        for (reply, ranked) in running.replies.into_iter().zip(answers) {
            reply.send(Ok(ranked));
        }
        true
    }
}

/// The next request that can be done, or codes to free.
fn next_request(state: &mut State) -> Option<Next> {
    if let Some(codes) = state.queue.remove_closed() {
        return Some(Next::Free(codes));
    }
    // Closed codes still have memory, which whoever loads after them counts on.
    let is_short = state.queue.has_closed();
    let at = state.requests.iter().position(|request| !is_short || !request.action.needs_memory())?;
    state.requests.remove(at).map(Next::Request)
}

#[cfg(test)]
mod tests;
