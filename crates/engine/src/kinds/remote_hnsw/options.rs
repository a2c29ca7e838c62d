//! Options of a `remote-hnsw`.

use super::limits::CLUSTER_BYTES_MAX;
use stratann_params::Group;
use stratann_params::build::RemoteOptions;
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
