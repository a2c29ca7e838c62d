//! The thread that writes to one other server.

use std::io::{self, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::atomic::Ordering;
use std::time::Duration;

use stratann_core::format::checksum;
use stratann_core::peer::message;

use super::greeting::{self, Failed};
use super::secure::Wire;
use super::{KEEPALIVE, SILENCE, Shared};

/// Pauses between attempts to reach a server: they double from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// A frame without a body: it says that the sender lives.
pub(super) fn keepalive() -> [u8; message::HEADER] {
    let mut frame = [0; message::HEADER];
    frame[..4].copy_from_slice(&message::VERSION.to_le_bytes());
    frame[8..].copy_from_slice(&checksum(&[]).to_le_bytes());
    frame
}

/// Dials, greets, writes; and again when the connection breaks, until the link stops.
pub(super) fn run(shared: &Shared, to: u8) {
    let outbox = &shared.outboxes[usize::from(to)];
    let mut pause = FIRST_PAUSE;
    let mut told = String::new();
    while !shared.is_stopped() {
        let address = shared.address_of(to);
        if address.is_empty() {
            if !outbox.pause(LAST_PAUSE) {
                return;
            }
            continue;
        }
        let why = match connect(shared, to, &address) {
            Ok((mut wire, number)) => {
                told.clear();
                pause = FIRST_PAUSE;
                outbox.set_open(true);
                shared.note(to, |state| state.outbound = true);
                let ended = write(shared, to, &mut wire);
                outbox.set_open(false);
                shared.note(to, |state| state.outbound = false);
                shared.open.unregister(number);
                ended.err().map(|e| e.to_string())
            }
            Err(why) => Some(why.to_string()),
        };
        // The same trouble again and again is said once.
        if let Some(why) = why.filter(|why| *why != told && !shared.is_stopped()) {
            shared.log(&format!("server {to} at {address} cannot be reached: {why}; trying on"));
            told = why;
        }
        if !outbox.pause(pause) {
            return;
        }
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

fn connect(shared: &Shared, to: u8, address: &str) -> Result<(Wire, u64), Failed> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for resolved in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&resolved, SILENCE) {
            Ok(stream) => {
                let number = shared.open.register(&stream).ok_or_else(|| io::Error::other("stopping"))?;
                return greet(shared, to, address, stream)
                    .map(|wire| (wire, number))
                    .inspect_err(|_| shared.open.unregister(number));
            }
            Err(e) => last = e,
        }
    }
    Err(Failed::Io(last))
}

fn greet(shared: &Shared, to: u8, address: &str, stream: TcpStream) -> Result<Wire, Failed> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    let options = &shared.options;
    let mut wire = Wire::dial(options.tls.as_ref(), address, stream)?;
    greeting::dial(&options.myself(), to, &mut wire)?;
    Ok(wire)
}

/// Writes what waits, all of it at once, until the connection breaks or the link stops.
fn write(shared: &Shared, to: u8, wire: &mut Wire) -> io::Result<()> {
    let outbox = &shared.outboxes[usize::from(to)];
    let mut bytes = Vec::new();
    while outbox.take(&mut bytes, KEEPALIVE) {
        if bytes.is_empty() {
            bytes.extend_from_slice(&keepalive());
        }
        // A server that does not read for as long as SILENCE is given up: its queue must not grow, and others must not wait.
        wire.write_all(&bytes)?;
        wire.flush()?;
        shared.writes.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
