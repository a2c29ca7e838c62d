//! Searches as other systems do them: the values of `--baseline`.

use clap::ValueEnum;
use stratann_engine::index::OpenBaselines;
use stratann_engine::kinds::options::Baseline;
use stratann_engine::kinds::remote_hnsw::baseline::LoadScheme;

use super::Techniques;

/// `--baseline`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum BaselineName {
    /// Lists of vectors on disk are read whole (SPANN).
    Spann,
    /// Lists of codes on disk are read whole, then each candidate is read.
    #[value(name = "hi+pq")]
    HiPq,
    /// As spann, with vectors copied to a GPU.
    #[value(name = "hi+gpu")]
    HiGpu,
    /// As hi+pq, with codes copied to a GPU.
    #[value(name = "hi+pq+gpu")]
    HiPqGpu,
    /// Lists of vectors in RAM, copied to a GPU (RUMMY).
    RummyLike,
    /// Codes in RAM, a fixed number of candidates, a read for each.
    MiCpu,
    /// The same with codes on a GPU.
    MiGpu,
    /// The smallest fixed number of candidates that reaches the recall.
    StaticN,
    /// Algorithm 1 with a read for each candidate.
    NoDedup,
    /// Algorithm 1 over vectors in the order of rows.
    NoLayout,
    /// Of remote-hnsw: each query reads its clusters for itself, one after another, without a cache.
    Naive,
    /// Of remote-hnsw: a round trip for each cluster.
    NoDoorbell,
    /// Of remote-hnsw: a doorbell begins when the one before has been searched.
    NoOverlap,
}

impl BaselineName {
    /// The one of remote-hnsw.
    pub(super) fn of_loads(self) -> LoadScheme {
        match self {
            BaselineName::Naive => LoadScheme::Naive,
            BaselineName::NoDoorbell => LoadScheme::NoDoorbell,
            BaselineName::NoOverlap => LoadScheme::NoOverlap,
            _ => LoadScheme::Own,
        }
    }

    /// The one of gpu-ivf.
    pub(super) fn of_gpu(self) -> Option<Baseline> {
        Some(match self {
            BaselineName::Spann => Baseline::Spann,
            BaselineName::HiPq => Baseline::ListsOfCodes,
            BaselineName::HiGpu => Baseline::SpannOnGpu,
            BaselineName::HiPqGpu => Baseline::ListsOfCodesOnGpu,
            BaselineName::RummyLike => Baseline::Rummy,
            BaselineName::MiCpu => Baseline::MultiTierOnCpu,
            BaselineName::MiGpu => Baseline::MultiTierOnGpu,
            BaselineName::StaticN => Baseline::StaticCandidates,
            BaselineName::NoDedup => Baseline::NoDeduplication,
            BaselineName::NoLayout => Baseline::NoLayout,
            BaselineName::Naive | BaselineName::NoDoorbell | BaselineName::NoOverlap => return None,
        })
    }
}

impl Techniques {
    pub(super) fn baseline_wants_processor(&self) -> bool {
        self.gpu.baseline.and_then(BaselineName::of_gpu).is_some_and(|baseline| !baseline.uses_scorer())
    }

    pub(super) fn baseline_is_uncached(&self) -> bool {
        self.load_scheme() == LoadScheme::Naive
    }

    pub(super) fn load_scheme(&self) -> LoadScheme {
        self.gpu.baseline.map_or(LoadScheme::Own, BaselineName::of_loads)
    }

    /// The files that a baseline needs.
    pub(crate) fn baselines(&self) -> OpenBaselines {
        match self.gpu.baseline.and_then(BaselineName::of_gpu) {
            Some(baseline) if baseline.is_resident() => OpenBaselines::Resident,
            Some(baseline) if baseline.needs_files() => OpenBaselines::OnDisk,
            _ => OpenBaselines::No,
        }
    }
}
