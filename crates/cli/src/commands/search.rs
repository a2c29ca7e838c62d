//! `stratann search`: finds the nearest vectors of every query.

use std::path::{Path, PathBuf};

use crate::Verdict;
use crate::filter::{FiltersReport, QueryFilterArgs};
use crate::options::{self, Target};
use crate::output::{Named, Output, eprint_line};
use crate::parameters::{Parameters, Rows};
use crate::progress::ProgressPrinter;
use serde::Serialize;
use serde::ser::SerializeMap;
use stratann_cluster::node_registry::found;
use stratann_core::query::QueryStats;
use stratann_engine::exec::scorer::ScorerReport;
use stratann_engine::exec::{MergedReads, Times};
use stratann_engine::index::{CacheBudget, OpenOptions};
use stratann_engine::kinds::LearningFacts;
use stratann_engine::kinds::known::IN_MEMORY_NODES;
#[cfg(feature = "lab")]
use stratann_engine::kinds::remote_hnsw::baseline::LoadScheme;
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{Answers, Effort, Latency, SearchOptions};
use stratann_params::open::OpenSettings;
use stratann_params::search::ClientSettings;
use stratann_params::{Given, IndexKind, Place, Stage};
use stratann_storage::budget::Account;
use stratann_storage::{Error, Progress, Result};

mod answer;
mod collection;
mod local;
mod points;
mod result_file;
mod servers;
mod sum;
mod text;
mod together;

use local::Wanted;
pub(crate) use local::{Bench, Source};
use points::{PointArgs, SearchedPoints, ShownPoints};
use result_file::{ResultFile, ResultPath, is_stdout};
use servers::Servers;
use sum::Sum;
use text::text;
use together::Indexes;

/// Find the nearest vectors of every query
///
/// Ask for a recall (share of the true k nearest neighbours that are found), and the curve of the index picks the
/// parameters. Or set the beam directly. All counters of the report are exact: reads, comparisons, hops per query.
#[derive(clap::Args)]
#[command(override_usage = USAGE, after_long_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    searched: options::Searched,
    /// Ground truth from `stratann groundtruth`, to measure recall@k
    ///
    /// Its ids are compared with the ids of the index. For an index built with --ids, the ground truth must hold these.
    #[arg(long, value_name = "GT")]
    groundtruth: Option<PathBuf>,
    /// Write the ids and distances of the only run to a .ibin, .i64bin, .npy, .jsonl or .csv file, or - for stdout
    ///
    /// .ibin: u32 queries, u32 k, u32 ids, f32 distances (big-ann-benchmarks layout). .i64bin: the same with i64 ids.
    /// .npy: u64 ids of shape (queries, k); distances are in a second file, NAME.distances.npy. .jsonl: an object for
    /// each query. .csv: a line for each result. Without a suffix: as .ibin. Missing results have the largest id
    /// (-1 in .i64bin) and distance infinity; text has no line for them. -: lines as of .jsonl on stdout, and the
    /// report on stderr.
    #[arg(short, long, value_name = "RESULT")]
    output: Option<PathBuf>,
    /// Print the first results of so many queries; 0 for none
    ///
    /// With --data and of an index with payloads, --json has all results of these.
    #[arg(long, value_name = "N", default_value_t = 3)]
    show: usize,
    /// Replace an existing RESULT
    #[arg(long, requires = "output")]
    force: bool,
    /// Search a collection of this data folder: NAME and QUERIES instead of INDEX and QUERIES
    ///
    /// Ids may be numbers, UUIDs and strings; the latter go into a .jsonl or .csv file alone. A recall of 1 is exact.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["connect", "memory", "also"])]
    data: Option<PathBuf>,
    /// Search this index too, as one with INDEX; may be repeated. Ids that several indexes hold are of the same row
    ///
    /// All need equal dimension, element type and metric. The indexes are searched at the same time.
    #[arg(long, value_name = "INDEX", conflicts_with = "connect")]
    also: Vec<PathBuf>,
    #[command(flatten)]
    filter: QueryFilterArgs,
    #[command(flatten)]
    points: PointArgs,
    /// With --connect or --also: accept partial results when no live server, or an index, holds a part
    #[arg(long)]
    partial: bool,
    #[command(flatten)]
    table: Parameters<SearchRows>,
}

