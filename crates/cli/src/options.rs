//! Options that several commands share, and how their values are read.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use stratann_core::query::Mode;
use stratann_core::query::wire::{Carry, Results};
use stratann_engine::budget::parse_size;
use stratann_engine::driver::{Admission, Width};
use stratann_engine::tier::IoChoice;
use stratann_engine::{DType, Error, Metric, Result as Checked, build, dataset};

use crate::remote;

/// `--metric`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum MetricName {
    /// Squared Euclidean distance.
    L2,
    /// Minus the inner product.
    Ip,
    /// One minus the cosine of the angle.
    #[value(alias = "cos")]
    Cosine,
}

impl From<MetricName> for Metric {
    fn from(name: MetricName) -> Metric {
        match name {
            MetricName::L2 => Metric::L2,
            MetricName::Ip => Metric::Ip,
            MetricName::Cosine => Metric::Cosine,
        }
    }
}

/// `--kind`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum KindName {
    /// What suits the vectors, and the RAM of --search-budget.
    Auto,
    /// A graph on disk, walked by codes in RAM.
    DiskGraph,
    /// Clusters on disk, each with a local index of its own: for memory far smaller than the vectors.
    HybridIvf,
    /// All vectors on disk, scanned: exact, for small sets.
    Flat,
}

impl KindName {
    /// The kind; `None` for the one that suits.
    pub(crate) fn kind(self) -> Option<build::Kind> {
        match self {
            KindName::Auto => None,
            KindName::DiskGraph => Some(build::Kind::DiskGraph),
            KindName::HybridIvf => Some(build::Kind::HybridIvf),
            KindName::Flat => Some(build::Kind::Flat),
        }
    }
}

/// `--code-kind`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum CodeKindName {
    /// Product quantisation of the vectors as they are.
    Pq,
    /// After a learned rotation.
    Opq,
    /// After a learned rotation, of what a coarse centroid leaves.
    ResidualOpq,
}

impl From<CodeKindName> for build::CodeKind {
    fn from(name: CodeKindName) -> build::CodeKind {
        match name {
            CodeKindName::Pq => build::CodeKind::Pq,
            CodeKindName::Opq => build::CodeKind::Opq,
            CodeKindName::ResidualOpq => build::CodeKind::ResidualOpq,
        }
    }
}

/// `--codes`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum CodePlaceName {
    /// In RAM, all of them: the fewest bytes read, the smallest index.
    Ram,
    /// On disk, in each block those of all neighbours: a quarter of the RAM, an index about three times as large.
    Disk,
}

impl From<CodePlaceName> for build::CodePlace {
    fn from(name: CodePlaceName) -> build::CodePlace {
        match name {
            CodePlaceName::Ram => build::CodePlace::Ram,
            CodePlaceName::Disk => build::CodePlace::Disk,
        }
    }
}

/// `--on-bad-row`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum OnBadRowName {
    /// Stop, and name the first one.
    Fail,
    /// Leave them out, and say how many.
    Skip,
}

impl From<OnBadRowName> for dataset::OnBadRow {
    fn from(name: OnBadRowName) -> dataset::OnBadRow {
        match name {
            OnBadRowName::Fail => dataset::OnBadRow::Fail,
            OnBadRowName::Skip => dataset::OnBadRow::Skip,
        }
    }
}

/// `--plan`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum PlanName {
    /// The one that costs least, cluster by cluster.
    Auto,
    /// All codes of a cluster are scanned.
    UniformFlat,
    /// Every cluster is a graph.
    UniformGraph,
    /// Every cluster is divided into lists.
    UniformIvf,
}

impl From<PlanName> for build::LocalPlan {
    fn from(name: PlanName) -> build::LocalPlan {
        use stratann_core::format::directory::LocalKind;

        match name {
            PlanName::Auto => build::LocalPlan::Auto,
            PlanName::UniformFlat => build::LocalPlan::Uniform(LocalKind::Flat),
            PlanName::UniformGraph => build::LocalPlan::Uniform(LocalKind::Graph),
            PlanName::UniformIvf => build::LocalPlan::Uniform(LocalKind::Ivf),
        }
    }
}

