//! Page-aligned memory for direct reads.

use stratann_core::PAGE;

#[repr(C, align(4096))]
#[derive(Clone, Copy)]
struct Page([u8; PAGE]);

// SAFETY: a page is a plain array of bytes: no padding, every bit pattern is valid.
unsafe impl bytemuck::Zeroable for Page {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for Page {}

/// Whole pages, aligned to a page; the address does not change while it lives.
pub struct Buffer {
    pages: Box<[Page]>,
    // Pages in use, from the first on.
    used: usize,
    registered: Option<u16>,
}

impl Buffer {
    /// Zeroed memory of `bytes`, rounded up to whole pages.
    pub fn new(bytes: usize) -> Buffer {
        let used = bytes.div_ceil(PAGE);
        Buffer { pages: vec![Page([0; PAGE]); used].into_boxed_slice(), used, registered: None }
    }

    /// Shows the first `bytes` alone, rounded up to whole pages; no more than it was made with.
    pub fn show(&mut self, bytes: usize) {
        self.used = bytes.div_ceil(PAGE).min(self.pages.len());
    }

    /// The number under which a ring knows this memory, when it does.
    pub(super) fn registered(&self) -> Option<u16> {
        self.registered
    }

    pub(super) fn set_registered(&mut self, number: u16) {
        self.registered = Some(number);
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.pages[..self.used])
    }

    /// The bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.pages[..self.used])
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.used * PAGE
    }

    /// True for a buffer of no pages.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}
