//! The file of a region, and the journal beside it.
//!
//! | bytes of the file | content |
//! |---|---|
//! | 4096 | header: magic number, version, bytes of a chunk, size and epoch of the region, checksum |
//! | n × 64 KiB | chunks of the region |
//! | n × 8 | a sum of each chunk; 0 for one of zeros |
//!
//! A change goes to the journal, `FILE.journal`. When the journal is large, changed chunks are written to the file: a
//! checkpoint. Their sums go to the journal first, so a checkpoint that was cut off is repeated from the journal, and
//! what comes out is checked.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::journal::{self, Record};
use super::mapping::Mapping;
use crate::durable::sync_folder;
use crate::{Error, Result};

const MAGIC: &[u8; 8] = b"STRATREG";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 40;
/// Where the chunks begin.
const CHUNKS_AT: u64 = 4096;
/// Bytes of a chunk.
const CHUNK: u64 = 64 << 10;
/// Bytes of the journal that begin a checkpoint.
const JOURNAL_BYTES: u64 = 64 << 20;

/// The file and the journal of a region in memory.
pub(super) struct RegionFile {
    path: PathBuf,
    image: File,
    journal: File,
    journal_bytes: u64,
    // Number of the next record.
    number: u64,
    record: Vec<u8>,
    // Chunks that differ from the file.
    changed: BTreeSet<u64>,
    sums: Vec<u64>,
}

impl RegionFile {
    /// Opens the file, or makes it, and reads it into `memory`. Returns its epoch; a new file gets `epoch`.
    pub(super) fn open(path: &Path, memory: &Mapping, epoch: u64) -> Result<(RegionFile, u64)> {
        let io = |what: &'static str| move |e: io::Error| Error::io(what, path, &e);
        let image = open(path).map_err(io("opening"))?;
        lock(&image, path)?;
        let mut journal_path = path.as_os_str().to_owned();
        journal_path.push(".journal");
        let journal_path = PathBuf::from(journal_path);
        let mut journal = open(&journal_path).map_err(|e| Error::io("opening", &journal_path, &e))?;
        let chunks = memory.len().div_ceil(CHUNK);
        let epoch = match read_header(&image, path, memory.len())? {
            Some(epoch) => epoch,
            None => {
                journal.set_len(0).and_then(|()| journal.sync_all()).map_err(io("writing"))?;
                create(&image, memory.len(), epoch).map_err(io("writing"))?;
                sync_folder(path.parent().filter(|p| *p != Path::new("")).unwrap_or(Path::new(".")))?;
                epoch
            }
        };
        let mut sums = vec![0; chunks as usize];
        read_sums(&image, &mut sums).map_err(io("reading"))?;
        let mut bytes = Vec::new();
        journal.read_to_end(&mut bytes).map_err(|e| Error::io("reading", &journal_path, &e))?;
        let (records, number) = journal::read(&bytes).map_err(|at| {
            let why = "a record is damaged, and those behind it are not; restore file and journal together, or \
                       remove both and load the index again";
            Error::corrupt(format!("{}, byte {at}: {why}", journal_path.display()))
        })?;
        let file = RegionFile {
            path: path.to_path_buf(),
            image,
            journal,
            journal_bytes: bytes.len() as u64,
            number,
            record: Vec::new(),
            changed: BTreeSet::new(),
            sums,
        };
        Ok((file.load(memory, &records)?, epoch))
    }

