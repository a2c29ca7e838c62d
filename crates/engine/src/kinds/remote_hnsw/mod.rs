//! `remote-hnsw`: clusters of vectors, each with a graph of its own, laid out as memory nodes hold them.

pub(crate) mod account;
pub mod affinity;
#[cfg(feature = "lab")]
pub mod baseline;
mod batch_options;
pub(crate) mod build;
pub(crate) mod calibration;
pub(crate) mod explain;
pub mod facts;
pub(crate) mod limits;
pub mod linking;
pub mod live;
pub(crate) mod loads;
pub(crate) mod members;
pub(crate) mod open;
pub mod options;
pub mod router;
pub(crate) mod traffic;
pub(crate) mod verify;
