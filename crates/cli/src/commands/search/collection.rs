//! Searches of a collection of a data folder.

use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use stratann_engine::dataset::GroundTruth;
use stratann_engine::search::Latency;
use stratann_node::collections::{Collection, Found, Hit, SearchOptions};
use stratann_node::rows::ExternalId;
use stratann_params::choices::PartsName;
use stratann_params::open::OpenSettings;
use stratann_params::search::SearchSettings;
use stratann_params::{Given, Place};
use stratann_storage::{Error, Progress, Result};

use super::answer::{Answer, shown_text};
use super::result_file::{Extras, ResultFile, ResultPath};
use super::text::{RESULTS_SHOWN, time};
use super::{Args, report};
use crate::Verdict;
use crate::data_folder::{self, plain, wanted};
use crate::options::all_cores;
use crate::output::{Named, Output, count, table};
use crate::point_filter::WithoutIndex;
use crate::progress::ProgressPrinter;
use crate::queries::Queries;

/// Bytes of the queries that are in memory at once.
const PART_BYTES: usize = 4 << 20;

#[derive(Serialize)]
struct Document<'a> {
    data: Named<'a>,
    collection: &'a str,
    queries: Named<'a>,
    points: u64,
    seq: u64,
    runs: Vec<Run>,
    /// Conditions of the filter for which payloads were read.
    unindexed: Vec<String>,
    /// Results of the first queries.
    answers: Vec<Answer<'a>>,
}

/// One setting and its measurements.
#[derive(Serialize)]
struct Run {
    recall: Option<f64>,
    qps: f64,
    latency_us: Latency,
    queries: usize,
    threads: usize,
    params: RunParams,
}

#[derive(Serialize)]
struct RunParams {
    k: usize,
    recall: f64,
}

/// Runs `stratann search --data`.
pub(super) fn run(args: &Args, data: &Path, runs: &[Given], output: Output) -> Result<Verdict> {
    let (name, queries_path) = args.searched.in_collection()?;
    args.table.check(None, Place::Collections)?;
    if args.filter.path().is_some() {
        return Err(Error::bad_input(
            "collections are filtered by --filter and --where; leave --only and --without out",
        ));
    }
    if args.partial {
        return Err(Error::bad_input("--partial is for --connect and --also; leave it out for a collection"));
    }
    let filter = args.points.filter.read()?;
    let field = args.points.text_field()?;
    let extras = Extras { payloads: args.points.with_payload, text: field.as_ref() };
    let to = result_path(args, queries_path)?;
    let printer = ProgressPrinter::new(output);
    let ram_budget = args.table.given.read::<OpenSettings>().ram_budget;
    let node = data_folder::open(data, ram_budget, &printer)?;
    let collection = node.collection(name).map_err(plain)?;
    args.points.filter.check(filter.as_ref(), &collection)?;
    let (_, spec) = collection.specs().find(args.points.vector_name.as_deref()).map_err(plain)?;
    let queries = Queries::of_collection(queries_path, wanted(spec), output)?;
    let (points, seq) = (collection.count().map_err(plain)?, collection.seq().map_err(plain)?);
    let with_payload = extras.payloads || extras.text.is_some();
    let option = |given| SearchOptions { filter: filter.clone(), with_payload, ..options(args, given) };
    let settings: Vec<SearchOptions> = runs.iter().map(option).collect();
    let k = settings.first().map_or(0, |options| options.k);
    if k as u64 > points {
        output.note(&format!("note: -k {k} exceeds the {points} points; each query gets {points} results"));
    }
    let k = k.min(usize::try_from(points).unwrap_or(usize::MAX));
    let truth = args.groundtruth.as_deref().map(|path| read_truth(path, &queries, k)).transpose()?;
    let mut file = to.map(|to| ResultFile::create(&to, (queries.count(), k), extras)).transpose()?;
    let (mut done, mut shown, mut unindexed) = (Vec::new(), Vec::new(), WithoutIndex::default());
    for (at, options) in settings.iter().enumerate() {
        printer.stage(
            &format!("searching, {} of {}", at + 1, settings.len()),
            queries.count() as u64,
            "queries",
        );
        let is_last = at + 1 == settings.len();
        let mut take = |query: usize, found: Found| {
            unindexed.add(&found.unindexed);
            let hits = [found.hits.into_iter().next().unwrap_or_default()];
            file.as_mut().map_or(Ok(()), |file| file.put_points(query, &hits, extras))?;
            if is_last && query < args.show {
                shown.extend(hits.map(|hits| (query, hits)));
            }
            Ok(())
        };
        let run = one_run(&collection, &queries, (options, truth.as_ref()), &printer, &mut take)?;
        done.push(run);
    }
    printer.finish();
    file.map_or(Ok(()), ResultFile::commit)?;
    unindexed.note(output);
    let document = Document {
        data: Named(data),
        collection: name,
        queries: Named(queries_path),
        points,
        seq,
        runs: done,
        unindexed: unindexed.texts(),
        answers: shown.iter().map(|(query, hits)| Answer::of(*query, hits, extras)).collect(),
    };
    report(args, &document, || text(&document, &shown, extras), output)?;
    Ok(Verdict::Fine)
}

