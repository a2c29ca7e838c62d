//! Several open indexes searched as one.
//!
//! Each index answers all queries; the best k of all their results by (distance, id) are the answers, and the counters
//! are added up. An index that gives no answer to a query is named.
//!
//! The largest index is searched first. The others are searched for the results that are expected of their share of the
//! rows, within the distance of the k-th result that is known then.

use std::time::Instant;

use stratann_core::query::{Hit, join_hits};
use stratann_params::choices::PartsName;
use stratann_storage::{Error, Progress, Result, budget};

use super::run::{self, Call, Run};
use super::sieved::Filters;
use super::waves::{self, Bounds, Wave};
use super::{Answers, Purpose, SearchOptions};
use crate::index::Index;

/// Most indexes that are searched as one.
pub const INDEXES_MAX: usize = 64;

/// Open indexes whose vectors can be compared.
pub struct Together<'a> {
    indexes: Vec<&'a Index>,
}

impl<'a> Together<'a> {
    /// Checks that vectors of all indexes have the same number of components, element type and metric.
    ///
    /// # Errors
    /// `BadInput`, naming the first index that differs; no index, or more than [`INDEXES_MAX`].
    pub fn new(indexes: impl IntoIterator<Item = &'a Index>) -> Result<Together<'a>> {
        let indexes: Vec<&Index> = indexes.into_iter().collect();
        let Some(&first) = indexes.first().filter(|_| indexes.len() <= INDEXES_MAX) else {
            return Err(Error::bad_input(format!(
                "{} indexes cannot be searched as one; give 1 to {INDEXES_MAX}",
                indexes.len()
            )));
        };
        let shape = |index: &Index| {
            let manifest = index.manifest();
            (manifest.dim, manifest.dtype.clone(), manifest.metric.clone())
        };
        if let Some(other) = indexes.iter().find(|index| shape(index) != shape(first)) {
            let text = |index: &Index| {
                let (dim, dtype, metric) = shape(index);
                format!("{} has {dim} × {dtype}, {metric}", index.folder().display())
            };
            return Err(Error::bad_input(format!(
                "{}, but {}; only indexes of equal vectors and metric can be searched as one",
                text(first),
                text(other)
            )));
        }
        Ok(Together { indexes })
    }

    /// Vectors in all of them, without those that are deleted.
    pub fn rows(&self) -> u64 {
        self.indexes.iter().map(|index| index.manifest().live_rows()).sum()
    }

    /// Answers `queries` as [`Index::search`] does, with these options in each index. Drivers of all threads have
    /// queries of every index in flight, so the latency of a query is the time from its first admission to its last
    /// answer; only indexes in memory nodes are asked one after another. A query that an index fails has no answer;
    /// with `partial` it has that of the others. Either way [`Answers::failed`] names the index.
    ///
    /// # Errors
    /// As [`Index::search`], naming the index where it is the fault of one.
    pub fn search(
        &self,
        queries: &[u8],
        options: &SearchOptions,
        partial: bool,
        progress: &dyn Progress,
    ) -> Result<Answers> {
        self.search_filtered(queries, &vec![Filters::None; self.indexes.len()], options, partial, progress)
    }

    /// The options of the search of one index, by its number: its effort is that of its share of the rows. A filter
    /// that has rows of all indexes by chance, as deletes do, is made with these. Another may have all of its rows in
    /// one index, and is made with those of the whole.
    pub fn options_of(&self, number: usize, options: &SearchOptions) -> SearchOptions {
        // Nothing is known of what the first will find: it may have all results.
        let is_whole = options.parts == PartsName::Each || self.first() == Some(number);
        let share = if is_whole { 1.0 } else { self.share(number) };
        SearchOptions { share, ..*options }
    }

    /// The share of all rows that an index has.
    fn share(&self, number: usize) -> f64 {
        let own = self.indexes.get(number).map_or(0, |index| index.manifest().live_rows());
        own as f64 / self.rows().max(1) as f64
    }

    /// The index that is the first wave: that with the most rows in files, the first of several.
    fn first(&self) -> Option<usize> {
        let files = (0..self.indexes.len()).rev().filter(|&at| !shares_reads(self.indexes[at]));
        files.max_by_key(|&at| self.indexes[at].manifest().live_rows())
    }

    /// Like [`Together::search`], for queries that may return the rows of their filters alone. `filters` has those of
    /// each index, which were made with these options or [`Together::options_of`]: of the ids that were named, the rows
    /// that it has.
    ///
    /// # Errors
    /// As [`Together::search`]; filters that are not those of each index, or not one for each query.
    pub fn search_filtered(
        &self,
        queries: &[u8],
        filters: &[Filters<'_>],
        options: &SearchOptions,
        partial: bool,
        progress: &dyn Progress,
    ) -> Result<Answers> {
        self.search_beside(queries, (filters, &[]), options, partial, progress)
    }

    /// Like [`Together::search_filtered`], for an asker who has other results already. `known` has their distances, of
    /// each query and ascending; it is empty where there are none. Rows of these indexes are not among them. Results
    /// that cannot be among the best k together with those may be missing, so a query may have fewer than k.
    ///
    /// # Errors
    /// As [`Together::search_filtered`]; distances that are not of each query.
    pub fn search_beside(
        &self,
        queries: &[u8],
        (filters, known): (&[Filters<'_>], &[Vec<f32>]),
        options: &SearchOptions,
        partial: bool,
        progress: &dyn Progress,
    ) -> Result<Answers> {
        let (cpu_us, started) = (budget::cpu_us(), Instant::now());
        let (all, latency_ns) = self.search_parts(queries, (filters, known), options, progress)?;
        let filters: Vec<_> = self.indexes.iter().copied().zip(filters.iter().copied()).collect();
        let joined = self.joined(all, (&filters, known), options.k, partial);
        let joined = joined.ok_or_else(|| Error::bad_input("no index is searched"))?;
        let cpu_us = budget::cpu_us().saturating_sub(cpu_us);
        Ok(Answers { latency_ns, cpu_us, seconds: started.elapsed().as_secs_f64(), ..joined })
    }

    /// The answers of each index, and the latency of each query in all of them, for an asker who joins them: its rows
    /// have other ids than those of the indexes. Otherwise as [`Together::search_beside`].
    ///
    /// # Errors
    /// As [`Together::search_beside`].
    pub fn search_parts(
        &self,
        queries: &[u8],
        (filters, known): (&[Filters<'_>], &[Vec<f32>]),
        options: &SearchOptions,
        progress: &dyn Progress,
    ) -> Result<(Vec<Answers>, Vec<u64>)> {
        let filters = self.checked(filters, queries)?;
        let count = queries.len() / self.indexes.first().map_or(1, |index| index.row_bytes());
        if !known.is_empty() && known.len() != count {
            let given = known.len();
            return Err(Error::bad_input(format!("distances of {given} queries, and {count} queries")));
        }
        let first = self.first();
        let has_bounds = options.parts == PartsName::Whole && (self.indexes.len() > 1 || !known.is_empty());
        let near = |first: usize| waves::near_rank(options, self.share(first));
        let bounds = first.filter(|_| has_bounds).map(|at| Bounds::new(known, (options.k, near(at)), count));
        let parts = filters.iter().enumerate().map(|(number, &(index, filters))| Part {
            index,
            filters,
            options: self.options_of(number, options),
            wave: match &bounds {
                Some(bounds) if Some(number) == first => Wave::First(bounds),
                Some(bounds) => Wave::Second(bounds, waves::expected(options, self.share(number))),
                None => Wave::Alone,
            },
        });
        let files: Vec<_> = parts.filter(|part| !shares_reads(part.index)).collect();
        let (answers, mut latency_ns) = search_files(&files, queries, progress)?;
        latency_ns.resize(count, 0);
        let mut answers = answers.into_iter();
        let mut all = Vec::with_capacity(self.indexes.len());
        for &(index, own) in &filters {
            let of_files = if shares_reads(index) { None } else { answers.next() };
            let Some(answers) = of_files else {
                let answers = named(index, index.search_filtered(queries, own, options, progress))?;
                latency_ns.iter_mut().zip(&answers.latency_ns).for_each(|(sum, own)| *sum += own);
                all.push(answers);
                continue;
            };
            all.push(answers);
        }
        Ok((all, latency_ns))
    }

    /// Each index with its filters.
    fn checked<'f>(&self, filters: &[Filters<'f>], queries: &[u8]) -> Result<Vec<(&'a Index, Filters<'f>)>> {
        if filters.len() != self.indexes.len() {
            let (given, indexes) = (filters.len(), self.indexes.len());
            return Err(Error::bad_input(format!(
                "{given} filters for {indexes} indexes; give those of each"
            )));
        }
        let all: Vec<_> = self.indexes.iter().copied().zip(filters.iter().copied()).collect();
        all.iter().try_for_each(|(index, own)| named(index, index.check_filters_of(*own, queries)))?;
        Ok(all)
    }

    /// `None` without an index.
    fn joined(
        &self,
        all: Vec<Answers>,
        (filters, known): (&[(&Index, Filters<'_>)], &[Vec<f32>]),
        k: usize,
        partial: bool,
    ) -> Option<Answers> {
        let k = k.min(usize::try_from(self.rows()).unwrap_or(usize::MAX));
        let count = all.first().map_or(0, |answers| answers.latency_ns.len());
        let mut failed: Vec<(usize, String)> = Vec::new();
        for (index, answers) in self.indexes.iter().zip(&all) {
            let name = index.folder().display();
            failed.extend(answers.failed.iter().map(|(query, why)| (*query, format!("{name}: {why}"))));
        }
        failed.sort_by_key(|failure| failure.0);
        let (mut ids, mut distances, mut counts, mut short) = (Vec::new(), Vec::new(), Vec::new(), 0);
        let mut hits: Vec<Hit> = Vec::new();
        for query in 0..count {
            hits.clear();
            let is_failed = failed.binary_search_by_key(&query, |failure| failure.0).is_ok();
            for answers in all.iter().filter(|_| partial || !is_failed) {
                let found = answers.results(query);
                let found = found.map(|(external_id, distance)| Hit { distance, external_id });
                join_hits(&mut hits, found, k);
            }
            counts.push(hits.len() as u32);
            // Fewer rows than k may match; then each index has found those that it has.
            let is_complete = |((_, own), answers): (&(&Index, Filters<'_>), &Answers)| {
                own.of(query).is_some_and(|filter| answers.counts[query] >= filter.results_min(k as u32))
            };
            let beside = known.get(query).map_or(0, Vec::len);
            let is_short = hits.len() + beside < k && !filters.iter().zip(&all).all(is_complete);
            short += usize::from(is_short && !is_failed);
            let missing = std::iter::repeat_n((u64::MAX, f32::INFINITY), k - hits.len());
            for (id, distance) in hits.iter().map(|hit| (hit.external_id, hit.distance)).chain(missing) {
                ids.push(id);
                distances.push(distance);
            }
        }
        let mut all = all.into_iter();
        let mut sum = all.next()?;
        for answers in all {
            sum.stats.add(&answers.stats);
            sum.largest = sum.largest.max(&answers.largest);
            sum.times.add(&answers.times);
            sum.merged.add(&answers.merged);
            sum.account.join(&answers.account);
        }
        Some(Answers { k, ids, distances, counts, failed, short, ..sum })
    }
}

/// One index of several that are searched at once.
struct Part<'a> {
    index: &'a Index,
    filters: Filters<'a>,
    options: SearchOptions,
    wave: Wave<'a>,
}

/// The answers of indexes in files, which are searched at once, and the latency of each query in all of them.
fn search_files(
    parts: &[Part<'_>],
    queries: &[u8],
    progress: &dyn Progress,
) -> Result<(Vec<Answers>, Vec<u64>)> {
    let begun = Instant::now();
    let of_live = |part: &Part<'_>| match part.filters {
        Filters::None => named(part.index, part.index.live_filter(&part.options)),
        _ => Ok(None),
    };
    let of_live = parts.iter().map(of_live).collect::<Result<Vec<_>>>()?;
    let mut runs = Vec::with_capacity(parts.len());
    for (number, &Part { index, filters, ref options, wave }) in parts.iter().enumerate() {
        let begin = || {
            let params = index.params_of_search(options)?;
            let filters = of_live[number].as_ref().map_or(filters, Filters::Shared);
            let call = Call {
                queries,
                params,
                exclude: &|_| u32::MAX,
                filters,
                progress,
                purpose: Purpose::Answer,
                wave,
            };
            Run::begin(index, call, options, (number, parts.len()))
        };
        let mut run = named(index, begin())?;
        run.batch.note_ends(begun);
        runs.push(run);
    }
    let name = run::answer(&mut runs)?;
    progress.check_interrupted()?;
    let span = |query: usize| {
        let spans = runs.iter().filter_map(|run| run.batch.span_ns(query));
        spans.reduce(|all, own| all.start.min(own.start)..all.end.max(own.end))
    };
    let count = runs.first().map_or(0, |run| run.batch.count);
    let latency_ns = (0..count).map(|query| span(query).map_or(0, |span| span.end - span.start)).collect();
    Ok((runs.into_iter().map(|run| run.into_answers(name)).collect(), latency_ns))
}

/// Whether queries of an index share their reads: it is searched by itself.
fn shares_reads(index: &Index) -> bool {
    index.base.facts().shares_reads
}

/// Says in an error which index it is about.
fn named<T>(index: &Index, result: Result<T>) -> Result<T> {
    result.map_err(|e| Error { message: format!("{}: {}", index.folder().display(), e.message), ..e })
}
