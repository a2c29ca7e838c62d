//! Inserts and deletes of an open index.

use stratann_storage::{Progress, Result};

use super::Index;
use crate::kinds::{Acknowledged, Unfinished, Update, UpdateOptions};

impl Index {
    /// Inserts vectors of the index's element type, one after another, under these ids. What is under an id is
    /// replaced. Every batch that begins after the return, on any compute node, finds them.
    ///
    /// # Errors
    /// An index that is not in memory nodes; a bad vector or id, after which nothing is changed; nodes that do not
    /// answer, damage, a region without space, an interruption: the error tells which vectors are acknowledged.
    pub fn upsert(
        &self,
        ids: &[u64],
        vectors: &[u8],
        options: &UpdateOptions,
        progress: &dyn Progress,
    ) -> Result<Acknowledged, Unfinished> {
        let update = Update::Upsert(ids, vectors, options.new_ids);
        self.kind.updater(&self.base)?.apply(update, options, progress)
    }

    /// Deletes ids. Those that do not exist are no error. No batch that begins after the return finds them.
    ///
    /// # Errors
    /// As [`Index::upsert`].
    pub fn delete(
        &self,
        ids: &[u64],
        options: &UpdateOptions,
        progress: &dyn Progress,
    ) -> Result<Acknowledged, Unfinished> {
        self.kind.updater(&self.base)?.apply(Update::Delete(ids), options, progress)
    }

    /// Groups that this process has rebuilt since it opened the index.
    pub fn rebuilds(&self) -> u64 {
        self.kind.live().map_or(0, |live| live.rebuilds.published())
    }

    /// Groups that this process is building now.
    pub fn rebuilds_under_way(&self) -> u64 {
        self.kind.live().map_or(0, |live| live.rebuilds.under_way())
    }
}
