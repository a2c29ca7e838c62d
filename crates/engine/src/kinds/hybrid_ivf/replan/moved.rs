//! Maps old to new ids of members that are referred to outside of their lists.

use stratann_core::route::NONE;

/// The new ids of a few members.
pub(super) struct Moved {
    // Ascending.
    ids: Vec<u32>,
    now: Vec<u32>,
}

impl Moved {
    /// Tracks these members.
    pub(super) fn of(ids: impl Iterator<Item = u32>) -> Moved {
        let mut ids: Vec<u32> = ids.filter(|&id| id != NONE).collect();
        ids.sort_unstable();
        ids.dedup();
        Moved { now: ids.clone(), ids }
    }

    /// Records that the members from `first` on now have these ids.
    pub(super) fn take_in(&mut self, first: u32, now: &[u32]) {
        let from = self.ids.partition_point(|&id| id < first);
        for (id, place) in self.ids[from..].iter().zip(&mut self.now[from..]) {
            let Some(&now) = now.get((id - first) as usize) else { break };
            *place = now;
        }
    }

    /// Returns the new id of a member.
    pub(super) fn now(&self, id: u32) -> u32 {
        self.ids.binary_search(&id).map_or(id, |at| self.now[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_moved_are_found() {
        let mut moved = Moved::of([9, NONE, 3, 7, 3].into_iter());
        moved.take_in(6, &[8, 6, 7]);
        moved.take_in(100, &[5]);
        assert_eq!([3, 7, 9, NONE, 8].map(|id| moved.now(id)), [3, 6, 9, NONE, 8]);
    }
}
