//! `stratann-lab ablation`: measures the effect of each technique of a kind on the user's vectors.

use std::path::{Path, PathBuf};

use stratann_cli::Verdict;
use stratann_cli::options;
use stratann_cli::output::Output;
use stratann_engine::Metric;
use stratann_engine::build::metric_of;
use stratann_params::choices::MetricName;
use stratann_storage::output::{self, OutputPath};
use stratann_storage::{Error, Result};

mod figure;
mod gpu;
mod grid;
mod hybrid;
mod remote;

/// Measure the effect of each technique of a kind on these vectors
///
/// hybrid-ivf: builds an index with the planned local indexes and three with uniform ones, and searches them with
/// techniques switched off, one by one. grid-ivf: pruning on this machine, and on simulated servers the ways to divide
/// the lists, under even and skewed loads. gpu-ivf: an index built with --baselines is searched as other systems do it,
/// each at its cheapest setting that reaches a recall, and with techniques added one by one. remote-hnsw: an index is
/// searched, in its folder or in memory nodes, with its way to load clusters and with the baselines; a model adds the
/// prices of a link.
#[derive(Clone, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Vectors; of gpu-ivf the folder of an index that was built with --baselines, of remote-hnsw that of an index
    base: PathBuf,
    /// Queries
    queries: PathBuf,
    /// Ground truth of the queries
    #[arg(long, value_name = "GT")]
    groundtruth: PathBuf,
    /// Kind of index
    #[arg(long, value_enum, default_value = "hybrid-ivf")]
    kind: KindName,
    /// Folder for the indexes; existing ones are used again (hybrid-ivf, grid-ivf, remote-hnsw)
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Distance (hybrid-ivf, grid-ivf) [default: l2]
    #[arg(long, value_parser = options::choice::<MetricName>())]
    metric: Option<MetricName>,
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
    /// Recalls at which settings are compared [default: 0.9,0.95,0.99; gpu-ivf 0.9,0.92,0.94,0.96,0.98]
    ///
    /// Of remote-hnsw, one recall chooses the clusters that queries search, where --nprobe does not [default: 0.95].
    #[arg(long, value_delimiter = ',')]
    recall: Vec<f64>,
    /// Queries per sweep; learning uses all. Of gpu-ivf the queries that are timed; counters are of all. Of remote-hnsw
    /// the queries of naive; batches are whole
    #[arg(long, default_value_t = 500, value_name = "N")]
    sample: usize,
    /// Queries per epoch of learning (hybrid-ivf) [default: 2000]
    #[arg(long, value_name = "N")]
    epoch_queries: Option<u32>,
    /// Lists to visit while learning (hybrid-ivf) [default: 64]; clusters to search (remote-hnsw) [default: from the
    /// curve]
    #[arg(long, value_name = "N")]
    nprobe: Option<u32>,
    /// Numbers of simulated servers; the first one also under skewed loads (grid-ivf) [default: 4,8,16]
    #[arg(long, value_delimiter = ',', value_name = "N,…")]
    servers: Vec<usize>,
    /// Skew: shares of the work that one server of whole lists would have, 0 to 1 (grid-ivf) [default: 0.4,0.5,0.6]
    #[arg(long, value_delimiter = ',', value_name = "SHARE,…")]
    skew: Vec<f64>,
    /// Costs of work, from an earlier `stratann simulate --json` (grid-ivf, gpu-ivf) [default: measured]
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    /// Codes whose ranking costs as much as one read, where the cheapest setting is sought (gpu-ivf) [default: 1000]
    ///
    /// A disk does 100,000 reads a second, 10 us each; a thread ranks a code in about 10 ns, and a GPU sooner.
    #[arg(long, value_name = "N")]
    codes_per_read: Option<f64>,
    /// Simulate a scorer that ranks a code in so many picoseconds (gpu-ivf) [default: threads rank codes]
    #[arg(long, value_name = "PS")]
    scorer_code_ps: Option<u64>,
    /// A job of the simulated scorer besides its codes, microseconds (gpu-ivf) [default: 0]
    #[arg(long, value_name = "US", requires = "scorer_code_ps")]
    scorer_job_us: Option<f64>,
    /// Threads [default: all cores; remote-hnsw 1]; of gpu-ivf several numbers, that are measured in turn [default: 1
    /// and all cores]
    #[arg(long, value_delimiter = ',', value_parser = options::threads, value_name = "N,…")]
    threads: Vec<usize>,
    /// Plot the charts into this SVG
    #[arg(long, visible_alias = "svg", value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Replace an existing plot
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    remote: remote::RemoteArgs,
}

const EXAMPLES: &str = "\
Examples:
  stratann-lab ablation base.fbin query.fbin --groundtruth truth.ibin -o /tmp/ablation --ram-budget 64MiB \\
    --plot ablation.svg
  stratann-lab ablation base.fbin query.fbin --groundtruth truth.ibin -o /tmp/ablation --kind grid-ivf \\
    --servers 4,8 --plot grid.svg
  stratann-lab ablation base.idx query.u8bin --groundtruth truth.ibin --kind gpu-ivf --recall 0.9,0.95 \\
    --svg gpu.svg
  stratann-lab ablation base.idx query.u8bin --groundtruth truth.ibin --kind remote-hnsw \\
    --memory 10.0.0.1:8800 --key-file key --vectors base.u8bin -o /tmp/partitions --svg remote.svg";

