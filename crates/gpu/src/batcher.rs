//! The threads of a device: one forms batches and takes their answers, the other watches deadlines.
//!
//! The batcher alone calls the driver. A call that never returns must not keep jobs waiting, so a second thread, the
//! watchdog, ends batches that are overdue. The thread that takes a batch out of [`State::running`] answers its jobs,
//! so each is answered once.
//!
//! [`State::running`]: crate::shared::State

use crate::backend::Backend;
use crate::batch::Batch;
use crate::job::Ranked;
use crate::layout::Params;
use crate::shared::{Counters, Due, Reply, Running, Shared, Waiting};
use crate::{DeviceOptions, Failure};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Time between two looks at batches under way.
const POLL: Duration = Duration::from_micros(20);

/// A batch under way, as the batcher sees it.
struct Sent {
    // Block and `keep` of each job.
    jobs: Vec<(u32, u32)>,
    totals: Counters,
}

/// The thread that owns the device.
pub(crate) struct Batcher {
    backend: Box<dyn Backend>,
    shared: Arc<Shared>,
    params: Params,
    options: DeviceOptions,
}

/// Next action of the batcher.
enum Next {
    Jobs(usize, Vec<(u32, Waiting)>),
    Poll,
    End,
}

impl Batcher {
    /// The batcher of a device.
    pub(crate) fn new(
        backend: Box<dyn Backend>,
        shared: Arc<Shared>,
        params: Params,
        options: DeviceOptions,
    ) -> Batcher {
        Batcher { backend, shared, params, options }
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
            }
        }
    }

    fn fail(&self, stream: usize, what: String) -> bool {
        self.shared.lose(&[stream], &Failure::Failed { what });
        false
    }

    /// Takes the jobs of the next batch, or waits a while.
    fn next(&self, sent: &[Option<Sent>]) -> Next {
        let mut state = self.shared.state();
        let is_idle = sent.iter().all(Option::is_none);
        let mut wait = (!is_idle).then_some(POLL);
        if let Some(stream) = sent.iter().position(Option::is_none) {
            match state.take_jobs(&self.options) {
                Due::Now(jobs) => return Next::Jobs(stream, jobs),
                Due::In(left) => wait = Some(wait.map_or(left, |wait| wait.min(left))),
                Due::Never => {}
            }
        }
        if is_idle && state.queue.is_empty() && state.is_closed {
            return Next::End;
        }
        let work = &self.shared.work;
        match wait {
            Some(wait) => {
                let wait = wait.max(Duration::from_micros(1));
                drop(work.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner));
            }
            None => drop(work.wait(state).unwrap_or_else(PoisonError::into_inner)),
        }
        Next::Poll
    }

    /// Registers a batch before it starts, so that the watchdog sees a driver that hangs.
    fn register(&self, stream: usize, replies: Vec<Reply>) -> Result<(), String> {
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
        Ok(())
    }

    /// Starts a batch.
    fn send(&mut self, stream: usize, waiting: Vec<(u32, Waiting)>) -> Result<Sent, String> {
        let mut jobs = Vec::with_capacity(waiting.len());
        let mut replies = Vec::with_capacity(waiting.len());
        for (block, Waiting { job, reply, .. }) in waiting {
            replies.push(reply);
            jobs.push((block, job));
        }
        self.register(stream, replies)?;
        for (block, job) in &jobs {
            if !job.encode(self.backend.staging(*block)) {
                return Err("a job exceeds its block".to_string());
            }
        }
        let batch = Batch::new(&self.params, jobs.iter().map(|(block, job)| (*block, job)));
        self.backend.enqueue(stream, &batch)?;
        let totals = Counters {
            batches: 1,
            jobs: jobs.len() as u64,
            bytes_to_device: batch.bytes_to_device(),
            bytes_from_device: batch.bytes_from_device(),
            ..Counters::default()
        };
        Ok(Sent { jobs: jobs.iter().map(|(block, job)| (*block, job.keep)).collect(), totals })
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
        let mut state = self.shared.state();
        let Some(running) = state.running.get_mut(stream).and_then(Option::take) else { return false };
        state.free.extend(batch.jobs.iter().map(|&(block, _)| block));
        drop(state);
        self.shared.watch.notify_all();
        self.shared.count(&batch.totals, time);
        for (reply, ranked) in running.replies.into_iter().zip(answers) {
            reply.send(Ok(ranked));
        }
        true
    }
}
