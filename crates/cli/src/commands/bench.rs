//! `stratann bench`: sweeps search settings over one index.

use std::ffi::OsString;
use std::path::Path;

use serde::Serialize;
use stratann_engine::index::OpenOptions;
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{SearchOptions, mode_of};
use stratann_params::measure::SweepSettings;
use stratann_params::{Given, IndexKind, Place, Stage};
use stratann_storage::{Error, Progress, Result};

use crate::Verdict;
use crate::commands::search::{Bench, Run, Source, verdict};
use crate::options::{self, Target};
use crate::output::{Named, Output, count, table};
use crate::parameters::{Parameters, Rows};
use crate::progress::ProgressPrinter;

mod generate;
mod open_loop;

/// Sweep search settings over an index: all combinations, in rounds, with medians
///
/// Rounds are interleaved, so that a disturbance of the machine affects all settings. Counters do not vary; times are
/// medians of the rounds.
///
/// With --connect and --rate, an open loop against running servers: queries are sent at a rate, whether or not earlier
/// ones are answered, and latency counts from the scheduled moment of a query.
#[derive(clap::Args)]
#[command(override_usage = USAGE, after_long_help = EXAMPLES, args_conflicts_with_subcommands = true)]
#[command(subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    other: Option<Other>,
    #[command(flatten)]
    searched: options::Searched,
    #[command(flatten)]
    table: Parameters<BenchRows>,
}

/// The table's options of sweeps.
struct BenchRows;

impl Rows for BenchRows {
    const STAGES: &'static [Stage] = &[Stage::Bench];
}

/// Other measurements.
#[derive(clap::Subcommand)]
enum Other {
    Generate(generate::Args),
    #[command(hide = true, disable_help_flag = true)]
    Ablation(Moved),
    #[command(hide = true, disable_help_flag = true)]
    Codes(Moved),
    #[command(hide = true, disable_help_flag = true)]
    Cost(Moved),
}

/// Arguments of a study that the laboratory has.
#[derive(clap::Args)]
struct Moved {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _arguments: Vec<OsString>,
}

const USAGE: &str = "\
stratann bench [OPTIONS] <INDEX> <QUERIES>
       stratann bench [OPTIONS] --connect <HOST:PORT,…> --rate <QUERIES A SECOND,…> <QUERIES>
       stratann bench generate [OPTIONS] --output <DIR> --dim <D> --rows <N> <SHAPE>";

const EXAMPLES: &str = "\
Examples:
  stratann bench base.idx query.fbin --groundtruth truth.ibin --search-list 20,40,80
  stratann bench base.idx query.fbin --groundtruth truth.ibin --recall 0.95 --in-flight 1,8,64 --width 1,4,auto
  stratann bench base.idx query.fbin --recall 0.95 --admission one,batch,fixed
  stratann bench --connect 127.0.0.1:8700 query.fbin --rate 100,200,400 --seconds 10

Comparisons with other libraries are in bench/compare.py of the source tree.";

/// One combination: its median run, and the spread of the rounds.
#[derive(Serialize)]
struct Swept {
    #[serde(flatten)]
    median: Run,
    qps_rounds: Vec<f64>,
}

#[derive(Serialize)]
struct Document<'a> {
    index: Named<'a>,
    queries: Named<'a>,
    rounds: u32,
    runs: Vec<Swept>,
}

/// Runs `stratann bench`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    match &args.other {
        Some(Other::Generate(args)) => return generate::run(args, output),
        Some(Other::Ablation(_)) => return Err(Error::laboratory("`bench ablation`", "ablation")),
        Some(Other::Codes(_)) => return Err(Error::laboratory("`bench codes`", "codes")),
        Some(Other::Cost(_)) => return Err(Error::laboratory("`bench cost`", "cost")),
        None => {}
    }
    let given = &args.table.given;
    match args.searched.target()? {
        Target::Index { index, queries } => {
            args.table.check(None, Place::Folder)?;
            let kind = Manifest::read(index)?.1.kind();
            args.table.check(kind, Place::Folder)?;
            sweep(given, &settings(given, kind)?, index, queries, output)
        }
        Target::Servers { addresses, queries } => {
            // The servers refuse what their kind does not have.
            args.table.check(None, Place::Servers)?;
            open_loop::run(&given.read(), addresses, queries, &settings(given, None)?, output)
        }
        Target::Memory { .. } => {
            Err(Error::bad_input("bench does not search memory nodes; use `stratann search --memory`"))
        }
    }
}