/// `--mode`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ModeName {
    /// A step waits for all of its reads: equal answers on every run.
    Barrier,
    /// A step uses what came first: lower latency, a few more reads.
    Eager,
}

impl From<ModeName> for Mode {
    fn from(name: ModeName) -> Mode {
        match name {
            ModeName::Barrier => Mode::Barrier,
            ModeName::Eager => Mode::Eager,
        }
    }
}

/// `--admission`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum AdmissionName {
    /// One query at a time per thread.
    One,
    /// A batch at a time: the next starts when all of it has ended.
    Batch,
    /// A fixed number: a query that ends is replaced at once.
    Fixed,
}

impl From<AdmissionName> for Admission {
    fn from(name: AdmissionName) -> Admission {
        match name {
            AdmissionName::One => Admission::One,
            AdmissionName::Batch => Admission::Batch,
            AdmissionName::Fixed => Admission::Fixed,
        }
    }
}

/// The name that `--admission` takes for it.
pub(crate) fn admission_name(admission: Admission) -> &'static str {
    match admission {
        Admission::One => "one",
        Admission::Batch => "batch",
        Admission::Fixed => "fixed",
    }
}

/// `--io`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum IoName {
    /// io_uring where the kernel allows it, else pread.
    Auto,
    /// io_uring, or an error.
    Uring,
    /// Threads that call pread.
    Pread,
}

impl From<IoName> for IoChoice {
    fn from(name: IoName) -> IoChoice {
        match name {
            IoName::Auto => IoChoice::Auto,
            IoName::Uring => IoChoice::Uring,
            IoName::Pread => IoChoice::Pread,
        }
    }
}

/// `--carry`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum CarryName {
    /// Which they are: short; the receiver compares their codes again. Not with --codes disk.
    Ids,
    /// Their distances too: twice as long, and nothing is compared again.
    Distances,
}

impl CarryName {
    pub(crate) fn word(self) -> &'static str {
        carry_word(self.into())
    }
}

/// The name that `--carry` takes for it.
pub(crate) fn carry_word(carry: Carry) -> &'static str {
    match carry {
        Carry::Ids => "ids",
        Carry::Distances => "distances",
    }
}

impl From<CarryName> for Carry {
    fn from(name: CarryName) -> Carry {
        match name {
            CarryName::Ids => Carry::Ids,
            CarryName::Distances => Carry::Distances,
        }
    }
}

/// `--results`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ResultsName {
    /// With their query.
    #[default]
    Along,
    /// To the server that the query came to first, from those that found them: shorter hand-overs, more messages.
    Origin,
}

impl ResultsName {
    pub(crate) fn word(self) -> &'static str {
        match self {
            ResultsName::Along => "along",
            ResultsName::Origin => "origin",
        }
    }
}

impl From<ResultsName> for Results {
    fn from(name: ResultsName) -> Results {
        match name {
            ResultsName::Along => Results::Along,
            ResultsName::Origin => Results::Origin,
        }
    }
}

/// A size such as `512MiB`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    parse_size(text)
}

/// A number of threads: 1 to 1024.
pub(crate) fn threads(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n) if (1..=1024).contains(&n) => Ok(n),
        _ => Err("use 1 to 1024".into()),
    }
}

/// The number of threads when none is given: the cores that this process may use.
pub(crate) fn all_cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// `auto` or a number of reads.
pub(crate) fn width(text: &str) -> Result<Width, String> {
    const MOST: u32 = stratann_core::query::MAX_WIDTH;
    if text == "auto" {
        return Ok(Width::Auto);
    }
    match text.parse::<u32>() {
        Ok(n) if (1..=MOST).contains(&n) => Ok(Width::Fixed(n)),
        _ => Err(format!("use auto, or 1 to {MOST}")),
    }
}

/// The name that `--width` takes for it.
pub(crate) fn width_name(width: Width) -> serde_json::Value {
    match width {
        Width::Auto => "auto".into(),
        Width::Fixed(n) => n.into(),
    }
}

