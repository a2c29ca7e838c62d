//! What is asked of a kind whose queries share their loads, and whose index may be in memory nodes.

use std::sync::Arc;

use stratann_core::format::seeded_checksum;
use stratann_core::plan::remote_hnsw::Located;
use stratann_storage::cache::ExtentCache;
use stratann_storage::remote_memory::RemoteSource;
use stratann_storage::{Progress, Result};

use super::KindIndex;
use super::remote_hnsw::cluster_set::ClusterSet;
use super::remote_hnsw::linking::{self, Linking, LinkingOptions};
use super::remote_hnsw::live::LiveRegion;
use super::remote_hnsw::live::changes::{Changes, refused};
use super::remote_hnsw::live::inspect::{self, MemoryReport};
use super::remote_hnsw::live::open::find;
use super::remote_hnsw::live::placement::{Room, Weight, divide};
use super::remote_hnsw::open::RemoteIndex;
use super::remote_hnsw::traffic;
use crate::base::Base;
use crate::exec::GatherOptions;
use crate::manifest::Manifest;

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
    fn new(build: u64, cached: impl ExactSizeIterator<Item = bool>) -> CachedClusters {
        let mut clusters = ClusterSet::new(cached.len());
        cached
            .enumerate()
            .filter(|(_, is_cached)| *is_cached)
            .for_each(|(cluster, _)| clusters.insert(cluster));
        CachedClusters { version: seeded_checksum(build, clusters.bytes()), clusters }
    }
}

/// What memory nodes hold.
pub(crate) struct HeldByNodes<F> {
    pub(crate) manifest: Manifest,
    /// Opens the kind, once there is a base for it.
    pub(crate) open: F,
}

impl KindIndex {
    /// Runs `f` with where the clusters are, as the newest batch saw them; `None` of a kind whose queries read for
    /// themselves.
    fn with_clusters<T>(&self, f: impl FnOnce(&[Located]) -> T) -> Option<T> {
        let KindIndex::RemoteHnsw(own) = self else { return None };
        let newest = own.live.as_ref().map(|live| live.newest());
        let located = newest.as_ref().map_or(&own.clusters[..], |newest| newest.located());
        Some(f(located))
    }

    /// The clusters; `None` of a kind without any that are cached whole.
    pub(crate) fn cluster_map(&self, base: &Base) -> Option<ClusterMap> {
        let build = base.manifest.blocks.checksum_seed;
        let bytes = |located: &Located| located.base.bytes;
        self.with_clusters(|all| ClusterMap { build, bytes: all.iter().map(bytes).collect() })
    }

    /// Number of the clusters; 0 of a kind without any that are cached whole.
    pub(crate) fn cluster_count(&self) -> usize {
        self.with_clusters(|all| all.len()).unwrap_or(0)
    }

    /// The clusters that are in the cache; `None` as of [`KindIndex::cluster_map`].
    pub(crate) fn cached_clusters(&self, base: &Base, cache: Option<&ExtentCache>) -> Option<CachedClusters> {
        let is_cached = |located: &Located| cache.is_some_and(|cache| cache.has(located.base));
        let build = base.manifest.blocks.checksum_seed;
        self.with_clusters(|all| CachedClusters::new(build, all.iter().map(is_cached)))
    }

    /// The meta-HNSW; `None` of a kind without one.
    pub(crate) fn meta_hnsw(&self) -> Option<&[u8]> {
        if let KindIndex::RemoteHnsw(own) = self { Some(own.meta()) } else { None }
    }

    /// Bytes of the doorbells of a search; 0 of a kind whose queries read for themselves.
    pub(crate) fn doorbells_bytes(&self, options: &GatherOptions) -> u64 {
        match self {
            KindIndex::RemoteHnsw(own) => own.doorbells_bytes(options),
            _ => 0,
        }
    }

