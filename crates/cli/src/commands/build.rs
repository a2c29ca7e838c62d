//! `stratann build`: builds an index from a file of vectors.

use std::path::PathBuf;

use stratann_engine::budget::{free_disk_bytes, size};
use stratann_engine::build::{
    self, BuildOptions, BuildPlan, BuildReport, GpuOptions, GraphOptions, GridOptions, Kind, ListOptions,
    OptionsByKind, RemoteOptions,
};
use stratann_engine::dataset::Reader;
use stratann_engine::profile::Profile;
use stratann_engine::{Progress, Result};

use crate::Verdict;
use crate::options::{
    self, CodeKindName, CodePlaceName, KindName, MetricName, OnBadRowName, PlanName, RepresentativesName,
};
use crate::output::{Output, count, duration, table};
use crate::progress::ProgressPrinter;

/// Build an index from a file of vectors
///
/// Prints a forecast of memory, disk and time first. Stays within --ram-budget, can be stopped with Ctrl-C and resumed
/// with --resume. Equal vectors, options and seed give equal files, whatever the number of threads.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Vectors: .fbin .f16bin .u8bin .i8bin .fvecs .bvecs .npy, or FILE.parquet#COLUMN
    base: PathBuf,
    /// Folder of the index
    #[arg(short, long, value_name = "INDEX")]
    output: PathBuf,
    /// Kind of index
    #[arg(long, value_enum, default_value = "auto")]
    kind: KindName,
    /// Distance; smaller is closer for all metrics
    #[arg(long, value_enum, default_value = "l2")]
    metric: MetricName,
    /// Limit of all memory of the build, such as 512MiB [default: no limit]
    ///
    /// A graph that does not fit is built in parts on disk: slower, with nearly the same recall (within about a
    /// percent).
    #[arg(long, value_name = "SIZE", value_parser = options::size)]
    ram_budget: Option<u64>,
    /// Threads [default: all cores]; they do not change the result
    #[arg(long, value_parser = options::threads)]
    threads: Option<usize>,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Replace the existing index; it stays in use until the new one is complete
    #[arg(long)]
    force: bool,
    /// Resume an interrupted build; requires the same options
    #[arg(long)]
    resume: bool,
    /// Treatment of rows without valid distances (NaN, infinite, zero under cosine)
    #[arg(long, value_enum, default_value = "fail")]
    on_bad_row: OnBadRowName,
    /// External ids, one u64 per row, .u64bin or .npy; searches return them [default: the row number]
    #[arg(long, value_name = "FILE")]
    ids: Option<PathBuf>,
    #[command(flatten)]
    graph: GraphArgs,
    #[command(flatten)]
    clusters: ClusterArgs,
    #[command(flatten)]
    grid: GridArgs,
    #[command(flatten)]
    gpu: GpuArgs,
    #[command(flatten)]
    remote: RemoteArgs,
}

/// Options of `hybrid-ivf`.
#[derive(clap::Args)]
#[command(next_help_heading = "Options of hybrid-ivf")]
struct ClusterArgs {
    /// Number of inverted lists [default: 4 times the square root of the rows]
    #[arg(long, value_name = "N")]
    clusters: Option<usize>,
    /// Local index of the inverted lists
    #[arg(long, value_enum, default_value = "auto")]
    plan: PlanName,
    /// RAM of later searches, such as 64MiB: which kinds --kind auto considers, and which lists are scanned, divided or
    /// graphs [default: no limit for auto; the smallest possible for lists]
    #[arg(long, value_name = "SIZE", value_parser = options::size)]
    search_budget: Option<u64>,
    /// Cost profile, from `stratann profile` [default: that of the disk, measured once for 8 s and then kept in
    /// STRATANN_CACHE or ~/.cache/stratann, so that equal builds get equal plans]
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Sampled vectors in the navigation graph, per list
    #[arg(long, default_value_t = 2.0, value_name = "N")]
    nav_samples: f64,
}