/// A number of queries in flight: 1 to 4096.
pub(crate) fn in_flight(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n) if (1..=4096).contains(&n) => Ok(n),
        _ => Err("use 1 to 4096".into()),
    }
}

/// The element type's name and size, for a person.
pub(crate) fn dtype_words(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32 (4 bytes)",
        DType::F16 => "f16 (2 bytes)",
        DType::U8 => "u8 (1 byte)",
        DType::I8 => "i8 (1 byte)",
    }
}

/// What is searched, and with which queries: shared by `search` and `bench`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Searched {
    /// The folder of the index; not given with --connect
    #[arg(value_name = "INDEX", required = true)]
    // Always there, but where a subcommand takes its place.
    first: Option<PathBuf>,
    /// Queries, in any vector format; f32 and f16 are converted to each other
    #[arg(value_name = "QUERIES")]
    second: Option<PathBuf>,
    /// Ask running servers of one index instead of opening it, each in turn
    ///
    /// A request that a server cannot answer goes to the next one, once to each. CPU time and memory are sums over the servers that are named.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', value_parser = remote::address)]
    pub(crate) connect: Vec<String>,
}

/// What [`Searched`] comes to.
pub(crate) enum Target<'a> {
    /// An index on this machine.
    Index { index: &'a Path, queries: &'a Path },
    /// Running servers.
    Servers { addresses: &'a [String], queries: &'a Path },
}

impl Searched {
    /// # Errors
    /// One path too many or too few.
    pub(crate) fn target(&self) -> Checked<Target<'_>> {
        let Some(first) = self.first.as_deref() else {
            return Err(Error::bad_input("name an index and queries; see --help"));
        };
        match (self.connect.as_slice(), &self.second) {
            ([], Some(queries)) => Ok(Target::Index { index: first, queries }),
            ([], None) => Err(Error::bad_input(format!(
                "{} is one path, an index and a file of queries are needed; or name servers with --connect",
                first.display()
            ))),
            (addresses, None) => Ok(Target::Servers { addresses, queries: first }),
            (_, Some(queries)) => Err(Error::bad_input(format!(
                "with --connect the servers have the index; leave out {}, give {} alone",
                first.display(),
                queries.display()
            ))),
        }
    }
}

/// How a search is run: shared by `search` and `explain`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Effort {
    /// Mean recall@k wanted, above 0 and up to 1; several make one run each [default: 0.95]
    ///
    /// The index holds a curve, measured when it was built, of what each recall costs; it picks the length of the beam and
    /// when to stop. `stratann tune` measures the curve anew with queries of your own.
    #[arg(long, value_delimiter = ',', value_name = "SHARE", conflicts_with = "search_list")]
    pub(crate) recall: Vec<f64>,
    /// Length of the beam instead of a recall (L in DiskANN, ef in HNSW); several make one run each
    #[arg(long, value_delimiter = ',', value_name = "L")]
    pub(crate) search_list: Vec<u32>,
    /// Clusters visited at most, on a hybrid-ivf; several make one run each
    #[arg(long, value_delimiter = ',', value_name = "N", conflicts_with_all = ["recall", "search_list"])]
    pub(crate) nprobe: Vec<u32>,
    /// With --nprobe: stop after this share of the clusters, one after another, brought nothing [default: never]
    #[arg(long, value_name = "SHARE", requires = "nprobe")]
    pub(crate) early_stop: Option<f32>,
    /// With --search-list: stop once the best unread candidate is farther than the k-th result by so many standard errors of
    /// its code distance [default: never]
    ///
    /// With --nprobe: discard a vector that lies beyond the k-th result by so many [default: only when it is certain to].
    #[arg(long, value_name = "X", conflicts_with = "recall", allow_negative_numbers = true)]
    pub(crate) stop_slack: Option<f32>,
    /// Stop after so many reads in a row that changed none of the k results; 0 for never [default: as the curve says; never with --search-list]
    #[arg(long, value_name = "READS")]
    pub(crate) patience: Option<u32>,
}

