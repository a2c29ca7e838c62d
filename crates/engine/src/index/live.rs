//! Content of memory nodes, of an index that is opened from them.

use stratann_storage::{Error, Progress, Result};

use super::{Index, OpenOptions};
use crate::kinds::{LiveFacts, LiveRegion, MemoryReport};

impl Index {
    fn no_live(&self) -> Error {
        let folder = self.base.folder.display();
        Error::bad_input(format!("{folder} is a folder; only an index in memory nodes is asked this"))
    }

    /// Whether it is in memory nodes.
    pub fn is_in_memory_nodes(&self) -> bool {
        self.kind.live().is_some()
    }

    /// Reason why its memory nodes do not have the opened load any more, once a search or an update has noticed:
    /// another load has begun, or a node was started again. Nothing is answered or changed then.
    pub fn replaced(&self) -> Option<Error> {
        self.base.memory_nodes().and_then(|nodes| nodes.replaced().cloned()).map(Error::from)
    }

    /// Opens what its memory nodes have now, with the same options.
    ///
    /// # Errors
    /// An index in a folder; as [`Index::open_memory`].
    pub fn reopened(&self) -> Result<Index> {
        let source = self.base.memory_nodes().ok_or_else(|| self.no_live())?.again()?;
        let options = OpenOptions {
            ram_budget: self.ram_budget,
            cache_budget: self.cache_budget,
            lends_cache: self.lends_cache,
            ..OpenOptions::default()
        };
        Index::of_memory(source, options)
    }

    /// Refuses an index that cannot take the place of this one: who asks this one has other vectors.
    ///
    /// # Errors
    /// Another dimension, element type or distance. The error names both.
    pub fn check_successor(&self, next: &Index) -> Result<()> {
        let (before, now) = (self.manifest().vectors(), next.manifest().vectors());
        match before == now {
            true => Ok(()),
            false => Err(Error::bad_input(format!(
                "memory nodes have a new load, of vectors of {now}, and what was opened has vectors of {before}; open \
                 the index again, or restart the server, for such vectors"
            ))),
        }
    }

    /// Bytes that were read of each memory node since the index was opened, by its number: headers, clusters and fresh
    /// records. Empty for an index in a folder.
    pub fn memory_node_bytes(&self) -> Vec<u64> {
        self.base.memory_nodes().map_or_else(Vec::new, |nodes| nodes.bytes_by_node())
    }

    /// Vectors of the index that are not deleted. Those in memory nodes are counted where they have changed.
    ///
    /// # Errors
    /// Nodes that do not answer, or are damaged.
    pub fn rows(&self) -> Result<u64> {
        self.kind.live().map_or(Ok(self.manifest().rows), LiveRegion::rows)
    }

    /// Content of the memory nodes now.
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
