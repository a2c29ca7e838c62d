//! Frames that wait to be sent to one server, in order.
//!
//! Over a connection in the clear the threads that queue frames also write them, as far as the socket takes them at
//! once. A thread of the connection's own writes what is left, writes under TLS, and gives signs of life.

use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use stratann_core::peer::message::HEADER;

use super::secure::Wire;
use super::{LinkTraffic, sockets};

/// A bounded queue of frames for one connection.
pub(super) struct Outbox {
    waiting: Mutex<Waiting>,
    news: Condvar,
    // Held by the thread that writes, so that bytes go out in order.
    writing: Mutex<Writing>,
    limit: usize,
}

#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    is_open: bool,
    is_closed: bool,
    // Whether the thread of the connection has bytes to write.
    needs_writer: bool,
    // Whether bytes were taken since that thread last looked.
    has_moved: bool,
    // Whether the server has just been heard of: a pause between attempts to reach it ends.
    is_heard: bool,
    traffic: LinkTraffic,
}

/// Bytes that are being written.
#[derive(Default)]
struct Writing {
    // Of an open connection in the clear.
    socket: Option<TcpStream>,
    bytes: Vec<u8>,
    written: usize,
}

impl Writing {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.written = 0;
    }
}

/// What the thread of a connection does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Writes what is left.
    Write,
    /// Gives a sign of life: nothing was written for a while.
    Keepalive,
    /// Waits on: others write.
    Wait,
    /// Ends: the connection is closed.
    End,
}

impl Outbox {
    /// Holds up to `limit` bytes once it is open.
    pub(super) fn new(limit: usize) -> Outbox {
        Outbox { waiting: Mutex::default(), news: Condvar::new(), writing: Mutex::default(), limit }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn lock_writing(&self) -> MutexGuard<'_, Writing> {
        self.writing.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Adds a frame. False when there is no connection or no room. [`Outbox::write_now`] sends it.
    pub(super) fn push(&self, frame: &[u8]) -> bool {
        let mut waiting = self.lock();
        // An empty queue takes a frame of any length: a limit below that length must not block it for ever.
        let is_full = !waiting.bytes.is_empty() && waiting.bytes.len() + frame.len() > self.limit;
        if !waiting.is_open || is_full {
            waiting.traffic.dropped += 1;
            return false;
        }
        waiting.bytes.extend_from_slice(frame);
        waiting.traffic.frames += 1;
        waiting.traffic.bytes += frame.len() as u64;
        true
    }

    /// Writes the waiting frames as far as the socket takes them at once. The rest is left to the thread of the
    /// connection. Returns the number of writes.
    pub(super) fn write_now(&self) -> u64 {
        let mut writes = 0;
        if let Ok(mut writing) = self.writing.try_lock() {
            while self.fill(&mut writing) {
                let Writing { socket: Some(socket), bytes, written } = &mut *writing else { break };
                match sockets::send_now(socket, &bytes[*written..]) {
                    Ok(count) => *written += count,
                    // The thread of the connection meets an error as well, and closes the connection.
                    Err(_) => break,
                }
                writes += 1;
            }
            if writing.rest().is_empty() {
                return writes;
            }
        }
        // Another thread that writes may not see what was queued meanwhile.
        self.call_writer();
        writes
    }

    /// Lets the thread of the connection write.
    fn call_writer(&self) {
        let mut waiting = self.lock();
        if !std::mem::replace(&mut waiting.needs_writer, true) {
            drop(waiting);
            self.news.notify_one();
        }
    }

    /// Takes what waits, unless bytes are left from before. Returns whether there are bytes to write.
    fn fill(&self, writing: &mut Writing) -> bool {
        if writing.rest().is_empty() {
            writing.clear();
            let mut waiting = self.lock();
            // The two buffers are swapped, so that both keep their memory.
            std::mem::swap(&mut waiting.bytes, &mut writing.bytes);
            waiting.has_moved |= !writing.bytes.is_empty();
        }
        !writing.rest().is_empty()
    }

    /// Writes all waiting frames to the connection, or `otherwise` where there are none, and waits until it takes them.
    /// Returns the number of writes.
    ///
    /// # Errors
    /// A connection that broke, or took nothing for too long.
    pub(super) fn write_all(&self, wire: &mut Wire, otherwise: Option<[u8; HEADER]>) -> io::Result<u64> {
        let (mut writing, mut writes) = (self.lock_writing(), 0);
        let is_empty = !self.fill(&mut writing);
        if let Some(frame) = otherwise
            && is_empty
        {
            writing.bytes.extend_from_slice(&frame);
        }
        while self.fill(&mut writing) {
            wire.write_all(writing.rest())?;
            wire.flush()?;
            writing.clear();
            writes += 1;
        }
        Ok(writes)
    }

    /// A connection has been opened. `socket` is that of one in the clear.
    pub(super) fn open(&self, socket: Option<TcpStream>) {
        *self.lock_writing() = Writing { socket, ..Writing::default() };
        let mut waiting = self.lock();
        waiting.bytes.clear();
        (waiting.is_open, waiting.needs_writer, waiting.has_moved) = (true, false, false);
    }

    /// No further frame is taken: those that wait are dropped, and the thread of the connection ends.
    pub(super) fn shut(&self) {
        let mut waiting = self.lock();
        waiting.bytes.clear();
        waiting.is_open = false;
        self.news.notify_all();
    }

    /// The connection is gone.
    pub(super) fn end(&self) {
        self.shut();
        *self.lock_writing() = Writing::default();
    }

    /// Ends every wait, for ever.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.news.notify_all();
    }

    /// Waits for work of the thread of the connection, up to `patience`.
    pub(super) fn work(&self, patience: Duration) -> Work {
        let is_idle = |w: &mut Waiting| !w.needs_writer && w.is_open && !w.is_closed;
        let waited = self.news.wait_timeout_while(self.lock(), patience, is_idle);
        let mut waiting = waited.unwrap_or_else(|e| e.into_inner()).0;
        let has_moved = std::mem::take(&mut waiting.has_moved);
        match std::mem::take(&mut waiting.needs_writer) {
            _ if !waiting.is_open || waiting.is_closed => Work::End,
            true => Work::Write,
            false if has_moved => Work::Wait,
            false => Work::Keepalive,
        }
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
