//! Cache of extents in RAM, shared by all threads. Bytes are verified before they enter it.
//!
//! Eviction is S3-FIFO (crate `quick_cache`): an extent stays when it is asked for again, so that one scan of cold
//! extents does not evict what many queries share. Where the budget covers all blocks of an index nothing is evicted,
//! and the cache is a table.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use stratann_core::query::{Extent, StoreId};

/// Bytes that each cached extent costs besides its own: slot, hash entry, reference counts and allocation.
const OVERHEAD_BYTES: u64 = 128;
/// Least number of extents that make a cache worth having.
const EXTENTS_MIN: u64 = 4;

#[derive(Clone)]
struct ByBytes;

impl Weighter<Extent, Arc<[u8]>> for ByBytes {
    fn weight(&self, _: &Extent, bytes: &Arc<[u8]>) -> u64 {
        bytes.len() as u64 + OVERHEAD_BYTES
    }
}

/// The cache of one open index.
pub struct ExtentCache(Extents);

enum Extents {
    /// Each block of the first store has an entry: nothing is evicted, and a look-up is one access.
    All { entries: Vec<OnceLock<Box<[u8]>>>, block_bytes: u32, used_bytes: AtomicU64 },
    /// Extents of any size, within a budget.
    Part(Cache<Extent, Arc<[u8]>, ByBytes>),
}

/// Bytes of a cached extent.
pub enum Cached<'a> {
    /// Bytes that live as long as the cache.
    Resident(&'a [u8]),
    /// Bytes that live as long as this.
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

impl ExtentCache {
    /// A cache of `budget_bytes` for extents of `usual_bytes` each; `None` when not even a few fit.
    pub fn new(budget_bytes: u64, usual_bytes: u64) -> Option<ExtentCache> {
        let extents = budget_bytes / (usual_bytes + OVERHEAD_BYTES);
        let part = || Extents::Part(Cache::with_weighter(extents as usize, budget_bytes, ByBytes));
        (extents >= EXTENTS_MIN).then(|| ExtentCache(part()))
    }

    /// Bytes of a cache that holds all of `blocks` blocks of `block_bytes`.
    pub fn bytes_of_blocks(blocks: u32, block_bytes: u64) -> u64 {
        u64::from(blocks) * (block_bytes + OVERHEAD_BYTES)
    }

    /// Whether it has a place for each block of its store.
    pub fn holds_all(&self) -> bool {
        matches!(self.0, Extents::All { .. })
    }

    /// A cache of `budget_bytes` for a store of `blocks` blocks of `block_bytes`, which are read one by one; `None`
    /// when not even a few fit.
    pub fn of_blocks(budget_bytes: u64, blocks: u32, block_bytes: u32) -> Option<ExtentCache> {
        if budget_bytes < ExtentCache::bytes_of_blocks(blocks, u64::from(block_bytes)) {
            return ExtentCache::new(budget_bytes, u64::from(block_bytes));
        }
        let entries = (0..blocks).map(|_| OnceLock::new()).collect();
        Some(ExtentCache(Extents::All { entries, block_bytes, used_bytes: AtomicU64::new(0) }))
    }

    /// The verified bytes of an extent, when they are here.
    pub fn get(&self, at: Extent) -> Option<Cached<'_>> {
        match &self.0 {
            Extents::All { entries, block_bytes, .. } => {
                entries.get(entry_of(at, *block_bytes)?)?.get().map(|b| Cached::Resident(b))
            }
            Extents::Part(cache) => cache.get(&at).map(Cached::Shared),
        }
    }

    /// The verified bytes of an extent that stay as long as the cache does, when they are here.
    pub fn resident(&self, at: Extent) -> Option<&[u8]> {
        match self.get(at) {
            Some(Cached::Resident(bytes)) => Some(bytes),
            Some(Cached::Shared(_)) | None => None,
        }
    }

    /// Whether an extent is here. That it was asked for is not counted.
    pub fn has(&self, at: Extent) -> bool {
        match &self.0 {
            Extents::All { .. } => self.get(at).is_some(),
            Extents::Part(cache) => cache.peek(&at).is_some(),
        }
    }

    /// Keeps the verified bytes of an extent.
    pub fn put(&self, at: Extent, bytes: &[u8]) {
        match &self.0 {
            Extents::All { entries, block_bytes, used_bytes } => {
                let entry = entry_of(at, *block_bytes).and_then(|entry| entries.get(entry));
                // Another thread may have read the same block meanwhile.
                if entry.is_some_and(|entry| entry.set(bytes.into()).is_ok()) {
                    used_bytes.fetch_add(bytes.len() as u64 + OVERHEAD_BYTES, Ordering::Relaxed);
                }
            }
            Extents::Part(cache) => cache.insert(at, Arc::from(bytes)),
        }
    }

    /// Bytes that it may still take.
    pub fn left_bytes(&self) -> u64 {
        match &self.0 {
            Extents::All { entries, block_bytes, .. } => {
                let all = ExtentCache::bytes_of_blocks(entries.len() as u32, u64::from(*block_bytes));
                all.saturating_sub(self.used_bytes())
            }
            Extents::Part(cache) => cache.capacity().saturating_sub(cache.weight()),
        }
    }

    /// Bytes in use, bookkeeping included.
    pub fn used_bytes(&self) -> u64 {
        match &self.0 {
            Extents::All { used_bytes, .. } => used_bytes.load(Ordering::Relaxed),
            Extents::Part(cache) => cache.weight(),
        }
    }
}

