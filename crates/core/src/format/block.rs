//! A block: the unit of disk reads of `disk-graph` and `flat`. It is one or more whole pages and holds several nodes.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | checksum of all that follows, with the seed of the build |
//! | 8 | 4 | number of this block, to detect reads of the wrong block |
//! | 12 | 4 | id of the first node; ids in a block are consecutive |
//! | 16 | 2 | number of nodes, c |
//! | 18 | 2 | number of nodes of other blocks whose codes are stored here, t; zero where codes are in RAM |
//! | 20 | 4 | zero |
//! | 24 | c × vector bytes | vectors, in their input format |
//! | … | c × 4 | 1 / ‖vector‖ as f32; under cosine alone |
//! | … | c × 4 or 8 | external ids |
//! | … | (c + t) × code bytes | codes of nodes and neighbours, by ascending id; absent where codes are in RAM |
//! | … | (c + 1) × 2 | start of each adjacency list, end of the last, from the end of this table; not in `flat` |
//! | … | | adjacency lists: [`adjacency::NEIGHBOURS`], or ranks of codes: [`adjacency::RANKS`] |
//! | … | | with codes: ids of the t other nodes, [`adjacency::IDS`] |
//! | … | | zeros up to the end of the block |

use alloc::vec::Vec;

use super::{adjacency, seeded_checksum};

/// Bytes before the first vector.
pub const HEADER: usize = 24;
const _: () = assert!(HEADER == 8 + 4 + 4 + 2 + 2 + 4);

/// Layout of all blocks of one index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLayout {
    /// Bytes of a block, a multiple of the page.
    pub block_bytes: usize,
    /// Bytes of a vector.
    pub vector_bytes: usize,
    /// Bytes of an external id: 4 or 8.
    pub id_bytes: usize,
    /// Whether inverse norms are stored.
    pub norms: bool,
    /// Whether adjacency lists are stored.
    pub adjacency: bool,
    /// Bytes of a code, where blocks carry the codes of their nodes and of all neighbours; 0 where codes are in RAM.
    pub code_bytes: usize,
    /// Seed of the checksums: that of one build.
    pub checksum_seed: u64,
}

impl BlockLayout {
    /// Bytes of one node, without its adjacency list and without the codes of neighbours in other blocks.
    pub const fn node_bytes(&self) -> usize {
        self.fixed_bytes() + self.code_bytes + if self.adjacency { 2 } else { 0 }
    }

    const fn fixed_bytes(&self) -> usize {
        self.vector_bytes + self.id_bytes + if self.norms { 4 } else { 0 }
    }

    /// Bytes of a block that are available to nodes.
    pub const fn payload_bytes(&self) -> usize {
        self.block_bytes - HEADER - if self.adjacency { 2 } else { 0 }
    }

    fn codes_at(&self, count: usize) -> usize {
        HEADER + count * self.fixed_bytes()
    }

    fn offsets_at(&self, count: usize, others: usize) -> usize {
        self.codes_at(count) + (count + others) * self.code_bytes
    }
}

/// A node to be written into a block.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    /// The vector's bytes.
    pub vector: &'a [u8],
    /// 1 / ‖vector‖.
    pub inverse_norm: f32,
    /// External id, chosen by the user.
    pub external_id: u64,
    /// Ids of the neighbours, strictly ascending.
    pub neighbours: &'a [u32],
}

/// The nodes whose codes a block carries: its own nodes and all their neighbours. Adjacency lists hold ranks in this
/// set instead of ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodedNodes {
    ids: Vec<u32>,
    first_id: u32,
    own: usize,
}

