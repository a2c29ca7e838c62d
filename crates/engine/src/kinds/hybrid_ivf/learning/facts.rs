//! State of learning, for reports.

use serde::Serialize;
use stratann_core::kinds::hybrid_ivf::learn::{EXCESS_MIN, Finding};

/// State of learning since the index was opened.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LearningFacts {
    /// Whether the last epoch was learned from.
    pub is_on: bool,
    /// Epochs that were learned from.
    pub learned_epochs: u64,
    /// Epochs that were not: without a hot spot, or with one that moves on before it pays.
    pub skipped_epochs: u64,
    /// Share of the last epoch's second half that the hot set of its first half holds, in excess of chance.
    pub hot_spot: f64,
    /// Share of the last epoch that the hot set of the epoch two before holds, in excess of chance.
    pub foreseen: f64,
    /// Least of either that is learned from.
    pub threshold: f64,
    /// Queries that waited for their snapshot, since an epoch was shorter than the making of one.
    pub waits: u64,
}

impl Default for LearningFacts {
    fn default() -> LearningFacts {
        LearningFacts {
            is_on: false,
            learned_epochs: 0,
            skipped_epochs: 0,
            hot_spot: 0.0,
            foreseen: 0.0,
            threshold: EXCESS_MIN,
            waits: 0,
        }
    }
}

impl LearningFacts {
    pub(super) fn note(&mut self, finding: Finding, learns: bool) {
        (self.hot_spot, self.foreseen, self.is_on) = (finding.spot, finding.paid, learns);
        self.learned_epochs += u64::from(learns);
        self.skipped_epochs += u64::from(!learns);
    }
}
