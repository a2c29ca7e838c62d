//! Many queries over an open index: threads, parameters, and what it cost.

use std::slice;
use std::time::Instant;

use stratann_core::query::{Budget, Params};
use stratann_storage::{Error, Progress, Result, budget};

use crate::exec::{Admission, BatchOptions};
use crate::index::Index;
use crate::kinds::known::IN_MEMORY_NODES;

mod account;
mod answers;
mod batch;
mod filter_facts;
pub(crate) mod live;
pub(crate) mod options;
mod params;
mod record;
mod run;
mod scan;
mod sieved;
mod together;
mod traffic;
mod truth;
mod waves;

pub use crate::kinds::answers::ExactCost;
pub use crate::kinds::effort::Effort;
pub use crate::kinds::shares_loads::RecordedVisit;
pub use crate::sieve_ways::{FilterReport, PriceUnit, SievePrices, SieveWay};
pub use account::{DOORBELLS, reserve, usual_reserve};
pub use answers::{Answers, Latency, hits, recall};
pub use options::{SearchOptions, mode_of};
use record::Recording;
pub use record::{RecordedBatch, RecordedLoad, RecordedQuery};
pub use sieved::{Filter, Filters, Naming};
pub use together::{INDEXES_MAX, Together};
pub use traffic::{Traffic, TrafficOptions};

pub use crate::index::Reserve;
pub use crate::kinds::IN_FLIGHT;
use run::{Call, Run};
use waves::Wave;

/// Purpose of a search.
enum Purpose<'a> {
    /// Answers to its queries: the index learns from them.
    Answer,
    /// A measurement of its cost.
    Measure,
    /// A record of its batches.
    Record(&'a Recording),
}

impl Index {
    /// Default budget of a query.
    pub fn query_budget(&self) -> Budget {
        self.view().budget()
    }

    /// Queries in flight per thread.
    pub(crate) fn in_flight(&self, options: &SearchOptions) -> usize {
        if self.base.facts().shares_reads {
            return options.batch_options.batch.div_ceil(options.threads.max(1)).max(1);
        }
        let wanted = options.in_flight.unwrap_or(self.kind.in_flight());
        if options.admission == Admission::One { 1 } else { wanted.clamp(1, 4096) }
    }

    /// Most of `count` queries that a search has in flight at once, on all threads.
    pub fn queries_in_flight(&self, options: &SearchOptions, count: usize) -> usize {
        if let Some(plan) = self.usual_scan(options, count) {
            return plan.pass_queries;
        }
        let fitted = self.fitted(options, count);
        (fitted.threads * self.in_flight(&fitted)).min(count)
    }

    /// No more threads, and no more room for queries on each, than `count` queries can use: one alone should not wait
    /// for a ring of hundreds.
    fn fitted(&self, options: &SearchOptions, count: usize) -> SearchOptions {
        let threads = options.threads.clamp(1, 1024).min(count.max(1));
        let in_flight = self.in_flight(options).min(count.div_ceil(threads).max(1));
        SearchOptions { threads, in_flight: Some(in_flight), ..*options }
    }

    /// Answers `queries`: rows of `dim` components of the index' element type, as bytes.
    ///
    /// # Errors
    /// Bad options, a budget too small, an interruption, a disk that is gone. A query that fails alone is in
    /// [`Answers::failed`].
    pub fn search(
        &self,
        queries: &[u8],
        options: &SearchOptions,
        progress: &dyn Progress,
    ) -> Result<Answers> {
        self.search_filtered(queries, Filters::None, options, progress)
    }

    /// Like [`Index::search`], for queries that may return the rows of their filters alone, which were made with these
    /// options.
    ///
    /// # Errors
    /// As [`Index::search`]; filters that are not one for each query.
    pub fn search_filtered(
        &self,
        queries: &[u8],
        filters: Filters<'_>,
        options: &SearchOptions,
        progress: &dyn Progress,
    ) -> Result<Answers> {
        let params = self.params_of_search(options)?;
        self.check_filters_of(filters, queries)?;
        let of_live = if let Filters::None = filters { self.live_filter(options)? } else { None };
        let filters = of_live.as_ref().map_or(filters, Filters::Shared);
        let call = Call {
            queries,
            params,
            exclude: &|_| u32::MAX,
            filters,
            progress,
            purpose: Purpose::Answer,
            wave: Wave::Alone,
        };
        self.answer(call, options)
    }

    /// Refuses filters of another index, and those that are not one for each query.
    fn check_filters_of(&self, filters: Filters<'_>, queries: &[u8]) -> Result<()> {
        let count = queries.len() / self.base.row_bytes();
        if filters.all().iter().any(|filter| !filter.is_of(self)) {
            return Err(Error::bad_input("a filter of another index was given; make it of this one"));
        }
        if let Filters::Each(each) = filters
            && each.len() != count
        {
            let given = each.len();
            return Err(Error::bad_input(format!("{given} filters for {count} queries; give one for each")));
        }
        Ok(())
    }

    /// The parameters of a search with these options.
    ///
    /// # Errors
    /// As [`Index::search`].
    pub(crate) fn params_of_search(&self, options: &SearchOptions) -> Result<Params> {
        if !self.base.facts().shares_reads && options.batch_options != BatchOptions::default() {
            return Err(Error::bad_input(format!(
                "--batch, --doorbell, and the baselines naive, no-doorbell and no-overlap are for a {}, and \
                 this index is a {}; leave them out",
                IN_MEMORY_NODES.name(),
                self.base.kind.name()
            )));
        }
        self.params(options)
    }

    /// Like [`Index::search`], with given parameters and, for each query, a node that it must not see.
    pub(crate) fn search_each(
        &self,
        queries: &[u8],
        params: Params,
        exclude: &(dyn Fn(usize) -> u32 + Sync),
        options: &SearchOptions,
        progress: &dyn Progress,
    ) -> Result<Answers> {
        let (filters, purpose, wave) = (Filters::None, Purpose::Measure, Wave::Alone);
        self.answer(Call { queries, params, exclude, filters, progress, purpose, wave }, options)
    }

    fn answer(&self, call: Call<'_>, options: &SearchOptions) -> Result<Answers> {
        let progress = call.progress;
        let mut run = Run::begin(self, call, options, (0, 1))?;
        let (cpu, started) = (budget::cpu_us(), Instant::now());
        let name = run::answer(slice::from_mut(&mut run))?;
        let seconds = started.elapsed().as_secs_f64();
        let cpu_us = budget::cpu_us().saturating_sub(cpu);
        progress.check_interrupted()?;
        Ok(Answers { seconds, cpu_us, ..run.into_answers(name) })
    }
}
