//! The beam: the best candidates so far, sorted by `(distance, id)`. It is its own visited set.
//!
//! No set of visited nodes is kept. A candidate is refused when it is in the beam already, or when the beam is full
//! and the candidate is not better than the worst. That is enough: once the beam is full its worst entry only ever
//! improves, so an entry that was pushed out, or refused, compares worse than every later worst entry and can never
//! come back. While the beam is not full nothing is pushed out, and a second offer of the same `(distance, id)` finds
//! the first. It needs every offer of a node to carry the same distance, which integer code distances give on every
//! machine.

use alloc::vec::Vec;

/// Progress of the search with a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Progress {
    /// The candidate is not read yet.
    Fresh = 0,
    /// The block of the candidate is being read.
    Awaited = 1,
    /// The neighbours of the candidate have been followed.
    Expanded = 2,
}

/// One entry of the beam.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Code distance.
    pub distance: u32,
    /// Node.
    pub id: u32,
    /// Progress of the search with it.
    pub progress: Progress,
}

impl Candidate {
    fn key(&self) -> u64 {
        key(self.distance, self.id)
    }
}

/// The order of candidates as one number.
pub(crate) fn key(distance: u32, id: u32) -> u64 {
    u64::from(distance) << 32 | u64::from(id)
}

/// The sorted, bounded set of candidates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beam {
    entries: Vec<Candidate>,
    capacity: usize,
    // No entry before this one is fresh.
    first_fresh: usize,
}

impl Beam {
    /// Empties the beam and sets how many entries it keeps.
    pub fn reset(&mut self, capacity: usize) {
        self.entries.clear();
        self.capacity = capacity;
        self.first_fresh = 0;
    }

