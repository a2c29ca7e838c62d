//! The rows of a checkpoint in memory, compared by codes in coarse lists as points in memory are.
//!
//! A checkpoint is an index that scans all of its vectors, and a query has several of them beside the larger segments.
//! So its rows stay in memory until a merge into the largest takes them, with codes and lists of their own. Making
//! these takes most of the time of opening, so they are made beside the first searches, which compare all vectors.

use std::sync::OnceLock;

use stratann_core::delta::{
    Coarse, Effort, LISTS_MAX, Lists, PROBE_RESULTS, Points, Pushing, Query, SAMPLE_OF_LIST, Scanned, Shape,
    row_bytes,
};
use stratann_core::sieve::Sieve;
use stratann_engine::index::Index;
use stratann_kernel::Metric;
use stratann_kernel::distance::{Exact, inverse_norm};
use stratann_storage::{Progress, Quiet, Result};

use super::nearest::{Candidate, KSmallest};

/// Lists of a checkpoint: some hundred rows in each.
const LISTS: usize = LISTS_MAX;
/// Rows that show how far results are from their lists.
const PROBES: usize = 128;

/// Up to this share of the rows that are left, their vectors are compared without codes.
const FEW_SHARE: f64 = 1.0 / 16.0;
/// Rows of which codes are made before one looks for an interruption.
const CODED_AT_ONCE: usize = 1024;

/// Rows in memory, by their numbers.
pub(crate) struct ScannedRows {
    shape: Shape,
    vectors: Vec<u8>,
    /// One for each row under cosine, else none.
    inverse_norms: Vec<f32>,
    /// Nothing where vectors have no codes, as all of them have no direction.
    lists: OnceLock<Option<Lists>>,
}

/// What is wanted of the rows of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedRows<'a> {
    /// The rows that are left.
    pub(crate) left: &'a Sieve,
    /// Results.
    pub(crate) k: usize,
    /// Share of the true ones that is wanted; at 1 all are found.
    pub(crate) recall: f64,
    /// The distance beyond which rows are no results; infinite for none.
    pub(crate) bound: f32,
}

/// Rows that were found, and what that took.
pub(crate) struct FoundRows {
    /// Distances and rows, the nearest first.
    pub(crate) rows: Vec<(f32, u32)>,
    /// Lists and codes.
    pub(crate) scanned: Scanned,
    /// Distances that were computed from vectors.
    pub(crate) distances: u64,
}

impl ScannedRows {
    /// Memory of a row, bytes.
    pub(crate) fn row_bytes(shape: &Shape) -> u64 {
        (shape.dim * shape.dtype.size() + 4) as u64 + row_bytes(shape.dim)
    }

    /// Memory of so many rows, bytes.
    pub(crate) fn bytes(shape: &Shape, rows: u64) -> u64 {
        rows * ScannedRows::row_bytes(shape)
            + Coarse::bytes(shape.dim, LISTS)
            + Lists::bytes(shape.dim, LISTS)
    }

    /// Reads the rows of an index into memory; `None` for one whose ids are not the numbers of its rows.
    ///
    /// # Errors
    /// `Corrupt` and `Io`.
    pub(crate) fn load(index: &Index, shape: Shape) -> Result<Option<ScannedRows>> {
        let row_bytes = shape.dim * shape.dtype.size();
        let rows = index.manifest().rows as usize;
        let mut vectors = vec![0; rows * row_bytes];
        let mut is_numbered = true;
        index.for_each_row(&Quiet, &mut |row| {
            let at = row.number as usize * row_bytes;
            match vectors.get_mut(at..at + row_bytes).filter(|_| u64::from(row.number) == row.id) {
                Some(place) => place.copy_from_slice(row.vector),
                None => is_numbered = false,
            }
        })?;
        let norm = |vector| inverse_norm(shape.dtype, vector);
        let inverse_norms = match shape.metric {
            Metric::Cosine => vectors.chunks_exact(row_bytes).map(norm).collect(),
            _ => Vec::new(),
        };
        Ok(is_numbered.then(|| ScannedRows { shape, vectors, inverse_norms, lists: OnceLock::new() }))
    }

    /// Whether [`make_codes`](Self::make_codes) is still to come.
    pub(crate) fn lacks_codes(&self) -> bool {
        self.lists.get().is_none()
    }

    /// Makes the codes and lists of all rows, unless they are there.
    ///
    /// # Errors
    /// An interruption.
    pub(crate) fn make_codes(&self, progress: &dyn Progress) -> Result<()> {
        if self.lacks_codes() {
            let lists = self.coded(progress)?;
            // Whoever was faster has made the same ones.
            let _ = self.lists.set(lists);
        }
        Ok(())
    }

