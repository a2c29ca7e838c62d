//! The stage that makes the graph: in RAM when the budget allows, else cell by cell.

use std::path::Path;

use serde::{Deserialize, Serialize};
use stratann_core::build::Lists;

use super::graph_file::{self, Cell, GraphWriter};
use super::options::BuildOptions;
use super::plan::BuildPlan;
use super::space::Space;
use super::stages::Build;
use super::vamana::{self, VamanaOptions};
use crate::dataset::{AtomicFile, Scan};
use crate::{Error, Result};

/// The rows in the order of their cells, as u32.
pub(super) const ORDER: &str = "order.tmp";

/// Facts that the graph leaves.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct GraphFacts {
    pub(super) cells: Vec<Cell>,
    pub(super) mean_list: f64,
}

impl GraphFacts {
    pub(super) fn new(cells: Vec<Cell>, edges: u64) -> GraphFacts {
        let rows = cells.last().map_or(0, |c| c.end);
        GraphFacts { cells, mean_list: edges as f64 / f64::from(rows.max(1)) }
    }

    /// Number of cells that hold a row.
    pub(super) fn cells_in_use(&self) -> usize {
        self.cells.iter().filter(|c| c.start < c.end).count()
    }
}

pub(super) fn run(build: &mut Build<'_>, space: &Space, scan: &Scan) -> Result<GraphFacts> {
    if is_in_one(build.plan, build.options, space, scan.rows) {
        in_one(build, space, scan)
    } else {
        super::cells::run(build, space, scan)
    }
}

/// Whether the graph of `rows` points is built in one piece.
pub(super) fn is_in_one(plan: &BuildPlan, options: &BuildOptions, space: &Space, rows: u64) -> bool {
    let points = rows * (space.point_bytes() as u64 + vamana::Graph::bytes(1, options.degree));
    let fits = |budget: u64| {
        let others = plan.ram_bytes.saturating_sub(plan.points_per_cell * plan.point_bytes);
        points + others.min(budget) <= budget
    };
    plan.in_ram && options.ram_budget.is_none_or(fits)
}

/// Builds one graph of all rows, which are then one cell.
pub(super) fn in_one(build: &Build<'_>, space: &Space, scan: &Scan) -> Result<GraphFacts> {
    let live = build.live_rows(scan);
    build.progress.stage("reading points", live.len() as u64, "rows");
    let held = space.load(build.base, &live, build.progress)?;
    let options = vamana_options(build);
    build.progress.stage("graph", (live.len() * options.passes.max(1)) as u64, "points");
    let graph = vamana::build(&held, held.medoid(), &options, build.progress)?;
    drop(held);
    let mut writer = GraphWriter::create(&build.partial.path(&graph_file::name(0)), options.degree)?;
    let mut edges = 0;
    for position in 0..live.len() as u32 {
        let list = graph.list(position);
        edges += list.len() as u64;
        writer.write(list.iter().map(|&p| live[p as usize]))?;
    }
    writer.finish()?;
    write_table(&build.partial.path(ORDER), &live)?;
    Ok(GraphFacts::new(vec![Cell { start: 0, end: live.len() as u32 }], edges))
}

pub(super) fn vamana_options(build: &Build<'_>) -> VamanaOptions {
    let o = build.options;
    VamanaOptions { degree: o.degree, list: o.build_list, alpha: o.alpha, passes: o.passes, seed: o.seed }
}

/// Writes a table of numbers, whole or not at all.
pub(super) fn write_table<T: bytemuck::NoUninit>(path: &Path, table: &[T]) -> Result<()> {
    let mut file = AtomicFile::create(path)?;
    file.write(bytemuck::cast_slice(table))?;
    file.commit()
}

/// Reads a table of numbers.
pub(super) fn read_table<T: bytemuck::Pod>(path: &Path) -> Result<Vec<T>> {
    let bytes = std::fs::metadata(path).map_err(|e| Error::io("reading", path, &e))?.len();
    read_entries(path, 0, (bytes as usize / size_of::<T>()) as u64)
}

/// Reads the entries `start..end` of a table of numbers.
pub(super) fn read_entries<T: bytemuck::Pod>(path: &Path, start: u64, end: u64) -> Result<Vec<T>> {
    use std::os::unix::fs::FileExt;
    let failed = |e: std::io::Error| Error::io("reading", path, &e);
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut table = vec![T::zeroed(); (end - start) as usize];
    file.read_exact_at(bytemuck::cast_slice_mut(&mut table), start * size_of::<T>() as u64)
        .map_err(failed)?;
    Ok(table)
}
