//! One state of a delta.

use std::sync::Arc;

use super::block::{Block, Dead, counted, memory_bytes};
use super::{Index, Point};
use crate::collections::point::Place;
use crate::collections::spec::Spec;
use crate::rows::ExternalId;

/// A row of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At {
    part: u32,
    row: u32,
}

/// A block, and which of its rows are dead in this state. A row beyond those of the block does not exist yet.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) block: Arc<Block>,
    pub(super) dead: Dead,
}

/// All points as one change left them.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    /// Sequence number of the last change.
    pub(crate) seq: u64,
    pub(super) parts: Vec<Part>,
    rows: u64,
    live: u64,
    /// Bytes of the ids of rows that live, and of all rows.
    id_bytes: u64,
    all_id_bytes: u64,
}

impl State {
    /// Points.
    pub(crate) fn points(&self) -> u64 {
        self.live
    }

    /// Bytes of the ids of all points.
    pub(crate) fn id_bytes(&self) -> u64 {
        self.id_bytes
    }

    /// Memory once so many more rows are there, whose ids have so many bytes.
    pub(crate) fn memory_with(&self, spec: &Spec, rows: u64, ids: u64) -> u64 {
        memory_bytes(spec, self.rows.saturating_add(rows), self.all_id_bytes.saturating_add(ids))
    }

    /// Appends a row. A block that another state has is copied first.
    pub(super) fn append(&mut self, spec: &Spec, id: &ExternalId, place: Place, vector: &[u8]) -> At {
        let is_full = self.parts.last().is_none_or(|part| part.block.rows() >= Block::rows_max(spec));
        if is_full {
            self.parts.push(Part { block: Arc::new(Block::empty(spec)), dead: Dead::default() });
        }
        self.rows += 1;
        self.live += 1;
        self.all_id_bytes += counted(id);
        self.id_bytes += counted(id);
        let part = (self.parts.len() - 1) as u32;
        let mut row = 0;
        if let Some(last) = self.parts.last_mut() {
            let block = Arc::make_mut(&mut last.block);
            row = block.rows() as u32;
            block.push(spec, id, place, vector);
        }
        At { part, row }
    }

    /// Marks a row as dead.
    pub(super) fn kill(&mut self, at: At) {
        let Some(part) = self.parts.get_mut(at.part as usize) else { return };
        let Some(id) = part.block.id(at.row as usize) else { return };
        if !part.dead.has(at.row as usize) {
            self.live -= 1;
            self.id_bytes -= counted(id);
            part.dead.insert(at.row as usize);
        }
    }

    /// Whether more than half of the rows are dead.
    pub(super) fn is_mostly_dead(&self) -> bool {
        self.rows > 2 * self.live
    }

    /// The same points in new blocks, in the same order.
    pub(super) fn compacted(&self, spec: &Spec, index: &mut Index) -> State {
        let mut state = State { seq: self.seq, ..State::default() };
        for part in &self.parts {
            let live = (0..part.block.rows()).filter(|row| !part.dead.has(*row));
            for row in live {
                let parts = (part.block.id(row), part.block.place(row), part.block.vector(row));
                if let (Some(id), Some(place), Some(vector)) = parts {
                    let at = state.append(spec, id, place, vector);
                    index.insert(id.clone(), at);
                }
            }
        }
        state
    }

    pub(super) fn place(&self, at: At) -> Option<Place> {
        self.parts.get(at.part as usize)?.block.place(at.row as usize)
    }

    pub(super) fn point(&self, at: At) -> Option<Point> {
        let (block, row) = (&self.parts.get(at.part as usize)?.block, at.row as usize);
        Some(Point {
            id: block.id(row)?.clone(),
            seq: block.place(row)?.seq,
            vector: block.vector(row)?.to_vec(),
        })
    }

    /// Rows, dead ones included.
    #[cfg(test)]
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }
}
