//! Design of blocks that carry the codes of their nodes and of all neighbours: pages per block, nodes per block, and
//! the pruning of adjacency lists that are too long.
//!
//! A code takes much more space than an id, but a block stores each code once, even when several of its lists contain
//! the node. So the number of distinct neighbours per block matters.

use std::cmp::Reverse;

use stratann_core::format::adjacency;
use stratann_core::format::block::{BlockLayout, CodedNodes};

/// Most pages of a block.
const PAGES_MAX: usize = 256;
/// Number of additional pages that are tried.
const PAGES_TRIED: usize = 6;
/// g nodes that are packed together have about g^SHARING times as many distinct neighbours as one node. The
/// measurements are in decisions/0021-codes-on-disk.md, also for the next two.
const SHARING: f64 = 0.93;
/// Blocks of g nodes are read about g^-READS times as often as blocks of one.
const READS: f64 = 0.2;
/// Share of the mean list that must fit. Two nodes with shorter lists are better than one with its whole list.
const KEEP: f64 = 0.85;
/// Least bytes of an id and of a rank that go with a code.
const NAME_BYTES: usize = 1;
/// Bytes of empty lists: one adjacency list, and the ids of others.
const EMPTY_LIST_BYTES: usize = 2;
const NO_IDS_BYTES: usize = 3;

/// Inputs of the design of blocks.
pub(crate) struct CodedDensity<F> {
    /// Nodes in the index.
    pub(crate) nodes: u64,
    /// Mean length of the adjacency lists.
    pub(crate) mean_list: f64,
    /// Layout of blocks with this number of pages.
    pub(crate) shape: F,
}

impl<F: Fn(usize) -> BlockLayout> CodedDensity<F> {
    /// Expected bytes of `count` nodes with lists of `list` ids each.
    fn bytes(&self, shape: &BlockLayout, count: usize, list: f64) -> f64 {
        let list = list.max(1.0);
        let others = list * (count as f64).powf(SHARING);
        let rank_bits = 2.0 + ((others + count as f64) / list).log2();
        let id_bits = 2.0 + (self.nodes as f64 / others).max(1.0).log2();
        let lists = count as f64 * (13.0 + rank_bits * list) / 8.0;
        let ids = (53.0 + id_bits * others) / 8.0;
        (count * shape.node_bytes()) as f64 + lists + ids + others * shape.code_bytes as f64
    }

    /// Nodes per block of this number of pages; at least one.
    pub(crate) fn nodes_per_block(&self, pages: usize) -> usize {
        let shape = (self.shape)(pages);
        let fits =
            |&count: &usize| self.bytes(&shape, count, self.mean_list * KEEP) <= shape.payload_bytes() as f64;
        (2..).take_while(fits).last().unwrap_or(1)
    }

    /// Pages per block: at least as many as hold one node with its whole list, and then the number with the fewest
    /// pages per query.
    pub(crate) fn pages_per_block(&self) -> usize {
        let holds_one = |&pages: &usize| {
            let shape = (self.shape)(pages);
            self.bytes(&shape, 1, self.mean_list) <= shape.payload_bytes() as f64
        };
        let fewest = (1..=PAGES_MAX).find(holds_one).unwrap_or(PAGES_MAX);
        let read = |pages: usize| pages as f64 * (self.nodes_per_block(pages) as f64).powf(-READS);
        let tried = fewest..=(fewest + PAGES_TRIED).min(PAGES_MAX);
        tried.min_by(|&a, &b| read(a).total_cmp(&read(b))).unwrap_or(fewest)
    }
}

/// Most nodes per block when their lists may be cut to nothing.
pub(crate) fn most_nodes(shape: &BlockLayout) -> usize {
    let ids = if shape.code_bytes > 0 { NO_IDS_BYTES } else { 0 };
    shape.payload_bytes().saturating_sub(ids) / (shape.node_bytes() + EMPTY_LIST_BYTES)
}

/// Cuts the lists of a block (closest first), whose own nodes start with `first_id`, until the block fits. Ids that no
/// other list contains are cut first, from the far ends, because their codes are dropped too. Returns the number of ids
/// cut.
pub(crate) fn fit(lists: &mut [Vec<u32>], first_id: u32, shape: &BlockLayout) -> u64 {
    lists.iter_mut().for_each(|l| l.truncate(adjacency::MAX_LEN));
    let room = shape.payload_bytes().saturating_sub(lists.len() * shape.node_bytes());
    let mut cut = 0;
    loop {
        let over = list_bytes(lists, first_id, shape).saturating_sub(room);
        let done = match over {
            0 => 0,
            _ => cut_far(lists, first_id, over.div_ceil(shape.code_bytes + NAME_BYTES)),
        };
        if done == 0 {
            return cut;
        }
        cut += done;
    }
}

/// Bytes of lists, ids and codes of other nodes.
fn list_bytes(lists: &[Vec<u32>], first_id: u32, shape: &BlockLayout) -> usize {
    let mut sorted = lists.to_vec();
    for l in &mut sorted {
        l.sort_unstable();
        l.dedup();
    }
    let each = || sorted.iter().map(Vec::as_slice);
    let coded = CodedNodes::new(first_id, sorted.len(), each());
    coded.list_bytes(each()) + coded.others().len() * shape.code_bytes
}

