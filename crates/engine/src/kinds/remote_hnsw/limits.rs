//! The limit of a cluster: it is read by one request to a memory node.

use stratann_core::PAGE;
use stratann_storage::budget::size;
use stratann_storage::remote_memory::READ_BYTES_MAX;
use stratann_storage::{Error, Result};

/// Most bytes of a cluster and of the fresh records of a group: each is one read, which begins and ends with a page.
pub(crate) const CLUSTER_BYTES_MAX: u64 = READ_BYTES_MAX - 2 * PAGE as u64;

/// Refuses clusters of which the largest is longer than a read may be.
///
/// # Errors
/// `ErrorKind::BadInput`, naming a number of partitions that suffices if they grow smaller alike.
pub(crate) fn check_clusters(clusters: u64, bytes_max: u64) -> Result<()> {
    if bytes_max <= CLUSTER_BYTES_MAX {
        return Ok(());
    }
    // Clusters have different sizes, so a quarter more.
    let enough =
        (u128::from(clusters) * u128::from(bytes_max) * 5).div_ceil(4 * u128::from(CLUSTER_BYTES_MAX));
    Err(Error::bad_input(format!(
        "the largest of {clusters} clusters takes {}, and a read of a memory node has up to {}; build with \
         --partitions {enough} or more",
        size(bytes_max),
        size(CLUSTER_BYTES_MAX)
    )))
}
