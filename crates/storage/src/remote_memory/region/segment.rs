//! A region in memory that processes of one user on one host share.
//!
//! The memory has no name in a folder, and its length is sealed: nobody can cut it off under a process that has it
//! mapped. `/dev/shm/NAME`, a file of the node's user, says where to open it: `STRATSHM`, the version, the process of
//! the node, the number of its descriptor and the epoch, as text.
//!
//! | word of the header | content |
//! |---|---|
//! | 0 | number of the node |
//! | 1 | size of the region |
//! | 2 | epoch |
//! | 3 to 6 | HMAC-SHA256 of the version and the words above, by the key of the node |
//! | 7 | 1 once the node has ended, or a load has begun |
//! | 8 to 10 | where the node listens: the address as one of IPv6, and the port |
//!
//! The region begins at byte 4096.

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use ring::hmac;

use super::mapping::Mapping;
use super::{Facts, MemoryError, NodeId, random};
use crate::{Error, Result};

const MAGIC: &str = "STRATSHM";
const VERSION: u64 = 2;
const HEADER_BYTES: usize = 4096;
const TAG_WORDS: std::ops::Range<usize> = 3..7;
/// Word that says whether the segment is over.
const ENDED: usize = 7;
/// Words of where the node listens.
const DOOR: usize = 8;
const NAME_BYTES_MAX: usize = 200;
/// Most bytes of the file that says where the memory is.
const NOTE_BYTES_MAX: u64 = 128;

/// A segment, as its node or a client has it mapped.
pub(in super::super) struct Segment {
    mapping: Mapping,
    facts: Facts,
    holder: Holder,
}

/// Holder of the memory.
enum Holder {
    /// This process is the node: it holds the lock of the file, and the memory by its descriptor.
    Node { note: PathBuf, _lock: File, memory: File },
    /// Another process, whose end this descriptor tells.
    Process(OwnedFd),
    /// This segment was removed.
    Nobody,
}

/// Content of the file.
struct Note {
    process: i32,
    descriptor: i32,
    epoch: u64,
}

