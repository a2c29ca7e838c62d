//! Ways to load the clusters of a batch without some techniques of the kind, to compare (d-HNSW §4).

use stratann_params::choices::LoadBaseline;

use crate::exec::BatchOptions;

/// Ways to load the clusters of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadScheme {
    /// That of the kind.
    Own,
    /// Each query reads its clusters for itself, one after another, without a cache.
    Naive,
    /// A round trip for each cluster.
    NoDoorbell,
    /// A doorbell begins when the one before has been searched.
    NoOverlap,
}

impl LoadScheme {
    /// All schemes, naive first.
    pub const ALL: [LoadScheme; 4] =
        [LoadScheme::Naive, LoadScheme::NoDoorbell, LoadScheme::NoOverlap, LoadScheme::Own];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            LoadScheme::Own => "remote-hnsw",
            LoadScheme::Naive => "naive",
            LoadScheme::NoDoorbell => "no-doorbell",
            LoadScheme::NoOverlap => "no-overlap",
        }
    }

    /// Whether no cluster stays for the queries that follow.
    pub fn is_uncached(self) -> bool {
        self == LoadScheme::Naive
    }

    /// Options of the loads of a batch, where the kind has `own`.
    pub fn batch_options(self, own: BatchOptions) -> BatchOptions {
        match self {
            LoadScheme::Own => own,
            LoadScheme::Naive => BatchOptions { batch: 1, doorbell: 1, overlap: false, ..own },
            LoadScheme::NoDoorbell => BatchOptions { doorbell: 1, ..own },
            LoadScheme::NoOverlap => BatchOptions { overlap: false, ..own },
        }
    }
}

impl From<LoadBaseline> for LoadScheme {
    fn from(name: LoadBaseline) -> LoadScheme {
        match name {
            LoadBaseline::Naive => LoadScheme::Naive,
            LoadBaseline::NoDoorbell => LoadScheme::NoDoorbell,
            LoadBaseline::NoOverlap => LoadScheme::NoOverlap,
        }
    }
}
