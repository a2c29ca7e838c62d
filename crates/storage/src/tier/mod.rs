//! Sources of bytes that do not change.
//!
//! A [`Tier`] takes reads by tag and gives them back in any order. It owns a buffer from submission to completion.
//! How many reads may be under way is a number ([`Tier::room`]), not an error in the hot loop. A short read is a
//! value, not a failure of the tier.

mod buffer;
pub mod conformance;
mod files;
mod memory;
mod pread;
mod resident;
#[cfg(target_os = "linux")]
mod uring;

use std::fs::File;
use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;

use stratann_core::PAGE;

use stratann_params::choices::IoName;

use crate::input;

pub use buffer::Buffer;
pub use files::{FileId, FileIds, Files};
pub use memory::{Fault, MemoryTier};
pub use pread::PreadTier;
pub use resident::{Resident, in_huge_pages};
#[cfg(target_os = "linux")]
pub use uring::UringTier;

/// A finished read.
#[derive(Debug)]
pub struct Completion {
    /// As submitted.
    pub tag: u64,
    /// The buffer, back from the tier.
    pub buffer: Buffer,
    /// Bytes that were read, from the start of the buffer; fewer than asked for at the end of the file.
    pub result: io::Result<usize>,
}

/// Ends the wait of a tier's thread, from any other.
#[derive(Clone)]
pub struct Waker(Arc<dyn Fn() + Send + Sync>);

impl Waker {
    /// A waker that does this.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Waker {
        Waker(Arc::new(wake))
    }

    /// Ends the present wait, or the next.
    pub fn wake(&self) {
        (self.0)();
    }
}

/// One source of bytes, used by one thread.
pub trait Tier {
    /// Number of further reads that can be submitted now.
    fn room(&self) -> usize;

    /// Replaces the files that reads may name, while none is under way. A tier over one place needs none.
    fn set_files(&mut self, _files: &[Arc<Files>]) {}

    /// Bytes of a file; `None` for one that this tier does not have.
    fn file_bytes(&self, file: FileId) -> Option<u64>;

    /// Bytes whose multiples offsets and lengths of reads are: a power of two, up to the page.
    fn alignment(&self) -> usize {
        PAGE
    }

    /// Queues a read of `buffer.len()` bytes of a file at `offset` (both multiples of [`Tier::alignment`]). It starts
    /// at once, with [`Tier::start`], or with the next [`Tier::poll`] that waits.
    ///
    /// # Panics
    /// When there is no room: the caller asks first.
    fn submit(&mut self, tag: u64, file: FileId, offset: u64, buffer: Buffer);

    /// Queues a read of what comes next over a socket; [`Tier::room`] does not count it. Its completion has 0 bytes at
    /// the end of the stream.
    ///
    /// # Errors
    /// The buffer, where this tier reads no sockets.
    fn receive(&mut self, _tag: u64, _from: &Arc<TcpStream>, buffer: Buffer) -> Result<(), Buffer> {
        Err(buffer)
    }

    /// Starts all queued reads.
    ///
    /// # Errors
    /// When the tier as a whole is broken.
    fn start(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Appends what has completed to `done`. With `wait`, and something under way, starts queued reads and blocks
    /// until there is at least one. Without `wait` it is cheap where nothing has completed, and need not start queued
    /// reads.
    ///
    /// # Errors
    /// When the tier as a whole is broken; single reads fail in their [`Completion`].
    fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> io::Result<()>;

    /// Something that ends a wait from another thread. Once it was asked for, [`Tier::poll`] with `wait` blocks with
    /// nothing under way as well; each [`Waker::wake`] makes one wait, the present or the next, end.
    ///
    /// # Errors
    /// When this tier cannot be woken, or the system has nothing left to do it with.
    fn waker(&mut self) -> io::Result<Waker> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this tier cannot be woken"))
    }

    /// Buffers that this tier reads into at less cost (registered with the kernel), once; the caller uses them like
    /// any other.
    fn buffers(&mut self) -> Vec<Buffer> {
        Vec::new()
    }

    /// Takes back some of [`Tier::buffers`], for whoever asks for them next.
    fn take_back(&mut self, _buffers: Vec<Buffer>) {}

    /// Name in reports.
    fn name(&self) -> &'static str;
}

/// A tier that is lent: it outlives its present user.
impl<T: Tier + ?Sized> Tier for &mut T {
    fn room(&self) -> usize {
        (**self).room()
    }

    fn set_files(&mut self, files: &[Arc<Files>]) {
        (**self).set_files(files);
    }

    fn file_bytes(&self, file: FileId) -> Option<u64> {
        (**self).file_bytes(file)
    }

