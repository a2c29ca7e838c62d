//! Options of searches in a remote-hnsw: how batches are loaded.

use stratann_engine::exec::GatherOptions;
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
    /// [default: 64]. Without this option --ram-budget may shorten them
    #[arg(long, value_name = "D", value_parser = clap::value_parser!(u32).range(1..=512))]
    doorbell: Option<u32>,
}

impl RemoteTechniques {
    /// The switches of the kind.
    pub(crate) fn switches(&self) -> RemoteSwitches {
        RemoteSwitches { ef: self.ef }
    }

    /// Whether an option is given.
    pub(crate) fn is_given(&self) -> bool {
        self.ef.is_some() || self.batch.is_some() || self.doorbell.is_some()
    }

    /// How a batch is loaded.
    pub(crate) fn gather(&self) -> GatherOptions {
        let usual = GatherOptions::default();
        GatherOptions {
            batch: self.batch.map_or(usual.batch, |batch| batch as usize),
            doorbell: self.doorbell.map_or(usual.doorbell, |doorbell| doorbell as usize),
            is_doorbell_chosen: self.doorbell.is_some(),
            ..usual
        }
    }
}
