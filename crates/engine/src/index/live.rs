//! What memory nodes hold, of an index that is opened from them.

use super::Index;
use crate::kinds::{LiveFacts, LiveRegion, MemoryReport};
use crate::{Error, Progress, Result};

impl Index {
    fn no_live(&self) -> Error {
        let folder = self.base.folder.display();
        Error::bad_input(format!("{folder} is a folder; only an index in memory nodes is asked this"))
    }

    /// Whether it is in memory nodes.
    pub fn is_in_memory_nodes(&self) -> bool {
        self.kind.live().is_some()
    }

    /// Bytes that were read of each memory node since the index was opened, by its number: headers, clusters and fresh
    /// records. Empty for an index in a folder.
    pub fn memory_node_bytes(&self) -> Vec<u64> {
        self.base.memory().map_or_else(Vec::new, |nodes| nodes.bytes_by_node())
    }

    /// What the memory nodes hold now.
    ///
    /// # Errors
    /// An index in a folder; nodes that do not answer, or are damaged.
    pub fn live_facts(&self) -> Result<LiveFacts> {
        self.kind.live().ok_or_else(|| self.no_live()).and_then(LiveRegion::facts)
    }

    /// Reads all that the memory nodes hold, and reports everything that is wrong. Others may change it meanwhile.
    ///
    /// # Errors
    /// As [`Index::live_facts`], and an interruption. Damage of clusters and records is no error but a finding.
    pub fn verify_memory(&self, progress: &dyn Progress) -> Result<MemoryReport> {
        self.kind.verify_memory(&self.base, progress).unwrap_or_else(|| Err(self.no_live()))
    }
}