/// Kinds that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum KindName {
    /// Lists with local indexes on disk.
    #[value(name = "hybrid-ivf")]
    Hybrid,
    /// Lists in memory, scanned component by component.
    #[value(name = "grid-ivf")]
    Grid,
    /// Codes with a scorer, vectors on disk.
    #[value(name = "gpu-ivf")]
    Gpu,
    /// Clusters with graphs of their own, loaded for batches.
    #[value(name = "remote-hnsw")]
    Remote,
}

impl KindName {
    fn name(self) -> &'static str {
        match self {
            KindName::Hybrid => "hybrid-ivf",
            KindName::Grid => "grid-ivf",
            KindName::Gpu => "gpu-ivf",
            KindName::Remote => "remote-hnsw",
        }
    }
}

/// Runs `stratann-lab ablation`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    if let Some(wrong) = args.recall.iter().find(|r| !(0.0..=1.0).contains(*r)) {
        return Err(Error::bad_input(format!("--recall is {wrong}; give shares from 0 to 1")));
    }
    args.check_kind()?;
    let args = &args.with_recalls();
    if args.output.is_some() {
        output::check_folder(args.folder())?;
    }
    match args.kind {
        KindName::Gpu => gpu::run(args, output),
        KindName::Remote => remote::run(args, output),
        KindName::Hybrid => hybrid::run(args, output),
        KindName::Grid => grid::run(args, output),
    }
}

impl Args {
    /// Refuses options of other kinds, and asks for those of this one.
    fn check_kind(&self) -> Result<()> {
        use KindName::{Gpu, Grid, Hybrid, Remote};
        let all: [(&str, bool, &[KindName]); 14] = [
            ("--ram-budget", self.ram_budget.is_some(), &[Hybrid]),
            ("--profile", self.profile.is_some(), &[Hybrid]),
            ("--epoch-queries", self.epoch_queries.is_some(), &[Hybrid]),
            ("--nprobe", self.nprobe.is_some(), &[Hybrid, Remote]),
            ("--servers", !self.servers.is_empty(), &[Grid]),
            ("--skew", !self.skew.is_empty(), &[Grid]),
            ("--costs", self.costs.is_some(), &[Grid, Gpu]),
            ("--output", self.output.is_some(), &[Hybrid, Grid, Remote]),
            ("--metric", self.metric.is_some(), &[Hybrid, Grid]),
            ("--clusters", self.clusters.is_some(), &[Hybrid, Grid]),
            ("--codes-per-read", self.codes_per_read.is_some(), &[Gpu]),
            ("--scorer-code-ps", self.scorer_code_ps.is_some(), &[Gpu]),
            ("several --threads", self.threads.len() > 1, &[Gpu]),
            ("an option of remote-hnsw", self.remote.is_given(), &[Remote]),
        ];
        let wrong = all.iter().find(|(_, is_given, kinds)| *is_given && !kinds.contains(&self.kind));
        if let Some((option, ..)) = wrong {
            return Err(Error::bad_input(format!("{option} is not for {}; leave it out", self.kind.name())));
        }
        if ![Gpu, Remote].contains(&self.kind) && self.output.is_none() {
            return Err(Error::bad_input("--output is missing; name a folder for the indexes"));
        }
        Ok(())
    }

    /// Arguments with the recalls of the kind, where none is given.
    fn with_recalls(&self) -> Args {
        let usual: &[f64] = match self.kind {
            KindName::Hybrid | KindName::Grid => &[0.9, 0.95, 0.99],
            KindName::Gpu => &[0.9, 0.92, 0.94, 0.96, 0.98],
            KindName::Remote => &[0.95],
        };
        let recall = if self.recall.is_empty() { usual.to_vec() } else { self.recall.clone() };
        Args { recall, ..self.clone() }
    }

    fn folder(&self) -> &Path {
        self.output.as_deref().unwrap_or(Path::new(""))
    }

    fn threads(&self) -> usize {
        self.threads.iter().copied().max().unwrap_or_else(options::all_cores)
    }

    fn metric(&self) -> Metric {
        metric_of(self.metric.unwrap_or(MetricName::L2))
    }
}

/// Checks the path of the plot, before indexes are built.
fn plot_path(args: &Args) -> Result<Option<OutputPath>> {
    let Some(path) = &args.plot else { return Ok(None) };
    if args.output.as_ref() == Some(path) {
        return Err(Error::bad_input(format!(
            "{} is the folder for the indexes; give another name with --plot",
            path.display()
        )));
    }
    let mut inputs = vec![args.base.as_path(), &args.queries, &args.groundtruth];
    inputs.extend(args.profile.as_deref());
    OutputPath::check(path, args.force, &inputs).map(Some)
}
