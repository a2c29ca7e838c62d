//! Part of a `gpu-ivf` in RAM.

use stratann_kernel::coder::Coder;

#[cfg(feature = "lab")]
use super::baseline::Baselines;
use crate::access::blocks;
use crate::check::Blocks;
use crate::exact::{ResidentBlock, ResidentRows};
use crate::format::block::BlockLayout;
use crate::format::block_map::BlockMap;
use crate::format::posting_lists::PostingLists;
use crate::route::NavGraph;
use crate::search::{Extent, Read, StoreId};
use crate::view::Base;

/// The store of blocks.
pub(super) const BLOCKS: StoreId = StoreId(0);

/// Vectors in memory, for re-ranking.
#[derive(Clone, Copy, Debug)]
pub struct Resident<'a> {
    /// Vectors and ids of all members.
    pub rows: &'a ResidentRows,
    /// Comparisons after which a step ends with nothing to wait for, so that other queries have their turns.
    pub step_comparisons: u64,
}

/// Part of a `gpu-ivf` in RAM.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The layout of all blocks.
    pub block: &'a BlockLayout,
    /// Number of blocks.
    pub blocks: u32,
    /// Block of each vector.
    pub map: &'a BlockMap,
    /// How vectors are encoded.
    pub coder: &'a Coder,
    /// The codes in RAM, from the id `codes_from` on. A GPU has the others.
    pub codes: &'a [u8],
    /// See `codes`.
    pub codes_from: u32,
    /// Members of the lists.
    pub lists: &'a PostingLists,
    /// A centroid for each list: `dim` f16 or f32, as bytes.
    pub centroids: &'a [u8],
    /// The navigation graph over the centroids.
    pub nav: &'a NavGraph,
    /// Mean squared error of the codes.
    pub code_error: f32,
    /// Root mean square length of the vectors, as their codes have it. Used under inner product only.
    pub vector_norm: f32,
    /// Vectors and ids in memory; `None` where they are read with their blocks.
    pub resident: Option<Resident<'a>>,
    /// Files of other systems, where the index has them.
    #[cfg(feature = "lab")]
    pub baselines: Option<Baselines<'a>>,
}

impl<'a> View<'a> {
    /// The index as it is checked.
    pub fn checked(&self, base: Base<'a>) -> Blocks<'a> {
        Blocks { base, layout: self.block, count: self.blocks, links: None }
    }

    /// A centroid as bytes; empty for a list that does not exist.
    pub fn centroid(&self, list: u32) -> &'a [u8] {
        let halves = 2 * self.coder.dim();
        let is_wide = self.centroids.len() > halves * self.lists.count() as usize;
        let size = if is_wide { 2 * halves } else { halves };
        self.centroids.get(list as usize * size..(list as usize + 1) * size).unwrap_or(&[])
    }

    /// Place of the vector of a candidate.
    pub(super) fn place(&self, id: u32) -> Place<'a> {
        let number = self.map.block_of(id);
        Place { number, extent: blocks::extent(self.block, number), slot: None, layout: self.block }
    }

    /// Whether blocks need not be read. Files of other systems are always read.
    pub(super) fn is_in_memory(&self) -> bool {
        #[cfg(feature = "lab")]
        if self.baselines.is_some() {
            return false;
        }
        self.resident.is_some()
    }

    /// The rows of a block in memory.
    pub(super) fn resident_block(&self, block: u32) -> Option<ResidentBlock<'a>> {
        self.resident?.rows.block(&self.map.nodes_of(block))
    }

    /// Whether these bytes are what a read must bring.
    pub(super) fn check_read(&self, read: &Read, bytes: &[u8]) -> bool {
        match read.at.store {
            BLOCKS => blocks::verify(self.block, self.blocks, read.at, bytes),
            #[cfg(feature = "lab")]
            _ => self.baselines.is_some_and(|own| own.check_read(read, bytes)),
            #[cfg(not(feature = "lab"))]
            _ => false,
        }
    }
}

/// Place of a vector.
pub(super) struct Place<'a> {
    /// The number of its block.
    pub(super) number: u32,
    pub(super) extent: Extent,
    /// Number of the vector in the block; `None` where its id tells it.
    pub(super) slot: Option<usize>,
    pub(super) layout: &'a BlockLayout,
}
