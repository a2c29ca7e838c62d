//! Open loop against running servers: queries arrive at random times at a rate, independently of each other.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use stratann_core::build::hash;
use stratann_engine::search::{Latency, SearchOptions};
use stratann_params::measure::OpenLoopSettings;
use stratann_server::wire::{FailureKind, Used};
use stratann_storage::{Error, Progress, Result};

use crate::http_client::routing::{Routing, Target};
use crate::http_client::{HttpClient, parameters, run_clients};
use crate::output::{Named, Output, count, table};
use crate::progress::ProgressPrinter;
use crate::queries::Queries;
use crate::{Verdict, options};

/// Time limit of a query on the server.
const TIMEOUT_MS: u64 = 10_000;
/// Most queries in memory; beyond it, the first ones are sent again.
const QUERIES_BYTES: usize = 256 << 20;
/// Most arrivals of one run.
const ARRIVALS_MAX: usize = 50_000_000;
/// A query that starts this much after its scheduled moment waited for a client.
const LATE: Duration = Duration::from_millis(2);
/// Longest sleep; after it a client checks for a stop.
const NAP: Duration = Duration::from_millis(100);

/// One rate and its measurements.
#[derive(Serialize)]
struct Run {
    rate: f64,
    rate_reached: f64,
    requests: usize,
    answered: usize,
    latency_us: Spread,
    errors: BTreeMap<&'static str, usize>,
    /// Queries that waited for a free client. When there are many, the clients were the limit.
    late: usize,
    seconds: f64,
    params: serde_json::Value,
    /// Queries that went to a server because it had more of their clusters cached; `None` where that is not considered.
    #[serde(skip_serializing_if = "Option::is_none")]
    routed_by_cache: Option<u64>,
    /// Queries that went to the server where they enter; `None` where that is not considered.
    #[serde(skip_serializing_if = "Option::is_none")]
    routed_by_entry: Option<u64>,
}

/// Latency of the answered queries, from their scheduled moments.
#[derive(Serialize)]
struct Spread {
    #[serde(flatten)]
    latency: Latency,
    max: f64,
}

#[derive(Serialize)]
struct Document<'a> {
    connect: &'a [String],
    queries: Named<'a>,
    seconds: f64,
    clients: usize,
    seed: u64,
    runs: Vec<Run>,
}

/// Runs `stratann bench --connect`.
pub(super) fn run(
    options: &OpenLoopSettings,
    addresses: &[String],
    queries: &Path,
    settings: &[SearchOptions],
    output: Output,
) -> Result<Verdict> {
    if options.rate.is_empty() {
        return Err(Error::bad_input(
            "--connect needs --rate, the queries per second; to find the highest throughput use `stratann search \
             --connect`",
        ));
    }
    let mut remote = HttpClient::connect(addresses)?;
    if options.affinity {
        remote.route_queries();
    }
    let file = Queries::open_for(queries, remote.wanted, output)?;
    let held = file.count().min((QUERIES_BYTES / file.row_bytes()).max(1));
    let mut rows = Vec::new();
    file.read(0, held, &mut rows)?;
    let printer = ProgressPrinter::new(output);
    let mut runs = Vec::new();
    for search in settings {
        for &rate in &options.rate {
            let due = arrivals(rate, options.seconds, options.seed)?;
            printer.stage(&format!("{rate} queries per second"), due.len() as u64, "queries");
            let parameters = parameters(search, Some(TIMEOUT_MS), false);
            let load = Load {
                remote: &remote,
                routing: remote.routing(&parameters),
                rows: &rows,
                row_bytes: file.row_bytes(),
                due: &due,
                parameters,
                next: AtomicUsize::new(0),
                is_stopped: AtomicBool::new(false),
                sum: Mutex::default(),
            };
            runs.push(load.run(rate, options, search, &printer)?);
        }
    }
    printer.finish();
    let is_fine = runs.iter().all(|r| r.answered == r.requests);
    let (seconds, clients, seed) = (options.seconds, options.clients, options.seed);
    let document = Document { connect: addresses, queries: Named(queries), seconds, clients, seed, runs };
    output.result(&document, || text(&document))?;
    Ok(if is_fine { Verdict::Fine } else { Verdict::Failed })
}

/// Computes the scheduled moments from the start: a Poisson process.
fn arrivals(rate: f64, seconds: f64, seed: u64) -> Result<Vec<Duration>> {
    if rate * seconds > ARRIVALS_MAX as f64 {
        return Err(Error::bad_input(format!(
            "--rate {rate} for {seconds} s is more than {} queries; reduce one of them",
            count(ARRIVALS_MAX as u64)
        )));
    }
    let mut due = Vec::new();
    let mut at = 0.0;
    loop {
        // Above 0 and up to 1.
        let share = ((hash(seed, 0, due.len() as u64) >> 11) + 1) as f64 / (1u64 << 53) as f64;
        at -= share.ln() / rate;
        // There is at least one query, because an empty run measures nothing.
        if at >= seconds && !due.is_empty() {
            return Ok(due);
        }
        due.push(Duration::from_secs_f64(at.min(seconds)));
    }
}

/// Runs the queries of one rate.
struct Load<'a> {
    remote: &'a HttpClient,
    /// `None` where servers are asked in turn.
    routing: Option<Routing<'a>>,
    rows: &'a [u8],
    row_bytes: usize,
    due: &'a [Duration],
    parameters: String,
    next: AtomicUsize,
    is_stopped: AtomicBool,
    sum: Mutex<Sum>,
}

#[derive(Default)]
struct Sum {
    latency_ns: Vec<u64>,
    errors: BTreeMap<FailureKind, usize>,
    late: usize,
    used: Option<Used>,
}

