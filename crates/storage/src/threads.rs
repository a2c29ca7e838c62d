//! Threads of the process. One that has ended a task waits for the next, so that calls and versions start none, and
//! keeps what is its own meanwhile, such as its rings.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use crate::process::PerProcess;
use crate::{Error, Result};

/// Threads that wait for a task, for each core; further ones end.
const IDLE_PER_CORE: usize = 4;

/// A piece of work for one thread.
struct Task {
    body: Box<dyn FnOnce() + Send>,
    ended: Arc<Latch>,
}

/// Counts tasks that have not ended.
#[derive(Default)]
struct Latch {
    state: Mutex<LatchState>,
    changed: Condvar,
}

#[derive(Default)]
struct LatchState {
    running: usize,
    has_panicked: bool,
}

impl Latch {
    fn of(tasks: usize) -> Arc<Latch> {
        let state = LatchState { running: tasks, has_panicked: false };
        Arc::new(Latch { state: Mutex::new(state), changed: Condvar::new() })
    }

    fn end(&self, has_panicked: bool) {
        let mut state = lock(&self.state);
        state.running -= 1;
        state.has_panicked |= has_panicked;
        if state.running == 0 {
            self.changed.notify_all();
        }
    }

    /// Waits for all tasks. Returns whether one has panicked.
    fn wait(&self) -> bool {
        let mut state = lock(&self.state);
        while state.running > 0 {
            state = self.changed.wait(state).unwrap_or_else(|e| e.into_inner());
        }
        state.has_panicked
    }
}

/// The threads that wait.
struct Crew {
    idle: Mutex<Vec<Sender<Task>>>,
    idle_max: usize,
}

/// The threads of this process. A forked child begins without.
fn crew() -> &'static Crew {
    static CREW: PerProcess<Crew> = PerProcess::new();
    let cores = || std::thread::available_parallelism().map_or(1, |n| n.get());
    CREW.get(|| Crew { idle: Mutex::default(), idle_max: IDLE_PER_CORE * cores() })
}

/// Works until too many threads wait.
fn work(own: Sender<Task>, tasks: Receiver<Task>) {
    while let Ok(Task { body, ended }) = tasks.recv() {
        let has_panicked = catch_unwind(AssertUnwindSafe(body)).is_err();
        let crew = crew();
        // It waits before anybody learns that its task has ended: the next call finds it.
        let is_kept = {
            let mut idle = lock(&crew.idle);
            let has_room = idle.len() < crew.idle_max;
            if has_room {
                idle.push(own.clone());
            }
            has_room
        };
        ended.end(has_panicked);
        if !is_kept {
            return;
        }
    }
}

/// So many threads, those that wait first.
fn take(count: usize) -> Result<Vec<Sender<Task>>> {
    let mut taken = {
        let mut idle = lock(&crew().idle);
        let from = idle.len().saturating_sub(count);
        idle.split_off(from)
    };
    while taken.len() < count {
        match spawn() {
            Ok(thread) => taken.push(thread),
            Err(e) => {
                lock(&crew().idle).append(&mut taken);
                return Err(e);
            }
        }
    }
    Ok(taken)
}

/// A new thread, which waits for its first task.
fn spawn() -> Result<Sender<Task>> {
    let (sender, tasks) = channel();
    let own = sender.clone();
    let started = std::thread::Builder::new().name("stratann".into()).spawn(move || work(own, tasks));
    started.map(|_| sender).map_err(|e| no_thread(&e))
}

fn no_thread(e: &io::Error) -> Error {
    Error::bad_input(format!(
        "the system starts no further thread: {e}; ask for fewer threads, or end other programs"
    ))
}

fn give(thread: &Sender<Task>, task: Task) {
    // A thread that was taken waits for its task, whatever its last one did.
    let _ = thread.send(task);
}

/// Calls `work` with 1 to `count - 1` on threads of the process and with 0 on this one, all at once. Returns when all
/// calls have.
///
/// # Errors
/// The system has no thread left, and nothing was called; a call has panicked on another thread.
///
/// # Panics
/// When the call on this thread does.
pub fn together(count: usize, work: &(dyn Fn(usize) + Sync)) -> Result<()> {
    if count <= 1 {
        work(0);
        return Ok(());
    }
    let threads = take(count - 1)?;
    let all = AllEnded(Latch::of(threads.len()));
    // SAFETY: no task outlives this call. `all` waits for each, also where `work(0)` panics, and a task drops its
    // reference before it ends.
    let shared: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(work) };
    for (number, thread) in (1..).zip(&threads) {
        give(thread, Task { body: Box::new(move || shared(number)), ended: all.0.clone() });
    }
    work(0);
    if all.0.wait() {
        return Err(Error::corrupt("a thread ended unexpectedly; please report it"));
    }
    Ok(())
}

