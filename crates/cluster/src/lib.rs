//! What a cluster keeps outside of its servers: versions of its index in a [`store`], and who is there in etcd ([`membership`]).
//!
//! Neither is in the way of a query. A server that serves goes on when both are gone.

pub mod membership;
pub mod store;

/// A client for both: this crate is asynchronous inside and nowhere else.
fn runtime() -> stratann_engine::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| stratann_engine::Error {
        kind: stratann_engine::Kind::Io,
        message: format!("starting a client of the network failed: {e}"),
    })
}

/// One implementation of cryptography for all connections; who has installed another already keeps it.
fn install_cryptography() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
