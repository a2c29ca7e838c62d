//! Data of a cluster outside of its servers: versions of its index in a [`store`], and its members in etcd
//! ([`membership`]), of which some are memory nodes ([`node_registry`]).
//!
//! No query needs either. A running server continues without them.

pub mod membership;
pub mod node_registry;
#[cfg(feature = "store")]
pub mod store;

/// Returns a runtime for the clients of both. The interface of this crate is synchronous.
fn runtime() -> stratann_storage::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| stratann_storage::Error {
        kind: stratann_storage::ErrorKind::Io,
        message: format!("starting a client of the network failed: {e}"),
    })
}

/// Installs one implementation of cryptography for all connections, unless another one is installed already.
fn install_cryptography() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
