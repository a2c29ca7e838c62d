//! Queries that wait for a free slot of any driver thread.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread::ThreadId;

use stratann_core::peer::Run;
use stratann_core::query::QueryState;
use stratann_storage::ledger::Reservation;
use stratann_storage::tier::Waker;

use super::QueryFilter;

/// A query to be run here.
pub(super) struct Job {
    pub(super) run: Run,
    pub(super) state: Box<QueryState>,
    pub(super) size: Size,
    pub(super) place: Place,
    /// The rows that a client's query may return; `None` for all.
    pub(super) filter: Option<QueryFilter>,
    /// Memory of a large state while it waits.
    pub(super) memory: Option<Reservation>,
    /// Time of the arrival, on the clock of the server.
    pub(super) queued_us: u64,
}

/// Client and request of a query: clients take turns, and so do the requests of one client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) client: u64,
    pub(super) request: u64,
}

/// Memory and weight of a query on a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    /// Bytes beyond a usual slot, to be reserved before it runs; 0 for a usual query.
    pub(super) extra_bytes: u64,
    /// The part of these for read buffers.
    pub(super) buffers_bytes: usize,
    /// Whether its steps come after those of other queries: it is large, or one of a batch.
    pub(super) is_heavy: bool,
}

/// One queue for all driver threads.
pub(super) struct Inbox {
    waiting: Mutex<Waiting>,
    // Number of waiting queries and jobs, and of jobs alone, read without the lock.
    length: AtomicUsize,
    jobs: AtomicUsize,
    // Whether none of them can run before another one ends.
    is_stalled: AtomicBool,
    threads: Vec<ThreadWaker>,
}

/// Slots that become free of which one is offered to heavy queries first.
const HEAVY_TURN: u64 = 4;

#[derive(Default)]
struct Waiting {
    // Jobs go first: they wait for no other server, and queries of other servers wait for them. Then handed-over
    // queries: this keeps the number of begun queries small, and the memory of all servers with it.
    jobs: VecDeque<Job>,
    batons: VecDeque<Job>,
    light: Clients,
    heavy: Clients,
    turns: u64,
}

/// Queries of clients that take turns.
type Clients = Turns<Turns<VecDeque<Job>>>;

/// A queue of jobs, of whatever order.
trait Queue: Default {
    fn add(&mut self, job: Job, path: &[u64]);
    fn front(&self) -> Option<&Job>;
    fn remove_front(&mut self) -> Option<Job>;
    /// Removes the jobs for which this does not hold. Returns their number.
    fn keep(&mut self, is_kept: &mut dyn FnMut(&Job) -> bool) -> usize;
}

impl Queue for VecDeque<Job> {
    fn add(&mut self, job: Job, _: &[u64]) {
        self.push_back(job);
    }

    fn front(&self) -> Option<&Job> {
        VecDeque::front(self)
    }

    fn remove_front(&mut self) -> Option<Job> {
        self.pop_front()
    }

    fn keep(&mut self, is_kept: &mut dyn FnMut(&Job) -> bool) -> usize {
        let before = self.len();
        self.retain(is_kept);
        before - self.len()
    }
}

/// Queues that take turns, none of them empty.
struct Turns<Q> {
    queues: BTreeMap<u64, Q>,
    order: VecDeque<u64>,
}

impl<Q> Default for Turns<Q> {
    fn default() -> Self {
        Turns { queues: BTreeMap::new(), order: VecDeque::new() }
    }
}

impl<Q: Queue> Queue for Turns<Q> {
    fn add(&mut self, job: Job, path: &[u64]) {
        let Some((&first, rest)) = path.split_first() else { return };
        let order = &mut self.order;
        let queue = self.queues.entry(first).or_insert_with(|| {
            order.push_back(first);
            Q::default()
        });
        queue.add(job, rest);
    }

    fn front(&self) -> Option<&Job> {
        self.queues.get(self.order.front()?)?.front()
    }

    fn remove_front(&mut self) -> Option<Job> {
        let first = self.order.pop_front()?;
        let queue = self.queues.get_mut(&first)?;
        let job = queue.remove_front();
        if queue.front().is_none() {
            self.queues.remove(&first);
        } else {
            self.order.push_back(first);
        }
        job
    }

    fn keep(&mut self, is_kept: &mut dyn FnMut(&Job) -> bool) -> usize {
        let mut removed = 0;
        self.queues.retain(|_, queue| {
            removed += queue.keep(is_kept);
            queue.front().is_some()
        });
        self.order.retain(|key| self.queues.contains_key(key));
        removed
    }
}

impl Clients {
    fn push(&mut self, job: Job) {
        let Place { client, request } = job.place;
        self.add(job, &[client, request]);
    }

