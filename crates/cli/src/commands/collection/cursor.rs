//! How far an import is, so that the same command goes on after an interruption.
//!
//! The cursor is a file in the folder of the collection, and goes with it. It is written after each durable batch, and
//! removed when all files are imported.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stratann_storage::output::AtomicFile;
use stratann_storage::{Error, Result, input};

/// Name of the cursor in the folder of a collection.
const NAME: &str = "import.json";
/// Version of its layout.
const VERSION: u32 = 1;

/// A file that is imported, or was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileState {
    /// Its path from the root.
    path: PathBuf,
    bytes: u64,
    modified_ns: i64,
    /// Sequence number of the collection before its first row.
    pub(super) seq: u64,
    /// Rows that are durable.
    pub(super) rows: u64,
    /// Whether these are all rows.
    pub(super) is_whole: bool,
}

impl FileState {
    /// The state of a file before its first row.
    ///
    /// # Errors
    /// A file that is not there.
    pub(super) fn begin(path: &Path, seq: u64) -> Result<FileState> {
        let failed = |e: std::io::Error| Error::io("reading", path, &e);
        let (file, column) = input::split_column(path);
        let facts = std::fs::metadata(&file).map_err(failed)?;
        let mut whole = std::fs::canonicalize(&file).map_err(failed)?.into_os_string();
        if let Some(column) = column {
            whole.push("#");
            whole.push(column);
        }
        Ok(FileState {
            path: whole.into(),
            bytes: facts.len(),
            modified_ns: facts.mtime().saturating_mul(1_000_000_000).saturating_add(facts.mtime_nsec()),
            seq,
            rows: 0,
            is_whole: false,
        })
    }

    /// Whether both are the same file, unchanged.
    fn is_same(&self, other: &FileState) -> bool {
        (&self.path, self.bytes, self.modified_ns) == (&other.path, other.bytes, other.modified_ns)
    }
}

#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    /// What rows become: another choice of columns is another import.
    columns: String,
    files: Vec<FileState>,
}

/// The cursor of an import.
pub(super) struct Cursor {
    path: PathBuf,
    document: Document,
}

impl Cursor {
    /// The cursor of an import that reads these columns: what an interrupted one left of it, or a new one.
    pub(super) fn open(folder: &Path, columns: &str, restart: bool) -> Cursor {
        let path = folder.join(NAME);
        let left = || -> Option<Document> { serde_json::from_slice(&input::read(&path).ok()?).ok() };
        let left = if restart { None } else { left() };
        let left = left.filter(|left| left.version == VERSION && left.columns == columns);
        let new = || Document { version: VERSION, columns: columns.into(), files: Vec::new() };
        let document = left.unwrap_or_else(new);
        Cursor { path, document }
    }

    /// What is known of the file at this place of the command. Where it is another one, nothing is known from there on.
    pub(super) fn known(&mut self, at: usize, file: &FileState) -> Option<FileState> {
        let known = self.document.files.get(at).filter(|known| known.is_same(file)).cloned();
        if known.is_none() {
            self.document.files.truncate(at);
        }
        known
    }

    /// Notes durable rows of the file at this place of the command.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn note(&mut self, at: usize, file: &FileState) -> Result<()> {
        self.document.files.truncate(at);
        self.document.files.push(file.clone());
        let json = serde_json::to_vec(&self.document)
            .map_err(|e| Error::bad_input(format!("{}: cannot be written: {e}", self.path.display())))?;
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder).map_err(|e| Error::io("creating", folder, &e))?;
        }
        let mut own = AtomicFile::create(&self.path)?;
        own.write(&json)?;
        own.commit()
    }

    /// Removes the cursor: all files are imported.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub(super) fn finish(self) -> Result<()> {
        match std::fs::remove_file(&self.path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io("removing", &self.path, &e)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_import_goes_on_and_another_begins() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str| FileState::begin(&folder.path().join(name), 0).unwrap();
        std::fs::write(folder.path().join("a.hdf5"), "x").unwrap();
        assert!(
            of("a.hdf5#train").is_same(&of("a.hdf5#train"))
                && !of("a.hdf5#train").is_same(&of("a.hdf5#test"))
        );
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (one, two) = (file("one", "1"), file("two", "22"));
        let own = folder.path().join("collection");
        let mut cursor = Cursor::open(&own, "all", false);
        let (mut first, mut second) =
            (FileState::begin(&one, 3).unwrap(), FileState::begin(&two, 9).unwrap());
        assert_eq!(cursor.known(0, &first), None);
        (first.rows, first.is_whole) = (7, true);
        cursor.note(0, &first).unwrap();
        second.rows = 5;
        cursor.note(1, &second).unwrap();

        let mut again = Cursor::open(&own, "all", false);
        let found = again.known(0, &FileState::begin(&one, 11).unwrap()).unwrap();
        assert_eq!((found.rows, found.seq, found.is_whole), (7, 3, true));
        assert_eq!(again.known(1, &FileState::begin(&two, 11).unwrap()).unwrap().rows, 5);
        for (columns, restart) in [("none", false), ("all", true)] {
            assert_eq!(Cursor::open(&own, columns, restart).known(0, &first), None);
        }
        // A changed file, and all behind it, begin at their first rows.
        file("one", "changed");
        let mut changed = Cursor::open(&own, "all", false);
        assert_eq!(changed.known(0, &FileState::begin(&one, 11).unwrap()), None);
        assert_eq!(changed.known(1, &second), None);
        again.finish().unwrap();
        assert_eq!(Cursor::open(&own, "all", false).known(0, &first), None);
        std::fs::write(own.join(NAME), "{").unwrap();
        assert_eq!(Cursor::open(&own, "all", false).known(0, &first), None);
    }
}
