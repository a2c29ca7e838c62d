//! Waiting for many sockets, and options of sockets that the standard library lacks.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

/// Seconds without a sign of life, or with data that is not taken, after which a connection is closed.
const SILENCE_S: libc::c_int = 30;
/// Connections that wait to be accepted.
const QUEUE: libc::c_int = 1024;

/// A descriptor to wait for, and what has come of it.
pub(crate) type Watched = libc::pollfd;

/// Waits for bytes to read, for space to write, or for both.
pub(crate) fn watched(descriptor: RawFd, reads: bool, writes: bool) -> Watched {
    let events = if reads { libc::POLLIN } else { 0 } | if writes { libc::POLLOUT } else { 0 };
    Watched { fd: descriptor, events, revents: 0 }
}

/// Whether a read brings bytes, an end or an error.
pub(crate) fn is_readable(watched: &Watched) -> bool {
    watched.revents & (libc::POLLIN | libc::POLLHUP | libc::POLLERR) != 0
}

/// The time until a deadline, rounded up: a wait that ends just before it would be repeated.
pub(crate) fn until(deadline: Instant, now: Instant) -> Duration {
    deadline.saturating_duration_since(now) + Duration::from_millis(1)
}

/// Waits until one is ready, or for `time`.
pub(crate) fn wait(all: &mut [Watched], time: Option<Duration>) -> io::Result<()> {
    let milliseconds = time.map_or(-1, |t| t.as_millis().min(60_000) as libc::c_int);
    // SAFETY: the array is valid for as many entries as are given.
    let count = unsafe { libc::poll(all.as_mut_ptr(), all.len() as libc::nfds_t, milliseconds) };
    match io::Error::last_os_error() {
        _ if count >= 0 => Ok(()),
        e if e.kind() == io::ErrorKind::Interrupted => {
            all.iter_mut().for_each(|watched| watched.revents = 0);
            Ok(())
        }
        e => Err(e),
    }
}

/// Gives a listening socket room for a burst: the standard library gives less.
pub(crate) fn lengthen_queue(listener: &TcpListener) -> io::Result<()> {
    // SAFETY: the call takes an open descriptor and a number.
    let set = unsafe { libc::listen(listener.as_raw_fd(), QUEUE) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Lets the kernel close a connection whose other side has gone silently.
pub(crate) fn end_when_silent(stream: &TcpStream) -> io::Result<()> {
    let options = [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, SILENCE_S / 3),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, SILENCE_S / 3),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 2),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, SILENCE_S * 1000),
    ];
    for (level, name, value) in options {
        let bytes = std::mem::size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the value is an integer of the length that is given.
        let set =
            unsafe { libc::setsockopt(stream.as_raw_fd(), level, name, (&raw const value).cast(), bytes) };
        if set != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Sends as many of these bytes as the socket takes without a wait. Returns their number.
///
/// # Errors
/// A socket that takes none, or is closed.
pub(crate) fn send_now(stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the bytes live through the call, which reads as many as there are at most.
    let sent = unsafe {
        libc::send(
            stream.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Whether a connection is open and nothing has come over it.
pub(crate) fn is_quiet(stream: &TcpStream) -> bool {
    let mut byte = 0u8;
    // SAFETY: room for one byte, which lives through the call.
    let read = unsafe {
        libc::recv(stream.as_raw_fd(), (&raw mut byte).cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT)
    };
    read < 0 && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
}
