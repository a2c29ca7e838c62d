//! Data files: length and checksum of each, as the manifest has them.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::durable::hex;
use crate::tier::Resident;
use crate::{Error, Result, input};

/// One data file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Length.
    pub bytes: u64,
    /// xxh3-64 of the content, 16 hexadecimal digits.
    pub xxh3: String,
}

/// Reason why a file of an index cannot be used.
pub fn failed(what: &str, path: &Path, e: &std::io::Error) -> Error {
    match e.kind() {
        std::io::ErrorKind::InvalidInput => {
            Error::corrupt(format!("{} is {e}; restore it or build the index again", path.display()))
        }
        _ => Error::io(what, path, e),
    }
}

/// Opens a data file: a regular one, of the length that the manifest says.
///
/// # Errors
/// Another kind of file, another length; one that cannot be opened.
pub fn open_file(path: &Path, entry: &FileEntry) -> Result<File> {
    let file = input::open_regular(path, 0).map_err(|e| failed("opening", path, &e))?;
    check_length(path, file.metadata().map_err(|e| failed("opening", path, &e))?.len(), entry)?;
    Ok(file)
}

/// Reads a whole data file and checks it against the manifest.
pub fn read_file(folder: &Path, name: &str, entry: &FileEntry) -> Result<Vec<u8>> {
    let path = folder.join(name);
    let file = open_file(&path, entry)?;
    let mut bytes = Vec::with_capacity(entry.bytes as usize);
    file.take(entry.bytes).read_to_end(&mut bytes).map_err(|e| Error::io("reading", &path, &e))?;
    check_length(&path, bytes.len() as u64, entry)?;
    check_sum(&path, &bytes, entry)?;
    Ok(bytes)
}

/// [`read_file`], for what is looked up at random while searches run.
pub fn read_resident(folder: &Path, name: &str, entry: &FileEntry) -> Result<Resident> {
    let path = folder.join(name);
    let failed = |e| Error::io("reading", &path, &e);
    let mut file = open_file(&path, entry)?;
    // The mapping is not taken from what the allocator keeps of freed memory, so that goes back first.
    crate::budget::release_freed();
    let mut bytes = Resident::new(entry.bytes as usize)
        .ok_or_else(|| failed(std::io::Error::from(std::io::ErrorKind::OutOfMemory)))?;
    file.read_exact(&mut bytes).map_err(failed)?;
    check_sum(&path, &bytes, entry)?;
    Ok(bytes)
}

pub(crate) fn check_length(path: &Path, length: u64, entry: &FileEntry) -> Result<()> {
    if length == entry.bytes {
        return Ok(());
    }
    Err(Error::corrupt(format!(
        "{} has {length} bytes, the manifest says {}; restore it or build the index again",
        path.display(),
        entry.bytes
    )))
}

fn check_sum(path: &Path, bytes: &[u8], entry: &FileEntry) -> Result<()> {
    let found = FileEntry { bytes: entry.bytes, xxh3: hex(xxh3_64(bytes)) };
    check_entry(path, &found, entry)
}

/// Compares what was read of a file of the right length with the manifest.
///
/// # Errors
/// Another checksum.
pub fn check_entry(path: &Path, found: &FileEntry, entry: &FileEntry) -> Result<()> {
    if found == entry {
        return Ok(());
    }
    Err(Error::corrupt(format!(
        "{} is damaged: its checksum does not match; restore it or build the index again",
        path.display()
    )))
}

/// Length and checksum of bytes that come in pieces.
#[derive(Default)]
pub struct Sum {
    hash: Xxh3,
    bytes: u64,
}

impl Sum {
    /// Adds a piece.
    pub fn add(&mut self, piece: &[u8]) {
        self.hash.update(piece);
        self.bytes += piece.len() as u64;
    }

    /// Length and checksum of the pieces so far.
    pub fn entry(&self) -> FileEntry {
        FileEntry { bytes: self.bytes, xxh3: hex(self.hash.digest()) }
    }
}

/// Length and checksum of bytes.
pub fn entry_of(bytes: &[u8]) -> FileEntry {
    let mut sum = Sum::default();
    sum.add(bytes);
    sum.entry()
}

/// Length and checksum of a file, read in pieces.
pub fn entry(path: &Path) -> Result<FileEntry> {
    use std::io::Read;
    let failed = |e: std::io::Error| Error::io("reading", path, &e);
    let mut file = input::open(path)?;
    let (mut sum, mut buffer) = (Sum::default(), vec![0u8; 1 << 18]);
    loop {
        let count = file.read(&mut buffer).map_err(failed)?;
        if count == 0 {
            return Ok(sum.entry());
        }
        sum.add(&buffer[..count]);
    }
}
