//! Memory of a build of a `gpu-ivf`, decided before it begins.

use stratann_core::format::posting_lists::LISTS_PER_VECTOR;
use stratann_kernel::Metric;
use stratann_params::build::GpuOptions;
use stratann_storage::Result;
use stratann_storage::budget::THREAD_BYTES;

use super::members::DEGREE;
use super::{BASELINES, MEMBERS};
use crate::clusterings::{CHUNK, hierarchy};
use crate::codebook::bits;
use crate::dataset::Reader;
use crate::stages::forecast::Size;
use crate::stages::options::BuildOptions;
use crate::stages::plan::{BuildMemory, BuildPlan, CODEBOOK_SAMPLE_LEAST, ListPlan};
use crate::stages::stage::{CALIBRATE, CLUSTERS, CODEBOOK, CODES, LAYOUT, NAVIGATION, PlannedStage, SCAN};
use crate::stages::vamana::Graph;

/// Most that a row takes in tables at any time: its list and its place among the members, its id.
const TABLE_BYTES: u64 = 12;
/// The least that replicas, vectors on their way to blocks, and rows of a group take.
const PART_LEAST: u64 = 8 << 20;
/// Rows of the smallest group that is clustered by itself.
const GROUP_LEAST: u64 = 8192;
/// Replicas of a vector, by the mean, for forecasts of memory; the largest possible number is one less than
/// [`LISTS_PER_VECTOR`].
const REPLICAS: u64 = 3;
/// Bytes of calibration beside the index: exact neighbours, queries in flight.
const CALIBRATION_BYTES: u64 = 24 << 20;

/// Nanoseconds of a multiplication and of a pair of vectors on a current processor.
const MULTIPLY_NS: f64 = 0.1;
const PAIR_NS: f64 = 12.0;
/// Nanoseconds of a byte that is written.
const WRITE_NS: f64 = 2.0;
/// Pairs that are compared for each row: while groups are divided, and while its lists are found.
const DIVIDED_PAIRS: f64 = 16.0 * 9.0;
const WALKED_PAIRS: f64 = 600.0;
/// Pairs for each centroid while their graph is built.
const GRAPH_PAIRS: f64 = 2500.0;

/// Sizes that are known of a build before it begins, as far as memory goes.
struct Sizes {
    rows: u64,
    lists: u64,
    dim: u64,
    point_dim: u64,
    vector_bytes: u64,
    code_bytes: u64,
    baselines: bool,
}

impl Sizes {
    fn of(base: &Reader, options: &BuildOptions, own: &GpuOptions) -> Sizes {
        let shape = base.shape();
        Sizes {
            rows: shape.rows,
            lists: own.lists(shape.rows) as u64,
            dim: shape.dim as u64,
            point_dim: (shape.dim + usize::from(options.metric == Metric::Ip)) as u64,
            vector_bytes: shape.row_bytes() as u64,
            code_bytes: own.code_bytes(shape.dim) as u64,
            baselines: own.baselines,
        }
    }

    fn centroid_bytes(&self) -> u64 {
        self.lists * 4 * self.point_dim
    }

    /// Centroids and their graph, while it is built and while rows are assigned.
    fn graph_bytes(&self) -> u64 {
        self.centroid_bytes() + Graph::bytes(self.lists as usize, DEGREE) + 16 * self.lists
    }

    /// Bytes that searches keep in RAM.
    fn index_bytes(&self) -> u64 {
        let lists = self.lists * (2 * self.dim + 4 * (4 + DEGREE as u64) + 12);
        lists + self.rows * (self.code_bytes + 2 * REPLICAS) + self.rows / 7
    }

    /// Codes in the order of ids, all of them; less is used where they exceed the memory.
    fn codes_bytes(&self) -> u64 {
        self.rows * (self.code_bytes + 2)
    }

    fn baseline_bytes(&self) -> u64 {
        if self.baselines { self.rows * (self.vector_bytes * 5 / 4 + self.code_bytes + 40) } else { 0 }
    }

    fn thread_bytes(&self) -> u64 {
        THREAD_BYTES
            + (1 << 20)
            + CHUNK as u64 * (4 * self.point_dim + self.vector_bytes + 4 * LISTS_PER_VECTOR as u64)
    }

