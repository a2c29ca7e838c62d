//! Reads from any file that queries of an index read.

use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

use stratann_core::PAGE;
use stratann_core::query::{Extent, Loss};

use crate::index::Index;
use crate::tier::Buffer;

impl Index {
    /// Replaces `out` by the bytes of an extent of any store, read past any cache and not verified.
    ///
    /// # Errors
    /// Why there are none.
    pub fn read_store(&self, at: Extent, out: &mut Vec<u8>) -> Result<(), Loss> {
        let Some(other) = usize::from(at.store.0).checked_sub(1) else { return self.read_extent(at, out) };
        let file = self.kind.stores().get(other).ok_or(Loss::Failed)?;
        let mut buffer = Buffer::new(at.pages() as usize * PAGE);
        let first = at.first_page() * PAGE as u64;
        file.read_exact_at(buffer.bytes_mut(), first).map_err(|e| match e.kind() {
            ErrorKind::UnexpectedEof => Loss::Short,
            _ => Loss::Failed,
        })?;
        let skip = (at.offset - first) as usize;
        out.clear();
        out.extend_from_slice(&buffer.bytes()[skip..skip + at.bytes as usize]);
        Ok(())
    }
}
