//! Large memory for random look-ups.

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Size of a huge page.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Less memory than this stays in small pages.
const HUGE_LEAST_BYTES: usize = 4 * HUGE_PAGE_BYTES;

/// Asks for huge pages for memory that is not used yet, where it is large. The system may refuse.
pub fn in_huge_pages<T>(memory: &mut [MaybeUninit<T>]) {
    let bytes = size_of_val(memory);
    if bytes < HUGE_LEAST_BYTES {
        return;
    }
    let start = memory.as_mut_ptr().cast::<u8>();
    let skip = start.align_offset(HUGE_PAGE_BYTES);
    let whole = bytes.saturating_sub(skip) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    #[cfg(target_os = "linux")]
    if whole > 0 {
        // SAFETY: the range lies inside `memory`, and the advice changes no content.
        unsafe { libc::madvise(start.add(skip).cast(), whole, libc::MADV_HUGEPAGE) };
    }
}

/// Zeroed bytes outside the allocator, aligned to a huge page and in huge pages as far as whole ones fit, so that a
/// random look-up rarely misses the TLB. The tail is in small pages, so it takes no more memory than its length, up to
/// a page.
pub struct Resident {
    mapped: NonNull<u8>,
    mapped_bytes: usize,
    // Start of the bytes within `mapped`.
    skip: usize,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone, and is written through `&mut` only.
unsafe impl Send for Resident {}
// SAFETY: as above.
unsafe impl Sync for Resident {}

impl Resident {
    /// Allocates `len` zeroed bytes; `None` when the address space has no room for them.
    pub fn new(len: usize) -> Option<Resident> {
        let mapped_bytes = len.checked_add(HUGE_PAGE_BYTES)?;
        // SAFETY: a new anonymous mapping at a place of the kernel's choice touches nothing that exists.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return None;
        }
        let mapped = NonNull::new(at.cast::<u8>())?;
        let skip = mapped.align_offset(HUGE_PAGE_BYTES);
        let resident = Resident { mapped, mapped_bytes, skip, len };
        #[cfg(target_os = "linux")]
        // SAFETY: `skip` is less than a huge page, so the range lies inside the mapping. The advice may be refused.
        unsafe {
            libc::madvise(mapped.add(skip).as_ptr().cast(), len - len % HUGE_PAGE_BYTES, libc::MADV_HUGEPAGE);
        }
        Some(resident)
    }
}

impl Deref for Resident {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `skip + len` bytes are inside the mapping, which lives as long as this value and is zeroed or
        // written.
        unsafe { std::slice::from_raw_parts(self.mapped.add(self.skip).as_ptr(), self.len) }
    }
}

impl DerefMut for Resident {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` keeps others away.
        unsafe { std::slice::from_raw_parts_mut(self.mapped.add(self.skip).as_ptr(), self.len) }
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped; no slice of it outlives this value.
        unsafe {
            libc::munmap(self.mapped.as_ptr().cast(), self.mapped_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_zero_then_what_was_written() {
        for len in [0, 1, 4095, HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES + 17] {
            let mut bytes = Resident::new(len).unwrap();
            assert_eq!(bytes.len(), len);
            assert!(bytes.iter().all(|&b| b == 0));
            assert_eq!(bytes.as_ptr() as usize % HUGE_PAGE_BYTES, 0);
            bytes.fill(7);
            assert!(bytes.iter().all(|&b| b == 7));
        }
    }

    #[test]
    fn no_room_is_told() {
        assert!(Resident::new(usize::MAX).is_none());
        assert!(Resident::new(usize::MAX / 2).is_none());
    }
}
