//! A file that appears complete or not at all.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::output::OutputPath;
use crate::{Error, Result};

/// A file that is written under a temporary name in the same folder, synced and renamed. Dropping it before removes it.
pub struct AtomicFile {
    path: PathBuf,
    /// Absent for files of an index, which replace their predecessors.
    output: Option<OutputPath>,
    temporary: PathBuf,
    writer: BufWriter<File>,
    committed: bool,
}

impl AtomicFile {
    /// Creates a file of an index, which replaces its predecessor when it is committed.
    ///
    /// # Errors
    /// When the temporary file beside it cannot be created.
    pub fn create(path: &Path) -> Result<AtomicFile> {
        AtomicFile::create_for(path, None)
    }

    /// Creates a file that is committed under the rules of its output path.
    pub(crate) fn create_output(output: &OutputPath) -> Result<AtomicFile> {
        AtomicFile::create_for(output.path(), Some(output.clone()))
    }

    fn create_for(path: &Path, output: Option<OutputPath>) -> Result<AtomicFile> {
        let Some(name) = path.file_name() else {
            return Err(Error::bad_input(format!("{} is not a file name; give one", path.display())));
        };
        for attempt in 0..1000 {
            let unique = format!(".{}.{}.{attempt}.tmp", name.to_string_lossy(), std::process::id());
            let temporary = path.with_file_name(unique);
            match File::options().read(true).write(true).create_new(true).open(&temporary) {
                Ok(file) => {
                    let writer = BufWriter::with_capacity(1 << 20, file);
                    let path = path.to_path_buf();
                    return Ok(AtomicFile { path, output, temporary, writer, committed: false });
                }
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Error::io("creating", path, &e)),
            }
        }
        let message = format!("{}: its folder is full of temporary files; remove *.tmp", path.display());
        Err(Error::bad_input(message))
    }

    /// The final path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// When writing fails.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.write_all(bytes).map_err(|e| Error::io("writing", &self.path, &e))
    }

    /// Writes bytes at an offset, past the buffer of `write`.
    ///
    /// # Errors
    /// When writing fails.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.file().write_all_at(bytes, offset).map_err(|e| Error::io("writing", &self.path, &e))
    }

    /// Gives the file its length, for writers at offsets. What is never written stays a hole.
    ///
    /// # Errors
    /// When writing fails.
    pub fn set_len(&self, bytes: u64) -> Result<()> {
        self.file().set_len(bytes).map_err(|e| Error::io("writing", &self.path, &e))
    }

    /// The file itself, for writers at offsets that do not use `write`.
    pub fn file(&self) -> &File {
        self.writer.get_ref()
    }

    /// Makes the file durable under its name. Of several writers of a file of an index the last one wins.
    ///
    /// # Errors
    /// When writing fails, or an output path is no longer free.
    pub fn commit(mut self) -> Result<()> {
        let path = self.path.clone();
        let failed = |e: std::io::Error| Error::io("writing", &path, &e);
        self.writer.flush().and_then(|()| self.writer.get_ref().sync_all()).map_err(failed)?;
        match &self.output {
            Some(output) => output.publish(&self.temporary)?,
            None => std::fs::rename(&self.temporary, &self.path).map_err(failed)?,
        }
        self.committed = true;
        self.sync_folder().map_err(failed)
    }

    fn sync_folder(&self) -> std::io::Result<()> {
        // The rename is durable only when the folder is synced.
        let folder = match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        File::open(folder)?.sync_all()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.committed {
            // An error here cannot be handled: the caller has one already.
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}
