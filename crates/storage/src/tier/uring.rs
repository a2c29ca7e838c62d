//! io_uring: one ring per thread, with registered buffers, over the files of any index.
//!
//! SINGLE_ISSUER and DEFER_TASKRUN keep the kernel's completion work on this thread, at the moment it asks; kernels
//! that lack them get a plain ring.
//!
//! A container may refuse to enter the ring at any time. From then on all reads are those of a [`PreadTier`].

use std::fs::File;
use std::io;
use std::io::Write;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use super::files::{FileTable, OpenFile};
use super::{Buffer, Completion, FileId, Files, PreadTier, Tier, Waker};
use io_uring::{IoUring, opcode, types};

/// The ring of one thread.
pub struct UringTier {
    ring: IoUring,
    // Reads under way, by slot; the kernel writes into their buffers until their completion is seen.
    slots: Vec<Option<Read>>,
    free: Vec<u32>,
    // The same for reads of sockets.
    sockets: Vec<Option<Receive>>,
    receive_priority: u16,
    // Entries of the queue that the kernel has not taken yet, by their tags: slots, [`BELL`], or [`SOCKETS`] and above.
    unsubmitted: Vec<u64>,
    // Reads that ended while nobody asked for them.
    ended: Vec<Completion>,
    // Reads once the kernel refuses to enter the ring.
    fallback: Option<PreadTier>,
    // Registered, not yet given out.
    own: Vec<Buffer>,
    bell: Option<Bell>,
    // Kept open as long as the ring may use them.
    files: FileTable,
}

/// A read under way.
struct Read {
    tag: u64,
    file: FileId,
    offset: u64,
    buffer: Buffer,
}

/// A read of a socket under way.
struct Receive {
    tag: u64,
    from: Arc<TcpStream>,
    buffer: Buffer,
}

/// Tag of a read of the bell; slots are far fewer.
const BELL: u64 = u64::MAX;
/// Tag of the first read of a socket.
const SOCKETS: u64 = 1 << 32;
/// In place of a priority (IORING_RECVSEND_POLL_FIRST): a read waits for bytes, and is not tried before.
const POLL_FIRST: u16 = 1;

/// An eventfd that the ring reads from at all times: whoever writes to it wakes the ring's thread.
struct Bell {
    event: Arc<File>,
    // The kernel writes the counter here when the bell rings.
    counter: Box<[u8; 8]>,
    is_rung: bool,
    // Wakes the fallback, once there is one.
    other: Arc<OnceLock<Waker>>,
}

impl UringTier {
    /// A ring with room for `depth` reads, and as many registered buffers of `bytes` when the limit on locked memory
    /// allows.
    ///
    /// # Errors
    /// When the kernel, or a seccomp profile, refuses.
    pub fn new(depth: usize, bytes: usize) -> io::Result<UringTier> {
        let entries = depth.clamp(1, 4096).next_power_of_two() as u32;
        let deferred = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build(entries);
        // A kernel with the one has the other.
        let receive_priority = if deferred.is_ok() { POLL_FIRST } else { 0 };
        let mut ring = deferred.or_else(|_| IoUring::new(entries))?;
        enter_once(&mut ring)?;
        let own = register(&ring, depth.clamp(1, 4096), bytes);
        let depth = entries as usize;
        Ok(UringTier {
            own,
            ring,
            slots: (0..depth).map(|_| None).collect(),
            free: (0..depth as u32).rev().collect(),
            sockets: Vec::new(),
            receive_priority,
            unsubmitted: Vec::new(),
            ended: Vec::new(),
            fallback: None,
            bell: None,
            files: FileTable::default(),
        })
    }

    /// Whether a ring can be made and entered here.
    ///
    /// # Errors
    /// With the kernel's reason.
    pub fn probe() -> io::Result<()> {
        enter_once(&mut IoUring::new(2)?)
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len() + self.sockets.iter().flatten().count()
    }

