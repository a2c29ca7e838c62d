//! Searches of several indexes on this machine as one: `search --also`.

use std::path::{Path, PathBuf};

use stratann_engine::groundtruth::CheckedTruth;
use stratann_engine::index::{CacheBudget, OpenOptions};
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{self, Answers, SearchOptions, Together};
use stratann_storage::budget::PROGRAM_BYTES;
use stratann_storage::{Error, Progress, Result};

use super::local::{Bench, Source};
use super::{Run, Searcher, Sum};
use crate::output::Output;
use crate::progress::ProgressPrinter;
use crate::truth;

/// Open indexes, and queries for all of them.
pub(super) struct Indexes {
    each: Vec<Bench>,
    truth: Option<CheckedTruth>,
    ram_budget: Option<u64>,
    partial: bool,
}

impl Indexes {
    /// Opens the indexes, each within its share of the budgets.
    pub(super) fn open(
        indexes: &[PathBuf],
        queries: &Path,
        (groundtruth, partial): (Option<&Path>, bool),
        settings: &[SearchOptions],
        (budgets, (cache, preload)): (OpenOptions, (CacheBudget, bool)),
        output: Output,
    ) -> Result<Indexes> {
        let read = |path: &PathBuf| Ok(Manifest::read(path)?.1);
        let manifests = indexes.iter().map(read).collect::<Result<Vec<Manifest>>>()?;
        let planned = manifests.iter().map(|m| m.planned_account(0).total().saturating_sub(PROGRAM_BYTES));
        let planned: Vec<u64> = planned.collect();
        let usable: Vec<u64> = manifests.iter().map(CacheBudget::usable_bytes).collect();
        let caches = match cache {
            CacheBudget::Bytes(bytes) => given_caches(bytes, &planned, &usable),
            CacheBudget::Auto if budgets.ram_budget.is_none() => {
                let own = divided(CacheBudget::free_bytes(), &planned, &usable);
                own.into_iter().map(CacheBudget::Bytes).collect()
            }
            other => vec![other; indexes.len()],
        };
        let all: u64 = planned.iter().sum();
        let batches = settings.first().map(|options| options.batch_options).unwrap_or_default();
        let of_search = |manifest: &Manifest| search::usual_reserve(manifest, batches, 1).bytes;
        let searches: Vec<u64> = manifests.iter().map(of_search).collect();
        let mut each = Vec::with_capacity(indexes.len());
        for (at, (path, cache)) in indexes.iter().zip(caches).enumerate() {
            let share = |bytes: u64| share(bytes, planned[at], all);
            // The program is there once, and in the account of each.
            let with_program = |bytes: u64| match bytes.checked_sub(PROGRAM_BYTES) {
                Some(rest) => PROGRAM_BYTES + ram_budgets(rest, &planned, &searches, &usable)[at],
                None => share(bytes),
            };
            let own = OpenOptions {
                ram_budget: budgets.ram_budget.map(with_program),
                head_budget: budgets.head_budget.map(share),
                lends_cache: true,
                ..budgets
            };
            let opened =
                Bench::open(Source::Folder(path), queries, None, settings, (own, (cache, preload)), output);
            each.push(opened.map_err(|e| match budgets.ram_budget {
                Some(_) if e.kind == stratann_storage::ErrorKind::Budget => Error {
                    message: format!("{}, with its share of the budget: {}", path.display(), e.message),
                    ..e
                },
                _ => e,
            })?);
        }
        let together = Together::new(each.iter().map(|bench: &Bench| &bench.index))?;
        let k = settings.iter().map(|options| options.k).max().unwrap_or(0);
        let rows = together.rows();
        let truth = match (groundtruth, each.first()) {
            (Some(path), Some(first)) => Some(truth::read(path, first.queries(), k, rows)?),
            _ => None,
        };
        Ok(Indexes { each, truth, ram_budget: budgets.ram_budget, partial })
    }

    /// Checks settings against every index.
    pub(super) fn check(&self, options: &SearchOptions) -> Result<()> {
        self.each.iter().try_for_each(|bench| bench.index.params(options).map(|_| ()))
    }
}

/// The part of `bytes` that belongs to `own` of `all`.
fn share(bytes: u64, own: u64, all: u64) -> u64 {
    (u128::from(bytes) * u128::from(own) / u128::from(all.max(1))) as u64
}

/// Caches of a size that was given for all indexes. With enough for all that they can use each gets that and a share of
/// the rest; with less the bytes are divided as their tables are.
fn given_caches(bytes: u64, tables: &[u64], usable: &[u64]) -> Vec<CacheBudget> {
    let all: u64 = tables.iter().sum();
    let rest = bytes.checked_sub(usable.iter().copied().fold(0, u64::saturating_add));
    let own = |(&tables, &usable): (&u64, &u64)| match rest {
        Some(rest) => usable + share(rest, tables, all),
        None => share(bytes, tables, all),
    };
    tables.iter().zip(usable).map(own).map(CacheBudget::Bytes).collect()
}

