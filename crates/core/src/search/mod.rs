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
