//! Plan of a build, made before it begins.

use serde::Serialize;
use stratann_storage::budget::{Account, PROGRAM_BYTES, THREAD_BYTES, size};
use stratann_storage::{Error, Result};

use super::forecast::{Forecast, Size};
use super::options::BuildOptions;
use super::stage::{PlannedStage, Stage};
use crate::curve::CALIBRATION_IN_FLIGHT;
use crate::dataset::Shape;

/// Rows of the sample that codes, axes or cells are found with, at most.
pub(crate) const CODEBOOK_SAMPLE: usize = 65_536;
/// Rows below which codes would be poor: a budget must allow for as many.
pub(crate) const CODEBOOK_SAMPLE_LEAST: u64 = 4096;

/// Reading and writing buffers, per build.
pub(crate) const BUFFER_BYTES: u64 = 6 << 20;
/// Memory of each thread of a build.
pub(crate) const BUILD_THREAD_BYTES: u64 = THREAD_BYTES + (1 << 20);
/// One part in so many of a budget is the threads': how the work is divided must not depend on their number, or bytes
/// would.
pub(crate) const THREADS_PART: u64 = 8;

/// Division of the work of a build.
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
    /// Bytes that the head graph may take while it is built.
    pub(crate) head_bytes: u64,
    /// Bytes that one point takes while its graph is built.
    pub(crate) point_bytes: u64,
    /// Rows of the sample that codes, axes or cells are found with.
    pub(crate) codebook_sample: usize,
    /// Queries in flight per thread while it calibrates.
    pub(crate) calibration_in_flight: usize,
    /// The part of the kind.
    pub(crate) own: KindPlan,
    /// Stages in their order, each with the seconds that it is expected to take.
    #[serde(skip)]
    pub(crate) stages: Vec<(Stage, f64)>,
}

/// The part of a plan that a kind has.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) enum KindPlan {
    /// Blocks of a graph, or of rows alone: nothing.
    Blocks { has_graph: bool },
    /// Inverted lists.
    Lists(ListPlan),
}

/// Memory of a build of inverted lists that other kinds do not need.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct ListPlan {
    /// Rows that centroids are found from.
    pub(crate) sample: usize,
    /// Bytes of the rows that the constants of the cost model are fitted to, and of what they are cut into.
    pub(crate) pool_bytes: usize,
}

/// Division of the budget of a build of inverted lists. The division does not depend on the number of threads.
pub(crate) struct BuildMemory {
    /// Threads that there is room for.
    pub(crate) threads: u64,
    /// Bytes of the program, tables and threads.
    pub(crate) fixed: u64,
    /// Bytes that are left for the work of a stage.
    pub(crate) free: u64,
    /// Bytes without which the largest stage cannot work.
    pub(crate) work: u64,
}

impl BuildMemory {
    /// Divides the budget of `options` for these stages. Tables take so many bytes a row, ids of the user excluded.
    ///
    /// # Errors
    /// `ErrorKind::Budget` when it does not fit, naming the smallest budget that works.
    pub(crate) fn divide(
        options: &BuildOptions,
        (rows, row_bytes): (u64, u64),
        stages: &[PlannedStage<'_>],
        each_thread: u64,
    ) -> Result<BuildMemory> {
        let tables = rows * (row_bytes + if options.ids.is_some() { 12 } else { 0 });
        let needs = stages.iter().filter_map(|stage| stage.memory);
        let (what, work) = needs.max_by_key(|memory| memory.1).unwrap_or(("", 0));
        let program = PROGRAM_BYTES + BUFFER_BYTES;
        let mut account = Account::default();
        account.add(what, work);
        account.add("tables of rows", tables);
        account.add("the program and its buffers", program);
        account.add("threads", (program + tables + work).div_ceil(THREADS_PART - 1).max(each_thread));
        account.check(options.ram_budget, "build this index")?;
        let wanted = options.threads.max(1) as u64;
        let for_threads = |budget: u64| (budget / THREADS_PART).max(each_thread);
        let of_threads = options.ram_budget.map_or(wanted * each_thread, for_threads);
        let fixed = program + tables + of_threads;
        Ok(BuildMemory {
            threads: wanted.min(of_threads / each_thread).max(1),
            fixed,
            free: options.ram_budget.map_or(u64::MAX / 4, |budget| budget.saturating_sub(fixed)),
            work,
        })
    }

    /// The plan of so many rows whose stages take these bytes. Blocks and codes have no memory in it.
    pub(crate) fn plan(&self, rows: u64, stages: &[u64], disk_bytes: u64, own: ListPlan) -> BuildPlan {
        let peak = stages.iter().fold(self.work, |most, &bytes| most.max(bytes));
        BuildPlan {
            points_per_cell: rows,
            in_ram: false,
            threads: self.threads as usize,
            ram_bytes: self.fixed + peak,
            disk_bytes,
            block_memory_bytes: 0,
            code_memory_bytes: 0,
            cell_bytes: 0,
            head_bytes: 0,
            point_bytes: 0,
            codebook_sample: 0,
            own: KindPlan::Lists(own),
            calibration_in_flight: CALIBRATION_IN_FLIGHT,
            stages: Vec::new(),
        }
    }
}

impl BuildPlan {
    /// The plan with its stages, for a set of this shape.
    pub(crate) fn with_stages(self, shape: &Shape, stages: &[PlannedStage<'_>]) -> BuildPlan {
        let size = Size::of(shape, &self);
        let foreseen =
            stages.iter().filter_map(|planned| Some((planned.stage, planned.seconds.as_ref()?(&size))));
        BuildPlan { stages: foreseen.collect(), ..self }
    }

    /// How a build of inverted lists divides its memory; without limits where there are no lists.
    pub(crate) fn lists(&self) -> ListPlan {
        match self.own {
            KindPlan::Lists(own) => own,
            KindPlan::Blocks { .. } => ListPlan { sample: usize::MAX, pool_bytes: usize::MAX },
        }
    }

    /// Seconds that the build is expected to take on a current machine. Once it runs, the first stages tell how fast
    /// this machine is.
    pub fn expected_seconds(&self) -> f64 {
        Forecast::new(self.stages.clone()).total_s()
    }

    /// One line for a person.
    pub fn describe(&self) -> String {
        let how = if self.in_ram {
            "in RAM".to_string()
        } else if matches!(self.own, KindPlan::Lists(_)) {
            "out of core".to_string()
        } else {
            format!("out of core, about {} points at a time", self.points_per_cell)
        };
        let what = match self.own {
            KindPlan::Lists(_) => format!("lists are written {how}"),
            KindPlan::Blocks { has_graph: true } => format!("the graph is built {how}"),
            KindPlan::Blocks { has_graph: false } => "rows are written into blocks".to_string(),
        };
        format!("{what}; up to {} of RAM and {} of disk", size(self.ram_bytes), size(self.disk_bytes))
    }
}

/// Refuses work whose files cannot fit on the disk of `folder`.
pub(crate) fn check_disk(folder: &std::path::Path, needed: u64) -> Result<()> {
    match stratann_storage::budget::free_disk_bytes(folder) {
        Some(free) if free < needed => Err(Error {
            kind: stratann_storage::ErrorKind::Io,
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
