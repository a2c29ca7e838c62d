//! What a search will take, said before the index is loaded, so that a budget that is refused is refused once.

use stratann_engine::Result;
use stratann_engine::budget::{Account, THREAD_BYTES, size};
use stratann_engine::index::Index;
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{IN_FLIGHT, SearchOptions};

use crate::queries::Queries;

/// Fewer queries than this are not worth a part.
const FEWEST_QUERIES: usize = 64;

/// The account of an open index that has searched nothing yet, the cache full.
pub(crate) fn opened(manifest: &Manifest, cache_budget: u64, extra: &[(&str, u64)]) -> Account {
    let mut account = Account::planned(manifest, cache_budget);
    extra.iter().for_each(|(what, bytes)| account.add(what, *bytes));
    account
}

/// `account` with a search added, as far as the manifest tells and rounded up where it does not: [`of_search`] says less.
pub(crate) fn planned(
    manifest: &Manifest,
    options: &SearchOptions,
    mut account: Account,
    queries: &Queries,
) -> Account {
    let code_bytes = manifest.build.get("code_bytes").and_then(|v| v.as_u64()).unwrap_or(0);
    // Look-up tables, beams and the query itself; a wide round's blocks.
    let state = code_bytes * 1536
        + 16_384
        + longest_list(manifest, options) * 24
        + options.k as u64 * 16
        + manifest.dim as u64 * 16;
    let in_flight = options.in_flight.unwrap_or(IN_FLIGHT);
    let blocks = u64::from(options.width.at_load(in_flight).1) * manifest.blocks.bytes as u64;
    account.add("queries in flight", options.threads as u64 * in_flight as u64 * (state + blocks));
    account.add("threads", options.threads as u64 * THREAD_BYTES);
    let each = part_bytes(queries, options) + 12 * options.k as u64 + queries.row_bytes() as u64 + 8;
    account.add("queries and answers", queries.count().min(FEWEST_QUERIES) as u64 * each);
    account
}

/// Bytes per query of a part that the engine does not count: conversion, and its truth.
pub(crate) fn part_bytes(queries: &Queries, options: &SearchOptions) -> u64 {
    queries.conversion_bytes() as u64 + 8 * options.k as u64
}

fn longest_list(manifest: &Manifest, options: &SearchOptions) -> u64 {
    use stratann_engine::search::Effort;
    let of_curves = manifest.curves.iter().flat_map(|c| &c.points).map(|p| u64::from(p.search_list)).max();
    match options.effort {
        Effort::List(list, _) => u64::from(list),
        Effort::Recall(_) | Effort::Clusters(..) => of_curves.unwrap_or(0).max(200),
    }
}

/// The account of a search of an open index that handles `queries` at a time, the cache full.
pub(crate) fn of_search(
    index: &Index,
    options: &SearchOptions,
    queries: usize,
    cache_budget: u64,
    extra: &[(&str, u64)],
) -> Account {
    let mut account = index.search_account(options, queries);
    for (what, bytes) in &mut account.components {
        if what == "block cache" {
            *bytes = cache_budget;
        }
    }
    extra.iter().for_each(|(what, bytes)| account.add(what, *bytes));
    account
}

/// How many of `queries` can be handled at a time within `budget`.
///
/// # Errors
/// `Kind::Budget` when not even a few fit.
pub(crate) fn part(
    index: &Index,
    options: &SearchOptions,
    queries: usize,
    per_query_extra: u64,
    cache_budget: u64,
    extra: &[(&str, u64)],
    budget: Option<u64>,
) -> Result<usize> {
    let total = |count: usize| {
        let mut account = of_search(index, options, count, cache_budget, extra);
        account.add("parts of the query file", count as u64 * per_query_extra);
        account
    };
    let least = queries.min(FEWEST_QUERIES);
    let Some(budget) = budget else {
        // Without a budget: all at once, unless that is out of proportion.
        const PART_BYTES: u64 = 512 << 20;
        let each = total(1).total() - total(0).total();
        return Ok(queries.min((PART_BYTES / each.max(1)) as usize).max(least));
    };
    total(least).check(Some(budget), "search this index so")?;
    let each = total(1).total() - total(0).total();
    let room = (budget - total(0).total()) / each.max(1);
    Ok(queries.min(room as usize).max(least))
}

/// The account as JSON: bytes by component, and their sum.
pub(crate) fn json(account: &Account) -> serde_json::Value {
    let mut all = serde_json::Map::new();
    for (what, bytes) in &account.components {
        all.insert(what.replace(' ', "_") + "_bytes", (*bytes).into());
    }
    all.insert("total_bytes".into(), account.total().into());
    all.into()
}

/// The account in words: `codes 3.1 MiB, …, together 12.0 MiB`.
pub(crate) fn words(account: &Account) -> String {
    let parts: Vec<String> = account
        .components
        .iter()
        .filter(|c| c.1 > 0)
        .map(|(what, bytes)| format!("{what} {}", size(*bytes)))
        .collect();
    format!("{}; together {}", parts.join(", "), size(account.total()))
}
