//! `stratann build`: builds an index from a file of vectors, or from another index.

use std::path::{Path, PathBuf};

use stratann_engine::build::{self, BuildOptions, BuildPlan, BuildReport, OptionsByKind};
use stratann_engine::build::{SourceIndex, SourceRows};
use stratann_engine::dataset::Reader;
use stratann_engine::kinds::known::ON_DISK;
use stratann_node::points::{SpooledPoints, check_kind};
use stratann_params::{Given, IndexKind, Place, Stage, Value};
use stratann_storage::budget::{free_disk_bytes, size};
use stratann_storage::{Error, Progress, Result};

use crate::Verdict;
use crate::options::{self, KindChoice};
use crate::output::{Output, count, duration, table};
use crate::parameters::{Parameters, Rows};
use crate::progress::ProgressPrinter;

mod points;

/// Build an index from a file of vectors, or from another index
///
/// Prints a forecast of memory, disk and time first. Stays within --ram-budget, can be stopped with Ctrl-C and resumed
/// with --resume. Equal vectors, options and seed give equal files, whatever the number of threads.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Vectors: .fbin .f16bin .u8bin .i8bin .fvecs .bvecs .npy, FILE.parquet#COLUMN, or FILE.hdf5#DATASET; or points,
    /// with --payload
    #[arg(required_unless_present = "from")]
    base: Option<PathBuf>,
    /// Build from the vectors and ids of this index, instead of a file: so an older index gets the codes of today
    #[arg(long, value_name = "INDEX", conflicts_with = "base")]
    from: Option<PathBuf>,
    /// Folder of the index
    #[arg(short, long, value_name = "INDEX")]
    output: PathBuf,
    /// Kind of index; with auto, options of kinds leave those that have them; with --from that of its index [default:
    /// auto]
    #[arg(long, value_parser = options::kinds())]
    kind: Option<KindChoice>,
    #[command(flatten)]
    points: points::PointArgs,
    #[command(flatten)]
    table: Parameters<BuildRows>,
}

/// The table's options of builds.
struct BuildRows;

impl Rows for BuildRows {
    const STAGES: &'static [Stage] = &[Stage::Build];
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
  stratann build --from old.idx -o new.idx                              # rebuilt from its vectors and ids
  stratann build shop.parquet -o shop.idx --payload                     # keeps ids and payloads, for --where
  stratann build shop.parquet -o shop.idx --payload title,price --ids sku --set price=float

Kinds: auto predicts the cost of a query in each kind that fits in the RAM given, and takes the cheapest.
disk-graph needs RAM for a code of every vector; hybrid-ivf needs almost none; flat scans all vectors. grid-ivf
keeps all vectors in RAM; gpu-ivf keeps a code of every vector on a GPU or in RAM; remote-hnsw is laid out for the
memory of other machines. auto chooses none of the three.
Next: stratann search INDEX QUERIES --recall 0.95";

/// `stratann build`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    let source = args.from.as_ref().map(|index| SourceIndex::open(index, &args.output)).transpose()?;
    let given = &given(args, source.as_ref())?;
    let kind = args.kind.map_or(source.as_ref().map(SourceIndex::kind), |choice| choice.0);
    let scope = args.table.scope(kind, Place::Folder);
    given.check(&scope)?;
    let mut common = BuildOptions::read(given, IndexKind::Flat)?;
    build::check_folder(&args.output, common.force)?;
    let vectors = vectors(args, source.as_ref(), kind, (&mut common, output))?;
    let base = vectors.reader();
    let by_kind = OptionsByKind::read(given);
    let kind = match kind {
        Some(kind) => kind,
        None => {
            let among = given.kinds(scope.stages, &ON_DISK)?;
            let printer = ProgressPrinter::new(output);
            let choice = build::choose(base, &among, &by_kind, &common, &printer)?;
            printer.finish();
            output.note(&format!("--kind auto: {}: {}", choice.kind.name(), choice.why));
            choice.kind
        }
    };
    let options = BuildOptions { kind: by_kind.of(kind), ..common }.for_rows(base.shape());
    let plan = build::plan(base, &options)?;
    announce(args, base, &options, &plan, output);
    let printer = ProgressPrinter::new(output);
    let report = match &vectors {
        Vectors::Points(points) => build::build_points((base, &**points), &args.output, &options, &printer)?,
        _ => build::build(base, &args.output, &options, &printer)?,
    };
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

/// The vectors of a build.
enum Vectors {
    File(Reader),
    OfIndex(SourceRows),
    Points(Box<SpooledPoints>),
}

impl Vectors {
    fn reader(&self) -> &Reader {
        match self {
            Vectors::File(reader) => reader,
            Vectors::OfIndex(rows) => &rows.reader,
            Vectors::Points(points) => &points.reader,
        }
    }
}

/// Reads the vectors, or opens their file. Where they come with ids, the engine gets these.
fn vectors(
    args: &Args,
    source: Option<&SourceIndex>,
    kind: Option<IndexKind>,
    (common, output): (&mut BuildOptions, Output),
) -> Result<Vectors> {
    if let Some(source) = source {
        let rows = read_rows(source, args, common, output)?;
        common.ids.clone_from(&rows.ids);
        return Ok(Vectors::OfIndex(rows));
    }
    let column = common.ids.take_if(|_| args.points.are_given());
    let Some(kept) = args.points.read(column)? else {
        points::check_vectors_alone(args.origin())?;
        return Ok(Vectors::File(Reader::open(args.origin())?));
    };
    kind.map_or(Ok(()), check_kind)?;
    let points = kept.spool(args.origin(), &args.output, common, output)?;
    common.ids.clone_from(&points.ids);
    Ok(Vectors::Points(Box::new(points)))
}

impl Args {
    /// The file or the index that the vectors come from.
    fn origin(&self) -> &Path {
        self.from.as_deref().or(self.base.as_deref()).unwrap_or(Path::new(""))
    }
}

/// What is given, with the metric of the source where none is.
fn given(args: &Args, source: Option<&SourceIndex>) -> Result<Given> {
    let mut given = args.table.given.clone();
    let Some(source) = source else { return Ok(given) };
    if given.has("ids") {
        return Err(Error::bad_input("--ids goes with a file of vectors; --from keeps the ids of the index"));
    }
    if !given.has("metric") {
        given.push("metric", Value::Text(source.metric().name().into()), "--metric".into());
    }
    Ok(given)
}

/// Reads the vectors of the source into files beside the new index.
fn read_rows(source: &SourceIndex, args: &Args, common: &BuildOptions, output: Output) -> Result<SourceRows> {
    let printer = ProgressPrinter::new(output);
    let rows = source.write_rows(&args.output, common.ram_budget, &printer)?;
    printer.finish();
    Ok(rows)
}

/// Prints the forecast of a build.
fn announce(args: &Args, base: &Reader, options: &BuildOptions, plan: &BuildPlan, output: Output) {
    let shape = base.shape();
    output.note(&format!(
        "{}: {} rows of {} {} ({})",
        args.origin().display(),
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
        duration(plan.expected_seconds())
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
        "{}\n{}: {}, {} vectors, {} on disk; peak memory {}\n{}next: stratann search {} QUERIES --recall 0.95\n",
        table(&["stage", "time"], &rows),
        args.output.display(),
        report.kind,
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
