//! One state of a collection: the newest points in memory, and what is left of each segment.

use std::sync::Arc;

use stratann_core::sieve::Sieve;
use stratann_engine::index::LeftRows;
use stratann_storage::Progress;

use super::block::{Block, Content, RowBits, memory_bytes};
use super::groups::{NameLists, Renamed};
use super::{Index, Point};
use crate::collections::error::Result;
use crate::collections::point::{Manifest, Place, PointBytes};
use crate::collections::spec::Specs;
use crate::rows::ExternalId;
use crate::segments::{self, NamedIndex, Newer, Overlay, Segment, SegmentEntry};

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

/// A row that is written into a segment.
#[derive(Clone, Copy)]
pub(crate) struct SealedRow<'a> {
    block: &'a Block,
    row: usize,
}

impl<'a> SealedRow<'a> {
    /// Its vectors, one for each name.
    pub(crate) fn vectors(&self) -> impl Iterator<Item = Option<&'a [u8]>> + use<'a> {
        self.block.vectors(self.row)
    }

    /// Its payload as compact JSON.
    pub(crate) fn payload(&self) -> Option<&'a Arc<[u8]>> {
        self.block.payload(self.row)
    }
}

/// A segment, and its rows that are left in this state.
#[derive(Clone)]
pub(crate) struct SegmentState {
    pub(crate) segment: Arc<Segment>,
    pub(crate) left: LeftRows,
    /// The rows of each index that are left, where they are others than those of the segment.
    of_indexes: Vec<Option<LeftRows>>,
    /// Newer payloads of its rows.
    pub(crate) overlay: Overlay,
}

impl SegmentState {
    /// A segment of which these rows are left.
    pub(crate) fn new(segment: Arc<Segment>, left: Sieve, overlay: Overlay) -> SegmentState {
        let left = LeftRows::new(left);
        let of_index = |index: &Option<NamedIndex>| index.as_ref().and_then(|own| own.left_of(left.rows()));
        let of_indexes = segment.indexes.iter().map(of_index).collect();
        SegmentState { segment, left, of_indexes, overlay }
    }

    /// The same with fewer rows left, among which nothing is searched.
    pub(crate) fn counted(&self, left: LeftRows) -> SegmentState {
        SegmentState { left, of_indexes: Vec::new(), ..self.clone() }
    }

    /// The same with fewer rows left, and those of the index that is searched.
    pub(crate) fn among(&self, name: usize, left: LeftRows, of_index: Option<LeftRows>) -> SegmentState {
        let of_indexes = (0..=name).map(|at| of_index.clone().filter(|_| at == name)).collect();
        SegmentState { left, of_indexes, ..self.clone() }
    }

    /// The rows of the index of a name that are left.
    pub(crate) fn left_in(&self, name: usize) -> &LeftRows {
        self.of_indexes.get(name).and_then(Option::as_ref).unwrap_or(&self.left)
    }

    /// Takes rows out, which ascend.
    fn kill(&mut self, rows: &[u32]) {
        self.left = self.left.without(rows);
        for (index, left) in self.segment.indexes.iter().zip(&mut self.of_indexes) {
            if let (Some(index), Some(left)) = (index, left) {
                *left = left.without(&index.rows_among(rows));
            }
        }
        self.overlay.remove(rows);
    }

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
    /// Lists of codes, for each name of vectors.
    pub(super) lists: Vec<NameLists>,
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
    pub(crate) fn of_segments(specs: &Specs, watermark: u64, segments: Vec<SegmentState>) -> State {
        let lists = vec![NameLists::default(); specs.count()];
        State { watermark, segments, lists, ..State::default() }
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
    pub(crate) fn memory_with(&self, specs: &Specs, rows: u64, bytes: PointBytes) -> u64 {
        let rows = self.rows.saturating_add(rows);
        let mut all = self.all_bytes;
        all += bytes;
        let beside = self.lists_bytes(specs, rows).saturating_add(self.overlay_bytes());
        memory_bytes(specs, rows, all).saturating_add(beside)
    }

    /// The segment with this number.
    pub(crate) fn segment(&self, number: u64) -> Option<&SegmentState> {
        self.segments.iter().find(|own| own.segment.entry.number == number)
    }

    /// Checkpoints that no merge has taken yet.
    pub(crate) fn checkpoints(&self) -> usize {
        self.segments.iter().filter(|own| own.segment.entry.level == 0).count()
    }

    /// Makes codes of the rows of segments in memory that have none.
    ///
    /// # Errors
    /// An interruption.
    pub(crate) fn make_codes(&self, progress: &dyn Progress) -> stratann_storage::Result<()> {
        self.segments.iter().try_for_each(|own| own.segment.make_codes(progress))
    }

    /// What the rows say of the segments.
    pub(crate) fn entries(&self) -> Vec<SegmentEntry> {
        self.segments.iter().map(|own| own.segment.entry.clone()).collect()
    }

    /// Takes rows of segments out, which ascend.
    pub(super) fn kill_in_segment(&mut self, number: u64, rows: &[u32]) {
        let mut segments = self.segments.iter_mut();
        if let Some(own) = segments.find(|own| own.segment.entry.number == number) {
            own.kill(rows);
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
        specs: &Specs,
        (id, place): (&ExternalId, Place),
        content: Content<'_>,
    ) -> At {
        let is_full = self.blocks.last().is_none_or(|last| last.block.rows() >= Block::rows_max(specs));
        if is_full || self.next_block() <= self.sealed || self.group_begins() {
            self.begin_group();
            self.blocks.push(LiveBlock { block: Arc::new(Block::empty(specs)), dead: RowBits::default() });
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
            block.push(specs, (id, place), content);
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
    pub(super) fn compacted(&self, specs: &Specs, index: &mut Index) -> State {
        let mut state = State {
            seq: self.seq,
            watermark: self.watermark,
            segments: self.segments.clone(),
            lists: self.lists.iter().map(NameLists::without_groups).collect(),
            first: self.next_block(),
            ..State::default()
        };
        let mut renamed = Renamed { from: self.first, rows: Vec::with_capacity(self.blocks.len()) };
        for (own, number) in self.blocks.iter().zip(self.first..) {
            state.begin_groups_of(self, number);
            let mut names = vec![None; own.block.rows()];
            for row in own.live_rows() {
                let parts = (own.block.id(row), own.block.place(row), own.block.content(row));
                if let (Some(id), Some(place), Some(content)) = parts {
                    let at = state.append(specs, (id, place), content);
                    index.insert(id.clone(), at);
                    names[row] = Some(at);
                }
            }
            renamed.rows.push(names);
        }
        state.begin_groups_of(self, self.next_block());
        state.lists.iter_mut().zip(&self.lists).for_each(|(new, own)| new.rename(own, &renamed));
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
    pub(crate) fn sealed_points(&self) -> impl Iterator<Item = (&ExternalId, u64, SealedRow<'_>)> {
        self.blocks.iter().take((self.sealed - self.first) as usize).flat_map(|own| {
            own.live_rows().filter_map(|row| {
                let sealed = SealedRow { block: &own.block, row };
                Some((own.block.id(row)?, own.block.place(row)?.seq, sealed))
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
        state.lists.iter_mut().for_each(|lists| lists.groups.retain(|group| group.from >= first));
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
            vectors: block.vectors(row).map(|vector| vector.map(<[u8]>::to_vec)).collect(),
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
