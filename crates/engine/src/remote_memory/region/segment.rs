//! A region in a named segment of shared memory, `/dev/shm/NAME`: its file permissions guard it.
//!
//! | word of the header | content |
//! |---|---|
//! | 0 | magic number; written last |
//! | 1 | version |
//! | 2 | number of the node |
//! | 3 | size of the region |
//! | 4 | epoch |
//! | 5 | XXH3 of words 1 to 4 |
//! | 6 | 1 once the node has gone, or another took the name |
//!
//! The region begins at byte 4096.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use xxhash_rust::xxh3::xxh3_64;

use super::mapping::Mapping;
use super::{Facts, MemoryError, NodeId};
use crate::{Error, Result};

const MAGIC: u64 = u64::from_le_bytes(*b"STRATSHM");
const VERSION: u64 = 2;
const HEADER_BYTES: usize = 4096;
/// Word that says whether the segment is still a node's.
const ENDED: usize = 6;
const NAME_BYTES_MAX: usize = 200;

/// A segment, as its node or a client has it mapped.
pub(in super::super) struct Segment {
    mapping: Mapping,
    facts: Facts,
    // The node holds its lock; a client has none.
    owner: Option<(PathBuf, File)>,
}

impl Segment {
    /// Makes the segment of a node. One that a dead node left is replaced, and its clients find it ended.
    pub(super) fn create(name: &str, facts: &Facts) -> Result<Segment> {
        let path = path(name).map_err(Error::bad_input)?;
        let io = |what: &'static str| {
            let path = path.clone();
            move |e: io::Error| Error::io(what, &path, &e)
        };
        end_old(&path)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
            .map_err(io("making the segment"))?;
        file.lock().map_err(io("locking"))?;
        let whole = HEADER_BYTES as u64 + facts.region_bytes.next_multiple_of(8);
        reserve(&file, whole).map_err(|e| {
            let _ = std::fs::remove_file(&path);
            Error::bad_input(format!(
                "{whole} bytes of shared memory cannot be had at {}: {e}; give a smaller --size, or enlarge /dev/shm",
                path.display()
            ))
        })?;
        let mapping = Mapping::shared(&file, HEADER_BYTES, facts.region_bytes).map_err(io("mapping"))?;
        let content = [VERSION, facts.node.0.into(), facts.region_bytes, facts.epoch];
        let words = mapping.words();
        for (word, value) in words[1..].iter().zip(content.into_iter().chain([sum(content)])) {
            word.store(value, Ordering::Relaxed);
        }
        words[0].store(MAGIC, Ordering::Release);
        Ok(Segment { mapping, facts: *facts, owner: Some((path, file)) })
    }

    /// Maps the segment of a node on this host.
    pub(super) fn open(address: &str, name: &str) -> std::result::Result<Segment, MemoryError> {
        let unavailable = |why: String| MemoryError::Unavailable { address: address.into(), why };
        let path = path(name).map_err(unavailable)?;
        let gone = |e: &io::Error| match e.kind() {
            io::ErrorKind::NotFound => MemoryError::Disconnected {
                address: address.into(),
                why: format!("there is no segment {}", path.display()),
                may_have_run: false,
            },
            io::ErrorKind::PermissionDenied => unavailable(format!(
                "{} belongs to another user; run as the user that the memory node runs as",
                path.display()
            )),
            _ => unavailable(format!("{}: {e}; check /dev/shm", path.display())),
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
            .map_err(|e| gone(&e))?;
        let length = file.metadata().map_err(|e| gone(&e))?.len();
        let foreign = || MemoryError::Version {
            address: address.into(),
            why: format!("{} is no segment of a memory node; check the name", path.display()),
        };
        if length < HEADER_BYTES as u64 {
            return Err(foreign());
        }
        let header = Mapping::shared(&file, 0, HEADER_BYTES as u64).map_err(|e| gone(&e))?;
        let word = |at: usize| header.words()[at].load(Ordering::Acquire);
        if word(0) != MAGIC {
            return Err(foreign());
        }
        let content: [u64; 4] = std::array::from_fn(|i| word(1 + i));
        let [version, node, region_bytes, epoch] = content;
        if version != VERSION {
            let why = format!("its segment has version {version}, this program {VERSION}; run one version");
            return Err(MemoryError::Version { address: address.into(), why });
        }
        let whole = region_bytes.checked_next_multiple_of(8).and_then(|b| b.checked_add(HEADER_BYTES as u64));
        if word(5) != sum(content) || node > 255 || whole.is_none_or(|whole| whole > length) {
            return Err(foreign());
        }
        let mapping = Mapping::shared(&file, HEADER_BYTES, region_bytes).map_err(|e| gone(&e))?;
        let facts = Facts { node: NodeId(node as u8), region_bytes, epoch };
        Ok(Segment { mapping, facts, owner: None })
    }

    pub(in super::super) fn facts(&self) -> Facts {
        self.facts
    }

    pub(in super::super) fn bytes(&self) -> &Mapping {
        &self.mapping
    }

    /// Whether its node has ended, or another took its name.
    pub(in super::super) fn has_ended(&self) -> bool {
        self.mapping.words()[ENDED].load(Ordering::SeqCst) != 0
    }

    /// Ends the segment of a node.
    pub(super) fn remove(&mut self) {
        if let Some((path, _file)) = self.owner.take() {
            self.mapping.words()[ENDED].store(1, Ordering::SeqCst);
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Tries a small segment. Returns what there is to say of them, or why there can be none.
pub(in super::super) fn segments_work() -> std::result::Result<String, String> {
    let facts = Facts { node: NodeId(0), region_bytes: 4096, epoch: 1 };
    let mut segment =
        Segment::create(&format!("stratann-doctor-{}", std::process::id()), &facts).map_err(|e| e.message)?;
    segment.remove();
    Ok("segments in /dev/shm, for memory nodes on this host".into())
}

fn sum(content: [u64; 4]) -> u64 {
    xxh3_64(&content.map(u64::to_le_bytes).concat())
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

/// Marks a segment that a dead node left as ended, and removes its name.
fn end_old(path: &Path) -> Result<()> {
    let opened = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::io("opening the segment", path, &e)),
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let why = "is in use by another memory node; stop that one, or give another --shm";
            return Err(Error::bad_input(format!("{} {why}", path.display())));
        }
        Err(TryLockError::Error(e)) => return Err(Error::io("locking", path, &e)),
    }
    let length = file.metadata().map_err(|e| Error::io("reading", path, &e))?.len();
    let foreign =
        || Error::bad_input(format!("{} is no segment of a memory node; give another --shm", path.display()));
    if length < HEADER_BYTES as u64 {
        return Err(foreign());
    }
    let old = Mapping::shared(&file, 0, HEADER_BYTES as u64).map_err(|e| Error::io("mapping", path, &e))?;
    // A node that died while it made its segment left no magic number.
    if ![0, MAGIC].contains(&old.words()[0].load(Ordering::Acquire)) {
        return Err(foreign());
    }
    old.words()[ENDED].store(1, Ordering::SeqCst);
    std::fs::remove_file(path).map_err(|e| Error::io("removing the segment", path, &e))
}

/// Takes the memory now: where it lacks later, an access would end the process.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    let length = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
    // SAFETY: a plain system call on an open descriptor.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}
