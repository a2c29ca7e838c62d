//! Invariants of a finished index. Used by `stratann verify` and by tests.

use alloc::vec;
use alloc::vec::Vec;

use crate::format::block::{Block, BlockLayout, Damage, verify};
use crate::format::block_map::BlockMap;
use crate::hash::checksum;
use crate::route::HeadGraph;
use crate::view::Base;

/// An index of blocks, as far as it is checked.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    /// The part that all kinds have.
    pub base: Base<'a>,
    /// The layout of all blocks.
    pub layout: &'a BlockLayout,
    /// Number of blocks.
    pub count: u32,
    /// The graph by which a search reaches blocks; `None` where it reads all of them.
    pub links: Option<Links<'a>>,
}

/// The graph by which a search reaches blocks.
#[derive(Clone, Copy, Debug)]
pub struct Links<'a> {
    /// Block of each node.
    pub map: &'a BlockMap,
    /// The entry of every search.
    pub head: &'a HeadGraph,
    /// The codes of the head graph's nodes, where blocks carry all others.
    pub head_codes: Option<&'a [u8]>,
}

/// A violated invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A block is damaged.
    Block {
        /// Number of the block.
        block: u32,
        /// Reason.
        damage: Damage,
    },
    /// A block's nodes differ from the block map, or, without a map, do not continue the previous block. The block
    /// after the last one stands for missing nodes.
    Misplaced {
        /// Number of the block.
        block: u32,
    },
    /// An adjacency list is invalid, contains a node that does not exist, or contains its own node.
    List {
        /// Owner of the list.
        node: u32,
    },
    /// A vector's stored norm, or the vector itself, is not a finite number.
    Vector {
        /// Owner of the vector.
        node: u32,
    },
    /// A code differs from the code of the same node in the head graph or in an earlier block, or its node does not
    /// exist.
    Code {
        /// The block that holds the code.
        block: u32,
        /// Owner of the code.
        node: u32,
    },
}

/// Checks an index block by block, in order.
#[derive(Clone, Debug)]
pub struct Checker {
    // Expected first id of the next block; unknown after a damaged block.
    next_id: Option<u32>,
    // For each block: whether it holds a node of the head graph or is reachable from an adjacency list of another
    // block.
    is_reached: Vec<bool>,
    counts: Vec<u16>,
    list: Vec<u32>,
    wide: Vec<f32>,
    // Where blocks carry codes: the hash of each node's code; 0 until a code was read.
    codes: Vec<u32>,
    /// Number of nodes in unreachable blocks: blocks without a node of the head graph and without an edge from another
    /// block. No search finds them. Searches score whole blocks, so it suffices that a block is reachable. A few are
    /// tolerable. Set by [`Checker::finish`].
    pub unreachable: u64,
    /// Sum of the lengths of all adjacency lists.
    pub edges: u64,
}

impl Checker {
    /// Creates a checker before the first block. Takes three bytes per block, and four per node where blocks carry
    /// codes.
    pub fn new(index: &Blocks<'_>) -> Checker {
        let blocks = index.count as usize;
        let mut checker = Checker {
            next_id: Some(0),
            is_reached: vec![index.links.is_none(); blocks],
            counts: vec![0; blocks],
            list: Vec::new(),
            wide: vec![0.0; index.base.dim],
            codes: vec![0; if index.layout.code_bytes > 0 { index.base.nodes as usize } else { 0 }],
            unreachable: 0,
            edges: 0,
        };
        if let Some(links) = &index.links {
            links.head.ids.iter().for_each(|&id| checker.mark_reached(links.map.block_of(id)));
            if let (Some(codes), 1..) = (links.head_codes, index.layout.code_bytes) {
                let codes = codes.chunks_exact(index.layout.code_bytes);
                links.head.ids.iter().zip(codes).for_each(|(&id, code)| {
                    checker.agrees(id, code);
                });
            }
        }
        checker
    }

    fn mark_reached(&mut self, block: u32) {
        if let Some(is_reached) = self.is_reached.get_mut(block as usize) {
            *is_reached = true;
        }
    }

