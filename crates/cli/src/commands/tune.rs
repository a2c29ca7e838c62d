//! `stratann tune`: measures the recall curve again.

use std::path::{Path, PathBuf};

use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::manifest::Manifest;
use stratann_engine::recall::known::Known;
use stratann_engine::recall::tune::{self, TuneOptions, Tuned};
use stratann_storage::{Error, Result};

use crate::output::{Output, count, table};
use crate::progress::ProgressPrinter;
use crate::queries::Queries;
use crate::{Verdict, options, truth};

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
    /// Queries of your own [default: rows of the index, each excluded from its own results]
    #[arg(long, value_name = "FILE", requires = "groundtruth")]
    queries: Option<PathBuf>,
    /// Their ground truth from `stratann groundtruth`, with ids of the index
    #[arg(long, value_name = "GT", requires = "queries")]
    groundtruth: Option<PathBuf>,
    /// Recalls at which the new curve is checked
    #[arg(long, value_delimiter = ',', value_name = "SHARE", default_value = "0.9,0.95,0.99")]
    recall: Vec<f64>,
    /// Values of k with their own curve; others use the next larger one
    #[arg(short, value_delimiter = ',', default_value = "1,10,100")]
    k: Vec<u32>,
    /// Rows of the index to draw when no queries are given
    #[arg(long, default_value_t = 1000, value_name = "N")]
    sample: usize,
    /// Seed of the sample of rows
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads [default: all cores]
    #[arg(long, value_parser = options::threads)]
    threads: Option<usize>,
    /// Limit of all memory [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = options::size)]
    ram_budget: Option<u64>,
}

const EXAMPLES: &str = "\
Examples:
  stratann tune base.idx --queries query.fbin --groundtruth truth.ibin
  stratann tune base.idx --recall 0.9,0.99 -k 10";

/// Runs `stratann tune`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    if let Some(bad) = args.recall.iter().find(|r| !(**r > 0.0 && **r <= 1.0)) {
        return Err(Error::bad_input(format!("--recall is {bad}; give shares above 0 and up to 1")));
    }
    let printer = ProgressPrinter::new(output);
    let known = match (&args.queries, &args.groundtruth) {
        (Some(queries), Some(truth)) => Some(known(args, queries, truth, &printer, output)?),
        _ => None,
    };
    let options = TuneOptions {
        ks: args.k.clone(),
        recalls: args.recall.clone(),
        sample: args.sample,
        seed: args.seed,
        threads: args.threads.unwrap_or_else(options::all_cores),
        ram_budget: args.ram_budget,
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
    printer: &ProgressPrinter,
    output: Output,
) -> Result<Known> {
    let (_, manifest) = Manifest::read(&args.index)?;
    let queries = Queries::open(path, &manifest, output)?;
    let truth = truth::read(truth_path, &queries, 1, manifest.rows)?.truth().clone();
    let mut known = Known {
        truth_k: truth.k,
        truth: truth.ids.iter().map(|&id| u64::from(id)).collect(),
        ..Known::default()
    };
    queries.read(0, queries.count(), &mut known.queries)?;
    let open = OpenOptions { ram_budget: args.ram_budget, ..OpenOptions::default() };
    let threads = args.threads.unwrap_or_else(options::all_cores);
    Index::open(&args.index, open)?.check_truth(truth, truth_path, &known.queries, threads, printer)?;
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
