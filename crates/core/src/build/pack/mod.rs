//! Packing: assigns nodes to blocks, so that nodes that are visited together share a block.
//!
//! Nodes [join] those that they are tied to most strongly, as long as they fit into one block. The largest clusters
//! become the groups, and nodes of the others take the places that are left. Then nodes are exchanged between groups
//! as long as this strengthens the ties within groups. The aim is that of Starling (SIGMOD 2024, §4.1), with weights.
//! Its blocks grow one after the other, so that the last ones are made of what the others have left.
//!
//! Groups are numbered so that those with strong ties get close ids, which keeps the gaps in adjacency lists small.

use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::Lists;

mod join;

use join::{Clusters, Edge};

/// Neighbours of a node that count when nodes join: the closest.
const CLOSEST: usize = 12;
/// Groups that a node is tied to and is tried in, the strongest ties first.
const TRIED_GROUPS: usize = 6;

/// Weight of the tie to the neighbour at `rank` of an adjacency list that is sorted closest first.
///
/// Close neighbours count most: a query that visits a node nearly always visits its closest neighbours too.
fn weight(rank: usize) -> u32 {
    const WEIGHTS: [u32; 128] = {
        let (mut weights, mut rank) = ([0; 128], 0);
        while rank < weights.len() {
            weights[rank] = 720 / (rank as u32 + 3);
            rank += 1;
        }
        weights
    };
    WEIGHTS.get(rank).copied().unwrap_or(720 / (rank as u32 + 3))
}

/// Packs `count` nodes into groups of at most `capacity`; every node is in exactly one group.
///
/// `lists` are sorted closest first. `passes` rounds of exchange follow the joining. The result depends on the
/// arguments only.
pub fn pack(lists: &impl Lists, count: usize, capacity: usize, passes: usize) -> Vec<Vec<u32>> {
    let (mut groups, mut group_of) = joined(lists, count, capacity.max(1));
    for _ in 0..passes {
        if exchange(lists, &mut groups, &mut group_of) == 0 {
            break;
        }
    }
    let between = edges(lists, count, |node| group_of[node as usize]);
    let order = Clusters::new(groups.len(), between).joined(u32::MAX).concat();
    order.into_iter().map(|group| core::mem::take(&mut groups[group as usize])).collect()
}

/// The ties of nodes to their closest neighbours, as edges between what `of` makes of them.
fn edges(lists: &impl Lists, count: usize, of: impl Fn(u32) -> u32) -> Vec<Edge> {
    let mut edges = Vec::with_capacity(count * CLOSEST);
    for node in 0..count as u32 {
        for (rank, &neighbour) in lists.list(node).iter().take(CLOSEST).enumerate() {
            edges.extend(Edge::new(of(node), of(neighbour), weight(rank)));
        }
    }
    edges
}

/// The groups of as many blocks as are needed, and the group of each node.
fn joined(lists: &impl Lists, count: usize, capacity: usize) -> (Vec<Vec<u32>>, Vec<u32>) {
    let most = u32::try_from(capacity).unwrap_or(u32::MAX);
    let mut clusters = Clusters::new(count, edges(lists, count, |node| node)).joined(most);
    clusters.sort_by_key(|cluster| Reverse(cluster.len()));
    let others = clusters.split_off(count.div_ceil(capacity).min(clusters.len()));
    let mut groups = clusters;
    let mut group_of = vec![NONE; count];
    for (group, members) in (0..).zip(&groups) {
        members.iter().for_each(|&member| group_of[member as usize] = group);
    }
    let mut ties = Ties::new(groups.len());
    let mut left: Vec<u32> = others.into_iter().flatten().collect();
    // A node without a place beside its neighbours looks again once others have theirs, and takes any in the end.
    let (mut takes_any, mut not_full) = (false, 0);
    while !left.is_empty() {
        let before = left.len();
        left.retain(|&node| {
            let own = ties.strongest_with_place(lists.list(node), &group_of, &groups, capacity);
            let any = || {
                not_full += groups[not_full..].iter().take_while(|group| group.len() >= capacity).count();
                not_full
            };
            let place = own.or_else(|| takes_any.then(any));
            if let Some(group) = place {
                groups[group].push(node);
                group_of[node as usize] = group as u32;
            }
            place.is_none()
        });
        takes_any = left.len() == before;
    }
    (groups, group_of)
}

