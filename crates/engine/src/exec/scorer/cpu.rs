//! Ranks codes in this machine's memory, on the thread that asks.

use std::sync::Arc;

use stratann_core::score::{CodeJob, RankScratch, Ranking, rank};
use stratann_storage::tier::Resident;

use super::{Failure, Reply, Scorer, ScorerReport};

/// See the module.
pub struct CpuScorer {
    codes: Arc<Resident>,
    first: u32,
}

impl CpuScorer {
    /// Ranks these codes, the first of which has the id `first`.
    pub(crate) fn new(codes: Arc<Resident>, first: u32) -> CpuScorer {
        CpuScorer { codes, first }
    }
}

impl Scorer for CpuScorer {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn submit(&self, job: &CodeJob<'_>, scratch: &mut RankScratch, _: Reply) -> Option<Ranking> {
        self.rank_here(job, scratch).ok()
    }

    fn rank_here(&self, job: &CodeJob<'_>, scratch: &mut RankScratch) -> Result<Ranking, Failure> {
        let mut ranking = Ranking::default();
        rank(job, &self.codes, self.first, scratch, &mut ranking);
        Ok(ranking)
    }

    fn report(&self) -> ScorerReport {
        ScorerReport { name: "cpu".into(), gpu: None }
    }
}
