//! An open index as drivers search it.

use std::io;

use stratann_core::kinds::IndexView;
use stratann_core::query::Extent;
use stratann_storage::cache::ExtentCache;
use stratann_storage::remote_memory::RemoteSource;
use stratann_storage::tier::{self, FileIds, IoChoice, Tier};

use super::Index;
use crate::exec::Segment;
use crate::exec::scorer::Scorer;

impl Segment for Index {
    fn view(&self) -> IndexView<'_> {
        self.kind.view(&self.base)
    }

    fn cache(&self) -> Option<&ExtentCache> {
        self.cache.as_ref()
    }

    fn file_ids(&self) -> FileIds {
        let of_nodes = || self.base.memory_nodes().map_or(FileIds::ALONE, |nodes| nodes.file_ids());
        self.files.as_ref().map_or_else(of_nodes, |files| files.ids())
    }

    fn locate(&self, at: Extent) -> Option<Extent> {
        Some(if self.files.is_some() { at } else { RemoteSource::locate(at) })
    }

    fn scorer(&self) -> Option<&dyn Scorer> {
        self.kind.scorer()
    }
}

impl Index {
    /// Source of a thread's reads of this index alone: its files, or memory nodes.
    ///
    /// # Errors
    /// io_uring is refused; no memory node answers.
    pub(crate) fn tier(&self, depth: usize, io: IoChoice, doorbell: usize) -> io::Result<Box<dyn Tier>> {
        if let Some(memory) = self.base.memory_nodes() {
            return memory.tier(depth, doorbell);
        }
        let mut tier = tier::open(depth, self.base.block.block_bytes, io)?;
        tier.set_files(self.files.as_slice());
        Ok(tier)
    }
}
