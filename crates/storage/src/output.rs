//! Files that a user names as output. An existing file is replaced only on request, and an input never.

mod atomic;

use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::input::{kind_name, split_column};
use crate::{Error, Result};
pub use atomic::AtomicFile;

/// A path that was checked and can be written to.
#[derive(Clone, Debug)]
pub struct OutputPath {
    path: PathBuf,
    /// Whether an existing regular file is replaced.
    force: bool,
    inputs: Vec<PathBuf>,
}

impl OutputPath {
    /// Checks a path before any work starts. `inputs` are the files and index folders that the same command reads.
    ///
    /// # Errors
    /// `BadInput` for an existing file (unless `force`), and always for an input, a file in an index folder that is an
    /// input, a symbolic link, a folder, a FIFO, a socket, a device, and a path in a missing folder.
    pub fn check(path: &Path, force: bool, inputs: &[&Path]) -> Result<OutputPath> {
        // An input that does not exist is reported when it is opened.
        let inputs = inputs.iter().map(|input| split_column(input).0).collect();
        let output = OutputPath { path: path.to_path_buf(), force, inputs };
        output.check_now()?;
        Ok(output)
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a file exists at the path and is going to be replaced.
    pub fn replaces(&self) -> bool {
        self.path.exists()
    }

    /// Creates a file that appears under the path when it is committed.
    ///
    /// # Errors
    /// When the temporary file beside it cannot be created.
    pub fn create(&self) -> Result<AtomicFile> {
        AtomicFile::create_output(self)
    }

    /// Writes the whole file; it appears atomically.
    ///
    /// # Errors
    /// When it cannot be written, or the path is no longer free.
    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        let mut file = self.create()?;
        file.write(bytes)?;
        file.commit()
    }

    /// Moves a complete temporary file to the path. Without `force` the path must be free at this moment.
    pub(crate) fn publish(&self, temporary: &Path) -> Result<()> {
        self.check_now()?;
        let failed = |e: std::io::Error| Error::io("writing", &self.path, &e);
        if self.force {
            return std::fs::rename(temporary, &self.path).map_err(failed);
        }
        // A hard link never replaces a file, and the name appears with its whole content.
        match std::fs::hard_link(temporary, &self.path) {
            Ok(()) => std::fs::remove_file(temporary).map_err(failed),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Err(self.exists()),
            // A file system without hard links: the name is reserved by an empty file, which is then replaced.
            Err(_) => match std::fs::File::create_new(&self.path) {
                Err(e) if e.kind() == ErrorKind::AlreadyExists => Err(self.exists()),
                Err(e) => Err(failed(e)),
                Ok(_) => std::fs::rename(temporary, &self.path).map_err(|e| {
                    let _ = std::fs::remove_file(&self.path);
                    failed(e)
                }),
            },
        }
    }

    fn check_now(&self) -> Result<()> {
        let path = &self.path;
        let name = path.display();
        if path.file_name().is_none() || path.as_os_str().as_bytes().ends_with(b"/") {
            return Err(Error::bad_input(format!("{name} is not a file name; name a file")));
        }
        let folder = path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            let folder = folder.display();
            return Err(Error::bad_input(format!("{folder}: no such folder; create it first")));
        }
        self.check_inputs(folder)?;
        match path.symlink_metadata() {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            Err(e) => Err(Error::io("writing", path, &e)),
            Ok(meta) if !meta.is_file() => {
                let kind = kind_name(meta.file_type());
                Err(Error::bad_input(format!("{name} is {kind}, which is never replaced; name another file")))
            }
            Ok(_) if !self.force => Err(self.exists()),
            Ok(_) => Ok(()),
        }
    }

    /// Refuses an input under any of its names, and a path inside an index folder that is an input.
    fn check_inputs(&self, folder: &Path) -> Result<()> {
        let (own, folder) = (identity(&self.path), identity(folder));
        for input in &self.inputs {
            let Some(found) = identity(input) else { continue };
            let name = self.path.display();
            if own == Some(found) {
                let input = input.display();
                return Err(Error::bad_input(format!(
                    "{name} is an input of this command ({input}); name another file"
                )));
            }
            if !input.is_dir() {
                continue;
            }
            let is_member = || {
                let members = std::fs::read_dir(input).into_iter().flatten().flatten();
                own.is_some() && members.map(|e| identity(&e.path())).any(|member| member == own)
            };
            if folder == Some(found) || is_member() {
                let input = input.display();
                return Err(Error::bad_input(format!(
                    "{name} belongs to the index {input}, an input of this command; name a file outside of it"
                )));
            }
        }
        Ok(())
    }

    fn exists(&self) -> Error {
        let name = self.path.display();
        Error::bad_input(format!("{name} exists already; give --force to replace it, or name another file"))
    }
}

/// Refuses an output folder that exists and is not a folder.
///
/// # Errors
/// `BadInput` for a file, a device, a FIFO, a socket, or a symbolic link that leads to none of its own.
pub fn check_folder(path: &Path) -> Result<()> {
    // Symbolic links to folders are followed.
    match std::fs::metadata(path).or_else(|_| path.symlink_metadata()) {
        Ok(meta) if !meta.is_dir() => {
            let kind = kind_name(meta.file_type());
            Err(Error::bad_input(format!("{} is {kind}; name a folder", path.display())))
        }
        _ => Ok(()),
    }
}

/// Device and inode, which all names of a file share. Symbolic links are followed.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_taken_meanwhile_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let output = OutputPath::check(&path, false, &[]).unwrap();
        let mut file = output.create().unwrap();
        file.write(b"new").unwrap();
        std::fs::write(&path, "old").unwrap();
        let error = file.commit().unwrap_err();
        assert!(error.message.contains("--force"), "{error}");
        // The race between the last check and the publication.
        let temporary = folder.path().join("b");
        std::fs::write(&temporary, "new").unwrap();
        assert!(std::fs::hard_link(&temporary, &path).is_err());
        std::fs::remove_file(&temporary).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn force_replaces_a_file_but_not_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("a"), folder.path().join("link"));
        OutputPath::check(&path, false, &[]).unwrap().write(b"first").unwrap();
        let output = OutputPath::check(&path, true, &[]).unwrap();
        output.write(b"second").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"second");
        std::fs::rename(&path, folder.path().join("moved")).unwrap();
        std::os::unix::fs::symlink(folder.path().join("moved"), &path).unwrap();
        assert!(output.write(b"third").is_err(), "checked again when written");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        assert!(OutputPath::check(&link, true, &[]).is_err());
        assert_eq!(std::fs::read(folder.path().join("moved")).unwrap(), b"second");
    }
}
