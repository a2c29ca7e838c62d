//! The memory of searches in a `disk-graph`.

use crate::base::Base;
use crate::kinds::answers::PlannedQuery;
use crate::manifest::Manifest;

/// Queries in flight per thread: enough to keep the disk's queue long. See `decisions/` for the measurement.
pub const IN_FLIGHT: usize = 64;

/// Look-up tables of one query, and what it has visited.
pub(crate) fn query_bytes(code_bytes: usize, base: &Base) -> u64 {
    code_bytes as u64 * 512 + 4096 + stratann_core::query::visited_bytes(base.manifest.rows)
}

/// What queries take, as far as the manifest tells; rounded up where it does not.
pub(crate) fn planned_query(manifest: &Manifest) -> PlannedQuery {
    let code_bytes = manifest.build.get("code_bytes").and_then(|v| v.as_u64()).unwrap_or(0);
    PlannedQuery {
        in_flight: IN_FLIGHT,
        tables_bytes: code_bytes * 1536 + 16_384,
        read_bytes: manifest.blocks.bytes,
    }
}
