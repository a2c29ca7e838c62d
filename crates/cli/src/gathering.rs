//! Options of searches in a remote-hnsw: how batches are loaded.

use clap::ValueEnum;
use stratann_engine::driver::GatherOptions;
use stratann_engine::kinds::options::RemoteSwitches;

/// Numbers of a search in a remote-hnsw.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Searches in remote-hnsw")]
pub struct RemoteTechniques {
    /// Length of the beam in each cluster (efSearch) [default: from the curve; 48 or 1.5 k with --nprobe]
    #[arg(long, value_name = "EF")]
    ef: Option<u32>,
    /// Queries of a batch: each cluster that they need is read once for all of them [default: 2000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: Option<u32>,
    /// Most reads of a round trip. While one is searched the next is under way: the memory of both is needed
    /// [default: 64]. Without this option --ram-budget may shorten them
    #[arg(long, value_name = "D", value_parser = clap::value_parser!(u32).range(1..=512))]
    doorbell: Option<u32>,
}

/// How the clusters of a batch are loaded: as the kind does, or without some of its techniques, to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LoadScheme {
    /// That of the kind.
    #[value(name = "none")]
    Own,
    /// Each query reads its clusters for itself, one after another, without a cache.
    Naive,
    /// A round trip for each cluster.
    NoDoorbell,
    /// A doorbell begins when the one before has been searched.
    NoOverlap,
}

/// All of them, naive first.
pub const ALL_SCHEMES: [LoadScheme; 4] =
    [LoadScheme::Naive, LoadScheme::NoDoorbell, LoadScheme::NoOverlap, LoadScheme::Own];

impl LoadScheme {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            LoadScheme::Own => "remote-hnsw",
            LoadScheme::Naive => "naive",
            LoadScheme::NoDoorbell => "no-doorbell",
            LoadScheme::NoOverlap => "no-overlap",
        }
    }

    /// How it loads a batch, where the kind does it by `own`.
    pub fn gather(self, own: GatherOptions) -> GatherOptions {
        match self {
            LoadScheme::Own => own,
            LoadScheme::Naive => GatherOptions { batch: 1, doorbell: 1, overlap: false, ..own },
            LoadScheme::NoDoorbell => GatherOptions { doorbell: 1, ..own },
            LoadScheme::NoOverlap => GatherOptions { overlap: false, ..own },
        }
    }
}

impl RemoteTechniques {
    /// The switches of the kind.
    pub fn switches(&self) -> RemoteSwitches {
        RemoteSwitches { ef: self.ef }
    }

    /// Whether an option is given.
    pub fn is_given(&self) -> bool {
        self.ef.is_some() || self.batch.is_some() || self.doorbell.is_some()
    }

    /// How a batch is loaded.
    pub fn gather(&self, scheme: LoadScheme) -> GatherOptions {
        let usual = GatherOptions::default();
        scheme.gather(GatherOptions {
            batch: self.batch.map_or(usual.batch, |batch| batch as usize),
            doorbell: self.doorbell.map_or(usual.doorbell, |doorbell| doorbell as usize),
            is_doorbell_chosen: self.doorbell.is_some(),
            ..usual
        })
    }
}
