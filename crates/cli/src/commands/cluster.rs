//! `stratann cluster`: an index on several servers.

use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};
use stratann_capacity::costs::Prices;
use stratann_engine::kinds::division::{GridPartition, Mode};
use stratann_engine::spread::{self, Method, PartitionOptions, PartitionReport, scatter};
use stratann_storage::Result;
use stratann_storage::budget::size;

use crate::output::{Output, count, duration, table};
use crate::plans::plans;
use crate::progress::ProgressPrinter;
use crate::{Verdict, options};

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
    /// Servers that hold each block or list; further replicas are placed where they save hand-overs
    #[arg(long, default_value_t = 1, value_name = "R")]
    replicas: usize,
    /// Share of the blocks with one additional replica: those with the most cut edges; not for lists [default: 0]
    #[arg(
        long,
        value_name = "SHARE",
        default_value_t = 0.0,
        hide_default_value = true,
        allow_negative_numbers = true
    )]
    overlap: f64,
    /// Partitioning method
    #[arg(long, value_enum, default_value = "cells")]
    method: MethodName,
    /// Plan of a grid-ivf [default: harmony]
    #[arg(long, value_enum, value_name = "MODE")]
    mode: Option<PlanName>,
    /// Queries as they will come, for the planner of a grid-ivf [default: vectors of the index]
    #[arg(long, value_name = "FILE")]
    queries: Option<PathBuf>,
    /// Lists that a query of the sample visits [default: as calibrated for recall 0.95, or 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    nprobe: Option<u32>,
    /// Recall that queries ask for: visit as many lists as were calibrated for it [default: 0.95]
    #[arg(long, value_name = "RECALL", conflicts_with = "nprobe")]
    recall: Option<f64>,
    #[command(flatten)]
    prices: PlanPrices,
    /// Deal inverted lists by their bytes alone, not also by what queries have visited
    ///
    /// A hybrid-ivf counts visits while it is searched (learnt.bin).
    #[arg(long)]
    no_traffic: bool,
    /// Deal inverted lists by what the servers of an earlier partition in DIR have learnt, too (repeatable)
    #[arg(long, value_name = "DIR", conflicts_with = "no_traffic")]
    traffic: Vec<PathBuf>,
    /// Limit of all memory of this command, such as 512MiB [default: no limit]
    ///
    /// When memory is short, incoming edges of blocks have no weights and there are fewer cells: a few more edges are
    /// cut.
    #[arg(long, value_name = "SIZE", value_parser = options::size)]
    ram_budget: Option<u64>,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads [default: all cores]; they do not change the result
    #[arg(long, value_parser = options::threads)]
    threads: Option<usize>,
    /// Replace the index in DIR
    #[arg(long)]
    force: bool,
    /// Build a separate index per server over its own rows instead, for scatter-gather (to compare)
    ///
    /// For a disk-graph. Rows are divided like blocks, and each server's index is built with the parameters of the
    /// source. DIR/server-00, DIR/server-01, … are ordinary indexes.
    #[arg(long)]
    scatter_gather: bool,
    /// Number of separate indexes [default: one per server]; each is partitioned over an equal share of the servers
    ///
    /// A query is asked of every part, and handed over within each. --replicas and --overlap hold within a part.
    #[arg(long, value_name = "N", requires = "scatter_gather")]
    parts: Option<usize>,
}

/// What the planner of a grid-ivf weighs work and messages with.
#[derive(clap::Args)]
struct PlanPrices {
    /// Prices of work and messages from FILE, which `stratann simulate --json` printed [default: timed]
    ///
    /// Equal costs, index and queries give equal plans.
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    /// Weight of the imbalance of servers against the work of all [default: the number of servers]
    #[arg(long, value_name = "FACTOR", value_parser = price)]
    alpha: Option<f64>,
    /// Microseconds of a message, for the planner [default: measured on the loopback interface]
    #[arg(long, value_name = "TIME", value_parser = price)]
    message_us: Option<f64>,
    /// Nanoseconds of each byte of a message, for the planner [default: measured on the loopback interface]
    #[arg(long, value_name = "TIME", value_parser = price)]
    byte_ns: Option<f64>,
}

impl PlanPrices {
    /// What is given; the rest is measured.
    fn read(&self) -> Result<GridPartition> {
        let costs = match &self.costs {
            Some(path) => Prices::read(path)?.of_plan(),
            None => GridPartition::default(),
        };
        Ok(GridPartition {
            alpha: self.alpha,
            message_ns: self.message_us.map(|us| 1e3 * us).or(costs.message_ns),
            byte_ns: self.byte_ns.or(costs.byte_ns),
            ..costs
        })
    }
}

/// `--method`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum MethodName {
    /// A graph partition of many small cells, refined block by block.
    Cells,
    /// k-means with one centroid per server, balanced.
    Kmeans,
    /// By hash (to compare).
    Random,
}

impl From<MethodName> for Method {
    fn from(name: MethodName) -> Method {
        match name {
            MethodName::Cells => Method::Cells,
            MethodName::Kmeans => Method::Kmeans,
            MethodName::Random => Method::Random,
        }
    }
}

/// `--mode`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum PlanName {
    /// The cheapest grid of rows of lists and slices of components, by what a sample of queries costs.
    Harmony,
    /// Whole lists on each server.
    Vector,
    /// A slice of the components of every list on each server.
    Dimension,
    /// An equal share of the vectors of every list on each server.
    Striped,
}

impl From<PlanName> for Mode {
    fn from(name: PlanName) -> Mode {
        match name {
            PlanName::Harmony => Mode::Harmony,
            PlanName::Vector => Mode::Vector,
            PlanName::Dimension => Mode::Dimension,
            PlanName::Striped => Mode::Striped,
        }
    }
}

/// A finite number that is not negative.
fn price(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|x| x.is_finite() && *x >= 0.0);
    number.ok_or_else(|| format!("{text} is not a number from 0 on"))
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
    let options = PartitionOptions {
        servers: args.servers,
        replicas: args.replicas,
        overlap: args.overlap,
        method: args.method.into(),
        grid: args.grid()?,
        traffic: !args.no_traffic,
        traffic_from: args.traffic.clone(),
        ram_budget: args.ram_budget,
        seed: args.seed,
        threads: args.threads.unwrap_or_else(options::all_cores),
        force: args.force,
    };
    if args.scatter_gather {
        return separate(args, &options, output);
    }
    let account = spread::plan(&args.index, &options)?;
    output.note(&format!("{}: memory up to {}", args.index.display(), size(account.total())));
    let printer = ProgressPrinter::new(output);
    let report = spread::partition(&args.index, &args.output, &options, &printer)?;
    printer.finish();
    output.result(&report, || text(args, &report))?;
    Ok(Verdict::Fine)
}

fn separate(args: &Partition, options: &PartitionOptions, output: Output) -> Result<Verdict> {
    let printer = ProgressPrinter::new(output);
    let parts = args.parts.unwrap_or(options.servers);
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

impl Partition {
    fn grid(&self) -> Result<GridPartition> {
        Ok(GridPartition {
            mode: self.mode.map_or(Mode::default(), Mode::from),
            queries: self.queries.clone(),
            nprobe: self.nprobe,
            recall: self.recall,
            ..self.prices.read()?
        })
    }
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
