//! Writes results in the layout of big-ann-benchmarks: u32 queries, u32 k, u32 ids, f32 distances. The file appears
//! atomically.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use stratann_engine::{Error, Result};

const HEADER: u64 = 8;
/// Id that marks the results of a failed query.
const NO_ID: u32 = u32::MAX;

/// A result file that is written beside its final name.
pub(super) struct ResultFile {
    path: PathBuf,
    aside: PathBuf,
    file: File,
    queries: usize,
    k: usize,
    committed: bool,
}

impl ResultFile {
    /// Creates a file for `queries × k` results.
    pub(super) fn create(path: &Path, queries: usize, k: usize) -> Result<ResultFile> {
        let Some(name) = path.file_name() else {
            return Err(Error::bad_input(format!("{} is not a file name; give one", path.display())));
        };
        let aside = path.with_file_name(format!(".{}.{}.tmp", name.to_string_lossy(), std::process::id()));
        let file = File::create(&aside).map_err(|e| Error::io("creating", path, &e))?;
        let result = ResultFile { path: path.into(), aside, file, queries, k, committed: false };
        let counts = [queries as u32, k as u32];
        result.write_at(bytemuck::cast_slice(&counts), 0)?;
        Ok(result)
    }

    /// Writes the results of the queries from `first` on.
    ///
    /// # Errors
    /// When an id is too large for the layout, or writing fails.
    pub(super) fn put(&mut self, first: usize, ids: &[u64], distances: &[f32]) -> Result<()> {
        let mut narrow = Vec::with_capacity(ids.len());
        for (i, &id) in ids.iter().enumerate() {
            let fits = u32::try_from(id).ok().filter(|&id| id != NO_ID);
            narrow.push(match fits {
                Some(id) => id,
                None if id == u64::MAX => NO_ID,
                None => {
                    return Err(Error::bad_input(format!(
                        "{}: id {id}, a result of query {}, does not fit the u32 of this layout; \
                         leave out -o, or build with smaller --ids",
                        self.path.display(),
                        first + i / self.k
                    )));
                }
            });
        }
        let at = (first * self.k) as u64 * 4;
        self.write_at(bytemuck::cast_slice(&narrow), HEADER + at)?;
        self.write_at(bytemuck::cast_slice(distances), HEADER + (self.queries * self.k) as u64 * 4 + at)
    }

    /// Renames the file to its final name.
    pub(super) fn commit(mut self) -> Result<()> {
        let done = self.file.sync_all().and_then(|()| std::fs::rename(&self.aside, &self.path));
        done.map_err(|e| Error::io("writing", &self.path, &e))?;
        self.committed = true;
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.file.write_all_at(bytes, offset).map_err(|e| Error::io("writing", &self.path, &e))
    }
}

impl Drop for ResultFile {
    fn drop(&mut self) {
        if !self.committed {
            // An error is being reported already; at worst a hidden temporary file remains.
            let _ = std::fs::remove_file(&self.aside);
        }
    }
}
