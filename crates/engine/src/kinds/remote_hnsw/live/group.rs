//! Builds the sub-HNSWs of a group anew, of those that it had and of its fresh records (d-HNSW §3.2).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use stratann_core::build::hash;
use stratann_core::build::hnsw::HnswOptions;
use stratann_core::format::hnsw::{HnswLayout, HnswName, HnswShape, SubHnsw, seed};
use stratann_core::format::region::{ClusterPlace, Descriptor, count_bits};
use stratann_core::remote_protocol::{Contents, Groups, NewGroup};
use stratann_kernel::distance::{inverse_norm, l2_f32};
use stratann_kernel::{DType, Metric};
use stratann_storage::{Error, Progress, Result};

use crate::base::Base;
use crate::kinds::remote_hnsw::build::graph::{Cluster, Grown, grown, sub_hnsw};
use crate::kinds::remote_hnsw::facts::RemoteFacts;
use crate::stages::space::Space;

/// Bytes of an id, at most.
const ID_BYTES: usize = 8;

/// Time for which a rebuild leaves the processor to others. Writers wait for it, and where many threads are busy each
/// turn that it leaves takes milliseconds.
const YIELDING: Duration = Duration::from_millis(100);

/// Leaves the processor, after every few vectors, to whoever waits for it. A thread of low priority may keep it for
/// milliseconds.
struct Yielding(Instant);

impl Progress for Yielding {
    fn stage(&self, _: &str, _: u64, _: &str) {}

    fn advance(&self, _: u64) {
        if self.0.elapsed() < YIELDING {
            std::thread::yield_now();
        }
    }

    fn note(&self, _: &str) {}

    fn interrupted(&self) -> bool {
        false
    }
}

/// Builder of the groups of an index, as its manifest says.
pub(crate) struct GroupBuilder {
    space: Space,
    metric: Metric,
    dtype: DType,
    layout: HnswLayout,
    m: usize,
    ef_construction: usize,
    seed: u64,
    build: u64,
    id_bytes: usize,
    capacity: u32,
    record_bytes: u64,
    clusters: u32,
    origin: String,
}

impl GroupBuilder {
    /// The builder of the groups of an open index.
    ///
    /// # Errors
    /// A manifest that does not say how long the beam of its builds was.
    pub(crate) fn new(base: &Base, facts: &RemoteFacts, layout: HnswLayout) -> Result<GroupBuilder> {
        let manifest = &base.manifest;
        let origin = base.folder.display().to_string();
        let ef = manifest.build.get("ef_construction").and_then(|ef| ef.as_u64()).ok_or_else(|| {
            Error::corrupt(format!(
                "{origin}: the manifest has no ef_construction; build the index again, and load it"
            ))
        })?;
        Ok(GroupBuilder {
            space: Space::of_floats(base.metric, base.dtype, manifest.dim, facts.squared_norm_max),
            metric: base.metric,
            dtype: base.dtype,
            layout,
            m: facts.m as usize,
            ef_construction: ef as usize,
            seed: manifest.seed(),
            build: manifest.blocks.checksum_seed,
            id_bytes: manifest.blocks.id_bytes,
            capacity: facts.capacity,
            record_bytes: facts.record_bytes,
            clusters: facts.clusters(),
            origin,
        })
    }

    fn options(&self, cluster: u32) -> HnswOptions {
        let seed = hash(self.seed, 31, u64::from(cluster));
        HnswOptions { m: self.m, ef_construction: self.ef_construction, seed, upper_layers: None }
    }

    /// The representatives as floats, one after another.
    pub(crate) fn representatives(&self, meta: &SubHnsw<'_>) -> Vec<f32> {
        let dim = self.space.point_dim();
        let mut floats = vec![0f32; meta.members() as usize * dim];
        for (member, point) in (0..).zip(floats.chunks_exact_mut(dim)) {
            self.space.floats(meta.vector(member), point);
        }
        floats
    }

