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

/// Entries of a table that are read at a time.
const WINDOW: u64 = 1 << 16;

/// Reads the entries at `places` (ascending) of a table of numbers, of which only a part is in memory at a time.
pub(crate) fn read_at<T: bytemuck::Pod>(path: &Path, places: &[u32]) -> Result<Vec<T>> {
    let mut found = Vec::with_capacity(places.len());
    for places in places.chunk_by(|a, b| u64::from(*a) / WINDOW == u64::from(*b) / WINDOW) {
        let (first, last) = (u64::from(places[0]), u64::from(places[places.len() - 1]));
        let entries: Vec<T> = read_entries(path, first, last + 1)?;
        found.extend(places.iter().map(|&place| entries[(u64::from(place) - first) as usize]));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn entries_are_those_at_their_places(places in prop::collection::btree_set(0u32..200_000, 0..60)) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("table");
            write_table(&path, &(0..200_000u32).map(|i| i ^ 5).collect::<Vec<_>>()).unwrap();
            let places: Vec<u32> = places.into_iter().collect();
            let expected: Vec<u32> = places.iter().map(|i| i ^ 5).collect();
            prop_assert_eq!(read_at::<u32>(&path, &places).unwrap(), expected);
            prop_assert!(read_at::<u32>(&path, &[200_000]).is_err());
        }
    }
}
