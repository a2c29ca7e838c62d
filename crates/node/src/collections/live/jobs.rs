//! Threads of the process that make checkpoints and merges: one for each kind of job, for all collections.
//!
//! Checkpoints and minor merges do not wait for merges of the largest segments, which take long. Where there is no job,
//! idle collections are closed.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use stratann_storage::budget::{yield_cores, yield_cores_most};
use stratann_storage::{ErrorKind, Progress};

use super::pace::Paced;
use super::slot::{Shared, Slot};
use crate::collections::error::{Error, Kind, Result};

/// Collections that nobody used for so long, or for up to twice as long, are closed.
const IDLE: Duration = Duration::from_secs(300);

thread_local! {
    /// Whether this is a thread of jobs.
    static IS_JOB: Cell<bool> = const { Cell::new(false) };
}

/// Does the long part of a job, which holds no lock. In the background, unless it is urgent, a thread of the lowest
/// priority does it. One that runs on idle cores alone would never end where searches want all, and could not be
/// hurried.
pub(crate) fn beside_searches<T: Send>(is_urgent: bool, work: impl Fn() -> T + Sync) -> T {
    if IS_JOB.get() && !is_urgent {
        let done = std::thread::scope(|scope| {
            let build = || {
                yield_cores_most();
                work()
            };
            let thread = std::thread::Builder::new().name("stratann-build".into()).spawn_scoped(scope, build);
            // Without another thread this one does it.
            thread.ok().map(std::thread::ScopedJoinHandle::join)
        });
        match done {
            Some(Ok(done)) => return done,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => {}
        }
    }
    work()
}

/// What is done in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// Points in memory are written into a segment.
    Checkpoint,
    /// Segments become one that is not the largest.
    MinorMerge,
    /// Segments become one, with the largest of them or without.
    Merge,
}

impl Job {
    /// How many kinds there are.
    pub(crate) const KINDS: usize = 3;
    /// All kinds.
    pub(crate) const ALL: [Job; Job::KINDS] = [Job::Checkpoint, Job::MinorMerge, Job::Merge];

    /// Name of the kind.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Job::Checkpoint => "checkpoint",
            Job::MinorMerge => "minor_merge",
            Job::Merge => "merge",
        }
    }
}

/// How far a job in the background is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFacts {
    /// Kind of the job: `checkpoint`, `minor_merge`, `merge`.
    pub kind: &'static str,
    /// What it does now. A job has several stages.
    pub stage: String,
    /// Units of the stage that are done.
    pub done: u64,
    /// Units of the stage; 0 where that is not known.
    pub total: u64,
    /// What is counted, such as `rows`.
    pub unit: String,
    /// Time since the stage began, milliseconds.
    pub elapsed_ms: u64,
}

/// Stage of a job.
#[derive(Default)]
pub(crate) struct StageOfJob {
    now: Mutex<Option<(String, u64, String, Instant)>>,
    done: AtomicU64,
}

impl StageOfJob {
    fn lock(&self) -> MutexGuard<'_, Option<(String, u64, String, Instant)>> {
        self.now.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn facts(&self, kind: &'static str) -> Option<JobFacts> {
        let (stage, total, unit, since) = self.lock().clone()?;
        let elapsed_ms = since.elapsed().as_millis() as u64;
        Some(JobFacts { kind, stage, done: self.done.load(Ordering::Relaxed), total, unit, elapsed_ms })
    }
}

/// The threads, and what they are asked.
#[derive(Default)]
pub(crate) struct Jobs {
    threads: Mutex<[Option<Thread>; Job::KINDS]>,
    is_stopped: Arc<AtomicBool>,
}

struct Thread {
    asked: Sender<Arc<Slot>>,
    handle: JoinHandle<()>,
}