/// No group.
const NONE: u32 = u32::MAX;

/// Runs one round: each node looks at the groups that it is tied to more strongly than to its own; two nodes are
/// exchanged when their ties gain in sum. Returns the number of exchanges.
fn exchange(lists: &impl Lists, groups: &mut [Vec<u32>], group_of: &mut [u32]) -> usize {
    let mut ties = Ties::new(groups.len());
    let mut exchanged = 0;
    for node in 0..group_of.len() as u32 {
        let own_group = group_of[node as usize];
        for &(target, gain) in ties.stronger(lists.list(node), group_of, own_group) {
            let found = partner(lists, groups, group_of, node, (own_group, target), gain);
            let Some(place) = found else { continue };
            let other = groups[target as usize][place];
            let own = groups[own_group as usize].iter().position(|&m| m == node).unwrap_or(0);
            groups[target as usize][place] = node;
            groups[own_group as usize][own] = other;
            group_of[node as usize] = target;
            group_of[other as usize] = own_group;
            exchanged += 1;
            break;
        }
    }
    exchanged
}

/// Ties of a node to the groups of its neighbours: reusable memory.
struct Ties {
    /// By group; zero between calls.
    of_group: Vec<u32>,
    touched: Vec<u32>,
    stronger: Vec<(u32, u32)>,
}

impl Ties {
    fn new(groups: usize) -> Ties {
        Ties { of_group: vec![0; groups], touched: Vec::new(), stronger: Vec::new() }
    }

    /// Adds the ties of the node of this list. Neighbours without a group have none.
    fn add(&mut self, list: &[u32], group_of: &[u32]) {
        for (rank, &neighbour) in list.iter().enumerate() {
            let group = group_of[neighbour as usize];
            let Some(tie) = self.of_group.get_mut(group as usize) else { continue };
            if *tie == 0 {
                self.touched.push(group);
            }
            *tie += weight(rank);
        }
    }

    /// The groups to which the node of this list is tied more strongly than to its own, and by how much: the strongest
    /// first, of equal ones the smaller number.
    fn stronger(&mut self, list: &[u32], group_of: &[u32], own_group: u32) -> &[(u32, u32)] {
        self.add(list, group_of);
        let own_tie = core::mem::take(&mut self.of_group[own_group as usize]);
        self.stronger.clear();
        for group in self.touched.drain(..) {
            let tie = core::mem::take(&mut self.of_group[group as usize]);
            if tie > own_tie {
                self.stronger.push((group, tie - own_tie));
            }
        }
        self.stronger.sort_unstable_by_key(|&(group, gain)| (Reverse(gain), group));
        self.stronger.truncate(TRIED_GROUPS);
        &self.stronger
    }

    /// The group with a free place to which the node of this list is tied most strongly; of equal ones the smaller
    /// number.
    fn strongest_with_place(
        &mut self,
        list: &[u32],
        group_of: &[u32],
        groups: &[Vec<u32>],
        capacity: usize,
    ) -> Option<usize> {
        self.add(list, group_of);
        let mut best: Option<(u32, Reverse<u32>)> = None;
        for group in self.touched.drain(..) {
            let tie = core::mem::take(&mut self.of_group[group as usize]);
            if groups[group as usize].len() < capacity {
                best = best.max(Some((tie, Reverse(group))));
            }
        }
        best.map(|(_, Reverse(group))| group as usize)
    }
}

/// Returns the member of `target` whose move to `own_group` costs least, if this and the move of `node` to `target`,
/// which gains `gain`, gain in sum.
fn partner(
    lists: &impl Lists,
    groups: &[Vec<u32>],
    group_of: &[u32],
    node: u32,
    (own_group, target): (u32, u32),
    gain: u32,
) -> Option<usize> {
    let own_list = lists.list(node);
    let mut best: Option<(i64, usize)> = None;
    for (place, &member) in groups[target as usize].iter().enumerate() {
        let mut total = i64::from(gain);
        for (rank, &neighbour) in lists.list(member).iter().enumerate() {
            let (group, tie) = (group_of[neighbour as usize], i64::from(weight(rank)));
            total += if group == own_group { tie } else { 0 };
            total -= if group == target { tie } else { 0 };
            total -= if neighbour == node { tie } else { 0 };
        }
        let least = best.map_or(0, |(total, _)| total);
        if total > least {
            // The tie of the node to it is lost, too.
            total -= own_list.iter().position(|&n| n == member).map_or(0, |rank| i64::from(weight(rank)));
        }
        if total > least {
            best = Some((total, place));
        }
    }
    best.map(|(_, place)| place)
}