impl CodedNodes {
    /// Collects the nodes of a block with `own` nodes from `first_id` on.
    pub fn new<'a>(first_id: u32, own: usize, lists: impl Iterator<Item = &'a [u32]>) -> CodedNodes {
        let mut ids: Vec<u32> = (first_id..).take(own).chain(lists.flatten().copied()).collect();
        ids.sort_unstable();
        ids.dedup();
        CodedNodes { ids, first_id, own }
    }

    /// Ids of all these nodes, ascending.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Ids of the nodes of other blocks, ascending.
    pub fn others(&self) -> Vec<u32> {
        let is_own = |id: u32| id >= self.first_id && ((id - self.first_id) as usize) < self.own;
        self.ids.iter().copied().filter(|&id| !is_own(id)).collect()
    }

    /// Ranks of the nodes of an adjacency list, all of which are in the set.
    fn ranks(&self, list: &[u32]) -> Vec<u32> {
        list.iter().filter_map(|id| self.ids.binary_search(id).ok()).map(|rank| rank as u32).collect()
    }

    /// Bytes of the adjacency lists and of the ids of the other nodes.
    pub fn list_bytes<'a>(&self, lists: impl Iterator<Item = &'a [u32]>) -> usize {
        let ranks: usize = lists.map(|list| adjacency::RANKS.encoded_len(&self.ranks(list))).sum();
        ranks + adjacency::IDS.encoded_len(&self.others())
    }
}

/// Appends one block to `out`.
///
/// The nodes must fit within `payload_bytes`: `node_bytes` and `encoded_len` of each; where blocks carry codes,
/// `node_bytes` of each, [`CodedNodes::list_bytes`] and the codes of [`CodedNodes::others`]. `codes` are the codes of
/// [`CodedNodes::ids`] in that order, or empty where codes are in RAM.
pub fn write(
    shape: &BlockLayout,
    block: u32,
    first_id: u32,
    nodes: &[Node<'_>],
    codes: &[u8],
    out: &mut Vec<u8>,
) {
    let start = out.len();
    let coded = (shape.code_bytes > 0)
        .then(|| CodedNodes::new(first_id, nodes.len(), nodes.iter().map(|n| n.neighbours)));
    let others = coded.as_ref().map_or(Vec::new(), CodedNodes::others);
    debug_assert_eq!(codes.len(), coded.as_ref().map_or(0, |c| c.ids.len() * shape.code_bytes));
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&block.to_le_bytes());
    out.extend_from_slice(&first_id.to_le_bytes());
    out.extend_from_slice(&(nodes.len() as u16).to_le_bytes());
    out.extend_from_slice(&(others.len() as u16).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    nodes.iter().for_each(|n| out.extend_from_slice(n.vector));
    if shape.norms {
        nodes.iter().for_each(|n| out.extend_from_slice(&n.inverse_norm.to_le_bytes()));
    }
    nodes.iter().for_each(|n| out.extend_from_slice(&n.external_id.to_le_bytes()[..shape.id_bytes]));
    out.extend_from_slice(codes);
    if shape.adjacency {
        let table = out.len();
        out.resize(table + 2 * (nodes.len() + 1), 0);
        let lists = out.len();
        for (i, node) in nodes.iter().enumerate() {
            match &coded {
                Some(coded) => adjacency::RANKS.encode(&coded.ranks(node.neighbours), out),
                None => adjacency::NEIGHBOURS.encode(node.neighbours, out),
            }
            let end = (out.len() - lists) as u16;
            out[table + 2 * (i + 1)..table + 2 * (i + 2)].copy_from_slice(&end.to_le_bytes());
        }
        if coded.is_some() {
            adjacency::IDS.encode(&others, out);
        }
    }
    debug_assert!(out.len() - start <= shape.block_bytes, "nodes exceed the block");
    out.resize(start + shape.block_bytes, 0);
    let sum = seeded_checksum(shape.checksum_seed, &out[start + 8..]);
    out[start..start + 8].copy_from_slice(&sum.to_le_bytes());
}

/// Reason why a block's bytes are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Fewer bytes than a block.
    Short,
    /// The checksum does not match.
    Checksum,
    /// The bytes belong to another block.
    WrongBlock,
    /// The checksum matches, but the layout is invalid.
    Layout,
}

