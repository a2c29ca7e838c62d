//! Parts of a file that are read at an offset, each with a checksum.
//!
//! | bytes | part |
//! |---|---|
//! | 4 | bytes of the content |
//! | 8 | xxh3 of the content, seeded with the place of the part |
//! | | content |
//!
//! All numbers are little-endian. The seed tells a part from one that belongs elsewhere.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use stratann_storage::input::open_regular;
use stratann_storage::{Error, Result};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes before the content of a part.
pub(crate) const HEAD_BYTES: u64 = 12;
/// Bytes that are read at first where the length of a part is not known.
const GUESS_BYTES: u64 = 4096;
/// Bytes that are read ahead of parts one behind another.
const WINDOW_BYTES: u64 = 128 << 10;
/// Bytes of the end of a file.
const END_BYTES: u64 = 32;

/// Where a part is. Its length is known from its head.
pub(crate) type Place = u64;

/// A file that is written part by part.
pub(crate) struct PartWriter {
    path: PathBuf,
    file: BufWriter<File>,
    at: u64,
}

impl PartWriter {
    /// Begins a file.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn create(path: &Path) -> Result<PartWriter> {
        let file = File::create(path).map_err(|e| Error::io("creating", path, &e))?;
        Ok(PartWriter { path: path.into(), file: BufWriter::with_capacity(256 << 10, file), at: 0 })
    }

    /// Appends a part; returns its place.
    ///
    /// # Errors
    /// `Io`; `BadInput` for content of 4 GiB or more.
    pub(crate) fn part(&mut self, content: &[u8]) -> Result<Place> {
        let place = self.at;
        let bytes = u32::try_from(content.len()).map_err(|_| {
            let path = self.path.display();
            Error::bad_input(format!("{path}: a part would have 4 GiB or more; index fewer fields or rows"))
        })?;
        let sum = xxh3_64_with_seed(content, place);
        self.write(&bytes.to_le_bytes())?;
        self.write(&sum.to_le_bytes())?;
        self.write(content)?;
        Ok(place)
    }

    /// Path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.at += bytes.len() as u64;
        self.file.write_all(bytes).map_err(|e| Error::io("writing", &self.path, &e))
    }

    /// Appends the directory and the end, and syncs the file; returns its length in bytes.
    ///
    /// # Errors
    /// As [`PartWriter::part`].
    pub(crate) fn finish(mut self, directory: &[u8], magic: &[u8; 8]) -> Result<u64> {
        let place = self.part(directory)?;
        let numbers = [place, self.at].map(u64::to_le_bytes).concat();
        self.write(&numbers)?;
        self.write(&xxh3_64_with_seed(&numbers, 0).to_le_bytes())?;
        self.write(magic)?;
        let failed = |e: &io::Error| Error::io("writing", &self.path, e);
        let file = self.file.into_inner().map_err(|e| failed(e.error()))?;
        file.sync_all().map_err(|e| Error::io("syncing", &self.path, &e))?;
        Ok(self.at)
    }
}

/// A file that is read part by part.
///
/// | bytes | end of the file |
/// |---|---|
/// | 8 | place of the directory |
/// | 8 | place of this end |
/// | 8 | xxh3 of both |
/// | 8 | magic with version |
pub(crate) struct PartFile {
    path: PathBuf,
    file: File,
    /// Place of the end; parts lie before it.
    end: u64,
    reads: AtomicU64,
}

impl PartFile {
    /// Opens a file; returns its directory too.
    ///
    /// # Errors
    /// `Corrupt` for a file that is none, or is cut or changed; `BadInput` for a missing one; `Io`.
    pub(crate) fn open(path: &Path, magic: &[u8; 8]) -> Result<(PartFile, Vec<u8>)> {
        let file = open_regular(path, 0).map_err(|e| Error::io("opening", path, &e))?;
        let length = file.metadata().map_err(|e| Error::io("opening", path, &e))?.len();
        let end = length.saturating_sub(END_BYTES);
        let own = PartFile { path: path.into(), file, end, reads: AtomicU64::new(0) };
        if length < END_BYTES {
            return Err(own.damaged("its end", "the file is cut"));
        }
        let mut bytes = [0; END_BYTES as usize];
        own.read_at(&mut bytes, end, "its end")?;
        let (numbers, rest) = bytes.split_at(16);
        if rest.get(8..) != Some(&magic[..]) {
            return Err(own.damaged("its end", "it is of another kind or version"));
        }
        if number(rest, 0) != Some(xxh3_64_with_seed(numbers, 0)) {
            return Err(own.damaged("its end", "it differs from its checksum"));
        }
        if number(numbers, 8) != Some(end) {
            return Err(own.damaged("its end", "the file is longer or shorter than it was"));
        }
        let directory = own.part(number(numbers, 0).unwrap_or(u64::MAX), "its directory")?;
        Ok((own, directory))
    }

