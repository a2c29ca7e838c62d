//! Questions about the one kind whose index may be in memory nodes.

use std::sync::Arc;

use stratann_core::query::Params;
use stratann_core::sieve::IdSieve;
use stratann_storage::remote_memory::RemoteSource;
use stratann_storage::{Progress, Result};

use super::KindIndex;
use super::answers::SievePlan;
use super::remote_hnsw::linking::{self, Linking, LinkingOptions};
use super::remote_hnsw::live::LiveRegion;
use super::remote_hnsw::live::inspect::{self, MemoryReport};
use super::remote_hnsw::live::open::find;
use super::remote_hnsw::live::updates::{Updater, refused};
use super::remote_hnsw::open::RemoteIndex;
use super::remote_hnsw::sieved;
use crate::base::Base;
use crate::manifest::Manifest;

/// An index that memory nodes hold.
pub(crate) struct HeldByNodes<F> {
    pub(crate) manifest: Manifest,
    /// Opens the kind, once there is a base for it.
    pub(crate) open: F,
}

impl KindIndex {
    /// Measures what linking fresh records would cost and save; `None` of a kind without any.
    ///
    /// # Errors
    /// As [`linking::measure`].
    pub(crate) fn measure_linking(
        &self,
        base: &Base,
        options: &LinkingOptions<'_>,
        progress: &dyn Progress,
    ) -> Result<Option<Vec<Linking>>> {
        let KindIndex::RemoteHnsw(own) = self else { return Ok(None) };
        linking::measure(base, own, options, progress).map(Some)
    }

    /// Finds the index that memory nodes hold.
    ///
    /// # Errors
    /// Nodes that hold no index, or parts of several.
    pub(crate) fn of_memory(
        source: &Arc<RemoteSource>,
    ) -> Result<HeldByNodes<impl FnOnce(&Base) -> Result<KindIndex> + use<>>> {
        let found = find(source)?;
        let (meta, live) = (found.meta, found.live);
        let open =
            move |base: &Base| Ok(KindIndex::RemoteHnsw(Box::new(RemoteIndex::of_memory(base, meta, live)?)));
        Ok(HeldByNodes { manifest: found.manifest, open })
    }

    /// Plans a query that returns the ids of a sieve; `None` of an index whose rows have numbers.
    pub(crate) fn plan_ids(&self, usual: &Params, effort_times: f64, ids: &IdSieve) -> Option<SievePlan> {
        let KindIndex::RemoteHnsw(own) = self else { return None };
        own.live.as_ref().map(|_| sieved::plan_ids(own, usual, effort_times, ids))
    }

    /// Checks all that the memory nodes of a live index hold; `None` of an index in a folder.
    ///
    /// # Errors
    /// Nodes that do not answer; an interruption.
    pub(crate) fn verify_memory(&self, base: &Base, progress: &dyn Progress) -> Option<Result<MemoryReport>> {
        let KindIndex::RemoteHnsw(own) = self else { return None };
        own.live.as_ref().map(|live| inspect::check(base, own, live, progress))
    }

    /// The part in memory nodes, which changes; `None` of an index in a folder.
    pub(crate) fn live(&self) -> Option<&LiveRegion> {
        if let KindIndex::RemoteHnsw(own) = self { own.live.as_ref() } else { None }
    }

    /// Inserts and deletes of the index.
    ///
    /// # Errors
    /// Another kind, or an index in a folder.
    pub(crate) fn updater<'a>(&'a self, base: &'a Base) -> Result<Updater<'a>> {
        if let KindIndex::RemoteHnsw(own) = self { Updater::new(base, own) } else { Err(refused(base)) }
    }
}
