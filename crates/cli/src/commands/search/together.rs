//! Searches of several indexes on this machine as one: `search --also`.

use std::path::{Path, PathBuf};

use stratann_engine::groundtruth::CheckedTruth;
use stratann_engine::index::{CacheBudget, OpenOptions};
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{Answers, SearchOptions, Together};
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
        let tables = shares(planned);
        let usable = shares(manifests.iter().map(CacheBudget::usable_bytes));
        let free_bytes = CacheBudget::free_bytes();
        let mut each = Vec::with_capacity(indexes.len());
        for ((path, tables), usable) in indexes.iter().zip(tables).zip(usable) {
            let share = |bytes: u64| tables.of(bytes);
            // Where there is room for all that they can use, each has that. Otherwise an index reads the more for its
            // size the smaller it is, as its tables are the larger.
            let of_caches = |bytes: u64| match bytes.checked_sub(usable.all) {
                Some(rest) => usable.own + share(rest),
                None => share(bytes),
            };
            // The program is there once, and in the account of each.
            let with_program = |bytes: u64| match bytes.checked_sub(PROGRAM_BYTES) {
                Some(rest) => PROGRAM_BYTES + share(rest),
                None => share(bytes),
            };
            let own = OpenOptions {
                ram_budget: budgets.ram_budget.map(with_program),
                head_budget: budgets.head_budget.map(share),
                lends_cache: true,
                ..budgets
            };
            let cache = match cache {
                CacheBudget::Bytes(bytes) => CacheBudget::Bytes(of_caches(bytes)),
                CacheBudget::Auto if budgets.ram_budget.is_none() => CacheBudget::UpTo(of_caches(free_bytes)),
                other => other,
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

/// The share of one index in what all of them have.
#[derive(Clone, Copy)]
struct Share {
    own: u64,
    all: u64,
}

impl Share {
    fn of(self, bytes: u64) -> u64 {
        (u128::from(bytes) * u128::from(self.own) / u128::from(self.all.max(1))) as u64
    }
}

fn shares(bytes: impl Iterator<Item = u64> + Clone) -> Vec<Share> {
    let all = bytes.clone().sum();
    bytes.map(|own| Share { own, all }).collect()
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
