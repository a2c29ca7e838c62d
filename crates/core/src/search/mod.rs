//! Parts of a query of any kind: limits, results, reads under way, counters, and the queue of candidates.

mod beam;
mod io;
mod lost_units;
mod smallest;
mod stats;
mod topk;
mod visited;

pub(crate) use beam::key;
pub use beam::{Beam, Candidate, Progress};
pub use io::{
    Arrival, Arrived, Extent, Loss, Read, ScorerId, Scores, ScoringMode, StoreId, Tag, Threshold, Want,
};
pub(crate) use io::{Io, Pending};
pub(crate) use lost_units::{LOST_UNITS_MAX, LostUnit, LostUnits};
pub(crate) use smallest::KSmallest;
pub use stats::QueryStats;
pub use topk::{Hit, TopK};
pub(crate) use visited::Visited;
pub use visited::bytes as visited_bytes;

/// Time at which arrivals are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// A step waits for all of its reads: the same answer under any order of arrival.
    Barrier = 0,
    /// A step uses whatever came first (PipeANN, OSDI 2025): lower latency, a few more reads, no promise of equal
    /// answers.
    Eager = 1,
}

impl Mode {
    /// The name used on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Barrier => "barrier",
            Mode::Eager => "eager",
        }
    }
}

/// The numbers of an index: all that a state names lies below them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexSize {
    /// Vectors.
    pub nodes: u32,
    /// Blocks, or inverted lists.
    pub units: u32,
    /// Clusters; 0 for a kind without.
    pub clusters: u32,
}

/// Limits of a query that are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Rounds of the search.
    pub hops: u32,
    /// Reads.
    pub reads: u32,
    /// Hand-overs to another server.
    pub hand_overs: u32,
    /// Jobs for other servers.
    pub score_jobs: u32,
}

impl Default for Budget {
    /// Far beyond what a search needs: it ends what would otherwise run for ever.
    fn default() -> Self {
        Budget { hops: 100_000, reads: 1_000_000, hand_overs: 10_000, score_jobs: 100_000 }
    }
}

/// End of a query, or that it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The query still runs.
    Running,
    /// The results are what was asked for.
    Complete,
    /// A limit of the budget stopped it; the results are the best so far.
    OutOfBudget,
    /// As complete as the servers that answer allow: some candidates could not be read.
    Partial,
    /// An extent was lost: the results are not to be used.
    Lost {
        /// The first unit of the read, as the kind numbers them: a block, a list, a vector.
        unit: u32,
        /// Extent that was lost.
        at: Extent,
        /// Why.
        loss: Loss,
    },
    /// The state was stepped on an index of another kind.
    WrongKind,
}

/// The most tenths by which a query visits more lists where the nearest have few rows of its sieve, and their number
/// where nothing was measured.
pub const FAR_MAX: u8 = 10;

/// Next action of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Submit the wants and step again: in `Barrier` mode when all that is pending has arrived, in `Eager` mode when
    /// something has.
    Wait,
    /// Encode the state, send it to this server, and step it there. Nothing is pending.
    HandOver(u8),
    /// Finished: see the outcome.
    Done,
}

/// Results of a query that others have: those of other indexes that are searched as one with this.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    /// The distance of the k-th of them: results beyond it are of no use. Infinity while they are fewer.
    pub bound: f32,
    /// The distance within which the k nearest of all indexes are expected, at most [`Known::bound`]; infinity where
    /// nothing is expected.
    pub near: f32,
    /// Results of this index that are expected among the k nearest of all: a search for fewer does not end.
    pub expected: u32,
}

impl Default for Known {
    fn default() -> Self {
        Known { bound: f32::INFINITY, near: f32::INFINITY, expected: 0 }
    }
}

/// The part of a query that all kinds share.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Query {
    /// Most reads of one round.
    pub(crate) width: u32,
    /// Most reads of one round while the search still approaches.
    pub(crate) approach_width: u32,
    pub(crate) mode: Mode,
    /// A vector that does not exist for this query; `u32::MAX` for none.
    pub(crate) exclude: u32,
    /// See [`crate::query::Params::far_tenths`].
    pub(crate) far_tenths: u8,
    pub(crate) budget: Budget,
    pub(crate) started: bool,
    /// What is known of results of others. Never travels.
    pub(crate) known: Known,
    pub(crate) top: TopK,
    pub(crate) io: Io,
    pub(crate) lost_units: LostUnits,
    /// Parts without an answer, of a joined answer: a bit for each. Never travels.
    pub(crate) lost_parts: u64,
    pub(crate) outcome: Outcome,
    pub(crate) stats: QueryStats,
    /// Next server of the query, decided by the last step; never travels.
    pub(crate) next: Option<u8>,
}

impl Query {
    /// Whether this vector exists for the query: another is neither walked over nor returned. Whether one may be
    /// returned is asked of the sieve.
    #[inline]
    pub(crate) fn exists(&self, id: u32) -> bool {
        id != self.exclude
    }

