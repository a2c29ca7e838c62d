//! Trace of a query, for `explain`.

use alloc::vec::Vec;

/// The way in which a result was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// As this candidate of the scorer, counted from 0, in this mini-batch, counted from 0.
    Candidate {
        /// Place among the candidates.
        rank: u32,
        /// The mini-batch.
        batch: u32,
    },
    /// In a block that was read for a candidate of this mini-batch.
    SameBlock {
        /// The mini-batch.
        batch: u32,
    },
}

/// A mini-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchTrace {
    /// Candidates.
    pub candidates: u32,
    /// Blocks that were read.
    pub reads: u32,
    /// Candidates whose block was read for another one of the mini-batch.
    pub shared: u32,
    /// Candidates whose block an earlier mini-batch had read.
    pub known: u32,
    /// Results that are new.
    pub changed: u32,
}

/// Trace of a query.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// The lists in the order of their centroids, and the distances of these.
    pub lists: Vec<(u32, f32)>,
    /// The mini-batches.
    pub batches: Vec<BatchTrace>,
    /// External id of each vector that became a result at some time, and how it was found.
    pub found: Vec<(u64, Found)>,
}
