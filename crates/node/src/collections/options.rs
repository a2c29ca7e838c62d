//! How a collection is searched, when points in memory are written into segments, and what that may take.

use std::sync::Arc;

use stratann_engine::search::SieveWay;
use stratann_payload::Predicate;

use super::delta::State;
use super::error::{Error, Result};
use super::spec::Specs;

/// How a collection is searched.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchOptions {
    /// Results of each query.
    pub k: usize,
    /// Share of the true k nearest that the whole collection is asked for, above 0 and up to 1.
    pub recall: f64,
    /// Returns only points that match.
    pub filter: Option<Arc<Predicate>>,
    /// Name of the vectors that are searched; `None` in a collection whose vectors have no names.
    pub vector_name: Option<String>,
    /// Returns the payloads of results with them.
    pub with_payload: bool,
    /// Returns the vectors of results with them, as they were given.
    pub with_vectors: bool,
    /// Threads that search segments.
    pub threads: usize,
    /// Has each segment reach the recall by itself, as if it were searched alone; to compare.
    pub each_part_alone: bool,
    /// How segments find the points that match, whatever it costs; `None` for the cheapest way. To compare.
    pub way: Option<SieveWay>,
    /// Computes the distances of all points in memory, without their codes: to compare.
    pub scan_all_in_memory: bool,
}

impl Default for SearchOptions {
    fn default() -> SearchOptions {
        SearchOptions {
            k: 10,
            recall: 0.95,
            filter: None,
            vector_name: None,
            with_payload: false,
            with_vectors: false,
            threads: 1,
            each_part_alone: false,
            way: None,
            scan_all_in_memory: false,
        }
    }
}

impl SearchOptions {
    pub(super) fn check(&self) -> Result<()> {
        if !(self.recall > 0.0 && self.recall <= 1.0) {
            return Err(Error::bad_input(format!(
                "a recall of {}; give a number above 0 and up to 1",
                self.recall
            )));
        }
        if self.threads == 0 {
            return Err(Error::bad_input("0 threads; give one or more"));
        }
        Ok(())
    }
}

/// How segments are made and kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentOptions {
    /// Points in memory from which on a checkpoint writes them into a segment.
    pub checkpoint_rows: u64,
    /// Bytes of their vectors and payloads from which on it does.
    pub checkpoint_bytes: u64,
    /// The same for a collection without segments, whose searches compare all points.
    pub first_rows: u64,
    /// Most rows of a segment that is scanned, but for checkpoints. Building a graph of so many takes far more than
    /// searches gain by it before a merge takes it.
    pub scanned_rows: u64,
    /// Newer payloads of a segment from which on they are written into it, if one row in twenty has one.
    pub fold_payloads: u64,
    /// Checkpoints that may wait, before changes are refused.
    pub waiting_max: u64,
    /// Whether threads of the process make checkpoints and merges. Without them only
    /// [`Collection::compact`](super::Collection::compact) does.
    pub in_background: bool,
    /// Threads of a build.
    pub threads: usize,
    /// Memory of a build; `None` for no limit.
    pub build_bytes: Option<u64>,
    /// Whether the graph of a merged segment grows from that of the largest of its segments. Otherwise it is built as a
    /// whole; to compare.
    pub grows_graphs: bool,
}

impl Default for SegmentOptions {
    fn default() -> SegmentOptions {
        SegmentOptions {
            checkpoint_rows: 65_536,
            checkpoint_bytes: 16 << 20,
            first_rows: 16_000,
            scanned_rows: 262_144,
            fold_payloads: 64,
            waiting_max: 4,
            in_background: true,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            build_bytes: None,
            grows_graphs: true,
        }
    }
}

impl SegmentOptions {
    /// Most rows in memory, dead ones included.
    pub(super) fn full_rows(&self) -> u64 {
        self.waiting_max.saturating_mul(self.checkpoint_rows)
    }

    /// Whether the points in memory are enough for a segment.
    pub(super) fn is_checkpoint_due(&self, specs: &Specs, state: &State) -> bool {
        let rows = state.rows();
        let rows_max = if state.segments.is_empty() { self.first_rows } else { self.checkpoint_rows };
        let bytes = rows.saturating_mul(specs.row_bytes() as u64).saturating_add(state.payload_bytes());
        rows >= rows_max || bytes >= self.checkpoint_bytes
    }
}