/// Options of `grid-ivf`.
#[derive(clap::Args)]
#[command(next_help_heading = "Options of grid-ivf")]
struct GridArgs {
    /// Number of inverted lists [default: the square root of the rows]
    #[arg(long, value_name = "N")]
    lists: Option<usize>,
    /// Centroids of the inverted lists: a file of f32 vectors [default: found by k-means]
    #[arg(long, value_name = "FILE", conflicts_with = "lists")]
    centroids: Option<PathBuf>,
}

/// Options of `gpu-ivf`.
#[derive(clap::Args)]
#[command(next_help_heading = "Options of gpu-ivf")]
struct GpuArgs {
    /// Inverted lists, as a share of the rows
    #[arg(long, default_value_t = 0.1, value_name = "SHARE")]
    list_share: f64,
    /// Put a vector also in lists whose centroids are farther than the nearest by this share of the distance, in 8 at
    /// most
    #[arg(long, default_value_t = 0.15, value_name = "SHARE")]
    epsilon: f32,
    /// Write files that searches with --baseline need, and measure their recall (to compare)
    #[arg(long)]
    baselines: bool,
}

/// Options of `remote-hnsw`.
#[derive(clap::Args)]
#[command(next_help_heading = "Options of remote-hnsw")]
struct RemoteArgs {
    /// Number of clusters of vectors [default: 500, or one for 64 rows of small sets]
    #[arg(long, value_name = "P")]
    partitions: Option<usize>,
    /// How the vectors that represent clusters are chosen
    #[arg(long, value_enum, default_value = "sample")]
    representatives: RepresentativesName,
    /// Room for vectors that are inserted later, for each two clusters, such as 768KiB [default: an eighth of their
    /// bytes]
    #[arg(long, value_name = "SIZE", value_parser = options::size)]
    overflow: Option<u64>,
    /// Neighbours of a node on upper layers, half of those on the bottom layer
    #[arg(short = 'M', long = "m", default_value_t = 16, value_name = "M")]
    m: usize,
    /// Length of the beam that finds neighbours: a longer one builds slower and better
    #[arg(long, default_value_t = 200, value_name = "EF")]
    ef_construction: usize,
}

/// Options of `disk-graph`.
#[derive(clap::Args)]
#[command(next_help_heading = "Graph options (the defaults suit nearly all data)")]
struct GraphArgs {
    /// Most neighbours of a node: more neighbours find more per read and take more space in a block
    #[arg(long, default_value_t = 64, value_name = "R")]
    degree: usize,
    /// Length of the beam that finds neighbours: a longer one builds slower and better
    #[arg(long, default_value_t = 128, value_name = "L")]
    build_list: usize,
    /// Pruning factor of edges (alpha in DiskANN): larger values keep longer edges
    #[arg(long, default_value_t = 1.2)]
    alpha: f32,
    /// Passes over all rows
    #[arg(long, default_value_t = 1)]
    passes: usize,
    /// Bytes of RAM per vector for its code [default: max(32, dimensions / 4)]
    ///
    /// Larger codes need fewer reads: raise this first when RAM is left, lower it first when RAM is short.
    #[arg(long, value_name = "BYTES")]
    code_bytes: Option<usize>,
    /// Compression of the codes
    #[arg(long, value_enum, default_value = "residual-opq")]
    code_kind: CodeKindName,
    /// Place of the codes during searches
    ///
    /// With disk, RAM holds only the head graph with its codes and one bit per vector: about a quarter.
    #[arg(long, value_enum, default_value = "ram")]
    codes: CodePlaceName,
    /// Share of the rows in the head graph, the entry points of searches in RAM
    #[arg(long, default_value_t = 0.05, value_name = "SHARE")]
    head_share: f64,
    /// Do not pack neighbours into the same blocks (to compare)
    #[arg(long)]
    no_pack: bool,
    /// Assume uncompressed adjacency lists in the design of blocks (to compare)
    #[arg(long)]
    no_compress: bool,
    /// Nodes per block [default: as many as fit]
    #[arg(long, value_name = "N")]
    nodes_per_block: Option<usize>,
    /// Pages of 4 KiB per block, up to 16 [default: chosen by the build]
    #[arg(long, value_name = "N")]
    pages_per_block: Option<usize>,
    /// Build the graph on f32 even where bytes suffice
    #[arg(long)]
    exact_points: bool,
    /// Build the graph in at least this many overlapping parts [default: as --ram-budget requires]
    #[arg(long, value_name = "N")]
    cells: Option<usize>,
    /// Rows that calibrate --recall; with 0, searches need --search-list
    #[arg(long, default_value_t = 500, value_name = "N")]
    calibration_queries: usize,
}

