//! `stratann groundtruth`: computes exact neighbours by a full scan.

use std::path::PathBuf;
use std::time::Instant;

use stratann_engine::build::metric_of;
use stratann_engine::dataset::{GroundTruth, Reader};
use stratann_engine::groundtruth::{self, Only};
use stratann_params::build::CommonOptions;
use stratann_params::measure::TruthSettings;
use stratann_params::{Place, Stage};
use stratann_storage::output::OutputPath;
use stratann_storage::{Error, Result, budget};

use crate::filter::QueryFilterArgs;
use crate::output::{Output, count, duration};
use crate::parameters::{Parameters, Rows};
use crate::progress::ProgressPrinter;
use crate::{Verdict, options};

/// Compute exact neighbours, the ground truth for measuring recall
///
/// Compares every query with every row. Ties go to the smaller row number. With --force, an existing GT is replaced
/// when the new one is complete.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Vectors
    base: PathBuf,
    /// Queries, of the same dimensions and type (f32 and f16 are compatible)
    queries: PathBuf,
    /// File to write: u32 queries, u32 k, u32 row numbers, f32 distances (big-ann-benchmarks layout)
    #[arg(short, long, value_name = "GT")]
    output: PathBuf,
    /// Replace an existing GT
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    filter: QueryFilterArgs,
    #[command(flatten)]
    table: Parameters<TruthRows>,
}

/// The table's options of ground truth.
struct TruthRows;

impl Rows for TruthRows {
    const STAGES: &'static [Stage] = &[Stage::Truth];
}

const EXAMPLES: &str = "\
Example:
  stratann groundtruth base.fbin query.fbin -k 100 -o truth.ibin --metric cosine
  stratann search base.idx query.fbin -k 10 --groundtruth truth.ibin

Ids are row numbers of BASE. For an index built with --ids, replace them by those ids before searching with this file.";

/// Runs `stratann groundtruth`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    let started = Instant::now();
    args.table.check(None, Place::Folder)?;
    let (settings, common): (TruthSettings, CommonOptions) =
        (args.table.given.read(), args.table.given.read());
    GroundTruth::check_name(&args.output)?;
    let to = OutputPath::check(&args.output, args.force, &[&args.base, &args.queries])?;
    let (base, queries) = (Reader::open(&args.base)?, Reader::open(&args.queries)?);
    let named = args.filter.read(queries.shape().rows as usize)?;
    let sieves = named.map(|named| named.rows(base.shape().rows)).transpose()?;
    let only = sieves.as_ref().map_or(Only::All, |(is_each, sieves)| match sieves.as_slice() {
        [shared] if !is_each => Only::Shared(shared),
        each => Only::Each(each),
    });
    let threads = common.threads.unwrap_or_else(options::all_cores);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .map_err(|e| Error::bad_input(format!("cannot start {threads} threads: {e}")))?;
    let printer = ProgressPrinter::new(output);
    let budget = settings.ram_budget.unwrap_or(NO_LIMIT_BYTES);
    let truth = pool.install(|| {
        groundtruth::exact_with(
            &base,
            &queries,
            (metric_of(common.metric), settings.k),
            budget,
            groundtruth::Rows { on_bad_row: common.on_bad_row, only },
            &printer,
        )
    })?;
    truth.write(&to)?;
    printer.finish();
    let (rows, found, seconds) = (base.shape().rows, truth.queries(), started.elapsed().as_secs_f64());
    let document = serde_json::json!({
        "seconds": seconds, "rows": rows, "queries": found, "k": truth.k, "threads": threads,
        "peak_rss_bytes": budget::process().peak_rss_bytes, "ram_budget_bytes": settings.ram_budget,
    });
    output.result(&document, || {
        let (rows, name) = (count(rows), args.output.display());
        format!(
            "{name}: the {} nearest of {rows} rows for {} queries, in {}\n",
            truth.k,
            count(found as u64),
            duration(seconds)
        )
    })?;
    Ok(Verdict::Fine)
}

/// Stands for no limit and cannot overflow.
const NO_LIMIT_BYTES: u64 = 1 << 50;
