//! An open `remote-hnsw`: its meta-HNSW and where its clusters are. Vectors stay where they are until they are needed.

use std::os::unix::fs::FileExt;

use stratann_core::format::fresh::record_bytes;
use stratann_core::format::hnsw::{HnswLayout, HnswName, SubHnsw};
use stratann_core::format::region::{DESCRIPTOR_BYTES, Descriptor, SUPERBLOCK_BYTES, Superblock};
use stratann_core::kinds::KindView;
use stratann_core::kinds::remote_hnsw::{Located, View};
use stratann_kernel::Metric;
use stratann_storage::budget::Account;
use stratann_storage::cache::ExtentCache;
use stratann_storage::{Error, Result};

use super::facts::RemoteFacts;
use super::live::LiveRegion;
use super::{account, calibration, sieved};
use crate::base::{Base, read_role};
use crate::curve::Grid;
use crate::exec::READ_EDGES_BYTES;
use crate::files;
use crate::kinds::answers::{ExactCost, SievePlan, SievedQuery};
use crate::kinds::questions::OpenKind;
use crate::kinds::section::Section;
use crate::kinds::shares_loads::SharesLoads;

/// See the module.
pub(crate) struct RemoteIndex {
    pub(crate) facts: RemoteFacts,
    pub(crate) layout: HnswLayout,
    meta: Vec<u8>,
    build: u64,
    pub(crate) clusters: Vec<Located>,
    /// The number of the first member of each cluster, and the number of all members.
    pub(crate) first: Vec<u32>,
    /// The part in memory nodes, which changes.
    pub(crate) live: Option<LiveRegion>,
}

/// The layout of the sub-HNSWs of an index.
pub(crate) fn layout(metric: Metric, vector_bytes: usize) -> HnswLayout {
    HnswLayout { vector_bytes, norms: metric == Metric::Cosine }
}

/// Whether these are the bytes of the meta-HNSW.
fn check_meta(layout: &HnswLayout, build: u64, facts: &RemoteFacts, meta: &[u8]) -> Option<()> {
    let is_sound = SubHnsw::verify(layout, &HnswName::meta(build), meta);
    let own = SubHnsw::open(layout, meta).filter(|_| is_sound)?;
    (own.members() == facts.clusters()).then_some(())
}

impl RemoteIndex {
    /// Reads and checks what lies in RAM: the meta-HNSW, and the tables at the start of the region.
    ///
    /// # Errors
    /// A file that is missing or damaged.
    pub(crate) fn open(base: &Base) -> Result<RemoteIndex> {
        let (folder, manifest) = (&base.folder, &base.manifest);
        let facts = manifest.own(folder, Section::remote)?.facts.clone();
        let layout = layout(base.metric, base.row_bytes());
        let build = manifest.blocks.checksum_seed;
        let (path, meta) = read_role(folder, manifest, files::META)?;
        check_meta(&layout, build, &facts, &meta).ok_or_else(|| files::senseless(&path))?;
        let superblock = read_superblock(base, &facts)?;
        let (clusters, first) = read_clusters(base, &superblock)?;
        if first.last() != Some(&(manifest.rows as u32)) {
            return Err(files::senseless(&base.blocks_path));
        }
        Ok(RemoteIndex { facts, layout, meta, build, clusters, first, live: None })
    }

    /// Opens the index that memory nodes hold.
    ///
    /// # Errors
    /// A meta-HNSW that is damaged, and headers that cannot be read.
    pub(crate) fn of_memory(base: &Base, meta: Vec<u8>, live: LiveRegion) -> Result<RemoteIndex> {
        let facts = base.manifest.own(&base.folder, Section::remote)?.facts.clone();
        let layout = layout(base.metric, base.row_bytes());
        let build = base.manifest.blocks.checksum_seed;
        check_meta(&layout, build, &facts, &meta).ok_or_else(|| files::senseless(&base.blocks_path))?;
        let (clusters, _) = live.with_session(|session| session.begin_batch(&live))?;
        let (clusters, first) = (clusters.located().to_vec(), Vec::new());
        Ok(RemoteIndex { facts, layout, meta, build, clusters, first, live: Some(live) })
    }

    /// The part of the index that queries see.
    pub(crate) fn view(&self) -> View<'_> {
        View {
            layout: &self.layout,
            meta: &self.meta,
            build: self.build,
            clusters: &self.clusters,
            first: &self.first,
            tombstones: &[],
            marks: &[],
            shares: &[],
            id_sieve: None,
        }
    }

    /// The meta-HNSW.
    pub(crate) fn meta(&self) -> &[u8] {
        &self.meta
    }

    /// The build of the index, as a number.
    pub(crate) fn build(&self) -> u64 {
        self.build
    }

    /// Members of a cluster; 1 where these are not known.
    pub(crate) fn members(&self, cluster: u32) -> u64 {
        let at = cluster as usize;
        let count = self.first.get(at..at + 2).map_or(1, |range| range[1] - range[0]);
        u64::from(count)
    }

    /// Bytes of the `count` longest reads, the longest first.
    pub(super) fn largest_reads(&self, count: usize) -> Vec<u64> {
        // Where others insert, a cluster may come with all fresh records that its group has room for.
        let newest = self.live.as_ref().map(LiveRegion::newest);
        let clusters = newest.as_ref().map(|newest| newest.located()).filter(|all| !all.is_empty());
        let fresh_bytes = if newest.is_some() { self.facts.overflow_bytes() } else { 0 };
        let bytes = |cluster: &Located| u64::from(cluster.base.bytes) + fresh_bytes + READ_EDGES_BYTES;
        let mut all: Vec<u64> = clusters.unwrap_or(&self.clusters).iter().map(bytes).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.truncate(count);
        all
    }
}

