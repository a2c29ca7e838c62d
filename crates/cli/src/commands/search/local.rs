//! Searches of an index on this machine, for `search` and `bench`.

use std::path::Path;

use stratann_core::sieve::Sieve;
use stratann_engine::curve::{REMOTE, remoteness};
use stratann_engine::groundtruth::CheckedTruth;
use stratann_engine::index::{CacheBudget, Index, OpenOptions};
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{Answers, Effort, Filters, Reserve, SearchOptions};
use stratann_params::choices::Learn;
use stratann_storage::budget::size;
use stratann_storage::remote_memory::Credentials;
use stratann_storage::{Error, Progress, Result};

use super::points::SearchedPoints;
use super::{Run, Searcher, Sum};
use crate::filter::{NamedIds, OwnFilters, QueryFilterArgs};
use crate::output::{Output, count};
use crate::progress::ProgressPrinter;
use crate::queries::Queries;
use crate::{memory, truth};

/// An open index with queries and optional ground truth, for `search` and `bench`.
pub(crate) struct Bench {
    pub(crate) index: Index,
    queries: Queries,
    truth: Option<CheckedTruth>,
    ram_budget: Option<u64>,
    cache_budget: u64,
    extra: Vec<(&'static str, u64)>,
    // First query in memory, and how many.
    held: Option<(usize, usize)>,
    rows: Vec<u8>,
    warned_remote: bool,
    noted_doorbells: bool,
    /// Ids that results may have, or may not, until the first search.
    named: Option<NamedIds>,
    /// Rows that results may be by their payloads, until the first search.
    matching: Option<Sieve>,
    /// Filters of these.
    filters: Option<OwnFilters>,
}

/// What results may be.
#[derive(Clone, Copy, Default)]
pub(super) struct Wanted<'a> {
    /// By their ids.
    pub(super) ids: Option<&'a QueryFilterArgs>,
    /// By their payloads.
    pub(super) points: Option<&'a SearchedPoints>,
}

/// Place of an index.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// In a folder.
    Folder(&'a Path),
    /// In memory nodes with these addresses.
    Memory(&'a [String], &'a Credentials),
}

impl Source<'_> {
    /// Most memory of filters of these ids.
    fn filter_bytes_max(&self, manifest: &Manifest, named: &NamedIds) -> u64 {
        match self {
            Source::Folder(_) => named.bytes_max(manifest),
            Source::Memory(..) => named.id_bytes_max(),
        }
    }

    /// The manifest. To read that of memory nodes their index is opened, without a cache.
    fn manifest(&self, budgets: OpenOptions) -> Result<(Manifest, Option<Index>)> {
        match *self {
            Source::Folder(folder) => Ok((Manifest::read(folder)?.1, None)),
            Source::Memory(addresses, credentials) => {
                let index = Index::open_memory(addresses, credentials, budgets)?;
                Ok((index.manifest().clone(), Some(index)))
            }
        }
    }
}

impl Bench {
    /// Opens the index, unless the budget cannot allow it.
    pub(crate) fn open(
        source: Source<'_>,
        queries: &Path,
        groundtruth: Option<&Path>,
        options: &[SearchOptions],
        budgets: (OpenOptions, (CacheBudget, bool)),
        output: Output,
    ) -> Result<Bench> {
        Bench::open_filtered((source, Wanted::default()), queries, groundtruth, options, budgets, output)
    }

