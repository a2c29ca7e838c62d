//! Pure steps of a build: search a graph, prune one node, pack nodes into blocks, choose the local index of each
//! cluster of vectors. The engine runs them in parallel and out of core.

pub mod costs;
pub mod hnsw;
pub mod knapsack;
pub mod pack;
pub mod prune;
pub mod walk;

use alloc::vec::Vec;

pub use crate::hash::hash;

/// Points of a build, by number, with their squared l2 distances.
///
/// A build works in a space where smaller l2 means closer: cosine on unit vectors, inner product with one additional
/// component that makes all norms equal.
pub trait Points: Sync {
    /// Number of points.
    fn len(&self) -> usize;
    /// Squared l2 of two points.
    fn distance(&self, a: u32, b: u32) -> f32;
    /// Computes the distances from `a` to each of `others`. `out` is cleared first.
    fn distances(&self, a: u32, others: &[u32], out: &mut Vec<f32>) {
        out.clear();
        out.extend(others.iter().map(|&b| self.distance(a, b)));
    }
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
    /// Prefetches the adjacency list of a node into the processor's cache.
    #[inline]
    fn prefetch(&self, node: u32) {
        stratann_kernel::prefetch(bytemuck::cast_slice(self.list(node)));
    }
}
