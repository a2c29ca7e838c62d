//! Connections from other servers on their way to the driver threads that receive them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use stratann_storage::link::Inbound;

use super::lock;

/// Connections that wait for their driver threads.
pub(super) struct Connections {
    threads: Vec<Waiting>,
}

#[derive(Default)]
struct Waiting {
    // `None` while the thread takes none.
    new: Mutex<Option<Vec<Inbound>>>,
    // Read without the lock.
    has_any: AtomicBool,
}

/// A thread takes connections as long as this lives.
pub(super) struct Taking<'a> {
    connections: &'a Connections,
    thread: usize,
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.connections.close(self.thread);
    }
}

impl Connections {
    pub(super) fn new(threads: usize) -> Connections {
        Connections { threads: (0..threads).map(|_| Waiting::default()).collect() }
    }

    /// A thread takes connections as long as the result lives.
    pub(super) fn open(&self, thread: usize) -> Taking<'_> {
        *lock(&self.threads[thread].new) = Some(Vec::new());
        Taking { connections: self, thread }
    }

    /// A thread takes no more. Those that wait for it are closed.
    pub(super) fn close(&self, thread: usize) {
        let own = &self.threads[thread];
        let mut new = lock(&own.new);
        let waiting = new.take();
        own.has_any.store(false, Ordering::SeqCst);
        // Closing one calls the protocol.
        drop(new);
        drop(waiting);
    }

    /// Gives a connection to a thread, the same one for each connection of a server. Returns the number of the thread.
    ///
    /// # Errors
    /// The connection, where that thread takes none.
    pub(super) fn give(&self, connection: Inbound) -> Result<usize, Box<Inbound>> {
        let thread = usize::from(connection.server()) % self.threads.len();
        let own = &self.threads[thread];
        let mut new = lock(&own.new);
        let Some(waiting) = &mut *new else { return Err(Box::new(connection)) };
        waiting.push(connection);
        own.has_any.store(true, Ordering::SeqCst);
        Ok(thread)
    }

    /// Whether connections wait for a thread.
    pub(super) fn has_any(&self, thread: usize) -> bool {
        self.threads[thread].has_any.load(Ordering::SeqCst)
    }

    /// Takes a connection that waits for a thread.
    pub(super) fn take(&self, thread: usize) -> Option<Inbound> {
        let own = &self.threads[thread];
        if !self.has_any(thread) {
            return None;
        }
        let mut new = lock(&own.new);
        let taken = new.as_mut().and_then(Vec::pop);
        own.has_any.store(new.as_ref().is_some_and(|new| !new.is_empty()), Ordering::SeqCst);
        taken
    }
}
