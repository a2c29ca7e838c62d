//! A server of an index in memory nodes, and the cache of a server.

use stratann_cluster::node_registry::found;
use stratann_engine::index::{CacheBudget, Index, OpenOptions};
use stratann_engine::manifest::Manifest;
use stratann_engine::serve::{MemoryNodes, ServeOptions};
use stratann_params::serve::NodeSettings;
use stratann_storage::Result;

use crate::memory_nodes::KeyArgs;
use crate::output::Output;

/// The memory nodes, if there are any.
///
/// # Errors
/// No key, or one that cannot be read; an etcd without memory nodes.
pub(super) fn nodes(settings: &NodeSettings, output: Output) -> Result<Option<MemoryNodes>> {
    if settings.memory.is_empty() {
        return Ok(None);
    }
    let key = KeyArgs {
        key_file: settings.key_file.clone(),
        memory_certificate: settings.memory_certificate.clone(),
        memory_certificate_key: settings.memory_certificate_key.clone(),
        memory_authority: settings.memory_authority.clone(),
    };
    let credentials = key.credentials(output)?;
    Ok(Some(MemoryNodes { addresses: found(&settings.memory)?, credentials }))
}

/// The manifest of what will be served; `None` where it cannot be read, which opening the index reports.
fn manifest(engine: &ServeOptions) -> Option<Manifest> {
    let Some(memory) = &engine.memory else { return Manifest::read(&engine.index).ok().map(|read| read.1) };
    let index = Index::open_memory(&memory.addresses, &memory.credentials, OpenOptions::default());
    index.ok().map(|index| index.manifest().clone())
}

/// Bytes of the cache: a given size, or what is usual.
pub(super) fn cache_bytes(asked: CacheBudget, engine: &ServeOptions) -> u64 {
    let Some(manifest) = manifest(engine) else { return asked.given().unwrap_or(0) };
    let reserve = stratann_engine::search::usual_reserve(&manifest, engine.batch_options, engine.threads);
    let left = engine.ram_budget.map(|budget| budget.saturating_sub(manifest.points_bytes()));
    asked.shared_bytes(&manifest, left, &reserve)
}
