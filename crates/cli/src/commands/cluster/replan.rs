//! `stratann cluster replan`: another plan for a partitioned `grid-ivf`, by what its servers' queries visit.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;
use stratann_cluster::store::Store;
use stratann_engine::manifest::{Manifest, MessagePrices};
use stratann_engine::spread::PartitionOptions;
use stratann_engine::spread::replan::{PricedBy, ReplanOptions, ReplanReport, replan};
use stratann_params::{IndexKind, Param, Place, Stage};
use stratann_storage::budget::size;
use stratann_storage::{Error, Progress, Result};

use crate::http_client::{self, HttpClient};
use crate::output::{Output, count, eprint_line, table};
use crate::parameters::{Parameters, Rows};
use crate::progress::ProgressPrinter;
use crate::{Verdict, plans};

/// Plan a partitioned grid-ivf again by the queries of its servers, and publish the change
///
/// Asks running servers which lists their last queries visited (up to 1,024 queries each). Where these queries would
/// cost less by --margin after some lists have moved between servers, DIR gets the next version of the partition. With
/// --store it is published there too, and servers that watch the store adopt it while queries go on. A step moves a
/// quarter of what a server holds at most; the next one follows with the next call, or after --every.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Replan {
    /// Folder of the index that was partitioned
    index: PathBuf,
    /// Folder of the partition, the version that is served
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// HTTP addresses of the servers
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "HOST:PORT,…",
        value_parser = http_client::address,
        required = true
    )]
    connect: Vec<String>,
    /// Publish a change in this store too: s3://BUCKET/PREFIX, or a folder
    #[arg(long, value_name = "STORE")]
    store: Option<String>,
    /// Share of the cost that a change must save
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, value_parser = share)]
    margin: f64,
    /// Plan again every so many seconds, until Ctrl-C [default: once]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    every: Option<u64>,
    #[command(flatten)]
    table: Parameters<ReplanRows>,
}

/// The table's options of plans.
struct ReplanRows;

impl Rows for ReplanRows {
    const STAGES: &'static [Stage] = &[Stage::Partition];

    fn has(param: &Param) -> bool {
        ["ram_budget", "threads", "costs", "alpha", "message_us", "byte_ns"].contains(&param.name)
    }
}

const EXAMPLES: &str = "\
Examples:
  stratann cluster replan grid.idx -o grid-spread --connect 10.0.0.1:8700,10.0.0.2:8700 --store s3://indexes/products
  stratann cluster replan grid.idx -o grid-spread --connect 10.0.0.1:8700 --store /mnt/shared/products --every 600";

/// A share below 1.
fn share(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|x| (0.0..1.0).contains(x));
    number.ok_or_else(|| format!("{text} is not a share from 0 to below 1"))
}

/// One round, as JSON.
#[derive(Serialize)]
struct Round {
    #[serde(flatten)]
    report: ReplanReport,
    /// The version in the store.
    version: Option<u64>,
}

pub(super) fn run(args: &Replan, output: Output) -> Result<Verdict> {
    args.table.check([IndexKind::GridIvf], Place::Folder)?;
    let store = args.store.as_deref().map(Store::open).transpose()?;
    let printer = ProgressPrinter::new(output);
    loop {
        let started = Instant::now();
        let round = round(args, store.as_ref(), &printer);
        let Some(every) = args.every.map(Duration::from_secs) else {
            let round = round?;
            printer.finish();
            output.result(&round, || text(&round))?;
            return Ok(Verdict::Fine);
        };
        // What fails once may work the next time: servers that start, a change under way.
        match round {
            Ok(round) => output.result(&round, || text(&round))?,
            Err(_) if printer.interrupted() => return Err(Error::interrupted()),
            Err(e) => eprint_line(&format!("stratann: {}; tried again in {} s", e.message, every.as_secs())),
        }
        while started.elapsed() < every {
            printer.check_interrupted()?;
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn round(args: &Replan, store: Option<&Store>, printer: &ProgressPrinter) -> Result<Round> {
    let (_, served) = Manifest::read(&args.output)?;
    if let Some(store) = store {
        publish_missing(store, args, &served, printer)?;
    }
    let servers = HttpClient::connect(&args.connect)?;
    let visits = servers.visits(served.build_id)?;
    for silent in servers.silent() {
        eprint_line(&format!("note: {silent}; its queries are not known"));
    }
    let given = &args.table.given;
    let partition = PartitionOptions { grid: super::division(given)?, ..PartitionOptions::read(given, 1) };
    let options =
        ReplanOptions { partition, visits, margin: args.margin, measured: servers.message_prices() };
    let report = replan(&args.index, &args.output, &options, printer)?;
    let version = match store.filter(|_| report.is_published) {
        Some(store) => Some(store.publish(&args.output, printer)?),
        None => None,
    };
    Ok(Round { report, version })
}

/// Publishes the version in the folder where an earlier call could not: servers then serve another one.
fn publish_missing(store: &Store, args: &Replan, served: &Manifest, printer: &ProgressPrinter) -> Result<()> {
    let Some((_, newest)) = store.newest()? else { return Ok(()) };
    if newest.build_id() != served.build_id {
        let version = store.publish(&args.output, printer)?;
        eprint_line(&format!(
            "note: {} was not in the store and is version {version} now",
            args.output.display()
        ));
    }
    Ok(())
}

fn text(round: &Round) -> String {
    let report = &round.report;
    let queries = report.queries.max(1) as f64;
    let row = |name: &str, c: &stratann_engine::kinds::division::Candidate| {
        vec![
            name.to_string(),
            plans::shape(c),
            format!("{:.2}", c.largest_share),
            format!("{:.3} ms", c.cost_ms / queries),
        ]
    };
    let mut rows = vec![row("now", &report.current)];
    rows.extend(report.step.iter().map(|step| row("next step", step)));
    rows.push(row("cheapest of all", &report.best));
    let done = match (report.is_published, round.version) {
        (true, Some(version)) => format!("published, as version {version} of the store"),
        (true, None) => "published in the folder".into(),
        (false, _) if report.step.is_none() => "nothing is better moved".into(),
        (false, _) => "the step saves less than the margin: nothing is changed".into(),
    };
    let by = match report.priced_by {
        PricedBy::Given => "as given",
        PricedBy::Plan => "as when it was divided",
        PricedBy::Servers => "as the servers measure now",
        PricedBy::Loopback => "as measured on this machine",
    };
    let MessagePrices { message_ns, byte_ns } = report.prices;
    let most = report.loaded_bytes.iter().copied().max().unwrap_or(0);
    format!(
        "{}\nby the last {} queries; a server loads up to {} for the step\na message takes {:.1} us and {byte_ns:.2} \
         ns a byte, {by}\n{done}\n",
        table(&["", "rows x slices", "busiest/mean", "cost of a query"], &rows),
        count(report.queries as u64),
        size(most),
        message_ns / 1e3
    )
}
