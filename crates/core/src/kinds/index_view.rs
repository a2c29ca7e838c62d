//! The part of an index in RAM, as queries of any kind see it.

use super::KindView;
use crate::search::{Budget, IndexSize, Loss, Read};
use crate::view::Base;

/// The part of an index that lies in RAM, as a query sees it.
#[derive(Clone, Copy, Debug)]
pub struct IndexView<'a> {
    /// The part that all kinds have.
    pub base: Base<'a>,
    /// The part of the kind.
    pub kind: KindView<'a>,
}

impl IndexView<'_> {
    /// The number of its kind, as on the wire.
    pub fn kind_number(&self) -> u8 {
        self.kind.number()
    }

    /// The limits of a query over this index.
    pub fn budget(&self) -> Budget {
        self.kind.budget()
    }

    /// The numbers below which all that a state names must lie.
    pub fn size(&self) -> IndexSize {
        self.kind.size(&self.base)
    }

    /// Whether the distance of any candidate can be computed here, so that a baton may leave distances out.
    pub fn rescores(&self) -> bool {
        self.kind.rescores()
    }

    /// Whether jobs carry what they need of their query, so that no vector goes with them.
    pub fn jobs_have_queries(&self) -> bool {
        self.kind.jobs_have_queries()
    }

    /// Checks bytes that were read, whole. [`IndexView::mask_unwritten`] then makes them ready for a cache or a query.
    ///
    /// # Errors
    /// [`Loss::Short`] when there are fewer bytes than the extent has, [`Loss::Damaged`] when the extent is none that
    /// a query of this index reads, or when a length, a place or a checksum in it is wrong.
    pub fn check_read(&self, read: &Read, bytes: &[u8]) -> Result<(), Loss> {
        if bytes.len() < read.at.bytes as usize {
            return Err(Loss::Short);
        }
        if bytes.len() > read.at.bytes as usize || !self.kind.check_read(&self.base, read, bytes) {
            return Err(Loss::Damaged);
        }
        Ok(())
    }

    /// Makes verified bytes ready for the steps of queries, once: what others were still writing when they were read
    /// is taken out. Returns whether the bytes will never change, so that a cache may keep them.
    pub fn mask_unwritten(&self, read: &Read, bytes: &mut [u8]) -> bool {
        self.kind.mask_unwritten(read, bytes)
    }
}