    /// The stages, with the time that each is expected to take and the least memory.
    fn stages<'a>(&self, options: &'a BuildOptions) -> Vec<PlannedStage<'a>> {
        let group = GROUP_LEAST.min(self.rows) * hierarchy::row_bytes(self.point_dim as usize);
        let written = self.lists * (4 + 4 + 8 + 8) + self.rows * 2 * REPLICAS;
        let sampled = CODEBOOK_SAMPLE_LEAST.min(self.rows) * self.sampled_bytes() + self.coder_bytes();
        let lists = self.lists as f64;
        let pairs = |size: &Size, pairs: f64| size.shared_s(pairs * (PAIR_NS + size.dim * MULTIPLY_NS));
        let levels = (lists.max(2.0).ln() / 16f64.ln()).ceil();
        let mut stages = vec![
            SCAN.takes(Size::scan_s),
            CLUSTERS.takes(move |size| pairs(size, size.rows * DIVIDED_PAIRS * levels)).needs(
                "centroids of the lists and a group of rows",
                2 * self.centroid_bytes() + group.max(PART_LEAST),
            ),
            NAVIGATION
                .takes(move |size| pairs(size, lists * GRAPH_PAIRS))
                .needs("centroids and their graph", self.graph_bytes()),
            MEMBERS.takes(move |size| pairs(size, size.rows * WALKED_PAIRS)),
            LAYOUT
                .takes(|size| size.bytes * WRITE_NS * 1e-9)
                .needs("lists and blocks on their way to files", written + 2 * PART_LEAST),
            CODEBOOK.takes(Size::codebook_s).needs("the sample that codes are prepared with", sampled),
            CODES.takes(Size::encoding_s),
        ];
        if self.baselines {
            let bytes = self.baseline_bytes();
            stages
                .push(BASELINES.takes_unknown().needs("vectors and codes in memory for --baselines", bytes));
        }
        let baselines = if self.baselines { 4 * self.rows } else { 0 };
        let calibrated = CALIBRATION_BYTES + self.index_bytes() + baselines;
        stages.push(
            CALIBRATE
                .takes(move |size| size.truth_s(options))
                .needs("calibration on the index", options.calibration_bytes(calibrated)),
        );
        stages
    }

    /// A row of the sample that codes are prepared with, with what that adds to it.
    fn sampled_bytes(&self) -> u64 {
        bits::row_bytes(self.dim as usize)
    }

    /// The preparation of codes without its sample.
    fn coder_bytes(&self) -> u64 {
        bits::fixed_bytes(self.dim as usize)
    }
}

/// Plans for the rows of `base`.
///
/// # Errors
/// `ErrorKind::Budget` when no plan fits, naming the smallest budget that works.
pub(crate) fn plan(base: &Reader, options: &BuildOptions, own: &GpuOptions) -> Result<BuildPlan> {
    let sizes = Sizes::of(base, options, own);
    let n = sizes.rows;
    let stages = sizes.stages(options);
    let memory = BuildMemory::divide(options, (n, TABLE_BYTES), &stages, sizes.thread_bytes())?;
    let free = memory.free;
    let point_bytes = hierarchy::row_bytes(sizes.point_dim as usize);
    let cell_bytes = free.saturating_sub(2 * sizes.centroid_bytes()).min(2 * n * point_bytes).max(PART_LEAST);
    let all = n * (sizes.vector_bytes + 16);
    let block_memory = free.saturating_sub(sizes.lists * 24 + n * 2 * REPLICAS).min(all).max(PART_LEAST);
    let most = bits::SAMPLE_ROWS as u64;
    let sample = (free.saturating_sub(sizes.coder_bytes()) / sizes.sampled_bytes()).min(most).min(n).max(1);
    let peaks = [
        2 * sizes.centroid_bytes() + cell_bytes.min(n * point_bytes),
        sizes.graph_bytes(),
        sizes.lists * 24 + n * 2 * REPLICAS + block_memory,
        sample * sizes.sampled_bytes() + sizes.coder_bytes(),
        sizes.codes_bytes().min(free),
    ];
    let index = n * (sizes.vector_bytes * 115 / 100 + sizes.code_bytes) + sizes.lists * (2 * sizes.dim + 160);
    let copies =
        if sizes.baselines { n * (REPLICAS + 2) * (sizes.vector_bytes + sizes.code_bytes + 16) } else { 0 };
    let disk = index + copies + n * (sizes.vector_bytes + 4 * LISTS_PER_VECTOR as u64 + TABLE_BYTES);
    let plan = BuildPlan {
        in_ram: cell_bytes >= n * point_bytes,
        block_memory_bytes: block_memory,
        code_memory_bytes: free.min(sizes.codes_bytes()).max(PART_LEAST),
        cell_bytes,
        point_bytes,
        codebook_sample: sample as usize,
        ..memory.plan(n, &peaks, disk, ListPlan { sample: sample as usize, pool_bytes: 0 })
    };
    Ok(plan.with_stages(&base.shape(), &stages))
}
