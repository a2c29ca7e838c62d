//! A file that appears complete or not at all.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// A file that is written under a temporary name in the same folder, synced and renamed. Dropping it before removes it.
pub(crate) struct AtomicFile {
    path: PathBuf,
    temporary: PathBuf,
    writer: BufWriter<File>,
    committed: bool,
}

impl AtomicFile {
    pub(crate) fn create(path: &Path) -> Result<AtomicFile> {
        let Some(name) = path.file_name() else {
            return Err(Error::bad_input(format!("{} is not a file name; give one", path.display())));
        };
        for attempt in 0..1000 {
            let unique = format!(".{}.{}.{attempt}.tmp", name.to_string_lossy(), std::process::id());
            let temporary = path.with_file_name(unique);
            match File::options().read(true).write(true).create_new(true).open(&temporary) {
                Ok(file) => {
                    let writer = BufWriter::with_capacity(1 << 20, file);
                    return Ok(AtomicFile { path: path.to_path_buf(), temporary, writer, committed: false });
                }
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Error::io("creating", path, &e)),
            }
        }
        let message = format!("{}: its folder is full of temporary files; remove *.tmp", path.display());
        Err(Error::bad_input(message))
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.write_all(bytes).map_err(|e| Error::io("writing", &self.path, &e))
    }

    /// The file itself, for writers at offsets that do not use `write`.
    pub(crate) fn file(&self) -> &File {
        self.writer.get_ref()
    }

    /// Makes the file durable under its name. Of several writers the last one wins.
    pub(crate) fn commit(mut self) -> Result<()> {
        self.publish().map_err(|e| Error::io("writing", &self.path, &e))?;
        self.committed = true;
        Ok(())
    }

    fn publish(&mut self) -> std::io::Result<()> {
        self.writer.flush()?;
        self.writer.get_ref().sync_all()?;
        std::fs::rename(&self.temporary, &self.path)?;
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
