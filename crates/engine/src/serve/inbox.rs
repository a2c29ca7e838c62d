//! Queries that wait for a free place on any driver thread.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
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
    doors: Vec<Door>,
}

#[derive(Default)]
struct Waiting {
    // Queries that have come far go first: it keeps the number of those begun small, and with it what all servers hold.
    batons: VecDeque<Job>,
    fresh: VecDeque<Job>,
}

/// Where a driver thread is woken.
#[derive(Default)]
struct Door {
    is_waiting: AtomicBool,
    waker: OnceLock<Waker>,
}

impl Inbox {
    pub(super) fn new(threads: usize) -> Inbox {
        Inbox { waiting: Mutex::default(), doors: (0..threads).map(|_| Door::default()).collect() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Says how a thread is woken; once, before it waits.
    pub(super) fn set_waker(&self, thread: usize, waker: Waker) {
        let _ = self.doors[thread].waker.set(waker);
    }

    pub(super) fn push(&self, job: Job) {
        let mut waiting = self.lock();
        match job.state.stats().hand_overs {
            0 => waiting.fresh.push_back(job),
            _ => waiting.batons.push_back(job),
        }
        drop(waiting);
        // One thread is enough; those that do not wait look here before they do.
        let idle = self.doors.iter().find(|d| d.is_waiting.swap(false, Ordering::SeqCst));
        if let Some(waker) = idle.and_then(|d| d.waker.get()) {
            waker.wake();
        }
    }

    /// The next query for a thread.
    pub(super) fn pop(&self, thread: usize) -> Option<Job> {
        self.doors[thread].is_waiting.store(false, Ordering::SeqCst);
        let mut waiting = self.lock();
        waiting.batons.pop_front().or_else(|| waiting.fresh.pop_front())
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        let waiting = self.lock();
        waiting.batons.len() + waiting.fresh.len()
    }

    /// A thread with a free place is about to wait: whether it may, because nothing is here. From then on a push wakes it.
    pub(super) fn may_wait(&self, thread: usize) -> bool {
        let door = &self.doors[thread];
        door.is_waiting.store(true, Ordering::SeqCst);
        let may = self.len() == 0;
        if !may {
            door.is_waiting.store(false, Ordering::SeqCst);
        }
        may
    }

    /// Wakes all threads.
    pub(super) fn wake_all(&self) {
        self.doors.iter().filter_map(|d| d.waker.get()).for_each(Waker::wake);
    }
}
