//! Loads that queries of a `remote-hnsw` share: clusters that are loaded whole, and doorbells.

use stratann_core::kinds::remote_hnsw::Located;
use stratann_core::query::Scratch;
use stratann_storage::cache::ExtentCache;

use super::live::placement::{Room, Weight, divide};
use super::open::RemoteIndex;
use super::traffic;
use crate::base::Base;
use crate::exec::BatchOptions;
use crate::kinds::shares_loads::{CachedClusters, ClusterMap, RecordedVisit, SharesLoads};

impl RemoteIndex {
    /// Runs `f` with where the clusters are, as the newest batch saw them.
    fn with_clusters<T>(&self, f: impl FnOnce(&[Located]) -> T) -> T {
        let newest = self.live.as_ref().map(|live| live.newest());
        f(newest.as_ref().map_or(&self.clusters[..], |newest| newest.located()))
    }
}

impl SharesLoads for RemoteIndex {
    fn cluster_map(&self, base: &Base) -> ClusterMap {
        let build = base.manifest.blocks.checksum_seed;
        let bytes = |located: &Located| located.base.bytes;
        self.with_clusters(|all| ClusterMap { build, bytes: all.iter().map(bytes).collect() })
    }

    fn cluster_count(&self) -> usize {
        self.with_clusters(|all| all.len())
    }

    fn cached_clusters(&self, base: &Base, cache: Option<&ExtentCache>) -> CachedClusters {
        let is_cached = |located: &Located| cache.is_some_and(|cache| cache.has(located.base));
        let build = base.manifest.blocks.checksum_seed;
        self.with_clusters(|all| CachedClusters::new(build, all.iter().map(is_cached)))
    }

    fn meta_hnsw(&self) -> &[u8] {
        self.meta()
    }

    fn doorbells_bytes(&self, options: &BatchOptions) -> u64 {
        let at_once = options.doorbells_at_once();
        let reads = self.largest_reads(options.doorbell.saturating_mul(at_once));
        let longest = reads.first().copied().unwrap_or(0);
        reads.iter().sum::<u64>().min(at_once as u64 * options.doorbell_bytes.max(longest))
    }

    fn fit_doorbells(&self, options: &BatchOptions, left_bytes: u64) -> BatchOptions {
        if options.is_doorbell_chosen || self.doorbells_bytes(options) <= left_bytes {
            return *options;
        }
        BatchOptions { doorbell_bytes: left_bytes / options.doorbells_at_once() as u64, ..*options }
    }

    fn expected_bytes(&self, base: &Base, queries: Option<&[u8]>, search: (u32, usize)) -> Vec<u64> {
        traffic::expected_bytes(self, (base.metric, base.dtype), queries, search)
    }

    fn nodes_of_clusters(&self, nodes: usize, traffic_by_cluster: &[u64]) -> Vec<u8> {
        let groups = self.clusters.chunks(2).zip(traffic_by_cluster.chunks(2));
        let weight = |(clusters, traffic): (&[Located], &[u64])| Weight {
            bytes: clusters.iter().map(|at| u64::from(at.base.bytes)).sum::<u64>()
                + self.facts.overflow_bytes(),
            traffic: traffic.iter().sum(),
        };
        let groups: Vec<Weight> = groups.map(weight).collect();
        let mut rooms = vec![Room::unlimited(0, 0); nodes.max(1)];
        rooms[0].traffic = self.facts.headers_bytes();
        let placed = divide(&groups, &rooms).places;
        (0..self.clusters.len()).map(|cluster| placed[cluster / 2].node()).collect()
    }
}

/// Distances to representatives, and the clusters that a query searched, the nearest first; `None` without a trace.
pub(crate) fn recorded_visits(scratch: &Scratch) -> Option<(u64, Vec<RecordedVisit>)> {
    let trace = scratch.remote_hnsw()?.traced()?;
    let visits = trace.visits.iter().map(|visit| RecordedVisit {
        cluster: visit.cluster,
        comparisons: visit.comparisons + u64::from(visit.fresh),
    });
    Some((trace.meta_comparisons, visits.collect()))
}