    /// Removes the next query, if `admit` agrees.
    fn pop<T>(&mut self, admit: &mut impl FnMut(&Job) -> Option<T>) -> Option<(Job, T)> {
        let admitted = admit(self.front()?)?;
        Some((self.remove_front()?, admitted))
    }
}

/// Work that a thread may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Free {
    /// Queries and jobs.
    Any = 1,
    /// Jobs alone: it has as many queries as it may.
    Jobs = 2,
}

/// Wakes one driver thread.
#[derive(Default)]
struct ThreadWaker {
    // 0 while it does not wait, else a number of `Free`.
    waits_for: AtomicU8,
    waker: OnceLock<Waker>,
    id: OnceLock<ThreadId>,
}

impl ThreadWaker {
    fn is_current(&self) -> bool {
        self.id.get().is_some_and(|id| *id == std::thread::current().id())
    }

    /// Wakes the thread. The calling thread is awake, and looks here before it waits.
    fn wake(&self) {
        if let Some(waker) = self.waker.get()
            && !self.is_current()
        {
            waker.wake();
        }
    }
}

impl Inbox {
    pub(super) fn new(threads: usize) -> Inbox {
        Inbox {
            waiting: Mutex::default(),
            length: AtomicUsize::new(0),
            jobs: AtomicUsize::new(0),
            is_stalled: AtomicBool::new(false),
            threads: (0..threads).map(|_| ThreadWaker::default()).collect(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Sets the waker of this thread; once, before it waits.
    pub(super) fn set_waker(&self, thread: usize, waker: Waker) {
        let _ = self.threads[thread].id.set(std::thread::current().id());
        let _ = self.threads[thread].waker.set(waker);
    }

    /// Adds a query, and wakes a thread that waits.
    pub(super) fn push(&self, job: Job) {
        let mut waiting = self.lock();
        let is_job = job.run.job.is_some();
        if is_job {
            waiting.jobs.push_back(job);
            self.jobs.fetch_add(1, Ordering::SeqCst);
        } else if job.state.stats().hand_overs > 0 {
            waiting.batons.push_back(job);
        } else if job.size.is_heavy {
            waiting.heavy.push(job);
        } else {
            waiting.light.push(job);
        }
        self.length.fetch_add(1, Ordering::SeqCst);
        if !is_job {
            self.is_stalled.store(false, Ordering::SeqCst);
        }
        drop(waiting);
        self.wake_one(is_job);
    }

    /// One thread is enough: a thread that does not wait looks here before it does. The calling thread goes first, if
    /// it had nothing to do until now.
    fn wake_one(&self, for_job: bool) {
        let waits = |thread: &&ThreadWaker, for_what: Free| {
            let (from, to) = (for_what as u8, 0);
            thread.waits_for.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        let own = self.threads.iter().find(|thread| thread.is_current());
        let mut any = own.into_iter().chain(&self.threads);
        let any = any.find(|thread| waits(thread, Free::Any));
        let idle = any.or_else(|| self.threads.iter().find(|thread| for_job && waits(thread, Free::Jobs)));
        idle.into_iter().for_each(ThreadWaker::wake);
    }

    /// Memory or slots for heavy queries have become free: looks again at those that wait for them.
    pub(super) fn resume(&self) {
        // The lock orders this after a look that found too little.
        let waiting = self.lock();
        let was_stalled = self.is_stalled.swap(false, Ordering::SeqCst);
        drop(waiting);
        if was_stalled && self.len() > 0 {
            self.wake_one(false);
        }
    }

    /// Returns the next query or job for a thread, with what `admit` made for it. A query that it does not admit keeps
    /// its place.
    pub(super) fn pop<T>(
        &self,
        thread: usize,
        free: Free,
        mut admit: impl FnMut(&Job) -> Option<T>,
    ) -> Option<(Job, T)> {
        self.threads[thread].waits_for.store(0, Ordering::SeqCst);
        if !self.has_any(free) {
            return None;
        }
        let mut waiting = self.lock();
        let job = waiting.jobs.front().and_then(&mut admit);
        if let Some(admitted) = job {
            self.jobs.fetch_sub(1, Ordering::SeqCst);
            self.length.fetch_sub(1, Ordering::SeqCst);
            return Some((waiting.jobs.pop_front()?, admitted));
        }
        if free == Free::Jobs || self.is_stalled.load(Ordering::SeqCst) {
            return None;
        }
        let found = waiting.next(&mut admit);
        match &found {
            Some(_) => drop(self.length.fetch_sub(1, Ordering::SeqCst)),
            None => self.is_stalled.store(true, Ordering::SeqCst),
        }
        found
    }

    /// Whether something waits that such a thread may begin.
    fn has_any(&self, free: Free) -> bool {
        let has_queries = self.len() > 0 && !self.is_stalled.load(Ordering::SeqCst);
        self.jobs.load(Ordering::SeqCst) > 0 || (free == Free::Any && has_queries)
    }

    /// Removes the queries that are no longer wanted. Returns their number.
    pub(super) fn retain(&self, mut is_wanted: impl FnMut(&Run) -> bool) -> usize {
        let mut waiting = self.lock();
        let before = (waiting.jobs.len(), waiting.batons.len());
        waiting.jobs.retain(|job| is_wanted(&job.run));
        let jobs = before.0 - waiting.jobs.len();
        self.jobs.fetch_sub(jobs, Ordering::SeqCst);
        waiting.batons.retain(|job| is_wanted(&job.run));
        let batons = jobs + before.1 - waiting.batons.len();
        let mut is_wanted = |job: &Job| is_wanted(&job.run);
        let removed = batons + waiting.light.keep(&mut is_wanted) + waiting.heavy.keep(&mut is_wanted);
        self.length.fetch_sub(removed, Ordering::SeqCst);
        removed
    }

    /// Removes the heavy queries of clients of server `origin`. Returns their runs.
    pub(super) fn take_heavy(&self, origin: u8) -> Vec<Run> {
        let mut waiting = self.lock();
        let mut runs = Vec::new();
        waiting.heavy.keep(&mut |job| {
            let is_kept = job.run.query.origin != origin;
            runs.extend((!is_kept).then_some(job.run));
            is_kept
        });
        self.length.fetch_sub(runs.len(), Ordering::SeqCst);
        runs
    }

    /// Returns the number of waiting queries.
    pub(super) fn len(&self) -> usize {
        self.length.load(Ordering::SeqCst)
    }

    /// Whether a thread with a free slot may wait: nothing could run. A later push wakes it.
    pub(super) fn may_wait(&self, thread: usize, free: Free) -> bool {
        let own = &self.threads[thread];
        own.waits_for.store(free as u8, Ordering::SeqCst);
        let may = !self.has_any(free);
        if !may {
            own.waits_for.store(0, Ordering::SeqCst);
        }
        may
    }

    /// Wakes a thread.
    pub(super) fn wake(&self, thread: usize) {
        self.threads.get(thread).into_iter().for_each(ThreadWaker::wake);
    }

    /// Wakes all threads.
    pub(super) fn wake_all(&self) {
        self.threads.iter().for_each(ThreadWaker::wake);
    }
}

impl Waiting {
    fn next<T>(&mut self, admit: &mut impl FnMut(&Job) -> Option<T>) -> Option<(Job, T)> {
        for at in 0..self.batons.len() {
            if let Some(admitted) = admit(&self.batons[at]) {
                return self.batons.remove(at).map(|job| (job, admitted));
            }
        }
        self.turns += 1;
        if self.turns.is_multiple_of(HEAVY_TURN) {
            self.heavy.pop(admit).or_else(|| self.light.pop(admit))
        } else {
            self.light.pop(admit).or_else(|| self.heavy.pop(admit))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratann_core::peer::JobId;
    use stratann_core::peer::message::QueryId;

    fn job(request: u64, number: u64, is_heavy: bool) -> Job {
        let run = Run { query: QueryId { origin: 0, incarnation: 1, number }, attempt: 0, job: None };
        let size = Size { extra_bytes: u64::from(is_heavy), buffers_bytes: 0, is_heavy };
        Job {
            run,
            state: Box::default(),
            size,
            place: Place { client: 0, request },
            filter: None,
            memory: None,
            queued_us: 0,
        }
    }

    fn numbers(inbox: &Inbox, admits_heavy: bool) -> Vec<u64> {
        let mut admit = |job: &Job| (admits_heavy || !job.size.is_heavy).then_some(());
        std::iter::from_fn(|| inbox.pop(0, Free::Any, &mut admit))
            .map(|(job, ())| job.run.query.number)
            .collect()
    }

    #[test]
    fn requests_take_turns() {
        let inbox = Inbox::new(1);
        (0..4).for_each(|n| inbox.push(job(1, n, false)));
        inbox.push(job(2, 10, false));
        inbox.push(job(3, 20, false));
        inbox.push(job(3, 21, false));
        assert_eq!(numbers(&inbox, true), [0, 10, 20, 1, 21, 2, 3]);
        assert_eq!(inbox.len(), 0);
    }

    #[test]
    fn a_client_with_many_requests_has_no_more_turns_than_one_with_few() {
        let inbox = Inbox::new(1);
        let of = |client, request, number| {
            let job = job(request, number, false);
            inbox.push(Job { place: Place { client, request }, ..job });
        };
        (0..200).for_each(|n| of(1, n, n));
        of(2, 200, 1000);
        of(2, 200, 1001);
        of(2, 201, 1010);
        of(3, 202, 2000);
        let all = numbers(&inbox, true);
        assert_eq!(all[..9], [0, 1000, 2000, 1, 1010, 2, 1001, 3, 4]);
        assert_eq!(all.len(), 204);
    }

    #[test]
    fn a_thread_takes_the_first_query_that_it_brings_and_others_are_woken_for_the_next() {
        let (inbox, rung) = (Inbox::new(2), [const { AtomicUsize::new(0) }; 2]);
        let rung = std::sync::Arc::new(rung);
        let waker = |thread: usize| {
            let rung = rung.clone();
            Waker::new(move || {
                rung[thread].fetch_add(1, Ordering::SeqCst);
            })
        };
        let woken = || [0, 1].map(|thread: usize| rung[thread].load(Ordering::SeqCst));
        std::thread::scope(|scope| {
            scope.spawn(|| inbox.set_waker(0, waker(0)));
        });
        inbox.set_waker(1, waker(1));
        assert!(inbox.may_wait(0, Free::Any) && inbox.may_wait(1, Free::Any));
        inbox.push(job(1, 0, false));
        assert_eq!(woken(), [0, 0], "this thread looks before it waits");
        inbox.push(job(1, 1, false));
        assert_eq!(woken(), [1, 0]);
        inbox.push(job(1, 2, false));
        inbox.wake(1);
        assert_eq!(woken(), [1, 0], "all are awake");
        assert_eq!(numbers(&inbox, true), [0, 1, 2]);
        assert!(inbox.may_wait(1, Free::Any));
        std::thread::scope(|scope| {
            scope.spawn(|| inbox.push(job(1, 3, false)));
        });
        assert_eq!(woken(), [1, 1]);
    }

    #[test]
    fn heavy_queries_that_wait_can_be_taken_out() {
        let inbox = Inbox::new(1);
        (0..3).for_each(|n| inbox.push(job(n, n, true)));
        inbox.push(job(4, 10, false));
        assert!(inbox.take_heavy(1).is_empty());
        let taken: Vec<u64> = inbox.take_heavy(0).iter().map(|run| run.query.number).collect();
        assert_eq!(taken, [0, 1, 2]);
        assert_eq!((numbers(&inbox, true), inbox.len()), (vec![10], 0));
    }

    #[test]
    fn queries_that_wait_for_memory_do_not_hold_up_others() {
        let inbox = Inbox::new(1);
        inbox.push(job(1, 0, true));
        inbox.push(job(1, 1, true));
        (10..13).for_each(|n| inbox.push(job(n, n, false)));
        assert_eq!(numbers(&inbox, false), [10, 11, 12]);
        assert!(inbox.len() == 2 && inbox.may_wait(0, Free::Any), "a thread sleeps until memory is free");
        assert!(numbers(&inbox, true).is_empty(), "nothing has changed");
        inbox.resume();
        assert!(!inbox.may_wait(0, Free::Any));
        assert_eq!(numbers(&inbox, true), [0, 1]);
        inbox.push(job(1, 2, true));
        inbox.push(job(2, 3, false));
        assert_eq!(inbox.retain(|run| run.query.number == 3), 1);
        assert_eq!(numbers(&inbox, true), [3]);
    }

    #[test]
    fn a_thread_with_all_its_queries_begins_jobs_and_sleeps_beside_queries_that_wait() {
        let inbox = Inbox::new(1);
        inbox.push(job(1, 0, false));
        let begin = |free| inbox.pop(0, free, |_| Some(())).map(|(job, ())| job.run.query.number);
        assert_eq!(begin(Free::Jobs), None);
        assert!(inbox.may_wait(0, Free::Jobs) && !inbox.may_wait(0, Free::Any));
        let id = JobId { asker: 1, tag: 0, sends: 0 };
        let of_other = |number| {
            let job = job(1, number, true);
            inbox.push(Job { run: Run { job: Some(id), ..job.run }, ..job });
        };
        of_other(7);
        assert!(!inbox.may_wait(0, Free::Jobs) && inbox.len() == 2);
        assert_eq!((begin(Free::Jobs), begin(Free::Jobs)), (Some(7), None));
        of_other(8);
        assert_eq!((begin(Free::Any), begin(Free::Any)), (Some(8), Some(0)), "jobs go first");
        of_other(9);
        assert_eq!(inbox.retain(|run| run.job.is_none()), 1);
        assert!(inbox.len() == 0 && inbox.may_wait(0, Free::Any));
    }
}
