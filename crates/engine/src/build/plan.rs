//! What a build will take, decided before it begins.

use serde::Serialize;
use stratann_kernel::Metric;

use super::codebook;
use super::options::{BuildOptions, CodePlace, Kind};
use super::vamana::Graph;
use crate::budget::{Account, PROGRAM_BYTES, THREAD_BYTES, size};
use crate::dataset::Reader;
use crate::kinds::disk_graph::build::divide;
use crate::kinds::hybrid_ivf::build::{self as hybrid, ClusterPlan};
use crate::{Error, Result};

/// Rows that train the codebook.
pub(crate) const CODEBOOK_SAMPLE: usize = 65_536;
/// Rows below which codes would be poor: a budget must allow for as many.
pub(crate) const CODEBOOK_SAMPLE_LEAST: u64 = 4096;
/// Reading and writing buffers, per build.
pub(crate) const BUFFER_BYTES: u64 = 6 << 20;
/// Out of core, vectors on their way into blocks get one part in so many of the free memory: the lists of a cell and the blocks in the
/// making lie beside them.
const BLOCK_PART: u64 = 3;
/// What a row takes while cells are built, beyond the row tables: its cells, less the table of ids, which comes later.
const MEMBERSHIP_BYTES: u64 = 2;
/// Codes that are put in the order of ids at a time, at least, where blocks will carry them.
const CODES_MIN_BYTES: u64 = 4 << 20;
/// What codes for blocks under way take: ids, codes, and the blocks themselves.
const CODED_BLOCK_BYTES: u64 = 6 << 20;
/// What each thread of a build takes.
const BUILD_THREAD_BYTES: u64 = THREAD_BYTES + (1 << 20);
/// One part in so many of a budget is the threads': how the work is divided must not depend on their number, or bytes would.
pub(crate) const THREADS_PART: u64 = 8;

/// How a build divides its work.
#[derive(Clone, Debug, Serialize)]
pub struct BuildPlan {
    /// Points that are built into one graph at a time.
    pub points_per_cell: u64,
    /// Whether all points are one cell, in RAM.
    pub in_ram: bool,
    /// Threads: as many as asked for, when the budget has room for them.
    pub threads: usize,
    /// Most bytes of RAM at any time.
    pub ram_bytes: u64,
    /// Bytes of disk while building, the index included.
    pub disk_bytes: u64,
    /// Bytes that vectors may take while blocks are written.
    pub(crate) block_memory_bytes: u64,
    /// Bytes that codes may take while they are put in the order of ids: all of them, unless blocks will carry them.
    pub(crate) code_memory_bytes: u64,
    /// Bytes that a cell may take while it is built.
    pub(crate) cell_bytes: u64,
    /// Bytes that one point takes while its graph is built.
    pub(crate) point_bytes: u64,
    /// Rows that train the codebook.
    pub(crate) codebook_sample: usize,
    /// What a build of clusters does besides.
    pub(crate) clusters: Option<ClusterPlan>,
}

