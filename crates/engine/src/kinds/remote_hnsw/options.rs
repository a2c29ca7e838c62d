//! Options of a `remote-hnsw`.

use super::limits::CLUSTER_BYTES_MAX;
use stratann_params::Group;
pub use stratann_params::build::RemoteOptions as Options;
pub use stratann_params::search::RemoteSwitches as Switches;
use stratann_storage::budget::size;
use stratann_storage::{Error, Result};

use crate::record::{Record, Recorded, recorded};

impl Recorded for Options {
    fn check(&self, _: usize) -> Result<()> {
        self.check_ranges()?;
        match self.overflow {
            Some(bytes) if bytes > CLUSTER_BYTES_MAX => Err(Error::bad_input(format!(
                "--overflow is {bytes} bytes; two clusters can share up to {}, which is a read",
                size(CLUSTER_BYTES_MAX)
            ))),
            _ => Ok(()),
        }
    }

    fn record(&self, _: usize) -> Record {
        recorded(self)
    }
}
