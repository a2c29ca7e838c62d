//! Trace of one query, for `explain`.

use alloc::vec::Vec;

/// A cluster that was searched.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Visit {
    /// Number of the cluster.
    pub cluster: u32,
    /// Distance from the query to the representative of the cluster.
    pub distance: f32,
    /// Vectors of its sub-HNSW.
    pub members: u32,
    /// Bytes of its sub-HNSW.
    pub bytes: u32,
    /// Fresh records that were compared, and the bytes in which they are.
    pub fresh: u32,
    /// See `fresh`.
    pub fresh_bytes: u32,
    /// Distances to its vectors.
    pub comparisons: u64,
    /// Nodes whose neighbours were followed.
    pub expanded: u64,
}

/// The trace of one query.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// Distances to representatives.
    pub meta_comparisons: u64,
    /// The clusters that were chosen, the nearest first.
    pub visits: Vec<Visit>,
}

impl Trace {
    /// The visit to a cluster, to be filled.
    pub(super) fn visit(&mut self, cluster: u32) -> Option<&mut Visit> {
        self.visits.iter_mut().find(|visit| visit.cluster == cluster)
    }
}
