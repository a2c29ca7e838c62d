//! What one query cost, in units that do not depend on the machine.

/// Counters of one query, the same for every kind of index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueryStats {
    /// Distances computed on codes.
    pub code_comparisons: u64,
    /// Distances computed on full vectors.
    pub full_comparisons: u64,
    /// Vectors discarded by a bound before they were read.
    pub pruned: u64,
    /// Read operations issued by the query, cache hits included.
    pub reads: u64,
    /// Pages of 4 KiB asked for, cache hits included.
    pub pages_read: u64,
    /// Of the reads, those that a cache answered. The driver fills it in.
    pub cache_hits: u64,
    /// Rounds of the search.
    pub hops: u64,
    /// Times the query went on to another server.
    pub hand_overs: u64,
    /// Candidates given up because no server that holds them answers.
    pub unreachable: u64,
    /// Nodes whose neighbour lists were followed.
    pub expanded: u64,
    /// Code distances that a server computed again because the query came without them. Not among [`QueryStats::code_comparisons`], which
    /// are those that a single server makes too.
    pub rescored: u64,
}

impl QueryStats {
    /// Adds the counters of another query.
    pub fn add(&mut self, other: &QueryStats) {
        self.code_comparisons += other.code_comparisons;
        self.full_comparisons += other.full_comparisons;
        self.pruned += other.pruned;
        self.reads += other.reads;
        self.pages_read += other.pages_read;
        self.cache_hits += other.cache_hits;
        self.hops += other.hops;
        self.hand_overs += other.hand_overs;
        self.unreachable += other.unreachable;
        self.expanded += other.expanded;
        self.rescored += other.rescored;
    }
}
