//! Scores of jobs, on their way to the threads whose queries wait for them.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use stratann_core::peer::Run;
use stratann_core::query::{Loss, Tag};
use stratann_storage::ledger::Reservation;

use super::lock;

/// The reply to a job.
#[derive(Debug)]
pub(super) struct Scored {
    /// The attempt that waits for it.
    pub(super) run: Run,
    /// The tag of the job.
    pub(super) tag: Tag,
    pub(super) scores: Result<Vec<u8>, Loss>,
    /// The memory of the scores.
    pub(super) memory: Option<Reservation>,
}

/// Scores that have arrived for one thread.
#[derive(Default)]
struct Arrived {
    scores: Mutex<Vec<Scored>>,
    // Their number, read without the lock.
    count: AtomicUsize,
}

/// The attempts of this server that wait for scores, and the scores that no thread has taken yet.
pub(super) struct Scores {
    // The thread that runs an attempt.
    asking: Mutex<BTreeMap<Run, usize>>,
    arrived: Vec<Arrived>,
}

impl Scores {
    pub(super) fn new(threads: usize) -> Scores {
        Scores { asking: Mutex::default(), arrived: (0..threads).map(|_| Arrived::default()).collect() }
    }

    /// Notes that an attempt on this thread waits for scores.
    pub(super) fn ask(&self, run: Run, thread: usize) {
        lock(&self.asking).insert(run, thread);
    }

    /// An attempt no longer waits.
    pub(super) fn forget(&self, run: &Run) {
        lock(&self.asking).remove(run);
    }

    /// Keeps scores for the thread that waits for them. Returns that thread; `None` when none does.
    pub(super) fn put(&self, scored: Scored) -> Option<usize> {
        let thread = lock(&self.asking).get(&scored.run).copied()?;
        let arrived = self.arrived.get(thread)?;
        let mut scores = lock(&arrived.scores);
        scores.push(scored);
        arrived.count.store(scores.len(), Ordering::SeqCst);
        Some(thread)
    }

    /// Whether scores have arrived for a thread.
    pub(super) fn has_any(&self, thread: usize) -> bool {
        self.arrived.get(thread).is_some_and(|arrived| arrived.count.load(Ordering::SeqCst) > 0)
    }

    /// Moves all scores of a thread to `out`.
    pub(super) fn take(&self, thread: usize, out: &mut Vec<Scored>) {
        let Some(arrived) = self.arrived.get(thread).filter(|_| self.has_any(thread)) else { return };
        let mut scores = lock(&arrived.scores);
        out.append(&mut scores);
        arrived.count.store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratann_core::peer::message::QueryId;

    #[test]
    fn scores_reach_the_thread_that_runs_the_attempt_and_no_other() {
        let scores = Scores::new(2);
        let run = |number| Run::of_query(QueryId { origin: 0, incarnation: 1, number }, 0);
        let scored =
            |number, tag| Scored { run: run(number), tag: Tag(tag), scores: Ok(vec![9]), memory: None };
        scores.ask(run(7), 1);
        assert_eq!(scores.put(scored(7, 3)), Some(1));
        assert_eq!(scores.put(scored(8, 3)), None);
        assert!(scores.has_any(1) && !scores.has_any(0));
        let mut taken = Vec::new();
        scores.take(0, &mut taken);
        assert!(taken.is_empty());
        scores.take(1, &mut taken);
        assert_eq!((taken.len(), taken[0].run, taken[0].tag), (1, run(7), Tag(3)));
        assert!(!scores.has_any(1));
        scores.forget(&run(7));
        assert_eq!(scores.put(scored(7, 4)), None);
    }
}
