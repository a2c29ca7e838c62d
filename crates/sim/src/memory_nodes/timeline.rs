//! Time of a batch, by its parts.

/// Time of batches, nanoseconds. Transfers and searches may be at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Time from the beginning of the batches to their ends.
    pub all_ns: u64,
    /// Choosing clusters.
    pub meta_ns: u64,
    /// While at least one doorbell, or the headers, were under way.
    pub transfer_ns: u64,
    /// While at least one thread took in or searched what had arrived, or what the cache has.
    pub search_ns: u64,
    /// While both were so.
    pub both_ns: u64,
    /// The shorter of transfer and search, of each batch.
    pub shorter_ns: u64,
}

impl Spent {
    /// Adds that of other batches.
    pub fn add(&mut self, other: &Spent) {
        self.all_ns += other.all_ns;
        self.meta_ns += other.meta_ns;
        self.transfer_ns += other.transfer_ns;
        self.search_ns += other.search_ns;
        self.both_ns += other.both_ns;
        self.shorter_ns += other.shorter_ns;
    }

    /// Share of the shorter of transfer and search that overlap hides, 0 to 1.
    pub fn hidden(&self) -> f64 {
        if self.shorter_ns == 0 { 0.0 } else { self.both_ns as f64 / self.shorter_ns as f64 }
    }
}

/// A batch under way.
pub(super) struct Timeline {
    begun_ns: u64,
    spent: Spent,
    transfers: Vec<(u64, u64)>,
    searches: Vec<(u64, u64)>,
}

impl Timeline {
    pub(super) fn begin(now: u64) -> Timeline {
        Timeline { begun_ns: now, spent: Spent::default(), transfers: Vec::new(), searches: Vec::new() }
    }

    /// All queries have chosen their clusters.
    pub(super) fn chosen(&mut self, from: u64, to: u64) {
        self.spent.meta_ns = to - from;
    }

    pub(super) fn transferred(&mut self, from: u64, to: u64) {
        self.transfers.push((from, to));
    }

    pub(super) fn searched(&mut self, from: u64, to: u64) {
        self.searches.push((from, to));
    }

    pub(super) fn end(self, now: u64) -> Spent {
        let (transfers, searches) = (joined(self.transfers), joined(self.searches));
        let (transfer_ns, search_ns) = (length(&transfers), length(&searches));
        Spent {
            all_ns: now - self.begun_ns,
            transfer_ns,
            search_ns,
            both_ns: common(&transfers, &searches),
            shorter_ns: transfer_ns.min(search_ns),
            ..self.spent
        }
    }
}

/// Intervals in order, those that touch made one.
fn joined(mut intervals: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    intervals.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (from, to) in intervals {
        match joined.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => joined.push((from, to)),
        }
    }
    joined
}

fn length(intervals: &[(u64, u64)]) -> u64 {
    intervals.iter().map(|(from, to)| to - from).sum()
}

/// Length of what two sets of joined intervals have in common.
fn common(some: &[(u64, u64)], others: &[(u64, u64)]) -> u64 {
    let overlap = |a: (u64, u64), b: (u64, u64)| a.1.min(b.1).saturating_sub(a.0.max(b.0));
    some.iter().map(|&a| others.iter().map(|&b| overlap(a, b)).sum::<u64>()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlap_hides_what_transfers_and_searches_have_in_common() {
        let mut timeline = Timeline::begin(5);
        timeline.chosen(10, 30);
        for (from, to) in [(30, 50), (30, 60), (70, 90)] {
            timeline.transferred(from, to);
        }
        for (from, to) in [(80, 100), (50, 80)] {
            timeline.searched(from, to);
        }
        let spent = timeline.end(100);
        assert_eq!((spent.all_ns, spent.meta_ns), (95, 20));
        assert_eq!((spent.transfer_ns, spent.search_ns, spent.both_ns), (50, 50, 30));
        assert_eq!(spent.hidden(), 0.6);
        assert_eq!(Spent::default().hidden(), 0.0);
    }
}
