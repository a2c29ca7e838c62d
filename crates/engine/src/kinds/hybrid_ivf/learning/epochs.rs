//! Queries that have ended, by epoch.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::lock;

/// Epochs that may be unfinished at a time: one that ends, one that runs.
pub(super) const OPEN: u64 = 2;

/// Counts of the queries that have ended. An epoch is open, and its queries may run, once the one two before was
/// learned from.
pub(super) struct Epochs {
    /// Queries of an epoch.
    queries: u64,
    // Of the open ones, by epoch modulo OPEN.
    ended: [AtomicU64; OPEN as usize],
    closed: Mutex<Closed>,
}

/// Epochs that are not open yet.
struct Closed {
    first: u64,
    // Queries that will never run: their search was interrupted.
    abandoned: BTreeMap<u64, u64>,
}

impl Epochs {
    /// None has ended.
    pub(super) fn new(queries: u32) -> Epochs {
        let closed = Closed { first: OPEN, abandoned: BTreeMap::new() };
        Epochs { queries: queries.max(1).into(), ended: Default::default(), closed: Mutex::new(closed) }
    }

    /// The epoch of a query.
    pub(super) fn of(&self, number: u64) -> u64 {
        number / self.queries
    }

    /// Whether a query is of the second half of its epoch.
    pub(super) fn is_second_half(&self, number: u64) -> bool {
        number % self.queries >= self.queries / 2
    }

    /// A query of an open epoch has ended. Returns whether the epoch has, too.
    pub(super) fn end(&self, epoch: u64) -> bool {
        self.ended[(epoch % OPEN) as usize].fetch_add(1, Ordering::AcqRel) + 1 == self.queries
    }

    /// A query of any epoch will never run. Returns whether the epoch has ended.
    pub(super) fn abandon(&self, epoch: u64) -> bool {
        let mut closed = lock(&self.closed);
        if epoch < closed.first {
            return self.end(epoch);
        }
        *closed.abandoned.entry(epoch).or_default() += 1;
        false
    }

    /// An epoch was learned from: opens the next but one. Returns whether that has ended already, since all of its
    /// queries were abandoned.
    pub(super) fn open_after(&self, epoch: u64) -> bool {
        let mut closed = lock(&self.closed);
        let opened = epoch + OPEN;
        closed.first = opened + 1;
        let abandoned = closed.abandoned.remove(&opened).unwrap_or(0);
        self.ended[(opened % OPEN) as usize].store(abandoned, Ordering::Release);
        abandoned == self.queries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abandoned_queries_count_for_their_own_epochs() {
        let epochs = Epochs::new(3);
        // Of epoch 0 one runs; all others up to the middle of epoch 4 are abandoned, while nothing is learned from.
        assert!(!epochs.end(0));
        let ended: Vec<u64> = (1..14).filter(|&number| epochs.abandon(epochs.of(number))).collect();
        assert_eq!(ended, [2, 5]);
        assert!(epochs.open_after(0) && epochs.open_after(1) && !epochs.open_after(2));
        assert!(epochs.end(4));
        assert!(!epochs.open_after(3) && !epochs.open_after(4));
        assert!(!epochs.end(5) && !epochs.end(5) && epochs.end(5));
    }

    #[test]
    fn halves_divide_an_epoch() {
        let epochs = Epochs::new(5);
        let second: Vec<u64> = (0..10).filter(|&number| epochs.is_second_half(number)).collect();
        assert_eq!(second, [2, 3, 4, 7, 8, 9]);
    }
}
