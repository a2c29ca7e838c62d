//! One state of a collection: the newest points in memory, and what is left of each segment.

use std::sync::Arc;

use stratann_engine::index::LeftRows;

use super::block::{Block, Content, RowBits, memory_bytes};
use super::groups::{CoarseOf, Group, Renamed};
use super::{Index, Point};
use crate::collections::error::Result;
use crate::collections::point::{Manifest, Place, PointBytes};
use crate::collections::spec::Spec;
use crate::rows::ExternalId;
use crate::segments::{self, Newer, Overlay, Segment, SegmentEntry};

/// A row of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At {
    /// Number of its block. Blocks that went into a segment keep theirs.
    pub(super) block: u32,
    pub(super) row: u32,
}

/// A block, and which of its rows are dead in this state. A row beyond those of the block does not exist yet.
#[derive(Clone, Debug)]
pub(super) struct LiveBlock {
    pub(super) block: Arc<Block>,
    pub(super) dead: RowBits,
}

/// A segment, and its rows that are left in this state.
#[derive(Clone)]
pub(crate) struct SegmentState {
    pub(crate) segment: Arc<Segment>,
    pub(crate) left: LeftRows,
    /// Newer payloads of its rows.
    pub(crate) overlay: Overlay,
}

impl SegmentState {
    /// Number of the change that wrote a point of the segment, or its payload.
    pub(crate) fn seq_of(&self, place: &segments::Place) -> u64 {
        self.overlay.get(place.row).map_or(place.seq, |newer| newer.seq)
    }

    /// The payload of a row as compact JSON.
    ///
    /// # Errors
    /// `Corrupt` and `Io` of the segment.
    pub(crate) fn payload(&self, row: u32) -> Result<Option<Vec<u8>>> {
        match self.overlay.get(row) {
            Some(newer) => Ok(newer.payload.as_ref().map(|json| json.to_vec())),
            None => Ok(self.segment.payload(row)?),
        }
    }
}

/// All points as one change left them.
#[derive(Clone, Default)]
pub(crate) struct State {
    /// Sequence number of the last change.
    pub(crate) seq: u64,
    /// Sequence number up to which segments hold everything.
    pub(crate) watermark: u64,
    pub(crate) segments: Vec<SegmentState>,
    pub(super) blocks: Vec<LiveBlock>,
    /// Consecutive blocks whose rows are in lists together. Those of sealed blocks are groups of their own.
    pub(super) groups: Vec<Group>,
    /// Centroids of the largest segment, for the next group.
    pub(super) coarse: Option<CoarseOf>,
    /// Number of the first block.
    pub(super) first: u32,
    /// Blocks before this number get no more rows, because they are written into a segment.
    pub(super) sealed: u32,
    rows: u64,
    live: u64,
    /// Bytes of the ids and payloads of rows that live, and of all rows.
    bytes: PointBytes,
    all_bytes: PointBytes,
}

impl State {
    /// Segments without points beside them.
    pub(crate) fn of_segments(watermark: u64, segments: Vec<SegmentState>) -> State {
        State { watermark, segments, ..State::default() }
    }

    /// Points.
    pub(crate) fn points(&self) -> u64 {
        self.live + self.segments.iter().map(|own| u64::from(own.left.rows().count())).sum::<u64>()
    }

    /// What the rows say of it.
    pub(crate) fn manifest(&self) -> Manifest {
        let (seq, points) = (self.seq, self.points());
        Manifest { seq, points, tail_points: self.tail_points(), bytes: self.bytes }
    }

    /// Points that are in no segment.
    pub(crate) fn tail_points(&self) -> u64 {
        self.live
    }

