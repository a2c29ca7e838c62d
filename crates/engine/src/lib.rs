//! Indexes of all kinds: builds, searches, servers.
//!
//! This crate runs what `stratann-core` decides over what `stratann-storage` reads.

mod base;
pub mod build;
mod clusterings;
pub mod codebook;
pub mod curve;
pub mod dataset;
pub mod deletes;
pub mod doctor;
pub mod exec;
pub mod explain;
mod files;
pub mod findings;
pub mod groundtruth;
pub mod index;
pub mod kinds;
pub mod manifest;
pub mod memory_nodes;
mod parallel;
pub mod recall;
mod record;
pub mod search;
pub mod serve;
pub mod sieve_ways;
pub mod spread;
pub mod stages;
mod tiles;
pub mod trace;
mod units;
pub mod verify;

pub use stratann_kernel::{DType, Metric};
