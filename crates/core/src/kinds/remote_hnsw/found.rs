//! The nearest vectors that a query has found, whatever the order in which clusters arrive.

use alloc::vec::Vec;
use core::cmp::Ordering;

/// A vector that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Found {
    pub(super) distance: f32,
    /// The user's id.
    pub(super) id: u64,
    /// Clock of the insert.
    pub(super) clock: u64,
}

impl Found {
    pub(super) fn order(&self, other: &Found) -> Ordering {
        self.distance.total_cmp(&other.distance).then(self.id.cmp(&other.id))
    }
}

/// Offers a vector to the `k` nearest, which are sorted. Of two with one id the later one stays: a tombstone hides the
/// earlier one, unless the reader has not seen it yet.
pub(super) fn offer(found: &mut Vec<Found>, k: usize, new: Found) {
    let is_full = found.len() >= k;
    if is_full && found.last().is_none_or(|last| new.order(last).is_ge()) {
        return;
    }
    if let Some(at) = found.iter().position(|other| other.id == new.id) {
        if found[at].clock >= new.clock {
            return;
        }
        found.remove(at);
    }
    let at = found.partition_point(|other| other.order(&new).is_lt());
    found.insert(at, new);
    found.truncate(k);
}
