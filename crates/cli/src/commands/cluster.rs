//! `stratann cluster`: an index on several servers.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use stratann_capacity::costs::Prices;
use stratann_engine::kinds::division::GridPartition;
use stratann_engine::kinds::known::facts;
use stratann_engine::manifest::Manifest;
use stratann_engine::spread::{self, PartitionOptions, PartitionReport, scatter};
use stratann_params::partition::{DivisionSettings, SeparateSettings};
use stratann_params::{Given, Place, Stage};
use stratann_storage::Result;
use stratann_storage::budget::size;

use crate::Verdict;
use crate::output::{Output, count, duration, table};
use crate::parameters::{Parameters, Rows};
use crate::plans::plans;
use crate::progress::ProgressPrinter;

mod publish;
mod replan;
pub mod up;

/// Partition an index over several servers, publish it, and run a cluster on this machine
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Partition(Partition),
    Publish(publish::Publish),
    Replan(replan::Replan),
    Up(up::Up),
}

/// Partition a finished disk-graph, hybrid-ivf or grid-ivf index over servers
///
/// What a query reads one after the other stays together, so that queries are rarely handed over: blocks with many
/// edges between them, or near inverted lists; a cluster of lists stays whole. What says where to go is on every server
/// (as hard links where the file system allows): codes, block map and head graph of a disk-graph; navigation graph,
/// centroids and directory of a hybrid-ivf; the codebook of both. The source is not changed. Equal index, options and
/// seed give equal files, whatever the number of threads.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
struct Partition {
    /// Folder of the index to partition
    index: PathBuf,
    /// Folder for the result
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Number of servers, 1 to 64
    #[arg(long, value_name = "N")]
    servers: usize,
    #[command(flatten)]
    table: Parameters<PartitionRows>,
}

/// The table's options of partitions.
struct PartitionRows;

impl Rows for PartitionRows {
    const STAGES: &'static [Stage] = &[Stage::Partition];
}

/// The division of a grid-ivf that is asked for; prices that are not given are measured.
fn division(given: &Given) -> Result<GridPartition> {
    let settings: DivisionSettings = given.read();
    let own = GridPartition::read(&settings);
    let Some(path) = &settings.costs else { return Ok(own) };
    let costs = Prices::read(path)?.of_plan();
    Ok(GridPartition {
        component_ns: costs.component_ns,
        prepare_ns: costs.prepare_ns,
        step_ns: costs.step_ns,
        message_ns: own.message_ns.or(costs.message_ns),
        byte_ns: own.byte_ns.or(costs.byte_ns),
        ..own
    })
}

const EXAMPLES: &str = "\
Examples:
  stratann cluster partition base.idx -o spread --servers 10
  stratann cluster partition base.idx -o spread --servers 10 --replicas 2   # any one server may fail
  stratann cluster partition base.idx -o spread --servers 10 --overlap 0.2  # fewer hand-overs for a fifth more disk
  stratann cluster partition base.idx -o apart --servers 10 --scatter-gather # ten separate indexes
  stratann cluster partition base.idx -o apart --servers 6 --scatter-gather --parts 3 --replicas 2

`stratann info DIR` shows the partition, `stratann verify DIR` checks all of it.";

/// Runs `stratann cluster`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    match &args.command {
        Command::Partition(args) => partition(args, output),
        Command::Publish(args) => publish::run(args, output),
        Command::Replan(args) => replan::run(args, output),
        Command::Up(args) => up::run(args, output),
    }
}

fn partition(args: &Partition, output: Output) -> Result<Verdict> {
    let given = &args.table.given;
    // An index that is not partitioned at all is refused with those that are.
    if let Some(kind) = Manifest::read(&args.index)?.1.kind().filter(|&kind| facts(kind).is_spreadable) {
        args.table.check([kind], Place::Folder)?;
    }
    let options = PartitionOptions { grid: division(given)?, ..PartitionOptions::read(given, args.servers) };
    let separate_indexes: SeparateSettings = given.read();
    if separate_indexes.scatter_gather {
        return separate(args, &options, separate_indexes.parts, output);
    }
    let account = spread::plan(&args.index, &options)?;
    output.note(&format!("{}: memory up to {}", args.index.display(), size(account.total())));
    let printer = ProgressPrinter::new(output);
    let report = spread::partition(&args.index, &args.output, &options, &printer)?;
    printer.finish();
    output.result(&report, || text(args, &report))?;
    Ok(Verdict::Fine)
}

fn separate(
    args: &Partition,
    options: &PartitionOptions,
    parts: Option<usize>,
    output: Output,
) -> Result<Verdict> {
    let printer = ProgressPrinter::new(output);
    let parts = parts.unwrap_or(options.servers);
    let report = scatter::scatter(&args.index, &args.output, (options, parts), &printer)?;
    printer.finish();
    output.result(&report, || {
        let made = &report.description;
        let part = |part: usize| {
            let folder = made.folder(Path::new(""), part);
            vec![
                folder.display().to_string(),
                count(made.rows[part]),
                size(report.index_bytes[part]),
                duration(report.build_seconds[part]),
            ]
        };
        let rows: Vec<Vec<String>> = (0..made.count()).map(part).collect();
        format!(
            "{}\n{}: {} indexes on {} servers, together {}, in {}; peak memory {}\n",
            table(&["index", "rows", "size", "time"], &rows),
            args.output.display(),
            made.count(),
            made.servers,
            size(report.index_bytes.iter().sum()),
            duration(report.seconds),
            size(report.peak_rss_bytes),
        )
    })?;
    Ok(Verdict::Fine)
}

fn text(args: &Partition, report: &PartitionReport) -> String {
    let mut rows: Vec<Vec<String>> =
        report.stages.iter().map(|(name, s)| vec![name.clone(), duration(*s)]).collect();
    rows.push(vec!["all".into(), duration(report.seconds)]);
    let unit = report.unit;
    let largest = report.server_bytes.iter().copied().max().unwrap_or(0);
    let why = match &report.plan {
        Some(plan) => plans(plan),
        None => format!("{:.1} % of the edges between {unit} are cut\n", 100.0 * report.cut_share),
    };
    let busiest = report.busiest_over_mean.filter(|_| report.plan.is_none());
    format!(
        "{}\n{}: {} {unit} on {} servers, {} replicas in all; at most {} of {unit} on a server and {} shared by all; \
         peak memory {}\n{why}the largest server holds {:.3} times the mean\n{}",
        table(&["stage", "time"], &rows),
        args.output.display(),
        count(u64::from(report.blocks)),
        report.servers,
        count(report.copies),
        size(largest),
        size(report.shared_bytes),
        size(report.peak_rss_bytes),
        report.largest_over_mean,
        busiest.map_or(String::new(), |times| format!(
            "by the queries that it has learnt from, the busiest server has {times:.2} times the mean of visits\n"
        )),
    )
}
