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
    /// Of the reads, those of neighbour lists alone.
    pub edge_reads: u64,
    /// Of the reads, those of vectors alone.
    pub record_reads: u64,
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
    /// Neighbours met again and not scored again. What was met is not carried along, so this is less where a query changed servers;
    /// [`QueryStats::met`] is not.
    pub repeats: u64,
    /// Clusters visited.
    pub clusters: u64,
    /// Of them, those with a member among the best k of all visited so far, by their codes.
    pub fruitful_clusters: u64,
    /// Posting lists scanned.
    pub lists: u64,
    /// Vectors that did not have to be read because they are pinned in RAM.
    pub pinned_hits: u64,
    /// Clusters with a member among the results, as far as these were read one by one.
    pub result_clusters: u64,
}

impl QueryStats {
    /// Nodes that the walk came by, scored or known: the same wherever the query went.
    pub fn met(&self) -> u64 {
        self.code_comparisons + self.repeats
    }

    /// Adds the counters of another query.
    pub fn add(&mut self, other: &QueryStats) {
        self.code_comparisons = self.code_comparisons.saturating_add(other.code_comparisons);
        self.full_comparisons = self.full_comparisons.saturating_add(other.full_comparisons);
        self.pruned = self.pruned.saturating_add(other.pruned);
        self.reads = self.reads.saturating_add(other.reads);
        self.edge_reads = self.edge_reads.saturating_add(other.edge_reads);
        self.record_reads = self.record_reads.saturating_add(other.record_reads);
        self.pages_read = self.pages_read.saturating_add(other.pages_read);
        self.cache_hits = self.cache_hits.saturating_add(other.cache_hits);
        self.hops = self.hops.saturating_add(other.hops);
        self.hand_overs = self.hand_overs.saturating_add(other.hand_overs);
        self.unreachable = self.unreachable.saturating_add(other.unreachable);
        self.expanded = self.expanded.saturating_add(other.expanded);
        self.rescored = self.rescored.saturating_add(other.rescored);
        self.repeats = self.repeats.saturating_add(other.repeats);
        self.clusters = self.clusters.saturating_add(other.clusters);
        self.fruitful_clusters = self.fruitful_clusters.saturating_add(other.fruitful_clusters);
        self.lists = self.lists.saturating_add(other.lists);
        self.pinned_hits = self.pinned_hits.saturating_add(other.pinned_hits);
        self.result_clusters = self.result_clusters.saturating_add(other.result_clusters);
    }
}
