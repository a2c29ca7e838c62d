//! The memory of searches in a `remote-hnsw`.

use stratann_storage::cache::ExtentCache;

use super::facts::RemoteFacts;
use crate::exec::{BatchOptions, READ_EDGES_BYTES};
use crate::kinds::answers::PlannedQuery;
use crate::manifest::Manifest;

/// Queries in flight per thread where each reads for itself: one cluster after another is in memory for each of them.
pub(crate) const IN_FLIGHT: usize = 4;

/// Clusters that memory is set aside for before the parameters of a search are known.
const USUAL_PROBES: u64 = 64;
/// A cluster that a query waits for: its number, its read and its want.
const PENDING_BYTES: u64 = 128;

/// Part of the clusters that the usual cache holds (d-HNSW §4).
const CACHED_SHARE: u64 = 10;
/// Least clusters that it holds.
const CACHED_LEAST: u64 = 8;

/// Bytes of the usual cache: a tenth of the clusters, as in the paper.
pub(crate) fn usual_cache_bytes(facts: &RemoteFacts) -> u64 {
    let few = CACHED_LEAST * (facts.cluster_bytes_max + ExtentCache::bytes_of_blocks(1, 0));
    let all = cache_bytes(facts);
    (all / CACHED_SHARE).max(few).min(all)
}

/// Bytes of a cache that holds all clusters, with what each of them costs besides.
fn cache_bytes(facts: &RemoteFacts) -> u64 {
    // A cache evicts before it is quite full.
    ExtentCache::bytes_of_blocks(facts.clusters(), 0) + facts.cluster_bytes + facts.cluster_bytes / 16
}

/// The clusters that a query waits for, and the tables of a step.
pub(crate) fn query_bytes(facts: &RemoteFacts) -> u64 {
    USUAL_PROBES.min(facts.clusters().into()) * 2 * PENDING_BYTES + step_bytes(facts)
}

/// A bit for each member of the largest cluster, and a beam.
fn step_bytes(facts: &RemoteFacts) -> u64 {
    facts.sizes.max / 8 + (8 << 10)
}

/// Memory and reads of a query, as far as the manifest tells.
pub(crate) fn planned_query(manifest: &Manifest, facts: &RemoteFacts) -> PlannedQuery {
    PlannedQuery {
        in_flight: IN_FLIGHT,
        tables_bytes: query_bytes(facts),
        read_bytes: read_bytes_max(facts).max(manifest.blocks.bytes),
    }
}

/// Bytes of the doorbells of a search, as far as the manifest tells: as if all clusters were as large as the largest.
pub(crate) fn planned_doorbells_bytes(facts: &RemoteFacts, options: &BatchOptions) -> u64 {
    let beside = facts.overflow_bytes() + READ_EDGES_BYTES;
    let all = facts.cluster_bytes + u64::from(facts.clusters()) * beside;
    let (read, at_once) = (facts.cluster_bytes_max + beside, options.doorbells_at_once() as u64);
    let by_length = (at_once * options.doorbell as u64).saturating_mul(read).min(all);
    by_length.min(at_once * options.doorbell_bytes.max(read))
}

/// Bytes of the longest read: the largest cluster, which may begin and end within a page.
pub(crate) fn read_bytes_max(facts: &RemoteFacts) -> usize {
    let longest = facts.cluster_bytes_max.max(facts.overflow_bytes());
    (longest as usize + stratann_core::PAGE).next_multiple_of(stratann_core::PAGE)
}
