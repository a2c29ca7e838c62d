//! Numbers of a part of an HDF5 file, one after another.

/// The rest of some bytes. All numbers are little-endian; `None` where the bytes end before.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields { rest: bytes }
    }

    /// Bytes that are left.
    pub(super) fn left(&self) -> usize {
        self.rest.len()
    }

    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (own, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(own)
    }

    pub(super) fn skip(&mut self, count: usize) -> Option<()> {
        self.take(count).map(drop)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    /// A number of up to eight bytes.
    pub(super) fn number(&mut self, bytes: usize) -> Option<u64> {
        let mut all = [0; 8];
        all.get_mut(..bytes)?.copy_from_slice(self.take(bytes)?);
        Some(u64::from_le_bytes(all))
    }

    /// A number of up to four bytes, which is a length or a count.
    pub(super) fn count(&mut self, bytes: usize) -> Option<usize> {
        usize::try_from(self.number(bytes)?).ok()
    }

    /// Whether these bytes are next, which are skipped then.
    pub(super) fn is(&mut self, wanted: &[u8]) -> bool {
        self.take(wanted.len()) == Some(wanted)
    }
}
