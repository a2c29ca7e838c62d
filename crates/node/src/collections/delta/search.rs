//! The nearest points of a state.

use std::cmp::Ordering;
use std::sync::Arc;

use stratann_core::delta::{Effort, Lists, Points, Query};
use stratann_kernel::distance::Exact;

use super::block::Block;
use super::matching::Matches;
use super::state::{At, LiveBlock, State};
use crate::collections::spec::VectorsOf;
use crate::rows::ExternalId;
use crate::segments::{Candidate, KSmallest};

/// Fewer rows are compared by all distances while nothing is known of their lists: each list costs as much as some
/// rows.
const SCANNED_ROWS: u64 = 2048;

/// A point that a search found.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    /// Its id.
    pub id: ExternalId,
    /// Its distance; smaller is nearer. One that is no number counts as infinite.
    pub distance: f32,
    /// Its payload as compact JSON, if payloads were asked for; `None` for a point without.
    pub payload: Option<Vec<u8>>,
    /// Its vector as it was given, if vectors were asked for.
    pub vector: Option<Vec<u8>>,
}

/// Content of a point in memory that a search found.
pub(crate) struct InMemory<'a> {
    pub(crate) payload: Option<Arc<[u8]>>,
    pub(crate) vector: &'a [u8],
}

/// What searches of points in memory did, summed over queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeltaStats {
    /// Rows in memory, dead ones included, of all queries.
    pub rows: u64,
    /// Coarse lists whose codes were compared.
    pub lists: u64,
    /// Rows that were compared by their codes.
    pub codes: u64,
    /// Distances that were computed from vectors.
    pub distances: u64,
}

/// What is wanted of points in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Wanted {
    /// Results.
    pub(crate) k: usize,
    /// Share of the true ones that is wanted; at 1 all are found.
    pub(crate) recall: f64,
    /// The distance beyond which points are no results; infinite for none.
    pub(crate) bound: f32,
    /// Computes the distances of all rows, without codes.
    pub(crate) all_rows: bool,
}

/// Buffers of searches, and what they did.
#[derive(Default)]
pub(crate) struct Searching {
    pub(crate) query: Query,
    pub(crate) stats: DeltaStats,
    /// The rows that may be results; `None` for all. They are those of the state that is searched.
    pub(crate) matches: Option<Matches>,
}

/// A row as a result: ties are broken by its id, which is not copied yet.
struct Name<'a> {
    id: &'a ExternalId,
    payload: Option<&'a Arc<[u8]>>,
    vector: &'a [u8],
}

impl PartialEq for Name<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Name<'_> {}

impl Ord for Name<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.id.cmp(other.id)
    }
}

impl PartialOrd for Name<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The nearest rows so far.
pub(super) struct Nearest<'a, 'm> {
    state: &'a State,
    /// The name of the vectors.
    name: usize,
    exact: Exact,
    /// A row that is no result.
    pub(super) skip: Option<At>,
    /// The rows that may be results; `None` for all.
    matches: Option<&'m mut Matches>,
    best: KSmallest<Name<'a>>,
    distances: u64,
    buffer: Vec<f32>,
}

impl<'a> Nearest<'a, '_> {
    pub(super) fn of(
        state: &'a State,
        VectorsOf { name, spec }: VectorsOf<'_>,
        query: &[u8],
        (k, bound): (usize, f32),
    ) -> Self {
        let mut exact = Exact::default();
        exact.set(spec.metric, spec.dtype, spec.dim, query);
        let best = KSmallest::new(k, bound);
        Nearest { state, name, exact, skip: None, matches: None, best, distances: 0, buffer: Vec::new() }
    }

    /// Keeps a row where it is a result. Returns whether it was kept.
    fn offer(&mut self, distance: f32, (at, block): (At, &'a Block), list: u32) -> bool {
        let row = at.row as usize;
        let (Some(id), Some(vector)) = (block.id(row), block.vector(self.name, row)) else { return false };
        let name = Name { id, payload: block.payload(row), vector };
        let matches = &mut self.matches;
        // A payload is read only of a row that would be a result.
        let may_return = || matches.as_mut().is_none_or(|matches| matches.has(at, block));
        self.best.offer_if(distance, name, list, may_return)
    }

    /// Computes the distances of all rows of blocks, the first of which has this number.
    fn offer_all(&mut self, from: u32, blocks: &'a [LiveBlock]) {
        let blocks = blocks.iter().zip(from..);
        for (own, block) in blocks.filter(|(own, _)| own.dead.count() < own.block.rows()) {
            let Some(column) = own.block.column(self.name) else { continue };
            let mut distances = std::mem::take(&mut self.buffer);
            self.exact.distances(&column.vectors, &column.inverse_norms, &mut distances);
            self.distances += distances.len() as u64;
            for (row, &distance) in column.rows().zip(&distances).filter(|(row, _)| !own.dead.has(*row)) {
                self.offer(distance, (At { block, row: row as u32 }, &own.block), 0);
            }
            self.buffer = distances;
        }
    }

    /// Distances and lists of the results, the nearest first.
    pub(super) fn into_lists(self) -> Vec<(f32, u32)> {
        self.best.into_sorted().iter().map(|found| (found.distance, found.list)).collect()
    }

    fn into_hits(self) -> Vec<(Hit, InMemory<'a>)> {
        let sorted = self.best.into_sorted().into_iter();
        let hit = |found: Candidate<Name<'a>>| {
            let Name { id, payload, vector } = found.name;
            let hit = Hit { id: id.clone(), distance: found.distance, payload: None, vector: None };
            (hit, InMemory { payload: payload.cloned(), vector })
        };
        sorted.map(hit).collect()
    }
}