/// The table's options of searches.
pub(crate) struct SearchRows;

impl Rows for SearchRows {
    const STAGES: &'static [Stage] = &[Stage::Open, Stage::Search];
}

const USAGE: &str = "\
stratann search [OPTIONS] <INDEX> <QUERIES>
       stratann search [OPTIONS] --connect <HOST:PORT,…> <QUERIES>
       stratann search [OPTIONS] --memory <ADDRESS,…> --key-file <FILE> <QUERIES>
       stratann search [OPTIONS] --data <DIR> <NAME> <QUERIES>";

const EXAMPLES: &str = "\
Examples:
  stratann search base.idx query.fbin -k 10 --recall 0.95 -o answers.ibin
  stratann search base.idx query.fbin --recall 0.9,0.95,0.99 --groundtruth truth.ibin --json
  stratann search base.idx query.fbin --search-list 40,80,120 --groundtruth truth.ibin
  stratann search base.idx query.fbin -k 10 -o answers.csv                # or .jsonl, .npy, .ibin, .i64bin
  stratann search base.idx query.fbin --ram-budget 64MiB --cache-budget 16MiB
  stratann search base.idx query.fbin --in-flight 1 --threads 1         # the latency of a single query
  stratann search base.idx query.fbin --also new.idx                     # two indexes as one
  stratann search --connect 10.0.0.1:8700,10.0.0.2:8700 query.fbin --recall 0.95
  stratann search --data photos.data photos query.fbin -k 10            # a collection
  stratann search shop.idx query.fbin --where \"price < 50\" --text-field title   # built with --payload
  stratann search --data shop.data shop query.fbin --where \"price < 50 and brand = 'x'\" --text-field title

Distances are squared l2, minus the inner product, or 1 - cosine: smaller is closer.";

/// One setting and its measurements.
#[derive(Serialize)]
pub(crate) struct Run {
    pub(crate) recall: Option<f64>,
    pub(crate) qps: f64,
    pub(crate) latency_us: Latency,
    // Absent when servers ran the search.
    stage_us: Option<Stages>,
    pub(crate) cpu_us: f64,
    queries: usize,
    pub(crate) failed_queries: usize,
    threads: usize,
    /// Most queries in flight at once, on all threads.
    #[serde(skip)]
    in_flight: usize,
    pub(crate) params: serde_json::Value,
    pub(crate) per_query: PerQuery,
    /// Queries that went to a server because it had more of their clusters cached; `None` where that is not considered.
    #[serde(skip_serializing_if = "Option::is_none")]
    routed_by_cache: Option<u64>,
    /// Queries that went to the server where they enter; `None` where that is not considered.
    #[serde(skip_serializing_if = "Option::is_none")]
    routed_by_entry: Option<u64>,
    peak_rss_bytes: u64,
    ram_budget_bytes: Option<u64>,
    io_backend: String,
    /// The rows that results may be; absent without a filter.
    #[serde(skip_serializing_if = "Option::is_none")]
    filter: Option<FiltersReport>,
    /// Of several indexes, those of each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    filters: Vec<FiltersReport>,
    // Of a kind with a scorer of codes.
    #[serde(skip_serializing_if = "Option::is_none")]
    scorer: Option<ScorerReport>,
    // Of an index that learns from its queries, since it was opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    learning: Option<LearningFacts>,
    memory: serde_json::Value,
    /// Bytes that were read of each memory node, by its number; none of an index in a folder.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    memory_node_bytes: Vec<u64>,
    #[serde(skip)]
    account: Account,
}

