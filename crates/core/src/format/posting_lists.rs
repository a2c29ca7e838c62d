//! Members of inverted lists by their ids, in RAM. A vector is in the list of its nearest centroid, and as a replica in
//! lists of others that are nearly as near (SPANN; FusionANNS §4.1).
//!
//! Ids follow the order of lists, so the own members of a list are a run of ids and take no room. Replicas are stored
//! as a bit stream of gaps, list after list; see [`super::gaps`].

use alloc::vec::Vec;

use super::gaps;

/// Most lists that one vector is in.
pub const LISTS_PER_VECTOR: usize = 8;

/// The lists of one index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PostingLists {
    /// The first own member of each list, and the number of vectors.
    pub first: Vec<u32>,
    /// Start of the replicas of each list in `replicas`, and the end of the last.
    pub starts: Vec<u64>,
    /// The replicas of all lists.
    pub replicas: Vec<u8>,
}

impl PostingLists {
    /// Number of lists.
    pub fn count(&self) -> u32 {
        self.first.len().saturating_sub(1) as u32
    }

    /// The own members of a list: the first id and their number. None of a list that does not exist.
    pub fn own(&self, list: u32) -> (u32, u32) {
        match self.first.get(list as usize..).and_then(|first| first.first_chunk::<2>()) {
            Some(&[first, next]) => (first, next.saturating_sub(first)),
            None => (0, 0),
        }
    }

    /// Appends the ids of the replicas of a list, ascending. `None` when their bytes are invalid; a part may have been
    /// appended then.
    pub fn replicas_of(&self, list: u32, out: &mut Vec<u32>) -> Option<()> {
        let &[start, end] = self.starts.get(list as usize..)?.first_chunk::<2>()?;
        let range = usize::try_from(start).ok()?..usize::try_from(end).ok()?;
        gaps::decode_within(&self.replicas, range, out)
    }

    /// Appends a list whose own members are the next `own` ids. `replicas` are ascending.
    pub fn push(&mut self, own: u32, replicas: &[u32]) {
        if self.first.is_empty() {
            (self.first, self.starts) = (alloc::vec![0], alloc::vec![0]);
        }
        self.first.push(self.first.last().copied().unwrap_or(0) + own);
        gaps::encode(replicas, &mut self.replicas);
        self.starts.push(self.replicas.len() as u64);
    }

    /// True when all numbers are within their ranges for `nodes` vectors, and every list can be read; lists from a file
    /// must be checked before use.
    pub fn is_consistent(&self, nodes: u32) -> bool {
        let is_ordered = self.first.first() == Some(&0)
            && self.first.last() == Some(&nodes)
            && self.first.is_sorted()
            && self.starts.len() == self.first.len()
            && self.starts.first() == Some(&0)
            && self.starts.last() == Some(&(self.replicas.len() as u64))
            && self.starts.is_sorted();
        let mut ids = Vec::new();
        is_ordered
            && (0..self.count()).all(|list| {
                ids.clear();
                self.replicas_of(list, &mut ids).is_some() && ids.last().is_none_or(|&id| id < nodes)
            })
    }

    /// Bytes held in memory.
    pub fn bytes(&self) -> usize {
        4 * self.first.len() + 8 * self.starts.len() + self.replicas.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lists_come_back(
            lists in prop::collection::vec((0u32..50, prop::collection::btree_set(0u32..1000, 0..40)), 1..20),
            at in any::<prop::sample::Index>(), flip in 0u8..8,
        ) {
            let mut stored = PostingLists::default();
            let mut first = 0;
            for (own, replicas) in &lists {
                stored.push(*own, &replicas.iter().copied().collect::<Vec<u32>>());
            }
            for (i, (own, replicas)) in lists.iter().enumerate() {
                let mut ids = vec![];
                prop_assert_eq!(stored.own(i as u32), (first, *own));
                prop_assert_eq!(stored.replicas_of(i as u32, &mut ids), Some(()));
                prop_assert!(ids.iter().eq(replicas));
                first += own;
            }
            let largest = lists.iter().flat_map(|l| l.1.last()).max().map_or(0, |&id| id + 1);
            prop_assert_eq!(stored.is_consistent(first), largest <= first);
            prop_assert_eq!(stored.own(lists.len() as u32), (0, 0));
            prop_assert_eq!(stored.replicas_of(lists.len() as u32, &mut vec![]), None);
            // Any damage is either found or harmless.
            if !stored.replicas.is_empty() {
                let at = at.index(stored.replicas.len());
                stored.replicas[at] ^= 1 << flip;
                if stored.is_consistent(first) {
                    let mut ids = vec![];
                    (0..stored.count()).for_each(|list| { stored.replicas_of(list, &mut ids); });
                    prop_assert!(ids.iter().all(|&id| id < first));
                }
            }
        }
    }
}
