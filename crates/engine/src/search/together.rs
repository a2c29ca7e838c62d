//! Several open indexes searched as one.
//!
//! Each index answers all queries; the best k of all their results by (distance, id) are the answers, and the counters
//! are added up. An index that gives no answer to a query is named.

use std::sync::OnceLock;
use std::time::Instant;

use stratann_core::query::{Hit, join_hits};
use stratann_storage::{Error, Progress, Result, budget, threads};

use super::{Answers, SearchOptions};
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

    /// Vectors in all of them.
    pub fn rows(&self) -> u64 {
        self.indexes.iter().map(|index| index.manifest().rows).sum()
    }

    /// Answers `queries` as [`Index::search`] does, with these options in each index. The threads are divided over the
    /// indexes, which are searched at the same time; with fewer threads than indexes as many at a time as there are
    /// threads. So the latency of a query is that of the slowest index of each such round, added up. A query that an
    /// index fails has no answer; with `partial` it has that of the others. Either way [`Answers::failed`] names the
    /// index.
    ///
    /// # Errors
    /// As [`Index::search`], naming the index.
    pub fn search(
        &self,
        queries: &[u8],
        options: &SearchOptions,
        partial: bool,
        progress: &dyn Progress,
    ) -> Result<Answers> {
        let (cpu_us, started) = (budget::cpu_us(), Instant::now());
        let at_once = options.threads.clamp(1, self.indexes.len().max(1));
        let (mut all, mut latency_ns) = (Vec::with_capacity(self.indexes.len()), Vec::<u64>::new());
        for round in self.indexes.chunks(at_once) {
            let answers = search_at_once(round, queries, options, progress)?;
            let slowest = |query: usize| answers.iter().map(|a| a.latency_ns[query]).max().unwrap_or(0);
            let count = answers.first().map_or(0, |a| a.latency_ns.len());
            latency_ns.resize(count, 0);
            latency_ns.iter_mut().enumerate().for_each(|(query, ns)| *ns = ns.saturating_add(slowest(query)));
            all.extend(answers);
        }
        let joined = self.joined(all, options.k, partial);
        let joined = joined.ok_or_else(|| Error::bad_input("no index is searched"))?;
        let cpu_us = budget::cpu_us().saturating_sub(cpu_us);
        Ok(Answers { latency_ns, cpu_us, seconds: started.elapsed().as_secs_f64(), ..joined })
    }

    /// `None` without an index.
    fn joined(&self, all: Vec<Answers>, k: usize, partial: bool) -> Option<Answers> {
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
            short += usize::from(hits.len() < k && !is_failed);
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

/// The answers of each index, with an equal share of the threads.
fn search_at_once(
    indexes: &[&Index],
    queries: &[u8],
    options: &SearchOptions,
    progress: &dyn Progress,
) -> Result<Vec<Answers>> {
    let (each, more) = (options.threads / indexes.len(), options.threads % indexes.len());
    let search = |(number, index): (usize, &Index)| {
        let threads = (each + usize::from(number < more)).max(1);
        let answers = index.search(queries, &SearchOptions { threads, ..*options }, progress);
        let name = index.folder().display();
        answers.map_err(|e| Error { message: format!("{name}: {}", e.message), ..e })
    };
    let ended: Vec<OnceLock<Result<Answers>>> = indexes.iter().map(|_| OnceLock::new()).collect();
    threads::together(indexes.len(), &|number| {
        let _ = ended[number].set(search((number, indexes[number])));
    })?;
    // All have ended before the first error is given.
    ended.into_iter().filter_map(OnceLock::into_inner).collect()
}
