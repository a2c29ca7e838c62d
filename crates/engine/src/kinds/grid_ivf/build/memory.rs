//! Memory of a build of a `grid-ivf`, decided before it begins.

use stratann_core::format::grid::GridLayout;
use stratann_kernel::Metric;
use stratann_params::build::GridOptions;
use stratann_storage::Result;
use stratann_storage::budget::THREAD_BYTES;

use super::{AXES, open_centroids};
use crate::clusterings::memory::KmeansMemory;
use crate::dataset::Reader;
use crate::kinds::grid_ivf::facts::{code_bits, code_layout, pilot_of};
use crate::stages::cells::{CellsMemory, ROUNDS, SAMPLE_PER_CELL};
use crate::stages::forecast::Size;
use crate::stages::options::BuildOptions;
use crate::stages::plan::{BuildMemory, BuildPlan, CODEBOOK_SAMPLE, CODEBOOK_SAMPLE_LEAST, ListPlan};
use crate::stages::stage::{CALIBRATE, CLUSTERS, LISTS, PlannedStage, SCAN};

/// Most that a row takes in tables at any time: its list, its place among the members, its id.
const TABLE_BYTES: u64 = 16;
/// Least bytes of a part of the lists that are held before it is written.
const PART_LEAST: u64 = 4 << 20;
/// Bytes of calibration beside the index: exact neighbours first, then queries in flight.
const CALIBRATION_BYTES: u64 = 16 << 20;

/// Nanoseconds of a multiplication and of a pair of vectors on a current processor; of a step of a decomposition.
const MULTIPLY_NS: f64 = 0.08;
const PAIR_NS: f64 = 3.0;
const DECOMPOSE_NS: f64 = 15.0;
/// Nanoseconds of a byte that is written.
const WRITE_NS: f64 = 2.0;
/// Shares of all vectors that a calibration query compares in all settings, for each k, together.
const COMPARED_SHARE: f64 = 3.0;

/// Sizes that are known of a build before it begins, as far as memory goes.
struct Sizes {
    rows: u64,
    lists: u64,
    dim: u64,
    vector_bytes: u64,
    cells: CellsMemory,
    /// All lists, as in the file.
    index_bytes: u64,
}

impl Sizes {
    fn of(base: &Reader, options: &BuildOptions, own: &GridOptions) -> Result<Sizes> {
        let shape = base.shape();
        let given = own.centroids.as_deref().map(|path| open_centroids(path, shape.dim)).transpose()?;
        let lists = given.map_or(own.count(shape.rows) as u64, |centroids| centroids.shape().rows);
        let point_dim = shape.dim + usize::from(options.metric == Metric::Ip);
        let id_bytes = if options.ids.is_some() { 8 } else { 4 };
        let bits = code_bits(shape.dtype, (shape.dim, id_bytes), shape.rows, lists);
        let pilot = pilot_of(shape.dtype, options.metric, shape.dim);
        let layout = GridLayout {
            dtype: shape.dtype,
            metric: options.metric,
            edges: GridLayout::edges_of(shape.dim),
            columns: 0,
            id_bytes,
            pilot: if bits > 0 { 0 } else { pilot },
            code: code_layout(shape.dim, bits),
        };
        // A list more than the mean fills its last block up, and begins at a round place.
        let mean = shape.rows.div_ceil(lists).max(1) as usize;
        Ok(Sizes {
            rows: shape.rows,
            lists,
            dim: shape.dim as u64,
            vector_bytes: (shape.dim * shape.dtype.size()) as u64,
            cells: CellsMemory {
                rows: shape.rows,
                cells: lists,
                kmeans: KmeansMemory { dim: point_dim as u64 },
            },
            index_bytes: lists * layout.list_bytes(mean + 8) as u64,
        })
    }

    /// A row of the sample that axes are found from.
    fn sampled_bytes(&self) -> u64 {
        4 * self.dim
    }

    /// Matrices of the axes, as doubles, while they are found.
    fn axes_bytes(&self) -> u64 {
        6 * 8 * self.dim * self.dim
    }

