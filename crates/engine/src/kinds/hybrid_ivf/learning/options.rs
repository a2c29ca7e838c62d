//! How an index learns.

/// Whether an open index learns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Learn {
    /// It ignores what it learned before.
    #[default]
    Off,
    /// It uses what it learned before, and learns no more.
    Frozen,
    /// It learns.
    On,
}

/// How an index learns.
#[derive(Clone, Copy, Debug)]
pub struct LearnOptions {
    /// Whether it does.
    pub learn: Learn,
    /// Queries of an epoch (ΔQ).
    pub epoch_queries: u32,
    /// Hot members in the graph and pinned in RAM; `None` for one for ten nodes of the graph.
    pub hot: Option<u32>,
}

impl Default for LearnOptions {
    fn default() -> Self {
        LearnOptions { learn: Learn::Off, epoch_queries: 2000, hot: None }
    }
}
