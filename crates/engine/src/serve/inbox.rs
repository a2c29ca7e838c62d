//! Queries that wait for a free slot of any driver thread.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use stratann_core::peer::Run;
use stratann_core::query::QueryState;

use crate::tier::Waker;

/// A query to be run here.
pub(super) struct Job {
    pub(super) run: Run,
    pub(super) state: Box<QueryState>,
}

/// One queue for all driver threads.
pub(super) struct Inbox {
    waiting: Mutex<Waiting>,
    // Number of waiting queries, read without the lock.
    length: AtomicUsize,
    threads: Vec<ThreadWaker>,
}

#[derive(Default)]
struct Waiting {
    // Handed-over queries go first: this keeps the number of begun queries small, and the memory of all servers with
    // it.
    batons: VecDeque<Job>,
    fresh: VecDeque<Job>,
}

/// Wakes one driver thread.
#[derive(Default)]
struct ThreadWaker {
    is_waiting: AtomicBool,
    waker: OnceLock<Waker>,
}

impl Inbox {
    pub(super) fn new(threads: usize) -> Inbox {
        Inbox {
            waiting: Mutex::default(),
            length: AtomicUsize::new(0),
            threads: (0..threads).map(|_| ThreadWaker::default()).collect(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Sets the waker of a thread; once, before it waits.
    pub(super) fn set_waker(&self, thread: usize, waker: Waker) {
        let _ = self.threads[thread].waker.set(waker);
    }

    /// Adds a query, and wakes a thread that waits.
    pub(super) fn push(&self, job: Job) {
        let mut waiting = self.lock();
        match job.state.stats().hand_overs {
            0 => waiting.fresh.push_back(job),
            _ => waiting.batons.push_back(job),
        }
        self.length.fetch_add(1, Ordering::SeqCst);
        drop(waiting);
        // One thread is enough: a thread that does not wait looks here before it does.
        let idle = self.threads.iter().find(|t| t.is_waiting.swap(false, Ordering::SeqCst));
        if let Some(waker) = idle.and_then(|t| t.waker.get()) {
            waker.wake();
        }
    }

    /// Returns the next query for a thread.
    pub(super) fn pop(&self, thread: usize) -> Option<Job> {
        self.threads[thread].is_waiting.store(false, Ordering::SeqCst);
        if self.len() == 0 {
            return None;
        }
        let mut waiting = self.lock();
        let job = waiting.batons.pop_front().or_else(|| waiting.fresh.pop_front())?;
        self.length.fetch_sub(1, Ordering::SeqCst);
        Some(job)
    }

    /// Removes the queries that are no longer wanted. Returns their number.
    pub(super) fn retain(&self, mut is_wanted: impl FnMut(&Run) -> bool) -> usize {
        let mut waiting = self.lock();
        let before = waiting.batons.len() + waiting.fresh.len();
        waiting.batons.retain(|job| is_wanted(&job.run));
        waiting.fresh.retain(|job| is_wanted(&job.run));
        let removed = before - waiting.batons.len() - waiting.fresh.len();
        self.length.fetch_sub(removed, Ordering::SeqCst);
        removed
    }

    /// Returns the number of waiting queries.
    pub(super) fn len(&self) -> usize {
        self.length.load(Ordering::SeqCst)
    }

    /// Whether a thread with a free slot may wait: the inbox is empty. A later push wakes it.
    pub(super) fn may_wait(&self, thread: usize) -> bool {
        let own = &self.threads[thread];
        own.is_waiting.store(true, Ordering::SeqCst);
        let may = self.len() == 0;
        if !may {
            own.is_waiting.store(false, Ordering::SeqCst);
        }
        may
    }

    /// Wakes all threads.
    pub(super) fn wake_all(&self) {
        self.threads.iter().filter_map(|t| t.waker.get()).for_each(Waker::wake);
    }
}
