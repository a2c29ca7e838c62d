//! The memory of searches in a `grid-ivf`.

use stratann_kernel::columns::Sums;

use super::facts::GridFacts;
use crate::kinds::answers::PlannedQuery;
use crate::manifest::Manifest;

/// Queries in flight per thread: none of them ever waits for a disk.
const IN_FLIGHT: usize = 1;
/// Queries in flight where lists are divided over servers: a query waits for jobs, and others go on meanwhile.
const IN_FLIGHT_OF_SERVERS: usize = 32;

/// Queries in flight per thread.
pub(crate) fn in_flight(is_divided: bool) -> usize {
    if is_divided { IN_FLIGHT_OF_SERVERS } else { IN_FLIGHT }
}

/// The query in both bases, the distances of all centroids and their ranks, what sums may still lose, and the query for
/// codes: rotated, relative to a list, and in whole numbers.
pub(crate) fn query_bytes(dim: usize, facts: &GridFacts) -> u64 {
    let groups = facts.edges.len() as u64;
    let for_codes = if facts.code_bits > 0 { 10 * dim as u64 } else { 0 };
    for_codes + 8 * dim as u64 + 12 * u64::from(facts.lists()) + groups * (size_of::<Sums>() as u64 + 4)
}

/// Memory and reads of a query, as far as the manifest tells.
pub(crate) fn planned_query(manifest: &Manifest, facts: &GridFacts) -> PlannedQuery {
    PlannedQuery {
        in_flight: in_flight(manifest.spread.is_some()),
        tables_bytes: query_bytes(manifest.dim, facts),
        read_bytes: manifest.blocks.bytes,
    }
}
