//! Builds the sub-HNSW of each cluster, and writes the image of a region: what a memory node holds of the index.

use stratann_params::build::RemoteOptions;

use serde::{Deserialize, Serialize};
use stratann_core::PAGE;
use stratann_core::build::hash;
use stratann_core::build::hnsw::HnswOptions;
use stratann_core::format::fresh::record_bytes;
use stratann_core::format::hnsw::{HnswName, HnswShape, seed};
use stratann_core::format::region::{
    Address, ClusterPlace, ControlWords, Descriptor, GROUP_ALIGN, NODE_BYTES_MAX, Superblock,
};
use stratann_kernel::Metric;
use stratann_storage::output::AtomicFile;
use stratann_storage::{Error, Result};

use super::REPRESENTATIVES;
use super::graph::{Cluster, sub_hnsw};
use crate::dataset::Scan;
use crate::files;
use crate::kinds::remote_hnsw::facts::{RemoteFacts, SizeStats};
use crate::kinds::remote_hnsw::limits::check_clusters;
use crate::kinds::remote_hnsw::open::layout;
use crate::manifest::BlockShape;
use crate::stages::build::Build;
use crate::stages::cells;
use crate::stages::list_rows::{ListRows, RowsOfList};
use crate::stages::space::Space;
use crate::stages::tables::{read_table, write_table};

/// One part in so many of a group is room for fresh records, by default; so many records at least.
const OVERFLOW_PART: u64 = 8;
const CAPACITY_LEAST: u64 = 16;
/// A tombstone for so many rows, and how many at least.
const ROWS_PER_TOMBSTONE: u64 = 64;
const TOMBSTONES_LEAST: u64 = 1024;
/// Layers of the meta-HNSW above its bottom.
const META_LAYERS: usize = 2;

/// Facts of the region, and its file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Written {
    pub(super) facts: RemoteFacts,
    pub(super) blocks: BlockShape,
}

/// Places of all parts, known before a graph is built: the number of layers of a node is drawn by its number.
struct Image {
    superblock: Superblock,
    groups: Vec<Descriptor>,
    facts: RemoteFacts,
}

pub(super) fn run(
    build: &Build<'_>,
    own: &RemoteOptions,
    space: &Space,
    scan: &Scan,
    count: u32,
) -> Result<Written> {
    let shape = build.base.shape();
    let tables = [build.partial.path(REPRESENTATIVES), build.partial.path(cells::OF_ROW)];
    let cluster_of_row: Vec<u32> = read_table(&tables[1])?;
    let checksum_seed = build.checksum_seed(&tables)?;
    let mut sizes = vec![0u32; count as usize];
    let live = cluster_of_row.iter().filter(|&&cluster| cluster != u32::MAX);
    live.for_each(|&cluster| sizes[cluster as usize] += 1);
    let ends = sizes.iter().scan(0, |sum, size| {
        *sum += size;
        Some(*sum)
    });
    let first: Vec<u32> = [0].into_iter().chain(ends).collect();
    let vector_bytes = shape.dim * shape.dtype.size();
    let rows = ListRows { build, list_of_row: &cluster_of_row, first: &first, vector_bytes };
    let writer = Writer { build, own, space, seed: checksum_seed, vector_bytes };
    let meta = writer.meta(&read_table::<u32>(&tables[0])?)?;
    let mut image = writer.image(&sizes, meta.len() as u64)?;
    if build.options.metric == Metric::Ip {
        image.facts.squared_norm_max = scan.max_squared_norm;
    }
    writer.write(&image, &meta, (&rows, scan))?;
    let blocks = BlockShape::of_pages(image.superblock.end, build.id_bytes(), checksum_seed);
    Ok(Written { facts: image.facts, blocks })
}

struct Writer<'a> {
    build: &'a Build<'a>,
    own: &'a RemoteOptions,
    space: &'a Space,
    seed: u64,
    vector_bytes: usize,
}

