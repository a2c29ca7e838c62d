//! The memory of loads that queries share.

use super::KindIndex;
use crate::driver::GatherOptions;

impl KindIndex {
    /// Bytes of the doorbells of a search; 0 of a kind whose queries read for themselves.
    pub(crate) fn doorbells_bytes(&self, options: &GatherOptions) -> u64 {
        match self {
            KindIndex::RemoteHnsw(own) => own.doorbells_bytes(options),
            _ => 0,
        }
    }
}
