//! Ways to load the clusters of a batch: that of the kind, and those it is compared with.

use stratann_engine::driver::GatherOptions;

/// One way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    /// Each query reads its clusters for itself, without a cache.
    Naive,
    /// A round trip for each cluster that the batch needs.
    NoDoorbell,
    /// A doorbell begins when the one before has been searched.
    NoOverlap,
    /// That of the kind.
    Own,
}

/// All of them.
pub(super) const ALL: [Scheme; 4] = [Scheme::Naive, Scheme::NoDoorbell, Scheme::NoOverlap, Scheme::Own];
/// Those of the paper.
pub(super) const COMPARED: [Scheme; 3] = [Scheme::Naive, Scheme::NoDoorbell, Scheme::Own];

impl Scheme {
    /// The name in reports, as `--baseline` has it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Scheme::Naive => "naive",
            Scheme::NoDoorbell => "no-doorbell",
            Scheme::NoOverlap => "no-overlap",
            Scheme::Own => "remote-hnsw",
        }
    }

    /// How it loads batches of so many queries.
    pub(super) fn gather(self, batch: usize) -> GatherOptions {
        let own = GatherOptions { batch, ..GatherOptions::default() };
        match self {
            Scheme::Naive => GatherOptions { batch: 1, doorbell: 1, overlap: false },
            Scheme::NoDoorbell => GatherOptions { doorbell: 1, ..own },
            Scheme::NoOverlap => GatherOptions { overlap: false, ..own },
            Scheme::Own => own,
        }
    }
}
