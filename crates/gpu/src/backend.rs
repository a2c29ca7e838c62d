//! Operations of a device that the batcher needs.

use crate::Error;
use crate::batch::Batch;
use std::time::Duration;

/// A GPU, as the driver describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Number, as the driver counts.
    pub number: u32,
    /// Name of the product.
    pub name: String,
    /// Major and minor compute capability.
    pub compute_capability: (u32, u32),
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Memory that was free when the driver was asked, in bytes.
    pub memory_free_bytes: u64,
}

/// Blocks of device memory with as many staging areas in host memory, and streams that work on them.
///
/// A staging area has the bytes that are sent to the start of its block, and then, at the same offset as in the block,
/// the bytes that come back.
pub(crate) trait Backend: Send {
    /// The device.
    fn info(&self) -> &DeviceInfo;

    /// Most bytes of shared memory that a kernel that scores codes may use.
    fn shared_bytes_max(&self) -> u32;

    /// Allocates device memory for the life of the device; returns its address, a multiple of 256.
    fn allocate(&mut self, what: &'static str, bytes: u64) -> Result<u64, Error>;

    /// Copies bytes into device memory, and waits for the end. Used before the first batch only.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Error>;

    /// Allocates `count` staging areas of `bytes` each, and `streams` streams.
    fn prepare(&mut self, count: u32, bytes: u64, streams: usize) -> Result<(), Error>;

    /// Binds the device to the calling thread, which alone uses it from then on.
    fn enter(&mut self) -> Result<(), String>;

    /// The staging area of a block. No batch with this block may be under way.
    fn staging(&mut self, block: u32) -> &mut [u8];

    /// Starts a batch on a stream whose last batch has ended. Does not wait for its end.
    fn enqueue(&mut self, stream: usize, batch: &Batch) -> Result<(), String>;

    /// Whether the last batch of a stream has ended, results included.
    fn is_done(&mut self, stream: usize) -> Result<bool, String>;

    /// Time of the kernels of the last batch of a stream, where it is known.
    fn kernel_time(&mut self, stream: usize) -> Option<Duration>;

    /// Gives the device up: nothing of it is touched or freed from then on.
    fn abandon(&mut self);
}
