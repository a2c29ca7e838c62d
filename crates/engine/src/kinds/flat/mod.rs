//! `flat`: all vectors, scanned.

pub(crate) mod build;

use stratann_core::query::Budget;

use crate::base::Base;

/// Queries in flight per thread: each reads every block.
pub(crate) const IN_FLIGHT: usize = 1;

/// A budget that suffices to read every block.
pub(crate) fn query_budget(blocks: u32) -> Budget {
    let usual = Budget::default();
    Budget { hops: usual.hops.max(blocks), reads: usual.reads.max(blocks), ..usual }
}

/// The block that holds a row: rows are in order, as many in each block as fit.
pub(crate) fn block_of(base: &Base, row: u32) -> u32 {
    let per_block =
        (base.block.payload_bytes() / base.block.node_bytes()).clamp(1, usize::from(u16::MAX)) as u32;
    row / per_block
}
