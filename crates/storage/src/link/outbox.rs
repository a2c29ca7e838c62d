//! Frames that wait to be sent to one server, in order.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::LinkTraffic;

/// A bounded queue of frames for one writing thread.
pub(super) struct Outbox {
    waiting: Mutex<Waiting>,
    news: Condvar,
    limit: usize,
}

#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    is_open: bool,
    is_closed: bool,
    // Whether the server has just been heard of: a pause between attempts to reach it ends.
    is_heard: bool,
    traffic: LinkTraffic,
}

impl Outbox {
    /// Holds up to `limit` bytes once it is open.
    pub(super) fn new(limit: usize) -> Outbox {
        Outbox { waiting: Mutex::default(), news: Condvar::new(), limit }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Adds a frame. False when there is no connection or no room.
    pub(super) fn push(&self, frame: &[u8]) -> bool {
        let mut waiting = self.lock();
        // An empty queue takes a frame of any length: a limit below that length must not block it for ever.
        let is_full = !waiting.bytes.is_empty() && waiting.bytes.len() + frame.len() > self.limit;
        if !waiting.is_open || is_full {
            waiting.traffic.dropped += 1;
            return false;
        }
        let was_empty = waiting.bytes.is_empty();
        waiting.bytes.extend_from_slice(frame);
        waiting.traffic.frames += 1;
        waiting.traffic.bytes += frame.len() as u64;
        drop(waiting);
        if was_empty {
            self.news.notify_one();
        }
        true
    }

    /// A connection has been opened or closed. Frames for the old one are dropped, and its writer ends.
    pub(super) fn set_open(&self, is_open: bool) {
        let mut waiting = self.lock();
        waiting.bytes.clear();
        waiting.is_open = is_open;
        self.news.notify_all();
    }

    /// Ends every wait, for ever.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.news.notify_all();
    }

    /// Replaces `out` by all waiting bytes. Waits up to `patience` for some. False once the connection is closed.
    pub(super) fn take(&self, out: &mut Vec<u8>, patience: Duration) -> bool {
        out.clear();
        let is_idle = |w: &mut Waiting| w.bytes.is_empty() && w.is_open && !w.is_closed;
        let waited = self.news.wait_timeout_while(self.lock(), patience, is_idle);
        let mut waiting = waited.unwrap_or_else(|e| e.into_inner()).0;
        // The two buffers are swapped, so that both keep their memory.
        std::mem::swap(&mut waiting.bytes, out);
        waiting.is_open && !waiting.is_closed
    }

    /// Waits for `time`, or until the server is heard of. False once closed, which ends the wait.
    pub(super) fn pause(&self, time: Duration) -> bool {
        let waited = self.news.wait_timeout_while(self.lock(), time, |w| !w.is_closed && !w.is_heard);
        let mut waiting = waited.unwrap_or_else(|e| e.into_inner()).0;
        waiting.is_heard = false;
        !waiting.is_closed
    }

    /// The server has connected to this one: it is worth dialling at once.
    pub(super) fn end_pause(&self) {
        self.lock().is_heard = true;
        self.news.notify_all();
    }

    pub(super) fn add_to(&self, sum: &mut LinkTraffic) {
        let own = self.lock().traffic;
        sum.frames += own.frames;
        sum.bytes += own.bytes;
        sum.dropped += own.dropped;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_server_that_is_heard_of_is_dialled_at_once() {
        let (outbox, start) = (Outbox::new(100), Instant::now());
        outbox.end_pause();
        assert!(outbox.pause(Duration::from_secs(60)));
        assert!(start.elapsed() < Duration::from_secs(30));
        assert!(outbox.pause(Duration::ZERO), "the next pause is whole");
        outbox.close();
        assert!(!outbox.pause(Duration::from_secs(60)));
    }
}
