//! Counters of one query, in units that do not depend on the machine.

/// Makes the struct of counters, its names and its sums from one table. Wire, JSON, HTTP and Python follow from it.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one query, the same for every kind of index.
        ///
        /// `reads`, `pages_read` and `bytes_read` count what the query asked of a tier: what a cache answered is not
        /// among them. They are exact and do not depend on timing, so reads that were merged with those of other
        /// queries count for each.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct QueryStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl QueryStats {
            /// The counters' names, in the order of the table. A place in it is a counter's number on the wire.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            /// All counters, in the order of [`QueryStats::NAMES`].
            pub fn values(&self) -> [u64; Self::NAMES.len()] {
                [$(self.$name),*]
            }

            /// The counters with these values, in the order of [`QueryStats::NAMES`].
            pub fn from_values(values: [u64; Self::NAMES.len()]) -> QueryStats {
                let [$($name),*] = values;
                QueryStats { $($name),* }
            }

            /// Calls `f` with each counter's name and value.
            pub fn each(&self, mut f: impl FnMut(&'static str, u64)) {
                $(f(stringify!($name), self.$name);)*
            }

            /// Sets the counter of this name. Returns false when there is none.
            pub fn set(&mut self, name: &str, value: u64) -> bool {
                match name {
                    $(stringify!($name) => self.$name = value,)*
                    _ => return false,
                }
                true
            }

            /// The larger one of each counter of two queries.
            pub fn max(&self, other: &QueryStats) -> QueryStats {
                QueryStats { $($name: self.$name.max(other.$name)),* }
            }

            /// Adds the counters of another query.
            pub fn add(&mut self, other: &QueryStats) {
                $(self.$name = self.$name.saturating_add(other.$name);)*
            }
        }
    };
}

counters! {
    /// Distances computed on codes.
    code_comparisons,
    /// Distances computed on full vectors.
    full_comparisons,
    /// Vectors discarded by a bound before they were read.
    pruned,
    /// Read operations, without those that a cache answered.
    reads,
    /// Pages of 4 KiB that those reads cover.
    pages_read,
    /// Bytes of those pages.
    bytes_read,
    /// Reads that a cache answered.
    cache_hits,
    /// Rounds of the search.
    hops,
    /// Times the query went on to another server.
    hand_overs,
    /// Candidates given up because no server that holds them answers.
    unreachable,
    /// Nodes whose adjacency lists were followed.
    expanded,
    /// Code distances that a server computed again because the query came without them. They are not among
    /// `code_comparisons`, which a single server makes too.
    rescored,
    /// Neighbours that were met and not scored: again, or not to be followed. The visited set does not travel, so this
    /// is less where a query changed servers; [`QueryStats::met`] is not.
    repeats,
    /// Clusters of vectors visited.
    clusters,
    /// Visited clusters with a member among the best k of all visited so far, by their codes.
    fruitful_clusters,
    /// Visited clusters with a member among the results.
    result_clusters,
    /// Inverted lists scanned.
    lists,
    /// Reads of adjacency lists alone.
    edge_reads,
    /// Reads of vectors alone.
    record_reads,
    /// Hot vectors that were in RAM and did not have to be read.
    pinned_hits,
    /// Vectors of resident lists that did not have to be read.
    resident_hits,
    /// Jobs that other servers scored. What they cost is in the other counters.
    score_jobs,
    /// Times that the query waited for other servers: rounds with jobs.
    score_rounds,
    /// Components of vectors that were compared, where vectors are compared group by group.
    components,
    /// Components of all vectors in the lists that were scanned.
    components_unpruned,
    /// Lower thresholds that were sent to servers with jobs of the query.
    thresholds_sent,
    /// Bytes of queries that jobs carried: the components that slices need.
    query_bytes,
    /// Bytes of what is left of rows that jobs carried: a bit for each vector, or fewer, and the sums.
    sum_bytes,
    /// Bytes of results that jobs replied with.
    result_bytes,
    /// Bytes that go to a GPU and come back: queries, ids, results. Of a CPU that scores in its place, the same.
    gpu_bytes,
    /// Ids of candidates that were sent more than once and scored once.
    duplicates,
    /// Rounds of re-ranking.
    mini_batches,
    /// Reads that were not made because a candidate of the same round is in the same block.
    reads_saved_in_batch,
    /// Reads that were not made because a round before had read the block.
    reads_saved_across,
    /// Extents that the query wanted of those that its batch gathers. Each is read once for the batch, and counts among
    /// `reads` once.
    shared_reads,
    /// Requests to memory nodes. One may read many extents.
    round_trips,
    /// Blocks that a walk has used, and clusters that were read, without a row which the query may return.
    vain_blocks,
    /// Searches, of an index or of a cluster, that cost as much as a scan of the rows that the query may return, and
    /// gave way to it.
    gave_way,
    /// Rows from all parts of the index at which a walk began among those that the query may return.
    seeds,
    /// Candidates that were not compared because the results of other indexes, searched as one with this, are nearer.
    bounded,
}

impl QueryStats {
    /// Reads asked for, those that a cache answered included: the same with any cache.
    pub fn reads_asked(&self) -> u64 {
        self.reads + self.cache_hits
    }

    /// Nodes that the search met, scored or known: the same wherever the query went.
    pub fn met(&self) -> u64 {
        self.code_comparisons + self.repeats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_values_and_sums_follow_the_table() {
        let mut values = [0; QueryStats::NAMES.len()];
        (1..).zip(&mut values).for_each(|(i, value)| *value = i);
        let stats = QueryStats::from_values(values);
        assert_eq!(stats.values(), values);
        let mut copy = QueryStats::default();
        stats.each(|name, value| assert!(copy.set(name, value)));
        assert_eq!(copy, stats);
        assert!(!copy.set("no_such_counter", 1));
        copy.add(&stats);
        assert_eq!((copy.code_comparisons, copy.bounded), (2 * values[0], 2 * values[values.len() - 1]));
        copy.set("reads", u64::MAX);
        copy.add(&stats);
        assert_eq!(copy.reads, u64::MAX);
    }
}
