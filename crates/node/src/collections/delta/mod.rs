//! The newest points of a collection in memory, searchable at once.
//!
//! A state is immutable: blocks of rows, and which of them are dead. A change makes the next state, which shares all
//! blocks but the last one, and publishes it at once. So a search has one state for as long as it likes, and no writer
//! waits for it.

mod block;
mod search;
mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, RwLock, RwLockReadGuard};

use super::point::Place;
use super::spec::Spec;
use crate::rows::ExternalId;

pub(super) use block::memory_bytes;
pub use search::Hit;
use state::At;
pub(super) use state::State;

/// A change that is durable.
pub(super) enum Change<'a> {
    /// A point, new or in place of an earlier one.
    Put {
        /// Its id.
        id: &'a ExternalId,
        /// Its place in the tail.
        place: Place,
        /// Its components.
        vector: &'a [u8],
    },
    /// An id whose point is gone.
    Remove(&'a ExternalId),
}

/// A point as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// Its id.
    pub id: ExternalId,
    /// Sequence number of the change that wrote it.
    pub seq: u64,
    /// Its components, little-endian.
    pub vector: Vec<u8>,
}

type Index = BTreeMap<ExternalId, At>;

/// The newest points.
pub(super) struct Delta {
    spec: Spec,
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
    pub(super) fn new(spec: Spec) -> Delta {
        Delta { spec, index: RwLock::default(), state: RwLock::new(Arc::new(State::default())) }
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
        for change in changes {
            match change {
                Change::Put { id, place, vector } => {
                    let at = state.append(&self.spec, id, place, vector);
                    if let Some(older) = index.insert(id.clone(), at) {
                        state.kill(older);
                    }
                }
                Change::Remove(id) => {
                    if let Some(at) = index.remove(id) {
                        state.kill(at);
                    }
                }
            }
        }
        if state.is_mostly_dead() {
            state = state.compacted(&self.spec, &mut index);
        }
        state.seq = seq;
        *self.state.write().unwrap_or_else(|e| e.into_inner()) = Arc::new(state);
    }
}

impl Reader<'_> {
    /// The state.
    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// Place of an id in the tail.
    pub(super) fn place(&self, id: &ExternalId) -> Option<Place> {
        self.state.place(*self.index.get(id)?)
    }

    /// Points of ids, where there are any.
    pub(super) fn points(self, ids: &[ExternalId]) -> Vec<Option<Point>> {
        let found: Vec<_> = ids.iter().map(|id| self.index.get(id).copied()).collect();
        let state = self.state;
        drop(self.index);
        found.into_iter().map(|at| state.point(at?)).collect()
    }

    /// Points behind `after` in the order of ids, at most `limit` of them.
    pub(super) fn points_after(self, after: Option<&ExternalId>, limit: usize) -> Vec<Point> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let range = self.index.range::<ExternalId, _>((from, Bound::Unbounded));
        let found: Vec<_> = range.take(limit).map(|(_, at)| *at).collect();
        let state = self.state;
        drop(self.index);
        found.into_iter().filter_map(|at| state.point(at)).collect()
    }
}
