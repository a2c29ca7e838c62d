//! Reusable memory to read into.

use crate::tier::Buffer;

/// Pool of read buffers, by size: one block, two, four, eight, ….
pub(super) struct BufferPool {
    // By the logarithm of the number of blocks.
    free: Vec<Vec<Buffer>>,
    block_bytes: usize,
}

impl BufferPool {
    /// A pool that begins with `blocks`, buffers of one block each.
    pub(super) fn new(blocks: Vec<Buffer>, block_bytes: usize) -> BufferPool {
        BufferPool { free: vec![blocks], block_bytes }
    }

    /// Returns a buffer that shows `bytes`.
    pub(super) fn take(&mut self, bytes: usize) -> Buffer {
        let count = bytes.div_ceil(self.block_bytes);
        let class = count.next_power_of_two().trailing_zeros() as usize;
        let free = self.free.get_mut(class).and_then(Vec::pop);
        let mut buffer = free.unwrap_or_else(|| Buffer::new(self.block_bytes << class));
        buffer.show(bytes);
        buffer
    }

    /// Keeps a buffer for later reads.
    pub(super) fn recycle(&mut self, mut buffer: Buffer) {
        buffer.show(usize::MAX);
        let class = (buffer.len() / self.block_bytes).trailing_zeros() as usize;
        if self.free.len() <= class {
            self.free.resize_with(class + 1, Vec::new);
        }
        self.free[class].push(buffer);
    }
}