/// Waits for all tasks when it goes.
struct AllEnded(Arc<Latch>);

impl Drop for AllEnded {
    fn drop(&mut self) {
        self.0.wait();
    }
}

/// A task on a thread of the process. Dropping it does not end the task.
pub struct Running(Arc<Latch>);

impl Running {
    /// Waits for the end of the task.
    pub fn join(self) {
        self.0.wait();
    }
}

/// Begins a task on a thread of the process.
///
/// # Errors
/// The system has no thread left.
pub fn start(task: impl FnOnce() + Send + 'static) -> Result<Running> {
    let waiting = lock(&crew().idle).pop();
    let thread = waiting.map_or_else(spawn, Ok)?;
    let ended = Latch::of(1);
    give(&thread, Task { body: Box::new(task), ended: ended.clone() });
    Ok(Running(ended))
}

/// Calls `task` on every thread that waits now, soon.
pub fn on_waiting(task: fn()) {
    let threads = std::mem::take(&mut *lock(&crew().idle));
    let ended = Latch::of(threads.len());
    for thread in threads {
        give(&thread, Task { body: Box::new(task), ended: ended.clone() });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread::{ThreadId, current};

    use super::*;

    // Tests of this file share the threads of the process, and run one after another.
    static ALONE: Mutex<()> = Mutex::new(());

    fn ids(count: usize) -> HashSet<ThreadId> {
        let seen = Mutex::new(HashSet::new());
        together(count, &|_| {
            lock(&seen).insert(current().id());
        })
        .unwrap();
        seen.into_inner().unwrap()
    }

    #[test]
    fn calls_use_the_same_threads_again() {
        let _alone = lock(&ALONE);
        let first = ids(3);
        assert_eq!(first.len(), 3);
        for _ in 0..200 {
            assert_eq!(ids(3), first);
        }
        assert!(ids(2).is_subset(&first));
    }

    #[test]
    fn each_number_is_called_once_and_sees_what_is_borrowed() {
        let _alone = lock(&ALONE);
        for count in [0, 1, 2, 9] {
            let calls: Vec<AtomicUsize> = (0..count.max(1)).map(|_| AtomicUsize::new(0)).collect();
            together(count, &|number| {
                // Calls within calls get threads of their own.
                together(2, &|_| {
                    calls[number].fetch_add(1, Ordering::Relaxed);
                })
                .unwrap();
            })
            .unwrap();
            assert!(calls.iter().all(|calls| calls.load(Ordering::Relaxed) == 2));
        }
    }

    #[test]
    fn a_panic_is_an_error_and_the_thread_works_on() {
        let _alone = lock(&ALONE);
        let before = ids(2);
        let failed = together(2, &|number| assert!(number == 0, "on purpose"));
        assert!(failed.unwrap_err().message.contains("please report it"));
        assert_eq!(ids(2), before);
        let own = catch_unwind(|| together(2, &|number| assert!(number == 1, "on purpose")));
        assert!(own.is_err());
        assert_eq!(ids(2), before);
    }

    #[test]
    fn a_task_goes_on_by_itself_and_can_be_awaited() {
        let _alone = lock(&ALONE);
        let (sender, received) = channel();
        let (go, wait) = channel::<()>();
        let running = start(move || {
            wait.recv().unwrap();
            sender.send(current().id()).unwrap();
        })
        .unwrap();
        go.send(()).unwrap();
        running.join();
        assert!(ids(2).contains(&received.recv().unwrap()));
    }

    #[test]
    fn waiting_threads_can_be_told() {
        static TOLD: AtomicUsize = AtomicUsize::new(0);
        let _alone = lock(&ALONE);
        assert_eq!(ids(3).len(), 3);
        on_waiting(|| {
            TOLD.fetch_add(1, Ordering::SeqCst);
        });
        let start = std::time::Instant::now();
        while TOLD.load(Ordering::SeqCst) < 2 && start.elapsed().as_secs() < 20 {
            std::thread::yield_now();
        }
        assert!(TOLD.load(Ordering::SeqCst) >= 2);
    }
}
