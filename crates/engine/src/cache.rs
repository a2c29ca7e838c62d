//! Blocks kept in RAM, shared by all threads: verified once, when they came from disk.
//!
//! Eviction is S3-FIFO (crate `quick_cache`): a block stays when it is asked for again, so that one scan of cold blocks
//! does not push out what many queries share.

use std::sync::Arc;

use quick_cache::Weighter;
use quick_cache::sync::Cache;

/// Bookkeeping that each cached block costs besides its bytes: slot, hash entry, reference counts and allocation.
const OVERHEAD_BYTES: u64 = 128;

#[derive(Clone)]
struct ByBytes;

impl Weighter<u32, Arc<[u8]>> for ByBytes {
    fn weight(&self, _: &u32, block: &Arc<[u8]>) -> u64 {
        block.len() as u64 + OVERHEAD_BYTES
    }
}

/// The block cache of one open index.
pub struct BlockCache {
    blocks: Cache<u32, Arc<[u8]>, ByBytes>,
}

impl BlockCache {
    /// A cache of `budget_bytes` for blocks of `block_bytes`; `None` when not even a few blocks fit.
    pub fn new(budget_bytes: u64, block_bytes: usize) -> Option<BlockCache> {
        let each = block_bytes as u64 + OVERHEAD_BYTES;
        let items = budget_bytes / each;
        (items >= 4)
            .then(|| BlockCache { blocks: Cache::with_weighter(items as usize, budget_bytes, ByBytes) })
    }

    /// The verified bytes of a block, when they are here.
    pub fn get(&self, block: u32) -> Option<Arc<[u8]>> {
        self.blocks.get(&block)
    }

    /// Keeps the verified bytes of a block.
    pub fn put(&self, block: u32, bytes: &[u8]) {
        self.blocks.insert(block, Arc::from(bytes));
    }

    /// Bytes in use, bookkeeping included.
    pub fn used_bytes(&self) -> u64 {
        self.blocks.weight()
    }
}
