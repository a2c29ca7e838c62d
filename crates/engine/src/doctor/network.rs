//! The network between two hosts, measured by two of these programs.
//!
//! One listens and obeys, the other asks and takes the time. Both begin with [`HELLO`]. Then come requests of eight
//! bytes, each with its bytes:
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | u32: 1 send these bytes back, 2 take these, 3 send how many were taken (u64), 4 end |
//! | 4..8 | u32: how many bytes follow; 0 for 3 and 4 |
//!
//! A listener holds one buffer of [`PIECE_MAX`] and serves one connection at a time. Silence, time and bytes have
//! limits on both sides.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use stratann_storage::{Error, Result};

/// First bytes of both sides.
const HELLO: &[u8; 16] = b"stratann-link 1\n";
const SEND_BACK: u32 = 1;
const TAKE: u32 = 2;
const COUNT: u32 = 3;
const END: u32 = 4;
const REQUEST_BYTES: usize = 8;

/// Most bytes of a request.
const PIECE_MAX: usize = 64 << 10;
/// Longest wait for one read, write or connection.
const SILENCE: Duration = Duration::from_secs(5);
/// Longest measurement, and most bytes that a listener takes.
const SESSION: Duration = Duration::from_secs(30);
const TAKEN_MAX: u64 = 16 << 30;

/// About the length of a hand-over.
const MESSAGE_BYTES: usize = 512;
/// Messages that are not timed, those that are at most and at least, and the time after which no more are sent.
const WARM_UP: usize = 100;
const MESSAGES: usize = 5000;
const MESSAGES_MIN: usize = 3;
const MESSAGES_TIME: Duration = Duration::from_secs(1);
/// Bulk transfers: the connection finds its window in the first, the second is timed.
const WINDOW_BYTES: u64 = 64 << 20;
const WINDOW_TIME: Duration = Duration::from_millis(300);
const BULK_BYTES: u64 = 2 << 30;
const BULK_TIME: Duration = Duration::from_secs(1);

/// One connection between two hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkSpeed {
    /// `HOST:PORT` of the other host.
    pub host: String,
    /// Half of the median round trip of a small message, microseconds: from the sender's call until a thread of the
    /// receiver has it.
    pub latency_us: f64,
    /// Half of the 99th percentile.
    pub p99_us: f64,
    /// Gbit/s of a bulk transfer over one connection.
    pub gbps: f64,
    /// Round trips that were timed, and the bytes of each message.
    pub messages: u64,
    /// Bytes of each message.
    pub message_bytes: u64,
    /// Bytes of the bulk transfer.
    pub bulk_bytes: u64,
}

/// Counts of the work of a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Served {
    /// Messages that were sent back.
    pub messages: u64,
    /// Bytes that were taken.
    pub bulk_bytes: u64,
}

/// A side of a connection whose session has a deadline.
struct Session<S> {
    stream: S,
    ends: Instant,
}

impl<S: Read + Write> Session<S> {
    fn new(stream: S) -> Session<S> {
        Session { stream, ends: Instant::now() + SESSION }
    }

    /// No time-out is set for each read, because that is a system call: one read may take [`SILENCE`] more.
    fn check(&self) -> io::Result<()> {
        if Instant::now() < self.ends { Ok(()) } else { Err(ErrorKind::TimedOut.into()) }
    }