const EXAMPLES: &str = "\
Examples:
  stratann build base.fbin -o base.idx --metric cosine
  stratann build big.u8bin -o big.idx --kind disk-graph --ram-budget 2GiB --code-bytes 32
  stratann build big.u8bin -o big.idx --kind disk-graph --codes disk    # searches with a quarter of the RAM
  stratann build base.npy -o base.idx --resume                          # after Ctrl-C, a crash or a full disk
  stratann build big.fbin -o big.idx --search-budget 64MiB              # chooses a kind for this RAM
  stratann build base.fbin -o base.idx --kind grid-ivf                  # all vectors in RAM
  stratann build base.fbin -o base.idx --kind gpu-ivf                   # codes for a GPU, vectors on disk
  stratann build base.fbin -o base.idx --kind remote-hnsw               # for the memory of other machines
  stratann build small.fbin -o small.idx --kind flat                    # exact, for small sets

Kinds: auto predicts the cost of a query in each kind that fits in the RAM given, and takes the cheapest.
disk-graph needs RAM for a code of every vector; hybrid-ivf needs almost none; flat scans all vectors. grid-ivf
keeps all vectors in RAM; gpu-ivf keeps a code of every vector on a GPU or in RAM; remote-hnsw is laid out for the
memory of other machines. auto chooses none of the three.
Next: stratann search INDEX QUERIES --recall 0.95";

/// `stratann build`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    build::check_folder(&args.output, args.force)?;
    let base = Reader::open(&args.base)?;
    let by_kind = options_by_kind(args)?;
    // A value out of range is refused in the options of another kind as well.
    by_kind.check(base.shape().dim)?;
    let given = args.kind.kind();
    let common = BuildOptions {
        ram_budget: args.ram_budget,
        threads: args.threads.unwrap_or_else(options::all_cores),
        seed: args.seed,
        ids: args.ids.clone(),
        on_bad_row: args.on_bad_row.into(),
        calibration_queries: args.graph.calibration_queries,
        force: args.force,
        resume: args.resume,
        ..BuildOptions::new(given.unwrap_or(Kind::Flat), args.metric.into())
    };
    let kind = match given {
        Some(kind) => kind,
        None => {
            let printer = ProgressPrinter::new(output);
            let choice = build::choose(&base, &by_kind, &common, &printer)?;
            printer.finish();
            output.note(&format!("--kind auto: {}: {}", choice.kind.name(), choice.why));
            choice.kind
        }
    };
    let options = BuildOptions { kind: by_kind.of(kind), ..common };
    let plan = build::plan(&base, &options)?;
    announce(args, &base, &options, &plan, output);
    let printer = ProgressPrinter::new(output);
    let report = build::build(&base, &args.output, &options, &printer)?;
    printer.finish();
    if report.skipped_rows > 0 {
        printer
            .note(&format!("note: {} rows cannot be indexed and were left out", count(report.skipped_rows)));
    }
    for unreached in &report.unreached {
        printer.note(&format!("note: {}", unreached.describe(kind)));
    }
    output.result(&report, || text(args, &report))?;
    Ok(Verdict::Fine)
}