/// Mean time per query by stage, microseconds.
#[derive(Clone, Copy, Serialize)]
struct Stages {
    route: f64,
    access: f64,
    verify: f64,
}

impl Stages {
    fn of(times: &Times, queries: usize) -> Stages {
        let each = |ns: u64| ns as f64 / 1000.0 / queries.max(1) as f64;
        Stages { route: each(times.route), access: each(times.access()), verify: each(times.verify) }
    }
}

/// Mean counters per query, by the names of [`QueryStats`].
#[derive(Clone, Copy)]
pub(crate) struct PerQuery {
    stats: QueryStats,
    queries: usize,
    /// Bytes sent to other servers.
    pub(crate) bytes_sent: f64,
    /// Reads that were not made because an equal one was under way; `None` where these are not counted.
    pub(crate) merged: Option<MergedReads>,
    /// Requests to other servers that the query waited for, instead of the counter; `None` for the counter.
    pub(crate) round_trips: Option<f64>,
    /// Components compared by the busiest server over the mean of all; `None` where that is not counted.
    pub(crate) largest_share: Option<f64>,
}

impl PerQuery {
    /// The means of `queries` queries whose counters add up to `stats`.
    pub(crate) fn of(stats: &QueryStats, queries: usize) -> PerQuery {
        PerQuery {
            stats: *stats,
            queries,
            bytes_sent: 0.0,
            merged: None,
            round_trips: None,
            largest_share: None,
        }
    }

    /// The mean of one counter.
    pub(crate) fn mean(&self, counter: impl Fn(&QueryStats) -> u64) -> f64 {
        counter(&self.stats) as f64 / self.queries.max(1) as f64
    }
}

impl Serialize for PerQuery {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in QueryStats::NAMES.iter().zip(self.stats.values()) {
            let mean = value as f64 / self.queries.max(1) as f64;
            // Requests of the client are beside those of its servers, which make none to memory nodes.
            let requests = self.round_trips.filter(|_| *name == "round_trips");
            map.serialize_entry(name, &requests.unwrap_or(mean))?;
        }
        map.serialize_entry("bytes_sent", &self.bytes_sent)?;
        if let Some(merged) = self.merged {
            let each = |n: u64| n as f64 / self.queries.max(1) as f64;
            map.serialize_entry("merged_reads", &each(merged.reads))?;
            map.serialize_entry("merged_bytes", &each(merged.bytes))?;
        }
        if let Some(share) = self.largest_share {
            map.serialize_entry("largest_share", &share)?;
        }
        map.end()
    }
}

#[derive(Serialize)]
struct Document<'a> {
    index: Named<'a>,
    queries: Named<'a>,
    runs: Vec<Run>,
    /// Of an index with payloads, or with ids that are no numbers.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    points: Option<ShownPoints<'a>>,
    /// First results, for a person.
    #[serde(skip)]
    shown: Vec<Shown>,
}

/// First results of a query.
struct Shown {
    query: usize,
    results: Vec<(u64, f32)>,
}

impl Shown {
    /// Takes the first results of the query at position `at` of `answers`.
    fn of(query: usize, answers: &Answers, at: usize) -> Shown {
        Shown { query, results: answers.results(at).take(text::RESULTS_SHOWN).collect() }
    }
}

/// Something that answers queries: an open index, or servers.
trait Searcher {
    /// Number of queries.
    fn count(&self) -> usize;
    /// Vectors in the index.
    fn rows(&self) -> u64;
    /// The cost of a search of everything, in words; `None` for other searches.
    fn exact_cost(&self, options: &SearchOptions) -> Result<Option<String>>;
    /// Runs all queries with one setting. Passes each part's first query number and answers to `take`.
    fn run(
        &mut self,
        options: &SearchOptions,
        printer: &ProgressPrinter,
        take: &mut dyn FnMut(usize, &Answers) -> Result<()>,
    ) -> Result<Run>;
}

