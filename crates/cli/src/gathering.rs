//! Options of searches in a remote-hnsw: how batches are loaded.

use stratann_engine::exec::GatherOptions;
use stratann_params::search::{BatchSettings, RemoteSwitches};
use stratann_params::{IndexKind, Param, Place, Stage};
use stratann_storage::Result as Checked;

use crate::parameters::{Parameters, Rows};

/// Numbers of a search in a remote-hnsw, for `simulate`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RemoteTechniques {
    #[command(flatten)]
    table: Parameters<RemoteRows>,
}

/// The table's options of searches in a remote-hnsw.
#[derive(Debug)]
struct RemoteRows;

impl Rows for RemoteRows {
    const STAGES: &'static [Stage] = &[Stage::Search];

    fn has(param: &Param) -> bool {
        ["ef", "batch", "doorbell"].contains(&param.name)
    }
}

impl RemoteTechniques {
    /// The switches of the kind.
    pub(crate) fn switches(&self) -> RemoteSwitches {
        self.table.given.read()
    }

    /// Whether an option is given.
    pub(crate) fn is_given(&self) -> bool {
        !self.table.given.is_empty()
    }

    /// How a batch is loaded.
    ///
    /// # Errors
    /// A number out of range.
    pub(crate) fn gather(&self) -> Checked<GatherOptions> {
        self.table.given.check(&self.table.scope([IndexKind::RemoteHnsw], Place::Folder))?;
        Ok(self.table.given.read::<BatchSettings>().into())
    }
}
