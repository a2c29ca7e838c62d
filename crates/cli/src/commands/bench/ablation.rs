//! `stratann bench ablation`: measures the effect of each technique of a kind on the user's vectors.

use std::path::PathBuf;

use stratann_engine::output::{self, OutputPath};
use stratann_engine::{Error, Result};

use crate::Verdict;
use crate::options::{self, MetricName};
use crate::output::Output;

mod figure;
mod grid;
mod hybrid;

/// Measure the effect of each technique of a kind on these vectors
///
/// hybrid-ivf: builds an index with the planned local indexes and three with uniform ones, and searches them with
/// techniques switched off, one by one. grid-ivf: pruning on this machine, and on simulated servers the ways to divide
/// the lists, under even and skewed loads.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Vectors
    base: PathBuf,
    /// Queries
    queries: PathBuf,
    /// Ground truth of the queries
    #[arg(long, value_name = "GT")]
    groundtruth: PathBuf,
    /// Kind of index
    #[arg(long, value_enum, default_value = "hybrid-ivf")]
    kind: KindName,
    /// Folder for the indexes; existing ones are used again
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Distance
    #[arg(long, value_enum, default_value = "l2")]
    metric: MetricName,
    /// Results per query
    #[arg(short, default_value_t = 10)]
    k: usize,
    /// Limit of all memory of index and search, also of the plan (hybrid-ivf) [default: no limit, codes on disk]
    #[arg(long, value_name = "SIZE", value_parser = options::size)]
    ram_budget: Option<u64>,
    /// Number of inverted lists [default: that of `build`]
    #[arg(long, value_name = "N")]
    clusters: Option<usize>,
    /// Cost profile of this machine, from `stratann profile` (hybrid-ivf) [default: measured]
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Recalls at which settings are compared
    #[arg(long, value_delimiter = ',', default_value = "0.9,0.95,0.99")]
    recall: Vec<f64>,
    /// Queries per sweep; learning uses all
    #[arg(long, default_value_t = 500, value_name = "N")]
    sample: usize,
    /// Queries per epoch of learning (hybrid-ivf) [default: 2000]
    #[arg(long, value_name = "N")]
    epoch_queries: Option<u32>,
    /// Lists to visit while learning (hybrid-ivf) [default: 64]
    #[arg(long, value_name = "N")]
    nprobe: Option<u32>,
    /// Numbers of simulated servers; the first one also under skewed loads (grid-ivf) [default: 4,8,16]
    #[arg(long, value_delimiter = ',', value_name = "N,…")]
    servers: Vec<usize>,
    /// Skew: shares of the work that one server of whole lists would have, 0 to 1 (grid-ivf) [default: 0.4,0.5,0.6]
    #[arg(long, value_delimiter = ',', value_name = "SHARE,…")]
    skew: Vec<f64>,
    /// Costs of work, from an earlier `stratann simulate --json` (grid-ivf) [default: measured]
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    /// Threads [default: all cores]
    #[arg(long, value_parser = options::threads)]
    threads: Option<usize>,
    /// Plot the charts into this SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Replace an existing plot
    #[arg(long)]
    force: bool,
}

const EXAMPLES: &str = "\
Examples:
  stratann bench ablation base.fbin query.fbin --groundtruth truth.ibin -o /tmp/ablation --ram-budget 64MiB \\
    --plot ablation.svg
  stratann bench ablation base.fbin query.fbin --groundtruth truth.ibin -o /tmp/ablation --kind grid-ivf \\
    --servers 4,8 --plot grid.svg";

/// Kinds that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum KindName {
    /// Lists with local indexes on disk.
    HybridIvf,
    /// Lists in memory, scanned component by component.
    GridIvf,
}

/// Runs `stratann bench ablation`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    if let Some(wrong) = args.recall.iter().find(|r| !(0.0..=1.0).contains(*r)) {
        return Err(Error::bad_input(format!("--recall is {wrong}; give shares from 0 to 1")));
    }
    args.check_kind()?;
    output::check_folder(&args.output)?;
    match args.kind {
        KindName::HybridIvf => hybrid::run(args, output),
        KindName::GridIvf => grid::run(args, output),
    }
}

impl Args {
    /// Refuses options of the other kind.
    fn check_kind(&self) -> Result<()> {
        let (name, others) = match self.kind {
            KindName::HybridIvf => (
                "hybrid-ivf",
                [
                    ("--servers", !self.servers.is_empty()),
                    ("--skew", !self.skew.is_empty()),
                    ("--costs", self.costs.is_some()),
                    ("", false),
                ],
            ),
            KindName::GridIvf => (
                "grid-ivf",
                [
                    ("--ram-budget", self.ram_budget.is_some()),
                    ("--profile", self.profile.is_some()),
                    ("--epoch-queries", self.epoch_queries.is_some()),
                    ("--nprobe", self.nprobe.is_some()),
                ],
            ),
        };
        match others.iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => Err(Error::bad_input(format!("{option} is not for {name}; leave it out"))),
            None => Ok(()),
        }
    }
}

/// Checks the path of the plot, before indexes are built.
fn plot_path(args: &Args) -> Result<Option<OutputPath>> {
    let Some(path) = &args.plot else { return Ok(None) };
    if *path == args.output {
        return Err(Error::bad_input(format!(
            "{} is the folder for the indexes; give another name with --plot",
            path.display()
        )));
    }
    let mut inputs = vec![args.base.as_path(), &args.queries, &args.groundtruth];
    inputs.extend(args.profile.as_deref());
    OutputPath::check(path, args.force, &inputs).map(Some)
}
