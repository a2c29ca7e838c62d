//! `stratann search --connect`: sends the queries to running servers.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use serde_json::Value;
use stratann_core::query::{Params, QueryStats};
use stratann_engine::exec::{MergedReads, Times};
use stratann_engine::groundtruth::CheckedTruth;
use stratann_engine::kinds::remote_hnsw::affinity::Batch;
use stratann_engine::search::{Answers, Effort, FilterReport, IN_FLIGHT, SearchOptions};
use stratann_server::wire::{QUERIES_PER_REQUEST, Used};
use stratann_storage::budget::Account;
use stratann_storage::{Progress, Result};

use super::{Run, Searcher, Sum};
use crate::filter::{self, FiltersReport, NamedIds, QueryFilterArgs};
use crate::http_client::routing::{Routing, Target};
use crate::http_client::{HttpClient, Replies, Status, parameters, run_clients};
use crate::output::{Output, eprint_line};
use crate::progress::ProgressPrinter;
use crate::queries::Queries;
use crate::truth;

/// Most concurrent requests; each takes a thread.
const REQUESTS_MAX: usize = 1024;
/// Most bytes of queries and results in memory.
const PART_BYTES: usize = 256 << 20;

/// Running servers with queries and optional ground truth.
pub(super) struct Servers {
    remote: HttpClient,
    queries: Queries,
    truth: Option<CheckedTruth>,
    accepts_partial: bool,
    rows: Vec<u8>,
    /// Ids that results may have, or may not.
    named: Option<NamedIds>,
}

impl Servers {
    /// Requests the servers' status and opens the queries for their index.
    pub(super) fn open(
        addresses: &[String],
        queries: &Path,
        (groundtruth, filter): (Option<&Path>, &QueryFilterArgs),
        options: &[SearchOptions],
        (accepts_partial, is_routed): (bool, bool),
        output: Output,
    ) -> Result<Servers> {
        let mut remote = HttpClient::connect(addresses)?;
        if is_routed {
            remote.route_queries();
        }
        let queries = Queries::open_for(queries, remote.wanted, output)?;
        let named = filter.read(queries.count())?;
        let k = options.iter().map(|o| o.k).max().unwrap_or(0);
        // The servers tell how many rows match.
        let matches = if named.is_some() { 1 } else { remote.rows };
        let read = |path| truth::read(path, &queries, k, matches, remote.rows);
        let truth = groundtruth.map(read).transpose()?;
        if let (Some(truth), Some(named)) = (&truth, &named) {
            truth::check_named(truth, named)?;
        }
        Ok(Servers { remote, queries, truth, accepts_partial, rows: Vec::new(), named })
    }

    /// The addresses as given.
    pub(super) fn name(&self) -> String {
        self.remote.name()
    }

    /// Whether each query has a filter of its own.
    fn is_each(&self) -> bool {
        self.named.as_ref().is_some_and(NamedIds::is_each)
    }

    /// What is said of the filter of all queries, or of that of each, of what was said with the answer to each. Queries
    /// without an answer are left out.
    fn reports(
        &self,
        said: Vec<Option<FilterReport>>,
        k: usize,
        printer: &ProgressPrinter,
    ) -> Result<Vec<FilterReport>> {
        let is_each = self.is_each();
        let is_said = said.iter().all(Option::is_some);
        let reports: Vec<FilterReport> =
            said.into_iter().flatten().take(if is_each { usize::MAX } else { 1 }).collect();
        if let Some(truth) = self.truth.as_ref().filter(|_| is_said || !is_each) {
            truth::check_counts(truth, k, (&reports, is_each))?;
        }
        filter::note(&reports, is_each, k).iter().for_each(|note| printer.note(note));
        Ok(reports)
    }
}

impl Searcher for Servers {
    fn count(&self) -> usize {
        self.queries.count()
    }

    fn rows(&self) -> u64 {
        self.remote.rows
    }

    /// Servers do not say how much they store.
    fn exact_cost(&self, _: &SearchOptions) -> Result<Option<String>> {
        Ok(None)
    }

