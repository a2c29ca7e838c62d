//! A block: the unit that is read from disk, one or more whole pages that hold several nodes.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | checksum of all that follows |
//! | 8 | 4 | number of this block: a read that went astray is noticed |
//! | 12 | 4 | id of the first node; the others follow on |
//! | 16 | 2 | number of nodes, c |
//! | 18 | 6 | zero |
//! | 24 | c × vector bytes | vectors, as they came |
//! | … | c × 4 | 1 / ‖vector‖ as f32; under cosine alone |
//! | … | c × 4 or 8 | external ids |
//! | … | (c + 1) × 2 | where each neighbour list begins and the last one ends, counted from the end of this table; absent in flat blocks |
//! | … | | neighbour lists, see [`super::list`] |
//! | … | | zero up to the block's end |

use alloc::vec::Vec;

use super::{checksum, list};

/// Bytes before the first vector.
pub const HEADER: usize = 24;
const _: () = assert!(HEADER == 8 + 4 + 4 + 2 + 6);

/// What all blocks of one index have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of a block, a multiple of the page.
    pub block_bytes: usize,
    /// Bytes of a vector.
    pub vector_bytes: usize,
    /// Bytes of an external id: 4 or 8.
    pub id_bytes: usize,
    /// Whether inverse norms are stored.
    pub norms: bool,
    /// Whether neighbour lists are stored.
    pub lists: bool,
}

impl Shape {
    /// Bytes that one node takes besides its list.
    pub const fn node_bytes(&self) -> usize {
        self.vector_bytes + self.id_bytes + if self.norms { 4 } else { 0 } + if self.lists { 2 } else { 0 }
    }

    /// Bytes left for nodes in a block.
    pub const fn room(&self) -> usize {
        self.block_bytes - HEADER - if self.lists { 2 } else { 0 }
    }

    fn offsets_at(&self, count: usize) -> usize {
        HEADER + count * (self.vector_bytes + self.id_bytes + if self.norms { 4 } else { 0 })
    }
}

/// One node on its way into a block.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    /// The vector's bytes.
    pub vector: &'a [u8],
    /// 1 / ‖vector‖.
    pub inverse_norm: f32,
    /// The id that the user knows.
    pub external_id: u64,
    /// Ids of the neighbours, strictly ascending.
    pub neighbours: &'a [u32],
}

/// Appends one block to `out`. The caller has made sure that the nodes fit: `node_bytes` and `encoded_len` of each within `room`.
pub fn write(shape: &Shape, block: u32, first_id: u32, nodes: &[Node<'_>], out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&block.to_le_bytes());
    out.extend_from_slice(&first_id.to_le_bytes());
    out.extend_from_slice(&(nodes.len() as u16).to_le_bytes());
    out.extend_from_slice(&[0; 6]);
    nodes.iter().for_each(|n| out.extend_from_slice(n.vector));
    if shape.norms {
        nodes.iter().for_each(|n| out.extend_from_slice(&n.inverse_norm.to_le_bytes()));
    }
    nodes.iter().for_each(|n| out.extend_from_slice(&n.external_id.to_le_bytes()[..shape.id_bytes]));
    if shape.lists {
        let table = out.len();
        out.resize(table + 2 * (nodes.len() + 1), 0);
        let lists = out.len();
        for (i, node) in nodes.iter().enumerate() {
            list::encode(node.neighbours, out);
            let end = (out.len() - lists) as u16;
            out[table + 2 * (i + 1)..table + 2 * (i + 2)].copy_from_slice(&end.to_le_bytes());
        }
    }
    debug_assert!(out.len() - start <= shape.block_bytes, "nodes exceed the block");
    out.resize(start + shape.block_bytes, 0);
    let sum = checksum(&out[start + 8..]);
    out[start..start + 8].copy_from_slice(&sum.to_le_bytes());
}

/// What is wrong with a block's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Fewer bytes than a block.
    Short,
    /// The checksum does not match.
    Checksum,
    /// The bytes are another block's.
    Astray,
    /// The checksum matches, but the content makes no sense.
    Layout,
}

