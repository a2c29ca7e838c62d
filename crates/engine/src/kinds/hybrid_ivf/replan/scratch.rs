//! A folder inside that of the index for files that are not published yet; it goes when it is done with, or with the
//! next replan.

use std::fs::File;
use std::path::{Path, PathBuf};

use stratann_storage::durable::write_synced;
use stratann_storage::names::FileName;
use stratann_storage::{Error, Result};

use crate::files;

/// Name of the folder.
const FOLDER: &str = "replan";

/// See the module.
pub(super) struct Scratch {
    folder: PathBuf,
    number: u64,
}

impl Scratch {
    /// For files of version `number` of the index in `folder`, whose lock is held.
    pub(super) fn create(folder: &Path, number: u64) -> Result<Scratch> {
        let folder = folder.join(FOLDER);
        // A replan that was killed has left it.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).map_err(|e| Error::io("creating", &folder, &e))?;
        Ok(Scratch { folder, number })
    }

    /// The name that the file of this role will have.
    pub(super) fn name(&self, role: &str) -> FileName {
        files::name(self.number, role)
    }

    /// Place of the file until then.
    pub(super) fn path(&self, role: &str) -> PathBuf {
        self.folder.join(self.name(role))
    }

    /// A new file of this role, to be read and written.
    pub(super) fn open(&self, role: &str) -> Result<File> {
        let path = self.path(role);
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        file.map_err(|e| Error::io("creating", &path, &e))
    }

    /// Writes the whole file of this role, durably.
    pub(super) fn write(&self, role: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path(role);
        write_synced(&path, bytes).map_err(|e| Error::io("writing", &path, &e))
    }

    /// Moves the file of this name to where it is looked for.
    pub(super) fn move_up(&self, name: &str, folder: &Path) -> Result<()> {
        let to = folder.join(name);
        std::fs::rename(self.folder.join(name), &to).map_err(|e| Error::io("moving", &to, &e))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
