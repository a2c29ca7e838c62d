//! Blocks kept in RAM, shared by all threads: verified once, when they came from disk.
//!
//! Eviction is S3-FIFO (crate `quick_cache`): a block stays when it is asked for again, so that one scan of cold blocks
//! does not push out what many queries share. Where there is room for the whole index there is nothing to evict, and the cache is a table.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

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
pub struct BlockCache(Blocks);

enum Blocks {
    /// Every block has a place: nothing is ever evicted, and a look-up is one access.
    All { places: Vec<OnceLock<Box<[u8]>>>, used_bytes: AtomicU64 },
    /// There is room for a part.
    Part(Cache<u32, Arc<[u8]>, ByBytes>),
}

/// A block in the cache.
pub enum Cached<'a> {
    /// Stays as long as the cache.
    Resident(&'a [u8]),
    /// Stays as long as this.
    Shared(Arc<[u8]>),
}

impl std::ops::Deref for Cached<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Cached::Resident(bytes) => bytes,
            Cached::Shared(bytes) => bytes,
        }
    }
}

impl BlockCache {
    /// A cache of `budget_bytes` for an index of `blocks` blocks of `block_bytes`; `None` when not even a few blocks fit.
    pub fn new(budget_bytes: u64, blocks: u32, block_bytes: usize) -> Option<BlockCache> {
        let each = block_bytes as u64 + OVERHEAD_BYTES;
        let items = budget_bytes / each;
        if items >= u64::from(blocks) {
            let places = (0..blocks).map(|_| OnceLock::new()).collect();
            return Some(BlockCache(Blocks::All { places, used_bytes: AtomicU64::new(0) }));
        }
        let part = || Blocks::Part(Cache::with_weighter(items as usize, budget_bytes, ByBytes));
        (items >= 4).then(|| BlockCache(part()))
    }

    /// The verified bytes of a block, when they are here.
    pub fn get(&self, block: u32) -> Option<Cached<'_>> {
        match &self.0 {
            Blocks::All { places, .. } => places.get(block as usize)?.get().map(|b| Cached::Resident(b)),
            Blocks::Part(cache) => cache.get(&block).map(Cached::Shared),
        }
    }

    /// Keeps the verified bytes of a block.
    pub fn put(&self, block: u32, bytes: &[u8]) {
        match &self.0 {
            Blocks::All { places, used_bytes } => {
                let Some(place) = places.get(block as usize) else { return };
                // Another thread may have read the same block meanwhile.
                if place.set(bytes.into()).is_ok() {
                    used_bytes.fetch_add(bytes.len() as u64 + OVERHEAD_BYTES, Ordering::Relaxed);
                }
            }
            Blocks::Part(cache) => cache.insert(block, Arc::from(bytes)),
        }
    }

    /// Bytes in use, bookkeeping included.
    pub fn used_bytes(&self) -> u64 {
        match &self.0 {
            Blocks::All { used_bytes, .. } => used_bytes.load(Ordering::Relaxed),
            Blocks::Part(cache) => cache.weight(),
        }
    }
}
