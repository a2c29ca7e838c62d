//! Writes results in the layout of big-ann-benchmarks: u32 queries, u32 k, u32 ids, f32 distances. The file appears
//! atomically.

use stratann_engine::output::{AtomicFile, OutputPath};
use stratann_engine::{Error, Result};

const HEADER: u64 = 8;
/// Id that marks the results of a failed query.
const NO_ID: u32 = u32::MAX;

/// A result file that appears when it is complete.
pub(super) struct ResultFile {
    file: AtomicFile,
    queries: usize,
    k: usize,
}

impl ResultFile {
    /// Creates a file for `queries × k` results.
    pub(super) fn create(to: &OutputPath, queries: usize, k: usize) -> Result<ResultFile> {
        let file = to.create()?;
        let counts = [queries as u32, k as u32];
        file.write_at(bytemuck::cast_slice(&counts), 0)?;
        Ok(ResultFile { file, queries, k })
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
                        self.file.path().display(),
                        first + i / self.k
                    )));
                }
            });
        }
        let at = (first * self.k) as u64 * 4;
        self.file.write_at(bytemuck::cast_slice(&narrow), HEADER + at)?;
        self.file.write_at(bytemuck::cast_slice(distances), HEADER + (self.queries * self.k) as u64 * 4 + at)
    }

    /// Publishes the file under its final name.
    pub(super) fn commit(self) -> Result<()> {
        self.file.commit()
    }
}
