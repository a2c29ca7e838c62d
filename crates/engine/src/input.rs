//! Files that a user names as input. Only regular files are read: a FIFO would be waited for, a device has no end.

use std::fs::{File, FileType, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use crate::{Error, Result};

/// Opens a regular file for reading.
///
/// # Errors
/// `BadInput` for a missing path, a folder, a FIFO, a socket or a device; `Io` when the file cannot be opened.
pub fn open(path: &Path) -> Result<File> {
    let failed = |e: std::io::Error| Error::io("opening", path, &e);
    // Checked before opening, because opening a device may have effects.
    check(path, std::fs::metadata(path).map_err(failed)?.file_type())?;
    // The path may become a FIFO in between: O_NONBLOCK opens it without a writer, and the second check refuses it.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    check(path, file.metadata().map_err(failed)?.file_type())?;
    Ok(file)
}

/// Reads a whole regular file.
///
/// # Errors
/// As [`open`], and when reading fails.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes).map_err(|e| Error::io("reading", path, &e))?;
    Ok(bytes)
}

/// Reads a whole regular file of UTF-8 text.
///
/// # Errors
/// As [`open`], and when reading fails or the bytes are not UTF-8.
pub fn read_text(path: &Path) -> Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text).map_err(|e| Error::io("reading", path, &e))?;
    Ok(text)
}

fn check(path: &Path, kind: FileType) -> Result<()> {
    if kind.is_file() {
        return Ok(());
    }
    let (name, kind) = (path.display(), kind_name(kind));
    Err(Error::bad_input(format!("{name} is {kind}, not a regular file; give a regular file")))
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