impl Effort {
    /// One for each run.
    pub(crate) fn each(&self) -> Vec<stratann_engine::search::Effort> {
        use stratann_engine::search::Effort as Asked;
        if !self.search_list.is_empty() {
            return self.search_list.iter().map(|&l| Asked::List(l, self.stop_slack)).collect();
        }
        if !self.nprobe.is_empty() {
            let clusters = |&n: &u32| Asked::Clusters(n, self.stop_slack, self.early_stop);
            return self.nprobe.iter().map(clusters).collect();
        }
        if self.recall.is_empty() {
            return vec![Asked::Recall(0.95)];
        }
        self.recall.iter().map(|&r| Asked::Recall(r)).collect()
    }
}

/// Techniques of hybrid-ivf, to be switched off for comparison.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Techniques of hybrid-ivf (to compare)")]
pub(crate) struct Techniques {
    /// Visit the cluster with the nearest centroid first, whatever the navigation graph found
    #[arg(long, conflicts_with = "order")]
    no_reorder: bool,
    /// Which clusters are visited first
    ///
    /// [default: what suits the index best, as its calibration found]
    #[arg(long, value_enum)]
    order: Option<OrderName>,
    /// Visit all clusters that --nprobe or --recall allow
    #[arg(long)]
    no_early_stop: bool,
    /// Count every cluster that brings nothing as one towards the early stop, as in the paper, whatever was to be expected of it
    #[arg(long)]
    no_weights: bool,
    /// Read every vector of a cluster that is visited
    #[arg(long, conflicts_with = "bounds")]
    no_bounds: bool,
    /// Which bounds discard vectors before they are read; none changes an answer
    #[arg(long, value_enum, default_value = "both")]
    bounds: BoundsName,
    /// Lists that are scanned of a cluster that is divided into lists [default: as planned]
    #[arg(long, value_name = "N")]
    local_lists: Option<u32>,
    /// Length of the beam in a cluster that is a graph [default: 32]
    #[arg(long, value_name = "L")]
    local_list: Option<u32>,
    /// Vectors found by the navigation graph that speak for their clusters [default: 64]
    #[arg(long, value_name = "N")]
    votes: Option<u32>,
}

/// `--order`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum OrderName {
    /// By distance to the centroid, less what the vectors found say.
    Evidence,
    /// By the number of vectors found, as in the paper.
    Votes,
    /// By how many vectors are to be expected near enough.
    Expected,
}

/// `--bounds`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum BoundsName {
    /// Distances to centroids, as in the paper.
    Centroid,
    /// Codes, with the radius of what they lost.
    Code,
    /// Both.
    Both,
}

impl Techniques {
    /// # Errors
    /// One that is switched, where servers have the index.
    pub(crate) fn check_usual(&self) -> Checked<()> {
        if self.switches() == stratann_engine::search::ProbeSwitches::default() {
            return Ok(());
        }
        Err(Error::bad_input(
            "the techniques of hybrid-ivf are switched where the index is open; leave out --connect, or the switches",
        ))
    }

    pub(crate) fn switches(&self) -> stratann_engine::search::ProbeSwitches {
        use stratann_core::query::{Bounds, Order};
        let bounds = match self.bounds {
            _ if self.no_bounds => Bounds::Off,
            BoundsName::Centroid => Bounds::Centroid,
            BoundsName::Code => Bounds::Code,
            BoundsName::Both => Bounds::Both,
        };
        let order = match self.order {
            _ if self.no_reorder => Some(Order::Centroid),
            None => None,
            Some(OrderName::Evidence) => Some(Order::Evidence),
            Some(OrderName::Votes) => Some(Order::Votes),
            Some(OrderName::Expected) => Some(Order::Expected),
        };
        stratann_engine::search::ProbeSwitches {
            order,
            early_stop: !self.no_early_stop,
            weighed: !self.no_weights,
            bounds,
            local_lists: self.local_lists,
            local_list: self.local_list,
            votes: self.votes,
        }
    }
}