    fn alignment(&self) -> usize {
        (**self).alignment()
    }

    fn submit(&mut self, tag: u64, file: FileId, offset: u64, buffer: Buffer) {
        (**self).submit(tag, file, offset, buffer);
    }

    fn receive(&mut self, tag: u64, from: &Arc<TcpStream>, buffer: Buffer) -> Result<(), Buffer> {
        (**self).receive(tag, from, buffer)
    }

    fn start(&mut self) -> io::Result<()> {
        (**self).start()
    }

    fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> io::Result<()> {
        (**self).poll(wait, done)
    }

    fn waker(&mut self) -> io::Result<Waker> {
        (**self).waker()
    }

    fn buffers(&mut self) -> Vec<Buffer> {
        (**self).buffers()
    }

    fn take_back(&mut self, buffers: Vec<Buffer>) {
        (**self).take_back(buffers);
    }

    fn name(&self) -> &'static str {
        (**self).name()
    }
}

/// Choice of the kind of reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoChoice {
    /// io_uring where the kernel allows it, else `pread`.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// A pool of threads that call `pread`.
    Pread,
    /// One thread that calls `pread`: reads complete in the order in which they were submitted.
    InOrder,
}

impl From<IoName> for IoChoice {
    fn from(name: IoName) -> IoChoice {
        match name {
            IoName::Auto => IoChoice::Auto,
            IoName::Uring => IoChoice::Uring,
            IoName::Pread => IoChoice::Pread,
        }
    }
}

/// Opens a regular file for reads that go past the page cache. The flag says whether the file system allowed that.
pub fn open_direct(path: &Path) -> io::Result<(File, bool)> {
    #[cfg(target_os = "linux")]
    {
        if let Ok(file) = input::open_regular(path, libc::O_DIRECT) {
            return waiting(file, libc::O_DIRECT).map(|file| (file, true));
        }
    }
    waiting(input::open_regular(path, 0)?, 0).map(|file| (file, false))
}

/// A file with these flags alone: of a file with O_NONBLOCK io_uring refuses reads that would wait.
fn waiting(file: File, flags: i32) -> io::Result<File> {
    // SAFETY: a plain system call on a file that is open; its result is checked.
    let set = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
}

/// A tier over files for the calling thread, with up to `depth` reads of `bytes` each under way. It has no file until
/// [`Tier::set_files`].
///
/// # Errors
/// When `choice` names io_uring and the kernel refuses it.
pub fn open(depth: usize, bytes: usize, choice: IoChoice) -> io::Result<Box<dyn Tier>> {
    #[cfg(target_os = "linux")]
    if !matches!(choice, IoChoice::Pread | IoChoice::InOrder) {
        match UringTier::new(depth, bytes) {
            Ok(tier) => return Ok(Box::new(tier)),
            Err(e) if choice == IoChoice::Uring => return Err(e),
            Err(_) => {}
        }
    }
    #[cfg(not(target_os = "linux"))]
    if choice == IoChoice::Uring {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "io_uring exists on Linux alone"));
    }
    let threads = if choice == IoChoice::InOrder { 1 } else { pread::THREADS_MAX };
    Ok(Box::new(PreadTier::with_threads(depth, threads)))
}

/// A tier over one file, whose number is 0: see [`open`].
///
/// # Errors
/// As [`open`], and where the file has no length.
pub fn open_file(
    file: &Arc<File>,
    depth: usize,
    bytes: usize,
    choice: IoChoice,
) -> io::Result<Box<dyn Tier>> {
    let files = Files::new(std::slice::from_ref(file), FileIds::ALONE)?;
    let mut tier = open(depth, bytes, choice)?;
    tier.set_files(&[files]);
    Ok(tier)
}

/// Threads that [`open`] starts for `depth` reads under way.
pub fn threads(choice: IoChoice, depth: usize) -> usize {
    match choice {
        IoChoice::Uring => 0,
        IoChoice::Auto if uring_refusal().is_none() => 0,
        IoChoice::InOrder => 1,
        IoChoice::Auto | IoChoice::Pread => depth.clamp(1, pread::THREADS_MAX),
    }
}

/// Reason why io_uring cannot be used here, or `None` when it can.
pub fn uring_refusal() -> Option<String> {
    #[cfg(target_os = "linux")]
    {
        match UringTier::probe() {
            Ok(()) => None,
            Err(e) => Some(format!(
                "{e}; containers often forbid it: allow the io_uring system calls in the seccomp profile"
            )),
        }
    }
    #[cfg(not(target_os = "linux"))]
    Some("io_uring exists on Linux alone".into())
}
