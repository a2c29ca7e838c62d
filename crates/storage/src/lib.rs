//! Bytes: files, disks, caches, links and memory nodes, with the account of memory. No room knows a kind of index.

pub mod budget;
pub mod cache;
pub mod data_file;
pub mod digest;
pub mod durable;
pub mod error;
pub mod input;
pub mod ledger;
pub mod link;
pub mod names;
pub mod output;
pub mod process;
pub mod profile;
pub mod progress;
pub mod remote_memory;
pub mod threads;
pub mod tier;

pub use error::{Error, ErrorKind, Result};
pub use progress::{Expected, Progress, Quiet};
