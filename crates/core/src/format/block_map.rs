//! Map from nodes to blocks: one bit per node, set at the first node of a block, and a running count per 256 nodes.
//!
//! Ids follow the order of the blocks, so the block of id i is the number of set bits up to and including i, minus one.
//! This takes 0.14 bytes per node; a table of block numbers would take 4.

use alloc::vec::Vec;
use core::ops::Range;

const WORDS_PER_RANK: usize = 4;

/// Block map of one index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockMap {
    starts: Vec<u64>,
    ranks: Vec<u32>,
    nodes: u32,
    blocks: u32,
}

impl BlockMap {
    /// Builds the map of blocks with these numbers of nodes, in order. `None` when the nodes exceed u32, or a block is
    /// empty.
    pub fn from_counts(counts: impl IntoIterator<Item = u32>) -> Option<BlockMap> {
        let (mut starts, mut nodes, mut blocks) = (Vec::new(), 0u32, 0u32);
        for count in counts {
            if count == 0 {
                return None;
            }
            let last = nodes.checked_add(count - 1)?;
            starts.resize(last as usize / 64 + 1, 0u64);
            starts[nodes as usize / 64] |= 1 << (nodes % 64);
            nodes = last.checked_add(1)?;
            blocks += 1;
        }
        let mut map = BlockMap { starts, ranks: Vec::new(), nodes, blocks };
        let mut rank = 0u32;
        for chunk in map.starts.chunks(WORDS_PER_RANK) {
            map.ranks.push(rank);
            rank += chunk.iter().map(|w| w.count_ones()).sum::<u32>();
        }
        Some(map)
    }

    /// Number of nodes.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Block of node `id`; the last block when `id` is not below [`nodes`](Self::nodes).
    pub fn block_of(&self, id: u32) -> u32 {
        let word = id as usize / 64;
        let Some(&bits) = self.starts.get(word) else { return self.blocks.saturating_sub(1) };
        let group = word / WORDS_PER_RANK;
        let before: u32 = self.starts[group * WORDS_PER_RANK..word].iter().map(|w| w.count_ones()).sum();
        let here = (bits << (63 - id % 64)).count_ones();
        (self.ranks[group] + before + here).saturating_sub(1)
    }

    /// The nodes of a block; none of a block that does not exist.
    pub fn nodes_of(&self, block: u32) -> Range<u32> {
        let group = self.ranks.partition_point(|&rank| rank <= block).saturating_sub(1);
        let mut left = block - self.ranks.get(group).map_or(block, |&rank| rank);
        for (word, &bits) in self.starts.iter().enumerate().skip(group * WORDS_PER_RANK) {
            if left < bits.count_ones() {
                let from_here = (0..left).fold(bits, |bits, _| bits & (bits - 1));
                let first = word as u32 * 64 + from_here.trailing_zeros();
                return first..self.next_start(word, from_here & (from_here - 1));
            }
            left -= bits.count_ones();
        }
        self.nodes..self.nodes
    }

    /// The first node of a block among `bits`, which are left of a word, and the words behind it.
    fn next_start(&self, word: usize, bits: u64) -> u32 {
        let behind = self.starts.iter().skip(word + 1).copied();
        let found = (word as u32..).zip(core::iter::once(bits).chain(behind)).find(|&(_, bits)| bits != 0);
        found.map_or(self.nodes, |(word, bits)| word * 64 + bits.trailing_zeros())
    }

    /// Bytes held in memory.
    pub fn bytes(&self) -> usize {
        self.starts.len() * 8 + self.ranks.len() * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_a_plain_table(
            counts in prop::collection::vec(prop_oneof![9 => 1u32..40, 1 => 300u32..900], 1..200),
        ) {
            let map = BlockMap::from_counts(counts.iter().copied()).unwrap();
            let block = |(b, &c): (usize, &u32)| core::iter::repeat_n(b as u32, c as usize);
            let table: Vec<u32> = counts.iter().enumerate().flat_map(block).collect();
            prop_assert_eq!(map.nodes() as usize, table.len());
            prop_assert_eq!(map.blocks() as usize, counts.len());
            for (id, &block) in table.iter().enumerate() {
                prop_assert_eq!(map.block_of(id as u32), block);
            }
            let mut first = 0;
            for (block, &count) in (0..).zip(&counts) {
                prop_assert_eq!(map.nodes_of(block), first..first + count);
                first += count;
            }
            prop_assert_eq!(map.nodes_of(map.blocks()), first..first);
            prop_assert_eq!(map.nodes_of(u32::MAX), first..first);
        }
    }

    #[test]
    fn refuses_empty_blocks_and_too_many_nodes() {
        assert_eq!(BlockMap::from_counts([1, 0]), None);
        assert_eq!(BlockMap::default().nodes_of(0), 0..0);
        assert_eq!(BlockMap::from_counts([u32::MAX, 1]), None);
    }
}
