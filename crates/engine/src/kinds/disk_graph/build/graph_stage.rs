//! Stage that builds the graph: in RAM when the budget allows, else cell by cell.

use serde::{Deserialize, Serialize};
use stratann_core::build::Lists;
use stratann_params::build::GraphOptions;
use stratann_storage::Result;

use super::grow;
use crate::dataset::Scan;
use crate::stages::blocks::graph_file::{self, Cell, GraphWriter};
use crate::stages::blocks::layout::ORDER;
use crate::stages::build::Build;
use crate::stages::options::BuildOptions;
use crate::stages::plan::BuildPlan;
use crate::stages::space::Space;
use crate::stages::tables::write_table;
use crate::stages::vamana::{self, VamanaOptions};

/// Facts of the graph stage.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct GraphFacts {
    pub(crate) cells: Vec<Cell>,
    pub(crate) mean_list: f64,
    /// Nodes whose lists are of an older graph.
    #[serde(default)]
    pub(crate) taken_over: u64,
}

impl GraphFacts {
    pub(crate) fn new(cells: Vec<Cell>, edges: u64) -> GraphFacts {
        let rows = cells.last().map_or(0, |c| c.end);
        GraphFacts { cells, mean_list: edges as f64 / f64::from(rows.max(1)), taken_over: 0 }
    }

    /// Number of cells of a row, in all.
    pub(crate) fn cells_in_use(&self) -> usize {
        self.cells.iter().filter(|c| c.start < c.end).count()
    }
}

pub(crate) fn run(
    build: &mut Build<'_>,
    own: &GraphOptions,
    space: &Space,
    scan: &Scan,
) -> Result<GraphFacts> {
    if is_in_one(build.plan, build.options, own, space, scan.rows) {
        in_one(build, own, space, scan)
    } else {
        super::cells::run(build, own, space, scan)
    }
}

/// Returns whether the graph of `rows` points is built in one piece.
pub(crate) fn is_in_one(
    plan: &BuildPlan,
    options: &BuildOptions,
    own: &GraphOptions,
    space: &Space,
    rows: u64,
) -> bool {
    is_in_one_beside(plan, options, own, space, (rows, 0))
}

/// The same beside so many bytes.
fn is_in_one_beside(
    plan: &BuildPlan,
    options: &BuildOptions,
    own: &GraphOptions,
    space: &Space,
    (rows, more): (u64, u64),
) -> bool {
    let points = more + rows * (space.point_bytes() as u64 + vamana::Graph::bytes(1, own.degree));
    let fits = |budget: u64| {
        let others = plan.ram_bytes.saturating_sub(plan.points_per_cell * plan.point_bytes);
        points + others.min(budget) <= budget
    };
    plan.in_ram && options.ram_budget.is_none_or(fits)
}

/// Builds one graph of all rows, in a single cell.
pub(crate) fn in_one(
    build: &Build<'_>,
    own: &GraphOptions,
    space: &Space,
    scan: &Scan,
) -> Result<GraphFacts> {
    let live = build.live_rows(scan);
    build.progress.stage("reading points", live.len() as u64, "rows");
    let held = space.load(build.base, &live, build.progress)?;
    let options = vamana_options(build, own);
    let from = grow::source(build).filter(|from| {
        let more = vamana::Graph::bytes(grow::gone(from) as usize, own.degree);
        is_in_one_beside(build.plan, build.options, own, space, (scan.rows, more))
    });
    let begun = from.map(|from| grow::begin(build, from, (&held, &live), &options)).transpose()?;
    let inserted = begun.as_ref().map_or(live.len(), |begun| begun.rest.len());
    build.progress.stage("graph", (inserted * options.passes.max(1)) as u64, "points");
    let graph = match begun {
        Some(begun) => vamana::insert(&held, begun.graph, begun.rest, &options, build.progress)?,
        None => vamana::build(&held, held.medoid(), &options, build.progress)?,
    };
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
    let facts = GraphFacts::new(vec![Cell { start: 0, end: live.len() as u32 }], edges);
    Ok(GraphFacts { taken_over: (live.len() - inserted) as u64, ..facts })
}

pub(crate) fn vamana_options(build: &Build<'_>, own: &GraphOptions) -> VamanaOptions {
    let (seed, list) = (build.options.seed, own.build_list);
    VamanaOptions { degree: own.degree, list, alpha: own.alpha, passes: own.passes, seed }
}
