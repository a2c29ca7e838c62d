//! A sieve by external ids, for an index whose rows have no numbers because others change it.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{Chunk, Sieve, split};

/// The external ids that a query may return: those that were named, or all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdSieve {
    named: Named,
    is_only: bool,
    rows: u64,
    matches: u64,
}

/// A set of ids. The form follows from the ids alone, so equal sets are equal.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Named {
    /// Most ids are the numbers of rows, which are dense.
    Dense(Sieve),
    /// Ascending.
    Sorted(Arc<[u64]>),
}

impl IdSieve {
    /// The ids that are named, which ascend, or with `is_only` false all others, of an index of about `rows` rows.
    /// `None` unless they ascend.
    pub fn new(named: &[u64], is_only: bool, rows: u64) -> Option<IdSieve> {
        if !named.windows(2).all(|pair| pair[0] < pair[1]) {
            return None;
        }
        let count = named.len() as u64;
        let matches = if is_only { count.min(rows) } else { rows.saturating_sub(count) };
        let sorted = || Named::Sorted(named.into());
        Some(IdSieve { named: Named::dense(named).unwrap_or_else(sorted), is_only, rows, matches })
    }

    /// Whether it has an id.
    #[inline]
    pub fn has(&self, id: u64) -> bool {
        let is_named = match &self.named {
            Named::Dense(ids) => u32::try_from(id).is_ok_and(|id| ids.has(id)),
            Named::Sorted(ids) => ids.binary_search(&id).is_ok(),
        };
        is_named == self.is_only
    }

    /// Whether it certainly has no id.
    pub fn is_empty(&self) -> bool {
        self.is_only
            && match &self.named {
                Named::Dense(ids) => ids.count() == 0,
                Named::Sorted(ids) => ids.is_empty(),
            }
    }

    /// Rows that it has, if every id that was named is that of a row. With ids that no row has there are fewer of the
    /// named ones, and more of the others.
    pub fn matches(&self) -> u64 {
        self.matches
    }

    /// Rows of the index when the sieve was made.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Whether ids are named that it has, and not those that it lacks.
    pub fn is_only(&self) -> bool {
        self.is_only
    }

    /// Memory, bytes.
    pub fn bytes(&self) -> usize {
        size_of::<IdSieve>()
            + match &self.named {
                Named::Dense(ids) => ids.bytes(),
                Named::Sorted(ids) => size_of_val::<[u64]>(ids),
            }
    }
}

impl Named {
    /// The ids as numbers; `None` where that takes more memory than a list of them.
    fn dense(ids: &[u64]) -> Option<Named> {
        let rows = ids.last().map_or(Some(0), |&last| u32::try_from(last).ok()?.checked_add(1))?;
        let list_bytes = size_of_val::<[u64]>(ids);
        // A set of few ids far apart would take a chunk for each 65,536 numbers below the largest.
        if (split(rows).0 + 1) * size_of::<Chunk>() > list_bytes {
            return None;
        }
        // All are below the largest, which fits.
        let numbers: Vec<u32> = ids.iter().map(|&id| id as u32).collect();
        let set = Sieve::from_sorted(rows, &numbers)?;
        (set.bytes() <= list_bytes + size_of::<Sieve>()).then_some(Named::Dense(set))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_has_what_a_plain_set_has(
            ids in prop::collection::btree_set(prop_oneof![0u64..200, 0u64..400_000, any::<u64>()], 0..300),
            is_only: bool,
            rows in 0u64..500,
        ) {
            let sorted: Vec<u64> = ids.iter().copied().collect();
            let own = IdSieve::new(&sorted, is_only, rows).unwrap();
            let near = sorted.iter().flat_map(|&id| [id.wrapping_sub(1), id, id.wrapping_add(1)]);
            for id in near.chain([0, u64::from(u32::MAX), u64::MAX]) {
                prop_assert_eq!(own.has(id), ids.contains(&id) == is_only);
            }
            let count = sorted.len() as u64;
            prop_assert_eq!(own.matches(), if is_only { count.min(rows) } else { rows.saturating_sub(count) });
        }
    }

    #[test]
    fn dense_ids_take_less_than_a_list_and_sparse_ones_no_more() {
        let bytes = |ids: Vec<u64>| IdSieve::new(&ids, true, 0).unwrap().bytes() - size_of::<IdSieve>();
        assert!(bytes((0..100_000).collect()) < 200);
        assert!(bytes((0..100_000).step_by(3).collect()) < 20_000);
        assert_eq!(bytes(vec![u64::from(u32::MAX) - 1]), 8);
        assert_eq!(bytes((0..100).map(|id| id << 40).collect()), 800);
        assert_eq!(bytes(vec![]), 0);
    }

    #[test]
    fn ids_that_do_not_ascend_are_refused() {
        assert_eq!(IdSieve::new(&[1, 1], true, 5), None);
        assert_eq!(IdSieve::new(&[2, 1], false, 5), None);
        let named: BTreeSet<u64> = [u64::MAX, 0].into();
        let named: Vec<u64> = named.into_iter().collect();
        assert!(
            IdSieve::new(&named, true, 5).is_some_and(|own| own.has(0) && own.has(u64::MAX) && !own.has(1))
        );
    }
}
