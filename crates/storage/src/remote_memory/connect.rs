//! Connections by address: the scheme names the back end.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::client::TcpMemory;
use super::shm::ShmMemory;
use super::ucx::UcxMemory;
use super::{MemoryError, RemoteMemory};
use crate::link::Tls;
use crate::{Error, Result as Checked, input};

/// Digits of a key.
const KEY_DIGITS: usize = 64;

/// Key and certificates that a compute node shows to memory nodes.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The key that the memory nodes have.
    pub secret: Vec<u8>,
    /// Certificates for encrypted connections; `None` for connections in the clear.
    pub tls: Option<Tls>,
}

impl Credentials {
    /// The key and the certificates.
    pub fn new(secret: Vec<u8>, tls: Option<Tls>) -> Credentials {
        Credentials { secret, tls }
    }
}

/// Connects to one memory node: `HOST:PORT`, `shm:NAME` for a segment on the same host, or
/// `ucx:HOST:PORT`.
///
/// # Errors
/// A node that cannot be reached, or has another key or version; a back end that cannot be used here.
pub fn connect_one(address: &str, credentials: &Credentials) -> Result<Box<dyn RemoteMemory>, MemoryError> {
    match address.split_once(':') {
        Some(("shm", name)) => Ok(Box::new(ShmMemory::connect(address, name, credentials)?)),
        Some(("ucx", node)) => Ok(Box::new(UcxMemory::connect(address, node, credentials)?)),
        _ => Ok(Box::new(TcpMemory::connect(address, credentials)?)),
    }
}

/// Connects to memory nodes. Returns them by number; the order of the addresses does not matter.
///
/// # Errors
/// As [`connect_one`]; two nodes that have the same number.
pub fn connect(
    addresses: &[String],
    credentials: &Credentials,
) -> Result<Vec<Box<dyn RemoteMemory>>, MemoryError> {
    match connect_answering(addresses, credentials)? {
        (_, Some(missed)) => Err(missed),
        (nodes, None) => Ok(nodes),
    }
}

/// Nodes by number, and why the first one that is missed does not answer.
pub(super) type Answering = (Vec<Box<dyn RemoteMemory>>, Option<MemoryError>);

/// Connects to those memory nodes that answer, one or more.
///
/// # Errors
/// No node answers; two nodes have one number.
pub(super) fn connect_answering(
    addresses: &[String],
    credentials: &Credentials,
) -> Result<Answering, MemoryError> {
    let (mut nodes, mut missed) = (Vec::<Box<dyn RemoteMemory>>::with_capacity(addresses.len()), None);
    for address in addresses {
        match connect_one(address, credentials) {
            Ok(memory) => nodes.push(memory),
            Err(e) => _ = missed.get_or_insert(e),
        }
    }
    nodes.sort_by_key(|memory| memory.facts().node);
    for pair in nodes.windows(2) {
        let [one, other] = pair else { continue };
        if one.facts().node == other.facts().node {
            let (first, second) = (one.address().to_string(), other.address().to_string());
            return Err(MemoryError::SameNode { first, second, node: one.facts().node.0 });
        }
    }
    match missed {
        Some(missed) if nodes.is_empty() => Err(missed),
        missed => Ok((nodes, missed)),
    }
}

/// Reads a key: a file of 64 hexadecimal digits. `note` is told when others can read it.
///
/// # Errors
/// A file that cannot be read, or has other content.
pub fn read_key(path: &Path, note: &dyn Fn(&str)) -> Checked<Vec<u8>> {
    let bytes = input::read(path)?;
    let digits = bytes.trim_ascii();
    if digits.len() != KEY_DIGITS || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(Error::bad_input(format!(
            "{} is no key of {KEY_DIGITS} hexadecimal digits; create one with `openssl rand -hex 32`",
            path.display()
        )));
    }
    let mode = std::fs::metadata(path).map_err(|e| Error::io("reading", path, &e))?.permissions().mode();
    if mode & 0o077 != 0 {
        note(&format!("other users of this machine can read {}; use chmod 600", path.display()));
    }
    // The case of digits does not matter.
    Ok(digits.to_ascii_lowercase())
}

/// State of a back end of remote memory on this machine.
#[derive(Clone, Debug, serde::Serialize)]
pub struct BackEnd {
    /// Name of the back end in addresses.
    pub name: &'static str,
    /// Description, where it can be used.
    pub works: Option<String>,
    /// Reason why it cannot be used, and the remedy.
    pub refusal: Option<String>,
}

/// Back ends that can be used here.
pub fn back_ends() -> Vec<BackEnd> {
    let found = [
        ("tcp", Ok("emulates one-sided access by the memory node's thread".to_string())),
        ("shm", super::region::segments_work()),
        (
            "ucx",
            super::ucx::version().map(|version| format!("UCX {version}, over the transports of UCX_TLS")),
        ),
    ];
    let back_end = |(name, found): (_, Result<String, String>)| match found {
        Ok(works) => BackEnd { name, works: Some(works), refusal: None },
        Err(why) => BackEnd { name, works: None, refusal: Some(why) },
    };
    found.into_iter().map(back_end).collect()
}
