//! `stratann-lab rank`: how well codes alone rank vectors, by bytes of a code.

use std::path::PathBuf;
use std::time::Instant;

use rayon::prelude::*;
use serde::Serialize;
use stratann_cli::Verdict;
use stratann_cli::options;
use stratann_cli::output::{Named, Output, table};
use stratann_engine::Metric;
use stratann_engine::build::metric_of;
use stratann_engine::codebook;
use stratann_engine::codebook::bits::SAMPLE_ROWS;
use stratann_engine::dataset::{GroundTruth, Reader};
use stratann_kernel::bits::{BitCoder, Layout, Segment};
use stratann_kernel::coder::{CodeQuery, Coder};
use stratann_kernel::distance::inverse_norm;
use stratann_kernel::element::widen;
use stratann_params::choices::MetricName;
use stratann_storage::{Error, Quiet, Result};

/// Numbers of nearest codes that are looked at.
const FIRST: [usize; 5] = [10, 15, 20, 30, 50];
/// Nearest vectors that should be among them.
const TRUE: usize = 10;

/// Measure how well codes rank vectors: the share of the true 10 nearest among the first by code alone
///
/// All vectors are scanned.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Vectors
    base: PathBuf,
    /// Queries
    queries: PathBuf,
    /// Ground truth from `stratann groundtruth`
    #[arg(long, value_name = "GT")]
    groundtruth: PathBuf,
    /// Distance
    #[arg(long, value_parser = options::choice::<MetricName>(), default_value = "l2")]
    metric: MetricName,
    /// Bytes of a code, its factors included
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_value = "32,36,64,96")]
    bytes: Vec<usize>,
    /// Queries, from the first on
    #[arg(long, value_name = "N", default_value_t = 500)]
    most_queries: usize,
    /// Seed of rotations and centroids
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// One code and what it ranks.
#[derive(Serialize)]
struct Row {
    code: String,
    code_bytes: usize,
    /// Shares of the true nearest among the first of [`FIRST`].
    shares: Vec<f64>,
    preparing_s: f64,
    encoding_us: f64,
}

#[derive(Serialize)]
struct Document<'a> {
    base: Named<'a>,
    rows: usize,
    dim: usize,
    queries: usize,
    first: [usize; 5],
    codes: Vec<Row>,
}

/// Vectors as codes see them.
struct Vectors {
    dim: usize,
    floats: Vec<f32>,
}

/// Runs `stratann-lab rank`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    let metric = metric_of(args.metric);
    let (base, queries) =
        (read(&args.base, metric, usize::MAX)?, read(&args.queries, metric, args.most_queries)?);
    let truth = GroundTruth::read(&args.groundtruth)?;
    let count = queries.floats.len() / queries.dim;
    if base.dim != queries.dim || truth.queries() < count || truth.k < TRUE {
        return Err(Error::bad_input(format!(
            "{} is not the ground truth of these vectors and queries, with at least {TRUE} neighbours of each",
            args.groundtruth.display()
        )));
    }
    let truth: Vec<&[u32]> = truth.ids.chunks_exact(truth.k).take(count).map(|ids| &ids[..TRUE]).collect();
    let mut codes = Vec::new();
    for &bytes in &args.bytes {
        if Layout::within(base.dim, bytes, true).is_some() {
            codes.push(row(args, metric, bytes, (&base, &queries), &truth)?);
        }
    }
    let rows = base.floats.len() / base.dim;
    let document =
        Document { base: Named(&args.base), rows, dim: base.dim, queries: count, first: FIRST, codes };
    output.result(&document, || text(&document))?;
    Ok(Verdict::Fine)
}

/// Reads vectors as floats; of unit length under cosine.
fn read(path: &std::path::Path, metric: Metric, most: usize) -> Result<Vectors> {
    let reader = Reader::open(path)?;
    let shape = reader.shape();
    let count = (shape.rows as usize).min(most);
    let mut bytes = Vec::new();
    reader.read_rows(0, count, &mut bytes)?;
    let mut floats = vec![0f32; count * shape.dim];
    for (row, wide) in bytes.chunks_exact(shape.row_bytes()).zip(floats.chunks_exact_mut(shape.dim)) {
        widen(shape.dtype, row, wide);
        if metric == Metric::Cosine {
            let scale = inverse_norm(shape.dtype, row);
            wide.iter_mut().for_each(|x| *x *= scale);
        }
    }
    Ok(Vectors { dim: shape.dim, floats })
}

