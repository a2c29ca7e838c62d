//! Limits of the HTTP front, and the memory of one request.

use std::sync::Arc;
use std::time::Duration;

use stratann_core::peer::THREAD_POOL_BYTES;
use stratann_storage::Result;
use stratann_storage::budget::THREAD_BYTES;
use stratann_storage::ledger::{Guarantee, Ledger, Part, Reservation};

/// Bytes of a connection: its state, and buffers for reads and writes.
pub(crate) const CONNECTION_BYTES: usize = 32 << 10;
/// Connections beyond the limit, which get health and status alone.
pub(crate) const RESERVED_CONNECTIONS: usize = 8;
/// Bytes of an answer for each result: id and distance, as numbers and as JSON.
const RESULT_BYTES: usize = 56;
/// Bytes of an answer without its results: counters as JSON, and the waiting request.
const ANSWER_BYTES: usize = 1536;
/// Bytes of a filter in a reply, as a value and as JSON.
const FILTER_BYTES: usize = 512;
/// Memory of the front without a RAM budget, bytes.
const USUAL_BYTES: u64 = 64 << 20;
/// Smallest memory of the front, bytes.
const LEAST_BYTES: u64 = 2 << 20;
/// A request is large when its body and answers take more.
const SMALL_REQUEST_BYTES: u64 = 64 << 10;
/// A body as JSON takes three times its length while it is read.
const BODY_SHARE: usize = 3;

/// Limits of the front. Half of its memory is for connections, an eighth for small requests, the rest for large ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time. One more takes the place of the one that is idle longest.
    pub connections: usize,
    /// Connections from one address at a time.
    pub connections_per_address: usize,
    /// Bytes set aside for bodies and answers of small requests.
    pub small_bytes: usize,
    /// Bytes set aside for bodies and answers of large requests.
    pub large_bytes: usize,
    /// Longest body of a request, bytes.
    pub body_bytes: usize,
    /// Queries of one request.
    pub queries: usize,
    /// Longest timeout of a request, milliseconds.
    pub timeout_ms: u64,
    /// Time for the header of a request, from its first byte or from the opening of the connection.
    pub header_time: Duration,
    /// Time without a request after which a connection is closed.
    pub idle_time: Duration,
    /// Time before the rates below count, and between two looks at them.
    pub patience: Duration,
    /// Least rate at which a client sends a body and reads an answer, bytes a second.
    pub least_rate: u64,
}

impl Limits {
    /// Limits for a process with a budget of `ram_budget` bytes: an eighth of it, from 2 to 64 MiB.
    pub fn within(ram_budget: Option<u64>) -> Limits {
        let bytes = ram_budget.map_or(USUAL_BYTES, |b| (b / 8).clamp(LEAST_BYTES, USUAL_BYTES)) as usize;
        let connections = bytes / 2 / CONNECTION_BYTES - RESERVED_CONNECTIONS;
        Limits {
            connections,
            connections_per_address: connections / 2,
            small_bytes: bytes / 8,
            large_bytes: bytes * 3 / 8,
            body_bytes: bytes * 3 / 8 / BODY_SHARE,
            queries: 1024,
            timeout_ms: 60_000,
            header_time: Duration::from_secs(5),
            idle_time: Duration::from_secs(60),
            patience: Duration::from_secs(5),
            least_rate: 4 << 10,
        }
    }

    /// Sets the bytes for large requests. A body has up to a third of them.
    pub fn set_large_bytes(&mut self, bytes: usize) {
        (self.large_bytes, self.body_bytes) = (bytes, bytes / BODY_SHARE);
    }

    /// All memory of a front with these limits and `threads` threads, bytes.
    pub fn bytes(&self, threads: usize) -> u64 {
        let threads = threads as u64 * (THREAD_BYTES + THREAD_POOL_BYTES as u64);
        self.connection_bytes() + (self.small_bytes + self.large_bytes) as u64 + threads
    }

    fn connection_bytes(&self) -> u64 {
        ((self.connections + RESERVED_CONNECTIONS) * CONNECTION_BYTES) as u64
    }

    /// Bytes of the answers to `queries` queries.
    fn answer_bytes(queries: usize, k: usize) -> usize {
        queries.saturating_mul(k.saturating_mul(RESULT_BYTES).saturating_add(ANSWER_BYTES))
    }

