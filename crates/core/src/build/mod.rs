//! Pure steps of a build: search a graph, prune one node, pack nodes into blocks, choose an index for each cluster. The engine runs them in parallel and
//! out of core.

pub mod assignment;
pub mod costs;
pub mod pack;
pub mod prune;
pub mod walk;

pub use crate::hash::hash;

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
