//! Ground truth that a user names.

use std::path::Path;

use stratann_engine::dataset::GroundTruth;
use stratann_engine::groundtruth::{CheckedTruth, Owner};
use stratann_engine::index::Index;
use stratann_engine::search::FilterReport;
use stratann_storage::{Error, Progress, Result};

use crate::filter::{NamedIds, OwnFilters};
use crate::queries::Queries;

/// Reads ground truth for all of `queries` and `k` results each, or as many as there are `matches` among the `rows` of
/// the index. What results must agree with is compared when they come.
///
/// # Errors
/// `BadInput` for a file of other queries, for too few neighbours, and for what no ground truth is.
pub(crate) fn read(
    path: &Path,
    queries: &Queries,
    k: usize,
    matches: u64,
    rows: u64,
) -> Result<CheckedTruth> {
    let truth = GroundTruth::read(path)?;
    let (name, have, want) = (path.display(), truth.queries(), queries.count());
    if have != want {
        return Err(Error::bad_input(format!(
            "{name} is for {have} queries, {want} are searched; compute it again"
        )));
    }
    let k = k.min(usize::try_from(matches).unwrap_or(usize::MAX));
    if truth.k < k {
        return Err(Error::bad_input(format!(
            "{name} has {} neighbours per query, -k {k} needs {k}; compute it again with -k {k}",
            truth.k
        )));
    }
    CheckedTruth::new(truth, path, owner(queries, rows))
}

/// Refuses ground truth with fewer neighbours of a query than k, or than rows that match its filter, and with others
/// among them.
pub(crate) fn check_matches(
    truth: &CheckedTruth,
    k: usize,
    (index, filters): (&Index, &OwnFilters),
) -> Result<()> {
    let again = again(filters.is_each());
    let truth = truth.truth();
    for query in 0..truth.queries() {
        let Some(filter) = filters.of_query(query) else { continue };
        // Where it is not known how many rows match, ground truth tells that.
        let need = if filter.is_exact() { k.min(filter.matches() as usize) } else { 0 };
        let have = truth.count_of(query);
        if have < need {
            return Err(Error::bad_input(format!(
                "the ground truth has {have} neighbours of query {query}, and {need} of the rows that match are \
                 wanted; {again}"
            )));
        }
        if let Some(id) = truth.neighbours_of(query).iter().find(|&&id| !index.matches(filter, id.into())) {
            return Err(Error::bad_input(format!(
                "the ground truth of query {query} has row {id}, which does not match the filter; {again}"
            )));
        }
    }
    Ok(())
}

/// Refuses ground truth with rows that filters leave out, where the rows of these are known to others: to servers, or
/// to several indexes.
pub(crate) fn check_named(truth: &CheckedTruth, named: &NamedIds) -> Result<()> {
    let (truth, again) = (truth.truth(), again(named.is_each()));
    let neighbours = (0..truth.queries()).map(|query| truth.neighbours_of(query));
    match named.first_left_out(neighbours) {
        None => Ok(()),
        Some((query, id)) => Err(Error::bad_input(format!(
            "the ground truth of query {query} has row {id}, which does not match the filter; {again}"
        ))),
    }
}

/// Refuses ground truth with fewer neighbours of a query than k, or than its filter has matches by what was said of it.
pub(crate) fn check_counts(
    truth: &CheckedTruth,
    k: usize,
    (reports, is_each): (&[FilterReport], bool),
) -> Result<()> {
    let (truth, again) = (truth.truth(), again(is_each));
    for query in 0..truth.queries() {
        let Some(filter) = reports.get(if is_each { query } else { 0 }) else { continue };
        let (have, need) = (truth.count_of(query), k.min(filter.matches as usize));
        if have < need && filter.matches_exact {
            return Err(Error::bad_input(format!(
                "the ground truth has {have} neighbours of query {query}, and {need} of the rows that match are \
                 wanted; {again}"
            )));
        }
    }
    Ok(())
}

fn again(is_each: bool) -> &'static str {
    match is_each {
        false => "compute it again with the same filter: `stratann groundtruth --only`",
        true => "compute it again with the same filters: `stratann groundtruth --only-per-query`",
    }
}

/// Refuses ground truth with rows that the index has deleted.
pub(crate) fn check_deleted(truth: &GroundTruth, index: &Index, progress: &dyn Progress) -> Result<()> {
    match index.first_deleted(truth.ids.iter().map(|&id| id.into()), progress)? {
        None => Ok(()),
        Some(id) => Err(Error::bad_input(format!(
            "the ground truth has row {id}, which is deleted; compute it again without the deleted rows: \
             `stratann groundtruth --without`"
        ))),
    }
}

/// Properties that ground truth of an index of `rows` vectors must agree with.
fn owner(queries: &Queries, rows: u64) -> Owner {
    let wanted = queries.wanted();
    Owner { metric: wanted.metric, dtype: wanted.dtype, rows, dim: wanted.dim }
}
