//! Caches of extents in RAM, shared by all threads. Bytes are verified before they enter one.
//!
//! Each open index has a cache of its own extents; their memory is the process's, see [`shares`]. Eviction is S3-FIFO
//! (crate `quick_cache`): an extent stays when it is asked for again, so that one scan of cold extents does not evict
//! what many queries share. Where the budget covers all blocks of an index nothing is evicted, and the cache is a
//! table.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use stratann_core::query::{Extent, StoreId};

mod shares;

use shares::Shares;

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
pub struct ExtentCache {
    extents: Arc<Extents>,
    // The number of this cache in the process.
    number: u64,
    // Set where the cache lends and borrows.
    guaranteed_bytes: Option<u64>,
    // Bytes that were put since the cache last looked whether it is full, and since it last asked for capacity.
    unchecked_bytes: AtomicU64,
    unasked_bytes: AtomicU64,
}

enum Extents {
    /// Each block of the first store has an entry: nothing is evicted, and a look-up is one access.
    All { entries: Vec<OnceLock<Box<[u8]>>>, block_bytes: u32, used_bytes: AtomicU64, capacity: AtomicU64 },
    /// Extents of any size, within a budget.
    Part { cache: Cache<Extent, Arc<[u8]>, ByBytes>, capacity: AtomicU64 },
}

impl Extents {
    fn is_table(&self) -> bool {
        matches!(self, Extents::All { .. })
    }

    fn used_bytes(&self) -> u64 {
        match self {
            Extents::All { used_bytes, .. } => used_bytes.load(Ordering::Relaxed),
            Extents::Part { cache, .. } => cache.weight(),
        }
    }

    fn capacity(&self) -> u64 {
        match self {
            Extents::All { capacity, .. } | Extents::Part { capacity, .. } => {
                capacity.load(Ordering::Relaxed)
            }
        }
    }

    /// Bytes that may be free though there is no room for an extent of `weight`: parts fill unevenly.
    fn margin_bytes(&self, weight: u64) -> u64 {
        match self {
            Extents::All { .. } => weight,
            Extents::Part { cache, .. } => (weight * cache.num_shards() as u64).max(self.capacity() / 16),
        }
    }

    /// Evicts what exceeds the capacity, where extents can be evicted.
    fn set_capacity(&self, bytes: u64) {
        let (Extents::All { capacity, .. } | Extents::Part { capacity, .. }) = self;
        capacity.store(bytes, Ordering::Relaxed);
        if let Extents::Part { cache, .. } = self {
            // Its parts are equal, and it rounds up.
            let parts = cache.num_shards() as u64;
            cache.set_capacity(bytes / parts * parts);
        }
    }
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

/// Bytes that the open caches of this process may still take.
pub fn left_bytes_of_process() -> u64 {
    Shares::of_process().left_bytes()
}

impl ExtentCache {
    /// A cache of `budget_bytes` for extents of `usual_bytes` each; `None` when not even a few fit.
    pub fn new(budget_bytes: u64, usual_bytes: u64) -> Option<ExtentCache> {
        let extents = budget_bytes / (usual_bytes + OVERHEAD_BYTES);
        let cache = || Cache::with_weighter(extents as usize, budget_bytes, ByBytes);
        let part = || Extents::Part { cache: cache(), capacity: AtomicU64::new(budget_bytes) };
        (extents >= EXTENTS_MIN).then(|| ExtentCache::of(part()))
    }