fn sweep(
    given: &Given,
    settings: &[SearchOptions],
    index: &Path,
    queries: &Path,
    output: Output,
) -> Result<Verdict> {
    let sweep: SweepSettings = given.read();
    let budgets = OpenOptions { ram_budget: sweep.ram_budget, ..OpenOptions::default() };
    let mut bench = Bench::open(
        Source::Folder(index),
        queries,
        sweep.groundtruth.as_deref(),
        settings,
        (budgets, (sweep.cache_budget.into(), false)),
        output,
    )?;
    for options in settings {
        bench.index.params(options)?;
    }
    let printer = ProgressPrinter::new(output);
    let total = settings.len() as u64 * u64::from(sweep.rounds) * bench.count() as u64;
    printer.stage(&format!("{} settings, {} rounds", settings.len(), sweep.rounds), total, "queries");
    let mut runs: Vec<Vec<Run>> = settings.iter().map(|_| Vec::new()).collect();
    for _ in 0..sweep.rounds {
        for (options, runs) in settings.iter().zip(&mut runs) {
            runs.push(bench.run(options, &printer, &mut |_, _| Ok(()))?);
        }
    }
    printer.finish();
    let failed = runs.iter().flatten().map(|r| r.failed_queries).sum();
    let runs = runs.into_iter().filter_map(median).collect();
    let document = Document { index: Named(index), queries: Named(queries), rounds: sweep.rounds, runs };
    output.result(&document, || text(&document))?;
    Ok(verdict(failed, index))
}

/// Returns the cross product of all lists of settings.
///
/// # Errors
/// As [`SearchOptions::read`].
fn settings(given: &Given, kind: Option<IndexKind>) -> Result<Vec<SearchOptions>> {
    let sweep: SweepSettings = given.read();
    let mut all = Vec::new();
    for run in given.runs() {
        // The techniques of a kind have their defaults, but for the patience of a beam.
        let usual = SearchOptions::read(&run, kind.unwrap_or(IndexKind::DiskGraph))?;
        for mode in each(&sweep.mode, usual.mode, mode_of) {
            for admission in each(&sweep.admission, usual.admission, Into::into) {
                for width in each(&sweep.width, usual.width, Into::into) {
                    for in_flight in each(&sweep.in_flight, usual.in_flight, Some) {
                        all.push(SearchOptions { mode, admission, width, in_flight, ..usual });
                    }
                }
            }
        }
    }
    Ok(all)
}

/// The values of a list, or the usual one where it is empty.
fn each<T: Copy, U>(list: &[T], usual: U, of: impl Fn(T) -> U) -> Vec<U> {
    if list.is_empty() { vec![usual] } else { list.iter().copied().map(of).collect() }
}

/// Returns the run with the median throughput.
fn median(runs: Vec<Run>) -> Option<Swept> {
    let qps_rounds: Vec<f64> = runs.iter().map(|r| r.qps).collect();
    let mut sorted = runs;
    sorted.sort_by(|a, b| a.qps.total_cmp(&b.qps));
    let middle = sorted.len().checked_sub(1)? / 2;
    Some(Swept { median: sorted.swap_remove(middle), qps_rounds })
}

fn text(document: &Document<'_>) -> String {
    let headings = [
        "effort",
        "mode",
        "admission",
        "width",
        "in flight",
        "recall",
        "QPS",
        "spread",
        "mean us",
        "p99 us",
        "CPU us",
        "reads",
    ];
    let rows: Vec<Vec<String>> = document.runs.iter().map(row).collect();
    table(&headings, &rows)
}

fn row(swept: &Swept) -> Vec<String> {
    let (run, p) = (&swept.median, &swept.median.params);
    let text_of =
        |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
    let effort = if p["recall"].is_null() {
        format!("list {}", p["search_list"])
    } else {
        format!("recall {}", p["recall"])
    };
    let (low, high) = swept.qps_rounds.iter().fold((f64::INFINITY, 0f64), |(l, h), &q| (l.min(q), h.max(q)));
    vec![
        effort,
        text_of(&p["mode"]),
        text_of(&p["admission"]),
        text_of(&p["width"]),
        if p["in_flight"].is_null() { "auto".into() } else { text_of(&p["in_flight"]) },
        run.recall.map_or("-".into(), |r| format!("{r:.4}")),
        count(run.qps as u64),
        format!("{:.0} %", (high / low - 1.0) * 100.0),
        format!("{:.0}", run.latency_us.mean),
        format!("{:.0}", run.latency_us.p99),
        format!("{:.0}", run.cpu_us),
        format!("{:.1}", run.per_query.mean(|s| s.reads)),
    ]
}
