//! Files that are read. Only regular files are: a FIFO would be waited for, a device has no end.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Opens a regular file for reading.
///
/// # Errors
/// `BadInput` for a missing path, a folder, a FIFO, a socket or a device; `Io` when the file cannot be opened.
pub fn open(path: &Path) -> Result<File> {
    open_regular(path, 0).map_err(|e| failed("opening", path, &e))
}

/// Opens a regular file with more flags of `open(2)`; `InvalidInput` says what else it is.
pub fn open_regular(path: &Path, flags: i32) -> io::Result<File> {
    // Checked before opening, because opening a device may have effects.
    check(std::fs::metadata(path)?.file_type())?;
    // The path may become a FIFO in between: O_NONBLOCK opens it without a writer, and the second check refuses it.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | flags).open(path)?;
    check(file.metadata()?.file_type())?;
    Ok(file)
}

fn failed(what: &str, path: &Path, e: &io::Error) -> Error {
    match e.kind() {
        io::ErrorKind::InvalidInput => Error::bad_input(format!(
            "{} is {e}; inputs are read at offsets, so give a regular file",
            path.display()
        )),
        _ => Error::io(what, path, e),
    }
}

/// Longest file that is read whole without a length that is known before: JSON, keys, what was learned.
const WHOLE_BYTES_MAX: u64 = 256 << 20;

/// Reads a whole regular file, whose length is checked before.
pub fn read_up_to(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = open_regular(path, 0)?;
    let length = file.metadata()?.len();
    if length > bytes_max {
        let what = format!("too long: {length} bytes, at most {bytes_max} are read");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let mut bytes = Vec::with_capacity(length as usize);
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a whole regular file.
///
/// # Errors
/// As [`open`], and when reading fails.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    read_up_to(path, WHOLE_BYTES_MAX).map_err(|e| failed("reading", path, &e))
}

/// Reads a whole regular file of UTF-8 text.
///
/// # Errors
/// As [`open`], and when reading fails or the bytes are not UTF-8.
pub fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(read(path)?)
        .map_err(|e| Error::io("reading", path, &io::Error::new(io::ErrorKind::InvalidData, e)))
}

fn check(kind: FileType) -> io::Result<()> {
    if kind.is_file() {
        return Ok(());
    }
    let what = format!("{}, not a regular file", kind_name(kind));
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}

/// Name of a kind of file, with its article.
pub(crate) fn kind_name(kind: FileType) -> &'static str {
    match kind {
        k if k.is_file() => "a file",
        k if k.is_dir() => "a folder",
        k if k.is_symlink() => "a symbolic link",
        k if k.is_fifo() => "a FIFO",
        k if k.is_socket() => "a socket",
        _ => "a device",
    }
}

/// Splits `#column` off a path, unless a file of the whole name exists.
pub fn split_column(path: &Path) -> (PathBuf, Option<String>) {
    let whole = (path.to_path_buf(), None);
    if path.exists() {
        return whole;
    }
    match path.to_str().and_then(|text| text.rsplit_once('#')) {
        Some((file, column)) if !column.contains('/') => (PathBuf::from(file), Some(column.to_owned())),
        _ => whole,
    }
}
