//! Memory that several threads and processes read and write without locks.
//!
//! All accesses are atomic accesses of words, so a read that races with a write is defined: each word is old or new.
//! The ends of a range that are parts of words are merged into their word.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::super::Operation;

const WORD: usize = 8;
/// Bytes of a page, or a multiple of them.
const PAGE: usize = 64 << 10;

/// Mapped memory.
pub(in super::super) struct Mapping {
    at: NonNull<AtomicU64>,
    mapped_bytes: usize,
    // Of the mapping, words before the bytes that `read` and `write` count from.
    skipped: usize,
    // Whether it ends with this value.
    is_own: bool,
}

// SAFETY: the memory is only accessed as atomic words, and lives until the mapping is dropped.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory of this process.
    pub(super) fn anonymous(bytes: u64) -> io::Result<Mapping> {
        Mapping::map(None, bytes, 0)
    }

    /// A file, shared with all that map it. Its first `skipped_bytes` are no part of the region; they are a multiple
    /// of a word. The file must have the whole length, and keep it.
    pub(super) fn shared(file: &File, skipped_bytes: usize, bytes: u64) -> io::Result<Mapping> {
        Mapping::map(Some(file), bytes, skipped_bytes)
    }

    /// Memory that somebody else allocated.
    ///
    /// # Safety
    /// It has `bytes`, rounded up to whole words, lives as long as this value, and others access it like memory of
    /// another machine: not by references of this program.
    pub(in super::super) unsafe fn foreign(at: NonNull<u8>, bytes: u64) -> Result<Mapping, &'static str> {
        let at = at.cast::<AtomicU64>();
        let mapped_bytes = bytes.next_multiple_of(WORD as u64) as usize;
        match at.is_aligned() {
            true => Ok(Mapping { at, mapped_bytes, skipped: 0, is_own: false }),
            false => Err("the memory is not aligned"),
        }
    }

    fn map(file: Option<&File>, bytes: u64, skipped_bytes: usize) -> io::Result<Mapping> {
        let whole = usize::try_from(bytes).ok().and_then(|b| b.checked_next_multiple_of(WORD));
        let mapped = whole.and_then(|b| b.checked_add(skipped_bytes));
        let mapped_bytes = mapped.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let (flags, descriptor) = match file {
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1),
            Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses; the result is checked.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), mapped_bytes, access, flags, descriptor, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(at.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Mapping { at, mapped_bytes, skipped: skipped_bytes / WORD, is_own: true })
    }

    /// Address and length of the whole pages of the mapping.
    pub(super) fn pages(&self) -> (usize, usize) {
        let at = self.at.as_ptr() as usize;
        let (from, to) = (at.next_multiple_of(PAGE), (at + self.mapped_bytes) / PAGE * PAGE);
        (from, to.saturating_sub(from))
    }

    /// All words of the mapping, those before the region included.
    pub(super) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has so many words, is aligned to a page, is zeroed or written by others through atomic
        // words alone, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.mapped_bytes / WORD) }
    }

    fn region(&self) -> &[AtomicU64] {
        &self.words()[self.skipped..]
    }

    /// Reads the bytes at `offset`, which are in the region.
    pub(in super::super) fn read(&self, offset: u64, into: &mut [u8]) {
        let (first, skip) = (offset as usize / WORD, offset as usize % WORD);
        let words = &self.region()[first..(offset as usize + into.len()).div_ceil(WORD).max(first)];
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed).to_ne_bytes();
        let head = if skip == 0 { 0 } else { (WORD - skip).min(into.len()) };
        let (start, body) = into.split_at_mut(head);
        if head > 0 {
            start.copy_from_slice(&load(&words[0])[skip..skip + head]);
        }
        let words = &words[usize::from(head > 0)..];
        let mut chunks = body.chunks_exact_mut(WORD);
        let whole = chunks.len();
        for (chunk, word) in chunks.by_ref().zip(words) {
            chunk.copy_from_slice(&load(word));
        }
        let tail = chunks.into_remainder();
        if !tail.is_empty() {
            let len = tail.len();
            tail.copy_from_slice(&load(&words[whole])[..len]);
        }
        fence(Ordering::Acquire);
    }

    /// Writes the bytes at `offset`, which are in the region.
    pub(in super::super) fn write(&self, offset: u64, from: &[u8]) {
        fence(Ordering::Release);
        let (first, skip) = (offset as usize / WORD, offset as usize % WORD);
        let words = &self.region()[first..(offset as usize + from.len()).div_ceil(WORD).max(first)];
        let head = if skip == 0 { 0 } else { (WORD - skip).min(from.len()) };
        let (start, body) = from.split_at(head);
        if head > 0 {
            merge(&words[0], skip, start);
        }
        let words = &words[usize::from(head > 0)..];
        let (whole, tail) = body.as_chunks::<WORD>();
        for (chunk, word) in whole.iter().zip(words) {
            word.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
        }
        if !tail.is_empty() {
            merge(&words[whole.len()], 0, tail);
        }
    }

    /// Executes an operation, whose range is in the region.
    pub(in super::super) fn execute(&self, operation: &mut Operation<'_>) {
        let word = |offset: u64| &self.region()[offset as usize / WORD];
        match operation {
            Operation::Read { offset, into } => self.read(*offset, into),
            Operation::Write { offset, from } => self.write(*offset, from),
            Operation::FetchAdd { offset, add, old } => {
                *old = word(*offset).fetch_add(*add, Ordering::SeqCst);
            }
            Operation::CompareSwap { offset, expected, new, old } => {
                let word = word(*offset);
                let swapped = word.compare_exchange(*expected, *new, Ordering::SeqCst, Ordering::SeqCst);
                *old = swapped.unwrap_or_else(|current| current);
            }
        }
    }
}

/// Keeps pages that are not mapped any more from being used again, without memory. Who accesses them fails.
pub(super) fn hold((at, bytes): (usize, usize)) -> io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: the kernel refuses an address where something is mapped.
    let held = unsafe { libc::mmap(at as *mut libc::c_void, bytes, libc::PROT_NONE, flags, -1, 0) };
    if held == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Replaces some bytes of a word; the others may change meanwhile.
fn merge(word: &AtomicU64, skip: usize, from: &[u8]) {
    let replace = |old: u64| {
        let mut bytes = old.to_ne_bytes();
        bytes[skip..skip + from.len()].copy_from_slice(from);
        Some(u64::from_ne_bytes(bytes))
    };
    // The closure always returns a value.
    let _ = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, replace);
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.is_own {
            // SAFETY: the mapping is this one's own, and nothing borrows from it any more.
            unsafe { libc::munmap(self.at.as_ptr().cast(), self.mapped_bytes) };
        }
    }
}

const _: () = assert!(cfg!(target_endian = "little"), "words of a region are little endian");
