//! The filters of a request, within the memory of the front.

use stratann_engine::serve::{KeptFilters, Server};
use stratann_storage::budget::size;
use stratann_storage::{Error, ErrorKind};

use super::FrontState;
use crate::limits::RequestMemory;
use crate::named_ids::NamedIds;
use crate::request::Request;
use crate::shared::{LONG_BYTES, Rejection};
use crate::wire::{FilterReport, FilterReports};

/// Filters, and what a reply says of them.
pub(super) struct MadeFilters {
    pub(super) kept: KeptFilters,
    pub(super) reports: FilterReports,
}

/// Makes the filters of a request; `None` of one without.
pub(super) async fn filters(
    shared: &FrontState,
    server: &Server,
    (request, reply_bytes): (&Request, u64),
) -> Result<Option<MadeFilters>, Rejection> {
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
    Ok(Some(MadeFilters { kept: made.keep(memory.into_reservations()), reports }))
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

fn rejection(error: &Error) -> Rejection {
    match error.kind {
        ErrorKind::BadInput => Rejection::bad(error.message.clone()),
        _ => Rejection::unavailable(error.message.clone()),
    }
}
