//! `stratann tune`: measures the recall curve again.

use std::path::{Path, PathBuf};

use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::manifest::Manifest;
use stratann_engine::recall::known::Known;
use stratann_engine::recall::tune::{self, TuneOptions, Tuned};
use stratann_params::measure::TuneSettings;
use stratann_params::{Place, Stage};
use stratann_storage::Result;

use crate::output::{Output, count, table};
use crate::parameters::{Parameters, Rows};
use crate::progress::ProgressPrinter;
use crate::queries::Queries;
use crate::{Verdict, truth};

/// Re-measure the recall/cost curve of an index with your queries
///
/// --recall uses a curve that the build measured with rows of the index. Queries often differ from rows: with some
/// hundred of your own and their ground truth, the curve fits them. Half of the queries fit it, the other half check
/// it. Data files do not change.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Folder of the index
    index: PathBuf,
    #[command(flatten)]
    table: Parameters<TuneRows>,
}

/// The table's options of a measurement of the curve.
struct TuneRows;

impl Rows for TuneRows {
    const STAGES: &'static [Stage] = &[Stage::Tune];
}

const EXAMPLES: &str = "\
Examples:
  stratann tune base.idx --queries query.fbin --groundtruth truth.ibin
  stratann tune base.idx --recall 0.9,0.99 -k 10";

/// Runs `stratann tune`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    let given = &args.table.given;
    args.table.check(None, Place::Folder)?;
    let printer = ProgressPrinter::new(output);
    let (settings, options): (TuneSettings, _) = (given.read(), TuneOptions::read(given));
    let known = match (&settings.queries, &settings.groundtruth) {
        (Some(queries), Some(truth)) => Some(known(args, queries, truth, (&options, &printer), output)?),
        _ => None,
    };
    let tuned = tune::tune(&args.index, known, &options, &printer)?;
    printer.finish();
    output.result(&tuned, || text(args, &tuned))?;
    Ok(Verdict::Fine)
}

/// Reads queries with their ground truth, and compares that with the index.
fn known(
    args: &Args,
    path: &Path,
    truth_path: &Path,
    (options, printer): (&TuneOptions, &ProgressPrinter),
    output: Output,
) -> Result<Known> {
    let (_, manifest) = Manifest::read(&args.index)?;
    let queries = Queries::open(path, &manifest, output)?;
    let truth = truth::read(truth_path, &queries, 1, manifest.rows, manifest.rows)?.truth().clone();
    let mut known = Known {
        truth_k: truth.k,
        truth: truth.ids.iter().map(|&id| u64::from(id)).collect(),
        ..Known::default()
    };
    queries.read(0, queries.count(), &mut known.queries)?;
    let open = OpenOptions { ram_budget: options.ram_budget, ..OpenOptions::default() };
    let index = Index::open(&args.index, open)?;
    truth::check_deleted(&truth, &index, printer)?;
    index.check_truth(truth, truth_path, &known.queries, options.threads, printer)?;
    Ok(known)
}

fn text(args: &Args, tuned: &Tuned) -> String {
    let share = |x: Option<f64>| x.map_or("-".to_string(), |x| format!("{x:.4}"));
    let rows: Vec<Vec<String>> = tuned
        .checks
        .iter()
        .map(|c| {
            vec![
                format!("{}", c.k),
                format!("{}", c.asked),
                c.measured.map_or(format!("out of reach, at most {:.4}", c.highest), |m| share(Some(m))),
                c.reads.map_or("-".into(), |r| format!("{r:.1}")),
                c.search_list.map_or("-".into(), |l| l.to_string()),
            ]
        })
        .collect();
    format!(
        "{}\n{}: version {}; fitted on {} {}, measured on {} others\n",
        table(&["k", "target recall", "measured", "reads", tuned.effort_name], &rows),
        args.index.display(),
        tuned.version,
        count(tuned.fitted_on as u64),
        tuned.source,
        count(tuned.checked_on as u64)
    )
}