    /// As [`Bench::open`], for searches with a filter.
    pub(super) fn open_filtered(
        (source, wanted): (Source<'_>, Wanted<'_>),
        queries: &Path,
        groundtruth: Option<&Path>,
        options: &[SearchOptions],
        (mut budgets, (cache, preload)): (OpenOptions, (CacheBudget, bool)),
        output: Output,
    ) -> Result<Bench> {
        let (manifest, in_memory) = source.manifest(budgets)?;
        let queries = Queries::open(queries, &manifest, output)?;
        let named = wanted.ids.map(|filter| filter.read(queries.count())).transpose()?.flatten();
        let filter_bytes = named.as_ref().map(|named| source.filter_bytes_max(&manifest, named));
        let mut extra = beside(filter_bytes, &queries, groundtruth)?;
        extra.extend(wanted.points.iter().flat_map(|own| own.memory(&manifest, groundtruth.is_some())));
        let matching = wanted.points.and_then(SearchedPoints::matching).map(|found| found.rows.clone());
        // What a cache may take is known once all else is.
        if let CacheBudget::Bytes(bytes) = cache {
            budgets.cache_budget = bytes;
        }
        learn_from_epochs_alone(&mut budgets, queries.count() * options.len());
        // What is open already is accounted exactly, before its first search.
        if in_memory.is_none() {
            check_opening((&manifest, &extra), &queries, options, &budgets)?;
        }
        let k = options.iter().map(|o| o.k).max().unwrap_or(0);
        // How many rows match a filter is known once the index is open.
        let matches = if named.is_some() || matching.is_some() { 1 } else { manifest.live_rows() };
        let read = |path| truth::read(path, &queries, k, matches, manifest.rows);
        let truth = groundtruth.map(read).transpose()?;
        let aside = |o: &SearchOptions| memory::set_aside(&manifest, o, &extra, &queries);
        let larger = |a: Reserve, b: Reserve| Reserve {
            bytes: a.bytes.max(b.bytes),
            low_memory_bytes: a.low_memory_bytes.max(b.low_memory_bytes),
            threads: a.threads.max(b.threads),
        };
        let search_reserve = options.iter().map(aside).fold(Reserve::default(), larger);
        budgets.cache_budget = cache.bytes(&manifest, budgets.ram_budget, &search_reserve);
        let mut index = match (source, in_memory) {
            (_, Some(mut index)) => {
                index.set_cache_budget(budgets.cache_budget);
                index
            }
            (Source::Folder(folder), None) => Index::open(folder, OpenOptions { search_reserve, ..budgets })?,
            (Source::Memory(addresses, credentials), None) => {
                Index::open_memory(addresses, credentials, budgets)?
            }
        };
        wanted.points.map_or(Ok(()), |points| points.check(&index))?;
        make_resident(&mut index, &queries, preload, &output)?;
        if preload && !index.is_resident() && !index.preload(&ProgressPrinter::new(output))? {
            output.note("note: the cache has no room for all blocks; they are read when they are needed");
        }
        index.warnings().iter().for_each(|warning| output.note(&format!("warning: {warning}")));
        Ok(Bench {
            queries,
            truth,
            ram_budget: budgets.ram_budget,
            cache_budget: index.block_cache_bytes(),
            index,
            extra,
            held: None,
            rows: Vec::new(),
            warned_remote: false,
            noted_doorbells: false,
            named,
            matching,
            filters: None,
        })
    }

    /// Runs all queries with one setting. Passes each part's first query number and answers to `take`.
    pub(crate) fn run(
        &mut self,
        options: &SearchOptions,
        printer: &ProgressPrinter,
        take: &mut dyn FnMut(usize, &Answers) -> Result<()>,
    ) -> Result<Run> {
        let count = self.queries.count();
        let options = &self.fitting(options);
        if let Some(bytes) = options.batch_options.lowered_bytes().filter(|_| !self.noted_doorbells) {
            self.noted_doorbells = true;
            printer.note(&format!(
                "note: the RAM budget has no room for doorbells of {} reads; they have up to {}, so that a batch needs \
                 more round trips",
                options.batch_options.doorbell,
                size(bytes)
            ));
        }
        let part = self.part(options)?;
        let filters = self.filters(options, printer)?;
        if let Some(filters) = &filters {
            if let Some(truth) = &self.truth {
                truth::check_matches(truth, options.k, (&self.index, filters))?;
            }
            filters.note(options.k).iter().for_each(|note| printer.note(note));
        } else if let Some(truth) = &self.truth {
            truth::check_deleted(truth.truth(), &self.index, printer)?;
        }
        let mut sum = Sum::new(count);
        let before = self.index.memory_node_bytes();
        for first in (0..count).step_by(part) {
            let rows = self.load(first, part.min(count - first))?;
            let rows = &self.rows[..rows * self.queries.row_bytes()];
            let part = first..count.min(first + part);
            let own = filters.as_ref().map_or(Filters::None, |filters| filters.of(part));
            let answers = self.index.search_filtered(rows, own, options, printer)?;
            sum.add(first, rows, &answers, self.truth.as_mut())?;
            take(first, &answers)?;
        }
        let after = self.index.memory_node_bytes();
        if let Some(truth) = &self.truth {
            self.index.confirm_truth(truth, printer)?;
        }
        if let (Effort::Recall(_), None) = (options.effort, &filters) {
            self.warn_if_remote(&mut sum, printer);
        }
        let account =
            memory::of_search(&self.index, options, part.min(count), self.cache_budget, &self.extra);
        let mut run = sum.into_run(options, account, self.ram_budget, self.truth.is_some());
        run.in_flight = self.index.queries_in_flight(options, part.min(count));
        run.filter = filters.as_ref().and_then(OwnFilters::report);
        run.scorer = self.index.scorer_report();
        run.learning = self.index.learning_facts();
        let before = before.into_iter().chain(std::iter::repeat(0));
        run.memory_node_bytes = after.iter().zip(before).map(|(after, before)| after - before).collect();
        Ok(run)
    }

