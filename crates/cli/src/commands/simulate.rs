//! `stratann simulate`: what a cluster would do with an index.

use std::path::PathBuf;

use serde::Serialize;
use stratann_core::place::{Here, Placement, SERVERS_MAX};
use stratann_core::query::{Budget, Params, QueryState, QueryStats, Scratch, Want};
use stratann_engine::cluster::{self, PartitionOptions};
use stratann_engine::dataset::GroundTruth;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::search::{SearchOptions, recall};
use stratann_engine::{Error, Result};
use stratann_sim::{Asked, Blocks, Cluster, Report, Told, Weather, run as simulate};

use super::cluster::MethodName;
use super::search::PerQuery;
use crate::Verdict;
use crate::options;
use crate::output::{Output, table};
use crate::progress::Teller;
use crate::queries::Queries;

/// Say what an index would cost on several servers, without any
///
/// Spreads the index as `cluster partition` would, in memory alone, and runs the queries through a simulated cluster: the real search and the
/// real protocol between the servers, over links and disks that are simulated. All counters are exact. Computing takes no time in it, so it
/// says nothing about queries per second.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The folder of the index
    index: PathBuf,
    /// Queries, in any vector format
    queries: PathBuf,
    /// Numbers of servers, such as 1,4,10
    #[arg(long, value_name = "N,…", value_delimiter = ',', required = true)]
    servers: Vec<usize>,
    /// Servers that hold each block
    #[arg(long, default_value_t = 1, value_name = "R")]
    replicas: usize,
    /// Share of the blocks that one more server gets a copy of
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, hide_default_value = true)]
    overlap: f64,
    /// How blocks are divided
    #[arg(long, value_enum, default_value = "cells")]
    method: MethodName,
    /// Which server a query comes to first; where it goes from there is a hand-over
    #[arg(long, value_enum, default_value = "any")]
    entry: Entry,
    /// Results per query
    #[arg(short, default_value_t = 10)]
    k: usize,
    #[command(flatten)]
    effort: options::Effort,
    /// Blocks that a query wants at once
    #[arg(long, default_value_t = 1, value_name = "N")]
    width: u32,
    /// True neighbours, from `stratann groundtruth`, to measure recall@k with
    #[arg(long, value_name = "GT")]
    groundtruth: Option<PathBuf>,
    /// Seed of the division and of all delays
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// `--entry`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Entry {
    /// One after another.
    Any,
    /// A server that holds the first block it wants: what a client that knows the head graph could choose.
    Nearest,
}

const EXAMPLES: &str = "\
Examples:
  stratann simulate base.idx query.fbin --servers 1,5,10 --groundtruth truth.ibin --search-list 60
  stratann simulate base.idx query.fbin --servers 10 --replicas 2 --width 8 --recall 0.95";

/// Queries that are simulated at a time: their answers are in memory.
const PART: usize = 1000;
/// Microseconds between two queries, and until a client gives up.
const EVERY_US: u64 = 100;
const TIME_US: u64 = 60_000_000;

#[derive(Serialize)]
struct Row {
    servers: usize,
    recall: Option<f64>,
    per_query: PerQuery,
    /// Hand-overs over rounds of reads (BatANN figure 3).
    hand_over_share: f64,
    bytes_per_hand_over: f64,
    vector_bytes_per_query: f64,
    busiest_over_mean: f64,
    queries: usize,
    failed_queries: usize,
}

#[derive(Serialize)]
struct Document {
    params: serde_json::Value,
    runs: Vec<Row>,
}

struct FromFile<'a>(&'a Index);

impl Blocks for FromFile<'_> {
    fn read(&self, block: u32, out: &mut Vec<u8>) -> bool {
        out.clear();
        self.0.read_block(block).map(|b| out.extend_from_slice(b.bytes())).is_ok()
    }
}

