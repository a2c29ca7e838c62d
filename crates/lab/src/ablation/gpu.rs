//! The techniques of a `gpu-ivf` beside other systems (FusionANNS §2.1, §2.3 and §6.1 to §6.3): every way to search at
//! its cheapest setting that reaches a recall, threads, candidates that queries need, and reads that are saved.

use serde::Serialize;
use stratann_cli::Verdict;
use stratann_cli::options;
use stratann_cli::output::{Named, Output};
use stratann_cli::progress::ProgressPrinter;
use stratann_cli::queries::Queries;
use stratann_engine::dataset::GroundTruth;
use stratann_engine::exec::Width;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::kinds::gpu_ivf::baseline::OpenBaselines;
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{Answers, Effort, SearchOptions};
use stratann_params::IndexKind;
use stratann_storage::{Error, Result};

use super::{Args, plot_path};

mod candidates;
mod figure;
mod saved;
mod settings;
mod text;
mod threads;
mod timed;
mod ways;

use candidates::Needed;
use saved::{Saved, SavedMean, Swept};
use settings::{Family, Setting};
use threads::Scaled;
use timed::AtRecall;
use ways::Way;

/// Memory for blocks and lists while settings are sought. Reads that are asked for count, so it changes no counter.
const CACHE_BYTES: u64 = 2 << 30;
/// Reads of a query at once: as SPANN does, all lists are asked for together.
const WIDTH: u32 = 64;

#[derive(Serialize)]
struct Document<'a> {
    index: Named<'a>,
    queries: Named<'a>,
    rows: u64,
    dim: usize,
    lists: u32,
    k: usize,
    recalls: &'a [f64],
    /// Queries that count, and those of them that are timed.
    counted_queries: usize,
    timed_queries: usize,
    codes_per_read: f64,
    /// Every way to search at every recall (figures 4, 9 and 10).
    ways: Vec<AtRecall>,
    /// Techniques added one by one, at equal lists (figure 12).
    techniques: Vec<AtRecall>,
    /// Reads of re-ranking that each technique saves.
    saved: Vec<Saved>,
    saved_mean: Vec<SavedMean>,
    /// Candidates that each query needs (figure 5).
    needed: Needed,
    /// Settings of the rule by changes.
    sweep: Vec<Swept>,
    /// Threads, measured and simulated (figures 3 and 11).
    threads: Vec<Scaled>,
}

/// The index, its queries, and what all measurements share.
struct Bench<'a> {
    args: &'a Args,
    printer: &'a ProgressPrinter,
    index: Index,
    queries: Queries,
    /// All queries.
    rows: Vec<u8>,
    /// True neighbours of each, k a query.
    truth: Vec<u64>,
}

/// Measures them.
pub(super) fn run(args: &Args, output: Output) -> Result<Verdict> {
    let plot = plot_path(args)?;
    let printer = ProgressPrinter::new(output);
    let mut bench = Bench::open(args, &printer, output)?;
    bench.index.set_cache_budget(CACHE_BYTES);
    let search = bench.search();
    let chosen = search.all(&args.recall)?;
    let needed = bench.needed(chosen.last(Family::Static)?.tried.setting.nprobe)?;
    let saved = search.saved(&chosen)?;
    let sweep = search.sweep(&chosen)?;
    drop(search);
    bench.index.set_cache_budget(0);
    let ways = bench.ways(&chosen)?;
    let techniques = bench.techniques(&saved)?;
    let threads = bench.threads(&chosen)?;
    let document = Document {
        index: Named(&args.base),
        queries: Named(&args.queries),
        rows: bench.index.manifest().rows,
        dim: bench.index.manifest().dim,
        lists: bench.index.view().size().clusters,
        k: args.k,
        recalls: &args.recall,
        counted_queries: bench.queries.count(),
        timed_queries: bench.timed_rows().len() / bench.queries.row_bytes(),
        codes_per_read: bench.codes_per_read(),
        ways,
        techniques,
        saved_mean: SavedMean::of(&saved),
        saved,
        needed,
        sweep,
        threads,
    };
    printer.finish();
    if let Some(plot) = &plot {
        figure::draw(plot, &document)?;
    }
    output.result(&document, || text::text(&document))?;
    Ok(Verdict::Fine)
}

