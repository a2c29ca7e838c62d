//! Searches as other systems do them, over the same lists and codes, to compare (FusionANNS §2.3 and §6). They read
//! whole lists, or vectors in the order of rows.

pub(super) mod posting;
#[cfg(test)]
mod tests;

use super::params::{BY_ROWS, COPIES};
use super::view::{BLOCKS, Place, View};
use crate::access::blocks;
use crate::format::block::BlockLayout;
use crate::format::posting_file::{PostingLayout, PostingList};
use crate::search::{Extent, Read, StoreId};

/// The store of lists of vectors.
pub const LISTS: StoreId = StoreId(1);
/// The store of lists of codes.
pub const CODE_LISTS: StoreId = StoreId(2);
/// The store of blocks in the order of rows.
pub const ROWS: StoreId = StoreId(3);

/// Sources of candidates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Source {
    /// A scorer that has the codes of all vectors; only ids are sent to it.
    #[default]
    Codes = 0,
    /// Lists of vectors on disk, read whole: all members are results (SPANN).
    Lists = 1,
    /// Lists of codes on disk, read whole.
    CodeLists = 2,
    /// Lists of vectors in RAM: all members are results (RUMMY).
    ResidentLists = 3,
}

impl Source {
    const ALL: [Source; 4] = [Source::Codes, Source::Lists, Source::CodeLists, Source::ResidentLists];
}

/// Search of another system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Source of the candidates.
    pub source: Source,
    /// Whether vectors are read from a file in the order of rows, and not from blocks of near vectors.
    pub by_rows: bool,
    /// Whether what is scored is copied to a GPU for the query, and its bytes are counted.
    pub copies: bool,
}

impl Compared {
    /// The source and the flags on the wire.
    pub(super) fn numbers(self) -> (u8, u8) {
        (self.source as u8, (u8::from(self.by_rows) * BY_ROWS) | (u8::from(self.copies) * COPIES))
    }

    pub(super) fn from_numbers(source: u8, flags: u8) -> Option<Compared> {
        let source = Source::ALL.get(usize::from(source)).copied()?;
        Some(Compared { source, by_rows: flags & BY_ROWS != 0, copies: flags & COPIES != 0 })
    }
}

/// Files that comparisons with other systems need.
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

impl<'a> Baselines<'a> {
    /// Place of a vector in the order of rows.
    fn place(&self, id: u32) -> Place<'a> {
        let (at, each) = (self.places.get(id as usize).copied().unwrap_or(0), self.rows_per_block.max(1));
        let extent = Extent { store: ROWS, ..blocks::extent(self.row_block, at / each) };
        Place { number: at / each, extent, slot: Some((at % each) as usize), layout: self.row_block }
    }

    /// The pages of a list, of vectors or of codes; `None` for a list without members, or that is not there.
    fn list_extent(&self, list: u32, codes: bool) -> Option<Extent> {
        let (pages, store) =
            if codes { (self.code_list_pages, CODE_LISTS) } else { (self.list_pages, LISTS) };
        let &[from, to] = pages.get(list as usize..)?.first_chunk::<2>()?;
        let page = crate::PAGE as u32;
        let bytes = to.checked_sub(from)?.checked_mul(page)?;
        (bytes > 0).then_some(Extent { store, offset: u64::from(from) * u64::from(page), bytes })
    }

    /// Whether these bytes are what a read of a list or of a block of rows must bring.
    pub(super) fn check_read(&self, read: &Read, bytes: &[u8]) -> bool {
        let is_list = |codes: bool, layout: &PostingLayout| {
            self.list_extent(read.unit, codes) == Some(read.at)
                && PostingList::verify(layout, read.unit, bytes).is_some()
        };
        match read.at.store {
            LISTS => is_list(false, &self.list),
            CODE_LISTS => is_list(true, &self.code_list),
            ROWS => {
                let count = (self.places.len() as u32).div_ceil(self.rows_per_block.max(1));
                blocks::verify(self.row_block, count, Extent { store: BLOCKS, ..read.at }, bytes)
            }
            _ => false,
        }
    }
}

/// Place of the vector of a candidate: in the order of rows where the query wants this and the files are there.
pub(super) fn place<'a>(view: &View<'a>, compared: Compared, id: u32) -> Place<'a> {
    match view.baselines.filter(|_| compared.by_rows) {
        Some(own) => own.place(id),
        None => view.place(id),
    }
}
