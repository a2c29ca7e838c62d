//! Scoring of codes on a GPU.
//!
//! A [`Device`] is open once for a process, whatever the number of indexes; each has its codes in the device's memory,
//! as [`DeviceCodes`]. For a query the host sends the query, prepared for codes of bits, and the ids of the candidates;
//! the device removes duplicate ids, scores each code and returns the nearest ids. Keys are those of
//! `stratann_kernel::bits::BitQuery`, equal to the bit, so the CPU can score any part of the work instead. The design
//! is that of FusionANNS (sections 3, 4.1 and 5): codes stay in GPU memory, each index has a pool of blocks beside its
//! codes, one for each query in flight, and only ids travel.
//!
//! | module | content |
//! |---|---|
//! | `options`, `error` | what a caller sets, and what can go wrong |
//! | `job` | a query's candidates, as they are sent, and its answer |
//! | `layout` | device memory: the mirror of the structs of the kernels, and the memory account |
//! | `bits` | planes of codes and queries, as the kernels are given them |
//! | `limits` | codes and jobs that a device takes |
//! | `batch` | the copies and launches of a batch |
//! | `backend` | what a device must do; `cuda` is a GPU, `emulated` runs the same kernels on the CPU |
//! | `queue` | jobs without a batch and free blocks, of all codes |
//! | `request` | parts of loads, which the batcher does between batches, and the memory of all codes |
//! | `shared` | the queue, requests, batches under way, and the watch over deadlines |
//! | `counters` | totals of a device, and of the codes of an index |
//! | `batcher` | the thread that forms batches and takes their answers |
//! | `device`, `codes`, `probe` | the interface |
//!
//! CUDA is loaded while the program runs: the driver (`libcuda`) and the compiler of kernels (`libnvrtc`). A program
//! with this crate builds and starts without both, and [`probe()`] says what is missing.

mod backend;
mod batch;
mod batcher;
mod bits;
mod codes;
mod counters;
mod cuda;
mod device;
#[cfg(feature = "emulated")]
mod emulated;
mod error;
mod job;
mod layout;
mod limits;
mod options;
mod probe;
mod queue;
mod request;
mod shared;

pub use backend::DeviceInfo;
pub use codes::DeviceCodes;
pub use counters::Counters;
pub use device::{Device, Done};
#[cfg(feature = "emulated")]
pub use emulated::Faults;
pub use error::{Error, Failure};
pub use job::{Job, Ranked, Rows};
pub use layout::MemoryAccount;
pub use options::{CodesOptions, DeviceOptions};
pub use probe::{Probe, Version, probe};

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;
