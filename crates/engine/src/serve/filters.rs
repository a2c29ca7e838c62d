//! Filters of the queries of a request. The server that is asked makes them of all rows, whatever part it holds, and
//! they go to every other server once, with the vector of their query.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::Serialize;

use stratann_core::peer::message::Refused;
use stratann_core::peer::{FILTER_BYTES_MAX, FILTERS_BYTES, KeyedFilter};
use stratann_core::query::wire::{FILTERS_VERSION, MASKS_VERSION};
use stratann_core::query::{Params, QueryState};
use stratann_core::sieve::Sieve;
use stratann_storage::budget::size;
use stratann_storage::digest::digest;
use stratann_storage::ledger::{Part, Reservation};
use stratann_storage::{Error, Quiet, Result};

use super::known_filters::{ArrivedFilter, ID_BYTES_MAX, KnownFilter, NamedIds};
use super::lock;
use super::state::ServerState;
use super::{ServedIndex, Server};
use crate::exec::Snapshot;
use crate::index::Index;
use crate::search::{Effort, Filter, FilterReport, Naming, SearchOptions};

/// The filters of a request: one for all of its queries, or one for each.
#[derive(Debug)]
pub struct RequestFilters {
    all: Vec<RequestFilter>,
    is_each: bool,
}

/// A filter as this server uses it, and as others get it; nothing for a server that is alone.
#[derive(Debug)]
struct RequestFilter {
    own: Filter,
    of_others: Option<KeyedFilter>,
    recall: Option<f64>,
    report: FilterReport,
}

impl RequestFilters {
    /// Memory, bytes.
    pub fn bytes(&self) -> u64 {
        self.all.iter().map(|filter| filter.own.bytes() + filter.bytes_of_others()).sum()
    }