/// Cuts up to `wanted` ids that occur in one list only, those farthest in their lists; without such ids, the last of
/// the longest list.
fn cut_far(lists: &mut [Vec<u32>], first_id: u32, wanted: usize) -> u64 {
    let own = |id: u32| id >= first_id && ((id - first_id) as usize) < lists.len();
    let mut named: Vec<(u32, usize, usize)> = Vec::new();
    for (number, list) in lists.iter().enumerate() {
        named.extend(list.iter().enumerate().map(|(rank, &id)| (id, rank, number)));
    }
    named.retain(|n| !own(n.0));
    named.sort_unstable();
    let alone = named.chunk_by(|a, b| a.0 == b.0).filter(|run| run.len() == 1);
    let mut far: Vec<(usize, usize)> = alone.map(|run| (run[0].1, run[0].2)).collect();
    // Far ends first, so that cutting does not move later positions.
    far.sort_unstable_by_key(|&place| Reverse(place));
    far.truncate(wanted);
    if far.is_empty() {
        let longest = (0..lists.len()).max_by_key(|&i| (lists[i].len(), i));
        far.extend(longest.and_then(|i| Some((lists[i].len().checked_sub(1)?, i))));
    }
    for &(rank, number) in &far {
        lists[number].remove(rank);
    }
    far.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use stratann_core::PAGE;
    use stratann_core::format::block::{Block, Node, write};

    fn shape(pages: usize, vector_bytes: usize, code_bytes: usize) -> BlockLayout {
        BlockLayout {
            block_bytes: pages * PAGE,
            vector_bytes,
            id_bytes: 4,
            norms: false,
            adjacency: true,
            code_bytes,
            checksum_seed: 0,
        }
    }

    #[test]
    fn what_many_lists_name_stays() {
        // Four lists that name the same 40 nodes, and 30 of its own each, of which the near ones must stay.
        let shape = shape(1, 128, 32);
        let own = |list: u32| (0..30).map(move |i| 5000 + 100 * list + i);
        let mut lists: Vec<Vec<u32>> = (0..4).map(|l| (1000..1040).chain(own(l)).collect()).collect();
        let cut = fit(&mut lists, 10, &shape);
        assert_eq!(cut as usize, 4 * 70 - lists.iter().map(Vec::len).sum::<usize>());
        for (l, list) in (0..).zip(&lists) {
            assert_eq!(list[..40], (1000..1040).collect::<Vec<u32>>());
            assert!((40..70).contains(&list.len()), "{}", list.len());
            assert!(list[40..].iter().copied().eq(own(l).take(list.len() - 40)));
        }
        let lengths: Vec<usize> = lists.iter().map(Vec::len).collect();
        assert!(lengths.iter().max().unwrap() - lengths.iter().min().unwrap() <= 1, "{lengths:?}");
    }

    #[test]
    fn blocks_are_as_large_as_they_must_be() {
        let density = |vector_bytes, code_bytes| CodedDensity {
            nodes: 1_000_000,
            mean_list: 50.0,
            shape: move |pages| shape(pages, vector_bytes, code_bytes),
        };
        for (vector_bytes, code_bytes) in
            [(8, 2), (128, 32), (512, 32), (768, 96), (3072, 192), (16_384, 1024)]
        {
            let density = density(vector_bytes, code_bytes);
            let pages = density.pages_per_block();
            let count = density.nodes_per_block(pages);
            let shape = shape(pages, vector_bytes, code_bytes);
            assert!(count <= most_nodes(&shape));
            // One node with its list fits, and more pages are taken for more nodes alone.
            assert!(
                density.bytes(&shape, 1, 50.0) <= shape.payload_bytes() as f64,
                "{vector_bytes}: {pages} pages"
            );
        }
        assert!(density(8, 2).nodes_per_block(1) > density(512, 32).nodes_per_block(1));
    }

    proptest! {
        /// Whatever the lists, the block can be written, and holds what is left of them.
        #[test]
        fn any_lists_are_made_to_fit(
            lists in prop::collection::vec(prop::collection::btree_set(0u32..700, 0..250), 1..12),
            code_bytes in 1usize..100, first_id in 0u32..700,
        ) {
            let shape = shape(1, 100, code_bytes);
            let mut lists: Vec<Vec<u32>> = lists.into_iter().map(|l| l.into_iter().rev().collect()).collect();
            lists.truncate(most_nodes(&shape));
            let before = lists.clone();
            let cut = fit(&mut lists, first_id, &shape);
            let left = |lists: &[Vec<u32>]| lists.iter().map(Vec::len).sum::<usize>() as u64;
            prop_assert_eq!(left(&before), left(&lists) + cut);
            lists.iter_mut().for_each(|l| l.sort_unstable());
            let coded = CodedNodes::new(first_id, lists.len(), lists.iter().map(Vec::as_slice));
            let codes: Vec<u8> = coded.ids().iter().flat_map(|&id| vec![id as u8; code_bytes]).collect();
            let node = |l| Node { vector: &[7; 100], inverse_norm: 1.0, external_id: 5, neighbours: l };
            let nodes: Vec<Node<'_>> = lists.iter().map(|l| node(l.as_slice())).collect();
            let mut bytes = Vec::new();
            write(&shape, 3, first_id, &nodes, &codes, &mut bytes);
            prop_assert_eq!(bytes.len(), PAGE);
            let block = Block::open(&shape, &bytes).unwrap();
            for (slot, list) in lists.iter().enumerate() {
                let mut back = Vec::new();
                block.neighbours(slot, &mut back).unwrap();
                prop_assert_eq!(&back, list);
            }
        }
    }
}