impl<'a> Bench<'a> {
    fn open(args: &'a Args, printer: &'a ProgressPrinter, output: Output) -> Result<Bench<'a>> {
        args.recall.windows(2).all(|pair| pair[0] < pair[1]).then_some(()).ok_or_else(|| {
            Error::bad_input("--recall is not ascending; give each recall once, the lowest first")
        })?;
        if !args.codes_per_read.is_none_or(|codes| codes > 0.0 && codes <= 1e9) {
            return Err(Error::bad_input(
                "--codes-per-read is out of range; give a number above 0 and up to 1e9",
            ));
        }
        let (_, manifest) = Manifest::read(&args.base)?;
        if manifest.kind() != Some(IndexKind::GpuIvf) {
            return Err(Error::bad_input(format!(
                "{} is of kind {}; give an index of kind gpu-ivf that was built with --baselines",
                args.base.display(),
                manifest.kind
            )));
        }
        let open = OpenOptions { baselines: OpenBaselines::Resident, ..OpenOptions::default() };
        let index = Index::open(&args.base, open)?;
        let queries = Queries::open(&args.queries, index.manifest(), output)?;
        let truth = GroundTruth::read(&args.groundtruth)?;
        if truth.queries() != queries.count() || truth.k < args.k || args.k == 0 {
            return Err(Error::bad_input(format!(
                "{} holds {} neighbours of {} queries, {} of {} are needed; compute it again",
                args.groundtruth.display(),
                truth.k,
                truth.queries(),
                args.k,
                queries.count()
            )));
        }
        let mut rows = Vec::new();
        queries.read(0, queries.count(), &mut rows)?;
        let of = |q: usize| truth.ids_of(q)[..args.k].iter().map(|&id| u64::from(id));
        let ids = (0..queries.count()).flat_map(of).collect();
        let bench = Bench { args, printer, index, queries, rows, truth: ids };
        bench.index.check_truth(truth, &args.groundtruth, bench.timed_rows(), args.threads(), printer)?;
        Ok(bench)
    }

    /// The queries that are timed.
    fn timed_rows(&self) -> &[u8] {
        let count = self.args.sample.clamp(1, self.queries.count());
        &self.rows[..count * self.queries.row_bytes()]
    }

    fn codes_per_read(&self) -> f64 {
        self.args.codes_per_read.unwrap_or(1000.0)
    }

    fn k(&self) -> u32 {
        self.args.k as u32
    }

    /// A search of one way with a setting.
    fn options(&self, way: &Way, setting: &Setting, threads: usize) -> SearchOptions {
        SearchOptions {
            k: self.args.k,
            effort: Effort::Nprobe(setting.nprobe, None, None),
            width: Width::Fixed(WIDTH),
            threads,
            // Each query makes its own reads, so that counters are exact.
            merge: false,
            switches: setting.switches(way).into(),
            ..SearchOptions::default()
        }
    }

    /// Runs queries. One that fails is an error.
    fn run(&self, rows: &[u8], options: &SearchOptions) -> Result<Answers> {
        let answers = self.index.search(rows, options, self.printer)?;
        match answers.failed.first() {
            Some((query, why)) => Err(Error::corrupt(format!(
                "query {query} of {} failed: {why}; run `stratann verify`",
                self.args.queries.display()
            ))),
            None => Ok(answers),
        }
    }

    fn recall(&self, answers: &Answers) -> f64 {
        let count = answers.latency_ns.len() * self.args.k;
        answers.recall(&self.truth[..count], self.args.k)
    }

    /// Numbers of threads that are measured.
    fn thread_counts(&self) -> Vec<usize> {
        let mut counts = self.args.threads.clone();
        if counts.is_empty() {
            counts = vec![1, options::all_cores()];
        }
        counts.sort_unstable();
        counts.dedup();
        counts
    }
}
