//! Packing: which nodes share a block, so that nodes visited together lie together.
//!
//! Groups grow greedily: the next member is the free node with the strongest ties to those already in the group (Starling, SIGMOD
//! 2024, §4.1, with weights). Then single nodes are exchanged between groups as long as that strengthens the ties inside. The order
//! of groups follows the growth, so near groups get near ids, which keeps the gaps in neighbour lists small.

use alloc::vec;
use alloc::vec::Vec;

use super::Lists;

const FREE: u32 = u32::MAX;

/// Weight of the tie to the neighbour at `rank` of a list that is sorted closest first.
///
/// The near ones count most: a query that visits a node nearly always visits its closest neighbours too.
fn weight(rank: usize) -> u32 {
    720 / (rank as u32 + 3)
}

/// Groups of at most `capacity` nodes; every one of `count` nodes is in exactly one group.
///
/// `lists` are closest first. `passes` rounds of exchange follow the greedy growth. Depends on its arguments alone.
pub fn pack(lists: &impl Lists, count: usize, capacity: usize, passes: usize) -> Vec<Vec<u32>> {
    let mut groups = grow(lists, count, capacity.max(1));
    let mut group_of = vec![0u32; count];
    for (g, members) in groups.iter().enumerate() {
        members.iter().for_each(|&m| group_of[m as usize] = g as u32);
    }
    for _ in 0..passes {
        if exchange(lists, &mut groups, &mut group_of) == 0 {
            break;
        }
    }
    groups
}

fn grow(lists: &impl Lists, count: usize, capacity: usize) -> Vec<Vec<u32>> {
    let mut groups = Vec::with_capacity(count.div_ceil(capacity));
    let mut taken = vec![false; count];
    let mut score = vec![0u32; count];
    let mut touched: Vec<u32> = Vec::new();
    let mut frontier: Vec<u32> = Vec::new();
    let mut next_unseen = 0;
    let mut left = count;
    while left > 0 {
        let seed = next_seed(&taken, &mut frontier, &mut next_unseen);
        let mut group = Vec::with_capacity(capacity);
        let mut joining = Some(seed);
        while let Some(node) = joining {
            taken[node as usize] = true;
            group.push(node);
            for (rank, &neighbour) in lists.list(node).iter().enumerate() {
                if !taken[neighbour as usize] {
                    if score[neighbour as usize] == 0 {
                        touched.push(neighbour);
                    }
                    score[neighbour as usize] += weight(rank);
                }
            }
            left -= 1;
            joining = match group.len() < capacity {
                // Nothing free is tied to the group: what was left nearby fills the block, which is paid for whole.
                true if left > 0 => Some(
                    strongest(&touched, &score, &taken)
                        .unwrap_or_else(|| next_seed(&taken, &mut frontier, &mut next_unseen)),
                ),
                _ => None,
            };
        }
        leave(&mut touched, &mut score, &taken, &mut frontier);
        groups.push(group);
    }
    groups
}

/// The free node with the strongest tie to the group; ties go to the smaller id.
fn strongest(touched: &[u32], score: &[u32], taken: &[bool]) -> Option<u32> {
    touched
        .iter()
        .copied()
        .filter(|&c| !taken[c as usize])
        .max_by_key(|&c| (score[c as usize], core::cmp::Reverse(c)))
}

/// Forgets the scores and leaves the strongest free neighbours on the frontier, the best on top.
fn leave(touched: &mut Vec<u32>, score: &mut [u32], taken: &[bool], frontier: &mut Vec<u32>) {
    touched.retain(|&c| {
        !taken[c as usize] || {
            score[c as usize] = 0;
            false
        }
    });
    touched.sort_unstable_by_key(|&c| (score[c as usize], core::cmp::Reverse(c)));
    touched.iter().for_each(|&c| score[c as usize] = 0);
    let keep = touched.len().saturating_sub(16);
    frontier.extend_from_slice(&touched[keep..]);
    touched.clear();
}

fn next_seed(taken: &[bool], frontier: &mut Vec<u32>, next_unseen: &mut usize) -> u32 {
    while let Some(candidate) = frontier.pop() {
        if !taken[candidate as usize] {
            return candidate;
        }
    }
    while taken[*next_unseen] {
        *next_unseen += 1;
    }
    *next_unseen as u32
}

