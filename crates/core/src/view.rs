//! What all kinds of index have in common in RAM, as a query sees it.

use stratann_kernel::{DType, Metric};

use crate::place::LocalShard;

/// What a query needs to know of an index of any kind.
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
}
