//! Connections by address: the scheme names the back end.

use super::client::TcpMemory;
use super::shm::ShmMemory;
use super::{MemoryError, RemoteMemory};
use crate::link::Tls;

/// What a compute node shows to memory nodes.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The key that the memory nodes have.
    pub secret: Vec<u8>,
    /// Certificates for encrypted connections; `None` for connections in the clear.
    pub tls: Option<Tls>,
}

/// Connects to one memory node: `HOST:PORT`, or `shm:NAME` for a segment on the same host.
///
/// # Errors
/// A node that cannot be reached, or has another key or version; a back end that cannot be used here.
pub fn connect_one(address: &str, credentials: &Credentials) -> Result<Box<dyn RemoteMemory>, MemoryError> {
    match address.split_once(':') {
        Some(("shm", name)) => Ok(Box::new(ShmMemory::connect(address, name)?)),
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
    let mut nodes = Vec::with_capacity(addresses.len());
    for address in addresses {
        nodes.push((connect_one(address, credentials)?, address));
    }
    nodes.sort_by_key(|(memory, _)| memory.facts().node);
    for pair in nodes.windows(2) {
        let [(one, first), (other, second)] = pair else { continue };
        if one.facts().node == other.facts().node {
            let (first, second) = (first.to_string(), second.to_string());
            return Err(MemoryError::SameNode { first, second, node: one.facts().node.0 });
        }
    }
    Ok(nodes.into_iter().map(|(memory, _)| memory).collect())
}