    /// Reads all chunks, repeats the journal, and begins an empty one.
    fn load(mut self, memory: &Mapping, records: &[Record<'_>]) -> Result<RegionFile> {
        let announced: Vec<(u64, u64)> = match records.last() {
            Some(Record::Sums(sums)) => sums.clone(),
            _ => Vec::new(),
        };
        let rewritten: BTreeSet<u64> = announced.iter().map(|(chunk, _)| *chunk).collect();
        let mut bytes = vec![0; CHUNK as usize];
        for chunk in 0..self.sums.len() as u64 {
            let sum = self.sums[chunk as usize];
            // Chunks of zeros are not read: a file that is mostly empty opens at once.
            if sum == 0 && !rewritten.contains(&chunk) {
                continue;
            }
            let bytes = &mut bytes[..chunk_bytes(memory, chunk)];
            self.image
                .read_exact_at(bytes, CHUNKS_AT + chunk * CHUNK)
                .map_err(|e| Error::io("reading", &self.path, &e))?;
            if sum_of(chunk, bytes) != sum && !rewritten.contains(&chunk) {
                return Err(self.damaged(chunk));
            }
            memory.write(chunk * CHUNK, bytes);
        }
        for record in records {
            let Record::Writes(writes) = record else { continue };
            for (offset, bytes) in writes {
                let end = offset.saturating_add(bytes.len() as u64);
                if end > memory.len() {
                    return Err(Error::corrupt(format!(
                        "the journal of {} writes up to byte {end} of a region of {}; restore file and journal \
                         together, or remove both and load the index again",
                        self.path.display(),
                        memory.len()
                    )));
                }
                memory.write(*offset, bytes);
                self.mark(*offset, bytes.len());
            }
        }
        for (chunk, sum) in announced {
            let bytes = &mut bytes[..chunk_bytes(memory, chunk)];
            memory.read(chunk * CHUNK, bytes);
            if chunk >= self.sums.len() as u64 || sum_of(chunk, bytes) != sum {
                return Err(self.damaged(chunk));
            }
        }
        if self.journal_bytes > 0 {
            self.checkpoint(memory)?;
        }
        Ok(self)
    }

    fn damaged(&self, chunk: u64) -> Error {
        Error::corrupt(format!(
            "{}: chunk {chunk}, at byte {} of the region, is damaged; restore the file and its journal, or remove \
             both and load the index again",
            self.path.display(),
            chunk * CHUNK
        ))
    }

    fn mark(&mut self, offset: u64, bytes: usize) {
        if bytes > 0 {
            self.changed.extend(offset / CHUNK..=(offset + bytes as u64 - 1) / CHUNK);
        }
    }

    /// Notes a change, for the next commit.
    pub(super) fn note(&mut self, offset: u64, bytes: &[u8]) {
        if self.record.is_empty() {
            journal::begin(&mut self.record);
        }
        journal::add(&mut self.record, offset, bytes);
        self.mark(offset, bytes.len());
    }

    pub(super) fn noted_bytes(&self) -> usize {
        self.record.len()
    }

    /// Makes all noted changes durable.
    pub(super) fn commit(&mut self, memory: &Mapping) -> Result<()> {
        if journal::is_empty(&self.record) {
            return Ok(());
        }
        let mut record = std::mem::take(&mut self.record);
        journal::seal(&mut record, self.number);
        self.append(&record)?;
        record.clear();
        self.record = record;
        if self.journal_bytes >= JOURNAL_BYTES { self.checkpoint(memory) } else { Ok(()) }
    }

    fn append(&mut self, record: &[u8]) -> Result<()> {
        self.journal
            .write_all_at(record, self.journal_bytes)
            .and_then(|()| self.journal.sync_data())
            .map_err(|e| Error::io("writing the journal of", &self.path, &e))?;
        self.journal_bytes += record.len() as u64;
        self.number += 1;
        Ok(())
    }

    /// Writes changed chunks to the file, and empties the journal. All changes must be committed.
    pub(super) fn checkpoint(&mut self, memory: &Mapping) -> Result<()> {
        let mut bytes = vec![0; CHUNK as usize];
        let mut read = |chunk: u64| {
            let length = chunk_bytes(memory, chunk);
            memory.read(chunk * CHUNK, &mut bytes[..length]);
            sum_of(chunk, &bytes[..length])
        };
        let sums: Vec<(u64, u64)> = self.changed.iter().map(|&chunk| (chunk, read(chunk))).collect();
        if sums.is_empty() && self.journal_bytes == 0 {
            return Ok(());
        }
        self.append(&journal::sums(self.number, &sums))?;
        let io = |e: io::Error| Error::io("writing", &self.path, &e);
        let table = CHUNKS_AT + self.sums.len() as u64 * CHUNK;
        for (chunk, sum) in sums {
            let bytes = &mut bytes[..chunk_bytes(memory, chunk)];
            memory.read(chunk * CHUNK, bytes);
            self.image.write_all_at(bytes, CHUNKS_AT + chunk * CHUNK).map_err(io)?;
            self.image.write_all_at(&sum.to_le_bytes(), table + chunk * 8).map_err(io)?;
            self.sums[chunk as usize] = sum;
        }
        self.image.sync_data().map_err(io)?;
        self.journal.set_len(0).and_then(|()| self.journal.sync_all()).map_err(io)?;
        self.journal_bytes = 0;
        self.changed.clear();
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Holds the file for this process, as long as it is open.
fn lock(file: &File, path: &Path) -> Result<()> {
    file.try_lock().map_err(|e| match e {
        std::fs::TryLockError::WouldBlock => Error::bad_input(format!(
            "{} is in use by another memory node; stop that one, or give another --file",
            path.display()
        )),
        std::fs::TryLockError::Error(e) => Error::io("locking", path, &e),
    })
}

fn chunk_bytes(memory: &Mapping, chunk: u64) -> usize {
    CHUNK.min(memory.len().saturating_sub(chunk.saturating_mul(CHUNK))) as usize
}

/// The sum of a chunk: 0 for zeros, and for no other content.
fn sum_of(chunk: u64, bytes: &[u8]) -> u64 {
    let is_zero = bytes.iter().all(|b| *b == 0);
    if is_zero { 0 } else { xxh3_64_with_seed(bytes, chunk).max(1) }
}

fn header(region_bytes: u64, epoch: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&(CHUNK as u32).to_le_bytes());
    header[16..24].copy_from_slice(&region_bytes.to_le_bytes());
    header[24..32].copy_from_slice(&epoch.to_le_bytes());
    let sum = xxh3_64(&header[..32]);
    header[32..].copy_from_slice(&sum.to_le_bytes());
    header
}

/// Makes an empty image. The header comes last: a file without one is made again.
fn create(image: &File, region_bytes: u64, epoch: u64) -> io::Result<()> {
    let chunks = region_bytes.div_ceil(CHUNK);
    image.set_len(0)?;
    image.set_len(CHUNKS_AT + chunks * (CHUNK + 8))?;
    image.sync_all()?;
    image.write_all_at(&header(region_bytes, epoch), 0)?;
    image.sync_all()
}

/// The epoch of a file; `None` for one that is empty, or was not made completely.
fn read_header(image: &File, path: &Path, region_bytes: u64) -> Result<Option<u64>> {
    let length = image.metadata().map_err(|e| Error::io("reading", path, &e))?.len();
    let mut found = [0; HEADER_BYTES];
    if length < CHUNKS_AT {
        return if length == 0 { Ok(None) } else { Err(foreign(path)) };
    }
    image.read_exact_at(&mut found, 0).map_err(|e| Error::io("reading", path, &e))?;
    if found == [0; HEADER_BYTES] {
        return Ok(None);
    }
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| found[at + i]));
    let (size, epoch) = (word(16), word(24));
    if found[..8] != *MAGIC {
        return Err(foreign(path));
    }
    let version = u32::from_le_bytes([found[8], found[9], found[10], found[11]]);
    if version != VERSION {
        return Err(Error::bad_input(format!(
            "{} has version {version} of the format, this program {VERSION}; use the program that wrote it",
            path.display()
        )));
    }
    if found != header(size, epoch) {
        let what =
            "its header is damaged; restore the file, or remove it and its journal and load the index again";
        return Err(Error::corrupt(format!("{}: {what}", path.display())));
    }
    if size != region_bytes {
        return Err(Error::bad_input(format!(
            "{} has a region of {size} bytes, and --size is {region_bytes}; give --size {size}, or another --file",
            path.display()
        )));
    }
    Ok(Some(epoch))
}

fn foreign(path: &Path) -> Error {
    Error::bad_input(format!("{} is no file of a memory node; give another --file", path.display()))
}

fn read_sums(image: &File, sums: &mut [u64]) -> io::Result<()> {
    let mut bytes = vec![0; sums.len() * 8];
    image.read_exact_at(&mut bytes, CHUNKS_AT + sums.len() as u64 * CHUNK)?;
    let (words, _) = bytes.as_chunks::<8>();
    sums.iter_mut().zip(words).for_each(|(sum, word)| *sum = u64::from_le_bytes(*word));
    Ok(())
}
