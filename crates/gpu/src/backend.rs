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

/// Staging areas of host memory, one for each block of the same codes, one behind the other.
///
/// A staging area has the bytes that are sent to the start of its block, and then, at the same offset as in the block,
/// the bytes that come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Staging {
    /// Address of the first area.
    pub(crate) address: u64,
    /// Bytes of each area.
    pub(crate) area_bytes: u64,
}

impl Staging {
    /// Address of the area of a block.
    pub(crate) fn area(&self, block: u32) -> u64 {
        self.address + u64::from(block) * self.area_bytes
    }
}

/// Memory of a device and of the host that copies use, and streams that work on it.
pub(crate) trait Backend: Send {
    /// The device.
    fn info(&self) -> &DeviceInfo;

    /// Most bytes of shared memory that a kernel that scores codes may use.
    fn shared_bytes_max(&self) -> u32;

    /// Makes the streams. Called once, before the first batch.
    fn start_streams(&mut self, streams: usize) -> Result<(), Error>;

    /// Binds the device to the calling thread, which alone uses it from then on.
    fn enter(&mut self) -> Result<(), String>;

    /// Memory of the device that is free now, in bytes.
    fn free_bytes(&mut self) -> Result<u64, Error>;

    /// Allocates device memory; returns its address, a multiple of 256.
    fn allocate(&mut self, what: &'static str, bytes: u64) -> Result<u64, Error>;

    /// Frees device memory. No batch that uses it may be under way.
    fn free(&mut self, address: u64) -> Result<(), String>;

    /// Allocates `count` staging areas of `area_bytes` each.
    fn allocate_staging(&mut self, count: u32, area_bytes: u64) -> Result<Staging, Error>;

    /// Frees staging areas. No batch that uses them may be under way.
    fn free_staging(&mut self, staging: Staging) -> Result<(), String>;

    /// Copies bytes into device memory that no batch uses. The copy may end later.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Error>;

    /// Waits until all copies of [`write`](Self::write) have ended.
    fn wait_for_writes(&mut self) -> Result<(), Error>;

    /// The staging area of a block. No batch with this block may be under way.
    fn staging(&mut self, staging: Staging, block: u32) -> &mut [u8];

    /// Starts a batch on a stream whose last batch has ended. Does not wait for its end.
    fn enqueue(&mut self, stream: usize, batch: &Batch) -> Result<(), String>;

    /// Whether the last batch of a stream has ended, results included.
    fn is_done(&mut self, stream: usize) -> Result<bool, String>;

    /// Time of the kernels of the last batch of a stream, where it is known.
    fn kernel_time(&mut self, stream: usize) -> Option<Duration>;

    /// Gives the device up: nothing of it is touched or freed from then on.
    fn abandon(&mut self);
}