    /// Lets the kernel take the queue, and waits for so many completions. Where it refuses, the fallback takes over.
    fn enter(&mut self, wait: usize) -> io::Result<()> {
        loop {
            match self.ring.submit_and_wait(wait) {
                Ok(_) => {
                    self.unsubmitted.clear();
                    return Ok(());
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if is_refusal(&e) => return self.fall_back(),
                Err(e) => return Err(e),
            }
        }
    }

    /// Gives all reads to threads that call `pread`, those under way too: their completions may never be seen.
    fn fall_back(&mut self) -> io::Result<()> {
        let mut pread = PreadTier::new(self.slots.len());
        pread.set_table(self.files.clone());
        let mut ended = Vec::new();
        self.reap(&mut ended);
        self.ended.append(&mut ended);
        for (slot, read) in (0..).zip(&mut self.slots) {
            let Some(Read { tag, file, offset, buffer }) = read.take() else { continue };
            let buffer = match self.unsubmitted.contains(&slot) {
                true => buffer,
                false => {
                    let twin = buffer.twin();
                    // The kernel may still write into this memory: leaking it is the safe way out.
                    std::mem::forget(buffer);
                    twin
                }
            };
            pread.submit(tag, file, offset, buffer);
        }
        for Receive { tag, buffer, .. } in self.sockets.drain(..).flatten() {
            // Bytes that the kernel has read into it are lost: the connection ends.
            let twin = buffer.twin();
            std::mem::forget(buffer);
            self.ended.push(Completion { tag, buffer: twin, result: Err(io::ErrorKind::Unsupported.into()) });
        }
        self.free = (0..self.slots.len() as u32).rev().collect();
        self.unsubmitted.clear();
        if let Some(bell) = &self.bell {
            // It may have been rung since it was last heard.
            let waker = pread.waker()?;
            let _ = bell.other.set(waker.clone());
            waker.wake();
        }
        self.fallback = Some(pread);
        Ok(())
    }

    /// Takes completions in; their number, the bell's included.
    fn reap(&mut self, done: &mut Vec<Completion>) -> usize {
        let mut seen = 0;
        for entry in self.ring.completion() {
            seen += 1;
            if entry.user_data() == BELL {
                self.bell.iter_mut().for_each(|bell| bell.is_rung = true);
                continue;
            }
            let (tag, buffer) = if entry.user_data() >= SOCKETS {
                let at = (entry.user_data() - SOCKETS) as usize;
                let Some(read) = self.sockets.get_mut(at).and_then(Option::take) else { continue };
                (read.tag, read.buffer)
            } else {
                let slot = entry.user_data() as usize;
                let Some(read) = self.slots.get_mut(slot).and_then(Option::take) else { continue };
                self.free.push(slot as u32);
                (read.tag, read.buffer)
            };
            let result = match entry.result() {
                n if n < 0 => Err(io::Error::from_raw_os_error(-n)),
                n => Ok(n as usize),
            };
            done.push(Completion { tag, buffer, result });
        }
        self.listen();
        seen
    }

    /// Lets the kernel take the queue where it is full: reads of the bell and of sockets have places there too.
    fn make_room(&mut self) {
        if self.unsubmitted.len() >= self.slots.len() {
            // An error comes again at the next entry.
            let _ = self.enter(0);
        }
    }

    /// Lets the ring read from the bell again, when it has rung.
    fn listen(&mut self) {
        let Some(bell) = self.bell.as_mut().filter(|b| b.is_rung) else { return };
        if self.unsubmitted.len() >= self.slots.len() {
            // The queue may be full. The bell is heard again after the next entry.
            return;
        }
        let to = types::Fd(bell.event.as_raw_fd());
        let read = opcode::Read::new(to, bell.counter.as_mut_ptr(), 8).build().user_data(BELL);
        // SAFETY: the counter lives in `bell`, at a fixed address, until `drop` has seen the last completion.
        if unsafe { self.ring.submission().push(&read) }.is_ok() {
            bell.is_rung = false;
            self.unsubmitted.push(BELL);
        }
    }
}

/// Whether the kernel, or the profile of a container, does not let a program enter its ring.
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ENOSYS))
}

