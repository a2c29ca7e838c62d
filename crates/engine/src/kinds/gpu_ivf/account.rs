//! The memory of searches in a `gpu-ivf`.

use super::facts::GpuFacts;
use crate::kinds::answers::{PlannedQuery, code_query_bytes};
use crate::manifest::Manifest;

/// Queries in flight per thread: enough to keep the disk busy while each waits for one mini-batch after another.
pub(crate) const IN_FLIGHT: usize = 32;

/// Mini-batch that memory is set aside for before the parameters of a search are known.
const USUAL_BATCH: u32 = 16;

/// Reads of a query that are under way at once, whatever its width: those of a mini-batch.
pub(crate) fn reads_at_once(batch: Option<u32>) -> u32 {
    batch.unwrap_or(USUAL_BATCH)
}

/// One query prepared for codes, ids of its lists' members, and candidates. Lists may be larger than the mean.
pub(crate) fn query_bytes(manifest: &Manifest, code_bytes: usize, facts: &GpuFacts) -> u64 {
    const PROBES: u64 = 128;
    let members = PROBES * facts.sizes.mean.ceil() as u64;
    let visited = stratann_core::query::visited_bytes(facts.sizes.count);
    // Ids, distances, keys and cells, once for all queries of a thread.
    let ranking = members * (4 + 4 + 8 + 24) / IN_FLIGHT as u64;
    code_query_bytes(manifest, code_bytes) + visited + 4 * members + ranking + (8 << 10)
}

/// Memory and reads of a query, as far as the manifest tells.
pub(crate) fn planned_query(manifest: &Manifest, facts: &GpuFacts) -> PlannedQuery {
    let code_bytes = manifest.build.get("code_bytes").and_then(|v| v.as_u64()).unwrap_or(32) as usize;
    PlannedQuery {
        in_flight: IN_FLIGHT,
        tables_bytes: query_bytes(manifest, code_bytes + 8, facts),
        read_bytes: manifest.blocks.bytes,
    }
}
