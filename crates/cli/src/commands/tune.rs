//! `stratann tune`: learns anew what recall costs.

use std::path::PathBuf;

use stratann_engine::dataset::GroundTruth;
use stratann_engine::manifest::Manifest;
use stratann_engine::recall::tune::{self, Known, TuneOptions, Tuned};
use stratann_engine::{Error, Result};

use crate::Verdict;
use crate::options;
use crate::output::{Output, count, table};
use crate::progress::Teller;
use crate::queries::Queries;

/// Measure anew what recall costs on an index, and store it
///
/// --recall relies on a curve that the build measured with rows of the index. Queries often lie elsewhere than rows: with some hundred of your own and
/// their true neighbours the curve fits them. Half of the queries fit it, the other half check it. The data files stay as they are.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The folder of the index
    index: PathBuf,
    /// Queries of your own [default: rows of the index, each hidden from its own search]
    #[arg(long, value_name = "FILE", requires = "groundtruth")]
    queries: Option<PathBuf>,
    /// Their true neighbours, from `stratann groundtruth`, as ids that the index returns
    #[arg(long, value_name = "GT", requires = "queries")]
    groundtruth: Option<PathBuf>,
    /// Recalls to check the new curve at
    #[arg(long, value_delimiter = ',', value_name = "SHARE", default_value = "0.9,0.95,0.99")]
    recall: Vec<f64>,
    /// Numbers of results that get a curve of their own; others use the nearest one above
    #[arg(short, value_delimiter = ',', default_value = "1,10,100")]
    k: Vec<u32>,
    /// Rows of the index to draw when no queries are given
    #[arg(long, default_value_t = 1000, value_name = "N")]
    sample: usize,
    /// Seed that draws them
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads [default: all cores]
    #[arg(long, value_parser = options::threads)]
    threads: Option<usize>,
    /// All memory that it may take [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = options::size)]
    ram_budget: Option<u64>,
}

const EXAMPLES: &str = "\
Examples:
  stratann tune base.idx --queries query.fbin --groundtruth truth.ibin
  stratann tune base.idx --recall 0.9,0.99 -k 10";

/// `stratann tune`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    if let Some(bad) = args.recall.iter().find(|r| !(**r > 0.0 && **r <= 1.0)) {
        return Err(Error::bad_input(format!("--recall is {bad}; give shares above 0 and up to 1")));
    }
    let known = match (&args.queries, &args.groundtruth) {
        (Some(queries), Some(truth)) => Some(known(args, queries, truth, output)?),
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
    let teller = Teller::new(output);
    let tuned = tune::tune(&args.index, known, &options, &teller)?;
    teller.finish();
    output.result(&tuned, || text(args, &tuned))?;
    Ok(Verdict::Fine)
}

fn known(args: &Args, path: &std::path::Path, truth_path: &std::path::Path, output: Output) -> Result<Known> {
    let (_, manifest) = Manifest::read(&args.index)?;
    let queries = Queries::open(path, &manifest, output)?;
    let truth = GroundTruth::read(truth_path)?;
    if truth.queries() != queries.count() {
        return Err(Error::bad_input(format!(
            "{} is for {} queries, {} has {}; compute it anew",
            truth_path.display(),
            truth.queries(),
            path.display(),
            queries.count()
        )));
    }
    let mut known = Known {
        truth_k: truth.k,
        truth: truth.ids.iter().map(|&id| u64::from(id)).collect(),
        ..Known::default()
    };
    queries.read(0, queries.count(), &mut known.queries)?;
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
    let in_clusters = Manifest::read(&args.index).is_ok_and(|(_, m)| m.clusters.is_some());
    let beam = if in_clusters { "nprobe" } else { "list" };
    format!(
        "{}\n{}: version {}; fitted on {} {}, measured on {} others\n",
        table(&["k", "recall asked", "measured", "reads", beam], &rows),
        args.index.display(),
        tuned.version,
        count(tuned.fitted_on as u64),
        tuned.source,
        count(tuned.checked_on as u64)
    )
}