impl OpenKind for RemoteIndex {
    fn view<'a>(&'a self, _: &'a Base) -> KindView<'a> {
        KindView::RemoteHnsw(RemoteIndex::view(self))
    }

    fn account(&self, account: &mut Account) {
        account.add("meta-HNSW", self.meta.len() as u64);
        account.add("table of clusters", self.facts.table_bytes());
    }

    fn cache(&self, _: &Base, budget_bytes: u64) -> Option<ExtentCache> {
        let clusters = u64::from(self.facts.clusters()).max(1);
        ExtentCache::new(budget_bytes, self.facts.cluster_bytes / clusters)
    }

    fn plan_sieve(&self, _: &Base, query: &SievedQuery<'_>) -> Option<SievePlan> {
        sieved::plan(self, query)
    }

    fn in_flight(&self) -> usize {
        account::IN_FLIGHT
    }

    fn read_bytes_max(&self, _: &Base) -> usize {
        account::read_bytes_max(&self.facts)
    }

    fn query_tables_bytes(&self, _: &Base, _: u64) -> u64 {
        account::query_bytes(&self.facts)
    }

    fn exact_cost(&self, _: &Base) -> ExactCost {
        let bytes = self.clusters.iter().map(|cluster| u64::from(cluster.base.bytes)).sum();
        ExactCost {
            count: self.facts.clusters().into(),
            unit: "clusters",
            bytes,
            vector_bytes_max: 0,
            is_shared: false,
        }
    }

    fn grid(&self, _: &Base, k: u32, _: Option<&str>) -> Grid {
        calibration::grid(k, &self.facts)
    }

    fn shares_loads(&self) -> Option<&dyn SharesLoads> {
        Some(self)
    }
}

/// Reads the superblock of the image.
///
/// # Errors
/// One that is damaged, or of another build than the manifest.
pub(crate) fn read_superblock(base: &Base, facts: &RemoteFacts) -> Result<Superblock> {
    let bytes = read_at(base, 0, 2 * SUPERBLOCK_BYTES as usize)?;
    let found = Superblock::newest_of_image(&bytes).filter(|own| {
        own.build == base.manifest.blocks.checksum_seed
            && own.clusters == u64::from(facts.clusters())
            && own.record_bytes == record_bytes(base.row_bytes()) as u64
            && own.end == u64::from(base.manifest.blocks.count) * base.manifest.blocks.bytes as u64
            && (own.node, own.nodes) == (0, 1)
    });
    found.ok_or_else(|| files::senseless(&base.blocks_path))
}

/// Places of the clusters, and the numbers of their first members.
fn read_clusters(base: &Base, superblock: &Superblock) -> Result<(Vec<Located>, Vec<u32>)> {
    let bytes =
        read_at(base, superblock.descriptors_at, (2 * superblock.groups * DESCRIPTOR_BYTES) as usize)?;
    let damaged = |group: u32| {
        Error::corrupt(format!(
            "{}: the descriptor of group {group} is damaged; restore the file or build the index again",
            base.blocks_path.display()
        ))
    };
    let (mut clusters, mut first) = (Vec::new(), vec![0u32]);
    for (group, bytes) in (0..).zip(bytes.chunks_exact(2 * DESCRIPTOR_BYTES as usize)) {
        let found = Descriptor::decode(superblock.build, group, 0, &bytes[..DESCRIPTOR_BYTES as usize]);
        let descriptor = found.ok_or_else(|| damaged(group))?;
        let end = descriptor.at.offset().saturating_add(descriptor.bytes(superblock.record_bytes));
        if end > superblock.end {
            return Err(damaged(group));
        }
        for side in 0..2 {
            if clusters.len() as u64 == superblock.clusters {
                break;
            }
            clusters.push(Located::new(&descriptor, group, (side, 0), superblock.record_bytes));
            let before = first.last().copied().unwrap_or(0);
            let members = descriptor.clusters[side].members;
            first.push(before.checked_add(members).ok_or_else(|| damaged(group))?);
        }
    }
    Ok((clusters, first))
}

/// Reads bytes of the image past the page cache.
fn read_at(base: &Base, offset: u64, bytes: usize) -> Result<Vec<u8>> {
    use stratann_core::query::{Extent, StoreId};
    let at = Extent { store: StoreId(0), offset, bytes: bytes as u32 };
    let mut out = Vec::new();
    base.read_extent(&[], at, &mut out).map_err(|_| {
        let file = match base.blocks_file() {
            Ok(file) => file,
            Err(why) => return why,
        };
        let length = file.metadata().map_or(0, |m| m.len());
        match file.read_at(&mut [0], 0).err() {
            Some(e) => Error::io("reading", &base.blocks_path, &e),
            None => Error::corrupt(format!(
                "{} has {length} bytes and ends within its tables; restore it or build the index again",
                base.blocks_path.display()
            )),
        }
    })?;
    Ok(out)
}
