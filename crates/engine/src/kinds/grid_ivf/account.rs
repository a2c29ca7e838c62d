//! The memory of searches in a `grid-ivf`.

use stratann_kernel::columns::Sums;

use super::super::PlannedQuery;
use super::facts::GridFacts;
use crate::manifest::Manifest;

/// Queries in flight per thread: none of them ever waits for a disk.
pub(crate) const IN_FLIGHT: usize = 1;

/// The query in both bases, the distances of all centroids and their ranks, and what sums may still lose.
pub(crate) fn query_bytes(dim: usize, facts: &GridFacts) -> u64 {
    let groups = facts.edges.len() as u64;
    8 * dim as u64 + 12 * u64::from(facts.lists()) + groups * (size_of::<Sums>() as u64 + 4)
}

/// What queries take, as far as the manifest tells.
pub(crate) fn planned_query(manifest: &Manifest, facts: &GridFacts) -> PlannedQuery {
    PlannedQuery {
        in_flight: IN_FLIGHT,
        tables_bytes: query_bytes(manifest.dim, facts),
        read_bytes: manifest.blocks.bytes,
    }
}