/// The block that an extent is; `None` when it is not exactly one of the first store.
fn entry_of(at: Extent, block_bytes: u32) -> Option<usize> {
    let is_block = at.store == StoreId(0)
        && at.bytes == block_bytes
        && at.offset.is_multiple_of(u64::from(block_bytes).max(1));
    is_block.then(|| (at.offset / u64::from(block_bytes).max(1)) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(store: u8, offset: u64, bytes: u32) -> Extent {
        Extent { store: StoreId(store), offset, bytes }
    }

    #[test]
    fn extents_of_any_size_stay_within_the_budget() {
        let budget_bytes = 64 << 10;
        let cache = ExtentCache::new(budget_bytes, 1000).unwrap();
        let bytes_of = |i: u64| vec![i as u8; 100 + (i as usize * 37) % 3000];
        for i in 0..2000 {
            let bytes = bytes_of(i);
            let at = extent((i % 3) as u8, i * 5000, bytes.len() as u32);
            cache.put(at, &bytes);
            assert!(cache.used_bytes() <= budget_bytes);
        }
        let mut found = 0;
        for i in 0..2000 {
            let bytes = bytes_of(i);
            let at = extent((i % 3) as u8, i * 5000, bytes.len() as u32);
            if let Some(cached) = cache.get(at) {
                assert_eq!(cached[..], bytes[..]);
                found += 1;
            }
            assert!(
                cache.get(Extent { bytes: at.bytes + 1, ..at }).is_none(),
                "the length is part of the key"
            );
            assert!(cache.get(Extent { store: StoreId(9), ..at }).is_none(), "so is the store");
        }
        assert!(found > 10, "{found}");
    }

    #[test]
    fn a_cache_of_all_blocks_holds_whole_blocks_alone() {
        let cache = ExtentCache::of_blocks(1 << 20, 4, 4096).unwrap();
        let block = vec![7; 4096];
        for at in [extent(0, 4096, 4096), extent(0, 100, 4096), extent(0, 0, 8192), extent(1, 8192, 4096)] {
            cache.put(at, &block);
        }
        cache.put(extent(0, 4 * 4096, 4096), &block);
        cache.put(extent(0, 0, 4096), &block);
        assert_eq!(cache.used_bytes(), 2 * (4096 + OVERHEAD_BYTES));
        assert!(cache.get(extent(0, 4096, 4096)).is_some() && cache.get(extent(0, 0, 4096)).is_some());
        assert!(cache.get(extent(0, 8192, 4096)).is_none() && cache.get(extent(1, 0, 4096)).is_none());
    }
}
