//! What must hold in a finished index. Used by `stratann verify` and by tests.

use alloc::vec;
use alloc::vec::Vec;

use crate::format::block::{Block, Damage, verify};
use crate::plan::IndexView;

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
    /// A block's nodes are not where the map says.
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
    /// No list names this node and it is no head node: no search can find it.
    Unreachable {
        /// Which node.
        node: u32,
    },
}

/// Checks an index block by block, in any amount at a time, in order.
#[derive(Clone, Debug)]
pub struct Checker {
    next_id: u32,
    reachable: Vec<bool>,
    list: Vec<u32>,
    /// Nodes that nothing leads to are counted here: a few are tolerable, their own block still finds them.
    pub unreachable: u64,
    /// Sum of list lengths.
    pub edges: u64,
}

impl Checker {
    /// A checker that has seen no block. Takes a byte per node.
    pub fn new(view: &IndexView<'_>) -> Checker {
        let mut reachable = vec![view.graph.is_none(); view.nodes as usize];
        if let Some(graph) = &view.graph {
            for &id in &graph.head.ids {
                if let Some(r) = reachable.get_mut(id as usize) {
                    *r = true;
                }
            }
        }
        Checker { next_id: 0, reachable, list: Vec::new(), unreachable: 0, edges: 0 }
    }

    /// Checks block number `block`, the one after the last.
    pub fn block(&mut self, view: &IndexView<'_>, block: u32, bytes: &[u8], found: &mut Vec<Violation>) {
        let opened = match verify(&view.block, block, bytes).and_then(|()| Block::open(&view.block, bytes)) {
            Ok(opened) => opened,
            Err(damage) => {
                found.push(Violation::Block { block, damage });
                return;
            }
        };
        let first = opened.first_id();
        let count = opened.count() as u32;
        let placed = |id: u32| id < view.nodes && view.graph.is_none_or(|g| g.map.block_of(id) == block);
        let consecutive = first == self.next_id || !found.is_empty();
        if !consecutive || count == 0 || !placed(first) || !placed(first.saturating_add(count - 1)) {
            found.push(Violation::Misplaced { block });
            return;
        }
        self.next_id = first + count;
        for slot in 0..opened.count() {
            self.node(view, &opened, slot, first + slot as u32, found);
        }
    }

    fn node(&mut self, view: &IndexView<'_>, block: &Block<'_>, slot: usize, node: u32, found: &mut Vec<Violation>) {
        let mut wide = vec![0f32; view.dim];
        stratann_kernel::element::widen(view.dtype, block.vector(slot), &mut wide);
        if !block.inverse_norm(slot).is_finite() || wide.iter().any(|x| !x.is_finite()) {
            found.push(Violation::Vector { node });
        }
        if !view.block.lists {
            return;
        }
        self.list.clear();
        let read = block.neighbours(slot, &mut self.list);
        if read.is_none() || self.list.iter().any(|&n| n >= view.nodes || n == node) {
            found.push(Violation::List { node });
            return;
        }
        self.edges += self.list.len() as u64;
        // A search that reads a block scores all of its nodes, so block-mates reach each other.
        let home = view.graph.map(|g| g.map);
        for &n in &self.list {
            self.reachable[n as usize] = true;
            let _ = home;
        }
    }

    /// What can only be said at the end.
    pub fn finish(mut self, view: &IndexView<'_>, found: &mut Vec<Violation>) -> Checker {
        if self.next_id != view.nodes && found.is_empty() {
            found.push(Violation::Misplaced { block: view.blocks });
        }
        self.unreachable = self.reachable.iter().filter(|r| !**r).count() as u64;
        self
    }
}
