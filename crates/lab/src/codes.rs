//! `stratann-lab codes`: what ranking candidates by their codes takes on one thread.

use std::path::PathBuf;
use std::time::Instant;

use serde::Serialize;
use stratann_cli::Verdict;
use stratann_cli::output::{Named, Output, count};
use stratann_cli::queries::Queries;
use stratann_core::query::{QueryState, Scratch};
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::search::{Effort, SearchOptions};
use stratann_params::IndexKind;
use stratann_storage::{Error, Result};

/// Measure what ranking candidates by their codes takes on one thread (gpu-ivf)
///
/// No vector is read. The time of a code includes dropping duplicates and selecting the nearest.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder of the index
    index: PathBuf,
    /// Queries, in any vector format
    queries: PathBuf,
    /// Lists that a query visits
    #[arg(long, value_name = "N", default_value_t = 64)]
    nprobe: u32,
    /// Nearest candidates that are kept
    #[arg(short, default_value_t = 10)]
    k: usize,
    /// Rounds over all queries; the median counts
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
}

#[derive(Serialize)]
struct Document<'a> {
    index: Named<'a>,
    queries: usize,
    nprobe: u32,
    code_bytes: usize,
    /// Different codes that a query ranks.
    codes: f64,
    /// Preparing a query, and choosing its lists.
    prepare_us: f64,
    route_us: f64,
    rank_us: f64,
    ns_a_code: f64,
    /// Distances alone, of as many codes that lie in one piece.
    scan_ns_a_code: f64,
}

/// Runs `stratann-lab codes`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    let index = Index::open(&args.index, OpenOptions::default())?;
    let manifest = index.manifest();
    if manifest.kind() != Some(IndexKind::GpuIvf) {
        return Err(Error::bad_input(format!(
            "{} is of kind {}; give an index of kind gpu-ivf",
            args.index.display(),
            manifest.kind
        )));
    }
    let queries = Queries::open(&args.queries, manifest, output)?;
    let mut rows = Vec::new();
    queries.read(0, queries.count(), &mut rows)?;
    let mut rounds = (0..args.rounds).map(|_| round(args, &index, &rows)).collect::<Result<Vec<_>>>()?;
    rounds.sort_by(|a, b| a.rank_ns.total_cmp(&b.rank_ns));
    let middle = rounds[rounds.len() / 2];
    let each_us = |ns: f64| ns / 1000.0 / queries.count().max(1) as f64;
    let code_bytes = index.view().kind.gpu_ivf().map_or(0, |own| own.coder.code_bytes());
    let document = Document {
        index: Named(&args.index),
        queries: queries.count(),
        nprobe: args.nprobe,
        code_bytes,
        codes: middle.codes / queries.count().max(1) as f64,
        prepare_us: each_us(middle.prepare_ns),
        route_us: each_us(middle.route_ns),
        rank_us: each_us(middle.rank_ns),
        ns_a_code: middle.rank_ns / middle.codes.max(1.0),
        scan_ns_a_code: middle.scan_ns / middle.codes.max(1.0),
    };
    output.result(&document, || {
        format!(
            "{:.2} ns a code of {} bytes, {:.2} ns for its distance alone ({} codes a query, {} queries); query \
             {:.1} us, lists {:.1} us, ranking {:.1} us\n",
            document.ns_a_code,
            document.code_bytes,
            document.scan_ns_a_code,
            count(document.codes as u64),
            count(document.queries as u64),
            document.prepare_us,
            document.route_us,
            document.rank_us
        )
    })?;
    Ok(Verdict::Fine)
}

/// Sums over all queries.
#[derive(Clone, Copy, Default)]
struct Round {
    prepare_ns: f64,
    route_ns: f64,
    rank_ns: f64,
    scan_ns: f64,
    codes: f64,
}

fn round(args: &Args, index: &Index, rows: &[u8]) -> Result<Round> {
    let effort = Effort::Nprobe(args.nprobe, None, None);
    let params = index.params(&SearchOptions { k: args.k, effort, ..SearchOptions::default() })?;
    let (view, mut scratch, mut sum) = (index.view(), Scratch::default(), Round::default());
    let mut distances = Vec::new();
    for query in rows.chunks_exact(index.row_bytes()) {
        let mut state = QueryState::new(params, index.query_budget());
        let mut lap = Instant::now();
        let mut taken_ns = || {
            let now = Instant::now();
            (now - std::mem::replace(&mut lap, now)).as_nanos() as f64
        };
        scratch.prepare(&view, query);
        sum.prepare_ns += taken_ns();
        state.step(&view, &mut scratch, &[]);
        sum.route_ns += taken_ns();
        let ranking = scratch.rank_codes(&view);
        sum.rank_ns += taken_ns();
        sum.codes += ranking.distinct as f64;
        let ids: Vec<u32> = (0..ranking.distinct as u32).collect();
        let (Some(job), Some(own)) = (scratch.code_job(&view), view.kind.gpu_ivf()) else { continue };
        taken_ns();
        job.coded.distances(own.codes, &ids, &mut distances);
        sum.scan_ns += taken_ns();
    }
    Ok(sum)
}