/// Exchanges nodes so that, where possible, each group has a member in the adjacency lists of other groups. A search
/// finds no other group.
///
/// Useful where few nodes share a block. The far ends of adjacency lists do not count, because they may be cut.
pub fn make_reachable(lists: &impl Lists, groups: &mut [Vec<u32>]) {
    let count = groups.iter().map(Vec::len).sum();
    let (mut group_of, mut named) = (vec![0u32; count], vec![0u32; count]);
    for (g, members) in groups.iter().enumerate() {
        for &m in members {
            group_of[m as usize] = g as u32;
            let list = lists.list(m);
            list[..list.len() - list.len() / 4].iter().for_each(|&n| named[n as usize] += 1);
        }
    }
    let largest = groups.iter().map(Vec::len).max().unwrap_or(0) as u32;
    // More lists contain the node than its own group has members.
    let is_known = |node: u32| named[node as usize] >= largest;
    for lost in 0..groups.len() {
        if groups[lost].iter().any(|&m| is_known(m)) {
            continue;
        }
        let exchange = groups[lost].iter().enumerate().find_map(|(place, &node)| {
            lists.list(node).iter().find_map(|&near| {
                let other = group_of[near as usize] as usize;
                let mut mates = groups[other].iter();
                let mate = mates.position(|&w| w != near && is_known(w) && is_known(near))?;
                (other != lost).then_some((place, other, mate))
            })
        });
        if let Some((place, other, mate)) = exchange {
            let (node, known) = (groups[lost][place], groups[other][mate]);
            groups[lost][place] = known;
            groups[other][mate] = node;
            group_of[known as usize] = lost as u32;
            group_of[node as usize] = other as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct Table(Vec<Vec<u32>>);

    impl Lists for Table {
        fn list(&self, node: u32) -> &[u32] {
            &self.0[node as usize]
        }
    }

    proptest! {
        #[test]
        fn every_node_has_one_place(
            edges in prop::collection::vec((0u32..50, 0u32..50), 0..400),
            capacity in 1usize..9,
            passes in 0usize..3,
        ) {
            let mut table = Table(vec![vec![]; 50]);
            for (a, b) in edges {
                if a != b && !table.0[a as usize].contains(&b) {
                    table.0[a as usize].push(b);
                }
            }
            let groups = pack(&table, 50, capacity, passes);
            let mut all: Vec<u32> = groups.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..50).collect::<Vec<_>>());
            prop_assert!(groups.iter().all(|g| (1..=capacity).contains(&g.len())));
        }
    }

    #[test]
    fn nodes_without_incoming_edges_share_a_group_with_reachable_ones() {
        // Nodes 0 to 9 are neighbours of each other. Nodes 10 to 15 have edges to them, and no incoming edges.
        let mut table = Table((0..10u32).map(|i| (1..10).map(|j| (i + j) % 10).collect()).collect());
        table.0.extend((10..16u32).map(|i| vec![i - 10, (i - 5) % 10]));
        let mut groups: Vec<Vec<u32>> = (0..8u32).map(|g| vec![2 * g, 2 * g + 1]).collect();
        make_reachable(&table, &mut groups);
        assert!(groups.iter().all(|g| g.len() == 2 && g.iter().any(|&m| m < 10)), "{groups:?}");
        let mut all = groups.concat();
        all.sort_unstable();
        assert_eq!(all, (0..16).collect::<Vec<_>>());
        // Groups of one node cannot be made reachable and stay.
        let mut single: Vec<Vec<u32>> = (0..16).map(|m| vec![m]).collect();
        make_reachable(&table, &mut single);
        assert_eq!(single.concat(), (0..16).collect::<Vec<_>>());
    }

    #[test]
    fn cliques_end_up_together() {
        // Ten cliques of four, with scattered numbers.
        let mut table = Table(vec![vec![]; 40]);
        for i in 0..40u32 {
            table.0[i as usize] = (0..40).filter(|&j| j != i && j % 10 == i % 10).collect();
        }
        for group in pack(&table, 40, 4, 2) {
            assert!(group.iter().all(|m| m % 10 == group[0] % 10), "{group:?}");
        }
    }
}
