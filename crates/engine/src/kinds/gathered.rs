//! What is asked of a kind whose queries share their loads, and whose index may be in memory nodes.

use std::sync::Arc;

use stratann_core::plan::remote_hnsw::Located;

use super::KindIndex;
use super::remote_hnsw::live::LiveRegion;
use super::remote_hnsw::live::changes::{Changes, refused};
use super::remote_hnsw::live::inspect::{self, MemoryReport};
use super::remote_hnsw::live::load::divide;
use super::remote_hnsw::live::open::find;
use super::remote_hnsw::open::RemoteIndex;
use crate::base::Base;
use crate::driver::GatherOptions;
use crate::manifest::Manifest;
use crate::remote_memory::RemoteSource;
use crate::{Progress, Result};

impl KindIndex {
    /// Bytes of the doorbells of a search; 0 of a kind whose queries read for themselves.
    pub(crate) fn doorbells_bytes(&self, options: &GatherOptions) -> u64 {
        match self {
            KindIndex::RemoteHnsw(own) => own.doorbells_bytes(options),
            _ => 0,
        }
    }

    /// The memory node of each cluster where groups are divided over so many nodes by their bytes, as loading them
    /// does; empty of a kind without memory nodes.
    pub(crate) fn nodes_of_clusters(&self, nodes: usize) -> Vec<u8> {
        let KindIndex::RemoteHnsw(own) = self else { return Vec::new() };
        let bytes = |group: &[Located]| group.iter().map(|at| u64::from(at.base.bytes)).sum::<u64>();
        let spaces: Vec<u64> =
            own.clusters.chunks(2).map(|group| bytes(group) + own.facts.overflow_bytes()).collect();
        let mut placed = vec![0; spaces.len()];
        divide(&spaces, &mut vec![0; nodes.max(1)])
            .into_iter()
            .for_each(|(group, at)| placed[group] = at.node());
        (0..own.clusters.len()).map(|cluster| placed[cluster / 2]).collect()
    }

    /// What memory nodes hold: the manifest, and what opens the kind once there is a base for it.
    ///
    /// # Errors
    /// Nodes that hold no index, or parts of several.
    pub(crate) fn of_memory(
        source: &Arc<RemoteSource>,
    ) -> Result<(Manifest, impl FnOnce(&Base) -> Result<KindIndex> + use<>)> {
        let found = find(source)?;
        let (meta, live) = (found.meta, found.live);
        let open =
            move |base: &Base| Ok(KindIndex::RemoteHnsw(Box::new(RemoteIndex::of_memory(base, meta, live)?)));
        Ok((found.manifest, open))
    }

    /// Checks all that the memory nodes of a live index hold; `None` of an index in a folder.
    ///
    /// # Errors
    /// Nodes that do not answer; an interruption.
    pub(crate) fn verify_memory(&self, base: &Base, progress: &dyn Progress) -> Option<Result<MemoryReport>> {
        let KindIndex::RemoteHnsw(own) = self else { return None };
        own.live.as_ref().map(|live| inspect::check(base, own, live, progress))
    }

    /// Where it is in memory nodes, and changes; `None` of an index in a folder.
    pub(crate) fn live(&self) -> Option<&LiveRegion> {
        if let KindIndex::RemoteHnsw(own) = self { own.live.as_ref() } else { None }
    }

    /// What inserts and deletes.
    ///
    /// # Errors
    /// Another kind, or an index in a folder.
    pub(crate) fn changes<'a>(&'a self, base: &'a Base) -> Result<Changes<'a>> {
        if let KindIndex::RemoteHnsw(own) = self { Changes::new(base, own) } else { Err(refused(base)) }
    }
}
