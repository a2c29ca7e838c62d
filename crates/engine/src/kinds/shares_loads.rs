//! The capability of kinds whose queries share their loads: batches are gathered, and clusters are loaded and cached
//! whole.

use stratann_core::format::seeded_checksum;
use stratann_storage::cache::ExtentCache;

use super::cluster_set::ClusterSet;
use crate::base::Base;
use crate::exec::BatchOptions;

/// The clusters of an index, for a client that sends queries where their clusters are cached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterMap {
    /// The build of the index, as a number.
    pub build: u64,
    /// Bytes of the sub-HNSW of each cluster.
    pub bytes: Vec<u32>,
}

/// Which clusters a compute node has in its cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedClusters {
    /// Equal for equal sets of one build.
    pub version: u64,
    /// The clusters.
    pub clusters: ClusterSet,
}

impl CachedClusters {
    pub(crate) fn new(build: u64, cached: impl ExactSizeIterator<Item = bool>) -> CachedClusters {
        let mut clusters = ClusterSet::new(cached.len());
        cached
            .enumerate()
            .filter(|(_, is_cached)| *is_cached)
            .for_each(|(cluster, _)| clusters.insert(cluster));
        CachedClusters { version: seeded_checksum(build, clusters.bytes()), clusters }
    }
}

/// A query's search of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedVisit {
    /// The cluster.
    pub cluster: u32,
    /// Distances to its vectors.
    pub comparisons: u64,
}

/// Answers of a kind whose queries share their loads.
pub(crate) trait SharesLoads {
    /// Returns the clusters.
    fn cluster_map(&self, base: &Base) -> ClusterMap;
    /// Returns the number of the clusters.
    fn cluster_count(&self) -> usize;
    /// Returns the clusters that are in the cache.
    fn cached_clusters(&self, base: &Base, cache: Option<&ExtentCache>) -> CachedClusters;
    /// Returns the graph by which a client chooses the clusters of a query.
    fn meta_hnsw(&self) -> &[u8];
    /// Returns the bytes of the doorbells of a search.
    fn doorbells_bytes(&self, options: &BatchOptions) -> u64;
    /// Returns `options` whose doorbells take at most `left_bytes`, unless their length was chosen.
    fn fit_doorbells(&self, options: &BatchOptions, left_bytes: u64) -> BatchOptions;
    /// Returns the bytes that a batch of queries is expected to load of each cluster. `search` has the clusters that a
    /// query visits and the queries of a batch.
    fn expected_bytes(&self, base: &Base, queries: Option<&[u8]>, search: (u32, usize)) -> Vec<u64>;
    /// Returns the memory node of each cluster where groups are divided over so many nodes, nearly as loading does,
    /// which also counts the tables of the first node.
    fn nodes_of_clusters(&self, nodes: usize, traffic_by_cluster: &[u64]) -> Vec<u8>;
}