/// Enters the ring for an operation that does nothing: containers may allow a ring and refuse to enter it.
fn enter_once(ring: &mut IoUring) -> io::Result<()> {
    // SAFETY: the operation has no memory of its own.
    let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
    pushed.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    ring.completion().for_each(drop);
    Ok(())
}

/// Makes buffers and registers them with the ring, which saves the kernel from mapping their pages at every read.
/// None when it refuses.
fn register(ring: &IoUring, count: usize, bytes: usize) -> Vec<Buffer> {
    let mut buffers: Vec<Buffer> = (0..count).map(|_| Buffer::new(bytes)).collect();
    let places: Vec<libc::iovec> = buffers
        .iter_mut()
        .map(|b| libc::iovec { iov_base: b.bytes_mut().as_mut_ptr().cast(), iov_len: b.len() })
        .collect();
    // SAFETY: each place is the memory of a live buffer, at a fixed address. The kernel holds the pages until the
    // ring goes; it writes there only for reads that `submit` queues, and those keep their buffer in `slots`.
    if unsafe { ring.submitter().register_buffers(&places) }.is_err() {
        return Vec::new();
    }
    buffers.iter_mut().zip(0u16..).for_each(|(b, number)| b.set_registered(number));
    buffers
}

impl Tier for UringTier {
    fn room(&self) -> usize {
        self.fallback.as_ref().map_or(self.free.len(), Tier::room)
    }

    fn set_files(&mut self, files: &[Arc<Files>]) {
        self.files.set(files);
        if let Some(pread) = &mut self.fallback {
            pread.set_files(files);
        }
    }

    fn file_bytes(&self, file: FileId) -> Option<u64> {
        self.files.get(file).map(|file| file.bytes)
    }

    fn submit(&mut self, tag: u64, file: FileId, offset: u64, mut buffer: Buffer) {
        self.make_room();
        if let Some(pread) = &mut self.fallback {
            return pread.submit(tag, file, offset, buffer);
        }
        let slot = self.free.pop().expect("the caller asks for room first");
        let registered = buffer.registered();
        let (at, len) = (buffer.bytes_mut().as_mut_ptr(), buffer.len() as u32);
        // The kernel refuses what is no file: such a read fails alone.
        let from = types::Fd(self.files.get(file).map_or(-1, OpenFile::descriptor));
        let read = match registered {
            Some(number) => opcode::ReadFixed::new(from, at, len, number).offset(offset).build(),
            None => opcode::Read::new(from, at, len).offset(offset).build(),
        };
        let read = read.user_data(u64::from(slot));
        self.slots[slot as usize] = Some(Read { tag, file, offset, buffer });
        // SAFETY: the buffer stays in `slots`, at a fixed address, until its completion has been reaped; `drop` waits
        // for all.
        match unsafe { self.ring.submission().push(&read) } {
            Ok(()) => self.unsubmitted.push(slot.into()),
            Err(full) => {
                self.free.push(slot);
                let read = self.slots[slot as usize].take();
                let result = Err(io::Error::other(full));
                self.ended.extend(read.map(|Read { tag, buffer, .. }| Completion { tag, buffer, result }));
            }
        }
    }

    fn receive(&mut self, tag: u64, from: &Arc<TcpStream>, mut buffer: Buffer) -> Result<(), Buffer> {
        self.make_room();
        if self.fallback.is_some() {
            return Err(buffer);
        }
        let at = self.sockets.iter().position(Option::is_none).unwrap_or(self.sockets.len());
        if at == self.sockets.len() {
            self.sockets.push(None);
        }
        let (to, bytes) = (buffer.bytes_mut().as_mut_ptr(), buffer.len() as u32);
        let read =
            opcode::Recv::new(types::Fd(from.as_raw_fd()), to, bytes).ioprio(self.receive_priority).build();
        let read = read.user_data(SOCKETS + at as u64);
        // SAFETY: socket and buffer stay in `sockets`, the memory at a fixed address, until the completion has been
        // reaped; `drop` waits for all.
        if unsafe { self.ring.submission().push(&read) }.is_err() {
            return Err(buffer);
        }
        self.sockets[at] = Some(Receive { tag, from: from.clone(), buffer });
        self.unsubmitted.push(SOCKETS + at as u64);
        Ok(())
    }

