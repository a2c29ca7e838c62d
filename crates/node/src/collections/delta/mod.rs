//! The newest points of a collection in memory, searchable at once, and the segments beside them.
//!
//! A state is immutable: blocks of rows, which of them are dead, and lists of their codes. A change makes the next
//! state, which shares all blocks but the last one and most of the lists, and publishes it at once. So a search has one
//! state for as long as it likes, and no writer waits for it.

mod block;
mod groups;
mod matching;
#[cfg(test)]
mod measure;
mod sample;
mod search;
mod state;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, RwLock, RwLockReadGuard};

use stratann_core::delta::Pushing;

use super::error::Result;
use super::point::{Place, PointBytes};
use super::spec::{Specs, VectorsOf};
use crate::rows::ExternalId;
use crate::segments::{Newer, Segment};

use block::Content;
pub(super) use block::memory_bytes;
pub(super) use groups::seed_bytes;
use groups::{coarse_bytes, coarse_of};
pub(super) use matching::Matches;
pub(super) use sample::{Asked, sample};
pub use search::{DeltaStats, Hit};
pub(super) use search::{InMemory, Searching, Wanted};
pub(super) use state::At;
pub(super) use state::{SegmentState, State};

/// A change that is durable.
pub(super) enum Change<'a> {
    /// A point, new or in place of an earlier one.
    Put {
        /// Its id.
        id: &'a ExternalId,
        /// Its place in the tail.
        place: Place,
        /// The record of its vectors.
        vectors: Cow<'a, [u8]>,
        /// Its payload as compact JSON.
        payload: Option<&'a Arc<[u8]>>,
    },
    /// An id whose point is gone.
    Remove(&'a ExternalId),
    /// A row of a segment that is dead.
    Kill {
        /// Number of the segment.
        segment: u64,
        /// Its row.
        row: u32,
    },
    /// A newer payload of a row of a segment.
    Payload {
        /// Number of the segment.
        segment: u64,
        /// The row.
        row: u32,
        /// The payload.
        newer: Newer,
    },
}

/// A point as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// Its id.
    pub id: ExternalId,
    /// Sequence number of the change that wrote it.
    pub seq: u64,
    /// Its vectors: for each name of the collection, in their order, the components, little-endian, or nothing. Without
    /// names there is one.
    pub vectors: Vec<Option<Vec<u8>>>,
    /// Its payload as compact JSON, in which the keys of an object ascend; `None` for a point without fields.
    pub payload: Option<Vec<u8>>,
}

impl Point {
    /// The components of its first vector; that is the only one in a collection whose vectors have no names.
    pub fn vector(&self) -> &[u8] {
        self.vectors.iter().flatten().next().map_or(&[], Vec::as_slice)
    }

    /// Bytes of vectors and payload.
    pub(super) fn bytes(&self) -> usize {
        let vectors: usize = self.vectors.iter().flatten().map(Vec::len).sum();
        vectors + self.payload.as_ref().map_or(0, Vec::len)
    }
}

type Index = BTreeMap<ExternalId, At>;

/// The newest points.
pub(super) struct Delta {
    specs: Specs,
    /// Locked before the state. It is changed together with it.
    index: RwLock<Index>,
    state: RwLock<Arc<State>>,
}

/// The index with the state that it belongs to.
pub(super) struct Reader<'a> {
    index: RwLockReadGuard<'a, Index>,
    state: Arc<State>,
}

impl Delta {
    #[cfg(test)]
    pub(super) fn new(specs: impl Into<Specs>) -> Delta {
        let specs = specs.into();
        let state = State::of_segments(&specs, 0, Vec::new());
        Delta::of_segments(specs, state)
    }

    /// A delta without points beside segments.
    pub(super) fn of_segments(specs: Specs, state: State) -> Delta {
        Delta { specs, index: RwLock::default(), state: RwLock::new(Arc::new(state)) }
    }

    /// The newest state.
    pub(super) fn state(&self) -> Arc<State> {
        self.state.read().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Index and state for a short time: changes wait meanwhile.
    pub(super) fn reader(&self) -> Reader<'_> {
        let index = self.index.read().unwrap_or_else(|e| e.into_inner());
        Reader { state: self.state(), index }
    }

