//! What a `gpu-ivf` keeps in RAM.

use stratann_kernel::codes::Codebook;

use crate::access::blocks;
use crate::check::Blocks;
use crate::format::block::BlockLayout;
use crate::format::block_map::BlockMap;
use crate::format::posting_file::{PostingLayout, PostingList};
use crate::format::posting_lists::PostingLists;
use crate::route::NavGraph;
use crate::search::{Extent, Read, StoreId};
use crate::view::Base;

/// The store of blocks.
pub(super) const BLOCKS: StoreId = StoreId(0);
/// The store of lists of vectors.
pub const LISTS: StoreId = StoreId(1);
/// The store of lists of codes.
pub const CODE_LISTS: StoreId = StoreId(2);
/// The store of blocks in the order of rows.
pub const ROWS: StoreId = StoreId(3);

/// What `gpu-ivf` keeps in RAM.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The layout of all blocks.
    pub block: &'a BlockLayout,
    /// Number of blocks.
    pub blocks: u32,
    /// Which block holds a vector.
    pub map: &'a BlockMap,
    /// How to read the codes.
    pub codebook: &'a Codebook,
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
    /// Files of other systems, where the index has them.
    pub baselines: Option<Baselines<'a>>,
}

/// What comparisons with other systems need.
#[derive(Clone, Copy, Debug)]
pub struct Baselines<'a> {
    /// The page at which each list of vectors begins, and the end of the last.
    pub list_pages: &'a [u32],
    /// The layout of lists of vectors.
    pub list: PostingLayout,
    /// The page at which each list of codes begins, and the end of the last.
    pub code_list_pages: &'a [u32],
    /// The layout of lists of codes.
    pub code_list: PostingLayout,
    /// The lists of vectors in RAM; empty where they are not.
    pub resident: &'a [u8],
    /// The place of each vector in the order of rows.
    pub places: &'a [u32],
    /// The layout of blocks in the order of rows.
    pub row_block: &'a BlockLayout,
    /// Vectors of such a block.
    pub rows_per_block: u32,
}

impl<'a> View<'a> {
    /// The index as it is checked.
    pub fn checked(&self, base: Base<'a>) -> Blocks<'a> {
        Blocks { base, layout: self.block, count: self.blocks, links: None }
    }

    /// A centroid as bytes; empty for a list that does not exist.
    pub fn centroid(&self, list: u32) -> &'a [u8] {
        let halves = 2 * self.codebook.dim;
        let is_wide = self.centroids.len() > halves * self.lists.count() as usize;
        let size = if is_wide { 2 * halves } else { halves };
        self.centroids.get(list as usize * size..(list as usize + 1) * size).unwrap_or(&[])
    }

    /// Where the vector of a candidate lies.
    pub(super) fn place(&self, id: u32, by_rows: bool) -> Place<'a> {
        match self.baselines.filter(|_| by_rows) {
            Some(own) => {
                let (at, each) =
                    (own.places.get(id as usize).copied().unwrap_or(0), own.rows_per_block.max(1));
                let extent = Extent { store: ROWS, ..blocks::extent(own.row_block, at / each) };
                Place { number: at / each, extent, slot: Some((at % each) as usize), layout: own.row_block }
            }
            None => {
                let number = self.map.block_of(id);
                Place { number, extent: blocks::extent(self.block, number), slot: None, layout: self.block }
            }
        }
    }

    /// The pages of a list, of vectors or of codes; `None` for a list without members, or that is not there.
    pub(super) fn list_extent(&self, list: u32, codes: bool) -> Option<Extent> {
        let own = self.baselines.as_ref()?;
        let (pages, store) = if codes { (own.code_list_pages, CODE_LISTS) } else { (own.list_pages, LISTS) };
        let &[from, to] = pages.get(list as usize..)?.first_chunk::<2>()?;
        let page = crate::PAGE as u32;
        let bytes = to.checked_sub(from)?.checked_mul(page)?;
        (bytes > 0).then_some(Extent { store, offset: u64::from(from) * u64::from(page), bytes })
    }

    /// Whether these bytes are what a read must bring.
    pub(super) fn verify(&self, read: &Read, bytes: &[u8]) -> bool {
        let is_list = |codes: bool, layout: &PostingLayout| {
            self.list_extent(read.unit, codes) == Some(read.at)
                && PostingList::verify(layout, read.unit, bytes).is_some()
        };
        match (read.at.store, &self.baselines) {
            (BLOCKS, _) => blocks::verify(self.block, self.blocks, read.at, bytes),
            (LISTS, Some(own)) => is_list(false, &own.list),
            (CODE_LISTS, Some(own)) => is_list(true, &own.code_list),
            (ROWS, Some(own)) => {
                let count = (own.places.len() as u32).div_ceil(own.rows_per_block.max(1));
                blocks::verify(own.row_block, count, Extent { store: BLOCKS, ..read.at }, bytes)
            }
            _ => false,
        }
    }
}

/// Where a vector lies.
pub(super) struct Place<'a> {
    /// The number of its block.
    pub(super) number: u32,
    pub(super) extent: Extent,
    /// Its number in the block; `None` where its id tells it.
    pub(super) slot: Option<usize>,
    pub(super) layout: &'a BlockLayout,
}