    fn of(extents: Extents) -> ExtentCache {
        let extents = Arc::new(extents);
        let number = Shares::of_process().join(extents.clone());
        let (unchecked_bytes, unasked_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        ExtentCache { extents, number, guaranteed_bytes: None, unchecked_bytes, unasked_bytes }
    }

    /// The same cache, which lends capacity that it does not use to others of the process that lend, and borrows theirs
    /// when it is full. It gets its own capacity back when it needs it.
    pub fn lending(mut self) -> ExtentCache {
        self.guaranteed_bytes = Some(self.extents.capacity());
        Shares::of_process().lend(self.number);
        self
    }

    /// The same cache of an index that has no more than `bytes` to cache: the rest of its capacity stays unused.
    pub fn of_usable(self, bytes: u64) -> ExtentCache {
        Shares::of_process().set_usable(self.number, bytes);
        self
    }

    /// Bytes of a cache that holds all of `blocks` blocks of `block_bytes`.
    pub fn bytes_of_blocks(blocks: u32, block_bytes: u64) -> u64 {
        u64::from(blocks) * (block_bytes + OVERHEAD_BYTES)
    }

    /// Whether it has a place for each block of its store.
    pub fn holds_all(&self) -> bool {
        self.extents.is_table()
    }

    /// A cache of `budget_bytes` for a store of `blocks` blocks of `block_bytes`, which are read one by one; `None`
    /// when not even a few fit.
    pub fn of_blocks(budget_bytes: u64, blocks: u32, block_bytes: u32) -> Option<ExtentCache> {
        let all_bytes = ExtentCache::bytes_of_blocks(blocks, u64::from(block_bytes));
        if budget_bytes < all_bytes {
            return ExtentCache::new(budget_bytes, u64::from(block_bytes));
        }
        let entries = (0..blocks).map(|_| OnceLock::new()).collect();
        let (used_bytes, capacity) = (AtomicU64::new(0), AtomicU64::new(all_bytes));
        Some(ExtentCache::of(Extents::All { entries, block_bytes, used_bytes, capacity }))
    }

    /// The verified bytes of an extent, when they are here.
    pub fn get(&self, at: Extent) -> Option<Cached<'_>> {
        match &*self.extents {
            Extents::All { entries, block_bytes, .. } => {
                entries.get(entry_of(at, *block_bytes)?)?.get().map(|b| Cached::Resident(b))
            }
            Extents::Part { cache, .. } => cache.get(&at).map(Cached::Shared),
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
        match &*self.extents {
            Extents::All { .. } => self.get(at).is_some(),
            Extents::Part { cache, .. } => cache.peek(&at).is_some(),
        }
    }

    /// Keeps the verified bytes of an extent.
    pub fn put(&self, at: Extent, bytes: &[u8]) {
        let weight = bytes.len() as u64 + OVERHEAD_BYTES;
        self.make_room(weight);
        match &*self.extents {
            Extents::All { entries, block_bytes, used_bytes, capacity } => {
                let entry = entry_of(at, *block_bytes).and_then(|entry| entries.get(entry));
                let Some(entry) = entry.filter(|entry| entry.get().is_none()) else { return };
                let all = ExtentCache::bytes_of_blocks(entries.len() as u32, u64::from(*block_bytes));
                // Threads that put at once must not exceed what is not lent. There is a place for all where nothing is.
                let most = Some(capacity.load(Ordering::Relaxed)).filter(|&capacity| capacity < all);
                let with =
                    |used: u64| Some(used + weight).filter(|&used| most.is_none_or(|most| used <= most));
                let has_place = used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with).is_ok();
                // Another thread may have read the same block meanwhile.
                if has_place && entry.set(bytes.into()).is_err() {
                    used_bytes.fetch_sub(weight, Ordering::Relaxed);
                }
            }
            Extents::Part { cache, .. } => cache.insert(at, Arc::from(bytes)),
        }
    }

    /// Asks for more capacity where the cache lends and is full.
    fn make_room(&self, weight: u64) {
        let Some(guaranteed_bytes) = self.guaranteed_bytes else { return };
        let capacity = self.extents.capacity();
        let is_short = capacity < guaranteed_bytes;
        let is_full = || self.extents.used_bytes() + self.extents.margin_bytes(weight) > capacity;
        if self.extents.is_table() {
            // It keeps nothing that it has no capacity for.
            if is_short && is_full() {
                Shares::of_process().extend(self.number);
            }
            return;
        }
        // To look at its use takes a lock of each part, so it looks seldom; sooner while others have what is its own.
        let wait = if is_short { capacity / 64 } else { (capacity / 16).max(8 * weight) };
        if self.unchecked_bytes.fetch_add(weight, Ordering::Relaxed) + weight < wait {
            return;
        }
        // Of several threads one looks.
        let put_bytes = self.unchecked_bytes.swap(0, Ordering::Relaxed);
        let unasked_bytes = self.unasked_bytes.fetch_add(put_bytes, Ordering::Relaxed) + put_bytes;
        // It evicts although it is not full where its parts fill unevenly.
        if put_bytes > 0 && (is_full() || unasked_bytes > capacity) {
            self.unasked_bytes.store(0, Ordering::Relaxed);
            Shares::of_process().extend(self.number);
        }
    }