/// Runs `stratann search`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    let given = &args.table.given;
    let runs = given.runs();
    check_output(args, runs.len(), output)?;
    if let Some(data) = &args.data {
        return collection::run(args, data, &runs, output);
    }
    let truth = args.groundtruth.as_deref();
    let target = args.searched.target()?;
    if args.partial && args.also.is_empty() && matches!(target, Target::Index { .. }) {
        return Err(Error::bad_input("--partial is for --connect and --also; leave it out for one index"));
    }
    let to = result_path(args, &target)?;
    let kind = checked_kind(args, &target)?;
    let points = match target {
        Target::Index { index, .. } if args.also.is_empty() => SearchedPoints::open(args, index)?,
        _ => args.points.check_absent(None).map(|()| None)?,
    };
    let points = points.as_ref();
    let mut settings: Vec<SearchOptions> =
        runs.iter().map(|run| SearchOptions::read(run, kind)).collect::<Result<_>>()?;
    let budgets = OpenOptions::read(given)?;
    match target {
        Target::Index { index, queries } => {
            if let Some(to) = &to {
                for index in args.also.iter().map(PathBuf::as_path).chain([index]) {
                    to.check_ids(Manifest::read(index)?.1.blocks.id_bytes)?;
                }
            }
            let cache = cache(given);
            if !args.also.is_empty() {
                return together(args, (index, queries), (&settings, to.as_ref()), (budgets, cache), output);
            }
            let (source, wanted) = (Source::Folder(index), Wanted { ids: Some(&args.filter), points });
            let mut bench =
                Bench::open_filtered((source, wanted), queries, truth, &settings, (budgets, cache), output)?;
            one((args, points), (index, queries), (&settings, to.as_ref()), &mut bench, output)
        }
        Target::Memory { addresses, queries } => {
            let credentials = args.searched.key.credentials(output)?;
            let nodes = found(addresses)?;
            let (source, cache) = (Source::Memory(&nodes, &credentials), cache(given));
            let source = (source, Wanted { ids: Some(&args.filter), points: None });
            let mut bench =
                Bench::open_filtered(source, queries, truth, &settings, (budgets, cache), output)?;
            if let Some(to) = &to {
                to.check_ids(bench.index.manifest().blocks.id_bytes)?;
            }
            let name = PathBuf::from(addresses.join(","));
            one((args, None), (&name, queries), (&settings, to.as_ref()), &mut bench, output)
        }
        Target::Servers { addresses, queries } => {
            let client: ClientSettings = given.read();
            if client.blocking {
                settings.iter_mut().for_each(|options| {
                    (options.threads, options.in_flight) = (addresses.len(), Some(1));
                });
            }
            let how = (args.partial, client.affinity);
            let truth = (truth, &args.filter);
            let servers = Servers::open(addresses, queries, truth, &settings, how, output)?;
            on_servers(args, queries, (&settings, to.as_ref()), servers, output)
        }
    }
}

/// Refuses a file of results for what has none of one run, or has them elsewhere.
fn check_output(args: &Args, runs: usize, output: Output) -> Result<()> {
    if args.output.is_some() && runs > 1 {
        return Err(Error::bad_input(format!(
            "-o holds the results of one run, but {runs} were requested; give one --recall or --search-list"
        )));
    }
    if output.json && args.output.as_deref().is_some_and(is_stdout) {
        return Err(Error::bad_input("-o - and --json both print on stdout; leave one of them out"));
    }
    Ok(())
}

