//! Capacity planning: throughput and latency of an index on servers that nobody has bought yet.
//!
//! [`passes`] runs the real search of the queries through a simulated cluster, and counts. [`calibrate`] measures what
//! the counted work costs on this machine, and [`costs`] holds the figures. [`servers`] replays the work at these costs
//! on servers with threads, a disk and a link. [`memory_nodes`] does the same for compute nodes and memory nodes.
#![allow(missing_docs, reason = "fields of reports have the names of their JSON keys")]

use stratann_storage::Result;

pub mod calibrate;
pub mod costs;
pub mod memory_nodes;
pub mod passes;
pub mod servers;
mod sockets;

/// The queries of a simulation, in the type of the index.
pub trait Queries: Sync {
    /// Number of queries.
    fn count(&self) -> usize;

    /// Bytes of one query.
    fn row_bytes(&self) -> usize;

    /// Replaces `out` with queries `first..first + count`.
    ///
    /// # Errors
    /// A file that cannot be read, or a query that is not finite.
    fn read(&self, first: usize, count: usize, out: &mut Vec<u8>) -> Result<()>;
}

/// Threads of this machine.
fn all_cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}