    /// Bytes that an account has for it: those in use; of a cache that lends its guarantee, whoever uses it.
    pub fn accounted_bytes(&self) -> u64 {
        self.guaranteed_bytes.unwrap_or_else(|| self.used_bytes())
    }

    /// Bytes that it may still take beyond those in the account.
    pub fn unaccounted_bytes(&self) -> u64 {
        match self.guaranteed_bytes {
            Some(_) => 0,
            None => self.extents.capacity().saturating_sub(self.used_bytes()),
        }
    }

    /// Bytes in use, bookkeeping included.
    pub fn used_bytes(&self) -> u64 {
        self.extents.used_bytes()
    }
}

impl Drop for ExtentCache {
    fn drop(&mut self) {
        Shares::of_process().leave(self.number);
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
    use std::sync::Mutex;

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

    /// Tests of caches that lend go one after another: they are one process.
    static LENDING: Mutex<()> = Mutex::new(());

    /// Puts extents `range` of 4,096 bytes.
    fn fill(cache: &ExtentCache, range: std::ops::Range<u64>) {
        range.for_each(|i| cache.put(extent(0, i * 4096, 4096), &[i as u8; 4096]));
    }

    fn found(cache: &ExtentCache, range: std::ops::Range<u64>) -> u64 {
        range.filter(|i| cache.has(extent(0, i * 4096, 4096))).count() as u64
    }

    fn capacities(caches: &[&ExtentCache]) -> u64 {
        caches.iter().map(|cache| cache.extents.capacity()).sum()
    }

    #[test]
    fn a_full_cache_borrows_and_gives_back() {
        let _alone = LENDING.lock().unwrap_or_else(|e| e.into_inner());
        const MIB: u64 = 1 << 20;
        let new = |bytes: u64| ExtentCache::new(bytes, 4096).unwrap();
        let (busy, other, fixed) = (new(4 * MIB).lending(), new(12 * MIB).lending(), new(8 * MIB));
        fill(&fixed, 0..8192);
        assert_eq!(fixed.extents.capacity(), 8 * MIB, "a cache that does not lend does not borrow");
        for round in 0..4 {
            fill(&busy, round * 1000..round * 1000 + 4000);
            assert_eq!(capacities(&[&busy, &other]), 16 * MIB);
            assert!(busy.used_bytes() + other.used_bytes() <= 16 * MIB);
        }
        assert!(busy.used_bytes() > 11 * MIB, "{}", busy.used_bytes());
        // The lender has its guarantee once it has filled it, and no more while the other cache is full.
        fill(&other, 0..40_000);
        assert_eq!((busy.extents.capacity(), other.extents.capacity()), (4 * MIB, 12 * MIB));
        assert!(other.used_bytes() > 11 * MIB && busy.used_bytes() <= 4 * MIB);
        // A cache that is closed takes its guarantee along, also what others have of it.
        let third = new(MIB).lending();
        drop(other);
        fill(&busy, 0..4000);
        assert_eq!(capacities(&[&busy, &third]), 5 * MIB);
        assert!(busy.extents.capacity() > 4 * MIB);
        drop(third);
        assert_eq!(busy.extents.capacity(), 4 * MIB);
        assert!(busy.used_bytes() <= 4 * MIB);
    }

    #[test]
    fn a_table_lends_its_empty_places_and_fills_them_later() {
        let _alone = LENDING.lock().unwrap_or_else(|e| e.into_inner());
        let table = ExtentCache::of_blocks(1 << 30, 2000, 4096).unwrap().lending();
        let all = ExtentCache::bytes_of_blocks(2000, 4096);
        let part = ExtentCache::new(1 << 20, 4096).unwrap().lending();
        fill(&part, 0..4000);
        assert!(part.used_bytes() > 4 << 20 && table.extents.capacity() < all / 2);
        assert_eq!(capacities(&[&table, &part]), all + (1 << 20));
        fill(&table, 0..2000);
        assert_eq!((found(&table, 0..2000), table.used_bytes(), table.unaccounted_bytes()), (2000, all, 0));
        assert_eq!(part.extents.capacity(), 1 << 20);
        assert!(part.used_bytes() <= 1 << 20);
    }

    #[test]
    fn threads_that_fill_caches_at_once_stay_within_the_sum() {
        let _alone = LENDING.lock().unwrap_or_else(|e| e.into_inner());
        let table = ExtentCache::of_blocks(1 << 30, 1000, 4096).unwrap().lending();
        let caches: Vec<ExtentCache> =
            (0..30).map(|i| ExtentCache::new(((i % 6) + 1) << 18, 4096).unwrap().lending()).collect();
        let guarantees = |sums: (u64, u64)| assert!(sums.1 <= sums.0, "{} bytes of {}", sums.1, sums.0);
        std::thread::scope(|scope| {
            for number in 0..4 {
                let (caches, table) = (&caches, &table);
                scope.spawn(move || {
                    for round in 0..6 {
                        let own = caches.iter().skip((number + round) % 4).step_by(4);
                        own.for_each(|cache| fill(cache, 0..300 << (round % 3)));
                        fill(table, round as u64 * 150..round as u64 * 150 + 250);
                        // Indexes are opened and closed meanwhile.
                        fill(&ExtentCache::new(1 << 20, 4096).unwrap().lending(), 0..400);
                        guarantees(Shares::of_process().sums());
                    }
                });
            }
        });
        fill(&table, 0..1000);
        assert_eq!(found(&table, 0..1000), 1000);
        // Each can have what it is guaranteed, whatever the others did.
        for (i, cache) in (0..).zip(&caches) {
            fill(cache, 0..20_000);
            assert!(cache.extents.capacity() >= (i % 6 + 1) << 18);
            guarantees(Shares::of_process().sums());
        }
        let used: u64 = caches.iter().chain([&table]).map(ExtentCache::used_bytes).sum();
        assert!(used <= Shares::of_process().sums().0);
    }

    #[test]
    fn a_cache_follows_other_extents_after_it_has_lent() {
        let _alone = LENDING.lock().unwrap_or_else(|e| e.into_inner());
        let new = || ExtentCache::new(4 << 20, 4096).unwrap();
        let (alone, lender) = (new(), new().lending());
        for _ in 0..20 {
            let borrower = new().lending();
            fill(&borrower, 0..4000);
            assert!(lender.extents.capacity() < 4 << 20);
            for cache in [&alone, &lender] {
                fill(cache, 0..4000);
            }
            assert_eq!(lender.extents.capacity(), 4 << 20);
            drop(borrower);
            // It lends what it has only while it is empty.
            (0..4000).for_each(|i| {
                if let Extents::Part { cache, .. } = &*lender.extents {
                    cache.remove(&extent(0, i * 4096, 4096));
                }
            });
        }
        // A set that nearly fills the cache, then another one. Extents of the second stay only because the cache knows
        // some that it evicted.
        let hits = |cache: &ExtentCache, range: std::ops::Range<u64>| {
            let mut hits = 0;
            for at in (0..20).flat_map(|_| range.clone()) {
                let at = extent(0, at * 4096, 4096);
                match cache.get(at) {
                    Some(_) => hits += 1,
                    None => cache.put(at, &[1; 4096]),
                }
            }
            hits
        };
        let [alone, lender] = [&alone, &lender].map(|cache| {
            hits(cache, 0..800);
            hits(cache, 100_000..100_200)
        });
        assert!(alone > 1000 && lender * 20 > alone * 19, "{lender} hits of {alone}");
    }

    #[test]
    fn extents_beyond_a_part_of_a_lender_get_its_capacity_back() {
        let _alone = LENDING.lock().unwrap_or_else(|e| e.into_inner());
        let large = |cache: &ExtentCache| {
            (0..200).for_each(|i| cache.put(extent(0, i * 100_000, 100_000), &[1; 100_000]));
        };
        let lender = ExtentCache::new(40_000_000, 100_000).unwrap().lending();
        let borrower = ExtentCache::new(1 << 20, 4096).unwrap().lending();
        fill(&borrower, 0..20_000);
        assert!(lender.extents.capacity() < 20_000_000);
        large(&lender);
        assert!(lender.used_bytes() > 15_000_000, "{}", lender.used_bytes());
    }

    #[test]
    fn what_open_caches_may_still_take_is_known() {
        let _alone = LENDING.lock().unwrap_or_else(|e| e.into_inner());
        let large = ExtentCache::new(1 << 50, 1 << 40).unwrap();
        assert!(left_bytes_of_process() >= 1 << 50);
        // Of an index of 1 MiB no more can be cached, whatever size was given.
        let _small = large.of_usable(1 << 20);
        assert!(left_bytes_of_process() < 1 << 50);
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
