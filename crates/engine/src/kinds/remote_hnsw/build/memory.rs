//! Memory of a build of a `remote-hnsw`, decided before it begins.

use stratann_core::build::hnsw::Hnsw;
use stratann_core::format::fresh::record_bytes;
use stratann_core::format::hnsw::HnswShape;
use stratann_kernel::Metric;
use stratann_params::build::RemoteOptions;
use stratann_params::choices::Representatives;
use stratann_storage::Result;
use stratann_storage::budget::THREAD_BYTES;

use super::SUB_HNSWS;
use crate::clusterings::memory::KmeansMemory;
use crate::curve::CALIBRATION_IN_FLIGHT;
use crate::dataset::{Reader, Shape};
use crate::kinds::remote_hnsw::open::layout;
use crate::stages::cells::CellsMemory;
use crate::stages::forecast::Size;
use crate::stages::options::BuildOptions;
use crate::stages::plan::{BuildMemory, BuildPlan, ListPlan};
use crate::stages::stage::{CALIBRATE, CLUSTERS, PlannedStage, SCAN};

/// Most that a row takes in tables at any time: its cluster, its place among the members, its id.
const TABLE_BYTES: u64 = 16;
/// Expected size of the largest cluster, over the mean. Clusters of drawn representatives are uneven.
const UNEVEN: u64 = 6;
/// Bytes of calibration beside the clusters in flight: exact neighbours first, then queries.
const CALIBRATION_BYTES: u64 = 16 << 20;
/// Queries in flight per thread while it calibrates.
const CALIBRATION_QUERIES: usize = if CALIBRATION_IN_FLIGHT < 4 { CALIBRATION_IN_FLIGHT } else { 4 };

/// Nanoseconds of a multiplication and of a pair of vectors on a current processor.
const MULTIPLY_NS: f64 = 0.08;
const PAIR_NS: f64 = 3.0;
/// Nanoseconds of a byte that is written.
const WRITE_NS: f64 = 2.0;
/// Distances of an insertion for each candidate of its beam, and for each pair of neighbours that is pruned.
const WALKED: f64 = 6.0;
/// Clusters that a calibration query searches in all settings, together, and distances in each.
const CALIBRATED: f64 = 300.0;
const COMPARED: f64 = 600.0;

/// Sizes that are known of a build before it begins, as far as memory goes.
struct Sizes {
    rows: u64,
    clusters: u64,
    vector_bytes: u64,
    cells: CellsMemory,
    has_kmeans: bool,
    /// The largest cluster: vectors, and bytes of its sub-HNSW.
    members_max: u64,
    cluster_bytes_max: u64,
    /// Bytes of all sub-HNSWs and of the room for fresh records.
    index_bytes: u64,
    m: usize,
}

impl Sizes {
    fn of(shape: &Shape, options: &BuildOptions, own: &RemoteOptions) -> Sizes {
        let clusters = own.count(shape.rows) as u64;
        let vector_bytes = shape.dim * shape.dtype.size();
        let layout = layout(options.metric, vector_bytes);
        let id_bytes = if options.ids.is_some() { 8 } else { 4 };
        let bytes_of = |members: u64| {
            let upper = [members.div_ceil(own.m as u64 - 1) as u32];
            let members = members as usize;
            layout.bytes(&HnswShape { members, m: own.m, id_bytes, upper: &upper }) as u64
        };
        let mean = shape.rows.div_ceil(clusters);
        let members_max = (UNEVEN * mean).min(shape.rows);
        let each = 2 * bytes_of(mean);
        let overflow = own.overflow.unwrap_or((each / 8).max(16 * record_bytes(vector_bytes) as u64));
        let kmeans = KmeansMemory { dim: (shape.dim + usize::from(options.metric == Metric::Ip)) as u64 };
        Sizes {
            rows: shape.rows,
            clusters,
            vector_bytes: vector_bytes as u64,
            cells: CellsMemory { rows: shape.rows, cells: clusters, kmeans },
            has_kmeans: own.representatives == Representatives::Kmeans,
            members_max,
            cluster_bytes_max: bytes_of(members_max),
            index_bytes: clusters.div_ceil(2) * (each + overflow + stratann_core::PAGE as u64),
            m: own.m,
        }
    }

