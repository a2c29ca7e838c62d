//! Opens an index that is in the memory of memory nodes alone.

use std::path::Path;
use std::sync::{Arc, Mutex};

use stratann_core::format::region::{SUPERBLOCK_BYTES, Superblock};
use stratann_core::remote::Places;

use super::LiveRegion;
use super::changes::RebuildCounters;
use crate::kinds::kind::Kind;
use crate::manifest::Manifest;
use crate::remote_memory::RemoteSource;
use crate::{Error, Result};

/// What memory nodes say of the index that they hold.
pub(crate) struct Found {
    pub(crate) manifest: Manifest,
    pub(crate) meta: Vec<u8>,
    pub(crate) live: LiveRegion,
}

/// Reads superblocks, manifest and meta-HNSW.
///
/// # Errors
/// Nodes that do not answer, hold nothing or different builds, or are damaged.
pub(crate) fn find(source: &Arc<RemoteSource>) -> Result<Found> {
    let mut nodes = source.connect()?;
    let mut superblocks = Vec::new();
    for facts in nodes.facts() {
        let number = facts.node.0;
        let bytes = nodes.read(number, 0, 2 * SUPERBLOCK_BYTES)?;
        let own = Superblock::newest(&bytes).ok_or_else(|| {
            Error::bad_input(format!(
                "memory node {number} holds no index (epoch {:016x}); load one into it with `stratann memory-node \
                 load`",
                facts.epoch
            ))
        })?;
        superblocks.push((number, own));
    }
    let Some(&(_, any)) = superblocks.first() else {
        return Err(Error::bad_input("no memory node answers; name their addresses in --memory"));
    };
    check_together(&superblocks)?;
    source.expect(&any);
    let mut own = Vec::with_capacity(any.nodes as usize);
    for node in 0..any.nodes as u8 {
        // A mirror has the same bytes as the node that it mirrors.
        let found = superblocks.iter().find(|(_, own)| own.node == u64::from(node));
        let &(number, superblock) = found.ok_or_else(|| {
            Error::bad_input(format!(
                "memory node {node} of {} does not answer, and no mirror of it; start it, and name its address",
                any.nodes
            ))
        })?;
        own.push((number, superblock));
    }
    let is_mirrored = superblocks.iter().any(|(number, _)| u64::from(*number) >= any.nodes);
    let mirrors = if is_mirrored { (any.nodes as u8..2 * any.nodes as u8).collect() } else { Vec::new() };
    let (first_number, first) = own[0];
    let meta = nodes.read(first_number, first.meta_at, first.meta_bytes)?;
    let text = nodes.read(first_number, first.meta_at + first.meta_bytes, first.manifest_bytes)?;
    let origin = format!("memory node {first_number}");
    let manifest = String::from_utf8(text)
        .map_err(|_| Error::corrupt(format!("{origin}: the manifest is damaged; load the index again")))
        .and_then(|text| Manifest::from_text(&text, Path::new(&origin)))?;
    if manifest.kind() != Some(Kind::RemoteHnsw) || manifest.blocks.checksum_seed != first.build {
        return Err(Error::corrupt(format!(
            "{origin}: the manifest is of another index; load the index again"
        )));
    }
    let vector_bytes = manifest.dim * manifest.dtype().map_or(0, |dtype| dtype.size());
    let places = Places { nodes: own.into_iter().map(|(_, own)| own).collect(), mirrors, vector_bytes };
    let live = LiveRegion {
        source: source.clone(),
        places,
        idle: Mutex::default(),
        idle_writers: Mutex::default(),
        rebuilds: RebuildCounters::default(),
        newest: Mutex::default(),
    };
    Ok(Found { manifest, meta, live })
}

/// Refuses nodes of different builds or loads.
fn check_together(superblocks: &[(u8, Superblock)]) -> Result<()> {
    let Some(&(first, any)) = superblocks.first() else { return Ok(()) };
    if let Some((number, other)) = superblocks.iter().find(|(_, own)| own.build != any.build) {
        return Err(Error::bad_input(format!(
            "memory node {number} holds build {:016x} of an index, memory node {} build {:016x}; load one index into \
             all of them",
            other.build, first, any.build
        )));
    }
    if let Some((number, _)) = superblocks.iter().find(|(_, own)| own.sequence != any.sequence) {
        return Err(Error::bad_input(format!(
            "memory nodes {} and {number} were not loaded together, so one of them lacks changes; name the nodes of \
             the last load, or load the index into all of them again",
            first
        )));
    }
    Ok(())
}
