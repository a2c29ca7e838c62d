//! Tables of numbers in files of an unfinished build.

use std::path::Path;

use stratann_storage::output::AtomicFile;
use stratann_storage::{Error, Result, input};

/// Writes a table of numbers, atomically.
pub(crate) fn write_table<T: bytemuck::NoUninit>(path: &Path, table: &[T]) -> Result<()> {
    let mut file = AtomicFile::create(path)?;
    file.write(bytemuck::cast_slice(table))?;
    file.commit()
}

/// Reads a table of numbers.
pub(crate) fn read_table<T: bytemuck::Pod>(path: &Path) -> Result<Vec<T>> {
    let bytes = std::fs::metadata(path).map_err(|e| Error::io("reading", path, &e))?.len();
    read_entries(path, 0, (bytes as usize / size_of::<T>()) as u64)
}

/// Reads the entries `start..end` of a table of numbers.
pub(crate) fn read_entries<T: bytemuck::Pod>(path: &Path, start: u64, end: u64) -> Result<Vec<T>> {
    use std::os::unix::fs::FileExt;
    let failed = |e: std::io::Error| Error::io("reading", path, &e);
    let file = input::open(path)?;
    let mut table = vec![T::zeroed(); (end - start) as usize];
    file.read_exact_at(bytemuck::cast_slice_mut(&mut table), start * size_of::<T>() as u64)
        .map_err(failed)?;
    Ok(table)
}