    /// `options` whose doorbells take at most `left_bytes`, unless their length was chosen.
    pub(crate) fn fit_doorbells(&self, options: &GatherOptions, left_bytes: u64) -> GatherOptions {
        match self {
            KindIndex::RemoteHnsw(own) => own.fit_doorbells(options, left_bytes),
            _ => *options,
        }
    }

    /// Bytes that a batch of queries is expected to load of each cluster; `None` of a kind without any.
    pub(crate) fn expected_bytes(
        &self,
        base: &Base,
        queries: Option<&[u8]>,
        search: (u32, usize),
    ) -> Option<Vec<u64>> {
        let KindIndex::RemoteHnsw(own) = self else { return None };
        Some(traffic::expected_bytes(own, (base.metric, base.dtype), queries, search))
    }

    /// Measures what linking fresh records would cost and save; `None` of a kind without any.
    ///
    /// # Errors
    /// As [`linking::measure`].
    pub(crate) fn measure_linking(
        &self,
        base: &Base,
        options: &LinkingOptions<'_>,
        progress: &dyn Progress,
    ) -> Result<Option<Vec<Linking>>> {
        let KindIndex::RemoteHnsw(own) = self else { return Ok(None) };
        linking::measure(base, own, options, progress).map(Some)
    }

    /// The memory node of each cluster where groups are divided over so many nodes, nearly as loading them does, which
    /// also counts the tables of the first node. Empty of a kind without memory nodes.
    pub(crate) fn nodes_of_clusters(&self, nodes: usize, traffic_by_cluster: &[u64]) -> Vec<u8> {
        let KindIndex::RemoteHnsw(own) = self else { return Vec::new() };
        let groups = own.clusters.chunks(2).zip(traffic_by_cluster.chunks(2));
        let weight = |(clusters, traffic): (&[Located], &[u64])| Weight {
            bytes: clusters.iter().map(|at| u64::from(at.base.bytes)).sum::<u64>()
                + own.facts.overflow_bytes(),
            traffic: traffic.iter().sum(),
        };
        let groups: Vec<Weight> = groups.map(weight).collect();
        let mut rooms = vec![Room::unlimited(0, 0); nodes.max(1)];
        rooms[0].traffic = own.facts.headers_bytes();
        let placed = divide(&groups, &rooms).places;
        (0..own.clusters.len()).map(|cluster| placed[cluster / 2].node()).collect()
    }

    /// What memory nodes hold.
    ///
    /// # Errors
    /// Nodes that hold no index, or parts of several.
    pub(crate) fn of_memory(
        source: &Arc<RemoteSource>,
    ) -> Result<HeldByNodes<impl FnOnce(&Base) -> Result<KindIndex> + use<>>> {
        let found = find(source)?;
        let (meta, live) = (found.meta, found.live);
        let open =
            move |base: &Base| Ok(KindIndex::RemoteHnsw(Box::new(RemoteIndex::of_memory(base, meta, live)?)));
        Ok(HeldByNodes { manifest: found.manifest, open })
    }

    /// Checks all that the memory nodes of a live index hold; `None` of an index in a folder.
    ///
    /// # Errors
    /// Nodes that do not answer; an interruption.
    pub(crate) fn verify_memory(&self, base: &Base, progress: &dyn Progress) -> Option<Result<MemoryReport>> {
        let KindIndex::RemoteHnsw(own) = self else { return None };
        own.live.as_ref().map(|live| inspect::check(base, own, live, progress))
    }

    /// Where it is in memory nodes, and changes; `None` of an index in a folder.
    pub(crate) fn live(&self) -> Option<&LiveRegion> {
        if let KindIndex::RemoteHnsw(own) = self { own.live.as_ref() } else { None }
    }

    /// What inserts and deletes.
    ///
    /// # Errors
    /// Another kind, or an index in a folder.
    pub(crate) fn changes<'a>(&'a self, base: &'a Base) -> Result<Changes<'a>> {
        if let KindIndex::RemoteHnsw(own) = self { Changes::new(base, own) } else { Err(refused(base)) }
    }
}
