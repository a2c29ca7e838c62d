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
    distances: Vec<f32>,
}

/// Searches from `entry` with a beam of `search_list` candidates and appends every expanded node to `visited`, with its
/// distance.
///
/// `distances_of` computes those of several nodes from the target into a list, which it clears first. Source: DiskANN,
/// NeurIPS 2019, algorithm 1.
pub fn greedy_walk<P: Points, L: Lists>(
    points: &P,
    lists: &L,
    entry: u32,
    distances_of: impl Fn(&[u32], &mut Vec<f32>),
    search_list: usize,
    scratch: &mut WalkScratch,
    visited: &mut Vec<Near>,
) {
    let WalkScratch { beam, visited_ids, unvisited, distances } = scratch;
    beam.clear();
    visited_ids.clear(points.len());
    visited_ids.insert(entry);
    distances_of(&[entry], distances);
    beam.extend(distances.iter().map(|&distance| (Near { distance, id: entry }, false)));
    let mut at = 0;
    while at < beam.len() {
        if beam[at].1 {
            at += 1;
            continue;
        }
        beam[at].1 = true;
        let node = beam[at].0;
        visited.push(node);
        // Unless a neighbour is closer, the next one is expanded next.
        if let Some((next, _)) = beam[at..].iter().find(|candidate| !candidate.1) {
            lists.prefetch(next.id);
        }
        // No branch: which neighbours are new is unpredictable.
        let list = lists.list(node.id);
        unvisited.resize(list.len(), 0);
        let mut count = 0;
        for &id in list {
            unvisited[count] = id;
            count += usize::from(visited_ids.insert(id));
        }
        unvisited.truncate(count);
        unvisited.iter().for_each(|&id| points.prefetch(id));
        let mut lowest = at + 1;
        distances_of(unvisited, distances);
        for (&id, &distance) in unvisited.iter().zip(distances.iter()) {
            let near = Near { distance, id };
            if beam.len() >= search_list && beam.last().is_some_and(|(worst, _)| near.order(worst).is_ge()) {
                continue;
            }
            let place = beam.partition_point(|(other, _)| other.order(&near).is_lt());
            if beam.len() >= search_list {
                beam.pop();
            }
            beam.insert(place, (near, false));
            if place <= lowest {
                lowest = place;
                lists.prefetch(id);
            }
        }
        at = lowest;
    }
}

/// The distances of several nodes for [`greedy_walk`], by that of one.
pub fn each(distance: impl Fn(u32) -> f32) -> impl Fn(&[u32], &mut Vec<f32>) {
    move |ids, out| {
        out.clear();
        out.extend(ids.iter().map(|&id| distance(id)));
    }
}

/// A set of ids: a bit for each, and the words that are not zero.
#[derive(Clone, Debug, Default)]
struct IdSet {
    words: Vec<u64>,
    used: Vec<u32>,
}

impl IdSet {
    /// Removes all ids, and makes room for those below `end`.
    fn clear(&mut self, end: usize) {
        self.used.drain(..).for_each(|word| self.words[word as usize] = 0);
        if self.words.len() < end.div_ceil(64) {
            self.words.resize(end.div_ceil(64), 0);
        }
    }

    /// Inserts an id. Returns false when it was in the set already, and for an id that is not below the end.
    #[inline]
    fn insert(&mut self, id: u32) -> bool {
        let Some(word) = self.words.get_mut(id as usize / 64) else { return false };
        if *word == 0 {
            self.used.push(id / 64);
        }
        let bit = 1 << (id % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
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
            for ids in ids.chunks(3000) {
                set.clear(5000);
                let mut naive = alloc::collections::BTreeSet::new();
                for &id in ids {
                    prop_assert_eq!(set.insert(id), naive.insert(id));
                }
            }
        }
    }
}