impl Segment {
    /// Makes the segment of a node. What a dead node of this user left under the name is removed.
    pub(super) fn create(name: &str, facts: &Facts, secret: &[u8]) -> Result<Segment> {
        let note = path(name).map_err(Error::bad_input)?;
        let io = |what: &'static str| {
            let note = note.clone();
            move |e: io::Error| Error::io(what, &note, &e)
        };
        remove_old(&note)?;
        let whole = HEADER_BYTES as u64 + facts.region_bytes.next_multiple_of(8);
        let memory = sealed(whole).map_err(|e| {
            Error::bad_input(format!(
                "{whole} bytes of shared memory cannot be had: {e}; give a smaller --size"
            ))
        })?;
        let mapping = Mapping::shared(&memory, HEADER_BYTES, facts.region_bytes).map_err(io("mapping"))?;
        let content = [facts.node.0.into(), facts.region_bytes, facts.epoch];
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), &signed(content));
        let (tag, _) = tag.as_ref().as_chunks::<8>();
        let words = content.into_iter().chain(tag.iter().map(|word| u64::from_ne_bytes(*word)));
        mapping.words().iter().zip(words).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        let text =
            format!("{MAGIC} {VERSION} {} {} {:016x}\n", std::process::id(), memory.as_raw_fd(), facts.epoch);
        let lock = publish(&note, &text).map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => in_use(&note),
            _ => Error::io("making the segment", &note, &e),
        })?;
        let holder = Holder::Node { note, _lock: lock, memory };
        Ok(Segment { mapping, facts: *facts, holder })
    }

    /// Maps the segment of a node on this host.
    pub(in super::super) fn open(
        address: &str,
        name: &str,
        secret: &[u8],
    ) -> std::result::Result<Segment, MemoryError> {
        let unavailable = |why: String| MemoryError::Unavailable { address: address.into(), why };
        let ended =
            |why: String| MemoryError::Disconnected { address: address.into(), why, may_have_run: false };
        let note = path(name).map_err(unavailable)?;
        let shown = note.display();
        let foreign =
            |why: &str| MemoryError::Version { address: address.into(), why: format!("{shown} {why}") };
        let file = open_own(&note).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => ended(format!("there is no segment {shown}")),
            _ => unavailable(format!("{shown}: {e}")),
        })?;
        let mut text = Vec::new();
        file.take(NOTE_BYTES_MAX).read_to_end(&mut text).map_err(|e| unavailable(format!("{shown}: {e}")))?;
        let Note { process, descriptor, epoch } = Note::read(&text).map_err(&foreign)?;
        // First the process, then its memory: so the memory is that of this process as long as it lives.
        let gone = || {
            ended(format!(
                "process {process}, which {shown} names, has ended, or is not to be seen from here"
            ))
        };
        let holder = process_of(process).map_err(|_| gone())?;
        let memory =
            open_own(Path::new(&format!("/proc/{process}/fd/{descriptor}"))).map_err(|e| match e.kind() {
                io::ErrorKind::NotFound => gone(),
                _ => unavailable(format!("the memory that {shown} names: {e}")),
            })?;
        let length = memory.metadata().map_err(|_| gone())?.len();
        if !is_sealed(&memory) || length < HEADER_BYTES as u64 {
            return Err(foreign("names no memory of a memory node; start the node again"));
        }
        let header =
            Mapping::shared(&memory, 0, HEADER_BYTES as u64).map_err(|e| unavailable(e.to_string()))?;
        let word = |at: usize| header.words()[at].load(Ordering::Acquire);
        let content: [u64; 3] = std::array::from_fn(word);
        let tag = TAG_WORDS.flat_map(|at| word(at).to_ne_bytes()).collect::<Vec<u8>>();
        if hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, secret), &signed(content), &tag).is_err() {
            return Err(MemoryError::Key { address: address.into() });
        }
        let [node, region_bytes, own_epoch] = content;
        let whole = region_bytes.checked_next_multiple_of(8).and_then(|b| b.checked_add(HEADER_BYTES as u64));
        if own_epoch != epoch || node > 255 || whole != Some(length) {
            return Err(foreign("and the memory that it names do not belong together; start the node again"));
        }
        let mapping =
            Mapping::shared(&memory, HEADER_BYTES, region_bytes).map_err(|e| unavailable(e.to_string()))?;
        let facts = Facts { node: NodeId(node as u8), region_bytes, epoch };
        Ok(Segment { mapping, facts, holder: Holder::Process(holder) })
    }

    pub(in super::super) fn facts(&self) -> Facts {
        self.facts
    }

    pub(in super::super) fn bytes(&self) -> &Mapping {
        &self.mapping
    }

    /// Whether its node has ended, or a load has begun.
    pub(in super::super) fn has_ended(&self) -> bool {
        self.mapping.words()[ENDED].load(Ordering::SeqCst) != 0
            || matches!(&self.holder, Holder::Process(process) if process_has_ended(process))
    }

    /// Notes where the node listens.
    pub(super) fn set_door(&self, door: SocketAddr) {
        let ip = match door.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let bits = ip.to_bits();
        let words = [bits as u64, (bits >> 64) as u64, door.port().into()];
        for (word, value) in self.mapping.words()[DOOR..].iter().zip(words) {
            word.store(value, Ordering::SeqCst);
        }
    }

    /// Address at which the node listens, as seen from this host.
    pub(in super::super) fn door(&self) -> SocketAddr {
        let word = |at: usize| self.mapping.words()[DOOR + at].load(Ordering::SeqCst);
        let ip = Ipv6Addr::from_bits(u128::from(word(0)) | u128::from(word(1)) << 64).to_canonical();
        let ip = match ip {
            IpAddr::V4(v4) if v4.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(v6) if v6.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        SocketAddr::new(ip, word(2) as u16)
    }

    /// Ends the segment of a node, and gives its memory back: clients that have it mapped find zeros.
    pub(super) fn remove(&mut self) {
        if let Holder::Node { note, memory, .. } = &self.holder {
            self.mapping.words()[ENDED].store(1, Ordering::SeqCst);
            discard(memory, HEADER_BYTES as u64, self.facts.region_bytes);
            // One that is gone already stays so.
            let _ = std::fs::remove_file(note);
            self.holder = Holder::Nobody;
        }
    }
}

impl Note {
    fn read(text: &[u8]) -> std::result::Result<Note, &'static str> {
        let foreign = "is no segment of a memory node; check the name";
        let text = text.strip_prefix(MAGIC.as_bytes()).ok_or(foreign)?;
        let other = "is a segment of another version; run one version";
        let fields: Vec<&str> = std::str::from_utf8(text).map_err(|_| other)?.split_whitespace().collect();
        match fields[..] {
            [version, process, descriptor, epoch] if version.parse() == Ok(VERSION) => Ok(Note {
                process: process.parse().ok().filter(|&process| process > 0).ok_or(foreign)?,
                descriptor: descriptor.parse().ok().filter(|&descriptor| descriptor >= 0).ok_or(foreign)?,
                epoch: u64::from_str_radix(epoch, 16).map_err(|_| foreign)?,
            }),
            _ => Err(other),
        }
    }
}

/// Tries a small segment. Returns what there is to say of them, or why there can be none.
pub(in super::super) fn segments_work() -> std::result::Result<String, String> {
    let facts = Facts { node: NodeId(0), region_bytes: 4096, epoch: 1 };
    let (name, secret) = (format!("stratann-doctor-{}", std::process::id()), [0; 32]);
    let mut segment = Segment::create(&name, &facts, &secret).map_err(|e| e.message)?;
    let opened = Segment::open("shm", &name, &secret).map(drop).map_err(|e| e.to_string());
    segment.remove();
    opened.map(|()| "sealed memory, for memory nodes of this user on this host".into())
}