/// Verifies a block after it was read.
pub fn verify(shape: &BlockLayout, block: u32, bytes: &[u8]) -> Result<(), Damage> {
    if bytes.len() != shape.block_bytes {
        return Err(Damage::Short);
    }
    if u64_at(bytes, 0) != seeded_checksum(shape.checksum_seed, &bytes[8..]) {
        return Err(Damage::Checksum);
    }
    if u32_at(bytes, 8) != block {
        return Err(Damage::WrongBlock);
    }
    Block::open(shape, bytes).map(|_| ())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// A block in memory. Opening checks the layout, so that every access stays within the bytes.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    shape: BlockLayout,
    bytes: &'a [u8],
    count: usize,
    others: usize,
}

impl<'a> Block<'a> {
    /// Opens bytes that were [`verify`]ed when they were read.
    pub fn open(shape: &BlockLayout, bytes: &'a [u8]) -> Result<Self, Damage> {
        if bytes.len() != shape.block_bytes || bytes.len() < HEADER {
            return Err(Damage::Short);
        }
        let count = usize::from(u16::from_le_bytes([bytes[16], bytes[17]]));
        let others = match shape.code_bytes {
            0 => 0,
            _ => usize::from(u16::from_le_bytes([bytes[18], bytes[19]])),
        };
        let table = if shape.adjacency { 2 * (count + 1) } else { 0 };
        if shape.offsets_at(count, others) + table > bytes.len() {
            return Err(Damage::Layout);
        }
        Ok(Block { shape: *shape, bytes, count, others })
    }

    /// Number of nodes.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether inverse norms are stored.
    pub fn has_norms(&self) -> bool {
        self.shape.norms
    }

    /// Id of the first node.
    pub fn first_id(&self) -> u32 {
        u32_at(self.bytes, 12)
    }

