//! The part of an index in RAM that all kinds have in common, as a query sees it.

use stratann_kernel::{DType, Metric};

use crate::place::LocalShard;
use crate::sieve::Sieve;

/// Facts of an index of any kind that a query needs.
#[derive(Clone, Copy, Debug)]
pub struct Base<'a> {
    /// Distance.
    pub metric: Metric,
    /// Element type.
    pub dtype: DType,
    /// Components of a vector.
    pub dim: usize,
    /// Number of vectors.
    pub nodes: u32,
    /// This server's shard; `None` when the whole index is local.
    pub here: Option<LocalShard<'a>>,
    /// The rows that the query may return; `None` for all. It never travels: each server has its own.
    pub sieve: Option<&'a Sieve>,
    /// Whether the sieve is of a filter, which other servers know from the query alone.
    pub is_filtered: bool,
}

impl Base<'_> {
    /// Of an index that is here as a whole, of which every row may be returned.
    pub fn whole((metric, dtype): (Metric, DType), dim: usize, nodes: u32) -> Base<'static> {
        Base { metric, dtype, dim, nodes, here: None, sieve: None, is_filtered: false }
    }
}