/// `stratann simulate`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    let efforts = args.effort.each();
    let &[effort] = efforts.as_slice() else {
        return Err(Error::bad_input("simulate takes one --recall or --search-list"));
    };
    let index = Index::open(&args.index, OpenOptions::default())?;
    let queries = Queries::open(&args.queries, index.manifest(), output)?;
    let options =
        SearchOptions { k: args.k, effort, patience: args.effort.patience, ..SearchOptions::default() };
    let mut params = index.params(&options)?;
    (params.width, params.approach_width) = (args.width, args.width);
    if !params.is_valid() {
        return Err(Error::bad_input(format!("--width is {}; use 1 to 64", args.width)));
    }
    let truth = args.groundtruth.as_deref().map(GroundTruth::read).transpose()?;
    if let (Some(truth), Some(path)) = (&truth, &args.groundtruth) {
        super::search::check_truth(truth, path, &queries, &[options], index.manifest())?;
    }
    let job = Job { args, index: &index, queries: &queries, params, truth: truth.as_ref(), output };
    let runs = args.servers.iter().map(|&servers| job.run(servers)).collect::<Result<Vec<Row>>>()?;
    let failed = runs.iter().any(|r| r.failed_queries > 0);
    let document = Document {
        params: serde_json::json!({
            "k": params.k, "search_list": params.search_list, "width": params.width, "replicas": args.replicas,
            "overlap": args.overlap, "entry": format!("{:?}", args.entry).to_lowercase(), "seed": args.seed,
        }),
        runs,
    };
    output.result(&document, || text(&document))?;
    if failed { Err(Error::corrupt("some queries failed; run `stratann verify`")) } else { Ok(Verdict::Fine) }
}

struct Job<'a> {
    args: &'a Args,
    index: &'a Index,
    queries: &'a Queries,
    params: Params,
    truth: Option<&'a GroundTruth>,
    output: Output,
}

/// What the parts of a run come to together.
#[derive(Default)]
struct Sum {
    stats: QueryStats,
    baton_bytes: u64,
    vector_bytes: u64,
    other_bytes: u64,
    reads: Vec<u64>,
    found: f64,
    failed: usize,
}

