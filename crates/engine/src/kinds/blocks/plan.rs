//! The memory plan of a build of blocks, with a graph or without.

use stratann_kernel::Metric;
use stratann_params::build::GraphOptions;
use stratann_params::choices::CodePlace;
use stratann_storage::Result;
use stratann_storage::budget::{Account, PROGRAM_BYTES};

use crate::codebook::bits;
use crate::curve::CALIBRATION_IN_FLIGHT;
use crate::dataset::Reader;
use crate::stages::options::BuildOptions;
use crate::stages::plan::{
    BUFFER_BYTES, BUILD_THREAD_BYTES, BuildPlan, CODEBOOK_SAMPLE, CODEBOOK_SAMPLE_LEAST, KindPlan,
    THREADS_PART,
};
use crate::stages::stage::PlannedStage;
use crate::stages::vamana::Graph;

/// Out of core, vectors on their way into blocks get one part in so many of the free memory: the lists of a cell and
/// the blocks in the making lie beside them.
const BLOCK_PART: u64 = 3;
/// Bytes of a row in tables, with a graph: the cells that it is built in, and later its id beside the sizes of blocks
/// and what a cell is packed with.
const TABLE_BYTES: u64 = 6;
/// Codes that are put in the order of ids at a time, at least, where blocks will carry them.
const CODES_MIN_BYTES: u64 = 4 << 20;
/// Bytes of codes for blocks under way: ids, codes, and the blocks themselves.
const CODED_BLOCK_BYTES: u64 = 6 << 20;

/// Share of a cell's room that is kept for rows of other cells.
pub(crate) const OVERLAP: f64 = 0.5;

/// Sizes that the plan depends on, bytes unless named otherwise.
struct Needs {
    /// Rows of the set.
    rows: u64,
    row: u64,
    /// One point while its graph is built.
    point: u64,
    /// Codes of all rows.
    codes: u64,
    /// Whether blocks carry codes.
    in_blocks: bool,
    /// Tables of rows that live through most stages.
    tables: u64,
    /// One row of the sample that codes are prepared with, and what is needed besides.
    sampled: u64,
    prepared: u64,
    has_graph: bool,
}

impl Needs {
    fn of(base: &Reader, options: &BuildOptions, graph: &GraphOptions, has_graph: bool) -> Needs {
        let shape = base.shape();
        let n = shape.rows;
        // Unless the sample shows that bytes will not do, points are bytes; plan for the worse.
        let point_dim = (shape.dim + usize::from(options.metric == Metric::Ip)) as u64;
        let per_component = if graph.exact_points { 4 } else { 1 };
        Needs {
            rows: n,
            row: (shape.dim * shape.dtype.size()) as u64,
            point: point_dim * per_component + Graph::bytes(1, graph.degree) + 12,
            codes: if has_graph { n * graph.code_bytes(shape.dim) as u64 } else { 0 },
            in_blocks: has_graph && graph.codes == CodePlace::Disk,
            tables: n * if has_graph { TABLE_BYTES } else { 4 }
                + if options.ids.is_some() { n * 12 } else { 0 },
            sampled: bits::row_bytes(shape.dim),
            prepared: bits::fixed_bytes(shape.dim),
            has_graph,
        }
    }

    /// Memory without which no stage can work.
    fn least_work(&self) -> u64 {
        let smallest_cell = self.rows.min(20_000);
        let codes_least = if self.in_blocks { self.codes.min(CODES_MIN_BYTES) } else { self.codes };
        let coded = if self.in_blocks { CODED_BLOCK_BYTES + self.row * 64 } else { 0 };
        let sample = CODEBOOK_SAMPLE_LEAST.min(self.rows);
        (smallest_cell * self.point)
            .max(codes_least)
            .max(if self.has_graph { self.sampled * sample + self.prepared } else { 0 })
            .max(self.row * 64)
            .max(coded)
    }

    fn codebook_sample(&self, free: u64) -> usize {
        let fits = ((free.saturating_sub(self.prepared) / self.sampled) as usize).min(CODEBOOK_SAMPLE);
        fits.min(self.rows as usize).max(1)
    }

