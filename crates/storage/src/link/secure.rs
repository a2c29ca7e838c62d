//! Connections in the clear, or under TLS with certificates on both sides.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned, version,
};

use super::timed::Timed;
use crate::{Error, Result, input};

/// The certificate of a server, and the authority of the cluster, whose certificates it trusts. TLS 1.3 only.
#[derive(Clone, Debug)]
pub struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Tls {
    /// Reads PEM files. The certificate must name the host or address by which the other servers dial this one.
    ///
    /// # Errors
    /// A file that cannot be read or has other content; a key that does not belong to the certificate.
    pub fn read(certificate: &Path, key: &Path, authority: &Path) -> Result<Tls> {
        let own = certificates(certificate)?;
        let private = PrivateKeyDer::from_pem_slice(&input::read(key)?)
            .map_err(|e| unreadable("private key", key, &e))?;
        let mut roots = RootCertStore::empty();
        for root in certificates(authority)? {
            roots.add(root).map_err(|e| unfit(authority, &e))?;
        }
        let roots = Arc::new(roots);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|e| {
            Error::bad_input(format!("{}: {e}; give the authority's certificate", authority.display()))
        })?;
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&version::TLS13])
            .map_err(|e| unfit(certificate, &e))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(own.clone(), private.clone_key())
            .map_err(|e| unfit(certificate, &e))?;
        // Connections are few and long: resumption is of no use.
        server.send_tls13_tickets = 0;
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])
            .map_err(|e| unfit(certificate, &e))?
            .with_root_certificates(roots)
            .with_client_auth_cert(own, private)
            .map_err(|e| unfit(certificate, &e))?;
        Ok(Tls { client: Arc::new(client), server: Arc::new(server) })
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let all: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&input::read(path)?).collect();
    match all.map_err(|e| unreadable("certificate", path, &e))? {
        none if none.is_empty() => {
            Err(Error::bad_input(format!("{} holds no certificate; give a PEM file", path.display())))
        }
        some => Ok(some),
    }
}

fn unreadable(what: &str, path: &Path, error: &pem::Error) -> Error {
    Error::bad_input(format!("{}: no {what} can be read from it ({error}); give a PEM file", path.display()))
}

fn unfit(path: &Path, error: &rustls::Error) -> Error {
    Error::bad_input(format!("{}: {error}; check certificate, key and authority", path.display()))
}

/// A connection.
pub(crate) enum Wire {
    Plain(Timed),
    Dialed(Box<StreamOwned<ClientConnection, Timed>>),
    Accepted(Box<StreamOwned<ServerConnection, Timed>>),
}

impl Wire {
    /// Wraps a dialed connection to `peer` (`HOST:PORT`).
    pub(crate) fn dial(tls: Option<&Tls>, peer: &str, stream: Timed) -> io::Result<Wire> {
        let Some(tls) = tls else { return Ok(Wire::Plain(stream)) };
        let host = peer.rsplit_once(':').map_or(peer, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_string();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        let connection = ClientConnection::new(tls.client.clone(), name).map_err(io::Error::other)?;
        Ok(Wire::Dialed(Box::new(StreamOwned::new(connection, stream))))
    }

    /// Wraps an accepted connection.
    pub(crate) fn accept(tls: Option<&Tls>, stream: Timed) -> io::Result<Wire> {
        let Some(tls) = tls else { return Ok(Wire::Plain(stream)) };
        let connection = ServerConnection::new(tls.server.clone()).map_err(io::Error::other)?;
        Ok(Wire::Accepted(Box::new(StreamOwned::new(connection, stream))))
    }

    /// The connection below.
    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Wire::Plain(stream) => stream.socket(),
            Wire::Dialed(stream) => stream.sock.socket(),
            Wire::Accepted(stream) => stream.sock.socket(),
        }
    }

    /// Another handle to a connection in the clear, whose bytes anyone may write; `None` under TLS.
    pub(crate) fn clear_socket(&self) -> Option<TcpStream> {
        if let Wire::Plain(stream) = self { stream.socket().try_clone().ok() } else { None }
    }

    /// Whether anyone may read and write its bytes: it is not under TLS.
    pub(crate) fn is_clear(&self) -> bool {
        matches!(self, Wire::Plain(_))
    }

    /// The greeting has ended, and with it its deadline.
    pub(crate) fn end_greeting(&mut self) -> io::Result<()> {
        match self {
            Wire::Plain(stream) => stream.end_greeting(),
            Wire::Dialed(stream) => stream.sock.end_greeting(),
            Wire::Accepted(stream) => stream.sock.end_greeting(),
        }
    }

    /// Begins an exchange that may take so long as a whole.
    pub(crate) fn begin_exchange(&mut self, time: Duration) {
        match self {
            Wire::Plain(stream) => stream.begin_exchange(time),
            Wire::Dialed(stream) => stream.sock.begin_exchange(time),
            Wire::Accepted(stream) => stream.sock.begin_exchange(time),
        }
    }
}

impl Read for Wire {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(stream) => stream.read(bytes),
            Wire::Dialed(stream) => stream.read(bytes),
            Wire::Accepted(stream) => stream.read(bytes),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(stream) => stream.write(bytes),
            Wire::Dialed(stream) => stream.write(bytes),
            Wire::Accepted(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Wire::Plain(stream) => stream.flush(),
            Wire::Dialed(stream) => stream.flush(),
            Wire::Accepted(stream) => stream.flush(),
        }
    }
}
