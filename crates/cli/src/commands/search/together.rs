//! Searches of several indexes on this machine as one: `search --also`.

use std::path::{Path, PathBuf};

use stratann_engine::groundtruth::CheckedTruth;
use stratann_engine::index::{CacheBudget, OpenOptions};
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{self, Answers, Filters, SearchOptions, Together};
use stratann_storage::budget::PROGRAM_BYTES;
use stratann_storage::{Error, Progress, Result};

use super::local::{Bench, Source, Wanted};
use super::{Run, Searcher, Sum};
use crate::filter::{OwnFilters, QueryFilterArgs};
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
        (groundtruth, filter, partial): (Option<&Path>, &QueryFilterArgs, bool),
        settings: &[SearchOptions],
        (budgets, (cache, preload)): (OpenOptions, (CacheBudget, bool)),
        output: Output,
    ) -> Result<Indexes> {
        let read = |path: &PathBuf| Ok(Manifest::read(path)?.1);
        let manifests = indexes.iter().map(read).collect::<Result<Vec<Manifest>>>()?;
        let mut each = manifests.iter().zip(indexes);
        each.try_for_each(|(manifest, folder)| {
            manifest.check_numbered(folder, "a search of several indexes")
        })?;
        let planned = manifests.iter().map(|m| m.planned_account(0).total().saturating_sub(PROGRAM_BYTES));
        let planned: Vec<u64> = planned.collect();
        let usable: Vec<u64> = manifests.iter().map(CacheBudget::usable_bytes).collect();
        let batches = settings.first().map(|options| options.batch_options).unwrap_or_default();
        let of_search = |manifest: &Manifest| search::usual_reserve(manifest, batches, 1).bytes;
        let searches: Vec<u64> = manifests.iter().map(of_search).collect();
        let caches = match cache {
            CacheBudget::Bytes(bytes) => beyond(bytes, &usable, &planned, &planned),
            CacheBudget::Auto if budgets.ram_budget.is_none() => {
                divided(CacheBudget::free_bytes(), &planned, &usable)
            }
            CacheBudget::Auto => Vec::new(),
        };
        let ram_budgets = budgets.ram_budget.map(|bytes| ram_budgets(bytes, &planned, &searches, &usable));
        let head_budgets = budgets.head_budget.map(|bytes| shares(bytes, &planned));
        let mut each = Vec::with_capacity(indexes.len());
        for (at, path) in indexes.iter().enumerate() {
            let own = OpenOptions {
                ram_budget: ram_budgets.as_ref().map(|all| all[at]),
                head_budget: head_budgets.as_ref().map(|all| all[at]),
                lends_cache: true,
                ..budgets
            };
            let cache = caches.get(at).copied().map_or(CacheBudget::Auto, CacheBudget::Bytes);
            // Each takes of the ids those that it has.
            let source = (Source::Folder(path), Wanted { ids: Some(filter), points: None });
            let opened =
                Bench::open_filtered(source, queries, None, settings, (own, (cache, preload)), output);
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
            (Some(path), Some(first)) => {
                // How many rows of all indexes match is not known.
                let matches = if first.named().is_some() { 1 } else { rows };
                Some(truth::read(path, first.queries(), k, matches, rows)?)
            }
            _ => None,
        };
        let named = each.first().and_then(Bench::named);
        if let (Some(truth), Some(named)) = (&truth, named) {
            truth::check_named(truth, named)?;
        }
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

/// Divides `bytes` by weight.
fn shares(bytes: u64, weights: &[u64]) -> Vec<u64> {
    let all = sum(weights);
    weights.iter().map(|&own| share(bytes, own, all)).collect()
}

/// The numbers come from manifests.
fn sum(parts: &[u64]) -> u64 {
    parts.iter().copied().fold(0, u64::saturating_add)
}

/// Divides `bytes`: each index gets what it needs, and a share of the rest by weight. Where that is too much, the bytes
/// are divided as the tables are.
fn beyond(bytes: u64, needed: &[u64], weights: &[u64], tables: &[u64]) -> Vec<u64> {
    match bytes.checked_sub(sum(needed)) {
        Some(rest) => {
            needed.iter().zip(shares(rest, weights)).map(|(needed, share)| needed + share).collect()
        }
        None => shares(bytes, tables),
    }
}

/// Divides a RAM budget. Each index gets its tables and what its searches take, and a share of the rest by what it can
/// cache. Where one of them uses memory in another way, the bytes are divided as the tables are. The program is there
/// once, and in the account of each.
fn ram_budgets(bytes: u64, tables: &[u64], searches: &[u64], usable: &[u64]) -> Vec<u64> {
    let Some(beside_program) = bytes.checked_sub(PROGRAM_BYTES) else { return shares(bytes, tables) };
    let needed: Vec<u64> =
        tables.iter().zip(searches).map(|(&own, &more)| own.saturating_add(more)).collect();
    let own = match usable.contains(&0) {
        false => beyond(beside_program, &needed, usable, tables),
        true => shares(beside_program, tables),
    };
    own.into_iter().map(|own| PROGRAM_BYTES + own).collect()
}

/// Divides `bytes` by weight. Nobody gets more than it can use; what it leaves is for the others.
fn divided(mut bytes: u64, weights: &[u64], usable: &[u64]) -> Vec<u64> {
    let mut own = vec![0; weights.len()];
    let mut left: Vec<usize> = (0..weights.len()).filter(|&at| usable[at] > 0).collect();
    loop {
        let all = left.iter().fold(0, |all: u64, &at| all.saturating_add(weights[at]));
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
        let own =
            self.each.iter_mut().map(|bench| bench.filters(options, printer)).collect::<Result<Vec<_>>>()?;
        for first in (0..count).step_by(part) {
            if let Some(bench) = self.each.first_mut() {
                bench.load(first, part.min(count - first))?;
            }
            let rows = self.each.first().map_or(&[][..], Bench::rows);
            let together = Together::new(self.each.iter().map(|bench| &bench.index))?;
            let queries = || first..count.min(first + part);
            let of_part = own.iter().map(|own| own.as_ref().map_or(Filters::None, |own| own.of(queries())));
            let filters: Vec<Filters<'_>> = of_part.collect();
            let mut answers = together.search_filtered(rows, &filters, options, self.partial, printer)?;
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
        let mut run =
            sum.into_run(options, account.unwrap_or_default(), self.ram_budget, self.truth.is_some());
        // What is said of the rows that match is of each index by itself.
        run.filters = own.iter().filter_map(|own| own.as_ref().and_then(OwnFilters::report)).collect();
        Ok(run)
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
        let given = |bytes| beyond(bytes, &[100, 100], &[1, 3], &[1, 3]);
        assert_eq!(given(40), [10, 30]);
        assert_eq!(given(240), [110, 130]);
        // A small index has what its searches take, and the rest goes to those that can use it.
        let ram = |bytes, usable| ram_budgets(PROGRAM_BYTES + bytes, &[10, 90], &[100, 100], usable);
        let beside_program = |own: [u64; 2]| own.map(|bytes| PROGRAM_BYTES + bytes);
        assert_eq!(ram(1000, &[10, 90]), beside_program([180, 820]));
        assert_eq!(ram(250, &[10, 90]), beside_program([25, 225]));
        assert_eq!(ram(1000, &[0, 90]), beside_program([100, 900]));
        assert_eq!(ram_budgets(100, &[10, 90], &[1, 1], &[1, 1]), [10, 90]);
    }
}
