//! Memory forecast of a search, computed before the index is loaded, so that a budget is refused only once.

use stratann_engine::exec::BatchOptions;
use stratann_engine::index::Index;
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{DOORBELLS, Reserve, SearchOptions, reserve};
use stratann_storage::Result;
use stratann_storage::budget::{Account, size};

use crate::queries::Queries;

/// Smallest number of queries in a part.
const FEWEST_QUERIES: usize = 64;

/// Computes the account of an open index without searches and with a full cache.
pub(crate) fn opened(manifest: &Manifest, cache_budget: u64, extra: &[(&'static str, u64)]) -> Account {
    let mut account = manifest.planned_account(cache_budget);
    extra.iter().for_each(|&(what, bytes)| account.add(what, bytes));
    account
}

/// Adds a search to `account`, rounded up where the manifest lacks figures: [`of_search`] is at most this.
pub(crate) fn planned(
    manifest: &Manifest,
    options: &SearchOptions,
    mut account: Account,
    queries: &Queries,
) -> Account {
    for (what, bytes) in reserve(manifest, &at_most(options, queries), true) {
        account.add(what, bytes);
    }
    let each = part_bytes(queries, options) + 12 * options.k as u64 + queries.row_bytes() as u64 + 8;
    account.add("queries and answers", queries.count().min(FEWEST_QUERIES) as u64 * each);
    account
}

/// The options with batches of no more queries than there are.
fn at_most(options: &SearchOptions, queries: &Queries) -> SearchOptions {
    let batch = options.batch_options.batch.min(queries.count());
    SearchOptions { batch_options: BatchOptions { batch, ..options.batch_options }, ..*options }
}

/// Bytes per query of a part that the engine does not count: its conversion and its ground truth.
pub(crate) fn part_bytes(queries: &Queries, options: &SearchOptions) -> u64 {
    queries.conversion_bytes() as u64 + 8 * options.k as u64
}

/// Bytes to reserve for a search before list codes are loaded into RAM, so that its queries need not be cut into small
/// parts.
pub fn set_aside(
    manifest: &Manifest,
    options: &SearchOptions,
    extra: &[(&'static str, u64)],
    queries: &Queries,
) -> Reserve {
    const PART_BYTES: u64 = 2 << 20;
    let each = part_bytes(queries, options) + 12 * options.k as u64 + queries.row_bytes() as u64 + 8;
    let part = (PART_BYTES / each).max(FEWEST_QUERIES as u64).min(queries.count() as u64);
    let options = &at_most(options, queries);
    let fixed =
        |low_memory| reserve(manifest, options, low_memory).iter().chain(extra).map(|e| e.1).sum::<u64>();
    let parts = 2 * part * each;
    Reserve { bytes: fixed(false) + parts, low_memory_bytes: fixed(true) + parts, threads: options.threads }
}

/// The component of accounts that filters are, with the ids of rows.
pub(crate) const FILTER: &str = "filter";

/// Computes the account of a search that with `queries` queries at a time, with a full cache.
pub(crate) fn of_search(
    index: &Index,
    options: &SearchOptions,
    queries: usize,
    cache_budget: u64,
    extra: &[(&'static str, u64)],
) -> Account {
    let mut account = index.search_account(options, queries);
    // The room that was set aside for a filter has the ids of rows.
    let has_filter = extra.iter().any(|extra| extra.0 == FILTER);
    account.components.retain(|(what, _)| !has_filter || what != "row ids");
    for (what, bytes) in &mut account.components {
        if what == "block cache" {
            *bytes = cache_budget;
        }
    }
    extra.iter().for_each(|&(what, bytes)| account.add(what, bytes));
    account
}

/// Computes `options` whose doorbells fit into `budget` beside a whole batch, or beside a few queries into half of what
/// these leave, and with no more queries in flight than leave room for these few, unless the user chose how many.
pub(crate) fn fitting(
    index: &Index,
    options: &SearchOptions,
    (queries, per_query_extra): (usize, u64),
    (cache_budget, extra): (u64, &[(&'static str, u64)]),
    budget: u64,
) -> SearchOptions {
    let left = |count: usize| {
        let account = of_search(index, options, count, cache_budget, extra);
        let others = account.total() - account.bytes_of(DOORBELLS) + count as u64 * per_query_extra;
        budget.saturating_sub(others)
    };
    let batch = queries.min(options.batch_options.batch);
    let bytes = left(batch).max(left(batch.min(FEWEST_QUERIES)) / 2);
    let options = index.with_doorbells_in(options, bytes);
    let least = queries.min(FEWEST_QUERIES);
    index.with_fitting_in_flight(&options, &|options| {
        let account = of_search(index, options, least, cache_budget, extra);
        account.total() + least as u64 * per_query_extra <= budget
    })
}

/// Computes how many of `queries` fit into `budget` at a time.
///
/// # Errors
/// `ErrorKind::Budget` when not even a few queries fit.
pub(crate) fn part(
    index: &Index,
    options: &SearchOptions,
    queries: usize,
    per_query_extra: u64,
    cache_budget: u64,
    extra: &[(&'static str, u64)],
    budget: Option<u64>,
) -> Result<usize> {
    let total = |count: usize| {
        let mut account = of_search(index, options, count, cache_budget, extra);
        account.add("parts of the query file", count as u64 * per_query_extra);
        account
    };
    let least = queries.min(FEWEST_QUERIES);
    let Some(budget) = budget else {
        // Without a budget: all at once, within reason.
        const PART_BYTES: u64 = 512 << 20;
        let each = total(1).total() - total(0).total();
        return Ok(queries.min((PART_BYTES / each.max(1)) as usize).max(least));
    };
    total(least).check(Some(budget), "search this index with these options")?;
    // Queries of a batch take more than those after it.
    let batch = queries.min(options.batch_options.batch);
    let from = if total(batch).total() <= budget { batch.max(least) } else { least };
    let own = total(from).total();
    let each = total(from + 1).total() - own;
    let room = from as u64 + budget.saturating_sub(own) / each.max(1);
    Ok(queries.min(room as usize).max(least))
}

/// Returns the account as JSON: bytes by component, and their sum.
pub fn json(account: &Account) -> serde_json::Value {
    let mut all = serde_json::Map::new();
    for (what, bytes) in &account.components {
        all.insert(what.replace(' ', "_") + "_bytes", (*bytes).into());
    }
    all.insert("total_bytes".into(), account.total().into());
    all.into()
}

/// Returns the account as text: `codes 3.1 MiB, …, together 12.0 MiB`.
pub(crate) fn text(account: &Account) -> String {
    let parts: Vec<String> = account
        .components
        .iter()
        .filter(|c| c.1 > 0)
        .map(|(what, bytes)| format!("{what} {}", size(*bytes)))
        .collect();
    format!("{}; together {}", parts.join(", "), size(account.total()))
}