    fn read(&mut self, mut bytes: &mut [u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.check()?;
            match self.stream.read(bytes) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => bytes = &mut bytes[count..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.check()?;
        self.stream.write_all(bytes)
    }

    /// Obeys one side that measures, until it ends.
    fn serve(&mut self) -> io::Result<Served> {
        let (mut hello, mut served) = ([0; HELLO.len()], Served::default());
        self.read(&mut hello)?;
        if &hello != HELLO {
            return Err(ErrorKind::InvalidData.into());
        }
        self.write(HELLO)?;
        let mut piece = vec![0; PIECE_MAX];
        loop {
            let mut request = [0; REQUEST_BYTES];
            self.read(&mut request)?;
            let [what, length] = [0, 4].map(|at| number(&request[at..at + 4]));
            let bytes = piece.get_mut(..length as usize).ok_or(ErrorKind::InvalidData)?;
            self.read(bytes)?;
            match (what, length) {
                (SEND_BACK, _) => {
                    self.write(bytes)?;
                    served.messages += 1;
                }
                (TAKE, _) => {
                    served.bulk_bytes += u64::from(length);
                    if served.bulk_bytes > TAKEN_MAX {
                        return Err(ErrorKind::InvalidData.into());
                    }
                }
                (COUNT, 0) => self.write(&served.bulk_bytes.to_le_bytes())?,
                (END, 0) => return Ok(served),
                _ => return Err(ErrorKind::InvalidData.into()),
            }
        }
    }

    fn greet(&mut self) -> io::Result<()> {
        self.write(HELLO)?;
        let mut hello = [0; HELLO.len()];
        self.read(&mut hello)?;
        if &hello == HELLO { Ok(()) } else { Err(ErrorKind::InvalidData.into()) }
    }

    /// Sends a message and waits until it is back.
    fn round_trip(&mut self, message: &[u8], back: &mut [u8]) -> io::Result<Duration> {
        let started = Instant::now();
        self.write(message)?;
        self.read(back)?;
        let taken = started.elapsed();
        if back == &message[REQUEST_BYTES..] { Ok(taken) } else { Err(ErrorKind::InvalidData.into()) }
    }

    /// Round trips of small messages, shortest first.
    fn round_trips(&mut self) -> io::Result<Vec<Duration>> {
        let mut message = request(SEND_BACK, MESSAGE_BYTES).to_vec();
        message.extend((0..MESSAGE_BYTES).map(|i| i as u8));
        let mut back = vec![0; MESSAGE_BYTES];
        let started = Instant::now();
        for _ in 0..WARM_UP {
            self.round_trip(&message, &mut back)?;
            if started.elapsed() > MESSAGES_TIME {
                break;
            }
        }
        let (mut taken, started) = (Vec::with_capacity(MESSAGES), Instant::now());
        while taken.len() < MESSAGES_MIN || (taken.len() < MESSAGES && started.elapsed() < MESSAGES_TIME) {
            taken.push(self.round_trip(&message, &mut back)?);
        }
        taken.sort_unstable();
        Ok(taken)
    }

    /// Sends pieces for `time`, at most `bytes`, and waits until all were taken. Returns the bytes and the time.
    fn bulk(&mut self, bytes: u64, time: Duration, before: &mut u64) -> io::Result<(u64, Duration)> {
        let mut piece = request(TAKE, PIECE_MAX).to_vec();
        piece.resize(REQUEST_BYTES + PIECE_MAX, 0x5A);
        let (started, mut sent) = (Instant::now(), 0);
        while sent == 0 || (sent < bytes && started.elapsed() < time) {
            self.write(&piece)?;
            sent += PIECE_MAX as u64;
        }
        let mut taken = [0; 8];
        self.write(&request(COUNT, 0))?;
        self.read(&mut taken)?;
        *before += sent;
        if u64::from_le_bytes(taken) == *before {
            Ok((sent, started.elapsed()))
        } else {
            Err(ErrorKind::InvalidData.into())
        }
    }

    fn measure(&mut self, host: &str) -> io::Result<LinkSpeed> {
        self.greet()?;
        let trips = self.round_trips()?;
        let (median, p99) = (trips[trips.len() / 2], trips[trips.len() * 99 / 100]);
        let mut taken = 0;
        self.bulk(WINDOW_BYTES, WINDOW_TIME, &mut taken)?;
        let (bytes, time) = self.bulk(BULK_BYTES, BULK_TIME, &mut taken)?;
        self.write(&request(END, 0))?;
        // The count came back after the last byte.
        let seconds = time.saturating_sub(median / 2).as_secs_f64().max(1e-9);
        let one_way_us = |trip: Duration| (trip.as_nanos() as f64 / 20.0).round() / 100.0;
        Ok(LinkSpeed {
            host: host.into(),
            latency_us: one_way_us(median),
            p99_us: one_way_us(p99),
            gbps: ((8.0 * bytes as f64 / seconds / 1e9) * 1e4).round() / 1e4,
            messages: trips.len() as u64,
            message_bytes: MESSAGE_BYTES as u64,
            bulk_bytes: bytes,
        })
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |sum, &byte| sum << 8 | u32::from(byte))
}

fn request(what: u32, bytes: usize) -> [u8; REQUEST_BYTES] {
    let mut request = [0; REQUEST_BYTES];
    request[..4].copy_from_slice(&what.to_le_bytes());
    request[4..].copy_from_slice(&(bytes as u32).to_le_bytes());
    request
}

fn set_up(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    Ok(stream)
}

fn in_words(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "it was silent or too slow".into(),
        ErrorKind::InvalidData => "it sent something else".into(),
        ErrorKind::UnexpectedEof => "it closed the connection".into(),
        _ => error.to_string(),
    }
}

/// Measures the network to the host where `stratann doctor --link-listen` runs, in two or three seconds.
///
/// # Errors
/// An address that cannot be resolved; a host that refuses, is silent, or where something else listens.
pub fn measure_link(host: &str) -> Result<LinkSpeed> {
    let failed = |what: String| Error {
        kind: stratann_storage::ErrorKind::Io,
        message: format!("{host}: {what}; start `stratann doctor --link-listen` there"),
    };
    let addresses = host.to_socket_addrs().map_err(|e| {
        Error::bad_input(format!(
            "--link is {host:?}: {e}; give HOST:PORT of `stratann doctor --link-listen`"
        ))
    })?;
    let mut refused = io::Error::from(ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpStream::connect_timeout(&address, SILENCE).and_then(set_up) {
            Ok(stream) => {
                let measured = Session::new(stream).measure(host);
                return measured
                    .map_err(|e| failed(format!("this is no link that can be measured: {}", in_words(&e))));
            }
            Err(e) => refused = e,
        }
    }
    Err(failed(format!("connecting: {refused}")))
}

/// Listener for the measurement of one link.
pub struct LinkListener {
    listener: TcpListener,
}

impl LinkListener {
    /// Listens.
    ///
    /// # Errors
    /// An address that cannot be resolved or taken.
    pub fn bind(address: &str) -> Result<LinkListener> {
        let refused = |e: io::Error| {
            Error::bad_input(format!("--link-listen is {address:?}: {e}; give a free HOST:PORT of this host"))
        };
        Ok(LinkListener { listener: TcpListener::bind(address).map_err(refused)? })
    }

