//! The questions about the members of an open index.

use stratann_storage::{Progress, Result};

use crate::base::Base;
use crate::kinds::answers::SeeMembers;
use crate::kinds::blocks;

/// Answers about the vectors of an open index. Those of blocks of whole vectors are here already.
pub(crate) trait Members {
    /// Returns the external id and the vector of one member, read past any search.
    ///
    /// # Errors
    /// A disk that fails, a damaged file.
    fn member(&self, base: &Base, id: u32) -> Result<(u64, Vec<u8>)>;

    /// Returns the vector of one member.
    ///
    /// # Errors
    /// As [`Members::member`].
    fn vector(&self, base: &Base, id: u32) -> Result<Vec<u8>> {
        Ok(self.member(base, id)?.1)
    }

    /// Shows every member to `see`, in the order of the file, some at a time.
    ///
    /// # Errors
    /// As [`Members::member`]; an interruption.
    fn for_each_member(&self, base: &Base, progress: &dyn Progress, see: &mut SeeMembers<'_>) -> Result<()> {
        blocks::for_each_member(base, progress, see)
    }

    /// Whether [`Members::vector`] returns the bytes that the index was built from.
    fn keeps_vectors(&self, _: &Base) -> bool {
        true
    }

    /// Returns the steps by which [`Members::for_each_member`] advances the progress: a number and its unit.
    fn scan_work(&self, base: &Base) -> (u64, &'static str) {
        blocks::scan_work(base)
    }
}
