//! Reusable memory to read into.

use stratann_core::PAGE;

use crate::tier::Buffer;

/// Pool of read buffers, by size: one unit, two, four, eight, ….
pub(super) struct BufferPool {
    // By the logarithm of the number of units.
    free: Vec<Vec<Buffer>>,
    unit_bytes: usize,
}

impl BufferPool {
    /// A pool that begins with `buffers`. Their common size is its unit, or a page where there are none.
    pub(super) fn new(buffers: Vec<Buffer>) -> BufferPool {
        let unit_bytes = buffers.first().map_or(PAGE, Buffer::len);
        BufferPool { free: vec![buffers], unit_bytes }
    }

    /// Returns a buffer that shows `bytes`.
    pub(super) fn take(&mut self, bytes: usize) -> Buffer {
        let class = bytes.div_ceil(self.unit_bytes).next_power_of_two().trailing_zeros() as usize;
        let free = self.free.get_mut(class).and_then(Vec::pop);
        let mut buffer = free.unwrap_or_else(|| Buffer::new(self.unit_bytes << class));
        buffer.show(bytes);
        buffer
    }

    /// Keeps a buffer for later reads.
    pub(super) fn recycle(&mut self, mut buffer: Buffer) {
        buffer.show(usize::MAX);
        let class = (buffer.len() / self.unit_bytes).trailing_zeros() as usize;
        if self.free.len() <= class {
            self.free.resize_with(class + 1, Vec::new);
        }
        self.free[class].push(buffer);
    }
}
