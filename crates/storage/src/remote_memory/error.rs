//! Errors of remote memory.

use crate::{Error, ErrorKind};

/// Reason why an operation on remote memory failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// A range that is not in the region.
    #[error(
        "the range of {bytes} bytes at {offset} is not in the region of {region_bytes} bytes; start the memory node \
         with a larger --size, or load the index again"
    )]
    OutOfBounds {
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        bytes: u64,
        /// Size of the region.
        region_bytes: u64,
    },
    /// An atomic operation that is not at a multiple of 8.
    #[error("an atomic operation at {offset}, which is no multiple of 8; use a word at a multiple of 8")]
    Unaligned {
        /// The first byte.
        offset: u64,
    },
    /// A request with too many operations.
    #[error("a request of {operations} operations; use up to {limit}, such as by a smaller --doorbell")]
    TooMany {
        /// Number of operations.
        operations: u64,
        /// Most operations of a request.
        limit: u64,
    },
    /// A request with too many bytes.
    #[error("a request of {bytes} bytes; use up to {limit}, such as by a smaller --doorbell")]
    TooLarge {
        /// Number of bytes.
        bytes: u64,
        /// Most bytes of a request.
        limit: u64,
    },
    /// There is no connection.
    #[error(
        "the memory node at {address} cannot be reached: {why}; check that it runs, and load the index again if it \
         was started again{}",
        if *may_have_run { ". Changes of this request may have been made: read before you repeat them" } else { "" }
    )]
    Disconnected {
        /// Address of the node.
        address: String,
        /// Reason.
        why: String,
        /// Whether the request may have changed the region.
        may_have_run: bool,
    },
    /// A load has begun, or the node was started again.
    #[error(
        "the memory node at {address} has load {found:016x} now, and load {expected:016x} was open, whose changes are \
         gone: open the index again. If nothing was loaded, do so with `stratann memory-node load`"
    )]
    EpochChanged {
        /// Address of the node.
        address: String,
        /// Epoch of the first connection.
        expected: u64,
        /// Epoch now.
        found: u64,
    },
    /// None of the addresses is that of a node with a part of the index.
    #[error("no memory node with the number {node} answers; start it, and name its address in --memory")]
    Missing {
        /// Number of the node.
        node: u8,
    },
    /// The node has another key.
    #[error(
        "the memory node at {address} has another key; give --key-file the file that the node was started with"
    )]
    Key {
        /// Address of the node.
        address: String,
    },
    /// The node has another version, or something else listens there.
    #[error("{address} is no memory node of this version: {why}")]
    Version {
        /// Address of the node.
        address: String,
        /// Description of the other side.
        why: String,
    },
    /// The node, or something between, broke the protocol.
    #[error("the memory node at {address} sent what cannot be read ({why}); check the network, and use TLS")]
    Protocol {
        /// Address of the node.
        address: String,
        /// Reason.
        why: String,
    },
    /// Two nodes have one number.
    #[error(
        "the memory nodes at {first} and {second} both have the number {node}; start each with a --node-id of its own"
    )]
    SameNode {
        /// Address of a node.
        first: String,
        /// Address of another.
        second: String,
        /// Number of both nodes.
        node: u8,
    },
    /// A back end that cannot be used here.
    #[error("{address} cannot be used: {why}")]
    Unavailable {
        /// The address.
        address: String,
        /// Missing part, and the remedy.
        why: String,
    },
}

impl From<MemoryError> for Error {
    fn from(error: MemoryError) -> Error {
        let kind = match error {
            MemoryError::Disconnected { .. } | MemoryError::Protocol { .. } => ErrorKind::Io,
            MemoryError::EpochChanged { .. } => ErrorKind::Corrupt,
            _ => ErrorKind::BadInput,
        };
        Error { kind, message: error.to_string() }
    }
}
