//! `stratann bench`: sweeps search settings over one index.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use stratann_params::search::GraphSwitches;

use serde::Serialize;
use stratann_engine::exec::Width;
use stratann_engine::index::{CacheBudget, OpenOptions};
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{SearchOptions, mode_of};
use stratann_params::Place;
use stratann_params::choices::{Admission, IoName, ModeName};
use stratann_storage::{Error, Progress, Result};

use crate::Verdict;
use crate::commands::search::{Bench, Run, Source, verdict};
use crate::options::{self, Target};
use crate::output::{Named, Output, count, table};
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
    open_loop: open_loop::OpenLoop,
    /// Ground truth, to measure recall@k
    #[arg(long, value_name = "GT", conflicts_with = "connect")]
    groundtruth: Option<PathBuf>,
    /// Results per query
    #[arg(short, default_value_t = 10)]
    k: usize,
    #[command(flatten)]
    effort: options::Effort,
    /// Queries in flight per thread [default: disk-graph 64; hybrid-ivf 16, or 8 where its codes do not fit in RAM;
    /// flat 1]
    #[arg(long, value_delimiter = ',', value_parser = options::in_flight, value_name = "N", conflicts_with = "connect")]
    in_flight: Vec<usize>,
    /// Concurrent reads of a query
    #[arg(long, value_delimiter = ',', value_parser = options::width, default_value = "auto", value_name = "auto|N")]
    width: Vec<Width>,
    /// Policy that admits the next query
    #[arg(long, value_delimiter = ',', value_parser = options::choice::<Admission>(), default_value = "fixed")]
    #[arg(conflicts_with = "connect")]
    admission: Vec<Admission>,
    /// Whether a step waits for all of its reads
    #[arg(long, value_delimiter = ',', value_parser = options::choice::<ModeName>(), default_value = "barrier")]
    mode: Vec<ModeName>,
    /// Runs of every combination
    #[arg(long, default_value_t = 3, conflicts_with = "connect")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Threads [default: all cores]
    #[arg(long, value_parser = options::threads, conflicts_with = "connect")]
    threads: Option<usize>,
    /// Limit of all memory of index and search [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = options::size, conflicts_with = "connect")]
    ram_budget: Option<u64>,
    /// Memory that caches blocks: a size, or auto; 0 by default, so that every read is made and counted
    #[arg(long, value_name = "auto|SIZE", value_parser = options::cache_budget, default_value = "0")]
    #[arg(conflicts_with = "connect")]
    cache_budget: CacheBudget,
    /// I/O back end
    #[arg(long, value_parser = options::choice::<IoName>(), default_value = "auto", conflicts_with = "connect")]
    io: IoName,
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
    let settings = settings(args);
    match args.searched.target()? {
        Target::Index { index, queries } => {
            args.effort.check(Manifest::read(index)?.1.kind(), Place::Folder)?;
            sweep(args, &settings, index, queries, output)
        }
        Target::Servers { addresses, queries } => {
            open_loop::run(&args.open_loop, addresses, queries, &settings, output)
        }
        Target::Memory { .. } => {
            Err(Error::bad_input("bench does not search memory nodes; use `stratann search --memory`"))
        }
    }
}

fn sweep(
    args: &Args,
    settings: &[SearchOptions],
    index: &Path,
    queries: &Path,
    output: Output,
) -> Result<Verdict> {
    let budgets = OpenOptions { ram_budget: args.ram_budget, ..OpenOptions::default() };
    let mut bench = Bench::open(
        Source::Folder(index),
        queries,
        args.groundtruth.as_deref(),
        settings,
        (budgets, (args.cache_budget, false)),
        output,
    )?;
    for options in settings {
        bench.index.params(options)?;
    }
    let printer = ProgressPrinter::new(output);
    let total = settings.len() as u64 * u64::from(args.rounds) * bench.count() as u64;
    printer.stage(&format!("{} settings, {} rounds", settings.len(), args.rounds), total, "queries");
    let mut runs: Vec<Vec<Run>> = settings.iter().map(|_| Vec::new()).collect();
    for _ in 0..args.rounds {
        for (options, runs) in settings.iter().zip(&mut runs) {
            runs.push(bench.run(options, &printer, &mut |_, _| Ok(()))?);
        }
    }
    printer.finish();
    let failed = runs.iter().flatten().map(|r| r.failed_queries).sum();
    let runs = runs.into_iter().filter_map(median).collect();
    let document = Document { index: Named(index), queries: Named(queries), rounds: args.rounds, runs };
    output.result(&document, || text(&document))?;
    Ok(verdict(failed, index))
}

/// Returns the cross product of all lists of settings.
fn settings(args: &Args) -> Vec<SearchOptions> {
    let in_flight: Vec<Option<usize>> = if args.in_flight.is_empty() {
        vec![None]
    } else {
        args.in_flight.iter().map(|&n| Some(n)).collect()
    };
    let threads = args.threads.unwrap_or_else(options::all_cores);
    let switches = GraphSwitches { patience: args.effort.patience(), ..GraphSwitches::default() };
    let mut all = Vec::new();
    for effort in args.effort.each() {
        for &mode in &args.mode {
            for &admission in &args.admission {
                for &width in &args.width {
                    for &in_flight in &in_flight {
                        let (admission, mode, io) = (admission.into(), mode_of(mode), args.io.into());
                        all.push(SearchOptions {
                            k: args.k,
                            effort,
                            mode,
                            width,
                            in_flight,
                            admission,
                            threads,
                            io,
                            switches: switches.into(),
                            ..SearchOptions::default()
                        });
                    }
                }
            }
        }
    }
    all
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