impl Jobs {
    fn threads(&self) -> MutexGuard<'_, [Option<Thread>; Job::KINDS]> {
        self.threads.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Has a job done for a collection, unless it is asked for already.
    pub(crate) fn ask(&self, shared: &Shared, slot: &Arc<Slot>, job: Job) {
        if !shared.options.in_background || self.is_stopped.load(Ordering::Acquire) {
            return;
        }
        let is_wanted = job != Job::Merge || slot.is_to_compact.load(Ordering::Acquire);
        if !is_wanted && slot.rests[job as usize].is_on()
            || slot.is_asked[job as usize].swap(true, Ordering::AcqRel)
        {
            return;
        }
        self.start(shared, job);
        let threads = self.threads();
        // Without a thread it is asked for again by the next change.
        let thread = threads[job as usize].as_ref();
        if thread.is_none_or(|thread| thread.asked.send(slot.clone()).is_err()) {
            slot.is_asked[job as usize].store(false, Ordering::Release);
        }
    }

    /// Starts the thread of a kind of jobs, unless it runs.
    pub(crate) fn start(&self, shared: &Shared, job: Job) {
        let thread = &mut self.threads()[job as usize];
        if thread.is_some() || !shared.options.in_background {
            return;
        }
        let (asked, jobs) = channel();
        let (weak, is_stopped) = (shared.own.clone(), self.is_stopped.clone());
        let named = std::thread::Builder::new().name(job.name().into());
        let started = named.spawn(move || work(&weak, job, &jobs, &is_stopped));
        *thread = started.ok().map(|handle| Thread { asked, handle });
    }

    /// Interrupts the jobs and waits for their ends.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        let threads: Vec<Thread> = self.threads().iter_mut().filter_map(Option::take).collect();
        for thread in threads {
            drop(thread.asked);
            // What it panicked on was printed when it happened.
            let _ = thread.handle.join();
        }
    }

    /// Interrupts jobs when they are stopped, or the collection is dropped.
    pub(crate) fn stopping<'a>(&self, slot: &'a Slot, job: Job, paced: Paced<'a>) -> Stopping<'a> {
        Stopping { is_stopped: self.is_stopped.clone(), slot, job, paced }
    }
}

fn work(shared: &Weak<Shared>, job: Job, jobs: &Receiver<Arc<Slot>>, is_stopped: &AtomicBool) {
    // Searches come first.
    yield_cores();
    IS_JOB.set(true);
    loop {
        let asked = jobs.recv_timeout(IDLE);
        let Some(shared) = shared.upgrade().filter(|_| !is_stopped.load(Ordering::Acquire)) else { return };
        let slot = match asked {
            Ok(slot) => slot,
            Err(RecvTimeoutError::Timeout) => {
                if job == Job::Checkpoint {
                    shared.close_idle();
                }
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        slot.is_at_work[job as usize].store(true, Ordering::Release);
        slot.is_asked[job as usize].store(false, Ordering::Release);
        let progress = shared.jobs.stopping(&slot, job, shared.pace.begin());
        let is_compaction = job == Job::Merge && slot.is_to_compact.swap(false, Ordering::AcqRel);
        let done = match job {
            Job::Checkpoint => slot.checkpoint_due(&shared, &progress),
            Job::MinorMerge => slot.minor_merge_due(&shared, &progress),
            Job::Merge if is_compaction => slot.compact(&shared, &progress),
            Job::Merge => slot.merge_due(&shared, &progress),
        };
        let lacks_memory = |e: &Error| e.kind == Kind::Other(ErrorKind::Budget);
        slot.rests[job as usize].set(job != Job::Checkpoint && done.as_ref().is_err_and(lacks_memory));
        let is_interrupted = |e: &Error| e.kind == Kind::Other(ErrorKind::Interrupted);
        let mut troubles = slot.trouble.lock().unwrap_or_else(|e| e.into_inner());
        if is_compaction && done.is_ok() {
            // It has made the checkpoint that failed before.
            troubles[Job::Checkpoint as usize] = None;
        }
        troubles[job as usize] = done.err().filter(|e| !is_interrupted(e));
        drop(troubles);
        *slot.stages[job as usize].lock() = None;
        slot.is_at_work[job as usize].store(false, Ordering::Release);
    }
}

impl Slot {
    /// Kinds of jobs that wait or run.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = Job> {
        Job::ALL.into_iter().filter(|job| {
            let is_set = |all: &[AtomicBool; Job::KINDS]| all[*job as usize].load(Ordering::Acquire);
            // Whoever compacts in the foreground runs jobs, too.
            is_set(&self.is_asked)
                || is_set(&self.is_at_work)
                || matches!(self.running[*job as usize].try_lock(), Err(TryLockError::WouldBlock))
        })
    }

    /// How far the jobs are that run in the background.
    pub(crate) fn progress(&self) -> Vec<JobFacts> {
        Job::ALL.into_iter().filter_map(|job| self.stages[job as usize].facts(job.name())).collect()
    }

    /// Has one segment made of all points by the thread of merges.
    ///
    /// # Errors
    /// `BadInput` where there is no such thread.
    pub(crate) fn compact_later(self: &Arc<Slot>, shared: &Shared) -> Result<()> {
        self.is_to_compact.store(true, Ordering::Release);
        shared.jobs.ask(shared, self, Job::Merge);
        let is_awaited =
            [&self.is_asked, &self.is_at_work].map(|all| all[Job::Merge as usize].load(Ordering::Acquire));
        if is_awaited.contains(&true) || !self.is_to_compact.load(Ordering::Acquire) {
            return Ok(());
        }
        self.is_to_compact.store(false, Ordering::Release);
        Err(Error::bad_input("there is no thread for merges; use compact, which returns when it is done"))
    }
}

/// Interrupts the work for a collection, and has it rest for searches.
pub(crate) struct Stopping<'a> {
    is_stopped: Arc<AtomicBool>,
    slot: &'a Slot,
    job: Job,
    paced: Paced<'a>,
}

