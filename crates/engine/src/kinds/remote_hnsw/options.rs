//! Options of a `remote-hnsw`.

#[cfg(feature = "lab")]
use super::baseline::LoadScheme;
use super::limits::CLUSTER_BYTES_MAX;
use crate::exec::GatherOptions;
use stratann_params::Group;
use stratann_params::build::RemoteOptions;
#[cfg(feature = "lab")]
use stratann_params::choices::LoadBaseline;
use stratann_params::search::BatchSettings;
use stratann_storage::budget::size;
use stratann_storage::{Error, Result};

/// Checks the values.
pub(crate) fn check(own: &RemoteOptions) -> Result<()> {
    own.check_ranges()?;
    match own.overflow {
        Some(bytes) if bytes > CLUSTER_BYTES_MAX => Err(Error::bad_input(format!(
            "--overflow is {bytes} bytes; two clusters can share up to {}, which is a read",
            size(CLUSTER_BYTES_MAX)
        ))),
        _ => Ok(()),
    }
}

impl From<BatchSettings> for GatherOptions {
    fn from(settings: BatchSettings) -> GatherOptions {
        let usual = GatherOptions::default();
        let own = GatherOptions {
            batch: settings.batch.map_or(usual.batch, |batch| batch as usize),
            doorbell: settings.doorbell.map_or(usual.doorbell, |doorbell| doorbell as usize),
            is_doorbell_chosen: settings.doorbell.is_some(),
            ..usual
        };
        #[cfg(feature = "lab")]
        let own = settings.baseline.map_or(own, |name| LoadScheme::from(name).gather(own));
        own
    }
}

#[cfg(feature = "lab")]
impl From<LoadBaseline> for LoadScheme {
    fn from(name: LoadBaseline) -> LoadScheme {
        match name {
            LoadBaseline::Naive => LoadScheme::Naive,
            LoadBaseline::NoDoorbell => LoadScheme::NoDoorbell,
            LoadBaseline::NoOverlap => LoadScheme::NoOverlap,
        }
    }
}