    /// The filters for searches with these options. Ids are sorted, and looked for among the rows, once.
    pub(super) fn filters(
        &mut self,
        options: &SearchOptions,
        printer: &ProgressPrinter,
    ) -> Result<Option<OwnFilters>> {
        if let Some(filters) = &self.filters {
            return filters.planned(&self.index, options).map(Some);
        }
        let filters = match (&self.named, &self.matching) {
            (Some(named), _) => OwnFilters::new(&self.index, named, options, printer)?,
            (None, Some(rows)) => {
                OwnFilters::of_rows(&self.index, (rows, self.truth.is_some()), options, printer)?
            }
            (None, None) => return Ok(None),
        };
        // Their memory is that of the filters from now on.
        (self.named, self.matching) = (None, None);
        self.filters = Some(filters.clone());
        Ok(Some(filters))
    }

    /// The options with doorbells and queries in flight that fit into the budget.
    fn fitting(&self, options: &SearchOptions) -> SearchOptions {
        let Some(budget) = self.ram_budget else { return *options };
        let queries = (self.queries.count(), memory::part_bytes(&self.queries, options));
        memory::fitting(&self.index, options, queries, (self.cache_budget, &self.extra), budget)
    }

    /// Number of queries that fit into the budget at a time.
    pub(super) fn part(&self, options: &SearchOptions) -> Result<usize> {
        let per_query = memory::part_bytes(&self.queries, options);
        memory::part(
            &self.index,
            &self.fitting(options),
            self.queries.count(),
            per_query,
            self.cache_budget,
            &self.extra,
            self.ram_budget,
        )
    }

    /// Ids that results may have, or may not, before the first search.
    pub(super) fn named(&self) -> Option<&NamedIds> {
        self.named.as_ref()
    }

    pub(super) fn queries(&self) -> &Queries {
        &self.queries
    }

    /// The queries that were loaded last.
    pub(super) fn rows(&self) -> &[u8] {
        &self.rows[..self.held.map_or(0, |held| held.1) * self.queries.row_bytes()]
    }

    /// Warns once when queries are clearly farther from the vectors than these from each other: recall was calibrated
    /// on rows of the index.
    fn warn_if_remote(&mut self, sum: &mut Sum, printer: &ProgressPrinter) {
        let manifest = self.index.manifest();
        let (Some(metric), k) = (manifest.metric(), sum.k as u32) else { return };
        let ratio = remoteness(&manifest.curves, metric, k, &mut sum.kth_distances);
        if let Some(ratio) = ratio.filter(|&r| r >= REMOTE && !self.warned_remote) {
            printer.note(&format!(
                "note: these queries are {ratio:.2} times as far from their neighbours as those with which recall was \
                 calibrated: expect less recall than requested; calibrate with your queries: `stratann tune`"
            ));
            self.warned_remote = true;
        }
    }

    /// Reads queries `first..first + count` into memory.
    pub(super) fn load(&mut self, first: usize, count: usize) -> Result<usize> {
        if self.held != Some((first, count)) {
            self.held = None;
            self.queries.read(first, count, &mut self.rows)?;
            self.held = Some((first, count));
        }
        Ok(count)
    }

