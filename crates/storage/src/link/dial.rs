//! The thread that writes to one other server.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::atomic::Ordering;
use std::time::Duration;

use stratann_core::format::checksum;
use stratann_core::peer::message;

use super::greeting::{self, Agreed, GreetingError, Identity};
use super::outbox::Work;
use super::secure::Wire;
use super::timed::Timed;
use super::{GREETING, KEEPALIVE, LinkState, SILENCE};

/// Pauses between attempts to reach a server: they double from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// A frame without a body: a sign of life.
pub(super) fn keepalive() -> [u8; message::HEADER] {
    let mut frame = [0; message::HEADER];
    frame[..4].copy_from_slice(&message::VERSION.to_le_bytes());
    frame[8..].copy_from_slice(&checksum(&[]).to_le_bytes());
    frame
}

/// Dials, greets and writes, again after each broken connection, until the link stops.
pub(super) fn run(state: &LinkState, to: u8) {
    let outbox = &state.outboxes[usize::from(to)];
    let mut pause = FIRST_PAUSE;
    let mut logged = String::new();
    while !state.is_stopped() {
        let address = state.address_of(to);
        if address.is_empty() {
            if !outbox.pause(LAST_PAUSE) {
                return;
            }
            continue;
        }
        let why = match connect(state, to, &address, greeting::dial) {
            Ok(Connection { mut wire, number, agreed }) => {
                logged.clear();
                pause = FIRST_PAUSE;
                outbox.open(wire.clear_socket());
                state.note(to, |state| state.outbound = Some(agreed));
                let ended = write(state, to, &mut wire);
                outbox.end();
                state.note(to, |state| state.outbound = None);
                state.open.unregister(number);
                ended.err().map(|e| e.to_string())
            }
            Err(why) => Some(why.to_string()),
        };
        // A failure that repeats is logged once.
        if let Some(why) = why.filter(|why| *why != logged && !state.is_stopped()) {
            state.log(&format!("server {to} at {address} cannot be reached: {why}; trying on"));
            logged = why;
        }
        if !outbox.pause(pause) {
            return;
        }
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// A connection whose greeting has ended.
pub(super) struct Connection {
    pub(super) wire: Wire,
    /// Number of the connection among the open ones of the link.
    pub(super) number: u64,
    agreed: Agreed,
}

/// A way to greet: for frames, or to measure the link.
pub(super) type Greeting = fn(&Identity<'_>, u8, &mut Wire) -> Result<Agreed, GreetingError>;

pub(super) fn connect(
    state: &LinkState,
    to: u8,
    address: &str,
    greeting: Greeting,
) -> Result<Connection, GreetingError> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for resolved in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&resolved, SILENCE) {
            Ok(stream) => {
                let number = state.open.register(&stream).ok_or_else(|| io::Error::other("stopping"))?;
                return greet(state, to, address, stream, greeting)
                    .map(|(wire, agreed)| Connection { wire, number, agreed })
                    .inspect_err(|_| state.open.unregister(number));
            }
            Err(e) => last = e,
        }
    }
    Err(GreetingError::Io(last))
}

fn greet(
    state: &LinkState,
    to: u8,
    address: &str,
    stream: TcpStream,
    greeting: Greeting,
) -> Result<(Wire, Agreed), GreetingError> {
    stream.set_nodelay(true)?;
    let options = &state.options;
    let mut wire = Wire::dial(options.tls.as_ref(), address, Timed::new(stream, GREETING)?)?;
    let agreed = greeting(&options.identity(), to, &mut wire)?;
    wire.end_greeting()?;
    Ok((wire, agreed))
}

/// Writes what the threads that queue frames leave, and signs of life, until the connection breaks or the link stops.
fn write(state: &LinkState, to: u8, wire: &mut Wire) -> io::Result<()> {
    let outbox = &state.outboxes[usize::from(to)];
    loop {
        let work = outbox.work(KEEPALIVE);
        match work {
            Work::End => return Ok(()),
            Work::Wait => continue,
            Work::Write | Work::Keepalive => {}
        }
        // A write fails after SILENCE without progress: the queue must not grow, and other servers must not wait.
        let is_idle = work == Work::Keepalive;
        let writes = outbox.write_all(wire, is_idle.then(keepalive))?;
        state.writes.fetch_add(writes, Ordering::Relaxed);
    }
}
