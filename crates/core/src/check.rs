//! What must hold in a finished index. Used by `stratann verify` and by tests.

use alloc::vec;
use alloc::vec::Vec;

use crate::format::block::{Block, Damage, verify};
use crate::format::checksum;
use crate::plan::{Codes, IndexView};

/// Something that must not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A block is damaged.
    Block {
        /// Which.
        block: u32,
        /// How.
        damage: Damage,
    },
    /// A block's nodes are not where the map says, or, without a map, do not follow those before. The block after the last one stands for
    /// nodes that are missing.
    Misplaced {
        /// Which block.
        block: u32,
    },
    /// A neighbour list is unreadable, names a node that does not exist, or names its own node.
    List {
        /// Whose list.
        node: u32,
    },
    /// A vector's stored norm, or the vector itself, is not a finite number.
    Vector {
        /// Whose vector.
        node: u32,
    },
    /// A code differs from that of the same node in the head graph or in an earlier block, or is of a node that does not exist.
    Code {
        /// The block that holds it.
        block: u32,
        /// Whose code.
        node: u32,
    },
}

/// Checks an index block by block, in any amount at a time, in order.
#[derive(Clone, Debug)]
pub struct Checker {
    // The id that the next block begins with; unknown after a block that could not be read.
    next_id: Option<u32>,
    // For each block: whether a head node lies in it, or a list of another block leads to it.
    led_to: Vec<bool>,
    counts: Vec<u16>,
    list: Vec<u32>,
    wide: Vec<f32>,
    // Where blocks carry codes, for each node the hash of its code; 0 as long as none was met.
    codes: Vec<u32>,
    /// Nodes in blocks that no head node lies in and no list of another block leads to: no search finds them. Whole blocks are scored, so
    /// a node is as near as its block. A few are tolerable. Known after [`Checker::finish`].
    pub unreachable: u64,
    /// Sum of list lengths.
    pub edges: u64,
}

impl Checker {
    /// A checker that has seen no block. Takes three bytes per block, and where blocks carry codes four per node.
    pub fn new(view: &IndexView<'_>) -> Checker {
        let blocks = view.blocks as usize;
        let mut checker = Checker {
            next_id: Some(0),
            led_to: vec![view.graph.is_none(); blocks],
            counts: vec![0; blocks],
            list: Vec::new(),
            wide: vec![0.0; view.dim],
            codes: vec![0; if view.block.code_bytes > 0 { view.nodes as usize } else { 0 }],
            unreachable: 0,
            edges: 0,
        };
        if let Some(graph) = &view.graph {
            graph.head.ids.iter().for_each(|&id| checker.lead_to(graph.map.block_of(id)));
            if let (Codes::Head(codes), 1..) = (graph.codes, view.block.code_bytes) {
                let codes = codes.chunks_exact(view.block.code_bytes);
                graph.head.ids.iter().zip(codes).for_each(|(&id, code)| {
                    checker.agrees(id, code);
                });
            }
        }
        checker
    }

    fn lead_to(&mut self, block: u32) {
        if let Some(led_to) = self.led_to.get_mut(block as usize) {
            *led_to = true;
        }
    }

    /// Checks block number `block`, the one after the last.
    pub fn block(&mut self, view: &IndexView<'_>, block: u32, bytes: &[u8], found: &mut Vec<Violation>) {
        let opened = match verify(&view.block, block, bytes).and_then(|()| Block::open(&view.block, bytes)) {
            Ok(opened) => opened,
            Err(damage) => {
                self.next_id = None;
                found.push(Violation::Block { block, damage });
                return;
            }
        };
        let (first, count) = (opened.first_id(), opened.count() as u32);
        if !self.is_in_place(view, block, first, count) {
            self.next_id = None;
            found.push(Violation::Misplaced { block });
            return;
        }
        self.next_id = Some(first + count);
        if let Some(c) = self.counts.get_mut(block as usize) {
            *c = opened.count() as u16;
        }
        for slot in 0..opened.count() {
            self.vector(view, &opened, slot, found);
            self.list(view, &opened, block, slot, found);
        }
        self.codes(view, &opened, block, found);
    }

    fn is_in_place(&self, view: &IndexView<'_>, block: u32, first: u32, count: u32) -> bool {
        let Some(end) = first.checked_add(count).filter(|&end| count > 0 && end <= view.nodes) else {
            return false;
        };
        let Some(graph) = &view.graph else { return self.next_id.is_none_or(|next| next == first) };
        let is_here = |id: u32| graph.map.block_of(id) == block;
        let begins = first == 0 || !is_here(first - 1);
        let ends = end == view.nodes || !is_here(end);
        is_here(first) && is_here(end - 1) && begins && ends
    }

    fn vector(&mut self, view: &IndexView<'_>, block: &Block<'_>, slot: usize, found: &mut Vec<Violation>) {
        stratann_kernel::element::widen(view.dtype, block.vector(slot), &mut self.wide);
        if !block.inverse_norm(slot).is_finite() || self.wide.iter().any(|x| !x.is_finite()) {
            found.push(Violation::Vector { node: block.first_id() + slot as u32 });
        }
    }

    fn list(
        &mut self,
        view: &IndexView<'_>,
        block: &Block<'_>,
        number: u32,
        slot: usize,
        found: &mut Vec<Violation>,
    ) {
        if !view.block.adjacency {
            return;
        }
        let node = block.first_id() + slot as u32;
        let mut list = core::mem::take(&mut self.list);
        list.clear();
        let read = block.neighbours(slot, &mut list);
        if read.is_none() || list.iter().any(|&n| n >= view.nodes || n == node) {
            found.push(Violation::List { node });
        } else {
            self.edges += list.len() as u64;
            if let Some(graph) = &view.graph {
                let elsewhere = list.iter().map(|&n| graph.map.block_of(n)).filter(|&b| b != number);
                elsewhere.for_each(|b| self.lead_to(b));
            }
        }
        self.list = list;
    }

    /// Holds the codes in a block against those of the same nodes that were met before. Ids that make no sense were found with the lists.
    fn codes(&mut self, view: &IndexView<'_>, block: &Block<'_>, number: u32, found: &mut Vec<Violation>) {
        let mut ids = core::mem::take(&mut self.list);
        if view.block.code_bytes > 0 && block.coded_ids(&mut ids).is_some() {
            for (&node, code) in ids.iter().zip(block.codes().chunks_exact(view.block.code_bytes)) {
                if !self.agrees(node, code) {
                    found.push(Violation::Code { block: number, node });
                }
            }
        }
        self.list = ids;
    }

    /// Whether this is the code of the node, as far as is known; false for a node that does not exist.
    fn agrees(&mut self, node: u32, code: &[u8]) -> bool {
        let hash = checksum(code) as u32 | 1;
        let Some(known) = self.codes.get_mut(node as usize) else { return false };
        if *known == 0 {
            *known = hash;
        }
        *known == hash
    }

    /// What can only be said at the end.
    pub fn finish(mut self, view: &IndexView<'_>, found: &mut Vec<Violation>) -> Checker {
        if self.next_id.is_some_and(|next| next != view.nodes) {
            found.push(Violation::Misplaced { block: view.blocks });
        }
        let lost = self.led_to.iter().zip(&self.counts).filter(|(led_to, _)| !**led_to);
        self.unreachable = lost.map(|(_, &count)| u64::from(count)).sum();
        self
    }
}
