//! Ranges of bytes that queries ask for.

use crate::PAGE;

/// Number of a store: one of the files, or other sources of bytes, of an open index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId(pub u8);

/// A range of bytes of one store. It may begin and end anywhere; reads are made in whole pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// The store.
    pub store: StoreId,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u32,
}

impl Extent {
    /// Offset of the first byte behind it.
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes as u64)
    }

    /// Number of the page that holds its first byte.
    pub const fn first_page(&self) -> u64 {
        self.offset / PAGE as u64
    }

    /// Number of pages that it touches.
    pub const fn pages(&self) -> u64 {
        self.end().div_ceil(PAGE as u64) - self.first_page()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_cover_the_bytes() {
        let extent = |offset, bytes| Extent { store: StoreId(0), offset, bytes };
        for (offset, bytes, first_page, pages) in [
            (0, 4096, 0, 1),
            (0, 4097, 0, 2),
            (4095, 1, 0, 1),
            (4095, 2, 0, 2),
            (8192, 12288, 2, 3),
            (8191, 4098, 1, 3),
        ] {
            let e = extent(offset, bytes);
            assert_eq!((e.first_page(), e.pages(), e.end()), (first_page, pages, offset + u64::from(bytes)));
        }
        assert_eq!(extent(u64::MAX - 1, 10).end(), u64::MAX);
    }
}