    fn writing_bytes(&self) -> u64 {
        self.lists * (4 * self.dim + 24) + 4 * self.dim * self.dim
    }

    fn calibration_bytes(&self) -> u64 {
        CALIBRATION_BYTES + self.index_bytes + 4 * self.lists * self.dim + 4 * self.dim * self.dim
    }

    /// Bytes of each thread: of rows that it assigns, or of a list that it writes.
    fn thread_bytes(&self) -> u64 {
        let written = 8 * self.rows.div_ceil(self.lists) * self.vector_bytes;
        THREAD_BYTES
            + (1 << 20)
            + self.cells.assigned_bytes(self.vector_bytes).max(written.min(self.rows * self.vector_bytes))
    }

    /// The stages, with the time that each is expected to take and the least memory.
    fn stages<'a>(&self, options: &'a BuildOptions, own: &GridOptions) -> Vec<PlannedStage<'a>> {
        let axes_least = CODEBOOK_SAMPLE_LEAST.min(self.rows) * self.sampled_bytes() + self.axes_bytes();
        let lists = own.count(self.rows) as f64;
        let calibrate = CALIBRATE.takes(move |size| {
            let compared = options.calibration_rows(size.rows as usize) as f64 * size.rows * COMPARED_SHARE;
            size.truth_s(options) + size.shared_s(compared * size.dim * MULTIPLY_NS)
        });
        vec![
            SCAN.takes(Size::scan_s),
            CLUSTERS
                .takes(move |size| {
                    let sampled = size.rows.min(lists * SAMPLE_PER_CELL as f64);
                    let assigned = sampled * ROUNDS as f64 + size.rows;
                    size.shared_s(assigned * lists * (PAIR_NS + size.dim * MULTIPLY_NS))
                })
                .needs("centroids and the sample they are found from", self.cells.least_bytes()),
            AXES.takes(|size| size.dim.powi(3) * DECOMPOSE_NS * 1e-9)
                .needs("axes and the sample they are found from", axes_least),
            LISTS
                .takes(|size| {
                    let turned = size.rows * size.dim * size.dim * MULTIPLY_NS;
                    size.shared_s(turned) + size.bytes * WRITE_NS * 1e-9
                })
                .needs("lists on their way to the file", self.writing_bytes() + PART_LEAST),
            calibrate.needs(
                "calibration with all vectors in memory",
                options.calibration_bytes(self.calibration_bytes()),
            ),
        ]
    }
}

/// Plans for the rows of `base`.
///
/// # Errors
/// `ErrorKind::Budget` when no plan fits, naming the smallest budget that works; centroids that cannot be used.
pub(crate) fn plan(base: &Reader, options: &BuildOptions, own: &GridOptions) -> Result<BuildPlan> {
    let sizes = Sizes::of(base, options, own)?;
    let n = sizes.rows;
    let stages = sizes.stages(options, own);
    let memory = BuildMemory::divide(options, (n, TABLE_BYTES), &stages, sizes.thread_bytes())?;
    let (free, sample) = (memory.free, sizes.cells.sample(memory.free));
    let axes_room = free.saturating_sub(sizes.axes_bytes()) / sizes.sampled_bytes();
    let axes_sample = axes_room.min(CODEBOOK_SAMPLE as u64).min(n).max(1);
    let all = 4 * n * (sizes.vector_bytes + 16);
    let block_memory = free.saturating_sub(sizes.writing_bytes()).min(all).max(PART_LEAST);
    let peaks = [
        sizes.cells.bytes(sample),
        axes_sample * sizes.sampled_bytes() + sizes.axes_bytes(),
        sizes.writing_bytes() + block_memory,
    ];
    let disk = sizes.index_bytes + n * (sizes.vector_bytes + 4 + TABLE_BYTES) + sizes.writing_bytes();
    let plan = BuildPlan {
        in_ram: all <= block_memory,
        block_memory_bytes: block_memory,
        codebook_sample: axes_sample as usize,
        ..memory.plan(n, &peaks, disk, ListPlan { sample: sample as usize, pool_bytes: 0 })
    };
    Ok(plan.with_stages(&base.shape(), &stages))
}
