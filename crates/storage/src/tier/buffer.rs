//! Page-aligned memory for direct reads.

use stratann_core::PAGE;

#[repr(C, align(4096))]
#[derive(Clone, Copy)]
struct Page([u8; PAGE]);

// SAFETY: a page is a plain array of bytes: no padding, every bit pattern is valid.
unsafe impl bytemuck::Zeroable for Page {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for Page {}

/// Whole pages, aligned to a page, at a stable address.
pub struct Buffer {
    pages: Box<[Page]>,
    // Number of bytes in use, from the first on.
    used: usize,
    registered: Option<u16>,
}

impl Buffer {
    /// Allocates zeroed memory of `bytes`, rounded up to whole pages.
    pub fn new(bytes: usize) -> Buffer {
        let pages = bytes.div_ceil(PAGE);
        Buffer {
            pages: vec![Page([0; PAGE]); pages].into_boxed_slice(),
            used: pages * PAGE,
            registered: None,
        }
    }

    /// Other memory of the same size.
    pub(super) fn twin(&self) -> Buffer {
        Buffer { used: self.used, ..Buffer::new(self.pages.len() * PAGE) }
    }

    /// Limits the buffer to the first `bytes`, rounded up to whole pages, at most its original size.
    pub fn show(&mut self, bytes: usize) {
        self.show_exactly(bytes.div_ceil(PAGE).saturating_mul(PAGE));
    }

    /// Limits the buffer to the first `bytes`, at most its original size: for tiers whose reads are no whole pages.
    pub fn show_exactly(&mut self, bytes: usize) {
        self.used = bytes.min(self.pages.len() * PAGE);
    }

    /// Number of this memory in a ring where it is registered.
    pub(super) fn registered(&self) -> Option<u16> {
        self.registered
    }

    /// Whether the kernel knows this memory; it is then kept as long as its ring.
    pub fn is_registered(&self) -> bool {
        self.registered.is_some()
    }

    pub(super) fn set_registered(&mut self, number: u16) {
        self.registered = Some(number);
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.pages)[..self.used]
    }

    /// The bytes, mutable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.pages)[..self.used]
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Returns whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}
