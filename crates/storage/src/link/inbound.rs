//! Connections that other servers have dialed, and their frames.
//!
//! A connection in the clear is received by a driver thread through its tier ([`Inbounds`]): it wakes for frames and
//! for reads alike. A thread of its own reads one under TLS, and one that no driver takes.

use std::io::{self, Read};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use stratann_core::peer::message::{self, HEADER, Refused};

use super::outbox::Outbox;
use super::secure::Wire;
use super::{LinkState, SILENCE, sockets};
use crate::ledger::Reservation;
use crate::tier::{Buffer, Completion, Tier};

/// Bytes of one read, and those of a frame in parts that need no reservation.
const READ_BYTES: usize = 32 << 10;

/// A place among the open connections of a listener.
pub(super) struct Place(Arc<AtomicUsize>);

impl Place {
    /// `None` where all of `limit` are taken.
    pub(super) fn take(open: &Arc<AtomicUsize>, limit: usize) -> Option<Place> {
        // Its drop gives back what is one too many.
        let place = Place(open.clone());
        (open.fetch_add(1, Ordering::SeqCst) < limit).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A connection from another server. Dropping it closes it.
pub struct Inbound {
    link: Arc<LinkState>,
    server: u8,
    // Among the connections of the link.
    number: u64,
    from: String,
    wire: Wire,
    frames: Frames,
    heard: Arc<Heard>,
    _place: Place,
}

impl Inbound {
    /// Begins to receive from a server that has greeted. `None` once the link has stopped.
    pub(super) fn begin(
        link: &Arc<LinkState>,
        (server, from): (u8, String),
        wire: Wire,
        place: Place,
    ) -> Option<Inbound> {
        wire.socket().set_nonblocking(false).ok()?;
        let socket = Arc::new(wire.socket().try_clone().ok()?);
        // The link closes it when it stops.
        let number = link.begin_receiving(&socket)?;
        link.note(server, |state| state.inbound = number);
        // A server that was away is reached by all others at about the same time.
        link.outboxes.get(usize::from(server)).into_iter().for_each(Outbox::end_pause);
        let heard =
            Arc::new(Heard { socket, has_come: AtomicBool::new(true), is_silent: AtomicBool::new(false) });
        let (link, frames) = (link.clone(), Frames::default());
        Some(Inbound { link, server, number, from, wire, frames, heard, _place: place })
    }

    /// The server at the other end.
    pub fn server(&self) -> u8 {
        self.server
    }

    /// The connection as the listener watches it, where anyone may read it: in the clear.
    pub(super) fn watched(&self) -> Option<Watch> {
        self.wire.is_clear().then(|| Watch { heard: Arc::downgrade(&self.heard), last: Instant::now() })
    }

    /// Reads on a thread of its own, until the connection ends.
    pub fn read_on_thread(mut self) {
        // Where there is no thread for it, the connection is closed; the other server dials again.
        let _ = std::thread::Builder::new().spawn(move || {
            let mut bytes = vec![0; READ_BYTES];
            loop {
                let read = self.wire.read(&mut bytes);
                if !self.take(read.map(|count| &bytes[..count])) {
                    break;
                }
            }
        });
    }

    /// Takes in what a read has brought. False at the end of the connection.
    fn take(&mut self, came: io::Result<&[u8]>) -> bool {
        let why = match came {
            Ok([]) if self.heard.is_silent.load(Ordering::SeqCst) => Some(silence()),
            Ok([]) if self.frames.is_within() => Some("it ended within a frame".into()),
            Ok([]) => None,
            Ok(bytes) => {
                self.heard.has_come.store(true, Ordering::Relaxed);
                match self.frames.take(bytes, &self.link, self.server) {
                    Ok(()) => return true,
                    Err(refused) => {
                        self.link.refused.fetch_add(1, Ordering::Relaxed);
                        Some(format!("a frame was refused: {refused}"))
                    }
                }
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return true,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Some(silence())
            }
            Err(e) => Some(e.to_string()),
        };
        if let Some(why) = why
            && !self.link.is_stopped()
        {
            let (server, from) = (self.server, &self.from);
            self.link.log(&format!("connection from server {server} at {from} closed: {why}"));
        }
        false
    }
}

impl Drop for Inbound {
    fn drop(&mut self) {
        // A tier may still read from it.
        let _ = self.wire.socket().shutdown(std::net::Shutdown::Both);
        let (link, server, number) = (&self.link, self.server, self.number);
        link.note(server, |state| {
            if state.inbound == number {
                state.inbound = 0;
                // A server that closes one connection closes both. Frames sent now would be lost, and a write would
                // fail late.
                link.outboxes[usize::from(server)].shut();
            }
        });
        link.end_receiving(number);
    }
}

fn silence() -> String {
    format!("nothing came for {} s", SILENCE.as_secs())
}

/// Whether something comes over a connection.
struct Heard {
    socket: Arc<TcpStream>,
    // Since the listener last looked.
    has_come: AtomicBool,
    // Whether it was closed because nothing came.
    is_silent: AtomicBool,
}

/// A connection whose silence its listener notices, for a driver thread has other work.
pub(super) struct Watch {
    heard: Weak<Heard>,
    last: Instant,
}

impl Watch {
    /// Closes a connection over which nothing came for too long. Bytes that its driver has not read yet count as come.
    /// False once it is closed.
    pub(super) fn look(&mut self, now: Instant) -> bool {
        let Some(heard) = self.heard.upgrade() else { return false };
        if heard.has_come.swap(false, Ordering::Relaxed) || !sockets::is_quiet(&heard.socket) {
            self.last = now;
        }
        let is_silent = now.duration_since(self.last) >= SILENCE;
        if is_silent {
            heard.is_silent.store(true, Ordering::SeqCst);
            let _ = heard.socket.shutdown(std::net::Shutdown::Both);
        }
        !is_silent
    }
}

/// Bytes of a connection on their way to whole frames.
#[derive(Default)]
struct Frames {
    // The first part of a frame.
    held: Vec<u8>,
    // Of a frame that there is no memory for: bytes that are still to come.
    skipped: usize,
    // Of a long frame.
    memory: Option<Reservation>,
}

impl Frames {
    /// Whether a frame has come in part.
    fn is_within(&self) -> bool {
        !self.held.is_empty() || self.skipped > 0
    }

    /// Passes on the frames that are whole with these bytes, and keeps the rest.
    fn take(&mut self, mut bytes: &[u8], link: &LinkState, server: u8) -> Result<(), Refused> {
        while !bytes.is_empty() {
            let skipped = self.skipped.min(bytes.len());
            self.skipped -= skipped;
            bytes = &bytes[skipped..];
            if self.held.is_empty() {
                bytes = &bytes[deliver(link, server, bytes)?..];
            }
            self.hold(&mut bytes, HEADER);
            let Some(length) = frame_len(&self.held)? else { return Ok(()) };
            if length > READ_BYTES && self.memory.is_none() {
                self.memory = link.receive.reserve(length as u64);
                if self.memory.is_none() {
                    self.skipped = length - self.held.len();
                    self.held = Vec::new();
                    continue;
                }
                self.held.reserve_exact(length - self.held.len());
            }
            self.hold(&mut bytes, length);
            if self.held.len() == length {
                deliver(link, server, &self.held)?;
                self.held.clear();
                if self.memory.is_some() {
                    *self = Frames::default();
                }
            }
        }
        Ok(())
    }

    /// Moves bytes to those that are held until there are so many.
    fn hold(&mut self, bytes: &mut &[u8], wanted: usize) {
        let count = wanted.saturating_sub(self.held.len()).min(bytes.len());
        let (now, later) = bytes.split_at(count);
        self.held.extend_from_slice(now);
        *bytes = later;
    }
}

/// Returns the length of the frame at the front of `bytes`, once its header is complete.
fn frame_len(bytes: &[u8]) -> Result<Option<usize>, Refused> {
    let Some(header) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
    message::frame_len(header).map(Some)
}

/// Passes on the whole frames in `bytes`. Returns the number of their bytes.
fn deliver(link: &LinkState, server: u8, bytes: &[u8]) -> Result<usize, Refused> {
    let mut used = 0;
    while let Some(length) = frame_len(&bytes[used..])? {
        let Some(frame) = bytes.get(used..used + length) else { break };
        // A frame without a body is a sign of life.
        if length > HEADER {
            link.receive.frame(server, frame)?;
        }
        used += length;
    }
    Ok(used)
}

/// Connections that one thread receives through its tier.
#[derive(Default)]
pub struct Inbounds(Vec<Option<Inbound>>);

impl Inbounds {
    /// The tags of their reads are this one and those above.
    pub const TAGS: u64 = 1 << 63;

    /// Begins to receive from a connection.
    ///
    /// # Errors
    /// The connection, where the tier reads no sockets.
    pub fn add(&mut self, tier: &mut dyn Tier, inbound: Inbound) -> Result<(), Box<Inbound>> {
        let at = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        let buffer = Buffer::new(READ_BYTES);
        if tier.receive(Inbounds::TAGS + at as u64, &inbound.heard.socket, buffer).is_err() {
            return Err(Box::new(inbound));
        }
        if at == self.0.len() {
            self.0.push(None);
        }
        self.0[at] = Some(inbound);
        Ok(())
    }

    /// Takes in what a read of a connection has brought, and reads on. One that has ended is dropped.
    pub fn take(&mut self, tier: &mut dyn Tier, completion: Completion) {
        let Completion { tag, buffer, result } = completion;
        let Some(at) = tag.checked_sub(Inbounds::TAGS).map(|at| at as usize) else { return };
        let Some(inbound) = self.0.get_mut(at).and_then(Option::as_mut) else { return };
        let goes_on = inbound.take(result.map(|count| &buffer.bytes()[..count]));
        if !goes_on || tier.receive(tag, &inbound.heard.socket, buffer).is_err() {
            self.0[at] = None;
        }
    }
}