/// Reads the options of every kind.
fn options_by_kind(args: &Args) -> Result<OptionsByKind> {
    let (graph, clusters) = (&args.graph, &args.clusters);
    let disk_graph = GraphOptions {
        degree: graph.degree,
        build_list: graph.build_list,
        alpha: graph.alpha,
        passes: graph.passes,
        code_bytes: graph.code_bytes,
        code_kind: graph.code_kind.into(),
        codes: graph.codes.into(),
        head_share: graph.head_share,
        pack: !graph.no_pack,
        compress: !graph.no_compress,
        nodes_per_block: graph.nodes_per_block,
        pages_per_block: graph.pages_per_block,
        exact_points: graph.exact_points,
        cells: graph.cells,
    };
    let hybrid_ivf = ListOptions {
        clusters: clusters.clusters,
        local_plan: clusters.plan.into(),
        search_budget: clusters.search_budget,
        profile: clusters.profile.as_deref().map(Profile::read).transpose()?,
        nav_samples: clusters.nav_samples,
        code_bytes: graph.code_bytes,
    };
    let grid_ivf = GridOptions { lists: args.grid.lists, centroids: args.grid.centroids.clone() };
    let gpu_ivf = GpuOptions {
        list_share: args.gpu.list_share,
        epsilon: args.gpu.epsilon,
        code_bytes: graph.code_bytes,
        code_kind: graph.code_kind.into(),
        baselines: args.gpu.baselines,
    };
    let remote_hnsw = RemoteOptions {
        partitions: args.remote.partitions,
        representatives: args.remote.representatives.into(),
        overflow_bytes: args.remote.overflow,
        m: args.remote.m,
        ef_construction: args.remote.ef_construction,
    };
    Ok(OptionsByKind { disk_graph, hybrid_ivf, grid_ivf, gpu_ivf, remote_hnsw })
}

/// Prints the forecast of a build.
fn announce(args: &Args, base: &Reader, options: &BuildOptions, plan: &BuildPlan, output: Output) {
    let shape = base.shape();
    output.note(&format!(
        "{}: {} rows of {} {} ({})",
        args.base.display(),
        count(shape.rows),
        shape.dim,
        shape.dtype.name(),
        size(shape.rows * shape.row_bytes() as u64)
    ));
    output.note(&format!(
        "{}, {}: {}; roughly {}",
        options.kind().name(),
        options.metric.name(),
        plan.describe(),
        duration(build::expected_seconds(base, options, plan))
    ));
    let folder =
        args.output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(std::path::Path::new("."));
    if let Some(free) = free_disk_bytes(folder) {
        output.note(&format!("{} has {} free", folder.display(), size(free)));
    }
}

fn text(args: &Args, report: &BuildReport) -> String {
    let mut rows: Vec<Vec<String>> =
        report.stages.iter().map(|(name, s)| vec![name.clone(), duration(*s)]).collect();
    rows.push(vec!["all".into(), duration(report.seconds)]);
    let facts: Vec<String> = report
        .facts
        .iter()
        .map(|(name, value)| format!("{} {}", name.replace('_', " "), fact(value)))
        .collect();
    format!(
        "{}\n{}: {} vectors, {} on disk; peak memory {}\n{}next: stratann search {} QUERIES --recall 0.95\n",
        table(&["stage", "time"], &rows),
        args.output.display(),
        count(report.rows),
        size(report.index_bytes),
        size(report.peak_rss_bytes),
        if facts.is_empty() { String::new() } else { facts.join(", ") + "\n" },
        args.output.display(),
    )
}

fn fact(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Number(n) if n.is_f64() => format!("{:.3}", n.as_f64().unwrap_or(0.0)),
        serde_json::Value::String(s) => s.clone(),
        other => other.to_string(),
    }
}
