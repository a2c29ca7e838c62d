//! The k best results, and those already reported to the query's origin.

use alloc::vec::Vec;
use core::cmp::Ordering;

/// One result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit {
    /// Exact distance.
    pub distance: f32,
    /// The id that the user knows.
    pub external_id: u64,
}

impl Hit {
    /// The order of results: closest first, then the smaller id.
    pub(crate) fn order(&self, other: &Hit) -> Ordering {
        self.distance.total_cmp(&other.distance).then(self.external_id.cmp(&other.external_id))
    }
}

/// The k best results, sorted by `(distance, external id)`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopK {
    pub(crate) k: u32,
    pub(crate) hits: Vec<Hit>,
    // Distances of results already reported to the origin, ascending; their ids are not kept here.
    pub(crate) reported_distances: Vec<f32>,
    // The number of reports sent so far.
    pub(crate) reports_sent: u32,
}

impl TopK {
    /// Empties it and sets how many results are kept.
    pub(crate) fn reset(&mut self, k: u32) {
        self.k = k;
        self.hits.clear();
        self.reported_distances.clear();
        self.reports_sent = 0;
    }

    /// Whether there are k results, reported ones included.
    pub(crate) fn is_full(&self) -> bool {
        self.hits.len() + self.reported_distances.len() >= self.k as usize
    }

    /// The last of all results: its distance, and its id unless it was reported. A reported result comes after others
    /// of its distance.
    pub(crate) fn worst(&self) -> Option<(f32, Option<u64>)> {
        let own = self.hits.last().map(|hit| (hit.distance, Some(hit.external_id)));
        let reported = self.reported_distances.last().map(|&distance| (distance, None));
        match (own, reported) {
            (Some(o), Some(r)) => Some(if o.0.total_cmp(&r.0).is_gt() { o } else { r }),
            (own, reported) => own.or(reported),
        }
    }

    /// Removes the last of all results.
    pub(crate) fn drop_worst(&mut self) {
        match self.worst() {
            Some((_, Some(_))) => drop(self.hits.pop()),
            _ => drop(self.reported_distances.pop()),
        }
    }

    /// Offers a vector. Its id is asked for only when its distance is good enough. Returns whether it is a new result.
    pub(crate) fn offer(&mut self, distance: f32, external_id: impl FnOnce() -> u64) -> bool {
        let worst = if self.is_full() { self.worst() } else { None };
        if worst.is_some_and(|(worst, _)| worst.total_cmp(&distance).is_lt()) {
            return false;
        }
        let hit = Hit { distance, external_id: external_id() };
        // At equal distance a reported result makes room: the origin knows its id, and decides.
        let is_before = |(d, id): (f32, Option<u64>)| {
            d.total_cmp(&distance).then(id.map_or(Ordering::Greater, |id| id.cmp(&hit.external_id))).is_lt()
        };
        if worst.is_some_and(is_before) {
            return false;
        }
        let at = self.hits.partition_point(|h| is_before((h.distance, Some(h.external_id))));
        if self.hits.get(at).is_some_and(|h| h.external_id == hit.external_id) {
            return false;
        }
        if worst.is_some() {
            self.drop_worst();
        }
        self.hits.insert(at, hit);
        true
    }

    /// Memory beside the struct itself, bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.hits.capacity() * size_of::<Hit>() + self.reported_distances.capacity() * size_of::<f32>()
    }
}
