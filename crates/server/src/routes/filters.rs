//! The filters of a request, within the memory of the front.

use stratann_engine::serve::{KeptFilters, RequestFilters, Server};
use stratann_node::points::Points;
use stratann_storage::budget::size;
use stratann_storage::{Error, ErrorKind};

use super::FrontState;
use crate::collections::filters::PointFilter;
use crate::limits::RequestMemory;
use crate::named_ids::NamedIds;
use crate::problem::Code;
use crate::request::Request;
use crate::shared::{LONG_BYTES, Rejection};
use crate::wire::{FilterReport, FilterReports};

/// Bytes of the rows of a filter beside a bit for each.
const ROWS_FIXED_BYTES: u64 = 64 << 10;

/// Filters, and what a reply says of them.
pub(super) struct MadeFilters {
    pub(super) kept: KeptFilters,
    pub(super) reports: FilterReports,
    /// Of a filter over payloads: conditions for which payloads were read.
    pub(super) unindexed: Option<Vec<String>>,
}

/// Makes the filters of a request; `None` of one without.
pub(super) async fn filters(
    shared: &FrontState,
    (server, points): (&Server, Option<&Points>),
    (request, reply_bytes): (&Request, u64),
) -> Result<Option<MadeFilters>, Rejection> {
    if let (Some(points), Some(filter)) = (points, &request.filter) {
        return over_payloads(shared, (server, points), filter, (request, reply_bytes)).await.map(Some);
    }
    let Some(named) = &request.named else { return Ok(None) };
    server.check_filters().map_err(|e| rejection(&e))?;
    let lengths = named.lists.iter().map(<[u64]>::len);
    let most = server.filters_bytes_max(named.naming, lengths);
    let mut memory = RequestMemory::new(&shared.ledger);
    if !memory.grow(most) {
        return Err(no_room(shared, (most, request.bytes() + reply_bytes)));
    }
    // The ids of all rows are read once, which takes long.
    let bytes = if server.has_row_ids() { named.bytes() as usize } else { LONG_BYTES + 1 };
    let made = shared
        .work(bytes, || server.filters((named.lists.iter(), named.naming), named.is_each, &request.options));
    let made = made.await.map_err(|e| rejection(&e))?;
    memory.shrink_to(made.bytes());
    let reports = reports(named, made.reports());
    Ok(Some(MadeFilters { kept: made.keep(memory.into_reservations()), reports, unindexed: None }))
}

/// Makes the filter of all queries of a request from one over payloads.
async fn over_payloads(
    shared: &FrontState,
    (server, points): (&Server, &Points),
    filter: &PointFilter,
    (request, reply_bytes): (&Request, u64),
) -> Result<MadeFilters, Rejection> {
    if filter.indexed_only {
        points.check_indexed(&filter.predicate).map_err(|e| rejection(&e))?;
    }
    // The rows that match, and those of them that are not deleted.
    let most = 2 * (u64::from(points.rows()) / 8 + ROWS_FIXED_BYTES);
    let mut memory = RequestMemory::new(&shared.ledger);
    if !memory.grow(most) {
        return Err(no_room(shared, (most, request.bytes() + reply_bytes)));
    }
    let made = shared.work(LONG_BYTES + 1, || {
        let matching = points.matching(&filter.predicate)?;
        let unindexed = matching.unindexed.iter().map(ToString::to_string).collect();
        Ok::<_, Error>((server.filter_of_rows(&matching.rows, &request.options)?, unindexed))
    });
    let (made, unindexed): (RequestFilters, Vec<String>) = made.await.map_err(|e| rejection(&e))?;
    memory.shrink_to(made.bytes());
    let first = made.reports().next();
    let reports = first.map_or(FilterReports::Each(Vec::new()), FilterReports::Shared);
    let kept = made.keep(memory.into_reservations());
    Ok(MadeFilters { kept, reports, unindexed: Some(unindexed) })
}

fn reports(named: &NamedIds, mut all: impl Iterator<Item = FilterReport>) -> FilterReports {
    match (named.is_each, all.next()) {
        (false, Some(shared)) => FilterReports::Shared(shared),
        (_, first) => FilterReports::Each(first.into_iter().chain(all).collect()),
    }
}

/// The refusal of filters that the front has no memory for: now, or ever.
fn no_room(shared: &FrontState, (bytes, taken): (u64, u64)) -> Rejection {
    let left = (shared.limits.large_bytes as u64).saturating_sub(taken);
    let takes = format!("the filters of this request take up to {}", size(bytes));
    match bytes > left {
        true => Rejection::bad(format!(
            "{takes}, and this server has {} for them beside its queries, ids and answers; send fewer in one \
             request, or start the server with a larger --http-memory",
            size(left)
        )),
        false => Rejection::unavailable(format!(
            "{takes}, and other requests have the memory for them now; ask again later"
        )),
    }
}

pub(super) fn rejection(error: &Error) -> Rejection {
    match error.kind {
        ErrorKind::BadInput => Rejection::bad(error.message.clone()),
        ErrorKind::Corrupt => Rejection::of(Code::Corrupt, error.message.clone()),
        ErrorKind::Io => Rejection::of(Code::Io, error.message.clone()),
        _ => Rejection::unavailable(error.message.clone()),
    }
}
