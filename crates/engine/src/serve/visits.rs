//! The inverted lists that the last queries of a server's clients visited, by which a partition can be planned again.

use std::collections::VecDeque;
use std::sync::Mutex;

use super::lock;

/// Queries that are kept.
const QUERIES: usize = 1024;
/// Lists that are kept, of all of them.
const LISTS: usize = 64 << 10;
/// Lists of one query that are kept: the nearest ones.
const LISTS_OF_QUERY: usize = 1024;

/// All memory that they take, bytes.
pub(super) const VISITS_BYTES: u64 = 4 * (LISTS + QUERIES) as u64;

/// See the module.
#[derive(Default)]
pub(super) struct Visits(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    // Those of the oldest query first.
    lists: VecDeque<u32>,
    counts: VecDeque<u32>,
}

impl Visits {
    /// Notes the lists of a query, the nearest first.
    pub(super) fn note(&self, lists: impl ExactSizeIterator<Item = u32>) {
        let count = lists.len().min(LISTS_OF_QUERY);
        let mut kept = lock(&self.0);
        if kept.lists.capacity() == 0 {
            kept.lists.reserve_exact(LISTS);
            kept.counts.reserve_exact(QUERIES);
        }
        while kept.counts.len() == QUERIES || kept.lists.len() + count > LISTS {
            kept.forget_oldest();
        }
        kept.lists.extend(lists.take(count));
        kept.counts.push_back(count as u32);
    }

    /// The lists of each query.
    pub(super) fn all(&self) -> Vec<Vec<u32>> {
        let kept = lock(&self.0);
        let mut lists = kept.lists.iter().copied();
        kept.counts.iter().map(|&count| lists.by_ref().take(count as usize).collect()).collect()
    }
}

impl Kept {
    fn forget_oldest(&mut self) {
        let count = self.counts.pop_front().unwrap_or(0) as usize;
        self.lists.drain(..count.min(self.lists.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_queries_are_kept_within_both_limits() {
        let visits = Visits::default();
        assert!(visits.all().is_empty());
        for query in 0..2000u32 {
            visits.note([query, query + 1].into_iter());
        }
        let all = visits.all();
        assert_eq!((all.len(), &all[0], &all[QUERIES - 1]), (QUERIES, &vec![976, 977], &vec![1999, 2000]));
        // A query of more lists than are kept of one.
        for _ in 0..100 {
            visits.note(0..5000);
        }
        let all = visits.all();
        assert_eq!((all.len(), all[63].len()), (LISTS / LISTS_OF_QUERY, LISTS_OF_QUERY));
    }
}
