//! Watches the store of a running server: new versions are fetched and opened beside the served one.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use stratann_cluster::store::{Store, drop_others};
use stratann_engine::serve::{Changed, Versions};
use stratann_server::Log;
use stratann_storage::{Error, ErrorKind, Progress, Result};

/// Interval of checks during a change of versions.
const STEP: Duration = Duration::from_millis(100);

/// Store that is watched.
pub(super) struct Watched {
    /// The store.
    pub(super) place: String,
    /// Folder for its versions.
    pub(super) home: PathBuf,
    /// Number of the server whose files are fetched; `None` for the whole index.
    pub(super) server: Option<u8>,
    /// Interval of checks of the store.
    pub(super) every: Duration,
    pub(super) versions: Arc<Versions>,
    pub(super) log: Log,
}

/// A watching thread. Dropping it ends the thread.
pub(super) struct Watch {
    wakes: Sender<()>,
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts to watch; `changed` is called when new queries use another version.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub(super) fn start(watched: Watched, changed: impl Fn() + Send + 'static) -> Result<Watch> {
        let (wakes, woken) = channel();
        let is_stopped = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&is_stopped);
        let run = move || {
            Watching { watched, store: None, stopped, said: String::new(), seen: 0 }.run(&woken, &changed)
        };
        let thread = std::thread::Builder::new().name("store".into()).spawn(run).map_err(|e| Error {
            kind: ErrorKind::Io,
            message: format!("starting a thread: {e}; raise the limit of threads"),
        })?;
        Ok(Watch { wakes, is_stopped, thread: Some(thread) })
    }

    /// Triggers a check of the store; callable from any thread.
    pub(super) fn waker(&self) -> impl Fn() + Send + 'static + use<> {
        let wakes = self.wakes.clone();
        move || {
            // The thread has ended when the receiver is gone.
            let _ = wakes.send(());
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        let _ = self.wakes.send(());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Watching {
    watched: Watched,
    // Opened at the first check, as a server may start without it.
    store: Option<Store>,
    stopped: Arc<AtomicBool>,
    // The last error, so that it is logged once.
    said: String,
    // The newest version that needs no further check.
    seen: u64,
}

impl Watching {
    fn run(mut self, woken: &Receiver<()>, changed: &dyn Fn()) {
        let mut next = Instant::now() + self.watched.every;
        while !self.is_stopped() {
            let is_woken = match woken.recv_timeout(STEP) {
                Ok(()) => true,
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            self.step(changed);
            if self.is_stopped() || !(is_woken || Instant::now() >= next) {
                continue;
            }
            match self.look() {
                Ok(()) => self.said.clear(),
                Err(e) if e.kind == ErrorKind::Interrupted => return,
                Err(e) => self.say(&e),
            }
            next = Instant::now() + self.watched.every;
        }
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    fn step(&self, changed: &dyn Fn()) {
        let Watched { home, versions, log, .. } = &self.watched;
        match versions.step() {
            None => {}
            Some(Changed::Switched(number)) => {
                log(&format!(
                    "version {number} is served from now on; queries in flight end on the previous one"
                ));
                changed();
            }
            Some(Changed::Dropped(number)) => {
                let kept = home.join(versions.newest_build().to_string());
                match drop_others(home, &kept) {
                    Ok(()) => log(&format!("version {number} is no longer used and was closed")),
                    Err(e) => log(&format!(
                        "version {number} is no longer used, but its files remain: {}",
                        e.message
                    )),
                }
            }
        }
    }

    /// Fetches and opens the newest version, when it is new and no change is in progress.
    fn look(&mut self) -> Result<()> {
        let Watched { home, versions, server, log, place, .. } = &self.watched;
        let store = match self.store.take() {
            Some(store) => self.store.insert(store),
            None => self.store.insert(Store::open(place)?),
        };
        let Some(&last) = store.versions()?.last() else { return Ok(()) };
        if last == self.seen || !versions.may_add() {
            return Ok(());
        }
        let Some((number, newest)) = store.newest()? else { return Ok(()) };
        let damaged = newest.damaged_note(number);
        if newest.build_id() == versions.newest_build() {
            match damaged {
                // It may be restored: the store is read again at the next check.
                Some(note) => return Err(Error::corrupt(note)),
                None => self.seen = number,
            }
            return Ok(());
        }
        let fetched = store.fetch(home, *server, &UntilStopped(&self.stopped))?;
        log(&format!("version {} of {place}: {}", fetched.number, fetched.text()));
        let added = versions.add(fetched.number, fetched.folder);
        // A version that does not fit now will not fit at the next check; one that could not be read may then.
        if added.as_ref().err().is_none_or(|e| matches!(e.kind, ErrorKind::BadInput | ErrorKind::Budget)) {
            self.seen = fetched.number;
        }
        added
    }

    fn say(&mut self, error: &Error) {
        let line = format!("no change to a new version: {}; serving on", error.message);
        if line != self.said {
            (self.watched.log)(&line);
            self.said = line;
        }
    }
}

/// A download that ends with its server.
struct UntilStopped<'a>(&'a AtomicBool);

impl Progress for UntilStopped<'_> {
    fn stage(&self, _: &str, _: u64, _: &str) {}
    fn advance(&self, _: u64) {}
    fn note(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
