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
    registered: Option<u16>,
}

impl Buffer {
    /// Zeroed memory of `bytes`, rounded up to whole pages.
    pub fn new(bytes: usize) -> Buffer {
        Buffer { pages: vec![Page([0; PAGE]); bytes.div_ceil(PAGE)].into_boxed_slice(), registered: None }
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
        bytemuck::cast_slice(&self.pages)
    }

    /// The bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.pages)
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.pages.len() * PAGE
    }

    /// True for a buffer of no pages.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}
