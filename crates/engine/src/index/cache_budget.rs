//! Memory that is left over, for the cache of an index.

use stratann_params::AutoOr;
use stratann_storage::cache::left_bytes_of_process;

use crate::base::Reserve;
use crate::manifest::Manifest;
use crate::{doctor, kinds};

/// Memory that caches the bytes that queries read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheBudget {
    /// The rest of the RAM budget; without one, up to half of the memory that is available when the index is opened,
    /// beyond what open caches of the process may still take.
    #[default]
    Auto,
    /// A number of bytes; with 0 every read is made and counted.
    Bytes(u64),
}

impl From<AutoOr<u64>> for CacheBudget {
    fn from(bytes: AutoOr<u64>) -> CacheBudget {
        match bytes {
            AutoOr::Auto => CacheBudget::Auto,
            AutoOr::Given(bytes) => CacheBudget::Bytes(bytes),
        }
    }
}

impl CacheBudget {
    /// The bytes that were given, if any.
    pub fn given(self) -> Option<u64> {
        match self {
            CacheBudget::Auto => None,
            CacheBudget::Bytes(bytes) => Some(bytes),
        }
    }

    /// As [`CacheBudget::bytes`], where the searches are not known when the index is opened: half of what a RAM budget
    /// leaves is theirs, beside the usual `reserve`.
    pub fn shared_bytes(self, manifest: &Manifest, ram_budget: Option<u64>, reserve: &Reserve) -> u64 {
        let bytes = self.bytes(manifest, ram_budget, reserve);
        match (self, ram_budget) {
            (CacheBudget::Auto, Some(_)) => bytes / 2,
            _ => bytes,
        }
    }

    /// Bytes of the cache of an index that is about to be opened: what a RAM budget leaves beside the open index and
    /// `reserve`, or half of what it leaves beside the least reserve. No more than the index can use.
    pub fn bytes(self, manifest: &Manifest, ram_budget: Option<u64>, reserve: &Reserve) -> u64 {
        let left = match (self, ram_budget) {
            (CacheBudget::Bytes(bytes), _) => return bytes,
            (CacheBudget::Auto, Some(budget)) => {
                let left = budget.saturating_sub(manifest.planned_account(0).total());
                let least = reserve.low_memory_bytes.min(reserve.bytes);
                left.saturating_sub(reserve.bytes).max(left.saturating_sub(least) / 2)
            }
            (CacheBudget::Auto, None) => CacheBudget::free_bytes(),
        };
        left.min(CacheBudget::usable_bytes(manifest))
    }

    /// Bytes that new caches may take where there is no budget: half of the memory that is available beyond what open
    /// caches of the process may still take.
    pub fn free_bytes() -> u64 {
        doctor::available_memory_bytes().unwrap_or(0).saturating_sub(left_bytes_of_process()) / 2
    }

    /// Bytes that an index can use: its vectors and adjacency lists in memory, or all that queries read.
    pub fn usable_bytes(manifest: &Manifest) -> u64 {
        kinds::kind_of(manifest).usable_cache_bytes(manifest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::build;
    use crate::dataset::{Reader, Shape};
    use crate::index::{Index, OpenOptions};
    use crate::search::{Effort, SearchOptions};
    use crate::stages::options::BuildOptions;
    use crate::{DType, Metric};
    use stratann_params::IndexKind;
    use stratann_storage::Quiet;
    use stratann_storage::cache::ExtentCache;

    #[test]
    fn what_a_budget_leaves_is_the_cache_and_no_more_than_can_be_used() {
        let dir = tempfile::tempdir().unwrap();
        let shape = Shape { rows: 3000, dim: 64, dtype: DType::U8 };
        let bytes: Vec<u8> = (0..192_000u32).map(|i| (i * 37 % 251) as u8).collect();
        let base = Reader::from_memory(shape, bytes.clone()).unwrap();
        build(&base, dir.path(), &BuildOptions::new(IndexKind::Flat, Metric::L2), &Quiet).unwrap();
        let (_, manifest) = Manifest::read(dir.path()).unwrap();
        let all = CacheBudget::usable_bytes(&manifest);
        assert!(all > 192_000 && all < 400_000, "{all}");
        let open_bytes = manifest.planned_account(0).total();
        let beside = |bytes, low_memory_bytes| Reserve { bytes, low_memory_bytes, threads: 1 };
        let auto =
            |budget: u64, reserve| CacheBudget::Auto.bytes(&manifest, Some(open_bytes + budget), &reserve);
        assert_eq!(CacheBudget::Bytes(7).bytes(&manifest, Some(1), &beside(0, 0)), 7);
        assert_eq!((auto(1000, beside(2000, 2000)), auto(5000, beside(2000, 2000))), (0, 3000));
        // Where not all searches have room for all that they can use, the cache has a half.
        assert_eq!((auto(5000, beside(6000, 1000)), auto(5000, beside(1000, 1000))), (2000, 4000));
        assert_eq!(auto(1 << 40, beside(0, 0)), all);
        assert_eq!(CacheBudget::Auto.bytes(&manifest, None, &beside(0, 0)), all);

        // What open caches were promised is not promised again, unless there is nothing to cache in it.
        let large = ExtentCache::new(1 << 50, 1 << 40).unwrap();
        assert_eq!(CacheBudget::Auto.bytes(&manifest, None, &beside(0, 0)), 0);
        let large = large.of_usable(1 << 10);
        assert_eq!(CacheBudget::Auto.bytes(&manifest, None, &beside(0, 0)), all);
        drop(large);

        // With all of it the second search reads nothing; preloaded, the first one neither.
        let open = |cache_budget| {
            Index::open(dir.path(), OpenOptions { cache_budget, ..OpenOptions::default() }).unwrap()
        };
        let options = SearchOptions {
            k: 3,
            effort: Effort::SearchList(10, None),
            threads: 1,
            ..SearchOptions::default()
        };
        let reads = |index: &Index| index.search(&bytes[..64 * 5], &options, &Quiet).unwrap().stats.reads;
        let index = open(all);
        assert!(reads(&index) > 0 && reads(&index) == 0);
        let index = open(all);
        assert!(index.preload(&Quiet).unwrap());
        assert_eq!((reads(&index), index.account().total() >= 192_000), (0, true));
        let index = open(all - 1);
        assert!(!index.preload(&Quiet).unwrap() && reads(&index) > 0);
    }
}