    /// The distance beyond which a result is hardly of use: that of the k-th, or less where others are known. `None`
    /// while every distance is of use.
    pub(crate) fn limit(&self) -> Option<f32> {
        let kth = self.kth();
        if !self.is_bounded() {
            return kth;
        }
        let Known { bound, near, expected } = self.known;
        let own = match expected.checked_sub(1) {
            Some(last) => self.top.hits.get(last as usize).map(|hit| hit.distance),
            None => Some(near),
        };
        let soft = own.map_or(f32::INFINITY, |own| own.max(near));
        Some(kth.map_or(bound, |kth| kth.min(bound)).min(soft)).filter(|&limit| limit < f32::INFINITY)
    }

    /// The distance of the k-th result.
    pub(crate) fn kth(&self) -> Option<f32> {
        self.top.worst().filter(|_| self.top.is_full()).map(|(distance, _)| distance)
    }

    /// Whether something is known of results of others.
    pub(crate) fn is_bounded(&self) -> bool {
        self.known.bound < f32::INFINITY || self.known.near < f32::INFINITY
    }

    /// Whether results of others make the limit smaller than the distance of the k-th result.
    pub(crate) fn is_limit_smaller(&self) -> bool {
        self.is_bounded() && self.limit().is_some_and(|limit| self.kth().is_none_or(|kth| limit < kth))
    }

    /// The last result that is of use, and where others are known how many are: another one shows that a read has
    /// brought a result. While fewer are near enough than are expected, the nearest count.
    pub(crate) fn last_useful(&self) -> (usize, Option<(f32, Option<u64>)>) {
        if !self.is_bounded() {
            return (0, self.top.worst());
        }
        let Known { bound, near, expected } = self.known;
        let limit = bound.min(near);
        let near = self.top.hits.partition_point(|hit| hit.distance <= limit);
        let count = near.max(expected as usize).clamp(1, self.top.hits.len().max(1));
        (count, self.top.hits.get(count - 1).map(|hit| (hit.distance, Some(hit.external_id))))
    }

    /// Begins a round of reads, or ends the query when the budget allows none. Called when something was asked for.
    pub(crate) fn count_hop(&mut self) {
        self.stats.hops += 1;
        self.budget.hops = self.budget.hops.saturating_sub(1);
    }

    /// Ends the query.
    pub(crate) fn finish(&mut self, outcome: Outcome) {
        self.outcome = outcome;
        self.io.clear();
    }

    /// No replica is left that could read this unit.
    pub(crate) fn give_up(&mut self, unit: u32) {
        self.stats.unreachable += 1;
        self.lost_units.give_up(unit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::{Params, QueryState};

    fn query(k: u32, distances: &[f32], known: Known) -> Query {
        let mut state = QueryState::new(Params::flat(k), Budget::default());
        state.set_known(known);
        for (id, &distance) in (0..).zip(distances) {
            state.q.top.offer(distance, || id);
        }
        state.q
    }

    #[test]
    fn the_limit_is_the_least_of_what_is_known() {
        let none = Known::default();
        let limit = |distances: &[f32], known| query(3, distances, known).limit();
        assert_eq!((limit(&[1.0, 2.0], none), limit(&[1.0, 2.0, 4.0], none)), (None, Some(4.0)));
        let bound = Known { bound: 3.0, ..none };
        assert_eq!((limit(&[], bound), limit(&[1.0, 2.0, 4.0], bound)), (Some(3.0), Some(3.0)));
        assert_eq!(limit(&[0.0, 1.0, 2.0], bound), Some(2.0));
        assert_eq!(limit(&[], Known { bound: f32::NAN, ..none }), None);
        // Before as many are found as are expected, results near enough do not count.
        let near = Known { bound: 9.0, near: 2.0, expected: 2 };
        assert_eq!((limit(&[1.0], near), limit(&[1.0, 1.5], near)), (Some(9.0), Some(2.0)));
        assert_eq!(limit(&[1.0, 5.0], near), Some(5.0));
    }

    #[test]
    fn a_result_changes_what_is_of_use_only_within_the_limit() {
        let known = Known { bound: 9.0, near: 4.0, expected: 1 };
        let useful = |distances: &[f32]| query(4, distances, known).last_useful();
        assert_eq!(useful(&[]).1, None);
        assert_eq!(useful(&[1.0, 2.0]), useful(&[1.0, 2.0, 6.0]));
        assert_ne!(useful(&[1.0, 2.0]), useful(&[1.0, 2.0, 1.5]));
        // While none is near enough, the nearest counts.
        assert_ne!(useful(&[8.0]), useful(&[8.0, 7.0]));
        assert_eq!(query(4, &[2.0, 1.0], Known::default()).last_useful().0, 0);
    }
}
