//! Pure steps of a build: search a graph, prune one node, pack nodes into blocks, choose an index for each cluster. The engine runs them in parallel and
//! out of core.

pub mod costs;
pub mod knapsack;
pub mod pack;
pub mod prune;
pub mod walk;

/// Squared distances between the points of a build, each known by its number.
///
/// A build always works in a space where smaller l2 means closer: cosine on unit vectors, inner product with one
/// more component that makes all norms equal.
pub trait Points: Sync {
    /// Number of points.
    fn len(&self) -> usize;
    /// Squared l2 of two points.
    fn distance(&self, a: u32, b: u32) -> f32;
    /// Hints that this point will be needed soon.
    fn prefetch(&self, _a: u32) {}
    /// True when there is no point.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Neighbour lists under construction.
pub trait Lists: Sync {
    /// The neighbours of a node.
    fn list(&self, node: u32) -> &[u32];
}

/// A number that looks random and depends on its arguments alone (splitmix64), so that no order of threads can change it.
pub fn hash(seed: u64, stream: u64, index: u64) -> u64 {
    let mut x = seed
        .wrapping_add(stream.wrapping_mul(0x9E37_79B9_7F4A_7C15))
        .wrapping_add(index.wrapping_mul(0xD1B5_4A32_D192_ED03))
        .wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
