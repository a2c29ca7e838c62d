//! Runs long work in a separate thread, while the calling thread handles Python's signals and progress.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use pyo3::prelude::*;
use stratann_storage::{Error, Progress, Result, threads};

use crate::error;

/// Interval of checks for signals and progress: short for a person, long for the work.
const TICK: Duration = Duration::from_millis(50);

/// Events of the work that were not yet passed to Python.
enum Event {
    Stage {
        name: String,
        total: u64,
        unit: String,
    },
    /// The previous stage ended with this number of units done.
    StageEnd {
        done: u64,
    },
    Note(String),
}

/// Progress of the work, kept until the calling thread passes it on.
#[derive(Default)]
struct ProgressState {
    events: Mutex<Vec<Event>>,
    in_stage: AtomicBool,
    done: AtomicU64,
    stop: AtomicBool,
}

impl ProgressState {
    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        lock(&self.events)
    }
}

impl Progress for ProgressState {
    fn stage(&self, name: &str, total: u64, unit: &str) {
        let mut events = self.events();
        if self.in_stage.swap(true, Ordering::Relaxed) {
            events.push(Event::StageEnd { done: self.done.load(Ordering::Relaxed) });
        }
        self.done.store(0, Ordering::Relaxed);
        events.push(Event::Stage { name: name.into(), total, unit: unit.into() });
    }

    fn advance(&self, count: u64) {
        self.done.fetch_add(count, Ordering::Relaxed);
    }

    fn note(&self, line: &str) {
        self.events().push(Event::Note(line.into()));
    }

    fn interrupted(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Passes events on to `on_progress(stage, done, total, unit)`, and to its method `note(line)` if it has one.
struct Relay<'a> {
    callback: Option<&'a Py<PyAny>>,
    stage: Option<(String, u64, String)>,
    last: u64,
}

impl Relay<'_> {
    fn pass_on(&mut self, py: Python<'_>, state: &ProgressState) -> PyResult<()> {
        let Some(callback) = self.callback else { return Ok(()) };
        // `done` is read under the lock, so that it belongs to the last stage of the events.
        let (events, done) = {
            let mut events = state.events();
            (std::mem::take(&mut *events), state.done.load(Ordering::Relaxed))
        };
        for event in events {
            match event {
                Event::Note(line) => {
                    if let Some(note) = callback.bind(py).getattr_opt("note")? {
                        note.call1((line,))?;
                    }
                }
                Event::StageEnd { done } => self.tell(py, callback, done)?,
                Event::Stage { name, total, unit } => {
                    self.stage = Some((name, total, unit));
                    self.last = u64::MAX;
                    self.tell(py, callback, 0)?;
                }
            }
        }
        self.tell(py, callback, done)
    }

    fn tell(&mut self, py: Python<'_>, callback: &Py<PyAny>, done: u64) -> PyResult<()> {
        match &self.stage {
            Some((name, total, unit)) if done != self.last => {
                self.last = done;
                callback.call1(py, (name, done, *total, unit)).map(drop)
            }
            _ => Ok(()),
        }
    }
}

/// Runs `work` with the GIL released.
///
/// Every `TICK` the calling thread lets Python handle signals and calls `on_progress`. When one raises, the
/// work is asked to stop, and the exception is raised after it has stopped.
pub(crate) fn run<T: Send>(
    py: Python<'_>,
    on_progress: Option<&Py<PyAny>>,
    work: impl FnOnce(&dyn Progress) -> Result<T> + Send,
) -> PyResult<T> {
    let state = ProgressState::default();
    let mut relay = Relay { callback: on_progress, stage: None, last: 0 };
    let (ended, raised) = py.detach(|| watch(&state, &mut relay, work));
    match (ended, raised) {
        (Ok(_), Some(raised)) => Err(raised),
        (Err(e), Some(raised)) => Err(error::with_note(py, raised, &e)),
        (Err(e), None) => Err(error::to_python(py, &e)),
        (Ok(value), None) => relay.pass_on(py, &state).map(|()| value),
    }
}

/// Runs `work` with threads of its own, as many as processors for 0. The shared ones of the process are not there in a
/// child that is forked.
pub(crate) fn in_pool<T: Send>(threads: usize, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.map_err(|e| Error::bad_input(format!("cannot start the threads asked for: {e}")))?.install(work)
}

/// Runs `work` in another thread until it ends. Returns its result, and an exception that Python raised meanwhile.
fn watch<T: Send>(
    state: &ProgressState,
    relay: &mut Relay<'_>,
    work: impl FnOnce(&dyn Progress) -> Result<T> + Send,
) -> (Result<T>, Option<PyErr>) {
    // The thread owns the sender: the channel closes when the work ends, also by a panic.
    let (alive, ended) = channel::<()>();
    let (todo, done) = (Mutex::new(Some((work, alive))), Mutex::new(None));
    let watching = Mutex::new((relay, ended, None));
    let ran = threads::together(2, &|number| {
        if number == 0 {
            let (relay, ended, raised) = &mut *lock(&watching);
            *raised = tick(state, relay, ended);
            return;
        }
        let own = lock(&todo).take();
        if let Some((work, _alive)) = own {
            let result = work(state);
            *lock(&done) = Some(result);
        }
    });
    let (_, _, raised) = watching.into_inner().unwrap_or_else(|e| e.into_inner());
    let none = || Err(Error::corrupt("a worker thread ended unexpectedly; please report it"));
    let done = done.into_inner().unwrap_or_else(|e| e.into_inner());
    (ran.and_then(|()| done.unwrap_or_else(none)), raised)
}

/// Lets Python handle signals, and passes progress on, until the channel closes.
fn tick(state: &ProgressState, relay: &mut Relay<'_>, ended: &Receiver<()>) -> Option<PyErr> {
    let mut raised = None;
    while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
        if raised.is_some() {
            continue;
        }
        raised = Python::attach(|py| py.check_signals().and_then(|()| relay.pass_on(py, state)).err());
        state.stop.store(raised.is_some(), Ordering::Relaxed);
    }
    raised
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