    /// What a reply says of each.
    pub fn reports(&self) -> impl Iterator<Item = FilterReport> {
        self.all.iter().map(|filter| filter.report)
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

impl RequestFilter {
    fn bytes_of_others(&self) -> u64 {
        self.of_others.as_ref().map_or(0, |(_, bytes)| bytes.len() as u64)
    }
}

impl QueryFilter {
    fn filter(&self) -> Option<&RequestFilter> {
        self.all.0.0.all.get(self.at)
    }

    /// The rows that a query which begins or goes on here may return; `None` where they have no numbers. Of a cluster
    /// of indexes it is planned for them first.
    pub(super) fn begin(&self, server: &ServerState, state: &mut QueryState) -> Option<Arc<Sieve>> {
        let filter = self.filter()?;
        let (sieve, recall) = (filter.own.sieve()?.clone(), filter.recall);
        if server.index.has_parts() {
            server.plan_here(&KnownFilter { rows: sieve.clone(), recall }, state);
        }
        Some(sieve)
    }

    /// The filter as other servers get it, with its digest.
    pub(super) fn of_others(&self) -> Option<KeyedFilter> {
        self.filter()?.of_others.clone()
    }

    /// What the query sees, of what its batch does.
    pub(super) fn seen(&self, batch: Arc<dyn Snapshot>) -> Arc<dyn Snapshot> {
        match self.filter() {
            Some(filter) => filter.own.seen(batch),
            None => batch,
        }
    }

    /// The parameters of its plan.
    pub(super) fn params(&self) -> Option<Params> {
        self.filter().map(|filter| filter.own.params())
    }

    /// Bytes that the query takes beyond what the parameters tell.
    pub(super) fn more_bytes(&self) -> u64 {
        self.filter().map_or(0, |filter| filter.own.more_bytes())
    }
}

impl Server {
    /// Refuses filters where queries take none.
    ///
    /// # Errors
    /// A server beside one of an earlier version; a kind without filters, or without ids of rows.
    pub fn check_filters(&self) -> Result<()> {
        let index = &self.state.index;
        // Jobs of a kind that is sliced carry what they need of the filter, and several indexes get its ids.
        let is_newer = index.has_parts() || index.index().manifest().facts().is_sliced;
        let needed = if is_newer { MASKS_VERSION } else { FILTERS_VERSION };
        if self.state.lock_peer().states_version() < needed {
            return Err(Error::bad_input(
                "a server of an earlier version is among the others, and it knows no such filters; start it again as \
                 this version, or leave only and without out",
            ));
        }
        index.index().check_filters()
    }

    /// Whether [`Server::filters`] needs no more ids of rows in memory.
    pub fn has_row_ids(&self) -> bool {
        let index = self.state.index.index();
        index.is_in_memory_nodes() || index.known_row_ids().is_some()
    }

    /// Most memory that filters of so many ids each take while they are made, bytes.
    pub fn filters_bytes_max(&self, naming: Naming, ids: impl IntoIterator<Item = usize>) -> u64 {
        let index = &self.state.index;
        let ids: Vec<usize> = ids.into_iter().collect();
        if index.index().is_in_memory_nodes() {
            return ids.into_iter().map(|ids| Index::id_sieve_bytes_max(ids) + FILTER_FIXED_BYTES).sum();
        }
        // They are there again as other servers get them.
        let of_others = match (index.servers() > 1, index.has_parts()) {
            (false, _) => 0,
            (true, false) => Index::filters_bytes_max(self.manifest(), naming, ids.iter().copied()),
            (true, true) => ids.iter().map(|&ids| FILTER_FIXED_BYTES + ids as u64 * (8 + ID_BYTES_MAX)).sum(),
        };
        of_others + Index::filters_bytes_max(self.manifest(), naming, ids)
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
        if !self.state.index.index().is_in_memory_nodes() {
            self.state.read_row_ids()?;
        }
        let filter = |ids: &[u64]| self.filter(ids, naming, options);
        let all = ids.into_iter().map(filter).collect::<Result<Vec<_>>>()?;
        let longest = all.iter().map(RequestFilter::bytes_of_others).max().unwrap_or(0);
        let most = (FILTER_BYTES_MAX as u64).min(self.state.filter_bytes_max() - FILTER_FIXED_BYTES);
        if longest > most {
            return Err(Error::bad_input(format!(
                "a filter takes {}, and goes to other servers up to {}; serve the whole index on one server, or leave \
                 only and without out",
                size(longest),
                size(most)
            )));
        }
        Ok(RequestFilters { all, is_each })
    }

    /// Makes the filter of a request of rows by their numbers in the index.
    ///
    /// # Errors
    /// A server of a part of an index; rows of another index; bad options.
    pub fn filter_of_rows(&self, rows: &Sieve, options: &SearchOptions) -> Result<RequestFilters> {
        if self.state.index.servers() > 1 {
            return Err(Error::bad_input(
                "filters over payloads are for a server of a whole index; serve it on one server",
            ));
        }
        self.check_filters()?;
        self.state.options.caps.check(options)?;
        let own = self.state.index.index().filter_of_rows(rows, options)?;
        let (report, recall) = (own.report(), recall_of(options));
        let filter = RequestFilter { own, of_others: None, recall, report };
        Ok(RequestFilters { all: vec![filter], is_each: false })
    }

    fn filter(&self, ids: &[u64], naming: Naming, options: &SearchOptions) -> Result<RequestFilter> {
        let index = &self.state.index;
        let own = index.index().filter(ids, naming, options, &Quiet)?;
        let mut report = own.report();
        let mut of_others = Vec::new();
        let recall = recall_of(options);
        if index.has_parts() {
            let mut sorted = ids.to_vec();
            sorted.sort_unstable();
            sorted.dedup();
            let count = sorted.len() as u64;
            of_others = NamedIds { naming, recall, ids: sorted }.encode();
            // What the other servers have is not known: as many match as are named, or as are left.
            let matches = if naming == Naming::Only { count } else { index.rows().saturating_sub(count) };
            report.matches = u32::try_from(matches).unwrap_or(u32::MAX);
            (report.matches_exact, report.unknown_ids) = (false, None);
        } else if index.servers() > 1 && !index.index().manifest().facts().is_sliced {
            own.sieve().into_iter().for_each(|sieve| sieve.encode(&mut of_others));
        }
        let of_others = (!of_others.is_empty()).then(|| (digest(&of_others), Arc::from(of_others)));
        Ok(RequestFilter { own, of_others, recall, report })
    }
}

/// The recall that is asked for; `None` where other parameters are given.
fn recall_of(options: &SearchOptions) -> Option<f64> {
    match options.effort {
        Effort::Recall(recall) => Some(recall),
        _ => None,
    }
}

/// What became of the filters of queries between servers.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FilterCounts {
    /// Made of bytes of other servers.
    pub made: u64,
    /// Had from an earlier query that brought the same.
    pub reused: u64,
    /// Sent to other servers.
    pub sent: u64,
    /// Keys that were sent in their place, to servers that have the filter.
    pub keys_sent: u64,
}

impl FilterCounts {
    pub(super) fn of(state: &ServerState) -> FilterCounts {
        let (sent, keys_sent) = state.lock_peer().filters_sent();
        FilterCounts {
            made: state.counters.filters_made.load(Ordering::Relaxed),
            reused: state.counters.filters_reused.load(Ordering::Relaxed),
            sent,
            keys_sent,
        }
    }
}

/// Bytes of a filter beside its rows and ids.
const FILTER_FIXED_BYTES: u64 = 256;

impl ServedIndex {
    /// Whether each of several servers has an index of its own.
    pub(super) fn has_parts(&self) -> bool {
        self.parts().count() > 1
    }
}

/// Bytes that the filters of queries take on a server of this index: for some tens of them as they came, and as many as
/// they are asked.
pub(super) fn filters_bytes(index: &ServedIndex) -> u64 {
    const QUERIES: u64 = 64;
    let each = if index.has_parts() { index.rows() * ID_BYTES_MAX } else { index.rows() / 8 };
    FILTERS_BYTES.min(QUERIES * (each + (1 << 10)))
}

impl ServerState {
    /// Most bytes of the filters of queries, as they came.
    pub(super) fn filter_bytes_max(&self) -> u64 {
        filters_bytes(&self.index)
    }

    /// The rows that a query of another server may return, which begins or goes on here; `None` for all.
    ///
    /// # Errors
    /// Bytes that are no filter of this index.
    pub(super) fn filter_of_others(
        &self,
        arrived: ArrivedFilter,
        state: &mut QueryState,
    ) -> std::result::Result<Option<Arc<Sieve>>, Refused> {
        let filter = match arrived {
            ArrivedFilter::None => return Ok(None),
            ArrivedFilter::Known(known) => {
                self.counters.filters_reused.fetch_add(1, Ordering::Relaxed);
                known
            }
            ArrivedFilter::Bytes(bytes, key) => self.filter_of_bytes(&bytes, key)?,
        };
        if self.index.has_parts() {
            self.plan_here(&filter, state);
        }
        Ok(Some(filter.rows.clone()))
    }

    /// Reads the ids of all rows, and sets their memory aside, where that has not been done.
    ///
    /// # Errors
    /// As [`Server::filters`].
    pub(super) fn read_row_ids(&self) -> Result<()> {
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