    /// Bytes of the answers to `queries` queries, and of what is said of `filters` filters.
    pub(crate) fn reply_bytes(queries: usize, k: usize, filters: usize) -> usize {
        Limits::answer_bytes(queries, k).saturating_add(filters.saturating_mul(FILTER_BYTES))
    }

    /// Sets the memory of the front aside. Without a RAM budget requests get no more than that.
    ///
    /// # Errors
    /// A ledger without room for it.
    pub(crate) fn set_aside(&self, ledger: &Arc<Ledger>, threads: usize) -> Result<[Guarantee; 4]> {
        let (small, large) = (self.small_bytes as u64, self.large_bytes as u64);
        if ledger.limit().is_none() {
            ledger.set_cap(Part::Requests, small);
            ledger.set_cap(Part::LargeRequests, large);
        }
        Ok([
            ledger.guarantee(Part::Connections, self.connection_bytes())?,
            ledger.guarantee(Part::Requests, small)?,
            ledger.guarantee(Part::LargeRequests, large)?,
            ledger.guarantee(Part::Fixed, self.bytes(threads) - self.connection_bytes() - small - large)?,
        ])
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits::within(None)
    }
}

/// The memory of one request: its body, its queries, its answers. A large request takes nothing from small ones.
pub(crate) struct RequestMemory {
    ledger: Arc<Ledger>,
    small: Option<Reservation>,
    large: Option<Reservation>,
}

impl RequestMemory {
    pub(crate) fn new(ledger: &Arc<Ledger>) -> RequestMemory {
        RequestMemory { ledger: Arc::clone(ledger), small: None, large: None }
    }

    pub(crate) fn bytes(&self) -> u64 {
        [&self.small, &self.large].into_iter().flatten().map(Reservation::bytes).sum()
    }

    /// Reserves more. Returns false when other requests have it.
    pub(crate) fn grow(&mut self, bytes: u64) -> bool {
        let is_small = self.bytes() + bytes <= SMALL_REQUEST_BYTES;
        let (part, own) = match is_small {
            true => (Part::Requests, &mut self.small),
            false => (Part::LargeRequests, &mut self.large),
        };
        if let Some(own) = own {
            return own.grow(bytes);
        }
        *own = self.ledger.reserve(part, bytes);
        own.is_some()
    }

    /// What it has reserved.
    pub(crate) fn into_reservations(self) -> Vec<Reservation> {
        [self.small, self.large].into_iter().flatten().collect()
    }

    /// Releases what exceeds `bytes`, first what a large request took.
    pub(crate) fn shrink_to(&mut self, bytes: u64) {
        let small = self.small.as_ref().map_or(0, Reservation::bytes);
        if let Some(large) = &mut self.large {
            large.shrink_to(bytes.saturating_sub(small));
        }
        if let Some(small) = &mut self.small {
            small.shrink_to(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_front_takes_no_more_than_an_eighth() {
        assert_eq!(Limits::default(), Limits::within(Some(1 << 40)));
        assert_eq!(Limits::default().connections, 1016);
        for budget in [64 << 20, 256 << 20, 512 << 20] {
            let limits = Limits::within(Some(budget));
            assert_eq!(limits.bytes(0), budget / 8);
            assert_eq!(limits.body_bytes as u64, budget / 64);
        }
        assert_eq!(Limits::within(Some(1)).bytes(0), LEAST_BYTES);
    }

    #[test]
    fn large_requests_take_nothing_from_small_ones() {
        let ledger = Ledger::new(None);
        let limits = Limits { small_bytes: 100 << 10, large_bytes: 1 << 20, ..Limits::default() };
        let _aside = limits.set_aside(&ledger, 1).unwrap();
        let mut large = RequestMemory::new(&ledger);
        assert!(large.grow(10) && large.grow(1 << 20) && !large.grow(100 << 10));
        let mut small = RequestMemory::new(&ledger);
        assert!(small.grow(60 << 10), "its own share");
        assert!(!RequestMemory::new(&ledger).grow(60 << 10));
        large.shrink_to(4 << 10);
        assert_eq!(large.bytes(), 4 << 10);
        drop(small);
        large.shrink_to(1);
        assert_eq!(large.bytes(), 1);
    }
}
