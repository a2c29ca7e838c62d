//! Temporary files beside an index that is built, which are removed with what holds them.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use stratann_storage::{Error, Result};

/// A file that is written from its beginning on.
pub(super) struct Written {
    pub(super) path: PathBuf,
    pub(super) file: BufWriter<File>,
}

impl Written {
    /// The error of a write.
    pub(super) fn failed(&self, e: &std::io::Error) -> Error {
        Error::io("writing", &self.path, e)
    }

    /// The file with all that was written.
    ///
    /// # Errors
    /// A disk that is full or fails.
    pub(super) fn finish(self) -> Result<File> {
        self.file.into_inner().map_err(|e| Error::io("writing", &self.path, e.error()))
    }
}

/// Temporary files of a folder. They are removed with this value, and so is the folder where nothing else came into
/// it.
pub(super) struct Temporary {
    folder: PathBuf,
    paths: Vec<PathBuf>,
}

impl Temporary {
    /// None yet, in a folder that is made where it is not there.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn in_folder(folder: &Path) -> Result<Temporary> {
        std::fs::create_dir_all(folder).map_err(|e| Error::io("creating", folder, &e))?;
        Ok(Temporary { folder: folder.into(), paths: Vec::new() })
    }

    /// Creates a file, which can be read too.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn create(&mut self, name: &str) -> Result<Written> {
        let path = self.folder.join(name);
        self.paths.push(path.clone());
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.map_err(|e| Error::io("creating", &path, &e))?;
        Ok(Written { path, file: BufWriter::with_capacity(1 << 20, file) })
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // What is left behind is a temporary file, which the next build removes or replaces.
        self.paths.iter().for_each(|path| _ = std::fs::remove_file(path));
        let _ = std::fs::remove_dir(&self.folder);
    }
}