/// Bytes that the key signs.
fn signed(content: [u64; 3]) -> Vec<u8> {
    [MAGIC.as_bytes(), &[VERSION, content[0], content[1], content[2]].map(u64::to_le_bytes).concat()].concat()
}

fn path(name: &str) -> std::result::Result<PathBuf, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.starts_with('.') || name.len() > NAME_BYTES_MAX || !name.chars().all(is_plain)
    {
        return Err(format!(
            "the name {name:?} of a segment; use up to {NAME_BYTES_MAX} letters, digits, hyphens and points"
        ));
    }
    Ok(Path::new("/dev/shm").join(name))
}

/// Opens a regular file that belongs to this user, and that no other can write.
fn open_own(path: &Path) -> io::Result<File> {
    // The names of descriptors of a process are links; that of a segment must be none.
    let is_descriptor = path.starts_with("/proc");
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC | if is_descriptor { 0 } else { libc::O_NOFOLLOW };
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
    let found = file.metadata()?;
    // SAFETY: a plain system call.
    let own = unsafe { libc::geteuid() };
    let refused = |why: String| Err(io::Error::other(why));
    match found.mode() & 0o022 {
        _ if !found.is_file() => refused("it is no regular file; check the name".into()),
        _ if found.uid() != own => refused(format!(
            "it belongs to user {}, and this is user {own}; run both as one user, or use tcp",
            found.uid()
        )),
        0 => Ok(file),
        _ => refused("other users can write it; start the memory node again, or use tcp".into()),
    }
}

/// Writes the file of a segment, which must not exist, and holds its lock.
fn publish(note: &Path, text: &str) -> io::Result<File> {
    let number = random().map_err(|e| io::Error::other(e.message))?;
    let beside = note.with_file_name(format!(".stratann-{number:016x}"));
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&beside)?;
    let named = file.lock().and_then(|()| file.write_all(text.as_bytes())).and_then(|()| {
        // Unlike a rename it replaces nothing.
        std::fs::hard_link(&beside, note)
    });
    std::fs::remove_file(&beside)?;
    named.map(|()| file)
}

fn in_use(note: &Path) -> Error {
    let why = "is in use by another memory node; stop that one, or give another --shm";
    Error::bad_input(format!("{} {why}", note.display()))
}

/// Removes the file of a segment whose node has died. Nothing of its memory is used again.
fn remove_old(note: &Path) -> Result<()> {
    loop {
        let mut file = match open_own(note) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(Error::bad_input(format!("{}: {e}; give another --shm", note.display()))),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(in_use(note)),
            Err(TryLockError::Error(e)) => return Err(Error::io("locking", note, &e)),
        }
        let io = |e: io::Error| Error::io("reading", note, &e);
        let mut start = [0; MAGIC.len()];
        if file.metadata().map_err(io)?.len() < start.len() as u64
            || file.read_exact(&mut start).is_err()
            || start != *MAGIC.as_bytes()
        {
            let why = "is no segment of a memory node; give another --shm";
            return Err(Error::bad_input(format!("{} {why}", note.display())));
        }
        // Whoever removes the name holds the lock of its file. Another may have done so before this lock.
        let is_named = std::fs::symlink_metadata(note).is_ok_and(|now| {
            file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (now.dev(), now.ino()))
        });
        if is_named {
            return std::fs::remove_file(note).map_err(|e| Error::io("removing the segment", note, &e));
        }
    }
}

/// Zeroed memory whose length stays.
fn sealed(bytes: u64) -> io::Result<File> {
    // SAFETY: the name is a string that ends with 0; the result is checked.
    let descriptor = unsafe {
        libc::memfd_create(c"stratann-region".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
    };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nobody else's.
    let file = unsafe { File::from_raw_fd(descriptor) };
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.set_len(bytes)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: a plain system call on an open descriptor.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
        0 => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives a part of the memory back. Where that fails it is kept until the last client has gone.
fn discard(memory: &File, from: u64, bytes: u64) {
    let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: a plain system call on an open descriptor.
    unsafe { libc::fallocate(memory.as_raw_fd(), how, from as libc::off_t, bytes as libc::off_t) };
}

/// Whether nobody can cut a file off.
fn is_sealed(file: &File) -> bool {
    // SAFETY: a plain system call on an open descriptor.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}

/// A descriptor of a process, which is readable once it has ended.
fn process_of(process: i32) -> io::Result<OwnedFd> {
    // SAFETY: a plain system call without pointers; the result is checked.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
}

fn process_has_ended(process: &OwnedFd) -> bool {
    let mut watched = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the array is one entry, which lives through the call.
    unsafe { libc::poll(&raw mut watched, 1, 0) > 0 }
}