    /// Path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads since it was opened.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// The content of a part. `what` names it in errors.
    ///
    /// # Errors
    /// `Corrupt` for a part that is cut or changed; `Io`.
    pub(crate) fn part(&self, place: Place, what: &str) -> Result<Vec<u8>> {
        self.part_of(place, GUESS_BYTES, what)
    }

    /// As [`PartFile::part`], where about `guess` bytes of content are expected: a good guess spares a read.
    pub(crate) fn part_of(&self, place: Place, guess: u64, what: &str) -> Result<Vec<u8>> {
        let left = self.end.checked_sub(place).filter(|left| *left >= HEAD_BYTES);
        let left = left.ok_or_else(|| self.damaged(what, "it would lie beyond the file"))?;
        let mut bytes = vec![0; left.min(HEAD_BYTES + guess) as usize];
        self.read_at(&mut bytes, place, what)?;
        let (length, sum) = head(&bytes).ok_or_else(|| self.damaged(what, "it is cut"))?;
        if length > left - HEAD_BYTES {
            return Err(self.damaged(what, "it would be longer than the file"));
        }
        let known = bytes.len();
        bytes.resize((HEAD_BYTES + length) as usize, 0);
        if bytes.len() > known {
            self.read_at(&mut bytes[known..], place + known as u64, what)?;
        }
        let content = bytes.split_off(HEAD_BYTES as usize);
        if xxh3_64_with_seed(&content, place) != sum {
            return Err(self.damaged(what, "it differs from its checksum"));
        }
        Ok(content)
    }

    /// As [`PartFile::part`], for many parts: where one lies behind the part before, `window` is read ahead.
    pub(crate) fn part_within(&self, place: Place, window: &mut Window, what: &str) -> Result<Vec<u8>> {
        let is_next = place == window.next;
        let content = self.read_within(place, window, is_next, what)?;
        window.next = place + HEAD_BYTES + content.len() as u64;
        Ok(content)
    }

    fn read_within(&self, place: Place, window: &mut Window, is_next: bool, what: &str) -> Result<Vec<u8>> {
        if let Some(content) = window.content(place) {
            return content.ok_or_else(|| self.damaged(what, "it differs from its checksum"));
        }
        if !is_next {
            return self.part(place, what);
        }
        let left = self.end.saturating_sub(place).min(WINDOW_BYTES);
        window.bytes.resize(left as usize, 0);
        window.at = place;
        self.read_at(&mut window.bytes, place, what)?;
        match window.content(place) {
            Some(content) => content.ok_or_else(|| self.damaged(what, "it differs from its checksum")),
            None => self.part(place, what),
        }
    }

    fn read_at(&self, bytes: &mut [u8], at: u64, what: &str) -> Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.file.read_exact_at(bytes, at).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => self.damaged(what, "the file is cut"),
            _ => Error::io("reading", &self.path, &e),
        })
    }

    /// The error of a damaged part.
    pub(crate) fn damaged(&self, what: &str, why: &str) -> Error {
        let path = self.path.display();
        Error::corrupt(format!(
            "{path} is damaged, {what}: {why}; restore the file, or build the segment again"
        ))
    }
}

/// Bytes of a file that were read ahead.
#[derive(Default)]
pub(crate) struct Window {
    at: u64,
    bytes: Vec<u8>,
    /// Place behind the last part that was read.
    next: Place,
}

impl Window {
    /// The content of a part that is in the window as a whole; `Some(None)` where it differs from its checksum.
    fn content(&self, place: Place) -> Option<Option<Vec<u8>>> {
        let bytes = self.bytes.get(usize::try_from(place.checked_sub(self.at)?).ok()?..)?;
        let (length, sum) = head(bytes)?;
        let content = bytes.get(HEAD_BYTES as usize..)?.get(..length as usize)?;
        Some((xxh3_64_with_seed(content, place) == sum).then(|| content.to_vec()))
    }
}

/// Length of the content and checksum of a part.
fn head(bytes: &[u8]) -> Option<(u64, u64)> {
    let length = bytes.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes))?;
    Some((length.into(), number(bytes, 4)?))
}

/// The `u64` at a place of these bytes.
pub(crate) fn number(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// The `u32` at a place of these bytes.
pub(crate) fn number32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}
