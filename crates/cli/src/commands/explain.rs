//! `stratann explain`: traces one query, or shows why a plan was chosen.

use std::path::{Path, PathBuf};

use serde::Serialize;
use stratann_engine::explain::{explain, explain_filtered};
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::kinds::known::IN_MEMORY_NODES;
use stratann_engine::manifest::Manifest;
use stratann_engine::search::SearchOptions;
use stratann_engine::trace::Trace;
use stratann_params::IndexKind;
use stratann_params::choices::Learn;
use stratann_params::measure::ExplainSettings;
use stratann_params::{Param, Place, Stage};
use stratann_storage::{Error, Quiet, Result};

use crate::filter::{FilterArgs, NamedIds};
use crate::memory_nodes::{self, KeyArgs};
use crate::output::Output;
use crate::parameters::{Parameters, Rows};
use crate::queries::Queries;
use crate::{Verdict, commands::search::PerQuery};

mod division;
mod plan;
mod text;

/// Trace one query step by step: what it reads, and why
///
/// Reads are made one after another, without a cache; counters are those of a search with the same parameters and
/// width. With --plan: shows why the inverted lists of a hybrid-ivf have their local indexes, and compares measured
/// with predicted costs of visits; or compares the ways to divide a grid-ivf over servers, as `cluster partition` does.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Folder of the index; not given with --memory
    #[arg(value_name = "INDEX", required = true)]
    // Optional only so that the usage is right.
    first: Option<PathBuf>,
    /// Queries, in any vector format [default with --plan: rows of the index, each excluded from its own results]
    #[arg(value_name = "QUERIES", required_unless_present_any = ["plan", "memory"])]
    second: Option<PathBuf>,
    /// Trace a query of an index that memory nodes hold, instead of a folder: HOST:PORT, shm:NAME or ucx:HOST:PORT of
    /// each, or etcd:CLUSTER@URL, with --key-file
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', conflicts_with = "plan")]
    memory: Vec<String>,
    #[command(flatten)]
    key: KeyArgs,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    table: Parameters<ExplainRows>,
}

/// The table's options of one query.
struct ExplainRows;

impl Rows for ExplainRows {
    const STAGES: &'static [Stage] = &[Stage::Open, Stage::Search, Stage::Explain];

    // One query is traced, without a cache: what is for several queries has no effect.
    fn has(param: &Param) -> bool {
        const OTHERS: [&str; 19] = [
            "ram_budget",
            "cache_budget",
            "preload",
            "epoch_queries",
            "hot",
            "scorer",
            "device",
            "gpu_budget",
            "spill",
            "mode",
            "threads",
            "in_flight",
            "admission",
            "io",
            "merge",
            "blocking",
            "affinity",
            "batch",
            "doorbell",
        ];
        !OTHERS.contains(&param.name)
    }
}

const EXAMPLES: &str = "\
Examples:
  stratann explain base.idx query.fbin --query 17
  stratann explain base.idx query.fbin --query 17 --search-list 40 --json
  stratann explain clusters.idx query.fbin --query 17 --nprobe 20
  stratann explain base.idx query.fbin --query 17 --only in-stock.txt
  stratann explain clusters.idx --plan
  stratann explain --memory 10.0.0.9:8900 --key-file key query.fbin --nprobe 8
  stratann explain grid.idx query.fbin --plan --servers 8 --nprobe 16";

impl Args {
    /// The folder; `None` with --memory.
    ///
    /// # Errors
    /// Both.
    fn index(&self) -> Result<Option<&Path>> {
        match (self.memory.is_empty(), &self.second, self.first.as_deref()) {
            (true, _, folder) => Ok(folder),
            (false, None, _) => Ok(None),
            (false, Some(_), folder) => Err(Error::bad_input(format!(
                "--memory explains what memory nodes hold; leave out {}",
                folder.unwrap_or(Path::new("")).display()
            ))),
        }
    }

    fn queries(&self) -> Option<&Path> {
        if self.memory.is_empty() { self.second.as_deref() } else { self.first.as_deref() }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    query: usize,
    #[serde(flatten)]
    trace: &'a Trace,
    counters: PerQuery,
}

/// Runs `stratann explain`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    let given = &args.table.given;
    let runs = given.runs();
    let [run] = runs.as_slice() else {
        return Err(Error::bad_input("explain traces one run; give one --recall, --search-list or --nprobe"));
    };
    let folder = args.index()?;
    let kind = match folder {
        Some(folder) => Manifest::read(folder)?.1.kind(),
        None => Some(IN_MEMORY_NODES),
    };
    let place = if folder.is_some() { Place::Folder } else { Place::MemoryNodes };
    args.table.check(kind, place)?;
    let mut open = OpenOptions::read(given)?;
    if !given.has("learning") {
        open.learning.learn = Learn::Frozen;
    }
    let index = match folder {
        Some(folder) => {
            let index = Index::open(folder, open)?;
            index.manifest().check_numbered(folder, "a trace")?;
            index
        }
        None => memory_nodes::open(&args.memory, &args.key, output)?,
    };
    index.warnings().iter().for_each(|warning| output.note(&format!("warning: {warning}")));
    let options = SearchOptions { threads: 1, ..SearchOptions::read(run, kind.unwrap_or(IndexKind::Flat))? };
    let (effort, settings): (_, ExplainSettings) = (options.effort, given.read());
    if let (true, Some(path)) = (settings.plan, args.filter.path()) {
        return Err(Error::bad_input(format!(
            "--plan is about all queries; leave out the filter ({})",
            path.display()
        )));
    }
    if settings.plan && index.manifest().facts().is_sliced {
        let queries = args.queries().map(Path::to_path_buf);
        return division::explain_plan(&index, settings.servers, queries, effort, output);
    }
    if settings.plan {
        return plan::run((args, &settings), &index, &options, output);
    }
    let query = settings.query;
    let row = row(args, query, &index, output)?;
    let trace = traced(args, &index, &row, &options)?;
    let document = Document { query, trace: &trace, counters: PerQuery::of(&trace.stats, 1) };
    output.result(&document, || text::text(query, &trace, index.block_bytes()))?;
    match trace.complete {
        true => Ok(Verdict::Fine),
        false => Err(Error::corrupt(format!("query {query}: {}", trace.failure))),
    }
}

/// Traces a query, with the filter where there is one.
fn traced(args: &Args, index: &Index, row: &[u8], options: &SearchOptions) -> Result<Trace> {
    let Some(NamedIds { naming, lists, .. }) = args.filter.read()? else {
        return explain(index, row, options);
    };
    let ids = lists.iter().next().unwrap_or(&[]);
    let filter = index.filter(ids, naming, options, &Quiet)?;
    explain_filtered(index, row, &filter, options)
}

/// Reads the selected query.
fn row(args: &Args, query: usize, index: &Index, output: Output) -> Result<Vec<u8>> {
    let path = args.queries().unwrap_or(Path::new(""));
    let queries = Queries::open(path, index.manifest(), output)?;
    if query >= queries.count() {
        return Err(Error::bad_input(format!(
            "--query is {query}, but {} has {} queries, counted from 0",
            path.display(),
            queries.count()
        )));
    }
    let mut row = Vec::new();
    queries.read(query, 1, &mut row)?;
    Ok(row)
}
