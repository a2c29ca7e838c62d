//! `stratann explain --plan`: the ways to divide a `grid-ivf` over servers.

use std::path::PathBuf;

use stratann_engine::index::Index;
use stratann_engine::kinds::division::GridPartition;
use stratann_engine::search::Effort;
use stratann_engine::spread::{self, PartitionOptions};
use stratann_storage::{Error, Result};

use crate::Verdict;
use crate::output::Output;
use crate::plans::plans;
use crate::progress::ProgressPrinter;

/// Compares the ways to divide an index over servers, by queries as they will come.
pub(super) fn explain_plan(
    index: &Index,
    servers: usize,
    queries: Option<PathBuf>,
    effort: Effort,
    output: Output,
) -> Result<Verdict> {
    let nprobe = if let Effort::Nprobe(nprobe, ..) = effort { Some(nprobe) } else { None };
    let grid = GridPartition { queries, nprobe, ..GridPartition::default() };
    let options = PartitionOptions { grid, ..PartitionOptions::new(servers) };
    let printer = ProgressPrinter::new(output);
    let placed = spread::place(index, &options, &printer)?;
    printer.finish();
    let plan = placed.plan.ok_or_else(|| Error::bad_input("no planner divides this kind of index"))?;
    output.result(&plan, || plans(&plan))?;
    Ok(Verdict::Fine)
}
