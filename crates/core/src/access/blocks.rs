//! Blocks as extents of a store.

use crate::format::block::{self, BlockLayout};
use crate::search::{Extent, StoreId};

/// The store of blocks.
pub(crate) const BLOCKS: StoreId = StoreId(0);

/// Extent of a block.
pub(crate) fn extent(layout: &BlockLayout, number: u32) -> Extent {
    let bytes = layout.block_bytes as u32;
    Extent { store: BLOCKS, offset: u64::from(number) * u64::from(bytes), bytes }
}

/// Whether an extent is one block of `blocks`, and the bytes are that block, undamaged.
pub(crate) fn verify(layout: &BlockLayout, blocks: u32, at: Extent, bytes: &[u8]) -> bool {
    let number = at.offset / (layout.block_bytes as u64).max(1);
    number < u64::from(blocks)
        && at == extent(layout, number as u32)
        && block::verify(layout, number as u32, bytes).is_ok()
}
