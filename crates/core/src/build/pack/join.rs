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

/// No item.
const END: u32 = u32::MAX;

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
    clusters: Vec<Cluster>,
    // The item after each one in its cluster.
    next: Vec<u32>,
}

/// A chain of items.
#[derive(Clone, Copy)]
struct Cluster {
    first: u32,
    last: u32,
    size: u32,
}

impl Clusters {
    pub(super) fn new(items: usize, edges: Vec<Edge>) -> Clusters {
        let single = |item| Cluster { first: item, last: item, size: 1 };
        let clusters = (0..items as u32).map(single).collect();
        let mut clusters = Clusters { edges, clusters, next: vec![END; items] };
        clusters.add_up();
        clusters
    }

    /// Joins clusters as long as two have a tie and together at most `capacity` items. Returns the items of each.
    pub(super) fn joined(mut self, capacity: u32) -> Vec<Vec<u32>> {
        for _ in 0..ROUNDS_MAX {
            let clusters = &self.clusters;
            let size = |cluster: u32| u64::from(clusters[cluster as usize].size);
            self.edges.retain(|edge| size(edge.first) + size(edge.second) <= u64::from(capacity));
            if self.edges.is_empty() {
                break;
            }
            let mates = self.mates();
            self.join(&mates);
        }
        drop(self.edges);
        let next = |&item: &u32| Some(self.next[item as usize]).filter(|&next| next != END);
        let items = |cluster: &Cluster| core::iter::successors(Some(cluster.first), next).collect();
        self.clusters.iter().map(items).collect()
    }

    /// The cluster that each joins; itself where it joins none.
    fn mates(&mut self) -> Vec<u32> {
        let size = |cluster: u32| u64::from(self.clusters[cluster as usize].size);
        // The mean tie of two items, so that large clusters do not draw all others.
        let mean = |edge: &Edge| (u64::from(edge.tie) << 20) / (size(edge.first) * size(edge.second));
        let key = |edge: &Edge| (Reverse(mean(edge)), edge.first, edge.second);
        let count = (self.edges.len() / EDGES_OF_ROUND).max(EDGES_OF_ROUND_MIN).min(self.edges.len());
        if count < self.edges.len() {
            self.edges.select_nth_unstable_by_key(count, key);
        }
        let strongest = &mut self.edges[..count];
        strongest.sort_unstable_by_key(key);
        let mut mates: Vec<u32> = (0..self.clusters.len() as u32).collect();
        for &mut Edge { first, second, .. } in strongest {
            if mates[first as usize] == first && mates[second as usize] == second {
                mates[first as usize] = second;
                mates[second as usize] = first;
            }
        }
        mates
    }

    /// Joins each pair of mates, and gives the clusters new numbers.
    fn join(&mut self, mates: &[u32]) {
        let mut numbers = vec![0; mates.len()];
        let mut count = 0;
        for (cluster, &mate) in (0..).zip(mates) {
            if mate < cluster {
                numbers[cluster as usize] = numbers[mate as usize];
                continue;
            }
            let mut own = self.clusters[cluster as usize];
            if mate > cluster {
                let other = self.clusters[mate as usize];
                self.next[own.last as usize] = other.first;
                own = Cluster { first: own.first, last: other.last, size: own.size + other.size };
            }
            numbers[cluster as usize] = count;
            // No later cluster is overwritten: the numbers do not grow.
            self.clusters[count as usize] = own;
            count += 1;
        }
        self.clusters.truncate(count as usize);
        let number = |cluster: u32| numbers[cluster as usize];
        let mut kept = 0;
        for at in 0..self.edges.len() {
            let Edge { first, second, tie } = self.edges[at];
            if let Some(edge) = Edge::new(number(first), number(second), tie) {
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