    fn coded(&self, progress: &dyn Progress) -> Result<Option<Lists>> {
        let row_bytes = self.shape.dim * self.shape.dtype.size();
        let rows = self.vectors.len() / row_bytes;
        let step = rows.div_ceil(LISTS * SAMPLE_OF_LIST).max(1);
        let sample: Vec<u8> = self.vectors.chunks_exact(row_bytes).step_by(step).flatten().copied().collect();
        let Some(coarse) = Coarse::of_sample(self.shape, &sample, LISTS) else { return Ok(None) };
        let mut lists = Lists::new(coarse.into());
        let mut pushing = Pushing::default();
        for (some, first) in self.vectors.chunks(CODED_AT_ONCE * row_bytes).zip((0..).step_by(CODED_AT_ONCE))
        {
            progress.check_interrupted()?;
            for (vector, row) in some.chunks_exact(row_bytes).zip(first..) {
                lists.push(vector, row, &mut pushing);
            }
        }
        lists.pack();
        self.learn(&mut lists);
        Ok(Some(lists))
    }

    /// Learns from some rows how the nearest of each are found.
    fn learn(&self, lists: &mut Lists) {
        let rows = lists.rows() as usize;
        let left = Sieve::all(rows as u32);
        for row in (0..rows).step_by((rows / PROBES).max(1)) {
            let Some(vector) = self.vector(row) else { return };
            let mut query = Query::default();
            let wanted = WantedRows { left: &left, k: PROBE_RESULTS, recall: 1.0, bound: f32::INFINITY };
            let mut nearest = Nearest::of(self, vector, &wanted);
            nearest.skip = Some(row as u64);
            let effort = Effort { recall: 1.0, k: PROBE_RESULTS, share: 1.0 };
            lists.search(&mut query, vector, effort, &mut nearest);
            let found = nearest.into_sorted();
            let results: Vec<(f32, u32)> = found.iter().map(|found| (found.distance, found.list)).collect();
            if results.len() == PROBE_RESULTS {
                lists.learn(&query, &results);
            }
        }
    }

    fn vector(&self, row: usize) -> Option<&[u8]> {
        let bytes = self.shape.dim * self.shape.dtype.size();
        self.vectors.get(row * bytes..(row + 1) * bytes)
    }

    /// The nearest rows of a query.
    pub(crate) fn search(&self, vector: &[u8], wanted: &WantedRows<'_>, query: &mut Query) -> FoundRows {
        let mut nearest = Nearest::of(self, vector, wanted);
        let rows = self.vectors.len() / (self.shape.dim * self.shape.dtype.size());
        let share = f64::from(wanted.left.count()) / rows.max(1) as f64;
        let effort = Effort { recall: wanted.recall, k: wanted.k, share };
        let scanned = match self.lists.get() {
            Some(Some(lists)) if share > FEW_SHARE => lists.search(query, vector, effort, &mut nearest),
            _ => {
                wanted.left.iter().for_each(|row| _ = nearest.score(0, row.into()));
                Scanned::default()
            }
        };
        let distances = nearest.distances;
        let rows = nearest.into_sorted().into_iter().map(|found| (found.distance, found.name)).collect();
        FoundRows { rows, scanned, distances }
    }
}

/// The nearest rows so far.
struct Nearest<'a> {
    rows: &'a ScannedRows,
    left: &'a Sieve,
    exact: Exact,
    /// A row that is no result.
    skip: Option<u64>,
    best: KSmallest<u32>,
    distances: u64,
}

impl<'a> Nearest<'a> {
    fn of(rows: &'a ScannedRows, vector: &[u8], wanted: &WantedRows<'a>) -> Nearest<'a> {
        let mut exact = Exact::default();
        exact.set(rows.shape.metric, rows.shape.dtype, rows.shape.dim, vector);
        let best = KSmallest::new(wanted.k, wanted.bound);
        Nearest { rows, left: wanted.left, exact, skip: None, best, distances: 0 }
    }

    fn into_sorted(self) -> Vec<Candidate<u32>> {
        self.best.into_sorted()
    }
}

impl Points for Nearest<'_> {
    fn limit(&self) -> f32 {
        self.best.limit()
    }

    fn score(&mut self, list: u32, row: u64) -> f32 {
        let number = row as u32;
        if self.skip == Some(row) || !self.left.has(number) {
            return f32::INFINITY;
        }
        let Some(vector) = self.rows.vector(row as usize) else { return f32::INFINITY };
        let norm = self.rows.inverse_norms.get(row as usize).copied().unwrap_or_default();
        let distance = self.exact.distance(vector, norm);
        self.distances += 1;
        self.best.offer(distance, number, list);
        distance
    }
}
