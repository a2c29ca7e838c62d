//! Options of the loads of a batch, as a user gave them.

use stratann_params::search::BatchSettings;

#[cfg(feature = "lab")]
use super::baseline::LoadScheme;
use crate::exec::BatchOptions;

impl From<BatchSettings> for BatchOptions {
    fn from(settings: BatchSettings) -> BatchOptions {
        let usual = BatchOptions::default();
        let own = BatchOptions {
            batch: settings.batch.map_or(usual.batch, |batch| batch as usize),
            doorbell: settings.doorbell.map_or(usual.doorbell, |doorbell| doorbell as usize),
            is_doorbell_chosen: settings.doorbell.is_some(),
            ..usual
        };
        #[cfg(feature = "lab")]
        let own = settings.baseline.map_or(own, |name| LoadScheme::from(name).batch_options(own));
        own
    }
}
