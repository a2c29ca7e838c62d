//! A socket whose reads and writes share one deadline: that of the greeting, then that of each exchange.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::SILENCE;

/// A TCP connection with time-outs.
pub(crate) struct Timed {
    stream: TcpStream,
    // `None` once the greeting has ended: then each read and write has [`SILENCE`].
    deadline: Option<Instant>,
    // When the present exchange must have ended.
    exchange: Option<Instant>,
}

impl Timed {
    /// A connection whose greeting begins now and may take `greeting`.
    pub(crate) fn new(stream: TcpStream, greeting: Duration) -> io::Result<Timed> {
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        Ok(Timed { stream, deadline: Some(Instant::now() + greeting), exchange: None })
    }

    /// The greeting has ended.
    pub(crate) fn end_greeting(&mut self) -> io::Result<()> {
        self.deadline = None;
        self.stream.set_read_timeout(Some(SILENCE))?;
        self.stream.set_write_timeout(Some(SILENCE))
    }

    /// Begins an exchange that may take so long. Each read and write has the time-out of the socket as well.
    pub(crate) fn begin_exchange(&mut self, time: Duration) {
        self.exchange = Some(Instant::now() + time);
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.stream
    }

    /// Time that is left until the deadline; `None` once the greeting has ended.
    fn left(&self) -> io::Result<Option<Duration>> {
        if self.exchange.is_some_and(|end| end <= Instant::now()) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the exchange took too long"));
        }
        let Some(deadline) = self.deadline else { return Ok(None) };
        match deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            Some(left) => Ok(Some(left)),
            None => Err(io::Error::new(io::ErrorKind::TimedOut, "the greeting took too long")),
        }
    }
}

impl Read for Timed {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if let Some(left) = self.left()? {
            self.stream.set_read_timeout(Some(left))?;
        }
        self.stream.read(bytes)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(left) = self.left()? {
            self.stream.set_write_timeout(Some(left))?;
        }
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Each byte comes in time, the greeting as a whole does not.
    #[test]
    fn a_greeting_has_one_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let writer = std::thread::spawn(move || {
            for _ in 0..400 {
                if slow.write_all(&[7]).is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let mut timed = Timed::new(stream, Duration::from_millis(200)).unwrap();
        let error = timed.read_exact(&mut [0; 400]).unwrap_err();
        assert!(matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{error}");
        timed.end_greeting().unwrap();
        timed.read_exact(&mut [0; 10]).unwrap();
        drop(timed);
        writer.join().unwrap();
    }
}
