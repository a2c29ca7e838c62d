//! Opens an index that is in the memory of memory nodes alone.

use std::path::Path;
use std::sync::{Arc, Mutex};

use stratann_core::format::region::{SUPERBLOCK_BYTES, Superblock};
use stratann_core::remote::Places;

use super::LiveRegion;
use super::changes::RebuildCounters;
use crate::kinds::kind::Kind;
use crate::manifest::Manifest;
use crate::remote_memory::{Facts, Nodes, RemoteSource};
use crate::{Error, Result};

/// What memory nodes say of the index that they hold.
pub(crate) struct Found {
    pub(crate) manifest: Manifest,
    pub(crate) meta: Vec<u8>,
    pub(crate) live: LiveRegion,
    /// Nodes that are not used though they answer.
    pub(crate) warnings: Vec<String>,
}

/// Reads superblocks, manifest and meta-HNSW.
///
/// # Errors
/// Nodes that do not answer, hold nothing or different builds, or are damaged.
pub(crate) fn find(source: &Arc<RemoteSource>) -> Result<Found> {
    let mut nodes = source.connect()?;
    let (mut superblocks, mut empty) = (Vec::new(), Vec::new());
    for facts in nodes.facts() {
        let bytes = nodes.read(facts.node.0, 0, 2 * SUPERBLOCK_BYTES)?;
        match Superblock::newest(&bytes) {
            Some(own) => superblocks.push((facts.node.0, own)),
            None => empty.push(facts),
        }
    }
    let warnings = leave_out(&empty, &superblocks, (source, &mut nodes))?;
    let Some(&(_, any)) = superblocks.first() else {
        return Err(Error::bad_input("no memory node answers; name their addresses in --memory"));
    };
    check_together(&superblocks)?;
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
    // Mirrors that do not answer now are mirrors still: a change is acknowledged once it is on them.
    let is_mirrored = superblocks.iter().any(|(number, _)| u64::from(*number) >= any.nodes)
        || source.addresses().len() as u64 == 2 * any.nodes;
    let mirrors: Vec<u8> =
        if is_mirrored { (any.nodes as u8..2 * any.nodes as u8).collect() } else { Vec::new() };
    let ends = (0..).zip(own.iter().map(|(_, own)| own.end));
    let mirrored = mirrors.iter().copied().zip(own.iter().map(|(_, own)| own.end));
    source.expect(&any, ends.chain(mirrored).collect());
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
        abandoned: Mutex::default(),
        rebuilds: RebuildCounters::default(),
        newest: Mutex::default(),
    };
    Ok(Found { manifest, meta, live, warnings })
}

/// Leaves out nodes that hold no index where their mirrors, or those that they mirror, hold one. Returns warnings.
///
/// # Errors
/// A node without another one that has its part.
fn leave_out(
    empty: &[Facts],
    superblocks: &[(u8, Superblock)],
    (source, nodes): (&RemoteSource, &mut Nodes),
) -> Result<Vec<String>> {
    let data = superblocks.first().map_or(0, |(_, any)| any.nodes);
    let mut warnings = Vec::new();
    for facts in empty {
        let (number, epoch) = (facts.node.0, facts.epoch);
        let is_one_of_two = |other: u8| {
            let (own, other) = (u64::from(number), u64::from(other));
            data > 0 && own < 2 * data && own % data == other % data
        };
        let Some((other, _)) = superblocks.iter().find(|(other, _)| is_one_of_two(*other)) else {
            return Err(Error::bad_input(format!(
                "memory node {number} holds no index (epoch {epoch:016x}); load one into it with `stratann memory-node \
                 load`"
            )));
        };
        nodes.leave_out(number);
        let address = source.leave_out(number);
        warnings.push(format!(
            "memory node {number} at {address} holds no index (epoch {epoch:016x}), so memory node {other} alone has \
             its part, which takes no changes; load the index again with `stratann memory-node load … --mirror`"
        ));
    }
    Ok(warnings)
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