    fn run(
        &mut self,
        options: &SearchOptions,
        printer: &ProgressPrinter,
        take: &mut dyn FnMut(usize, &Answers) -> Result<()>,
    ) -> Result<Run> {
        let (count, k) = (self.queries.count(), options.k.min(self.remote.rows as usize));
        let part = (PART_BYTES / (self.queries.row_bytes() + 24 * k + 64)).clamp(1, count.max(1));
        let before = self.remote.statuses();
        let (mut sum, mut partial, mut in_flight) = (Sum::new(count), 0, 0);
        let mut reports = Vec::new();
        let routing = self.remote.routing(&parameters(options, None, false));
        for first in (0..count).step_by(part) {
            self.queries.read(first, part.min(count - first), &mut self.rows)?;
            let started = Instant::now();
            let queries = (&self.rows[..], self.named.as_ref().map(|named| (first, named)));
            let batch = Requests::new(&self.remote, queries, (k, options), self.accepts_partial, routing);
            in_flight = in_flight.max((batch.requests * batch.each).min(batch.count));
            let (answers, lacking, own) = batch.run(started, printer)?;
            reports.extend(own);
            sum.add(first, &self.rows, &answers, self.truth.as_mut())?;
            partial += lacking;
            take(first, &answers)?;
        }
        for server in self.remote.silent() {
            eprint_line(&format!("note: {server}; the other servers were asked"));
        }
        let reports = self.reports(reports, k, printer)?;
        if let Some(truth) = &self.truth {
            truth.judge_by_results()?;
        }
        if partial > 0 {
            eprint_line(&format!(
                "note: {partial} results are partial, because no live server holds a part of the index"
            ));
        }
        let cost = Cost::between(&before, &self.remote.statuses());
        let account = cost.account;
        let mut run = sum.into_run(options, account, cost.ram_budget_bytes, self.truth.is_some());
        run.stage_us = None;
        run.filter = FiltersReport::of(&reports, self.is_each());
        run.in_flight = in_flight;
        run.cpu_us = cost.cpu_us as f64 / count.max(1) as f64;
        run.peak_rss_bytes = cost.peak_rss_bytes;
        run.per_query.merged = Some(cost.merged);
        run.per_query.largest_share = cost.largest_share;
        run.per_query.bytes_sent = cost.bytes_sent as f64 / count.max(1) as f64;
        run.io_backend = cost.io_backend;
        let counted = &mut run.per_query.stats;
        counted.reads += cost.loads.reads;
        counted.bytes_read += cost.loads.bytes_read;
        counted.round_trips += cost.loads.round_trips;
        run.routed_by_cache = routing.and_then(Routing::by_cache);
        run.routed_by_entry = routing.and_then(Routing::by_entry);
        Ok(run)
    }
}

/// Cost of a run, summed over the servers.
struct Cost {
    cpu_us: u64,
    bytes_sent: u64,
    merged: MergedReads,
    /// Loads of batches, which queries share.
    loads: QueryStats,
    largest_share: Option<f64>,
    peak_rss_bytes: u64,
    /// `None` as soon as one server has no limit.
    ram_budget_bytes: Option<u64>,
    io_backend: String,
    account: Account,
}

impl Cost {
    /// Computes the difference of each server's status before and after. Servers without both are left out.
    fn between(before: &[Option<Status>], after: &[Option<Status>]) -> Cost {
        let pairs: Vec<(&Status, &Status)> =
            before.iter().zip(after).filter_map(|(b, a)| Some((b.as_ref()?, a.as_ref()?))).collect();
        if pairs.len() < before.len() {
            let silent = before.len() - pairs.len();
            eprint_line(&format!(
                "note: {silent} servers do not respond; CPU time and memory are those of the others"
            ));
        }
        let mut backends: Vec<&str> = pairs.iter().map(|p| p.1.io_backend.as_str()).collect();
        backends.dedup();
        Cost {
            cpu_us: pairs.iter().map(|(b, a)| a.cpu_us.saturating_sub(b.cpu_us)).sum(),
            bytes_sent: pairs.iter().map(|(b, a)| a.bytes_sent.saturating_sub(b.bytes_sent)).sum(),
            merged: MergedReads {
                reads: pairs.iter().map(|(b, a)| a.merged_reads.saturating_sub(b.merged_reads)).sum(),
                bytes: pairs.iter().map(|(b, a)| a.merged_bytes.saturating_sub(b.merged_bytes)).sum(),
            },
            loads: QueryStats {
                reads: pairs.iter().map(|(b, a)| a.loads.saturating_sub(b.loads)).sum(),
                bytes_read: pairs.iter().map(|(b, a)| a.loaded_bytes.saturating_sub(b.loaded_bytes)).sum(),
                round_trips: pairs.iter().map(|(b, a)| a.round_trips.saturating_sub(b.round_trips)).sum(),
                ..QueryStats::default()
            },
            largest_share: largest_share(
                pairs.iter().map(|(b, a)| a.components.saturating_sub(b.components)),
            ),
            peak_rss_bytes: pairs.iter().map(|p| p.1.peak_rss_bytes).sum(),
            ram_budget_bytes: pairs.iter().map(|p| p.1.ram_budget_bytes).sum(),
            io_backend: backends.join("; "),
            account: account(pairs.iter().map(|p| &p.1.memory)),
        }
    }
}