impl Points for Nearest<'_, '_> {
    fn limit(&self) -> f32 {
        self.best.limit()
    }

    fn score(&mut self, list: u32, row: u64) -> f32 {
        let at = At::of_name(row);
        let is_dead = |own: &&LiveBlock| own.dead.has(at.row as usize) || self.skip == Some(at);
        let Some(own) = self.state.block(at).filter(|own| !is_dead(own)) else { return f32::INFINITY };
        let found = own.block.column(self.name).and_then(|column| column.get(at.row as usize));
        let Some((vector, norm)) = found else { return f32::INFINITY };
        let distance = self.exact.distance(vector, norm);
        self.distances += 1;
        let is_kept = self.offer(distance, (at, &own.block), list);
        // Of a row that is not kept nobody knows whether it matches.
        if is_kept || self.matches.is_none() { distance } else { f32::INFINITY }
    }
}

impl State {
    /// The nearest points of a query that are in memory, without their payloads.
    #[cfg(test)]
    pub(crate) fn nearest(
        &self,
        of: VectorsOf<'_>,
        query: &[u8],
        wanted: &Wanted,
        searching: &mut Searching,
    ) -> Vec<Hit> {
        self.nearest_points(of, query, wanted, searching).into_iter().map(|(hit, _)| hit).collect()
    }

    /// The nearest points of a query that are in memory, nearest first; all where there are fewer than are wanted. The
    /// content of each is beside it.
    pub(crate) fn nearest_points(
        &self,
        of: VectorsOf<'_>,
        query: &[u8],
        wanted: &Wanted,
        searching: &mut Searching,
    ) -> Vec<(Hit, InMemory<'_>)> {
        let mut nearest = Nearest::of(self, of, query, (wanted.k, wanted.bound));
        let Searching { query: buffers, stats, matches } = searching;
        nearest.matches = matches.as_mut();
        stats.rows += self.rows();
        // A code costs as much as the distance of a row of bytes.
        let is_cheap = wanted.recall >= 1.0 && of.spec.dtype.size() == 1;
        if wanted.all_rows || is_cheap {
            nearest.offer_all(self.first, &self.blocks);
        } else {
            // Rows without lists first: their distances bound those of the others.
            let has_use = |lists: &Lists| lists.is_calibrated() || lists.rows() >= SCANNED_ROWS;
            let (in_lists, others): (Vec<_>, Vec<_>) = self
                .blocks_of_groups(of.name)
                .partition(|(group, _)| group.lists.as_deref().is_some_and(has_use));
            others.into_iter().for_each(|(group, blocks)| nearest.offer_all(group.from, blocks));
            // How many match is not known before they are looked at.
            let share = if nearest.matches.is_some() {
                0.0
            } else {
                self.tail_points() as f64 / self.rows().max(1) as f64
            };
            let effort = Effort { recall: wanted.recall, k: wanted.k, share };
            for lists in in_lists.iter().filter_map(|(group, _)| group.lists.as_ref()) {
                let scanned = lists.search(buffers, query, effort, &mut nearest);
                stats.lists += scanned.lists;
                stats.codes += scanned.codes;
            }
        }
        stats.distances += nearest.distances;
        nearest.into_hits()
    }
}