impl Progress for Stopping<'_> {
    fn stage(&self, name: &str, total: u64, unit: &str) {
        let stage = &self.slot.stages[self.job as usize];
        let mut now = stage.lock();
        stage.done.store(0, Ordering::Relaxed);
        *now = Some((name.into(), total, unit.into(), Instant::now()));
    }

    fn advance(&self, count: u64) {
        self.slot.stages[self.job as usize].done.fetch_add(count, Ordering::Relaxed);
    }

    fn note(&self, _: &str) {}

    fn interrupted(&self) -> bool {
        self.paced.rest();
        self.is_stopped.load(Ordering::Acquire) || self.slot.check_dropped().is_err()
    }
}

#[cfg(test)]
mod tests {
    use stratann_kernel::{DType, Metric};

    use super::*;
    use crate::collections::live::pace::Pace;
    use crate::collections::node::{Node, Options};
    use crate::collections::spec::Spec;
    use crate::rows::ExternalId;
    use stratann_storage::Quiet;

    #[test]
    fn a_compaction_ends_the_trouble_of_an_earlier_checkpoint() {
        let place = tempfile::tempdir().unwrap();
        let node = Node::open(place.path(), &Options::default(), &Quiet).unwrap();
        let spec = Spec { dim: 1, dtype: DType::U8, metric: Metric::L2, kind: None };
        let points = node.create_collection("c", spec).unwrap();
        points.upsert(&[ExternalId::Number(1)], &[1]).unwrap();
        points.slot.trouble.lock().unwrap()[Job::Checkpoint as usize] = Some(Error::busy("full"));
        assert!(points.facts().unwrap().trouble.is_some());
        points.compact_later().unwrap();
        while !points.facts().unwrap().jobs.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let facts = points.facts().unwrap();
        assert_eq!((facts.trouble, facts.delta_points, facts.progress), (None, 0, Vec::new()));
    }

    #[test]
    fn a_job_says_how_far_its_stage_is() {
        let spec = Spec { dim: 2, dtype: DType::F32, metric: Metric::L2, kind: None };
        let (slot, jobs, pace) = (Slot::new(1, "c", spec.into()), Jobs::default(), Pace::default());
        assert_eq!(slot.progress(), []);
        let progress = jobs.stopping(&slot, Job::Merge, pace.begin());
        progress.stage("first", 5, "blocks");
        progress.advance(5);
        progress.stage("second", 10, "rows");
        progress.advance(3);
        progress.advance(4);
        let [now] = &slot.progress()[..] else { panic!("one job") };
        assert_eq!(
            (now.kind, &*now.stage, now.done, now.total, &*now.unit),
            ("merge", "second", 7, 10, "rows")
        );
    }
}
