//! Options of searches in a remote-hnsw: how batches are loaded.

use clap::ValueEnum;
use stratann_engine::driver::GatherOptions;
use stratann_engine::kinds::options::RemoteSwitches;

/// Numbers of a search in a remote-hnsw.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Searches in remote-hnsw")]
pub(crate) struct RemoteTechniques {
    /// Length of the beam in each cluster (efSearch) [default: from the curve; 48 or 1.5 k with --nprobe]
    #[arg(long, value_name = "EF")]
    ef: Option<u32>,
    /// Queries of a batch: each cluster that they need is read once for all of them [default: 2000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: Option<u32>,
    /// Most reads of a round trip. While one is searched the next is under way: the memory of both is needed
    /// [default: 64]
    #[arg(long, value_name = "D", value_parser = clap::value_parser!(u32).range(1..=512))]
    doorbell: Option<u32>,
}

/// A remote-hnsw without some of its techniques.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LoadBaseline {
    /// Each query reads its clusters for itself, one after another, without a cache.
    Naive,
    /// A round trip for each cluster.
    NoDoorbell,
    /// A doorbell begins when the one before has been searched.
    NoOverlap,
}

impl RemoteTechniques {
    /// The switches of the kind.
    pub(crate) fn switches(&self) -> RemoteSwitches {
        RemoteSwitches { ef: self.ef }
    }

    /// How a batch is loaded.
    pub(crate) fn gather(&self, baseline: Option<LoadBaseline>) -> GatherOptions {
        let usual = GatherOptions::default();
        let own = GatherOptions {
            batch: self.batch.map_or(usual.batch, |batch| batch as usize),
            doorbell: self.doorbell.map_or(usual.doorbell, |doorbell| doorbell as usize),
            ..usual
        };
        match baseline {
            None => own,
            Some(LoadBaseline::Naive) => GatherOptions { batch: 1, doorbell: 1, overlap: false },
            Some(LoadBaseline::NoDoorbell) => GatherOptions { doorbell: 1, ..own },
            Some(LoadBaseline::NoOverlap) => GatherOptions { overlap: false, ..own },
        }
    }
}
