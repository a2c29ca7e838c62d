//! The memory of searches in a `hybrid-ivf`.

use stratann_core::PAGE;
use stratann_core::kinds::hybrid_ivf::CANDIDATES_MAX;
use stratann_core::query::visited_bytes;

use super::facts::ListFacts;
use super::open::ListIndex;
use crate::base::Base;
use crate::kinds::answers::{PlannedQuery, code_query_bytes};
use crate::manifest::Manifest;

/// Queries in flight per thread: their reads are longer than those of blocks.
pub(crate) const IN_FLIGHT: usize = 16;
/// Queries in flight where memory is low: more list codes are resident instead, and eight reads under way keep a thread
/// busy.
pub(crate) const IN_FLIGHT_LOW_MEMORY: usize = 8;

/// Queries in flight per thread, by default.
pub(crate) fn in_flight(low_memory: bool) -> usize {
    if low_memory { IN_FLIGHT_LOW_MEMORY } else { IN_FLIGHT }
}

/// One query prepared for codes, and its candidates.
fn scan_bytes(manifest: &Manifest, code_bytes: usize) -> u64 {
    let candidates = 2 * CANDIDATES_MAX as u64 * 12;
    code_query_bytes(manifest, code_bytes) + candidates
}

/// One query prepared for codes, its candidates, and what it has visited. `local_beam` is the length of a beam in a
/// local graph.
pub(crate) fn query_bytes(lists: &ListIndex, base: &Base, local_beam: u64) -> u64 {
    let tables = &lists.tables;
    let local = tables.walk_bytes(local_beam) + tables.local_codes_bytes(&lists.resident());
    scan_bytes(&base.manifest, tables.shape.code_bytes) + local + visited_bytes(base.manifest.rows)
}

/// Memory and reads of a query, as far as the manifest tells; rounded up where it does not.
pub(crate) fn planned_query(manifest: &Manifest, facts: &ListFacts, low_memory: bool) -> PlannedQuery {
    PlannedQuery {
        in_flight: in_flight(low_memory),
        tables_bytes: scan_bytes(manifest, facts.code_bytes) + visited_bytes(manifest.rows),
        // A read that begins and ends within a page takes one page more.
        read_bytes: (facts.read_max as usize / PAGE + 1).next_power_of_two() * PAGE,
    }
}
