//! Pure steps of a build: search a graph, prune one node, pack nodes into blocks, choose the local index of each
//! cluster of vectors. The engine runs them in parallel and out of core.

pub mod costs;
pub mod knapsack;
pub mod pack;
pub mod prune;
pub mod walk;

/// Points of a build, by number, with their squared l2 distances.
///
/// A build works in a space where smaller l2 means closer: cosine on unit vectors, inner product with one additional
/// component that makes all norms equal.
pub trait Points: Sync {
    /// Number of points.
    fn len(&self) -> usize;
    /// Squared l2 of two points.
    fn distance(&self, a: u32, b: u32) -> f32;
    /// Prefetches a point into the processor's cache.
    fn prefetch(&self, _a: u32) {}
    /// Returns whether there are no points.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Adjacency lists under construction.
pub trait Lists: Sync {
    /// Returns the adjacency list of a node.
    fn list(&self, node: u32) -> &[u32];
}

/// Computes a pseudo-random number from its arguments (splitmix64). It does not depend on the order of threads.
pub fn hash(seed: u64, stream: u64, index: u64) -> u64 {
    let mut x = seed
        .wrapping_add(stream.wrapping_mul(0x9E37_79B9_7F4A_7C15))
        .wrapping_add(index.wrapping_mul(0xD1B5_4A32_D192_ED03))
        .wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
