//! Options of learning.

use stratann_params::choices::Learn;
use stratann_params::open::LearnSettings;

/// Options of learning.
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

impl From<LearnSettings> for LearnOptions {
    fn from(settings: LearnSettings) -> LearnOptions {
        LearnOptions {
            learn: settings.learning,
            epoch_queries: settings.epoch_queries.max(1),
            hot: settings.hot,
        }
    }
}
