//! Copies a published version of an index into memory nodes.

use std::path::Path;

use stratann_storage::names::BuildId;
use stratann_storage::remote_memory::Credentials;
use stratann_storage::{Progress, Result};

use crate::index::{Index, OpenOptions};
use crate::kinds;
pub use crate::kinds::LoadedNode;
use crate::search::{Traffic, TrafficOptions};

/// Options of a load.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadOptions<'a> {
    /// Place groups by their bytes alone.
    pub by_bytes: bool,
    /// Expected traffic.
    pub traffic: TrafficOptions<'a>,
}

/// Report of a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The number of the load.
    pub load: u64,
    /// The build of the index.
    pub build_id: BuildId,
    /// Each node, by number.
    pub nodes: Vec<LoadedNode>,
    /// Groups of two clusters.
    pub groups: u32,
    /// The traffic that is expected.
    pub traffic: Traffic,
}

/// Loads the newest version in a folder into memory nodes, whose regions are replaced. Groups are placed by the
/// traffic that the index itself tells.
///
/// # Errors
/// As [`load_with`].
pub fn load(
    folder: &Path,
    addresses: &[String],
    credentials: &Credentials,
    progress: &dyn Progress,
) -> Result<Loaded> {
    load_with(folder, addresses, credentials, &LoadOptions::default(), progress)
}

/// As [`load`], with options.
///
/// # Errors
/// Another kind of index; nodes that do not answer, whose numbers have gaps, or that are too small: the error names the
/// smallest size that works; damage; a number out of range; another load that begins; an interruption, after which the
/// nodes hold no index.
pub fn load_with(
    folder: &Path,
    addresses: &[String],
    credentials: &Credentials,
    options: &LoadOptions<'_>,
    progress: &dyn Progress,
) -> Result<Loaded> {
    let index = Index::open(folder, OpenOptions::default())?;
    let manifest = index.manifest();
    kinds::check_loadable(manifest, folder)?;
    manifest.check_without_points(folder, "a load into memory nodes")?;
    let traffic = index.expected_traffic(&options.traffic)?;
    let placing = (&traffic.cluster_bytes[..], options.by_bytes);
    let copied = kinds::copy_to_nodes((&index.base, folder), (addresses, credentials), placing, progress)?;
    Ok(Loaded {
        load: copied.load,
        build_id: manifest.build_id,
        nodes: copied.nodes,
        groups: copied.groups,
        traffic,
    })
}
