//! Bytes in memory behind the same contract, with completions in a seeded random order and faults on request: for
//! tests.

use std::io;
use std::sync::Arc;

use stratann_core::build::hash;

use super::{Buffer, Completion, FileId, Tier};

/// Fault of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An I/O error.
    Error,
    /// Only so many bytes arrive.
    Short(usize),
    /// One bit of the byte at this place of the buffer is flipped.
    FlippedBit(usize),
}

struct WaitingRead {
    tag: u64,
    offset: u64,
    buffer: Buffer,
}

/// One file: a byte vector, with number 0.
pub struct MemoryTier {
    bytes: Arc<Vec<u8>>,
    waiting: Vec<WaitingRead>,
    depth: usize,
    seed: u64,
    reads: u64,
    fault: Option<(u64, Fault)>,
}

impl MemoryTier {
    /// Serves `bytes`, `depth` reads at a time, completing in an order drawn from `seed`.
    pub fn new(bytes: Arc<Vec<u8>>, depth: usize, seed: u64) -> MemoryTier {
        MemoryTier { bytes, waiting: Vec::new(), depth, seed, reads: 0, fault: None }
    }

    /// Makes the `nth` completion (from 0) go wrong.
    pub fn with_fault(mut self, nth: u64, fault: Fault) -> MemoryTier {
        self.fault = Some((nth, fault));
        self
    }

    fn complete(&mut self, tag: u64, offset: u64, mut buffer: Buffer) -> Completion {
        let start = (offset as usize).min(self.bytes.len());
        let count = buffer.len().min(self.bytes.len() - start);
        buffer.bytes_mut()[..count].copy_from_slice(&self.bytes[start..start + count]);
        let mut result = Ok(count);
        if let Some((nth, fault)) = self.fault
            && nth == self.reads
        {
            match fault {
                Fault::Error => result = Err(io::Error::other("injected fault")),
                Fault::Short(n) => result = Ok(n.min(count)),
                Fault::FlippedBit(at) => {
                    if let Some(byte) = buffer.bytes_mut().get_mut(at) {
                        *byte ^= 1;
                    }
                }
            }
        }
        self.reads += 1;
        Completion { tag, buffer, result }
    }
}

impl Tier for MemoryTier {
    fn room(&self) -> usize {
        self.depth - self.waiting.len()
    }

    fn file_bytes(&self, file: FileId) -> Option<u64> {
        (file == FileId(0)).then_some(self.bytes.len() as u64)
    }

    fn submit(&mut self, tag: u64, _: FileId, offset: u64, buffer: Buffer) {
        assert!(self.room() > 0, "the caller asks for room first");
        self.waiting.push(WaitingRead { tag, offset, buffer });
    }

    fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> io::Result<()> {
        let draw = hash(self.seed, 0, self.reads);
        let count = if wait { 1 + draw as usize % 3 } else { draw as usize % 3 };
        for i in 0..count.min(self.waiting.len()) {
            let at = hash(self.seed, 1 + i as u64, self.reads) as usize % self.waiting.len();
            let WaitingRead { tag, offset, buffer } = self.waiting.swap_remove(at);
            let completion = self.complete(tag, offset, buffer);
            done.push(completion);
        }
        Ok(())
    }

    fn name(&self) -> &'static str {
        "memory"
    }
}