impl Writer<'_> {
    fn options(&self, cluster: u32) -> HnswOptions {
        let seed = hash(self.build.options.seed, 31, u64::from(cluster));
        HnswOptions { m: self.own.m, ef_construction: self.own.ef_construction, seed, upper_layers: None }
    }

    /// The bytes of a graph over the representatives.
    fn meta(&self, rows: &[u32]) -> Result<Vec<u8>> {
        let mut vectors = Vec::with_capacity(rows.len() * self.vector_bytes);
        self.build.base.for_each(rows, |vector| vectors.extend_from_slice(vector))?;
        let ids: Vec<u64> = rows.iter().map(|&row| u64::from(row)).collect();
        let (name, vector_bytes) = (HnswName::meta(self.seed), self.vector_bytes);
        let cluster = Cluster { vectors: &vectors, vector_bytes, ids: &ids, id_bytes: 4, name };
        let options = HnswOptions { upper_layers: Some(META_LAYERS), ..self.options(u32::MAX) };
        let kind = (self.build.options.metric, self.build.base.shape().dtype);
        sub_hnsw(self.space, kind, &cluster, &options, &stratann_storage::Quiet)
    }

    /// Lays out clusters of these sizes.
    fn image(&self, sizes: &[u32], meta_bytes: u64) -> Result<Image> {
        let layout = layout(self.build.options.metric, self.vector_bytes);
        let mut places = Vec::with_capacity(sizes.len() + 1);
        for (cluster, &members) in (0..).zip(sizes) {
            let upper = self.options(cluster).upper_counts(members as usize);
            let (m, id_bytes) = (self.own.m, self.build.id_bytes());
            let bytes = layout.bytes(&HnswShape { members: members as usize, m, id_bytes, upper: &upper });
            check_clusters(sizes.len() as u64, bytes as u64)?;
            places.push(ClusterPlace { members, bytes: bytes as u32 });
        }
        let cluster_bytes: u64 = places.iter().map(|place| u64::from(place.bytes)).sum();
        let groups = places.len().div_ceil(2) as u64;
        let record_bytes = record_bytes(self.vector_bytes) as u64;
        let capacity = match self.own.overflow {
            Some(bytes) => bytes / record_bytes,
            None => (cluster_bytes / groups / OVERFLOW_PART / record_bytes).max(CAPACITY_LEAST),
        };
        let capacity = capacity.min((1 << 29).min(u64::from(u32::MAX / 2) / record_bytes)) as u32;
        let tombstones = (self.build.report.rows / ROWS_PER_TOMBSTONE).max(TOMBSTONES_LEAST);
        let mut superblock = Superblock {
            sequence: 1,
            build: self.seed,
            nodes: 1,
            groups,
            clusters: places.len() as u64,
            record_bytes,
            tombstones,
            meta_bytes,
            ..Superblock::default()
        }
        .with_sections();
        let mut end = superblock.groups_at;
        let mut descriptors = Vec::with_capacity(groups as usize);
        for pair in places.chunks(2) {
            let clusters = [pair[0], pair.get(1).copied().unwrap_or_default()];
            let at = Address::new(0, end);
            let own = Descriptor { capacity, at, clusters, ..Descriptor::default() };
            let space = own.bytes(record_bytes).next_multiple_of(GROUP_ALIGN);
            descriptors.push(Descriptor { space, ..own });
            end += space;
        }
        superblock.end = end;
        if end > NODE_BYTES_MAX || end / PAGE as u64 > u64::from(u32::MAX) {
            return Err(Error::bad_input("the index takes 1 TiB or more, which no memory node can name"));
        }
        let all: Vec<u64> = sizes.iter().map(|&size| u64::from(size)).collect();
        let facts = RemoteFacts {
            sizes: SizeStats::of(&all),
            groups: groups as u32,
            m: self.own.m as u32,
            cluster_bytes_max: places.iter().map(|place| u64::from(place.bytes)).max().unwrap_or(0),
            cluster_bytes,
            capacity,
            record_bytes,
            tombstones,
            meta_bytes,
            squared_norm_max: 0.0,
        };
        Ok(Image { superblock, groups: descriptors, facts })
    }

    /// Writes both files.
    fn write(&self, image: &Image, meta: &[u8], (rows, scan): (&ListRows<'_>, &Scan)) -> Result<()> {
        write_table(&self.build.file(files::META), meta)?;
        let out = AtomicFile::create(&self.build.file(files::REGION))?;
        // What is never written is room for fresh records.
        out.set_len(image.superblock.end)?;
        for (at, bytes) in self.tables(image, meta) {
            out.write_at(&bytes, at)?;
        }
        self.build.progress.stage("building sub-HNSWs", scan.rows, "vectors");
        rows.write_each(
            scan,
            || (),
            |(), of| {
                let descriptor = &image.groups[of.list as usize / 2];
                let span = descriptor.cluster(of.list as usize % 2, image.superblock.record_bytes);
                out.write_at(&self.cluster(of)?, span.offset)?;
                Ok(of.rows.to_vec())
            },
        )?;
        out.commit()
    }

    /// Everything before the groups, with its offsets. Zeros are left out.
    fn tables(&self, image: &Image, meta: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let Image { superblock, groups, .. } = image;
        let control = ControlWords::default();
        let mut all = vec![
            (0, superblock.encode_image().to_vec()),
            (superblock.control_at, control.encode().to_vec()),
            (superblock.meta_at, meta.to_vec()),
        ];
        let descriptors = (0..).zip(groups).map(|(group, own)| {
            (superblock.descriptor_at(group, 0), own.encode(superblock.build, group).to_vec())
        });
        all.extend(descriptors);
        all
    }

    /// The bytes of a cluster.
    fn cluster(&self, of: &RowsOfList<'_>) -> Result<Vec<u8>> {
        let RowsOfList { list: cluster, vectors, rows } = *of;
        let ids: Vec<u64> = rows.iter().map(|&row| self.build.external_id(row)).collect();
        let seed = seed(self.seed, cluster / 2, 0, cluster as usize % 2);
        let own = Cluster {
            vectors,
            vector_bytes: self.vector_bytes,
            ids: &ids,
            id_bytes: self.build.id_bytes(),
            name: HnswName { cluster, version: 0, seed },
        };
        let kind = (self.build.options.metric, self.build.base.shape().dtype);
        sub_hnsw(self.space, kind, &own, &self.options(cluster), self.build.progress)
    }
}
