//! The world: files, builds, disks, threads, the memory budget. It runs what `stratann-core` decides.

mod base;
pub mod budget;
pub mod build;
pub mod cache;
mod clusterings;
pub mod dataset;
pub mod doctor;
pub mod driver;
pub mod durable;
pub mod error;
pub mod explain;
mod files;
pub mod groundtruth;
pub mod index;
pub mod input;
pub mod kinds;
pub mod ledger;
pub mod link;
pub mod manifest;
pub mod names;
pub mod output;
pub mod profile;
pub mod progress;
pub mod recall;
pub mod remote_memory;
pub mod scorer;
pub mod search;
pub mod serve;
pub mod spread;
pub mod tier;
pub mod verify;

pub use error::{Error, ErrorKind, Result};
pub use progress::{Expected, Progress, Quiet};
pub use stratann_kernel::{DType, Metric};
