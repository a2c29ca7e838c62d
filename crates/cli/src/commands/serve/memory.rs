//! Options of a server of an index in memory nodes.

use std::path::{Path, PathBuf};

use stratann_cluster::memory::found;
use stratann_engine::exec::GatherOptions;
use stratann_engine::index::{CacheBudget, Index, OpenOptions};
use stratann_engine::manifest::Manifest;
use stratann_engine::serve::{MemoryNodes, ServeOptions};
use stratann_storage::{Error, Result};

use super::in_range;
use crate::memory_nodes::KeyArgs;
use crate::output::Output;

/// Memory nodes, and how batches are loaded.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ServedMemory {
    /// Serve the index that memory nodes hold, instead of a folder: HOST:PORT, shm:NAME or ucx:HOST:PORT of each, or
    /// etcd:CLUSTER@URL, with --key-file
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', conflicts_with = "index")]
    memory: Vec<String>,
    #[command(flatten)]
    key: KeyArgs,
    /// Most queries of a batch of a remote-hnsw, divided over the threads: each reads a cluster once for its part. A
    /// batch has the queries that wait when the one before ends [default: 2000]
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// Most reads of a round trip of a remote-hnsw [default: 64]. Without this option --ram-budget may shorten them
    #[arg(long, value_name = "D")]
    doorbell: Option<usize>,
}

/// The same in the file of options.
#[derive(Default)]
pub(super) struct MemoryKeys {
    pub(super) memory: Vec<String>,
    pub(super) key_file: Option<PathBuf>,
    pub(super) certificate: Option<PathBuf>,
    pub(super) certificate_key: Option<PathBuf>,
    pub(super) authority: Option<PathBuf>,
    pub(super) batch: Option<usize>,
    pub(super) doorbell: Option<usize>,
}

impl ServedMemory {
    /// Whether there are memory nodes, in options or file.
    pub(super) fn is_used(&self, keys: &MemoryKeys) -> bool {
        !self.memory.is_empty() || !keys.memory.is_empty()
    }

    /// The memory nodes, if there are any. Paths of the file are relative to `folder`.
    ///
    /// # Errors
    /// No key, or one that cannot be read; an etcd without memory nodes.
    pub(super) fn nodes(
        &self,
        keys: &MemoryKeys,
        folder: &Path,
        output: Output,
    ) -> Result<Option<MemoryNodes>> {
        let addresses = if self.memory.is_empty() { &keys.memory } else { &self.memory };
        if addresses.is_empty() {
            return Ok(None);
        }
        let given = |own: &Option<PathBuf>, key: &Option<PathBuf>| {
            own.clone().or_else(|| key.as_ref().map(|path| folder.join(path)))
        };
        let key = KeyArgs {
            key_file: given(&self.key.key_file, &keys.key_file),
            memory_certificate: given(&self.key.memory_certificate, &keys.certificate),
            memory_certificate_key: given(&self.key.memory_certificate_key, &keys.certificate_key),
            memory_authority: given(&self.key.memory_authority, &keys.authority),
        };
        let credentials = key.credentials(output)?;
        Ok(Some(MemoryNodes { addresses: found(addresses)?, credentials }))
    }

    /// How batches are loaded.
    ///
    /// # Errors
    /// A number out of range.
    pub(super) fn gather(&self, keys: &MemoryKeys) -> Result<GatherOptions> {
        let usual = GatherOptions::default();
        let batch = self.batch.or(keys.batch).unwrap_or(usual.batch);
        let chosen = self.doorbell.or(keys.doorbell);
        let doorbell = chosen.unwrap_or(usual.doorbell);
        Ok(GatherOptions {
            batch: in_range("batch", batch, 1, 65_536)?,
            doorbell: in_range("doorbell", doorbell, 1, 512)?,
            is_doorbell_chosen: chosen.is_some(),
            ..usual
        })
    }
}

/// The manifest of what will be served; `None` where it cannot be read, which opening the index reports.
pub(super) fn manifest(engine: &ServeOptions) -> Option<Manifest> {
    let Some(memory) = &engine.memory else { return Manifest::read(&engine.index).ok().map(|read| read.1) };
    let index = Index::open_memory(&memory.addresses, &memory.credentials, OpenOptions::default());
    index.ok().map(|index| index.manifest().clone())
}

/// Refuses what an index in memory nodes does not go with.
///
/// # Errors
/// The first such option.
pub(super) fn check(engine: &ServeOptions, has_etcd: bool) -> Result<()> {
    let Some(_) = &engine.memory else { return Ok(()) };
    let wrong = [
        (engine.server.is_some() || engine.listen.is_some(), "server, listen and peers"),
        (has_etcd, "etcd and cluster"),
    ];
    match wrong.iter().find(|wrong| wrong.0) {
        None => Ok(()),
        Some((_, names)) => Err(Error::bad_input(format!(
            "servers of an index in memory nodes know nothing of each other; leave out {names}, and start as many as \
             you need"
        ))),
    }
}

/// Bytes of the cache: a given size, or what is usual.
pub(super) fn cache_bytes(asked: CacheBudget, engine: &ServeOptions) -> u64 {
    let Some(manifest) = manifest(engine) else { return asked.given().unwrap_or(0) };
    let reserve = stratann_engine::search::usual_reserve(&manifest, engine.gather, engine.threads);
    asked.shared_bytes(&manifest, engine.ram_budget, &reserve)
}