    /// The address that was taken.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Serves connections one after the other until one has measured to its end. `note` receives why another one did
    /// not.
    ///
    /// # Errors
    /// When nothing can be accepted.
    pub fn serve_one(&self, note: &dyn Fn(&str)) -> Result<(String, Served)> {
        loop {
            let (stream, peer) = self.listener.accept().map_err(|e| Error {
                kind: stratann_storage::ErrorKind::Io,
                message: format!("waiting for a connection: {e}; run it again"),
            })?;
            match set_up(stream).and_then(|stream| Session::new(stream).serve()) {
                Ok(served) => return Ok((peer.to_string(), served)),
                Err(e) => note(&format!("{peer} did not measure: {}", in_words(&e))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes that are read, and those that were written.
    struct Script<'a>(&'a [u8], Vec<u8>);

    impl Read for Script<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            self.0.read(out)
        }
    }

    impl Write for Script<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1.write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn listener() -> (String, LinkListener) {
        let listener = LinkListener::bind("127.0.0.1:0").unwrap();
        (listener.address().unwrap().to_string(), listener)
    }

    #[test]
    fn a_link_is_measured_after_others_have_failed_to() {
        let (host, listener) = listener();
        let serving = std::thread::spawn(move || {
            let notes = std::sync::Mutex::new(Vec::new());
            let served = listener.serve_one(&|line| notes.lock().unwrap().push(line.to_string()));
            (served.unwrap(), notes.into_inner().unwrap())
        });
        TcpStream::connect(&host).unwrap().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        drop(TcpStream::connect(&host).unwrap());
        let link = measure_link(&host).unwrap();
        let ((_, served), notes) = serving.join().unwrap();
        assert!(link.latency_us > 0.0 && link.p99_us >= link.latency_us && link.gbps > 0.0, "{link:?}");
        assert_eq!((link.host, link.message_bytes), (host, MESSAGE_BYTES as u64));
        assert!(served.messages >= link.messages && served.bulk_bytes >= link.bulk_bytes, "{served:?}");
        assert!(link.messages >= MESSAGES_MIN as u64 && link.messages <= MESSAGES as u64);
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes[0].contains("sent something else") && notes[1].contains("closed"), "{notes:?}");
    }