/// Checks a block that has just entered memory.
pub fn verify(shape: &Shape, block: u32, bytes: &[u8]) -> Result<(), Damage> {
    if bytes.len() != shape.block_bytes {
        return Err(Damage::Short);
    }
    if u64_at(bytes, 0) != checksum(&bytes[8..]) {
        return Err(Damage::Checksum);
    }
    if u32_at(bytes, 8) != block {
        return Err(Damage::Astray);
    }
    Block::open(shape, bytes).map(|_| ())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// A block in memory. Opening checks the layout, so that no access can leave the bytes.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    shape: Shape,
    bytes: &'a [u8],
    count: usize,
}

impl<'a> Block<'a> {
    /// Reads the header of bytes that were [`verify`]ed when they entered memory.
    pub fn open(shape: &Shape, bytes: &'a [u8]) -> Result<Self, Damage> {
        if bytes.len() != shape.block_bytes || bytes.len() < HEADER {
            return Err(Damage::Short);
        }
        let count = usize::from(u16::from_le_bytes([bytes[16], bytes[17]]));
        let table = if shape.lists { 2 * (count + 1) } else { 0 };
        if shape.offsets_at(count) + table > bytes.len() {
            return Err(Damage::Layout);
        }
        Ok(Block { shape: *shape, bytes, count })
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

    /// Appends the neighbours of `slot` to `out`. `None` when the list makes no sense.
    pub fn neighbours(&self, slot: usize, out: &mut Vec<u32>) -> Option<()> {
        let table = self.shape.offsets_at(self.count);
        let lists = table + 2 * (self.count + 1);
        let begin = lists + usize::from(self.u16_at(table + 2 * slot)?);
        let end = lists + usize::from(self.u16_at(table + 2 * slot + 2)?);
        list::decode(self.bytes.get(begin..end)?, out)
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

    const SHAPE: Shape = Shape { block_bytes: 4096, vector_bytes: 12, id_bytes: 8, norms: true, lists: true };

    fn sample() -> Vec<u8> {
        let mut out = vec![];
        let lists: [&[u32]; 3] = [&[1, 5, 9], &[], &[0, 4_000_000_000]];
        let vectors = [[0u8; 12], [1; 12], [2; 12]];
        let node = |i: usize| Node {
            vector: &vectors[i],
            inverse_norm: i as f32,
            external_id: u64::MAX - i as u64,
            neighbours: lists[i],
        };
        let nodes: Vec<Node<'_>> = (0..3).map(node).collect();
        write(&SHAPE, 7, 100, &nodes, &mut out);
        out
    }

    #[test]
    fn a_block_comes_back() {
        let bytes = sample();
        assert_eq!(verify(&SHAPE, 7, &bytes), Ok(()));
        let block = Block::open(&SHAPE, &bytes).unwrap();
        assert_eq!((block.count(), block.first_id()), (3, 100));
        let mut list = vec![];
        block.neighbours(2, &mut list).unwrap();
        assert_eq!(list, [0, 4_000_000_000]);
        assert_eq!(
            (block.vector(1), block.inverse_norm(2), block.external_id(2)),
            (&[1u8; 12][..], 2.0, u64::MAX - 2)
        );
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = sample();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            assert_eq!(verify(&SHAPE, 7, &bad), Err(Damage::Checksum), "byte {at}");
        }
        assert_eq!(verify(&SHAPE, 8, &good), Err(Damage::Astray));
        assert_eq!(verify(&SHAPE, 7, &good[..4095]), Err(Damage::Short));
    }

    proptest! {
        #[test]
        fn any_bytes_open_without_panic(head in prop::collection::vec(any::<u8>(), 64), slot in 0usize..400) {
            let mut bytes = head;
            bytes.resize(4096, 3);
            if let Ok(block) = Block::open(&SHAPE, &bytes) {
                let _ = block.neighbours(slot, &mut vec![]);
                if slot < block.count() {
                    let _ = (block.vector(slot), block.external_id(slot), block.inverse_norm(slot));
                }
            }
        }
    }
}