    /// Vectors of a cluster as they wait, as points, their graph, and their sub-HNSW.
    fn building_bytes(&self) -> u64 {
        let points = self.members_max * (4 * self.cells.kmeans.dim + 8);
        points + Hnsw::memory_bytes(self.members_max as usize, self.m) + self.cluster_bytes_max
    }

    /// Bytes of each thread: of rows that it assigns, or of a cluster that it builds.
    fn thread_bytes(&self) -> u64 {
        let assigned = self.cells.assigned_bytes(self.vector_bytes);
        THREAD_BYTES + (2 << 20) + assigned.max(self.building_bytes())
    }

    fn part_least(&self) -> u64 {
        3 * self.members_max * (self.vector_bytes + 4)
    }

    /// The stages, with the time that each is expected to take and the least memory.
    fn stages<'a>(&self, options: &'a BuildOptions, own: &RemoteOptions) -> Vec<PlannedStage<'a>> {
        let cells = self.cells;
        let found = if self.has_kmeans { cells.least_bytes() } else { cells.centroid_bytes() };
        let clusters = self.clusters as f64;
        let members = self.rows as f64 / clusters;
        let (ef, m) = (own.ef_construction as f64, own.m as f64);
        let inserted = (ef.min(members) * WALKED).min(members) + m * (ef.min(members) + 2.0 * m);
        let pair_ns = |size: &Size| PAIR_NS + size.dim * MULTIPLY_NS;
        let calibrate = CALIBRATE.takes(move |size| {
            let compared =
                options.calibration_rows(size.rows as usize) as f64 * CALIBRATED * COMPARED.min(members);
            size.truth_s(options) + size.shared_s(compared * pair_ns(size))
        });
        let in_flight = 2 * CALIBRATION_QUERIES as u64 * self.cluster_bytes_max;
        let meta = self.clusters * (self.vector_bytes + 512);
        vec![
            SCAN.takes(Size::scan_s),
            CLUSTERS
                .takes(move |size| size.shared_s(size.rows * clusters * pair_ns(size)))
                .needs("representatives and the sample they are found from", found),
            SUB_HNSWS
                .takes(move |size| {
                    size.shared_s(size.rows * inserted * pair_ns(size)) + size.bytes * WRITE_NS * 1e-9
                })
                .needs("vectors of the largest cluster", self.part_least() + 100 * self.clusters),
            calibrate.needs(
                "calibration with clusters in memory",
                options.calibration_bytes(CALIBRATION_BYTES + in_flight + meta),
            ),
        ]
    }
}

/// Plans for the rows of `base`.
///
/// # Errors
/// `ErrorKind::Budget` when no plan fits, naming the smallest budget that works.
pub(crate) fn plan(base: &Reader, options: &BuildOptions, own: &RemoteOptions) -> Result<BuildPlan> {
    let sizes = Sizes::of(&base.shape(), options, own);
    let n = sizes.rows;
    let stages = sizes.stages(options, own);
    let memory = BuildMemory::divide(options, (n, TABLE_BYTES), &stages, sizes.thread_bytes())?;
    let sample = sizes.cells.sample(memory.free);
    let all = 3 * n * (sizes.vector_bytes + 4);
    let block_memory = memory.free.min(all).max(sizes.part_least());
    let peaks = [sizes.cells.bytes(if sizes.has_kmeans { sample } else { 0 }), block_memory];
    let disk = sizes.index_bytes + n * (sizes.vector_bytes + 4 + TABLE_BYTES);
    let plan = BuildPlan {
        in_ram: all <= block_memory,
        block_memory_bytes: block_memory,
        calibration_in_flight: CALIBRATION_QUERIES,
        ..memory.plan(n, &peaks, disk, ListPlan { sample: sample as usize, pool_bytes: 0 })
    };
    Ok(plan.with_stages(&base.shape(), &stages))
}