    /// Memory beside the beam itself, bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Candidate>()
    }

    /// The distance that a new candidate must beat; `u32::MAX` while there is room.
    #[inline]
    pub fn threshold(&self) -> u32 {
        if self.entries.len() < self.capacity {
            u32::MAX
        } else {
            self.entries.last().map_or(0, |c| c.distance)
        }
    }

    /// Offers a candidate. Returns whether it was inserted.
    #[inline]
    pub fn offer(&mut self, distance: u32, id: u32, progress: Progress) -> bool {
        let full = self.entries.len() >= self.capacity;
        let new = key(distance, id);
        if full && self.entries.last().is_none_or(|worst| new >= worst.key()) {
            return false;
        }
        let at = self.entries.partition_point(|c| c.key() < new);
        if self.entries.get(at).is_some_and(|c| c.key() == new) {
            return false;
        }
        if full {
            self.entries.pop();
        }
        self.entries.insert(at, Candidate { distance, id, progress });
        if progress == Progress::Fresh || at < self.first_fresh {
            self.first_fresh =
                self.first_fresh.min(at) + usize::from(progress != Progress::Fresh && at < self.first_fresh);
        }
        true
    }

    /// Offers fresh candidates by their [`key`]s: what is in the beam afterwards does not depend on their order. Sorts
    /// `keys`; `tail` is scratch.
    pub(crate) fn offer_all(&mut self, keys: &mut [u64], tail: &mut Vec<Candidate>) {
        keys.sort_unstable();
        let Some(&least) = keys.first() else { return };
        let from = self.entries.partition_point(|c| c.key() < least);
        tail.clear();
        tail.extend_from_slice(&self.entries[from..]);
        self.entries.truncate(from);
        let mut old = tail.iter().copied().peekable();
        for &key in &*keys {
            while let Some(before) = old.next_if(|c| c.key() < key) {
                self.push(before);
            }
            if old.peek().is_some_and(|c| c.key() == key)
                || self.entries.last().is_some_and(|c| c.key() == key)
            {
                continue;
            }
            if self.entries.len() < self.capacity {
                self.first_fresh = self.first_fresh.min(self.entries.len());
            }
            self.push(Candidate { distance: (key >> 32) as u32, id: key as u32, progress: Progress::Fresh });
        }
        let room = self.capacity.saturating_sub(self.entries.len());
        self.entries.extend(old.take(room));
    }

    fn push(&mut self, candidate: Candidate) {
        if self.entries.len() < self.capacity {
            self.entries.push(candidate);
        }
    }

    /// Adds a candidate behind all others. False where there is no room, or it does not come after them.
    pub(crate) fn append(&mut self, distance: u32, id: u32, progress: Progress) -> bool {
        let at = self.entries.len();
        if at >= self.capacity || self.entries.last().is_some_and(|last| last.key() >= key(distance, id)) {
            return false;
        }
        if progress == Progress::Fresh {
            self.first_fresh = self.first_fresh.min(at);
        }
        self.entries.push(Candidate { distance, id, progress });
        true
    }

    /// The place of a candidate, when the beam still holds it.
    pub fn position(&self, distance: u32, id: u32) -> Option<usize> {
        self.entries.binary_search_by_key(&key(distance, id), Candidate::key).ok()
    }

    /// Marks the candidate at `position`.
    pub fn mark(&mut self, position: usize, progress: Progress) {
        if let Some(entry) = self.entries.get_mut(position) {
            entry.progress = progress;
        }
    }

    /// Makes the awaited candidates that `is_lost` names fresh again: their read failed.
    pub(crate) fn renew(&mut self, is_lost: impl Fn(u32) -> bool) {
        for at in (0..self.entries.len()).rev() {
            let entry = &mut self.entries[at];
            if entry.progress == Progress::Awaited && is_lost(entry.id) {
                entry.progress = Progress::Fresh;
                self.first_fresh = self.first_fresh.min(at);
            }
        }
    }

    /// The place of the first fresh candidate at or after `from`.
    pub fn next_fresh(&mut self, from: usize) -> Option<usize> {
        let start = from.max(self.first_fresh);
        let found =
            self.entries.iter().skip(start).position(|c| c.progress == Progress::Fresh).map(|p| p + start);
        if from <= self.first_fresh {
            self.first_fresh = found.unwrap_or(self.entries.len());
        }
        found
    }

    /// Whether a read is under way although a closer candidate is fresh.
    pub(crate) fn awaits_behind_fresh(&mut self) -> bool {
        self.next_fresh(0)
            .is_some_and(|fresh| self.entries[fresh..].iter().any(|c| c.progress == Progress::Awaited))
    }

    /// Keeps the candidates that `is_kept` names.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(u32) -> bool) {
        self.entries.retain(|candidate| is_kept(candidate.id));
        self.first_fresh = 0;
    }

    /// The candidates, closest first.
    pub fn entries(&self) -> &[Candidate] {
        &self.entries
    }

    /// Replaces the candidates' distances, given in the order of [`Beam::entries`], and sorts again.
    pub(crate) fn rescore(&mut self, distances: &[u32]) {
        self.entries.iter_mut().zip(distances).for_each(|(c, &d)| c.distance = d);
        self.entries.sort_unstable_by_key(Candidate::key);
        self.first_fresh = 0;
    }

    /// Whether a node is in the beam at two distances. Offers of a search cannot do this, decoded bytes can. Sorts in
    /// place, because batons are decoded without new memory.
    pub(crate) fn has_duplicates(&mut self) -> bool {
        self.entries.sort_unstable_by_key(|c| c.id);
        let found = self.entries.windows(2).any(|w| w[0].id == w[1].id);
        self.entries.sort_unstable_by_key(Candidate::key);
        found
    }

    /// Most candidates that are kept.
    pub fn capacity(&self) -> usize {
        self.capacity
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The visited-set argument: whatever is offered how often, no node is taken in after it was pushed out or
        /// refused by a full beam.
        #[test]
        fn is_its_own_visited_set(offers in prop::collection::vec(0u32..60, 0..400), capacity in 1usize..12) {
            let distance = |id: u32| id.wrapping_mul(2_654_435_761) >> 24;
            let mut beam = Beam::default();
            beam.reset(capacity);
            let mut seen = [false; 60];
            for id in offers {
                let taken = beam.offer(distance(id), id, Progress::Fresh);
                prop_assert!(!(taken && seen[id as usize]), "{id} came back");
                seen[id as usize] = true;
            }
            let mut all: Vec<(u32, u32)> = (0..60).filter(|&i| seen[i as usize]).map(|i| (distance(i), i)).collect();
            all.sort_unstable();
            all.truncate(capacity);
            prop_assert_eq!(beam.entries().iter().map(|c| (c.distance, c.id)).collect::<Vec<_>>(), all);
        }

        /// Many at once are as good as one after another, in whatever order.
        #[test]
        fn many_offers_are_as_one_after_another(
            rounds in prop::collection::vec(prop::collection::vec((0u32..50, 0u32..20), 0..30), 0..20),
            capacity in 1usize..24,
        ) {
            let (mut one, mut many, mut tail) = (Beam::default(), Beam::default(), Vec::new());
            one.reset(capacity);
            many.reset(capacity);
            for round in rounds {
                round.iter().for_each(|&(distance, id)| { one.offer(distance, id, Progress::Fresh); });
                let mut keys: Vec<u64> = round.iter().map(|&(distance, id)| key(distance, id)).collect();
                many.offer_all(&mut keys, &mut tail);
                prop_assert_eq!(one.entries(), many.entries());
                prop_assert_eq!(one.next_fresh(0), many.next_fresh(0));
                if let Some(at) = one.next_fresh(0) {
                    one.mark(at, Progress::Expanded);
                    many.mark(at, Progress::Expanded);
                }
            }
        }

        #[test]
        fn next_fresh_agrees_with_a_scan(steps in prop::collection::vec((0u32..100, 0u8..4), 0..300)) {
            let mut beam = Beam::default();
            beam.reset(16);
            for (x, action) in steps {
                match action {
                    0 if x % 5 == 0 => beam.renew(|id| id % 2 == 0),
                    0 => { beam.offer(x, x, Progress::Expanded); }
                    1 => if let Some(p) = beam.next_fresh(0) { beam.mark(p, Progress::Awaited) },
                    _ => { beam.offer(x, x, Progress::Fresh); }
                }
                let naive = beam.entries().iter().position(|c| c.progress == Progress::Fresh);
                prop_assert_eq!(beam.next_fresh(0), naive);
            }
        }
    }
}
