//! Clusters that join in pairs, those with the strongest ties first.

use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

/// Most rounds. Joining that needs more hardly joins anything in one.
const ROUNDS_MAX: usize = 64;
/// The part of the edges that is looked at in a round: one in so many, and at least so many. In the next round more
/// members have joined, and their ties decide.
const EDGES_OF_ROUND: usize = 4;
const EDGES_OF_ROUND_MIN: usize = 1000;

/// The tie between two clusters, of which the first has the smaller number.
#[derive(Clone, Copy)]
pub(super) struct Edge {
    first: u32,
    second: u32,
    tie: u32,
}

impl Edge {
    /// `None` where both are one.
    pub(super) fn new(a: u32, b: u32, tie: u32) -> Option<Edge> {
        (a != b).then_some(Edge { first: a.min(b), second: a.max(b), tie })
    }
}

/// Clusters of items. At first each item is one.
pub(super) struct Clusters {
    // Ascending, one for each pair.
    edges: Vec<Edge>,
    members: Vec<Vec<u32>>,
}

impl Clusters {
    pub(super) fn new(items: usize, edges: Vec<Edge>) -> Clusters {
        let mut clusters = Clusters { edges, members: (0..items as u32).map(|item| vec![item]).collect() };
        clusters.add_up();
        clusters
    }

    /// Joins clusters as long as two have a tie and together at most `capacity` items. Returns the items of each.
    pub(super) fn joined(mut self, capacity: u32) -> Vec<Vec<u32>> {
        for _ in 0..ROUNDS_MAX {
            let members = &self.members;
            let size = |cluster: u32| members[cluster as usize].len();
            self.edges.retain(|edge| size(edge.first) + size(edge.second) <= capacity as usize);
            if self.edges.is_empty() {
                break;
            }
            let mates = self.mates();
            self.join(&mates);
        }
        self.members
    }

    /// The cluster that each joins; itself where it joins none.
    fn mates(&mut self) -> Vec<u32> {
        let size = |cluster: u32| self.members[cluster as usize].len() as u64;
        // The mean tie of two items, so that large clusters do not draw all others.
        let mean = |edge: &Edge| (u64::from(edge.tie) << 20) / (size(edge.first) * size(edge.second));
        let key = |edge: &Edge| (Reverse(mean(edge)), edge.first, edge.second);
        let count = (self.edges.len() / EDGES_OF_ROUND).max(EDGES_OF_ROUND_MIN).min(self.edges.len());
        if count < self.edges.len() {
            self.edges.select_nth_unstable_by_key(count, key);
        }
        let strongest = &mut self.edges[..count];
        strongest.sort_unstable_by_key(key);
        let mut mates: Vec<u32> = (0..self.members.len() as u32).collect();
        for &mut Edge { first, second, .. } in strongest {
            if mates[first as usize] == first && mates[second as usize] == second {
                mates[first as usize] = second;
                mates[second as usize] = first;
            }
        }
        mates
    }

    /// Joins each pair of mates and numbers the clusters anew.
    fn join(&mut self, mates: &[u32]) {
        let mut numbers = vec![0; mates.len()];
        let mut members: Vec<Vec<u32>> = Vec::with_capacity(mates.len());
        for (cluster, &mate) in (0..).zip(mates) {
            if mate < cluster {
                numbers[cluster as usize] = numbers[mate as usize];
                continue;
            }
            numbers[cluster as usize] = members.len() as u32;
            let mut own = core::mem::take(&mut self.members[cluster as usize]);
            if mate > cluster {
                own.append(&mut self.members[mate as usize]);
            }
            members.push(own);
        }
        self.members = members;
        let number = |cluster: u32| numbers[cluster as usize];
        let renumbered = |edge: &Edge| Edge::new(number(edge.first), number(edge.second), edge.tie);
        let mut kept = 0;
        for at in 0..self.edges.len() {
            if let Some(edge) = renumbered(&self.edges[at]) {
                self.edges[kept] = edge;
                kept += 1;
            }
        }
        self.edges.truncate(kept);
        self.add_up();
    }

    /// Makes one edge of all between the same two clusters.
    fn add_up(&mut self) {
        self.edges.sort_unstable_by_key(|edge| (edge.first, edge.second));
        self.edges.dedup_by(|next, kept| {
            let is_same = (next.first, next.second) == (kept.first, kept.second);
            if is_same {
                kept.tie = kept.tie.saturating_add(next.tie);
            }
            is_same
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(items: usize, edges: &[(u32, u32, u32)], capacity: u32) -> Vec<Vec<u32>> {
        let edges = edges.iter().filter_map(|&(a, b, tie)| Edge::new(a, b, tie)).collect();
        let mut clusters = Clusters::new(items, edges).joined(capacity);
        clusters.iter_mut().for_each(|members| members.sort_unstable());
        clusters
    }

    #[test]
    fn the_strongest_ties_join_first() {
        let chain = [(0, 1, 5), (2, 1, 9), (2, 3, 5), (3, 4, 1), (4, 4, 100)];
        assert_eq!(joined(6, &chain, 2), [vec![0], vec![1, 2], vec![3, 4], vec![5]]);
        assert_eq!(joined(6, &chain, 9), [vec![0, 1, 2, 3, 4], vec![5]]);
        // Ties in both directions are added up.
        assert_eq!(joined(3, &[(0, 1, 5), (1, 2, 3), (2, 1, 3)], 2), [vec![0], vec![1, 2]]);
        assert_eq!(joined(3, &[], 2), [[0], [1], [2]]);
    }

    #[test]
    fn large_clusters_do_not_draw_all_others() {
        // Four of one cluster are tied to node 4, each less than node 5 is.
        let edges = [(0, 1, 90), (2, 3, 90), (0, 2, 80), (1, 3, 80)];
        let weak = [(0, 4, 30), (1, 4, 30), (2, 4, 30), (3, 4, 30), (4, 5, 40)];
        let found = joined(6, &[&edges[..], &weak].concat(), 5);
        assert_eq!(found, [vec![0, 1, 2, 3], vec![4, 5]]);
    }
}
