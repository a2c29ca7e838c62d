//! Memory of all deltas of a node.

use std::sync::{Arc, Mutex, MutexGuard};

use stratann_engine::index::CacheBudget;
use stratann_storage::budget::size;

use super::error::{Error, Result};
use crate::segments::{SegmentMemory, TakenMemory};

/// Memory that open segments share.
pub(super) struct SegmentPool {
    limit: Option<u64>,
    used: Mutex<u64>,
}

impl SegmentPool {
    /// `None` for no limit: caches take what the machine has free then.
    pub(super) fn new(limit: Option<u64>) -> Arc<SegmentPool> {
        Arc::new(SegmentPool { limit, used: Mutex::new(0) })
    }

    /// Bytes that are taken.
    pub(super) fn used(&self) -> u64 {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.used.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Memory of a segment, which goes back when it is dropped.
struct SegmentBytes {
    pool: Arc<SegmentPool>,
    tables: u64,
    cache: u64,
}

impl SegmentMemory for Arc<SegmentPool> {
    fn take(&self, tables: u64, usable: u64) -> stratann_storage::Result<Box<dyn TakenMemory>> {
        let free = if self.limit.is_none() { CacheBudget::free_bytes() } else { 0 };
        let mut used = self.lock();
        let cache = match self.limit {
            None => usable.min(free),
            Some(limit) => {
                let left = limit.saturating_sub(*used);
                let beside = left.checked_sub(tables).ok_or_else(|| {
                    stratann_storage::Error::budget(format!(
                        "a segment needs {} of memory, and {} of the {} for segments are taken; close collections that \
                         are idle, or give a larger --ram-budget",
                        size(tables),
                        size(*used),
                        size(limit)
                    ))
                })?;
                // What fits as a whole is in memory; of anything larger others keep a half.
                if usable <= beside / 2 { usable } else { (beside / 2).min(usable) }
            }
        };
        *used += tables + cache;
        Ok(Box::new(SegmentBytes { pool: self.clone(), tables, cache }))
    }
}

impl TakenMemory for SegmentBytes {
    fn cache_bytes(&self) -> u64 {
        self.cache
    }
}

impl Drop for SegmentBytes {
    fn drop(&mut self) {
        let mut used = self.pool.lock();
        *used = used.saturating_sub(self.tables + self.cache);
    }
}

/// Memory that deltas share.
pub(super) struct Pool {
    limit: u64,
    used: Mutex<u64>,
}

impl Pool {
    pub(super) fn new(limit: u64) -> Arc<Pool> {
        Arc::new(Pool { limit, used: Mutex::new(0) })
    }

    /// Bytes that are taken.
    pub(super) fn used(&self) -> u64 {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.used.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// A part of the pool, which goes back when it is dropped.
pub(super) struct Reserved {
    pool: Arc<Pool>,
    bytes: u64,
}

impl Reserved {
    pub(super) fn none(pool: &Arc<Pool>) -> Reserved {
        Reserved { pool: pool.clone(), bytes: 0 }
    }

    /// Bytes of the part.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Changes the part to so many bytes. One that becomes smaller never fails.
    ///
    /// # Errors
    /// `Busy` when the pool has not that much; then the part stays as it is.
    pub(super) fn resize(&mut self, bytes: u64) -> Result<()> {
        let mut used = self.pool.lock();
        let others = used.saturating_sub(self.bytes);
        if bytes > self.bytes && others.saturating_add(bytes) > self.pool.limit {
            return Err(Error::busy(format!(
                "its points need {} of memory, and {} of the {} for points are taken by other collections; close \
                 collections that are idle, remove points, or raise the budget",
                size(bytes),
                size(others),
                size(self.pool.limit)
            )));
        }
        *used = others.saturating_add(bytes);
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut used = self.pool.lock();
        *used = used.saturating_sub(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_gives_what_it_has() {
        let pool = Pool::new(100);
        let (mut one, mut two) = (Reserved::none(&pool), Reserved::none(&pool));
        one.resize(60).unwrap();
        two.resize(40).unwrap();
        assert!(two.resize(41).is_err() && one.resize(61).is_err());
        assert_eq!(pool.used(), 100);
        one.resize(10).unwrap();
        two.resize(90).unwrap();
        drop(two);
        assert_eq!(pool.used(), 10);
    }
}
