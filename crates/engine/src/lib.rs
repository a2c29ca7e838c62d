//! Indexes of all kinds: builds, searches, servers.
//!
//! It runs what `stratann-core` decides over what `stratann-storage` reads.

mod base;
pub mod build;
mod clusterings;
pub mod dataset;
pub mod doctor;
pub mod explain;
pub mod exec;
mod files;
pub mod groundtruth;
pub mod index;
pub mod kinds;
pub mod manifest;
pub mod recall;
pub mod search;
pub mod serve;
pub mod spread;
pub mod verify;

pub use stratann_kernel::{DType, Metric};