/// Divides a RAM budget. Each index gets its tables and what its searches take, and a share of the rest by what it can
/// cache. Where there is no rest, or one of them uses memory in another way, the bytes are divided as their tables are.
fn ram_budgets(bytes: u64, tables: &[u64], searches: &[u64], usable: &[u64]) -> Vec<u64> {
    let sum = |parts: &[u64]| parts.iter().copied().fold(0, u64::saturating_add);
    let rest = bytes.checked_sub(sum(tables).saturating_add(sum(searches)));
    let own = |at: usize| match rest.filter(|_| !usable.contains(&0)) {
        Some(rest) => tables[at] + searches[at] + share(rest, usable[at], sum(usable)),
        None => share(bytes, tables[at], sum(tables)),
    };
    (0..tables.len()).map(own).collect()
}

/// Divides `bytes` by weight. Nobody gets more than it can use; what it leaves is for the others.
fn divided(mut bytes: u64, weights: &[u64], usable: &[u64]) -> Vec<u64> {
    let mut own = vec![0; weights.len()];
    let mut left: Vec<usize> = (0..weights.len()).filter(|&at| usable[at] > 0).collect();
    loop {
        let all: u64 = left.iter().map(|&at| weights[at]).sum();
        let is_enough = |&at: &usize| share(bytes, weights[at], all) >= usable[at];
        let (satisfied, others): (Vec<usize>, Vec<usize>) = left.iter().partition(|at| is_enough(at));
        if satisfied.is_empty() {
            others.iter().for_each(|&at| own[at] = share(bytes, weights[at], all));
            return own;
        }
        for at in satisfied {
            own[at] = usable[at];
            bytes -= usable[at];
        }
        left = others;
    }
}

impl Searcher for Indexes {
    fn count(&self) -> usize {
        self.each.first().map_or(0, Bench::count)
    }

    fn rows(&self) -> u64 {
        self.each.iter().map(|bench| bench.index.manifest().rows).sum()
    }

    fn exact_cost(&self, options: &SearchOptions) -> Result<Option<String>> {
        let notes = self.each.iter().map(|bench| bench.unreached(options)).collect::<Result<Vec<_>>>()?;
        Ok(notes.into_iter().flatten().next())
    }

    fn run(
        &mut self,
        options: &SearchOptions,
        printer: &ProgressPrinter,
        take: &mut dyn FnMut(usize, &Answers) -> Result<()>,
    ) -> Result<Run> {
        let count = Searcher::count(self);
        let parts = self.each.iter().map(|bench| bench.part(options)).collect::<Result<Vec<usize>>>()?;
        let part = parts.into_iter().min().unwrap_or(1).max(1);
        let (mut sum, mut account, mut incomplete) = (Sum::new(count), None, 0);
        for first in (0..count).step_by(part) {
            if let Some(bench) = self.each.first_mut() {
                bench.load(first, part.min(count - first))?;
            }
            let rows = self.each.first().map_or(&[][..], Bench::rows);
            let together = Together::new(self.each.iter().map(|bench| &bench.index))?;
            let mut answers = together.search(rows, options, self.partial, printer)?;
            if self.partial {
                let lost = std::mem::take(&mut answers.failed);
                if let Some((query, why)) = lost.first().filter(|_| incomplete == 0) {
                    printer.note(&format!("note: query {} lacks results: {why}", first + query));
                }
                incomplete += lost.len();
            }
            sum.add(first, rows, &answers, self.truth.as_mut())?;
            take(first, &answers)?;
            account = Some(answers.account);
        }
        if incomplete > 0 {
            printer.note(&format!("note: {incomplete} times an index gave no answer to a query"));
        }
        Ok(sum.into_run(options, account.unwrap_or_default(), self.ram_budget, self.truth.is_some()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_index_cannot_use_is_for_the_others() {
        assert_eq!(divided(1000, &[1, 1, 2], &[100, 5000, 5000]), [100, 300, 600]);
        assert_eq!(divided(1000, &[10, 1], &[0, 5000]), [0, 1000]);
        assert_eq!(divided(10_000, &[1, 1], &[70, 80]), [70, 80]);
        assert_eq!(divided(0, &[1, 1], &[70, 80]), [0, 0]);
        assert_eq!(divided(10, &[0, 0], &[70, 0]), [0, 0]);
        let given = |bytes| given_caches(bytes, &[1, 3], &[100, 100]);
        assert_eq!(given(40), [10, 30].map(CacheBudget::Bytes));
        assert_eq!(given(240), [110, 130].map(CacheBudget::Bytes));
        // A small index has what its searches take, and the rest goes to those that can use it.
        assert_eq!(ram_budgets(1000, &[10, 90], &[100, 100], &[10, 90]), [180, 820]);
        assert_eq!(ram_budgets(250, &[10, 90], &[100, 100], &[10, 90]), [25, 225]);
        assert_eq!(ram_budgets(1000, &[10, 90], &[100, 100], &[0, 90]), [100, 900]);
    }
}
