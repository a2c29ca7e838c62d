//! A graph that is there, from which that of another index grows.

use std::fmt;
use std::sync::Arc;

use stratann_kernel::Metric;
use stratann_storage::{Progress, Result};

/// The graph of an open index.
pub trait OlderGraph: Send + Sync {
    /// Its nodes, which have the numbers of the rows; `None` of an index whose rows are not all in one graph.
    fn nodes(&self) -> Option<u64>;

    /// The metric under which nodes are neighbours.
    fn metric(&self) -> Option<Metric>;

    /// Shows every node with its neighbours to `see`. The progress is of blocks.
    ///
    /// # Errors
    /// A disk that fails, damage; an interruption.
    fn for_each_list(&self, progress: &dyn Progress, see: &mut dyn FnMut(u32, &[u32])) -> Result<()>;
}

/// An index most of whose rows are in the set of a build.
#[derive(Clone)]
pub struct GrowFrom {
    /// Its graph.
    pub graph: Arc<dyn OlderGraph>,
    /// For each of its rows the one of the set; `u32::MAX` for one that is not in it.
    pub rows: Arc<Vec<u32>>,
}

impl GrowFrom {
    /// Rows of the index that are in the set.
    pub fn rows_left(&self) -> u64 {
        self.rows.iter().filter(|row| **row != u32::MAX).count() as u64
    }
}

impl fmt::Debug for GrowFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} rows", self.rows_left(), self.rows.len())
    }
}
