//! The threads that listen: one for connections, one for each that came.

use std::io::{self, Read};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use stratann_core::peer::message::{HEADER, Message};

use super::greeting::{self, Failed};
use super::secure::Wire;
use super::{SILENCE, Shared};

/// Connections besides one for each server that may be open: greetings under way, old ones not yet seen to be dead.
const SPARE_CONNECTIONS: usize = 32;
/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;

/// Accepts until the link stops.
pub(super) fn run(shared: &Arc<Shared>, listener: &TcpListener) {
    let limit = shared.options.peers.len() + SPARE_CONNECTIONS;
    let open = Arc::new(AtomicUsize::new(0));
    let mut threads = Vec::new();
    while !shared.is_stopped() {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) => {
                // Out of descriptors, perhaps: what is open goes on, and this may pass.
                shared.log(&format!("accepting a connection failed: {e}"));
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        if shared.is_stopped() || open.load(Ordering::SeqCst) >= limit {
            continue;
        }
        threads.retain(|t: &std::thread::JoinHandle<()>| !t.is_finished());
        open.fetch_add(1, Ordering::SeqCst);
        let (shared, open) = (shared.clone(), open.clone());
        threads.push(std::thread::spawn(move || {
            receive(&shared, stream);
            open.fetch_sub(1, Ordering::SeqCst);
        }));
    }
    for thread in threads {
        let _ = thread.join();
    }
}

/// Greets whoever dialed and takes its frames, until the connection ends.
fn receive(shared: &Shared, stream: TcpStream) {
    let from = stream.peer_addr().map_or_else(|_| "somewhere".into(), |a| a.ip().to_string());
    let Some(number) = shared.register(&stream) else { return };
    match greet(shared, stream) {
        Ok((server, mut wire)) => {
            shared.note(server, |state| state.inbound = number);
            let ended = take_frames(shared, server, &mut wire);
            if let Err(why) = ended
                && !shared.is_stopped()
            {
                shared.log(&format!("connection from server {server} at {from} closed: {why}"));
            }
            shared.note(server, |state| {
                if state.inbound == number {
                    state.inbound = 0;
                    // Whoever stops speaking stops listening: what would go there now would be lost, and a write would tell late.
                    shared.outboxes[usize::from(server)].set_open(false);
                }
            });
        }
        Err(why) => shared.log_refusal(&from, &why.to_string()),
    }
    shared.unregister(number);
}

fn greet(shared: &Shared, stream: TcpStream) -> Result<(u8, Wire), Failed> {
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    let mut wire = Wire::accept(shared.options.tls.as_ref(), stream)?;
    let server = greeting::answer(&shared.options.myself(), &mut wire)?;
    Ok((server, wire))
}

/// Reads until the end of the stream; an error says why it is not trusted any further.
fn take_frames(shared: &Shared, server: u8, stream: &mut impl Read) -> Result<(), String> {
    let mut bytes = vec![0; READ_BYTES];
    let mut held = 0;
    loop {
        let used = deliver(shared, server, &bytes[..held])?;
        bytes.copy_within(used..held, 0);
        held -= used;
        // A frame that is longer than the buffer; its length was checked against the limit.
        let wanted = frame_len(&bytes[..held])?.unwrap_or(0).max(READ_BYTES);
        if bytes.len() < wanted {
            bytes.resize(wanted, 0);
        }
        match stream.read(&mut bytes[held..]) {
            Ok(0) => return if held == 0 { Ok(()) } else { Err("it ended within a frame".into()) },
            Ok(n) => held += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Err(format!("nothing came for {} s", SILENCE.as_secs()));
            }
            Err(e) => return Err(e.to_string()),
        }
    }
}

/// Length of the frame that `bytes` begin with, once its header is there.
fn frame_len(bytes: &[u8]) -> Result<Option<usize>, String> {
    let Some(header) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
    let length = Message::frame_len(header).map_err(|why| format!("a frame was refused ({why:?})"))?;
    Ok(Some(length))
}

/// Gives the whole frames in `bytes` on; how many bytes they took.
fn deliver(shared: &Shared, server: u8, bytes: &[u8]) -> Result<usize, String> {
    let mut used = 0;
    while let Some(length) = frame_len(&bytes[used..])? {
        let Some(frame) = bytes.get(used..used + length) else { break };
        // A frame without a body says only that the sender lives.
        if length > HEADER {
            let taken = shared.receive.frame(server, frame);
            taken.map_err(|why| format!("a frame was refused ({why:?})"))?;
        }
        used += length;
    }
    Ok(used)
}