    /// A note on a recall that the curve does not reach.
    pub(super) fn unreached(&self, options: &SearchOptions) -> Result<Option<String>> {
        let (unreached, kind) = (self.index.unreached_recall(options)?, self.index.manifest().kind());
        Ok(unreached.zip(kind).map(|(unreached, kind)| format!("note: {}", unreached.describe(kind))))
    }

    /// Number of queries.
    pub(crate) fn count(&self) -> usize {
        self.queries.count()
    }
}

/// Refuses a budget into which not even opening fits. The error names one that suffices for the search too.
fn check_opening(
    (manifest, extra): (&Manifest, &[(&'static str, u64)]),
    queries: &Queries,
    options: &[SearchOptions],
    budgets: &OpenOptions,
) -> Result<()> {
    let account = memory::opened(manifest, budgets.cache_budget, extra);
    if budgets.ram_budget.is_none_or(|budget| account.total() <= budget) {
        return Ok(());
    }
    let planned = options.iter().map(|o| memory::planned(manifest, o, account.clone(), queries));
    let most = planned.max_by_key(|account| account.total());
    most.unwrap_or(account).check(budgets.ram_budget, "search this index with these options")
}

/// Memory beside the index and its search, by component.
fn beside(
    filter_bytes: Option<u64>,
    queries: &Queries,
    groundtruth: Option<&Path>,
) -> Result<Vec<(&'static str, u64)>> {
    let mut extra = vec![("latencies", queries.count() as u64 * 16)];
    if let Some(bytes) = filter_bytes {
        extra.push((memory::FILTER, bytes));
    }
    if let Some(path) = groundtruth {
        let file = std::fs::metadata(path).map_err(|e| Error::io("opening", path, &e))?;
        extra.push(("ground truth", file.len()));
    }
    Ok(extra)
}

/// Queries of a search for which the reads that they would make cost about as much as one pass over all blocks.
const READS_SAVED: u64 = 16;

/// Lets an index that would learn from its queries use what earlier ones taught it, where so few come that no epoch
/// ends: the memory of learning is free for lists then.
fn learn_from_epochs_alone(budgets: &mut OpenOptions, queries: usize) {
    let learning = &mut budgets.learning;
    if learning.learn.counts() && queries < learning.epoch_queries as usize {
        learning.learn = Learn::Frozen;
    }
}

/// Moves the index into memory, where it fits and was asked for, or so many queries repay it.
fn make_resident(index: &mut Index, queries: &Queries, preload: bool, output: &Output) -> Result<()> {
    if preload || queries.count() as u64 * READS_SAVED >= u64::from(index.manifest().blocks.count) {
        index.make_resident(&ProgressPrinter::new(*output))?;
    }
    Ok(())
}

impl Searcher for Bench {
    fn count(&self) -> usize {
        Bench::count(self)
    }

    fn rows(&self) -> u64 {
        self.index.manifest().rows
    }

    fn exact_cost(&self, options: &SearchOptions) -> Result<Option<String>> {
        if self.named.is_some() || self.matching.is_some() || self.filters.is_some() {
            // The way of the filter is in the report.
            return Ok(None);
        }
        let Some(cost) = self.index.exact_cost(options, Bench::count(self))? else { return Ok(None) };
        let why = self.unreached(options)?.map_or(String::new(), |why| format!("{why}\n"));
        let lists = format!("{} {}, {}", count(cost.count), cost.unit, size(cost.bytes));
        let vectors = match cost.vector_bytes_max {
            0 => String::new(),
            most => format!(", and vectors that no bound prunes, up to {}", size(most)),
        };
        let who = if cost.is_shared { "all queries together go" } else { "each query goes" };
        Ok(Some(format!("{why}note: this search is exact: {who} through {lists}{vectors}")))
    }

    fn run(
        &mut self,
        options: &SearchOptions,
        printer: &ProgressPrinter,
        take: &mut dyn FnMut(usize, &Answers) -> Result<()>,
    ) -> Result<Run> {
        Bench::run(self, options, printer, take)
    }
}