    fn start(&mut self) -> io::Result<()> {
        if self.unsubmitted.is_empty() || self.fallback.is_some() { Ok(()) } else { self.enter(0) }
    }

    fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> io::Result<()> {
        let before = done.len();
        done.append(&mut self.ended);
        let wait = wait && done.len() == before;
        if let Some(pread) = &mut self.fallback {
            return pread.poll(wait, done);
        }
        if self.in_flight() == 0 && self.bell.is_none() {
            return Ok(());
        }
        // Two looks at memory that is shared with the kernel; no system call.
        let has_work = self.ring.submission().taskrun();
        let is_late = wait && !self.unsubmitted.is_empty();
        if !has_work && !is_late && (self.reap(done) > 0 || !wait) {
            return Ok(());
        }
        self.enter(usize::from(wait))?;
        if self.fallback.is_some() {
            return self.poll(wait, done);
        }
        self.reap(done);
        Ok(())
    }

    fn waker(&mut self) -> io::Result<Waker> {
        if let (Some(pread), None) = (&mut self.fallback, &self.bell) {
            return pread.waker();
        }
        let (event, other) = match &self.bell {
            Some(bell) => (bell.event.clone(), bell.other.clone()),
            None => {
                // SAFETY: a plain system call; its result is checked.
                let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
                if fd < 0 {
                    return Err(io::Error::last_os_error());
                }
                // SAFETY: the descriptor is new and nobody else's.
                let event = Arc::new(File::from(unsafe { OwnedFd::from_raw_fd(fd) }));
                let (counter, other) = (Box::new([0; 8]), Arc::<OnceLock<Waker>>::default());
                self.bell = Some(Bell { event: event.clone(), counter, is_rung: true, other: other.clone() });
                self.listen();
                (event, other)
            }
        };
        Ok(Waker::new(move || {
            // In this order: a fallback that begins in between looks once by itself.
            let _ = (&*event).write(&1u64.to_ne_bytes());
            other.get().into_iter().for_each(Waker::wake);
        }))
    }

    fn buffers(&mut self) -> Vec<Buffer> {
        std::mem::take(&mut self.own)
    }

    fn take_back(&mut self, buffers: Vec<Buffer>) {
        self.own.extend(buffers.into_iter().filter(Buffer::is_registered));
    }

    fn name(&self) -> &'static str {
        self.fallback.as_ref().map_or("io_uring", Tier::name)
    }
}

impl Drop for UringTier {
    fn drop(&mut self) {
        let mut done = Vec::new();
        // A last ring ends the read of the bell; that one is not repeated, for there is no bell to listen to any more.
        let mut bell = self.bell.take();
        if self.fallback.is_some() {
            // The ring can no longer be asked to end the bell's read, which writes into this memory.
            std::mem::forget(bell);
            return;
        }
        // The end of a stream ends its read.
        for read in self.sockets.iter().flatten() {
            let _ = read.from.shutdown(std::net::Shutdown::Both);
        }
        let mut awaited = self.in_flight();
        if let Some(bell) = bell.as_ref().filter(|b| !b.is_rung) {
            let _ = (&*bell.event).write(&1u64.to_ne_bytes());
            awaited += 1;
        }
        while awaited > 0 {
            if self.enter(1).is_err() || self.fallback.is_some() {
                // The kernel may still write into this memory: leaking it is the safe way out.
                self.slots.drain(..).for_each(std::mem::forget);
                self.sockets.drain(..).for_each(std::mem::forget);
                std::mem::forget(bell.take());
                return;
            }
            awaited -= self.reap(&mut done).min(awaited);
        }
    }
}
