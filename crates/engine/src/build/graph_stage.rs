//! The stage that makes the graph: in RAM when the budget allows, else cell by cell.

use std::path::Path;

use serde::{Deserialize, Serialize};
use stratann_core::build::Lists;

use super::graph_file::{Cell, GraphWriter};
use super::space::Space;
use super::stages::Build;
use super::vamana::{self, VamanaOptions};
use crate::dataset::Scan;
use crate::manifest::write_synced;
use crate::{Error, Result};

pub(super) const GRAPH: &str = "graph.tmp";
pub(super) const ORDER: &str = "order.tmp";

/// Facts that the graph leaves.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct GraphFacts {
    pub(super) cells: Vec<Cell>,
    pub(super) mean_list: f64,
}

pub(super) fn run(build: &mut Build<'_>, space: &Space, scan: &Scan) -> Result<GraphFacts> {
    let live = build.live_rows(scan);
    let points =
        live.len() as u64 * (space.point_bytes() as u64 + vamana::Graph::bytes(1, build.options.degree));
    let fits = build.options.ram_budget.is_none_or(|b| {
        let others = build.plan.ram_bytes.saturating_sub(build.plan.points_per_cell * build.plan.point_bytes);
        points + others.min(b) <= b && build.plan.in_ram
    });
    if !fits {
        return super::cells::run(build, space, &live);
    }
    build.progress.stage("reading points", live.len() as u64, "rows");
    let held = space.load(build.base, &live, build.progress)?;
    let options = vamana_options(build);
    build.progress.stage("graph", (live.len() * options.passes.max(1)) as u64, "points");
    let graph = vamana::build(&held, held.medoid(), &options, build.progress)?;
    drop(held);
    let mut writer = GraphWriter::create(&build.partial.path(GRAPH), options.degree)?;
    let mut edges = 0;
    for position in 0..live.len() as u32 {
        let list = graph.list(position);
        edges += list.len();
        writer.write(list.iter().map(|&p| live[p as usize]))?;
    }
    writer.finish()?;
    write_order(&build.partial.path(ORDER), &live)?;
    let cells = vec![Cell { start: 0, end: live.len() as u32 }];
    Ok(GraphFacts { cells, mean_list: edges as f64 / live.len() as f64 })
}

pub(super) fn vamana_options(build: &Build<'_>) -> VamanaOptions {
    let o = build.options;
    VamanaOptions { degree: o.degree, list: o.build_list, alpha: o.alpha, passes: o.passes, seed: o.seed }
}

/// Writes a table of u32.
pub(super) fn write_order(path: &Path, order: &[u32]) -> Result<()> {
    write_synced(path, bytemuck::cast_slice(order)).map_err(|e| Error::io("writing", path, &e))
}

/// Reads a table of u32.
pub(super) fn read_order(path: &Path) -> Result<Vec<u32>> {
    use std::io::Read;
    let failed = |e: std::io::Error| Error::io("reading", path, &e);
    let mut file = std::fs::File::open(path).map_err(failed)?;
    let mut order = vec![0u32; (file.metadata().map_err(failed)?.len() / 4) as usize];
    file.read_exact(bytemuck::cast_slice_mut(&mut order)).map_err(failed)?;
    Ok(order)
}
