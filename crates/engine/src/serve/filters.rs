//! Filters of the queries of a request. The server that is asked makes them of all rows, whatever part it holds, and
//! they go to every other server once, with the vector of their query.

use std::sync::Arc;

use stratann_core::peer::message::Refused;
use stratann_core::peer::{FILTER_BYTES_MAX, FILTERS_BYTES};
use stratann_core::query::Params;
use stratann_core::query::wire::FILTERS_VERSION;
use stratann_core::sieve::Sieve;
use stratann_storage::budget::size;
use stratann_storage::ledger::{Part, Reservation};
use stratann_storage::{Error, Quiet, Result};

use super::lock;
use super::state::ServerState;
use super::{ServedIndex, Server};
use crate::index::Index;
use crate::search::{Filter, FilterReport, Naming, SearchOptions};

/// The filters of a request: one for all of its queries, or one for each.
#[derive(Debug)]
pub struct RequestFilters {
    all: Vec<Filter>,
    is_each: bool,
}

impl RequestFilters {
    /// Memory, bytes.
    pub fn bytes(&self) -> u64 {
        self.all.iter().map(Filter::bytes).sum()
    }

    /// What a reply says of each.
    pub fn reports(&self) -> impl Iterator<Item = FilterReport> {
        self.all.iter().map(Filter::report)
    }

    /// Keeps this memory until the last query of the request has ended.
    pub fn keep(self, memory: Vec<Reservation>) -> KeptFilters {
        KeptFilters(Arc::new((self, memory)))
    }
}

/// Filters with their memory.
#[derive(Clone, Debug)]
pub struct KeptFilters(Arc<(RequestFilters, Vec<Reservation>)>);

impl KeptFilters {
    /// The filter of a query of the request.
    pub fn of(&self, query: usize) -> QueryFilter {
        let at = if self.0.0.is_each { query } else { 0 };
        QueryFilter { all: self.clone(), at }
    }
}

/// The filter of a query.
#[derive(Clone, Debug)]
pub struct QueryFilter {
    all: KeptFilters,
    at: usize,
}

impl QueryFilter {
    fn filter(&self) -> Option<&Filter> {
        self.all.0.0.all.get(self.at)
    }

    /// The rows that the query may return; `None` without a filter.
    pub(super) fn sieve(&self) -> Option<Arc<Sieve>> {
        self.filter()?.sieve().cloned()
    }

    /// The parameters of its plan.
    pub(super) fn params(&self) -> Option<Params> {
        self.filter().map(Filter::params)
    }

    /// Bytes that the query takes beyond what the parameters tell.
    pub(super) fn more_bytes(&self) -> u64 {
        self.filter().map_or(0, Filter::more_bytes)
    }
}

impl Server {
    /// Refuses filters where queries take none.
    ///
    /// # Errors
    /// A server of a cluster of parts, or beside one of an earlier version; a kind without filters, or without ids of
    /// rows.
    pub fn check_filters(&self) -> Result<()> {
        let index = &self.state.index;
        if index.has_parts() {
            return Err(Error::bad_input(
                "servers that each have an index of their own take no filter yet; leave only and without out, or \
                 partition one index over them",
            ));
        }
        if self.state.lock_peer().states_version() < FILTERS_VERSION {
            return Err(Error::bad_input(
                "a server of an earlier version is among the others, and it knows no filters; start it again as this \
                 version, or leave only and without out",
            ));
        }
        if index.index().is_in_memory_nodes() {
            return Err(Error::bad_input(
                "a server of an index in memory nodes takes no filter yet; leave only and without out, or search with \
                 `stratann search --memory`",
            ));
        }
        index.index().check_filters()
    }

    /// Whether [`Server::filters`] finds the ids of all rows in memory.
    pub fn has_row_ids(&self) -> bool {
        self.state.index.index().known_row_ids().is_some()
    }

    /// Most memory that filters of so many ids each take while they are made, bytes.
    pub fn filters_bytes_max(&self, naming: Naming, ids: impl IntoIterator<Item = usize>) -> u64 {
        Index::filters_bytes_max(self.manifest(), naming, ids)
    }

