//! Opens an index that is in the memory of memory nodes alone.

use std::path::Path;
use std::sync::{Arc, Mutex};

use stratann_core::format::hnsw::HnswLayout;
use stratann_core::format::region::{DESCRIPTOR_BYTES, Descriptor, SUPERBLOCK_BYTES, Superblock};
use stratann_core::remote_protocol::Places;
use stratann_storage::remote_memory::{Facts, Nodes, RemoteSource};
use stratann_storage::{Error, Result};

use super::LiveRegion;
use super::updates::RebuildCounters;
use crate::Metric;
use crate::manifest::Manifest;
use stratann_params::IndexKind;

/// Description of the index that memory nodes hold.
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
    let mut nodes = source.connect();
    let mut own = Vec::new();
    for facts in nodes.facts() {
        let bytes = nodes.read(facts.node.0, 0, 2 * SUPERBLOCK_BYTES)?;
        own.push((facts.node.0, Superblock::newest(&bytes).ok_or_else(|| holds_nothing(&facts, &bytes))?));
    }
    check_together(&own)?;
    let count = own.first().map_or(0, |(_, first)| first.nodes);
    if let Some(node) = (0..count).find(|&node| own.iter().all(|(_, own)| own.node != node)) {
        let why = source.missed().map_or(String::new(), |why| format!(" ({why})"));
        return Err(Error::bad_input(format!(
            "memory node {node} of {count} does not answer; name its address. If it has ended, start it and load the \
             index again{why}"
        )));
    }
    let (first_number, first) = own[0];
    let meta = nodes.read(first_number, first.meta_at, first.meta_bytes)?;
    let text = nodes.read(first_number, first.meta_at + first.meta_bytes, first.manifest_bytes)?;
    let origin = format!("memory node {first_number}");
    let manifest = String::from_utf8(text)
        .map_err(|_| Error::corrupt(format!("{origin}: the manifest is damaged; load the index again")))
        .and_then(|text| Manifest::from_text(&text, Path::new(&origin)))?;
    if manifest.kind() != Some(IndexKind::RemoteHnsw) || manifest.blocks.checksum_seed != first.build {
        return Err(Error::corrupt(format!(
            "{origin}: the manifest is of another index; load the index again"
        )));
    }
    let loaded = loaded_rows(&mut nodes, &first)?;
    let vector_bytes = manifest.dim * manifest.dtype().map_or(0, |dtype| dtype.size());
    let places = Places { nodes: own.into_iter().map(|(_, own)| own).collect(), vector_bytes };
    let live = LiveRegion {
        source: source.clone(),
        places,
        loaded,
        idle: Mutex::default(),
        idle_writers: Mutex::default(),
        abandoned: Mutex::default(),
        rebuilds: RebuildCounters::default(),
        newest: Mutex::default(),
        layout: HnswLayout { vector_bytes, norms: manifest.metric() == Some(Metric::Cosine) },
        counted: Mutex::default(),
    };
    Ok(Found { manifest, meta, live })
}

/// Rows of each cluster when it was loaded.
fn loaded_rows(nodes: &mut Nodes, first: &Superblock) -> Result<Vec<u32>> {
    let bytes = 2 * first.groups * DESCRIPTOR_BYTES;
    let table = nodes.read(0, first.descriptors_at, bytes)?;
    let groups = (0..).zip(table.chunks_exact(2 * DESCRIPTOR_BYTES as usize));
    let found = groups.map(|(group, own)| Descriptor::decode(first.build, group, 0, own).unwrap_or_default());
    Ok(found.flat_map(|own| own.clusters.map(|cluster| cluster.members)).collect())
}

/// Why a node whose superblocks cannot be read is of no use.
fn holds_nothing(facts: &Facts, bytes: &[u8]) -> Error {
    let node = facts.node.0;
    match Superblock::other_format(bytes) {
        Some(format) => Error::bad_input(format!(
            "memory node {node} holds an index in format {format} of regions, which another version has loaded; load \
             it again with `stratann memory-node load` of this version"
        )),
        None => Error::bad_input(format!(
            "memory node {node} holds no index (epoch {:016x}): nothing was loaded since it was started. A node that \
             ends loses all; load the index again with `stratann memory-node load`",
            facts.epoch
        )),
    }
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