/// The kind whose techniques are switched. Options that it does not have are refused.
///
/// # Errors
/// An option of another kind or another place, or out of range; an index that cannot be read.
fn checked_kind(args: &Args, target: &Target<'_>) -> Result<IndexKind> {
    let given = &args.table.given;
    let (kinds, place): (Vec<IndexKind>, Place) = match *target {
        Target::Index { index, .. } => {
            let folders = [index].into_iter().chain(args.also.iter().map(PathBuf::as_path));
            let kinds: Vec<Option<IndexKind>> =
                folders.map(|folder| Ok(Manifest::read(folder)?.1.kind())).collect::<Result<_>>()?;
            (kinds.into_iter().flatten().collect(), Place::Folder)
        }
        Target::Memory { .. } => (vec![IN_MEMORY_NODES], Place::MemoryNodes),
        // The servers refuse what their kind does not have.
        Target::Servers { .. } => (Vec::new(), Place::Servers),
    };
    args.table.check(kinds.iter().copied(), place)?;
    let all: Vec<IndexKind> = match kinds.as_slice() {
        [] => IndexKind::ALL.to_vec(),
        kinds => kinds.to_vec(),
    };
    let having = given.kinds(SearchRows::STAGES, &all)?;
    Ok(having.first().copied().unwrap_or(IndexKind::Flat))
}

/// Memory that caches what is read, and whether all is read first.
fn cache(given: &Given) -> (CacheBudget, bool) {
    let settings: OpenSettings = given.read();
    #[cfg(feature = "lab")]
    if let Some(baseline) = given.read::<stratann_params::search::BatchSettings>().baseline
        && LoadScheme::from(baseline).is_uncached()
    {
        return (CacheBudget::Bytes(0), settings.preload);
    }
    (settings.cache_budget.into(), settings.preload)
}

/// Searches running servers.
fn on_servers(
    args: &Args,
    queries: &Path,
    (settings, to): (&[SearchOptions], Option<&ResultPath>),
    mut servers: Servers,
    output: Output,
) -> Result<Verdict> {
    let name = PathBuf::from(servers.name());
    let how = (to, args.show, None);
    let (document, failed) = run_all(how, settings, (&name, queries), &mut servers, output)?;
    report(args, &document, || text(&document), output)?;
    if failed > 0 {
        eprint_line(&format!(
            "stratann: {failed} queries failed on {}; the reasons are listed above",
            name.display()
        ));
    }
    Ok(if failed > 0 { Verdict::Failed } else { Verdict::Fine })
}

/// Searches one index, in a folder or in memory nodes.
fn one(
    (args, points): (&Args, Option<&SearchedPoints>),
    (name, queries): (&Path, &Path),
    (settings, to): (&[SearchOptions], Option<&ResultPath>),
    bench: &mut Bench,
    output: Output,
) -> Result<Verdict> {
    for options in settings {
        // All settings are checked before the first one runs.
        bench.index.params(options)?;
    }
    let how = (to, args.show, points);
    let (document, failed) = run_all(how, settings, (name, queries), bench, output)?;
    report(args, &document, || text(&document), output)?;
    Ok(verdict(failed, name))
}

/// Searches several indexes as one.
fn together(
    args: &Args,
    (index, queries): (&Path, &Path),
    (settings, to): (&[SearchOptions], Option<&ResultPath>),
    budgets: (OpenOptions, (CacheBudget, bool)),
    output: Output,
) -> Result<Verdict> {
    let all: Vec<PathBuf> = [index.to_path_buf()].into_iter().chain(args.also.iter().cloned()).collect();
    let how = (args.groundtruth.as_deref(), &args.filter, args.partial);
    let mut indexes = Indexes::open(&all, queries, how, settings, budgets, output)?;
    settings.iter().try_for_each(|options| indexes.check(options))?;
    let how = (to, args.show, None);
    let (document, failed) = run_all(how, settings, (index, queries), &mut indexes, output)?;
    report(args, &document, || text(&document), output)?;
    if failed > 0 {
        eprint_line(&format!(
            "stratann: {failed} queries failed; run `stratann verify` on the indexes named above"
        ));
    }
    Ok(if failed > 0 { Verdict::Failed } else { Verdict::Fine })
}