    /// The vectors, one after another.
    pub fn vectors(&self) -> &'a [u8] {
        &self.bytes[HEADER..HEADER + self.count * self.shape.vector_bytes]
    }

    /// The vector in `slot`.
    pub fn vector(&self, slot: usize) -> &'a [u8] {
        let at = HEADER + slot * self.shape.vector_bytes;
        &self.bytes[at..at + self.shape.vector_bytes]
    }

    /// 1 / ‖vector‖ in `slot`; 1 where norms are not stored.
    pub fn inverse_norm(&self, slot: usize) -> f32 {
        if !self.shape.norms {
            return 1.0;
        }
        f32::from_bits(u32_at(self.bytes, HEADER + self.count * self.shape.vector_bytes + 4 * slot))
    }

    /// The external id in `slot`.
    pub fn external_id(&self, slot: usize) -> u64 {
        let per_node = self.shape.vector_bytes + if self.shape.norms { 4 } else { 0 };
        let at = HEADER + self.count * per_node + slot * self.shape.id_bytes;
        if self.shape.id_bytes == 8 { u64_at(self.bytes, at) } else { u64::from(u32_at(self.bytes, at)) }
    }

    /// Appends the neighbours of `slot` to `out`. `None` when the adjacency list is invalid.
    pub fn neighbours(&self, slot: usize, out: &mut Vec<u32>) -> Option<()> {
        if self.shape.code_bytes == 0 {
            return adjacency::NEIGHBOURS.decode(self.list(slot)?, out);
        }
        let (mut ids, at) = (Vec::new(), out.len());
        self.coded_ids(&mut ids)?;
        self.ranks(slot, out)?;
        out[at..].iter_mut().for_each(|n| *n = ids[*n as usize]);
        Some(())
    }

    fn list(&self, slot: usize) -> Option<&'a [u8]> {
        let table = self.shape.offsets_at(self.count, self.others);
        let lists = table + 2 * (self.count + 1);
        let begin = lists + usize::from(self.u16_at(table + 2 * slot)?);
        let end = lists + usize::from(self.u16_at(table + 2 * slot + 2)?);
        self.bytes.get(begin..end)
    }

    /// Sets `out` to the ids of the nodes whose codes the block carries, ascending. `None` when they are invalid.
    pub fn coded_ids(&self, out: &mut Vec<u32>) -> Option<()> {
        out.clear();
        let table = self.shape.offsets_at(self.count, self.others);
        let lists = table + 2 * (self.count + 1);
        let end = lists + usize::from(self.u16_at(table + 2 * self.count)?);
        adjacency::IDS.decode(self.bytes.get(end..)?, out)?;
        let own = self.first_id()..self.first_id().checked_add(self.count as u32)?;
        let at = out.partition_point(|&id| id < own.start);
        if out.len() != self.others || out.get(at).is_some_and(|id| own.contains(id)) {
            return None;
        }
        out.extend(own);
        out[at..].rotate_right(self.count);
        Some(())
    }

    /// The codes of the block, in the order of [`Block::coded_ids`].
    pub fn codes(&self) -> &'a [u8] {
        &self.bytes[self.shape.codes_at(self.count)..self.shape.offsets_at(self.count, self.others)]
    }

    /// The codes of the block's own nodes. Sets `ids` to [`Block::coded_ids`]; `None` when these are invalid.
    pub fn own_codes(&self, ids: &mut Vec<u32>) -> Option<&'a [u8]> {
        self.coded_ids(ids)?;
        let at = ids.partition_point(|&id| id < self.first_id()) * self.shape.code_bytes;
        self.codes().get(at..at + self.count * self.shape.code_bytes)
    }

    /// Appends the ranks of the neighbours of `slot` among [`Block::coded_ids`]. `None` when the adjacency list is
    /// invalid.
    pub fn ranks(&self, slot: usize, out: &mut Vec<u32>) -> Option<()> {
        let at = out.len();
        adjacency::RANKS.decode(self.list(slot)?, out)?;
        // Ranks ascend, so the last one is the largest.
        out[at..].last().is_none_or(|&rank| (rank as usize) < self.count + self.others).then_some(())
    }

    fn u16_at(&self, at: usize) -> Option<u16> {
        self.bytes.get(at..at + 2).map(|b| u16::from_le_bytes([b[0], b[1]]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    const SHAPE: BlockLayout = BlockLayout {
        block_bytes: 4096,
        vector_bytes: 12,
        id_bytes: 8,
        norms: true,
        adjacency: true,
        code_bytes: 0,
        checksum_seed: 7,
    };
    const WITH_CODES: BlockLayout = BlockLayout { code_bytes: 5, ..SHAPE };

    const LISTS: [&[u32]; 3] = [&[1, 5, 9, 101], &[], &[0, 9, 100, 4_000_000_000]];

    fn code(id: u32) -> [u8; 5] {
        let [a, b, c, d] = id.to_le_bytes();
        [a, b, c, d, 77]
    }

    fn sample(shape: &BlockLayout) -> Vec<u8> {
        let mut out = vec![];
        let vectors = [[0u8; 12], [1; 12], [2; 12]];
        let node = |i: usize| Node {
            vector: &vectors[i],
            inverse_norm: i as f32,
            external_id: u64::MAX - i as u64,
            neighbours: LISTS[i],
        };
        let nodes: Vec<Node<'_>> = (0..3).map(node).collect();
        let coded = CodedNodes::new(100, 3, LISTS.into_iter());
        let codes: Vec<u8> = coded.ids().iter().flat_map(|&id| code(id)).collect();
        let codes = if shape.code_bytes > 0 { &codes[..] } else { &[] };
        write(shape, 7, 100, &nodes, codes, &mut out);
        out
    }

    #[test]
    fn a_block_round_trips() {
        for shape in [SHAPE, WITH_CODES] {
            let bytes = sample(&shape);
            assert_eq!(verify(&shape, 7, &bytes), Ok(()));
            let block = Block::open(&shape, &bytes).unwrap();
            assert_eq!((block.count(), block.first_id()), (3, 100));
            for (slot, expected) in LISTS.into_iter().enumerate() {
                let mut list = vec![12];
                block.neighbours(slot, &mut list).unwrap();
                assert_eq!(list[1..], *expected);
            }
            assert_eq!(
                (block.vector(1), block.inverse_norm(2), block.external_id(2)),
                (&[1u8; 12][..], 2.0, u64::MAX - 2)
            );
        }
    }

    #[test]
    fn codes_of_all_neighbours_are_stored_once() {
        let bytes = sample(&WITH_CODES);
        let block = Block::open(&WITH_CODES, &bytes).unwrap();
        let mut ids = vec![3];
        block.coded_ids(&mut ids).unwrap();
        assert_eq!(ids, [0, 1, 5, 9, 100, 101, 102, 4_000_000_000]);
        assert_eq!(block.codes(), ids.iter().flat_map(|&id| code(id)).collect::<Vec<u8>>());
        assert_eq!(block.own_codes(&mut ids).unwrap(), [code(100), code(101), code(102)].concat());
        let mut ranks = vec![];
        block.ranks(2, &mut ranks).unwrap();
        assert_eq!(ranks, [0, 3, 4, 7]);
        let coded = CodedNodes::new(100, 3, LISTS.into_iter());
        assert_eq!(coded.others(), [0, 1, 5, 9, 4_000_000_000]);
        let used = WITH_CODES.node_bytes() * 3 + coded.list_bytes(LISTS.into_iter()) + 5 * 5 + HEADER + 2;
        assert!(bytes[used..].iter().all(|&b| b == 0) && bytes[used - 1] != 0, "{used}");
    }

    #[test]
    fn invalid_codes_are_refused() {
        let good = sample(&WITH_CODES);
        let coded = |bytes: &[u8]| Block::open(&WITH_CODES, bytes).unwrap().coded_ids(&mut vec![]);
        assert_eq!(coded(&good), Some(()));
        // One other node more or less than there are ids; one of them among the block's own.
        for (at, byte) in [(18, 6), (18, 4), (12, 8)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert_eq!(coded(&bad), None, "byte {at}");
        }
        let mut bad = good.clone();
        bad[18..20].copy_from_slice(&u16::MAX.to_le_bytes());
        assert_eq!(Block::open(&WITH_CODES, &bad).map(|_| ()), Err(Damage::Layout));
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        for shape in [SHAPE, WITH_CODES] {
            let good = sample(&shape);
            for at in 0..good.len() {
                let mut bad = good.clone();
                bad[at] ^= 1 << (at % 8);
                assert_eq!(verify(&shape, 7, &bad), Err(Damage::Checksum), "byte {at}");
            }
            assert_eq!(verify(&shape, 8, &good), Err(Damage::WrongBlock));
            let of_another_build = BlockLayout { checksum_seed: 8, ..shape };
            assert_eq!(verify(&of_another_build, 7, &good), Err(Damage::Checksum));
            assert_eq!(verify(&shape, 7, &good[..4095]), Err(Damage::Short));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_open_without_panic(
            header in prop::collection::vec(any::<u8>(), 64),
            slot in 0usize..400,
            rest in any::<u8>(),
        ) {
            let mut bytes = header;
            bytes.resize(4096, rest);
            for shape in [SHAPE, WITH_CODES] {
                let Ok(block) = Block::open(&shape, &bytes) else { continue };
                let _ = block.neighbours(slot, &mut vec![]);
                if shape.code_bytes > 0 {
                    let _ = (block.coded_ids(&mut vec![]), block.ranks(slot, &mut vec![]), block.codes());
                }
                if slot < block.count() {
                    let _ = (block.vector(slot), block.external_id(slot), block.inverse_norm(slot));
                }
            }
        }

        #[test]
        fn damage_after_the_header_does_not_panic(at in 20usize..400, byte in any::<u8>(), slot in 0usize..4) {
            let mut bytes = sample(&WITH_CODES);
            bytes[at] = byte;
            let block = Block::open(&WITH_CODES, &bytes).unwrap();
            let (mut list, mut ids) = (vec![], vec![]);
            if block.coded_ids(&mut ids).is_some() && block.ranks(slot, &mut list).is_some() {
                prop_assert!(list.iter().all(|&rank| (rank as usize) < ids.len()));
                prop_assert_eq!(ids.len() * 5, block.codes().len());
            }
        }
    }
}