/// Encodes all vectors and ranks them by their codes.
fn row(
    args: &Args,
    metric: Metric,
    bytes: usize,
    (base, queries): (&Vectors, &Vectors),
    truth: &[&[u32]],
) -> Result<Row> {
    let (dim, started) = (base.dim, Instant::now());
    let sample = sampled(base, SAMPLE_ROWS);
    let ip = metric == Metric::Ip;
    let coder = codebook::bits::bit_coder(sample, dim, ip, (bytes, args.seed), &Quiet)?;
    let preparing_s = started.elapsed().as_secs_f64();
    let started = Instant::now();
    let code_bytes = coder.layout().code_bytes();
    let mut codes = vec![0u8; base.floats.len() / dim * code_bytes];
    codebook::encode_rows(&coder, &base.floats, &mut codes);
    let encoding_s = started.elapsed().as_secs_f64() * rayon::current_num_threads() as f64;
    let all: Vec<u32> = (0..(base.floats.len() / dim) as u32).collect();
    let code = name(&coder, dim);
    let coder = Coder::Bits(coder);
    let shares = shares(queries, truth, |query, keys| {
        let mut asked = CodeQuery::default();
        asked.set(&coder, query, &mut Vec::new());
        asked.distances(&codes, &all, keys);
    });
    let encoding_us = encoding_s * 1e6 / all.len() as f64;
    Ok(Row { code, code_bytes, shares, preparing_s, encoding_us })
}

fn sampled(base: &Vectors, most: usize) -> Vec<f32> {
    let step = (base.floats.len() / base.dim).div_ceil(most);
    base.floats.chunks_exact(base.dim).step_by(step).flatten().copied().collect()
}

fn name(coder: &BitCoder, dim: usize) -> String {
    let bits = |s: &Segment| format!("{} × {}", s.dims, s.bits);
    let segments: Vec<String> = coder.layout().segments().iter().map(bits).collect();
    let turn = if coder.basis().is_empty() { "a seed" } else { "directions" };
    format!("{} bits, by {turn}, {} centroids", segments.join(" + "), coder.centroids().len() / dim)
}

/// The share of the true nearest among the first by key, for each of [`FIRST`].
fn shares(queries: &Vectors, truth: &[&[u32]], keys: impl Fn(&[f32], &mut Vec<u32>) + Sync) -> Vec<f64> {
    let most = FIRST[FIRST.len() - 1];
    let found: Vec<[usize; FIRST.len()]> = queries
        .floats
        .par_chunks(queries.dim)
        .zip(truth)
        .map(|(query, truth)| {
            let mut scored = Vec::new();
            keys(query, &mut scored);
            let mut order: Vec<u64> =
                scored.iter().zip(0u64..).map(|(&key, id)| u64::from(key) << 32 | id).collect();
            let most = most.min(order.len());
            order.select_nth_unstable(most - 1);
            order.truncate(most);
            order.sort_unstable();
            FIRST.map(|first| order.iter().take(first).filter(|&&key| truth.contains(&(key as u32))).count())
        })
        .collect();
    let share = |i: usize| {
        found.iter().map(|each| each[i]).sum::<usize>() as f64 / (TRUE * found.len().max(1)) as f64
    };
    (0..FIRST.len()).map(share).collect()
}

fn text(document: &Document<'_>) -> String {
    let mut headings = vec!["code".to_string(), "bytes".into()];
    headings.extend(FIRST.map(|first| format!("first {first}")));
    headings.extend(["preparing s".into(), "encoding us".into()]);
    let rows: Vec<Vec<String>> = document
        .codes
        .iter()
        .map(|row| {
            let mut cells = vec![row.code.clone(), row.code_bytes.to_string()];
            cells.extend(row.shares.iter().map(|share| format!("{share:.3}")));
            cells.extend([format!("{:.1}", row.preparing_s), format!("{:.1}", row.encoding_us)]);
            cells
        })
        .collect();
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    table(&headings, &rows)
}