    /// Makes changes up to `seq` in their order, and publishes all of them at once.
    pub(super) fn apply<'a>(&self, seq: u64, changes: impl Iterator<Item = Change<'a>>) {
        let mut index = self.index.write().unwrap_or_else(|e| e.into_inner());
        let mut state = State::clone(&self.state());
        let mut killed: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        let (mut pushing, mut probes) = (Pushing::default(), Vec::new());
        for change in changes {
            match change {
                Change::Put { id, place, vectors, payload } => {
                    let content = Content { vectors: Cow::Borrowed(&*vectors), payload };
                    let at = state.append(&self.specs, (id, place), content);
                    let vectors = self.specs.vectors_in(&vectors).unwrap_or_default();
                    for (of, vector) in self.specs.each().zip(vectors) {
                        if vector.is_some_and(|vector| state.file(of.name, at, vector, &mut pushing)) {
                            probes.push((of, at));
                        }
                    }
                    if let Some(older) = index.insert(id.clone(), at) {
                        state.kill(older);
                    }
                }
                Change::Remove(id) => {
                    if let Some(at) = index.remove(id) {
                        state.kill(at);
                    }
                }
                Change::Payload { segment, row, newer } => state.set_payload(segment, row, newer),
                Change::Kill { segment, row } => killed.entry(segment).or_default().push(row),
            }
        }
        for (segment, mut rows) in killed {
            rows.sort_unstable();
            state.kill_in_segment(segment, &rows);
        }
        self.specs.each().for_each(|of| state.seed(of));
        probes.into_iter().for_each(|(of, at)| state.probe(of, at));
        if state.is_mostly_dead() {
            state = state.compacted(&self.specs, &mut index);
        }
        state.seq = seq;
        self.publish(state);
    }

    /// Seals all rows for a segment. Returns the state that was sealed.
    pub(super) fn seal(&self) -> Arc<State> {
        let _index = self.index.write().unwrap_or_else(|e| e.into_inner());
        self.publish(self.state().sealed());
        self.state()
    }

    /// Takes a seal back, when the segment was not made.
    pub(super) fn unseal(&self) {
        let _index = self.index.write().unwrap_or_else(|e| e.into_inner());
        self.publish(self.state().unsealed());
    }

    /// Puts a segment in the place of the sealed rows.
    pub(super) fn take_sealed_out(&self, watermark: u64, segment: Option<SegmentState>) {
        let mut index = self.index.write().unwrap_or_else(|e| e.into_inner());
        let mut state = self.state().without_sealed(&mut index);
        state.watermark = watermark;
        state.segments.extend(segment);
        self.publish(state);
    }

    /// Puts a segment in the place of some others.
    pub(super) fn replace_segments(&self, numbers: &[u64], segment: Option<SegmentState>) {
        let _index = self.index.write().unwrap_or_else(|e| e.into_inner());
        let mut state = State::clone(&self.state());
        state.segments.retain(|own| !numbers.contains(&own.segment.entry.number));
        state.segments.extend(segment);
        self.publish(state);
    }

    /// Puts a segment with the same rows in the place of the one of its number.
    pub(super) fn replace_segment(&self, segment: Arc<Segment>) {
        let _index = self.index.write().unwrap_or_else(|e| e.into_inner());
        let mut state = State::clone(&self.state());
        let number = segment.entry.number;
        let mut segments = state.segments.iter_mut();
        if let Some(own) = segments.find(|own| own.segment.entry.number == number) {
            own.segment = segment;
        }
        self.publish(state);
    }

    /// Makes centroids of the segment with most vectors of each name, unless there are some of it, and has rows filed
    /// around them from now on. Does without when `reserve` has no memory for them.
    pub(super) fn renew_coarse(&self, reserve: impl FnOnce(u64) -> Result<()>) {
        let state = self.state();
        let due = |of: VectorsOf<'_>| state.segment_for_lists(of.name).is_some();
        let bytes = |of: VectorsOf<'_>| {
            let segment = state.segment_for_lists(of.name);
            segment.map_or(0, |segment| coarse_bytes(of.spec, segment.rows_with(of.name)))
        };
        if !self.specs.each().any(due) || reserve(self.specs.each().map(bytes).sum()).is_err() {
            return;
        }
        for of in self.specs.each() {
            let coarse = state.segment_for_lists(of.name).and_then(|segment| coarse_of(of, segment));
            if let Some(own) = coarse {
                let _index = self.index.write().unwrap_or_else(|e| e.into_inner());
                let mut state = State::clone(&self.state());
                state.set_coarse(of.name, own);
                self.publish(state);
            }
        }
    }

    fn publish(&self, state: State) {
        *self.state.write().unwrap_or_else(|e| e.into_inner()) = Arc::new(state);
    }
}

impl Reader<'_> {
    /// The state.
    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// Place of an id in the tail, with the bytes of its id and payload.
    pub(super) fn place(&self, id: &ExternalId) -> Option<(Place, PointBytes)> {
        let at = *self.index.get(id)?;
        let block = &self.state.block(at)?.block;
        Some((block.place(at.row as usize)?, block.bytes_of(at.row as usize)))
    }

    /// Places of ids that are in memory, and the state that they are of.
    pub(super) fn places(self, ids: &[ExternalId]) -> (Vec<Option<At>>, Arc<State>) {
        (ids.iter().map(|id| self.index.get(id).copied()).collect(), self.state)
    }

    /// Points of ids that are in memory, and the state that tells of the others.
    pub(super) fn points(self, ids: &[ExternalId]) -> (Vec<Option<Point>>, Arc<State>) {
        let found: Vec<_> = ids.iter().map(|id| self.index.get(id).copied()).collect();
        let state = self.state;
        drop(self.index);
        (found.into_iter().map(|at| state.point(at?)).collect(), state)
    }

    /// Points in memory behind `after` in the order of ids, and the state that tells of others: one more than a page of
    /// at most so many points and about so many bytes has.
    pub(super) fn points_after(
        self,
        after: Option<&ExternalId>,
        most: (usize, usize),
    ) -> (Vec<Point>, Arc<State>) {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let range = self.index.range::<ExternalId, _>((from, Bound::Unbounded));
        let found: Vec<_> = range.take(most.0 + 1).map(|(_, at)| *at).collect();
        let state = self.state;
        drop(self.index);
        (state.page(found.into_iter(), most), state)
    }
}