impl Job<'_> {
    fn run(&self, servers: usize) -> Result<Row> {
        let options = PartitionOptions {
            replicas: self.args.replicas.min(servers),
            overlap: if servers > 1 { self.args.overlap } else { 0.0 },
            method: self.args.method.into(),
            seed: self.args.seed,
            ..PartitionOptions::new(servers)
        };
        let teller = Teller::new(self.output);
        let placement = cluster::place(&self.args.index, &options, &teller)?;
        teller.finish();
        let mut sum = Sum { reads: vec![0; servers], ..Sum::default() };
        for first in (0..self.queries.count()).step_by(PART) {
            self.part(&placement, first, &mut sum)?;
        }
        let count = self.queries.count();
        let each = |x: u64| x as f64 / count.max(1) as f64;
        let s = &sum.stats;
        let mut per_query = PerQuery::of(s, count, self.index.view().block.block_bytes);
        per_query.bytes_sent = each(sum.baton_bytes + sum.vector_bytes + sum.other_bytes);
        let busiest = sum.reads.iter().copied().max().unwrap_or(0) as f64;
        let mean = sum.reads.iter().sum::<u64>() as f64 / servers as f64;
        Ok(Row {
            servers,
            recall: self.truth.map(|_| sum.found / count.max(1) as f64),
            per_query,
            hand_over_share: s.hand_overs as f64 / s.hops.max(1) as f64,
            bytes_per_hand_over: sum.baton_bytes as f64 / s.hand_overs.max(1) as f64,
            vector_bytes_per_query: each(sum.vector_bytes),
            busiest_over_mean: if mean > 0.0 { busiest / mean } else { 1.0 },
            queries: count,
            failed_queries: sum.failed,
        })
    }

    fn part(&self, placement: &Placement, first: usize, sum: &mut Sum) -> Result<()> {
        let count = PART.min(self.queries.count() - first);
        let mut rows = Vec::new();
        self.queries.read(first, count, &mut rows)?;
        let rows: Vec<&[u8]> = rows.chunks_exact(self.queries.row_bytes()).collect();
        let asked: Vec<Asked<'_>> = rows
            .iter()
            .enumerate()
            .map(|(q, vector)| Asked {
                at_us: EVERY_US * q as u64,
                origin: self.origin(placement, vector, first + q),
                vector,
                params: self.params,
                budget: Budget::default(),
                time_us: TIME_US,
            })
            .collect();
        let blocks = FromFile(self.index);
        let cluster = Cluster { view: self.index.view(), placement, blocks: &blocks };
        let report = simulate(&cluster, &asked, &Weather { seed: self.args.seed, ..Weather::default() });
        self.add(&report, first, sum);
        Ok(())
    }

    fn origin(&self, placement: &Placement, vector: &[u8], query: usize) -> u8 {
        let turn = query % placement.servers();
        if self.args.entry == Entry::Any {
            return turn as u8;
        }
        let view = self.index.view();
        let mut scratch = Scratch::default();
        scratch.prepare(&view, vector);
        let mut state = QueryState::new(self.params, Budget::default());
        state.step(&view, &mut scratch, &[]);
        let Some(&Want::Fetch { block, .. }) = state.wants().first() else { return turn as u8 };
        let here = Here { placement, server: turn as u8, live: u64::MAX, loads: [0; SERVERS_MAX] };
        if here.holds(block) {
            return turn as u8;
        }
        let homes = placement.homes(block).rotate_right(turn as u32);
        ((homes.trailing_zeros() as usize + turn) % SERVERS_MAX) as u8
    }

    fn add(&self, report: &Report, first: usize, sum: &mut Sum) {
        sum.baton_bytes += report.baton_bytes;
        sum.vector_bytes += report.vector_bytes;
        sum.other_bytes += report.other_bytes;
        sum.reads.iter_mut().zip(&report.reads).for_each(|(all, reads)| *all += reads);
        for (q, told) in report.told.iter().enumerate() {
            let [(_, Told::Answer(state))] = told.as_slice() else {
                sum.failed += 1;
                continue;
            };
            sum.stats.add(state.stats());
            sum.failed += usize::from(!stratann_core::peer::is_answer(state.outcome()));
            let mut ids: Vec<u64> = state.results().iter().map(|h| h.external_id).collect();
            ids.resize(self.params.k as usize, u64::MAX);
            if let Some(truth) = self.truth {
                let row = (first + q) * truth.k;
                let known: Vec<u64> = truth.ids[row..row + truth.k].iter().map(|&id| u64::from(id)).collect();
                sum.found += recall(&ids, ids.len(), &known, truth.k);
            }
        }
    }
}

fn text(document: &Document) -> String {
    let headings = [
        "servers",
        "recall",
        "reads",
        "codes compared",
        "hand-overs",
        "of the hops",
        "bytes each",
        "vector bytes",
        "busiest",
    ];
    let rows: Vec<Vec<String>> = document
        .runs
        .iter()
        .map(|r| {
            vec![
                r.servers.to_string(),
                r.recall.map_or("-".into(), |x| format!("{x:.4}")),
                format!("{:.1}", r.per_query.reads),
                format!("{:.0}", r.per_query.code_comparisons),
                format!("{:.2}", r.per_query.hand_overs),
                format!("{:.1} %", 100.0 * r.hand_over_share),
                format!("{:.0}", r.bytes_per_hand_over),
                format!("{:.0}", r.vector_bytes_per_query),
                format!("{:.2}", r.busiest_over_mean),
            ]
        })
        .collect();
    format!(
        "{}\nper query, but for the bytes of a hand-over; busiest: reads of the busiest server over the mean\n",
        table(&headings, &rows)
    )
}
