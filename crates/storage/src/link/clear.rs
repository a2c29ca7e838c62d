//! Connections in the clear, in a program that was compiled without TLS.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use super::timed::Timed;
use crate::{Error, Result};

/// Certificates of a server. There are none without the feature `tls`.
#[derive(Clone, Debug)]
pub enum Tls {}

impl Tls {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn read(certificate: &Path, _: &Path, _: &Path) -> Result<Tls> {
        let why = "this program was compiled without TLS; use one with it";
        Err(Error::bad_input(format!("{}: {why}", certificate.display())))
    }
}

/// A connection.
pub(crate) struct Wire(Timed);

impl Wire {
    /// Opens a wire over a connection to the server that `peer` (`HOST:PORT`) names.
    pub(crate) fn dial(tls: Option<&Tls>, _: &str, stream: Timed) -> io::Result<Wire> {
        Wire::accept(tls, stream)
    }

    /// Opens a wire over a connection that was accepted.
    pub(crate) fn accept(tls: Option<&Tls>, stream: Timed) -> io::Result<Wire> {
        match tls {
            None => Ok(Wire(stream)),
            Some(tls) => match *tls {},
        }
    }

    /// The connection below.
    pub(crate) fn socket(&self) -> &TcpStream {
        self.0.socket()
    }

    /// Another handle to the connection, whose bytes anyone may write.
    pub(crate) fn clear_socket(&self) -> Option<TcpStream> {
        self.0.socket().try_clone().ok()
    }

    /// Whether anyone may read and write its bytes.
    pub(crate) fn is_clear(&self) -> bool {
        true
    }

    /// The greeting has ended, and with it its deadline.
    pub(crate) fn end_greeting(&mut self) -> io::Result<()> {
        self.0.end_greeting()
    }

    /// Begins an exchange that may take so long as a whole.
    pub(crate) fn begin_exchange(&mut self, time: Duration) {
        self.0.begin_exchange(time);
    }
}

impl Read for Wire {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes)
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