/// Checks the path of the result file, before the index is opened.
fn result_path(args: &Args, target: &Target<'_>) -> Result<Option<ResultPath>> {
    let Some(path) = &args.output else { return Ok(None) };
    let mut inputs: Vec<&Path> = args.groundtruth.as_deref().into_iter().collect();
    match *target {
        Target::Index { index, queries } => {
            inputs.extend([index, queries]);
            inputs.extend(args.filter.path());
        }
        Target::Servers { queries, .. } | Target::Memory { queries, .. } => inputs.push(queries),
    }
    let to = ResultPath::check(path, args.force, &inputs)?;
    if args.points.with_payload {
        to.check_payloads("--with-payload")?;
    }
    Ok(Some(to))
}

/// Runs every setting. Returns the report and the number of failed queries.
fn run_all<'a>(
    (to, show, points): (Option<&ResultPath>, usize, Option<&'a SearchedPoints>),
    settings: &[SearchOptions],
    (index, queries): (&'a Path, &'a Path),
    searcher: &mut dyn Searcher,
    output: Output,
) -> Result<(Document<'a>, usize)> {
    let (count, rows) = (searcher.count(), searcher.rows() as usize);
    note_adjustments(rows, settings, output);
    let k = settings.first().map_or(0, |s| s.k).min(rows);
    let extras = points.map(SearchedPoints::extras).unwrap_or_default();
    let mut file = to.map(|to| ResultFile::create(to, (count, k), extras)).transpose()?;
    let printer = ProgressPrinter::new(output);
    let (mut runs, mut shown, mut shown_points) = (Vec::new(), Vec::new(), Vec::new());
    for (i, options) in settings.iter().enumerate() {
        if let Some(cost) = searcher.exact_cost(options)? {
            output.note(&cost);
        }
        printer.stage(&format!("searching, {} of {}", i + 1, settings.len()), count as u64, "queries");
        let is_last = i + 1 == settings.len();
        let run = searcher.run(options, &printer, &mut |first, answers| {
            if let Some(points) = points {
                let show = if is_last { show } else { 0 };
                shown_points.extend(points.take((first, answers), file.as_mut(), show)?);
                return Ok(());
            }
            if is_last {
                let wanted = show.saturating_sub(first).min(answers.latency_ns.len());
                shown.extend((0..wanted).map(|q| Shown::of(first + q, answers, q)));
            }
            match &mut file {
                Some(file) => file.put(first, answers),
                None => Ok(()),
            }
        })?;
        runs.push(run);
    }
    printer.finish();
    if let Some(file) = file {
        file.commit()?;
    }
    let failed = runs.iter().map(|r| r.failed_queries).sum();
    let points = points.map(|points| points.report(shown_points));
    points.iter().for_each(|points| points.note(output));
    Ok((Document { index: Named(index), queries: Named(queries), runs, points, shown }, failed))
}

/// Prints the report: on stderr where results are on stdout.
fn report<T: Serialize>(
    args: &Args,
    document: &T,
    text: impl FnOnce() -> String,
    output: Output,
) -> Result<()> {
    if args.output.as_deref().is_some_and(is_stdout) {
        output.note(text().trim_end());
        return Ok(());
    }
    output.result(document, text)
}

/// Returns the verdict of a search with `failed` failed queries.
pub(crate) fn verdict(failed: usize, index: &Path) -> Verdict {
    if failed == 0 {
        return Verdict::Fine;
    }
    eprint_line(&format!(
        "stratann: {failed} queries failed in {}; run `stratann verify` on it",
        index.display()
    ));
    Verdict::Failed
}

/// Notes where results differ from the literal request.
fn note_adjustments(rows: usize, settings: &[SearchOptions], output: Output) {
    let Some(first) = settings.first() else { return };
    if first.k > rows {
        output.note(&format!(
            "note: -k {} exceeds the {rows} vectors of the index; each query gets {rows} results",
            first.k
        ));
    }
    for options in settings {
        if let Effort::SearchList(list, _) = options.effort
            && (list as usize) < first.k.min(rows)
        {
            output.note(&format!("note: --search-list {list} is below k; {} is used", first.k.min(rows)));
        }
    }
}