/// One round: each node looks for the group it is most strongly tied to and, when two nodes gain together, they change places.
/// Returns the number of exchanges.
fn exchange(lists: &impl Lists, groups: &mut [Vec<u32>], group_of: &mut [u32]) -> usize {
    let mut ties: Vec<(u32, u32)> = Vec::new();
    let mut exchanged = 0;
    for node in 0..group_of.len() as u32 {
        gather_ties(lists, group_of, node, &mut ties);
        let home = group_of[node as usize];
        let at_home = tie_to(&ties, home);
        let Some(&(target, there)) =
            ties.iter().filter(|t| t.0 != home).max_by_key(|t| (t.1, core::cmp::Reverse(t.0)))
        else {
            continue;
        };
        if there <= at_home {
            continue;
        }
        let gain = i64::from(there) - i64::from(at_home);
        if let Some(place) = partner(lists, groups, group_of, node, home, target, gain) {
            let other = groups[target as usize][place];
            let own = groups[home as usize].iter().position(|&m| m == node).unwrap_or(0);
            groups[target as usize][place] = node;
            groups[home as usize][own] = other;
            group_of[node as usize] = target;
            group_of[other as usize] = home;
            exchanged += 1;
        }
    }
    exchanged
}

/// The member of `target` whose move to `home` costs least, when both moves together gain.
fn partner(
    lists: &impl Lists,
    groups: &[Vec<u32>],
    group_of: &[u32],
    node: u32,
    home: u32,
    target: u32,
    gain: i64,
) -> Option<usize> {
    let mut ties: Vec<(u32, u32)> = Vec::new();
    let mut best: Option<(i64, usize)> = None;
    for (place, &member) in groups[target as usize].iter().enumerate() {
        gather_ties(lists, group_of, member, &mut ties);
        let between = tie_between(lists, node, member) + tie_between(lists, member, node);
        let total =
            gain + i64::from(tie_to(&ties, home)) - i64::from(tie_to(&ties, target)) - i64::from(between);
        if total > 0 && best.is_none_or(|(b, _)| total > b) {
            best = Some((total, place));
        }
    }
    best.map(|(_, place)| place)
}

/// Exchanges nodes so that, where that can be had, each group has a member that lists of other groups name: a search comes to no other group.
///
/// Of use where few nodes share a block. Far ends of lists do not count, for they may be cut.
pub fn lead_to_all(lists: &impl Lists, groups: &mut [Vec<u32>]) {
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
    // By so many lists that they cannot all be of its own group.
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

fn tie_between(lists: &impl Lists, from: u32, to: u32) -> u32 {
    lists.list(from).iter().position(|&n| n == to).map_or(0, weight)
}

/// How strongly a node is tied to each group that its neighbours are in.
fn gather_ties(lists: &impl Lists, group_of: &[u32], node: u32, ties: &mut Vec<(u32, u32)>) {
    ties.clear();
    for (rank, &neighbour) in lists.list(node).iter().enumerate() {
        let group = group_of[neighbour as usize];
        if group == FREE {
            continue;
        }
        match ties.iter_mut().find(|t| t.0 == group) {
            Some(tie) => tie.1 += weight(rank),
            None => ties.push((group, weight(rank))),
        }
    }
}

fn tie_to(ties: &[(u32, u32)], group: u32) -> u32 {
    ties.iter().find(|t| t.0 == group).map_or(0, |t| t.1)
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
        fn every_node_has_one_place(edges in prop::collection::vec((0u32..50, 0u32..50), 0..400), capacity in 1usize..9, passes in 0usize..3) {
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
    fn what_nobody_names_shares_a_group_with_what_many_name() {
        // Nodes 0 to 9 name each other; 10 to 15 name those, and nobody names them.
        let mut table = Table((0..10u32).map(|i| (1..10).map(|j| (i + j) % 10).collect()).collect());
        table.0.extend((10..16u32).map(|i| vec![i - 10, (i - 5) % 10]));
        let mut groups: Vec<Vec<u32>> = (0..8u32).map(|g| vec![2 * g, 2 * g + 1]).collect();
        lead_to_all(&table, &mut groups);
        assert!(groups.iter().all(|g| g.len() == 2 && g.iter().any(|&m| m < 10)), "{groups:?}");
        let mut all = groups.concat();
        all.sort_unstable();
        assert_eq!(all, (0..16).collect::<Vec<_>>());
        // Alone in their groups they cannot be led to, and stay.
        let mut single: Vec<Vec<u32>> = (0..16).map(|m| vec![m]).collect();
        lead_to_all(&table, &mut single);
        assert_eq!(single.concat(), (0..16).collect::<Vec<_>>());
    }

    #[test]
    fn cliques_end_up_together() {
        // Ten cliques of four, their members scattered over the numbers.
        let mut table = Table(vec![vec![]; 40]);
        for i in 0..40u32 {
            table.0[i as usize] = (0..40).filter(|&j| j != i && j % 10 == i % 10).collect();
        }
        for group in pack(&table, 40, 4, 2) {
            assert!(group.iter().all(|m| m % 10 == group[0] % 10), "{group:?}");
        }
    }
}