impl BuildPlan {
    /// Plans for the rows of `base`.
    ///
    /// # Errors
    /// `Kind::Budget` when no plan fits, naming the smallest budget that works.
    pub(crate) fn new(base: &Reader, options: &BuildOptions) -> Result<BuildPlan> {
        if options.kind == Kind::HybridIvf {
            return hybrid::plan_memory(base, options);
        }
        let shape = base.shape();
        let n = shape.rows;
        let row_bytes = (shape.dim * shape.dtype.size()) as u64;
        let graph = options.kind == Kind::DiskGraph;
        // Unless the sample shows that bytes will not do, points are bytes; plan for the worse.
        let point_dim = (shape.dim + usize::from(options.metric == Metric::Ip)) as u64;
        let per_component = if options.exact_points { 4 } else { 1 };
        let point = point_dim * per_component + Graph::bytes(1, options.degree) + 12;
        let wanted = options.threads.max(1) as u64;
        let for_threads = options.ram_budget.map_or(wanted * BUILD_THREAD_BYTES, |b| b / THREADS_PART);
        let threads = wanted.min(for_threads / BUILD_THREAD_BYTES).max(1) as usize;
        let fixed = PROGRAM_BYTES + BUFFER_BYTES + for_threads;
        // Row tables that live through most stages: rows, order, ids.
        let tables = n * if graph { 12 } else { 4 } + if options.ids.is_some() { n * 12 } else { 0 };
        let codes = if graph { n * options.code_bytes(shape.dim) as u64 } else { 0 };
        let in_blocks = graph && options.codes == CodePlace::Disk;
        let codes_least = if in_blocks { codes.min(CODES_MIN_BYTES) } else { codes };
        let free = options.ram_budget.map(|b| b.saturating_sub(fixed + tables));
        let smallest_cell = n.min(20_000);
        let trained = codebook::training_bytes(shape.dim);
        let training = codebook::training_fixed_bytes(shape.dim, options.code_kind);
        let sample = |room: u64| ((room.saturating_sub(training) / trained) as usize).min(CODEBOOK_SAMPLE);
        let memberships = n * MEMBERSHIP_BYTES;
        let coded = if in_blocks { CODED_BLOCK_BYTES + row_bytes * 64 } else { 0 };
        let work = (smallest_cell * point + memberships)
            .max(codes_least)
            .max(if graph { trained * CODEBOOK_SAMPLE_LEAST.min(n) + training } else { 0 })
            .max(row_bytes * 64)
            .max(coded);
        if options.ram_budget.is_some_and(|b| b < fixed + tables + work) {
            let program = PROGRAM_BYTES + BUFFER_BYTES;
            let mut account = Account::default();
            account.add("row tables", tables);
            account.add("codes, their training, or a part of the graph", work);
            account.add("the program and its buffers", program);
            account.add("threads", (program + tables + work).div_ceil(THREADS_PART - 1));
            account.check(options.ram_budget, "build this index")?;
        }
        let free = free.unwrap_or(u64::MAX / 4);
        let fits = n.saturating_mul(point) <= free;
        let cell_bytes = if fits { n * point } else { free - memberships };
        let in_ram = fits && options.cells.is_none_or(|c| c == 1);
        let wanted = options.cells.map_or(u64::MAX, |cells| divide::room_of(n, cells));
        let points_per_cell = (cell_bytes / point).min(wanted);
        let for_vectors = if in_blocks { free.saturating_sub(CODED_BLOCK_BYTES) } else { free };
        let block_memory_bytes =
            for_vectors.min(n * (row_bytes + 16)).max(row_bytes * 64) / if in_ram { 1 } else { BLOCK_PART };
        let code_memory_bytes = if in_blocks { codes.min(free) } else { codes };
        let codebook_sample = sample(free).min(n as usize).max(1);
        let peak = if graph {
            (points_per_cell * point).max(code_memory_bytes).max(codebook_sample as u64 * trained + training)
        } else {
            0
        };
        let coded = if in_blocks { CODED_BLOCK_BYTES } else { 0 };
        let ram_bytes = fixed + tables + peak.max(block_memory_bytes + coded);
        let disk = disk_bytes(n, row_bytes, options, in_ram, codes);
        Ok(BuildPlan {
            points_per_cell,
            in_ram,
            threads,
            ram_bytes,
            disk_bytes: disk,
            block_memory_bytes,
            code_memory_bytes,
            cell_bytes,
            codebook_sample,
            point_bytes: point,
            clusters: None,
        })
    }

    /// One line for a person.
    pub fn describe(&self) -> String {
        let how = if self.in_ram {
            "in RAM".to_string()
        } else if self.clusters.is_some() {
            "out of core".to_string()
        } else {
            format!("out of core, about {} points at a time", self.points_per_cell)
        };
        let what = if self.clusters.is_some() { "lists are written" } else { "the graph is built" };
        format!("{what} {how}; up to {} of RAM and {} of disk", size(self.ram_bytes), size(self.disk_bytes))
    }
}

fn disk_bytes(n: u64, row_bytes: u64, options: &BuildOptions, in_ram: bool, codes: u64) -> u64 {
    if options.kind == Kind::Flat {
        return n * (row_bytes + 8);
    }
    let node = row_bytes + 2 * options.degree as u64 + 8;
    let blocks = match options.codes {
        CodePlace::Ram => n * node * 5 / 4,
        // The codes of a node's neighbours, some of them shared with others of its block; and pages that they do not fill.
        CodePlace::Disk => n * node + codes * (options.degree as u64 + 1),
    };
    let graph = n * (options.degree as u64 + 1) * 4;
    let spill = if in_ram { 0 } else { n * (row_bytes + 20) + 2 * graph };
    blocks + graph + spill + 2 * codes + n * 8
}

/// Refuses work whose files cannot fit on the disk of `folder`.
pub(crate) fn check_disk(folder: &std::path::Path, needed: u64) -> Result<()> {
    match crate::budget::free_disk_bytes(folder) {
        Some(free) if free < needed => Err(Error {
            kind: crate::Kind::Io,
            message: format!(
                "{} has {} free, this takes about {}; free some space or choose another disk",
                folder.display(),
                size(free),
                size(needed)
            ),
        }),
        _ => Ok(()),
    }
}