/// Checks the path of the result file.
fn result_path(args: &Args, queries: &Path) -> Result<Option<ResultPath>> {
    let Some(path) = args.output.as_deref() else { return Ok(None) };
    let inputs: Vec<&Path> = args.groundtruth.as_deref().into_iter().chain([queries]).collect();
    let to = ResultPath::check(path, args.force, &inputs)?;
    if args.points.with_payload {
        to.check_payloads("--with-payload")?;
    }
    Ok(Some(to))
}

fn options(args: &Args, given: &Given) -> SearchOptions {
    let settings: SearchSettings = given.read();
    let usual = SearchOptions::default();
    SearchOptions {
        k: settings.k,
        recall: settings.recall.unwrap_or(usual.recall),
        threads: settings.threads.unwrap_or_else(all_cores),
        each_part_alone: settings.parts == PartsName::Each,
        vector_name: args.points.vector_name.clone(),
        ..usual
    }
}

/// Reads ground truth of these queries, with as many neighbours as there are results.
fn read_truth(path: &Path, queries: &Queries, k: usize) -> Result<GroundTruth> {
    let truth = GroundTruth::read(path)?;
    let (name, have, want) = (path.display(), truth.queries(), queries.count());
    if have != want {
        return Err(Error::bad_input(format!(
            "{name} is for {have} queries, {want} are searched; compute it again"
        )));
    }
    if truth.k < k {
        return Err(Error::bad_input(format!(
            "{name} has {} neighbours per query, {k} are needed; compute it again with -k {k}",
            truth.k
        )));
    }
    Ok(truth)
}

/// Runs all queries, one after another.
fn one_run(
    collection: &Collection,
    queries: &Queries,
    (options, truth): (&SearchOptions, Option<&GroundTruth>),
    printer: &ProgressPrinter,
    take: &mut dyn FnMut(usize, Found) -> Result<()>,
) -> Result<Run> {
    let (all, row_bytes) = (queries.count(), queries.row_bytes().max(1));
    let part = (PART_BYTES / (row_bytes + queries.conversion_bytes())).max(1);
    let (mut rows, mut latency_ns) = (Vec::new(), Vec::with_capacity(all));
    let (mut found, mut wanted) = (0, 0);
    for first in (0..all).step_by(part) {
        queries.read(first, part.min(all - first), &mut rows)?;
        for (query, row) in (first..).zip(rows.chunks_exact(row_bytes)) {
            printer.check_interrupted()?;
            let started = Instant::now();
            let results = collection.search_with(row, options).map_err(plain)?;
            latency_ns.push(started.elapsed().as_nanos() as u64);
            let hits = results.hits.first().map_or(&[][..], Vec::as_slice);
            if let Some(truth) = truth {
                let own = measured(hits, truth.neighbours_of(query), options.k);
                (found, wanted) = (found + own.0, wanted + own.1);
            }
            take(query, results)?;
            printer.advance(1);
        }
    }
    let seconds = latency_ns.iter().sum::<u64>() as f64 / 1e9;
    Ok(Run {
        recall: truth.map(|_| if wanted == 0 { 1.0 } else { found as f64 / wanted as f64 }),
        qps: all as f64 / seconds.max(1e-9),
        latency_us: Latency::of(&latency_ns),
        queries: all,
        threads: options.threads,
        params: RunParams { k: options.k, recall: options.recall },
    })
}

/// True neighbours among the first k that were found, and how many there are.
fn measured(hits: &[Hit], truth: &[u32], k: usize) -> (usize, usize) {
    let truth = &truth[..k.min(truth.len())];
    let is_found = |id: &&u32| hits.iter().any(|hit| hit.id == ExternalId::Number(u64::from(**id)));
    (truth.iter().filter(is_found).count(), truth.len())
}

fn text(document: &Document<'_>, shown: &[(usize, Vec<Hit>)], extras: Extras<'_>) -> String {
    let mut out = String::new();
    if !shown.is_empty() {
        out += "nearest first, id (distance):\n";
    }
    for (query, hits) in shown {
        out += &shown_text(*query, hits, RESULTS_SHOWN, extras.text);
    }
    let row = |run: &Run| {
        vec![
            format!("--recall {}", run.params.recall),
            run.recall.map_or("-".into(), |recall| format!("{recall:.4}")),
            count(run.qps as u64),
            time(run.latency_us.mean),
            time(run.latency_us.p99),
        ]
    };
    let rows: Vec<Vec<String>> = document.runs.iter().map(row).collect();
    out += &table(&["search", "recall", "queries/s", "mean latency", "99 % within"], &rows);
    out + &format!(
        "\n{} queries, one after another; {} points, change {}\n",
        count(document.runs.first().map_or(0, |run| run.queries) as u64),
        count(document.points),
        count(document.seq)
    )
}