    /// Rows in memory, dead ones included.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes of the ids and payloads of points that are in no segment.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> PointBytes {
        self.bytes
    }

    /// Bytes of the payloads of rows in memory, dead ones included.
    pub(crate) fn payload_bytes(&self) -> u64 {
        self.all_bytes.payloads
    }

    /// Memory once so many more rows are there, whose ids and payloads have so many bytes.
    pub(crate) fn memory_with(&self, spec: &Spec, rows: u64, bytes: PointBytes) -> u64 {
        let rows = self.rows.saturating_add(rows);
        let mut all = self.all_bytes;
        all += bytes;
        let beside = self.lists_bytes(spec, rows).saturating_add(self.overlay_bytes());
        memory_bytes(spec, rows, all).saturating_add(beside)
    }

    /// The segment with this number.
    pub(crate) fn segment(&self, number: u64) -> Option<&SegmentState> {
        self.segments.iter().find(|own| own.segment.entry.number == number)
    }

    /// Checkpoints that no merge has taken yet.
    pub(crate) fn checkpoints(&self) -> usize {
        self.segments.iter().filter(|own| own.segment.entry.level == 0).count()
    }

    /// What the rows say of the segments.
    pub(crate) fn entries(&self) -> Vec<SegmentEntry> {
        self.segments.iter().map(|own| own.segment.entry.clone()).collect()
    }

    /// Takes rows of segments out, which ascend.
    pub(super) fn kill_in_segment(&mut self, number: u64, rows: &[u32]) {
        let mut segments = self.segments.iter_mut();
        if let Some(own) = segments.find(|own| own.segment.entry.number == number) {
            own.left = own.left.without(rows);
            own.overlay.remove(rows);
        }
    }

    /// Puts a newer payload over a row of a segment.
    pub(super) fn set_payload(&mut self, number: u64, row: u32, newer: Newer) {
        let mut segments = self.segments.iter_mut();
        if let Some(own) = segments.find(|own| own.segment.entry.number == number) {
            own.overlay.set(row, newer);
        }
    }

    /// Memory of newer payloads over segments.
    pub(crate) fn overlay_bytes(&self) -> u64 {
        self.segments.iter().map(|own| own.overlay.bytes()).sum()
    }

    /// The segment that has a point of an id, if one has, and where. A point has one place.
    ///
    /// # Errors
    /// `Corrupt` and `Io` of a segment.
    pub(crate) fn place_in_segments(
        &self,
        id: &ExternalId,
    ) -> Result<Option<(&SegmentState, segments::Place)>> {
        for own in &self.segments {
            if let Some(place) = own.segment.find(id)?.filter(|place| own.left.rows().has(place.row)) {
                return Ok(Some((own, place)));
            }
        }
        Ok(None)
    }

    /// Place and content of a row in memory.
    pub(crate) fn tail_point(&self, at: At) -> Option<(Place, Content<'_>)> {
        let block = &self.block(at)?.block;
        Some((block.place(at.row as usize)?, block.content(at.row as usize)?))
    }

    /// Appends a row to the last block, or to a new one. A block that another state has is copied first.
    pub(super) fn append(
        &mut self,
        spec: &Spec,
        (id, place): (&ExternalId, Place),
        content: Content<'_>,
    ) -> At {
        let is_full = self.blocks.last().is_none_or(|last| last.block.rows() >= Block::rows_max(spec));
        if is_full || self.next_block() <= self.sealed || self.group_begins() {
            self.begin_group();
            self.blocks.push(LiveBlock { block: Arc::new(Block::empty(spec)), dead: RowBits::default() });
        }
        self.rows += 1;
        self.live += 1;
        let bytes = PointBytes::of(id, content.payload.map(|json| &**json));
        self.all_bytes += bytes;
        self.bytes += bytes;
        let block = self.next_block() - 1;
        let mut row = 0;
        if let Some(last) = self.blocks.last_mut() {
            let block = Arc::make_mut(&mut last.block);
            row = block.rows() as u32;
            block.push(spec, (id, place), content);
        }
        At { block, row }
    }

    /// Number of the block that follows the last one.
    pub(super) fn next_block(&self) -> u32 {
        self.first + self.blocks.len() as u32
    }

    pub(super) fn block(&self, at: At) -> Option<&LiveBlock> {
        self.blocks.get(at.block.checked_sub(self.first)? as usize)
    }

    /// Marks a row as dead.
    pub(super) fn kill(&mut self, at: At) {
        let Some(number) = at.block.checked_sub(self.first) else { return };
        let Some(own) = self.blocks.get_mut(number as usize) else { return };
        if !own.dead.has(at.row as usize) && (at.row as usize) < own.block.rows() {
            self.live -= 1;
            self.bytes -= own.block.bytes_of(at.row as usize);
            own.dead.insert(at.row as usize);
        }
    }

    /// Whether more than half of the rows are dead, and none of them is being written into a segment.
    pub(super) fn is_mostly_dead(&self) -> bool {
        self.rows > 2 * self.live && self.sealed <= self.first
    }

    /// The same points in new blocks, in the same order and groups.
    pub(super) fn compacted(&self, spec: &Spec, index: &mut Index) -> State {
        let mut state = State {
            seq: self.seq,
            watermark: self.watermark,
            segments: self.segments.clone(),
            coarse: self.coarse.clone(),
            first: self.next_block(),
            ..State::default()
        };
        for (group, blocks) in self.blocks_of_groups() {
            let from = state.next_block();
            state.groups.push(Group::beginning(from));
            let mut renamed = Renamed { from: group.from, rows: Vec::with_capacity(blocks.len()) };
            for own in blocks {
                let mut names = vec![None; own.block.rows()];
                for row in own.live_rows() {
                    let parts = (own.block.id(row), own.block.place(row), own.block.content(row));
                    if let (Some(id), Some(place), Some(content)) = parts {
                        let at = state.append(spec, (id, place), content);
                        index.insert(id.clone(), at);
                        names[row] = Some(at);
                    }
                }
                renamed.rows.push(names);
            }
            if let Some(last) = state.groups.last_mut() {
                *last = group.renamed(from, &renamed);
            }
        }
        state
    }

    /// The same with all rows sealed: no block of them changes any more, but for which rows are dead.
    pub(super) fn sealed(&self) -> State {
        State { sealed: self.next_block(), ..self.clone() }
    }

    /// The same without a seal.
    pub(super) fn unsealed(&self) -> State {
        State { sealed: self.first, ..self.clone() }
    }

    /// Points of sealed blocks that live, with the numbers of their changes.
    pub(crate) fn sealed_points(&self) -> impl Iterator<Item = (&ExternalId, u64, Content<'_>)> {
        self.blocks.iter().take((self.sealed - self.first) as usize).flat_map(|own| {
            own.live_rows().filter_map(|row| {
                Some((own.block.id(row)?, own.block.place(row)?.seq, own.block.content(row)?))
            })
        })
    }

    /// Ids whose points in sealed blocks live in this state and not in a later one.
    pub(crate) fn died_until<'a>(&'a self, later: &'a State) -> impl Iterator<Item = &'a ExternalId> {
        let pairs = self.blocks.iter().take((self.sealed - self.first) as usize).zip(&later.blocks);
        pairs.flat_map(|(own, now)| {
            own.live_rows().filter(|row| now.dead.has(*row)).filter_map(|row| own.block.id(row))
        })
    }

    /// The same without sealed blocks, whose points are in a segment now.
    pub(super) fn without_sealed(&self, index: &mut Index) -> State {
        let gone = (self.sealed.saturating_sub(self.first) as usize).min(self.blocks.len());
        let (gone, kept) = self.blocks.split_at(gone);
        let first = self.first + gone.len() as u32;
        for own in gone {
            for row in own.live_rows() {
                let id = own.block.id(row).filter(|id| index.get(*id).is_some_and(|at| at.block < first));
                id.map(|id| index.remove(id));
            }
        }
        let mut state = State { blocks: kept.to_vec(), first, sealed: first, ..self.clone() };
        state.groups.retain(|group| group.from >= first);
        (state.rows, state.live) = (0, 0);
        (state.bytes, state.all_bytes) = (PointBytes::default(), PointBytes::default());
        for own in kept {
            for row in 0..own.block.rows() {
                let bytes = own.block.bytes_of(row);
                state.rows += 1;
                state.all_bytes += bytes;
                if !own.dead.has(row) {
                    state.live += 1;
                    state.bytes += bytes;
                }
            }
        }
        state
    }

    pub(super) fn point(&self, at: At) -> Option<Point> {
        let (block, row) = (&self.block(at)?.block, at.row as usize);
        Some(Point {
            id: block.id(row)?.clone(),
            seq: block.place(row)?.seq,
            vector: block.vector(row)?.to_vec(),
            payload: block.payload(row).map(|json| json.to_vec()),
        })
    }
}

impl LiveBlock {
    /// Rows that are not dead.
    pub(super) fn live_rows(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.block.rows()).filter(|row| !self.dead.has(*row))
    }
}
