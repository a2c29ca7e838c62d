//! The ucx back end: libucp, over RDMA where there is a device.
//!
//! The node allocates its region with libucp, so that its transport of shared memory reaches it. Clients access it
//! without the node's thread where the transport is one-sided. Over its TCP transport, libucp emulates that in the
//! thread of the node. Atomic operations of a network device and those of a processor need not exclude each other:
//! all clients of a node use ucx, or none does.

mod client;
mod library;
mod target;
mod worker;

pub(super) use self::client::UcxMemory;
pub(super) use self::target::Target;

/// Version of the library.
///
/// # Errors
/// Missing part, and the remedy.
pub(super) fn version() -> Result<String, String> {
    let ucp = library::ucp()?;
    worker::Worker::new(false)?;
    Ok(ucp.version_text())
}