    /// Makes the filters of a request: one of each list of ids. Their memory has been reserved. The ids of all rows are
    /// read when the first filter comes.
    ///
    /// # Errors
    /// As [`Server::check_filters`]; a budget without room for the ids of all rows; rows that cannot be read; bad
    /// options.
    pub fn filters<'a>(
        &self,
        (ids, naming): (impl IntoIterator<Item = &'a [u64]>, Naming),
        is_each: bool,
        options: &SearchOptions,
    ) -> Result<RequestFilters> {
        self.check_filters()?;
        self.state.options.caps.check(options)?;
        self.state.read_row_ids()?;
        let index = self.state.index.index();
        let filter = |ids: &[u64]| index.filter(ids, naming, options, &Quiet);
        let all = ids.into_iter().map(filter).collect::<Result<Vec<_>>>()?;
        let sieves = all.iter().filter_map(Filter::sieve).map(|sieve| sieve.encoded_bytes());
        let longest = if self.state.index.servers() > 1 { sieves.max().unwrap_or(0) } else { 0 };
        if longest > FILTER_BYTES_MAX {
            return Err(Error::bad_input(format!(
                "a filter takes {}, and goes to other servers up to {}; serve the whole index on one server, or leave \
                 only and without out",
                size(longest as u64),
                size(FILTER_BYTES_MAX as u64)
            )));
        }
        Ok(RequestFilters { all, is_each })
    }
}

impl ServedIndex {
    /// Whether each of several servers has an index of its own.
    fn has_parts(&self) -> bool {
        self.servers() > 1 && self.index().manifest().spread.is_none()
    }
}

/// Bytes that the filters of queries take on a server of so many rows: for some tens of them as they came, and as many
/// as they are asked.
pub(super) fn filters_bytes(rows: u64) -> u64 {
    const QUERIES: u64 = 64;
    FILTERS_BYTES.min(QUERIES * (rows / 8 + (1 << 10)))
}

impl ServerState {
    /// The rows that a query of another server may return; `None` for all.
    ///
    /// # Errors
    /// Bytes that are no filter of this index.
    pub(super) fn filter_of_others(&self, bytes: &[u8]) -> std::result::Result<Option<Arc<Sieve>>, Refused> {
        let rows = self.index.index().manifest().rows as u32;
        let read = || Sieve::decode(rows, bytes).map(|sieve| Some(Arc::new(sieve)));
        if bytes.is_empty() { Ok(None) } else { read() }
    }

    /// Reads the ids of all rows, and sets their memory aside, where that has not been done.
    ///
    /// # Errors
    /// As [`Server::filters`].
    fn read_row_ids(&self) -> Result<()> {
        let mut own = lock(&self.row_ids);
        if own.is_some() {
            return Ok(());
        }
        let index = self.index.index();
        let bytes = Index::ids_bytes_max(index.manifest());
        let guarantee = self.ledger.guarantee(Part::Fixed, bytes).map_err(|_| self.no_room_for_ids(bytes));
        let mut guarantee = guarantee?;
        guarantee.shrink_to(index.row_ids(&Quiet)?.bytes());
        *own = Some(guarantee);
        Ok(())
    }

    /// The error of a ledger without room for the ids of all rows: now, or ever.
    fn no_room_for_ids(&self, bytes: u64) -> Error {
        let set_aside: u64 = self.ledger.parts().iter().map(|part| part.guaranteed_bytes).sum();
        let left = self.ledger.limit().unwrap_or(u64::MAX).saturating_sub(set_aside);
        let what = format!("the first filter reads the ids of all rows, which takes {}", size(bytes));
        match bytes > left {
            true => Error::bad_input(format!(
                "{what}, and the RAM budget leaves {}; start the server with a larger --ram-budget",
                size(left)
            )),
            false => {
                Error::budget(format!("{what}, and other requests have that memory now; ask again later"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use stratann_storage::ledger::Ledger;

    use super::*;

    #[test]
    fn memory_is_kept_until_the_last_query_has_ended() {
        let ledger = Ledger::new(None);
        let memory = ledger.reserve(Part::LargeRequests, 1000).into_iter().collect();
        let kept = RequestFilters { all: Vec::new(), is_each: true }.keep(memory);
        let (first, last) = (kept.of(0), kept.of(1));
        drop((kept, first));
        assert_eq!(ledger.committed(), 1000);
        drop(last);
        assert_eq!(ledger.committed(), 0);
    }
}
