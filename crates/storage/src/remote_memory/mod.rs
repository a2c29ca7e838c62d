//! Memory of other machines: regions of memory nodes, which compute nodes read and write directly.
//!
//! A memory node has one region of bytes. It knows four operations on ranges of it: read, write, fetch-and-add and
//! compare-and-swap. It knows no index and does not search. [`RemoteMemory`] is the port of one thread of a compute
//! node to one memory node. Back ends:
//!
//! | address | back end | one-sided |
//! |---|---|---|
//! | `HOST:PORT` | tcp: requests to the thread of the memory node | no, it emulates that |
//! | `shm:NAME` | shm: a segment of shared memory on the same host | yes |
//! | `ucx:HOST:PORT` | ucx: libucp, over RDMA where there is a device | as its transport is |
//!
//! Operations on overlapping ranges by several compute nodes are not ordered, and a read that races with a write may
//! see a part of it. Words of 8 bytes at a multiple of 8 are read and written whole. Data needs checksums of its own.

mod ask;
mod client;
pub mod conformance;
mod connect;
mod error;
mod known;
mod node;
mod operation;
mod protocol;
mod region;
mod shm;
mod source;
mod tier;
mod ucx;

pub use self::ask::{Asked, Nodes};
pub use self::connect::{BackEnd, Credentials, back_ends, connect, connect_one, read_key};
pub use self::error::MemoryError;
pub use self::node::{CONNECTIONS_MAX, Node, NodeOptions, Place};
pub use self::operation::{OPERATIONS_MAX, Operation, READ_BYTES_MAX, WRITE_BYTES_MAX};
pub use self::protocol::{FrameError, check_frame, seal_frame};
pub use self::region::random;
pub use self::source::RemoteSource;
pub use self::tier::{RemoteCounters, RemoteTier};

/// Number of a memory node. Addresses name a node by it, so it does not change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u8);

/// A range of bytes of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first byte.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: u32,
}

/// Properties of a memory node and its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Number of the node.
    pub node: NodeId,
    /// Size of the region.
    pub region_bytes: u64,
    /// Number of the load that the region is of; before the first load a random one.
    pub epoch: u64,
}

/// The region of one memory node, for one thread of a compute node.
pub trait RemoteMemory: Send {
    /// Properties of the node, as of the first connection. They do not change: a node that comes back with another
    /// region is an error.
    fn facts(&self) -> Facts;

    /// The address, as it was given.
    fn address(&self) -> &str;

    /// Executes operations in order, as one request: one round trip. Results are stored in the operations. Nothing is
    /// executed when one of them is refused.
    ///
    /// # Errors
    /// Operations that are refused, and a connection that broke. The next call dials again, with growing pauses.
    fn execute(&mut self, operations: &mut [Operation<'_>]) -> Result<(), MemoryError>;

    /// Reads ranges one behind the other into `into`, as one doorbell. `into` has the bytes of all ranges.
    ///
    /// # Errors
    /// As [`RemoteMemory::execute`].
    ///
    /// # Panics
    /// When `into` has another length.
    fn read(&mut self, ranges: &[Range], into: &mut [u8]) -> Result<(), MemoryError> {
        let mut rest = into;
        let mut operations = Vec::with_capacity(ranges.len());
        for range in ranges {
            let (own, others) = rest.split_at_mut(range.bytes as usize);
            operations.push(Operation::Read { offset: range.offset, into: own });
            rest = others;
        }
        assert!(rest.is_empty(), "the buffer is longer than the ranges");
        self.execute(&mut operations)
    }

    /// Writes bytes at offsets, in order, as one request.
    ///
    /// # Errors
    /// As [`RemoteMemory::execute`].
    fn write(&mut self, parts: &[(u64, &[u8])]) -> Result<(), MemoryError> {
        let mut operations: Vec<_> =
            parts.iter().map(|&(offset, from)| Operation::Write { offset, from }).collect();
        self.execute(&mut operations)
    }

    /// Adds to a word of 8 bytes, little endian, and wraps around. Returns its value before.
    ///
    /// # Errors
    /// As [`RemoteMemory::execute`].
    fn fetch_add(&mut self, offset: u64, add: u64) -> Result<u64, MemoryError> {
        let mut operations = [Operation::FetchAdd { offset, add, old: 0 }];
        self.execute(&mut operations)?;
        Ok(operations[0].old())
    }

    /// Replaces a word of 8 bytes, little endian, by `new` if it is `expected`. Returns its value before.
    ///
    /// # Errors
    /// As [`RemoteMemory::execute`].
    fn compare_swap(&mut self, offset: u64, expected: u64, new: u64) -> Result<u64, MemoryError> {
        let mut operations = [Operation::CompareSwap { offset, expected, new, old: 0 }];
        self.execute(&mut operations)?;
        Ok(operations[0].old())
    }

    /// Begins a load: the node replaces its region by one of zeros, whose epoch is the number of the load. Connections
    /// to the region before, whatever their back end, can change nothing in the new one.
    ///
    /// # Errors
    /// As [`RemoteMemory::execute`]; a connection that can begin none.
    fn begin_load(&mut self, _load: u64) -> Result<(), MemoryError> {
        let why = "a connection of an open index begins no load".into();
        Err(MemoryError::Unavailable { address: self.address().into(), why })
    }

    /// Name of the back end in reports.
    fn backend(&self) -> &'static str;
}
