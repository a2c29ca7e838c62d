//! Trace of one `grid-ivf` query, as JSON and as text.

use std::path::PathBuf;

use serde::Serialize;
use stratann_engine::explain::grid::{GridTrace, Left, ScanTrace};
use stratann_engine::index::Index;
use stratann_engine::kinds::division::GridPartition;
use stratann_engine::search::Effort;
use stratann_engine::spread::{self, PartitionOptions};
use stratann_storage::{Error, Result};

use crate::Verdict;
use crate::commands::search::PerQuery;
use crate::output::{Output, count, table};
use crate::plans::plans;
use crate::progress::ProgressPrinter;

#[derive(Serialize)]
struct Document<'a> {
    query: usize,
    #[serde(flatten)]
    trace: &'a GridTrace,
    counters: PerQuery,
}

/// Traces a query over lists in memory. Returns whether it is complete, and why it ended.
pub(super) fn show(query: usize, trace: GridTrace, output: Output) -> Result<(bool, String)> {
    let document = Document { query, trace: &trace, counters: PerQuery::of(&trace.stats, 1) };
    output.result(&document, || text(query, &trace))?;
    Ok((trace.complete, "all lists were scanned".into()))
}

/// Compares the ways to divide an index over servers, by queries as they will come.
pub(super) fn explain_plan(
    index: &Index,
    (servers, queries, effort): (usize, Option<PathBuf>, Effort),
    output: Output,
) -> Result<Verdict> {
    let nprobe = if let Effort::Clusters(nprobe, ..) = effort { Some(nprobe) } else { None };
    let grid = GridPartition { queries, nprobe, ..GridPartition::default() };
    let options = PartitionOptions { grid, ..PartitionOptions::new(servers) };
    let printer = ProgressPrinter::new(output);
    let placed = spread::place(index, &options, &printer)?;
    printer.finish();
    let plan = placed.plan.ok_or_else(|| Error::bad_input("no planner divides this kind of index"))?;
    output.result(&plan, || plans(&plan))?;
    Ok(Verdict::Fine)
}

fn text(query: usize, trace: &GridTrace) -> String {
    let stats = &trace.stats;
    let mut out = format!("query {query}: k {}, nprobe {}\n\n", trace.k, trace.nprobe);
    let rows: Vec<Vec<String>> =
        trace.lists.iter().map(|scan| row(scan, stats.components_unpruned, trace)).collect();
    out += &table(&["list", "distance", "members", "compared whole", "components", "share"], &rows);
    out += "\n";
    let members: u64 = trace.lists.iter().map(|list| u64::from(list.members)).sum();
    let rows: Vec<Vec<String>> = trace.left.iter().map(|left| left_row(left, members)).collect();
    out += &table(&["after", "vectors left", "share"], &rows);
    let share = |part: u64| 100.0 * part as f64 / stats.components_unpruned.max(1) as f64;
    out += &format!(
        "\n{} lists scanned; {} vectors compared whole, {} dropped before\n\
         {} components compared, {:.1} % of those in the lists; {} of them first, for a threshold\n\n",
        stats.lists,
        count(stats.full_comparisons),
        count(stats.pruned),
        count(stats.components),
        share(stats.components),
        count(trace.prewarmed_components)
    );
    out + &super::results(&trace.ids, &trace.distances)
}

fn left_row(left: &Left, members: u64) -> Vec<String> {
    let after = match left.components {
        0 => "the pilot".to_string(),
        components => format!("{components} components"),
    };
    let share = 100.0 * left.vectors as f64 / members.max(1) as f64;
    vec![after, count(left.vectors), format!("{share:.1} %")]
}

fn row(scan: &ScanTrace, unpruned: u64, trace: &GridTrace) -> Vec<String> {
    let members: u64 = trace.lists.iter().map(|list| u64::from(list.members)).sum();
    let dim = unpruned / members.max(1);
    let share = 100.0 * scan.components as f64 / (u64::from(scan.members) * dim).max(1) as f64;
    vec![
        scan.list.to_string(),
        format!("{:.4}", scan.centroid_distance),
        count(scan.members.into()),
        count(scan.finished.into()),
        count(scan.components),
        format!("{share:.1} %"),
    ]
}