    #[test]
    fn who_does_not_measure_is_told_apart() {
        let error = |host: &str| measure_link(host).unwrap_err();
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let refused = error(&nobody);
        assert!(refused.message.contains("refused") && refused.message.contains(&nobody), "{refused}");
        for answer in [&b"HTTP/1.1 400 Bad Request\r\n"[..], b"stratann-link 2\n", b""] {
            let other = TcpListener::bind("127.0.0.1:0").unwrap();
            let host = other.local_addr().unwrap().to_string();
            let answering = std::thread::spawn(move || {
                let mut stream = other.accept().unwrap().0;
                stream.read_exact(&mut [0; 16]).unwrap();
                stream.write_all(answer).unwrap();
            });
            let wrong = error(&host);
            answering.join().unwrap();
            let expected = if answer.is_empty() { "closed" } else { "something else" };
            assert!(wrong.message.contains(expected), "{wrong}");
        }
        for nowhere in ["", "no port", "127.0.0.1:99999"] {
            assert_eq!(error(nowhere).kind, stratann_storage::ErrorKind::BadInput);
        }
        assert!(LinkListener::bind("192.0.2.1:1").is_err_and(|e| e.message.contains("--link-listen")));
    }

    #[test]
    fn a_session_that_is_over_reads_nothing() {
        let mut session = Session::new(Script(HELLO, Vec::new()));
        session.ends = Instant::now();
        assert_eq!(session.serve().unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(session.stream.1.is_empty());
    }

    proptest! {
        /// No panic, and nothing is sent that was not asked for.
        #[test]
        fn a_listener_takes_any_bytes(
            requests in prop::collection::vec((0u32..6, 0usize..70_000), 0..8),
            cut in 0usize..200_000,
            tail in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let mut bytes = HELLO.to_vec();
            for (what, length) in requests {
                bytes.extend(request(what, length));
                bytes.resize(bytes.len() + length, 7);
            }
            bytes.truncate(cut);
            bytes.extend(&tail);
            let mut session = Session::new(Script(&bytes, Vec::new()));
            let served = session.serve();
            prop_assert!(session.stream.1.len() <= bytes.len() + HELLO.len());
            if let Ok(served) = served {
                prop_assert!(served.bulk_bytes <= bytes.len() as u64);
            }
        }

        /// Bytes that are no answer are refused.
        #[test]
        fn who_measures_takes_any_bytes(tail in prop::collection::vec(any::<u8>(), 0..2000)) {
            let bytes = [&HELLO[..], &tail].concat();
            prop_assert!(Session::new(Script(&bytes, Vec::new())).measure("x").is_err());
            prop_assert!(Session::new(Script(&tail, Vec::new())).measure("x").is_err());
        }
    }
}
