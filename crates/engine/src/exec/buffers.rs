//! Reusable memory to read into.

use stratann_storage::tier::Buffer;

/// Pool of read buffers, by size: one block, two, four, eight, ….
pub(super) struct BufferPool {
    // By the logarithm of the number of blocks.
    free: Vec<Vec<Buffer>>,
    block_bytes: usize,
    // Bytes of all buffers that were taken and not recycled, and of those that are free.
    used_bytes: usize,
    free_bytes: usize,
    limit_bytes: usize,
}

impl BufferPool {
    /// A pool that begins with `blocks`, buffers of one block each. Together its buffers have up to `limit_bytes`.
    pub(super) fn new(blocks: Vec<Buffer>, block_bytes: usize, limit_bytes: usize) -> BufferPool {
        let free_bytes = blocks.iter().map(Buffer::len).sum();
        BufferPool { free: vec![blocks], block_bytes, used_bytes: 0, free_bytes, limit_bytes }
    }

    /// Raises the limit while a query with larger reads is in flight.
    pub(super) fn raise(&mut self, bytes: usize) {
        self.limit_bytes = self.limit_bytes.saturating_add(bytes);
    }

    /// Lowers the limit again, and frees what is beyond it.
    pub(super) fn lower(&mut self, bytes: usize) {
        self.limit_bytes -= bytes;
        if self.used_bytes + self.free_bytes > self.limit_bytes {
            self.free_all();
        }
    }

    fn class(&self, bytes: usize) -> usize {
        bytes.div_ceil(self.block_bytes).next_power_of_two().trailing_zeros() as usize
    }

    /// Whether a buffer for `bytes` keeps to the limit.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.used_bytes + (self.block_bytes << self.class(bytes)) <= self.limit_bytes
    }

    /// Returns a buffer that shows `bytes`.
    pub(super) fn take(&mut self, bytes: usize) -> Buffer {
        let class = self.class(bytes);
        let size = self.block_bytes << class;
        let mut buffer = match self.free.get_mut(class).and_then(Vec::pop) {
            Some(buffer) => {
                self.free_bytes -= size;
                buffer
            }
            None => {
                if self.used_bytes + self.free_bytes + size > self.limit_bytes {
                    self.free_all();
                }
                Buffer::new(size)
            }
        };
        self.used_bytes += size;
        buffer.show_exactly(bytes);
        buffer
    }

    /// Takes all free buffers out of the pool.
    pub(super) fn empty(&mut self) -> Vec<Buffer> {
        self.free_bytes = 0;
        self.free.drain(..).flatten().collect()
    }

    fn free_all(&mut self) {
        self.free.iter_mut().for_each(|class| class.retain(Buffer::is_registered));
        self.free_bytes = self.free.iter().flatten().map(Buffer::len).sum();
    }

    /// Keeps a buffer for later reads, or frees it when the pool is beyond its limit.
    pub(super) fn recycle(&mut self, mut buffer: Buffer) {
        buffer.show(usize::MAX);
        let size = buffer.len();
        self.used_bytes -= size;
        if self.used_bytes + self.free_bytes + size > self.limit_bytes && !buffer.is_registered() {
            return;
        }
        self.free_bytes += size;
        let class = (size / self.block_bytes).trailing_zeros() as usize;
        if self.free.len() <= class {
            self.free.resize_with(class + 1, Vec::new);
        }
        self.free[class].push(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = stratann_core::PAGE;

    #[test]
    fn buffers_of_all_sizes_keep_to_the_limit() {
        let mut pool = BufferPool::new(vec![Buffer::new(BLOCK)], BLOCK, 8 * BLOCK);
        let large: Vec<Buffer> = (0..2).map(|_| pool.take(3 * BLOCK)).collect();
        assert!(!pool.has_room(1), "two of four blocks each");
        large.into_iter().for_each(|buffer| pool.recycle(buffer));
        assert!(pool.has_room(8 * BLOCK) && !pool.has_room(9 * BLOCK));
        // Buffers of another size take the place of those.
        let small: Vec<Buffer> = (0..8).map(|_| pool.take(BLOCK)).collect();
        assert_eq!((pool.used_bytes, pool.free_bytes), (8 * BLOCK, 0));
        pool.raise(4 * BLOCK);
        let more = pool.take(4 * BLOCK);
        small.into_iter().for_each(|buffer| pool.recycle(buffer));
        assert_eq!(pool.used_bytes + pool.free_bytes, 12 * BLOCK);
        pool.lower(4 * BLOCK);
        assert_eq!((pool.used_bytes, pool.free_bytes), (4 * BLOCK, 0));
        pool.recycle(more);
        assert_eq!((pool.used_bytes, pool.free_bytes), (0, 4 * BLOCK));
    }
}
