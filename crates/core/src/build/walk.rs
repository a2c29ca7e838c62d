//! Greedy search of a graph under construction, in RAM, with exact distances.

use alloc::vec::Vec;

use super::prune::Near;
use super::{Lists, Points};

/// Reusable memory of [`greedy_walk`].
#[derive(Clone, Debug, Default)]
pub struct WalkScratch {
    beam: Vec<(Near, bool)>,
    visited_ids: IdSet,
    unvisited: Vec<u32>,
}

/// Searches from `entry` with a beam of `search_list` candidates and appends every expanded node to `visited`, with its
/// distance.
///
/// `distance(id)` is the distance from the target. Source: DiskANN, NeurIPS 2019, algorithm 1.
pub fn greedy_walk<P: Points, L: Lists>(
    points: &P,
    lists: &L,
    entry: u32,
    distance: impl Fn(u32) -> f32,
    search_list: usize,
    scratch: &mut WalkScratch,
    visited: &mut Vec<Near>,
) {
    let WalkScratch { beam, visited_ids, unvisited } = scratch;
    beam.clear();
    visited_ids.clear();
    visited_ids.insert(entry);
    beam.push((Near { distance: distance(entry), id: entry }, false));
    let mut at = 0;
    while at < beam.len() {
        if beam[at].1 {
            at += 1;
            continue;
        }
        beam[at].1 = true;
        let node = beam[at].0;
        visited.push(node);
        unvisited.clear();
        for &id in lists.list(node.id) {
            if visited_ids.insert(id) {
                points.prefetch(id);
                unvisited.push(id);
            }
        }
        let mut lowest = at + 1;
        for &id in unvisited.iter() {
            let near = Near { distance: distance(id), id };
            if beam.len() >= search_list && beam.last().is_some_and(|(worst, _)| near.order(worst).is_ge()) {
                continue;
            }
            let place = beam.partition_point(|(other, _)| other.order(&near).is_lt());
            if beam.len() >= search_list {
                beam.pop();
            }
            beam.insert(place, (near, false));
            lowest = lowest.min(place);
        }
        at = lowest;
    }
}

/// A set of ids with open addressing. It grows and never shrinks.
#[derive(Clone, Debug, Default)]
struct IdSet {
    slots: Vec<u32>,
    count: usize,
}

const FREE: u32 = u32::MAX;

impl IdSet {
    fn clear(&mut self) {
        if self.slots.is_empty() {
            self.slots.resize(4096, FREE);
        }
        if self.count > 0 {
            self.slots.fill(FREE);
        }
        self.count = 0;
    }

    /// Inserts an id. Returns false when it was in the set already.
    #[inline]
    fn insert(&mut self, id: u32) -> bool {
        if self.count * 2 >= self.slots.len() {
            self.grow();
        }
        let mask = self.slots.len() - 1;
        let mut at = (id.wrapping_mul(0x9E37_79B1) >> 7) as usize & mask;
        loop {
            match self.slots[at] {
                FREE => {
                    self.slots[at] = id;
                    self.count += 1;
                    return true;
                }
                held if held == id => return false,
                _ => at = (at + 1) & mask,
            }
        }
    }

    #[cold]
    fn grow(&mut self) {
        let mut bigger = IdSet { slots: alloc::vec![FREE; (self.slots.len() * 2).max(4096)], count: 0 };
        for &id in self.slots.iter().filter(|&&id| id != FREE) {
            bigger.insert(id);
        }
        *self = bigger;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn id_set_agrees_with_a_naive_set(ids in prop::collection::vec(0u32..5000, 0..9000)) {
            let mut set = IdSet::default();
            set.clear();
            let mut naive = alloc::collections::BTreeSet::new();
            for id in ids {
                prop_assert_eq!(set.insert(id), naive.insert(id));
            }
        }
    }
}