/// The largest server's work over the mean; `None` where none was counted.
fn largest_share(work: impl Iterator<Item = u64>) -> Option<f64> {
    let work: Vec<u64> = work.collect();
    let mean = work.iter().sum::<u64>() as f64 / work.len().max(1) as f64;
    (mean > 0.0).then(|| work.iter().copied().max().unwrap_or(0) as f64 / mean)
}

/// Sums the accounts of several servers by component.
fn account<'a>(memories: impl Iterator<Item = &'a Value>) -> Account {
    let mut sums = BTreeMap::<String, u64>::new();
    for (name, bytes) in memories.filter_map(Value::as_object).flatten() {
        if let (Some(what), Some(bytes)) = (name.strip_suffix("_bytes"), bytes.as_u64())
            && what != "total"
        {
            *sums.entry(what.replace('_', " ")).or_default() += bytes;
        }
    }
    Account { components: sums.into_iter().map(|(what, bytes)| (what.into(), bytes)).collect() }
}

/// Queries that are sent to the servers, and their answers.
struct Requests<'a> {
    remote: &'a HttpClient,
    rows: &'a [u8],
    /// The ids that queries name, and the number of the first query.
    named: Option<(usize, &'a NamedIds)>,
    count: usize,
    k: usize,
    options: &'a SearchOptions,
    parameters: String,
    /// Queries per request.
    each: usize,
    /// Concurrent requests.
    requests: usize,
    /// The batches in the order in which they are sent, and how their servers are chosen; otherwise queries go to
    /// servers in turn.
    routed: Option<(Vec<Batch>, Routing<'a>)>,
    next: AtomicUsize,
    is_stopped: AtomicBool,
    collected: Mutex<Collected>,
}

/// One request, until its reply.
struct Request<'a> {
    queries: Vec<usize>,
    target: Target<'a>,
}

struct Collected {
    answers: Answers,
    partial: usize,
    used: Option<Used>,
    /// What was said of the filter of each query.
    filters: Vec<Option<FilterReport>>,
}