impl Load<'_> {
    fn run(
        self,
        rate: f64,
        options: &OpenLoopSettings,
        search: &SearchOptions,
        printer: &ProgressPrinter,
    ) -> Result<Run> {
        let start = Instant::now();
        run_clients(options.clients.min(self.due.len()), || self.ask_until_done(start, printer))?;
        printer.check_interrupted()?;
        let seconds = start.elapsed().as_secs_f64();
        let sum = self.sum.into_inner().unwrap_or_else(|e| e.into_inner());
        let max = sum.latency_ns.iter().max().map_or(0.0, |&ns| ns as f64 / 1000.0);
        Ok(Run {
            rate,
            rate_reached: sum.latency_ns.len() as f64 / seconds.max(options.seconds),
            requests: self.due.len(),
            answered: sum.latency_ns.len(),
            latency_us: Spread { latency: Latency::of(&sum.latency_ns), max },
            errors: FailureKind::ALL
                .map(|kind| (kind.name(), sum.errors.get(&kind).copied().unwrap_or(0)))
                .into(),
            late: sum.late,
            seconds,
            params: serde_json::json!({
                "k": search.k,
                "search_list": sum.used.map(|u| u.search_list),
                "stop_slack": sum.used.and_then(|u| u.stop_slack),
                "patience": sum.used.map(|u| u.patience),
                "width": options::width_name(search.width),
                "mode": search.mode.name(),
            }),
            routed_by_cache: self.routing.and_then(Routing::by_cache),
            routed_by_entry: self.routing.and_then(Routing::by_entry),
        })
    }

    fn ask_until_done(&self, start: Instant, printer: &ProgressPrinter) -> Result<()> {
        let mut finder = self.routing.and_then(Routing::finder);
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(&due) = self.due.get(number) else { return Ok(()) };
            if !self.wait_until(start + due, printer) {
                return Ok(());
            }
            let is_late = start.elapsed() > due + LATE;
            let at = number % (self.rows.len() / self.row_bytes) * self.row_bytes;
            let row = &self.rows[at..at + self.row_bytes];
            let target = match &mut finder {
                Some(finder) => finder.route(row, |server| self.remote.answers(server)),
                None => Target::turn(number),
            };
            let asked = self.remote.ask(target.server, row, &self.parameters);
            drop(target);
            let latency = start.elapsed().saturating_sub(due);
            let asked = asked.inspect_err(|_| self.is_stopped.store(true, Ordering::Relaxed))?;
            let mut sum = self.sum.lock().unwrap_or_else(|e| e.into_inner());
            sum.late += usize::from(is_late);
            sum.used = sum.used.or(asked.used);
            for answer in asked.answers {
                match answer {
                    Ok(_) => sum.latency_ns.push(latency.as_nanos() as u64),
                    Err(failed) => *sum.errors.entry(failed.kind).or_default() += 1,
                }
            }
            drop(sum);
            printer.advance(1);
        }
    }

    /// Returns false when the run was stopped first.
    fn wait_until(&self, moment: Instant, printer: &ProgressPrinter) -> bool {
        loop {
            if self.is_stopped.load(Ordering::Relaxed) || printer.interrupted() {
                return false;
            }
            let left = moment.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(left.min(NAP));
        }
    }
}

fn text(document: &Document<'_>) -> String {
    let headings =
        ["target/s", "actual/s", "list", "mean us", "p50 us", "p95 us", "p99 us", "max us", "failed", "late"];
    let row = |run: &Run| {
        let us = |x: f64| format!("{x:.0}");
        let spread = &run.latency_us.latency;
        vec![
            format!("{}", run.rate),
            format!("{:.1}", run.rate_reached),
            run.params["search_list"].to_string(),
            us(spread.mean),
            us(spread.p50),
            us(spread.p95),
            us(spread.p99),
            us(run.latency_us.max),
            count((run.requests - run.answered) as u64),
            count(run.late as u64),
        ]
    };
    let mut out = table(&headings, &document.runs.iter().map(row).collect::<Vec<_>>());
    for run in &document.runs {
        let routed = [
            (run.routed_by_cache, "where their clusters are cached"),
            (run.routed_by_entry, "to the server where they enter"),
        ];
        for (routed, to_whom) in routed {
            let Some(routed) = routed else { continue };
            out += &format!(
                "at {}/s: {} of {} queries went {to_whom}\n",
                run.rate,
                count(routed),
                count(run.requests as u64)
            );
        }
        for (kind, number) in run.errors.iter().filter(|e| *e.1 > 0) {
            out += &format!("at {}/s: {} {kind}\n", run.rate, count(*number as u64));
        }
        if run.late * 20 > run.requests {
            out += &format!(
                "at {}/s: {} of {} queries waited for a client; the latency includes their wait; \
                 more --clients would show that of the servers\n",
                run.rate,
                count(run.late as u64),
                count(run.requests as u64)
            );
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_have_the_rate_and_repeat() {
        let due = arrivals(500.0, 20.0, 7).unwrap();
        assert_eq!(due, arrivals(500.0, 20.0, 7).unwrap());
        assert_ne!(due, arrivals(500.0, 20.0, 8).unwrap());
        assert!(due.is_sorted() && (9_600..10_400).contains(&due.len()), "{}", due.len());
        let gaps: Vec<f64> = due.windows(2).map(|w| (w[1] - w[0]).as_secs_f64() * 500.0).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean - 1.0).abs() < 0.04 && (variance - 1.0).abs() < 0.15, "{mean} {variance}");
        assert_eq!(arrivals(0.001, 1.0, 1).unwrap().len(), 1);
        assert!(arrivals(1e6, 1e6, 1).is_err());
    }
}