    /// Checks block number `block`, the successor of the previous one.
    pub fn block(&mut self, index: &Blocks<'_>, block: u32, bytes: &[u8], found: &mut Vec<Violation>) {
        let opened = match verify(index.layout, block, bytes).and_then(|()| Block::open(index.layout, bytes))
        {
            Ok(opened) => opened,
            Err(damage) => {
                self.next_id = None;
                found.push(Violation::Block { block, damage });
                return;
            }
        };
        let (first, count) = (opened.first_id(), opened.count() as u32);
        if !self.is_in_place(index, block, first, count) {
            self.next_id = None;
            found.push(Violation::Misplaced { block });
            return;
        }
        self.next_id = Some(first + count);
        if let Some(c) = self.counts.get_mut(block as usize) {
            *c = opened.count() as u16;
        }
        for slot in 0..opened.count() {
            self.vector(index, &opened, slot, found);
            self.list(index, &opened, block, slot, found);
        }
        self.codes(index, &opened, block, found);
    }

    fn is_in_place(&self, index: &Blocks<'_>, block: u32, first: u32, count: u32) -> bool {
        let Some(end) = first.checked_add(count).filter(|&end| count > 0 && end <= index.base.nodes) else {
            return false;
        };
        let Some(links) = &index.links else { return self.next_id.is_none_or(|next| next == first) };
        let is_here = |id: u32| links.map.block_of(id) == block;
        let begins = first == 0 || !is_here(first - 1);
        let ends = end == index.base.nodes || !is_here(end);
        is_here(first) && is_here(end - 1) && begins && ends
    }

    fn vector(&mut self, index: &Blocks<'_>, block: &Block<'_>, slot: usize, found: &mut Vec<Violation>) {
        stratann_kernel::element::widen(index.base.dtype, block.vector(slot), &mut self.wide);
        if !block.inverse_norm(slot).is_finite() || self.wide.iter().any(|x| !x.is_finite()) {
            found.push(Violation::Vector { node: block.first_id() + slot as u32 });
        }
    }

    fn list(
        &mut self,
        index: &Blocks<'_>,
        block: &Block<'_>,
        number: u32,
        slot: usize,
        found: &mut Vec<Violation>,
    ) {
        if !index.layout.adjacency {
            return;
        }
        let node = block.first_id() + slot as u32;
        let mut list = core::mem::take(&mut self.list);
        list.clear();
        let read = block.neighbours(slot, &mut list);
        if read.is_none() || list.iter().any(|&n| n >= index.base.nodes || n == node) {
            found.push(Violation::List { node });
        } else {
            self.edges += list.len() as u64;
            if let Some(links) = &index.links {
                let others = list.iter().map(|&n| links.map.block_of(n)).filter(|&b| b != number);
                others.for_each(|b| self.mark_reached(b));
            }
        }
        self.list = list;
    }

    /// Compares the codes in a block with earlier codes of the same nodes. Invalid ids were found with the adjacency
    /// lists.
    fn codes(&mut self, index: &Blocks<'_>, block: &Block<'_>, number: u32, found: &mut Vec<Violation>) {
        let mut ids = core::mem::take(&mut self.list);
        if index.layout.code_bytes > 0 && block.coded_ids(&mut ids).is_some() {
            for (&node, code) in ids.iter().zip(block.codes().chunks_exact(index.layout.code_bytes)) {
                if !self.agrees(node, code) {
                    found.push(Violation::Code { block: number, node });
                }
            }
        }
        self.list = ids;
    }

    /// Returns whether a code equals earlier codes of the node; false for a node that does not exist.
    fn agrees(&mut self, node: u32, code: &[u8]) -> bool {
        let hash = checksum(code) as u32 | 1;
        let Some(known) = self.codes.get_mut(node as usize) else { return false };
        if *known == 0 {
            *known = hash;
        }
        *known == hash
    }

    /// Checks what is known only after the last block.
    pub fn finish(mut self, index: &Blocks<'_>, found: &mut Vec<Violation>) -> Checker {
        if self.next_id.is_some_and(|next| next != index.base.nodes) {
            found.push(Violation::Misplaced { block: index.count });
        }
        let lost = self.is_reached.iter().zip(&self.counts).filter(|(is_reached, _)| !**is_reached);
        self.unreachable = lost.map(|(_, &count)| u64::from(count)).sum();
        self
    }
}