impl<'a> Requests<'a> {
    fn new(
        remote: &'a HttpClient,
        (rows, named): (&'a [u8], Option<(usize, &'a NamedIds)>),
        (k, options): (usize, &'a SearchOptions),
        accepts_partial: bool,
        routing: Option<Routing<'a>>,
    ) -> Requests<'a> {
        let count = rows.len() / (remote.wanted.dim * remote.wanted.dtype.size());
        let in_flight = options.in_flight.unwrap_or(IN_FLIGHT);
        let each = in_flight.min(QUERIES_PER_REQUEST);
        let wanted = options.threads * in_flight.div_ceil(each);
        let filters = if named.is_some() { vec![None; count] } else { Vec::new() };
        let collected = Collected { answers: unanswered(count, k, options), partial: 0, used: None, filters };
        let routed = routing.map(|own| (own.divide(rows, each, options.threads), own));
        Requests {
            remote,
            rows,
            named,
            count,
            k,
            options,
            parameters: parameters(options, None, accepts_partial),
            each,
            requests: wanted.min(REQUESTS_MAX).min(count.div_ceil(each)),
            routed,
            next: AtomicUsize::new(0),
            is_stopped: AtomicBool::new(false),
            collected: Mutex::new(collected),
        }
    }

    /// The next request; `None` after the last one.
    fn request(&self, number: usize) -> Option<Request<'_>> {
        if let Some((batches, own)) = &self.routed {
            let batch = batches.get(number)?;
            let target = own.route(batch, |server| self.remote.answers(server));
            return Some(Request { queries: batch.queries.clone(), target });
        }
        let first = number * self.each;
        let queries = first..(first + self.each).min(self.count);
        (first < self.count).then(|| Request { queries: queries.collect(), target: Target::turn(number) })
    }

    /// Returns the answers, the number of partial ones, and what was said of filters.
    fn run(
        self,
        started: Instant,
        printer: &ProgressPrinter,
    ) -> Result<(Answers, usize, Vec<Option<FilterReport>>)> {
        let (over, watched) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let remote = self.remote;
            scope.spawn(move || remote.watch(&watched));
            let ran = run_clients(self.requests, || self.ask_until_done(printer));
            drop(over);
            ran
        })?;
        printer.check_interrupted()?;
        let options = self.options;
        let Collected { mut answers, partial, used, filters } =
            self.collected.into_inner().unwrap_or_else(|e| e.into_inner());
        answers.seconds = started.elapsed().as_secs_f64();
        answers.failed.sort_unstable_by_key(|f| f.0);
        if let Some(used) = used {
            answers.params = Params { mode: options.mode, ..used.params() };
        }
        Ok((answers, partial, filters))
    }

    fn ask_until_done(&self, printer: &ProgressPrinter) -> Result<()> {
        while !self.is_stopped.load(Ordering::Relaxed) && !printer.interrupted() {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(request) = self.request(number) else { break };
            let Request { queries, target } = &request;
            let row_bytes = self.rows.len() / self.count;
            let row = |&query: &usize| &self.rows[query * row_bytes..(query + 1) * row_bytes];
            let rows: Vec<u8> = queries.iter().flat_map(row).copied().collect();
            let started = Instant::now();
            let ids = self.named.map(|(first, named)| {
                let numbers: Vec<usize> = queries.iter().map(|query| first + query).collect();
                named.of_request(&numbers)
            });
            let asked = self.remote.ask_filtered(target.server, &rows, &self.parameters, ids.as_ref());
            let latency_ns = started.elapsed().as_nanos() as u64;
            match asked {
                Ok(asked) => self.collect(queries, asked, latency_ns),
                Err(e) => {
                    self.is_stopped.store(true, Ordering::Relaxed);
                    return Err(e);
                }
            }
            printer.advance(queries.len() as u64);
        }
        Ok(())
    }

    fn collect(&self, queries: &[usize], replies: Replies, latency_ns: u64) {
        let mut guard = self.collected.lock().unwrap_or_else(|e| e.into_inner());
        let Collected { answers, partial, used, filters } = &mut *guard;
        *used = used.or(replies.used);
        for ((&query, answer), filter) in queries.iter().zip(replies.answers).zip(replies.filters) {
            if let Some(own) = filters.get_mut(query) {
                *own = filter;
            }
            let found = match answer {
                Ok(found) => found,
                Err(failed) => {
                    answers.latency_ns[query] = latency_ns;
                    answers.failed.push((query, failed.error));
                    continue;
                }
            };
            // The latency of a request of one query is that which the client sees.
            answers.latency_ns[query] = if self.each == 1 { latency_ns } else { found.latency_us * 1000 };
            answers.stats.add(&found.per_query.0);
            answers.largest = answers.largest.max(&found.per_query.0);
            *partial += usize::from(found.partial);
            let results = found.ids.len().min(self.k);
            // Fewer rows than k may match.
            let wanted = filter.map_or(self.k, |filter| results_min(&filter, self.k));
            answers.short += usize::from(results < wanted);
            let at = query * self.k;
            answers.ids[at..at + results].copy_from_slice(&found.ids[..results]);
            answers.distances[at..at + results].copy_from_slice(&found.distances[..results]);
            answers.counts[query] = results as u32;
        }
    }
}

/// Results that a query for k with this filter has at least.
fn results_min(filter: &FilterReport, k: usize) -> usize {
    if filter.matches_exact { k.min(filter.matches as usize) } else { 0 }
}

/// Creates empty answers.
fn unanswered(count: usize, k: usize, options: &SearchOptions) -> Answers {
    let list = match options.effort {
        Effort::SearchList(list, _) => list,
        Effort::Recall(_) | Effort::Nprobe(..) => k as u32,
    };
    Answers {
        k,
        ids: vec![u64::MAX; count * k],
        distances: vec![f32::INFINITY; count * k],
        counts: vec![0; count],
        latency_ns: vec![0; count],
        stats: QueryStats::default(),
        largest: QueryStats::default(),
        times: Times::default(),
        merged: MergedReads::default(),
        failed: Vec::new(),
        short: 0,
        seconds: 0.0,
        cpu_us: 0,
        params: Params::disk_graph(k as u32, list),
        io_backend: String::new(),
        account: Account::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn accounts_are_added_up() {
        let memories = [
            json!({ "block_map_bytes": 5, "codes_bytes": 7, "total_bytes": 12 }),
            json!({ "codes_bytes": 1, "total_bytes": 1, "what": "else" }),
            json!(null),
        ];
        let sum = account(memories.iter());
        assert_eq!(sum.components, [("block map".into(), 5), ("codes".into(), 8)]);
    }
}