    /// Disk while building, the index included.
    fn disk_bytes(&self, graph: &GraphOptions, in_ram: bool) -> u64 {
        let (n, codes) = (self.rows, self.codes);
        if !self.has_graph {
            return n * (self.row + 8);
        }
        let node = self.row + 2 * graph.degree as u64 + 8;
        let blocks = match graph.codes {
            CodePlace::Ram => n * node * 5 / 4,
            // The codes of a node's neighbours, some of them shared with others of its block; and pages that they do
            // not fill.
            CodePlace::Disk => n * node + codes * (graph.degree as u64 + 1),
        };
        let lists = n * (graph.degree as u64 + 1) * 4;
        let spill = if in_ram { 0 } else { n * (self.row + 20) + 2 * lists };
        blocks + lists + spill + 2 * codes + n * 8
    }
}

/// Plans for the rows of `base`. Without a graph, the memory of blocks is planned with the defaults of one.
///
/// # Errors
/// `ErrorKind::Budget` when no plan fits; the error names the smallest budget that works.
pub(crate) fn plan(
    base: &Reader,
    options: &BuildOptions,
    (graph, has_graph): (&GraphOptions, bool),
    stages: &[PlannedStage<'_>],
) -> Result<BuildPlan> {
    let needs = Needs::of(base, options, graph, has_graph);
    let (n, point) = (needs.rows, needs.point);
    let wanted = options.threads.max(1) as u64;
    let for_threads = options.ram_budget.map_or(wanted * BUILD_THREAD_BYTES, |b| b / THREADS_PART);
    let threads = wanted.min(for_threads / BUILD_THREAD_BYTES).max(1) as usize;
    let program = PROGRAM_BYTES + BUFFER_BYTES;
    let fixed = program + for_threads;
    let work = needs.least_work();
    if options.ram_budget.is_some_and(|b| b < fixed + needs.tables + work) {
        let mut account = Account::default();
        account.add("row tables", needs.tables);
        account.add("codes, their preparation, or a part of the graph", work);
        account.add("the program and its buffers", program);
        account.add("threads", (program + needs.tables + work).div_ceil(THREADS_PART - 1));
        account.check(options.ram_budget, "build this index")?;
    }
    let free = options.ram_budget.map_or(u64::MAX / 4, |b| b.saturating_sub(fixed + needs.tables));
    let fits = n.saturating_mul(point) <= free;
    let cell_bytes = if fits { n * point } else { free };
    let in_ram = fits && graph.cells.is_none_or(|c| c == 1);
    let wanted = graph.cells.map_or(u64::MAX, |cells| points_of_cell(n, cells));
    let points_per_cell = (cell_bytes / point).min(wanted);
    let for_vectors = if needs.in_blocks { free.saturating_sub(CODED_BLOCK_BYTES) } else { free };
    let block_memory_bytes =
        for_vectors.min(n * (needs.row + 16)).max(needs.row * 64) / if in_ram { 1 } else { BLOCK_PART };
    let code_memory_bytes = if needs.in_blocks { needs.codes.min(free) } else { needs.codes };
    let codebook_sample = needs.codebook_sample(free);
    let preparing = codebook_sample.min(bits::SAMPLE_ROWS) as u64 * needs.sampled + needs.prepared;
    let work = (points_per_cell * point).max(code_memory_bytes).max(preparing);
    let coded = if needs.in_blocks { CODED_BLOCK_BYTES } else { 0 };
    let peak = if has_graph { work } else { 0 };
    let plan = BuildPlan {
        points_per_cell,
        in_ram,
        threads,
        ram_bytes: fixed + needs.tables + peak.max(block_memory_bytes + coded),
        disk_bytes: needs.disk_bytes(graph, in_ram),
        block_memory_bytes,
        code_memory_bytes,
        cell_bytes,
        // Tables of rows are gone by then, but for the ids of the user.
        head_bytes: free.saturating_add(n * if has_graph { TABLE_BYTES } else { 0 }),
        codebook_sample,
        point_bytes: point,
        calibration_in_flight: CALIBRATION_IN_FLIGHT,
        own: KindPlan::Blocks { has_graph },
        stages: Vec::new(),
    };
    Ok(plan.with_stages(&base.shape(), stages))
}

/// Points of a cell when `rows` are divided into `cells`.
pub(crate) fn points_of_cell(rows: u64, cells: usize) -> u64 {
    (rows.div_ceil(cells.max(1) as u64) as f64 / (1.0 - OVERLAP)).ceil() as u64
}
