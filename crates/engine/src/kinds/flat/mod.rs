//! `flat`: all vectors, scanned.

pub(crate) mod build;

use stratann_core::plan::flat::View;

use crate::base::Base;
use crate::kinds::answers::Setting;

/// Queries in flight per thread: each reads every block.
pub(crate) const IN_FLIGHT: usize = 1;

/// What queries see.
pub(crate) fn view(base: &Base) -> View<'_> {
    View { block: &base.block, blocks: base.manifest.blocks.count }
}

/// The setting of a search for `k` results: it has no effort to choose.
pub(crate) fn setting(k: u32) -> Setting {
    Setting { effort: k, search_list: k, slack: None, patience: 0, nprobe: None, early_stop: None }
}

/// The block that holds a row: rows are in order, as many in each block as fit.
pub(crate) fn block_of(base: &Base, row: u32) -> u32 {
    let per_block =
        (base.block.payload_bytes() / base.block.node_bytes()).clamp(1, usize::from(u16::MAX)) as u32;
    row / per_block
}