    /// The cluster of a vector: that of the nearest representative, as in a build. `point` is reusable memory.
    pub(crate) fn cluster_of(&self, representatives: &[f32], vector: &[u8], point: &mut Vec<f32>) -> u32 {
        let dim = self.space.point_dim();
        point.resize(dim, 0.0);
        self.space.floats(vector, point);
        let distance = |other: &[f32]| l2_f32(point, bytemuck::cast_slice(other));
        let near = (0..).zip(representatives.chunks_exact(dim).map(distance));
        near.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(cluster, _)| cluster)
    }

    /// The layout of its sub-HNSWs.
    pub(crate) fn layout(&self) -> &HnswLayout {
        &self.layout
    }

    /// Factor that makes a vector a unit vector; 1 but under cosine.
    pub(crate) fn inverse_norm(&self, vector: &[u8]) -> f32 {
        if self.layout.norms { inverse_norm(self.dtype, vector) } else { 1.0 }
    }

    /// Bytes that a group takes once its fresh records are in its sub-HNSWs, if none is deleted but those with marks.
    pub(crate) fn group_bytes(&self, number: u32, groups: &Groups) -> u64 {
        let group = groups.groups.get(number as usize).copied().unwrap_or_default();
        let (own, marks) = (&group.descriptor, groups.marks_of(number));
        let used = group.reservations.disjoint(own.capacity);
        // Others may be inserted before the group is sealed.
        let more = own.capacity - used[0] - used[1];
        let mut bytes = u64::from(more) * self.cluster_bytes(2 * number, 1).saturating_sub(64);
        let mut clusters = [ClusterPlace::default(); 2];
        for (side, used) in used.into_iter().enumerate() {
            let members = own.clusters[side].members;
            let marked = count_bits(marks, own.member_mark(side), members.into())
                + count_bits(marks, own.slot_mark(side, used), used.into());
            clusters[side].members = members.saturating_add(used).saturating_sub(marked as u32);
            bytes += self.cluster_bytes(2 * number + side as u32, clusters[side].members);
        }
        let next = Descriptor { capacity: self.capacity + more, clusters, ..Descriptor::default() };
        bytes + u64::from(self.capacity) * self.record_bytes + next.marks(self.record_bytes).bytes
    }

    fn cluster_bytes(&self, cluster: u32, members: u32) -> u64 {
        if members == 0 {
            return 0;
        }
        let upper = self.options(cluster).upper_counts(members as usize);
        let shape = HnswShape { members: members as usize, m: self.m, id_bytes: ID_BYTES, upper: &upper };
        self.layout.bytes(&shape) as u64
    }

    /// The next version of a group.
    ///
    /// # Errors
    /// A sub-HNSW that is damaged, which is named.
    pub(crate) fn build(&self, group: u32, contents: &Contents) -> Result<NewGroup> {
        let mut built = NewGroup { capacity: self.capacity, ..NewGroup::default() };
        for side in 0..2 {
            let cluster = 2 * group + side as u32;
            if cluster < self.clusters {
                (built.clusters[side], built.members[side]) = self.build_cluster(cluster, contents)?;
            }
        }
        Ok(built)
    }

    /// The sub-HNSW of one cluster, and its members. One without members has no bytes.
    fn build_cluster(&self, cluster: u32, contents: &Contents) -> Result<(Vec<u8>, u32)> {
        let (mut ids, mut vectors) = (Vec::new(), Vec::new());
        let old = &contents.clusters[cluster as usize & 1];
        if !old.is_empty() {
            let old = self.open(cluster, contents.version.wrapping_sub(1), old)?;
            for member in 0..old.members() {
                let id = old.external_id(member);
                if contents.keeps(cluster as usize & 1, member, id) {
                    ids.push(id);
                    vectors.extend_from_slice(old.vector(member));
                }
            }
        }
        for record in contents.records.iter().filter(|record| record.cluster == cluster) {
            ids.push(record.id);
            vectors.extend_from_slice(&record.vector);
        }
        if ids.is_empty() {
            return Ok((Vec::new(), 0));
        }
        let is_wide = ids.iter().any(|&id| id > u64::from(u32::MAX));
        let own = Cluster {
            vectors: &vectors,
            vector_bytes: self.layout.vector_bytes,
            ids: &ids,
            id_bytes: if is_wide { ID_BYTES } else { self.id_bytes },
            name: self.name(cluster, contents.version),
        };
        let kind = (self.metric, self.dtype);
        let bytes = sub_hnsw(&self.space, kind, &own, &self.options(cluster), &Yielding(Instant::now()))?;
        Ok((bytes, ids.len() as u32))
    }

    /// The sub-HNSWs of the first `sizes` members of another one, ascending numbers.
    pub(crate) fn grown(&self, whole: &SubHnsw<'_>, sizes: &[u32]) -> BTreeMap<u32, Grown> {
        let members = 0..whole.members();
        let ids: Vec<u64> = members.clone().map(|member| whole.external_id(member)).collect();
        let vectors: Vec<u8> = members.flat_map(|member| whole.vector(member)).copied().collect();
        let own = Cluster {
            vectors: &vectors,
            vector_bytes: self.layout.vector_bytes,
            ids: &ids,
            id_bytes: self.id_bytes,
            name: self.name(whole.cluster, whole.version),
        };
        let kind = (self.metric, self.dtype);
        grown(&self.space, kind, &own, &self.options(whole.cluster), sizes)
    }

    fn name(&self, cluster: u32, version: u32) -> HnswName {
        let seed = seed(self.build, cluster / 2, version, cluster as usize & 1);
        HnswName { cluster, version, seed }
    }

    fn open<'a>(&self, cluster: u32, version: u32, bytes: &'a [u8]) -> Result<SubHnsw<'a>> {
        let is_sound = SubHnsw::verify(&self.layout, &self.name(cluster, version), bytes);
        let found = SubHnsw::open(&self.layout, bytes).filter(|_| is_sound);
        found.ok_or_else(|| {
            Error::corrupt(format!(
                "{}: cluster {cluster} is damaged, so its group cannot be rebuilt; load the index again",
                self.origin
            ))
        })
    }
}
