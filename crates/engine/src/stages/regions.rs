//! Sorts records that arrive in any order into regions of a file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use stratann_storage::{Error, Result};

/// Most bytes that are buffered for one region.
const HELD_MAX: usize = 1 << 18;

/// Buffers records by region and writes many at a time.
pub(crate) struct Regions<'a> {
    file: &'a File,
    path: &'a Path,
    next: Vec<u64>,
    held: Vec<Vec<u8>>,
    each: usize,
}

impl<'a> Regions<'a> {
    /// Creates regions of `file` that start at the bytes `starts`, for records of `record` bytes. Buffers take up to
    /// half of `memory_bytes`, or one record per region.
    pub(crate) fn new(
        file: &'a File,
        path: &'a Path,
        starts: Vec<u64>,
        record: usize,
        memory_bytes: u64,
    ) -> Regions<'a> {
        let each = memory_bytes as usize / starts.len().max(1) / 2;
        let each = each.clamp(record, HELD_MAX.max(record)) / record * record;
        Regions { file, path, held: vec![Vec::new(); starts.len()], next: starts, each }
    }

    /// Appends a part of a record to a region.
    pub(crate) fn put(&mut self, region: usize, bytes: &[u8]) -> Result<()> {
        let held = &mut self.held[region];
        if held.capacity() == 0 {
            held.reserve_exact(self.each);
        }
        held.extend_from_slice(bytes);
        if held.len() >= self.each { self.write(region) } else { Ok(()) }
    }

    fn write(&mut self, region: usize) -> Result<()> {
        let held = &mut self.held[region];
        let written = self.file.write_all_at(held, self.next[region]);
        written.map_err(|e| Error::io("writing", self.path, &e))?;
        self.next[region] += held.len() as u64;
        held.clear();
        Ok(())
    }

    /// Writes the buffered rest.
    pub(crate) fn finish(mut self) -> Result<()> {
        (0..self.held.len()).try_for_each(|region| self.write(region))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratann_core::build::hash;

    #[test]
    fn every_record_is_in_its_region_in_the_order_it_came() {
        for memory_bytes in [0, 100, 1 << 20] {
            let named = tempfile::NamedTempFile::new().unwrap();
            let region = |i: u64| hash(1, 0, i) as usize % 5;
            let mut expected: Vec<Vec<u8>> = vec![Vec::new(); 5];
            (0..1000u64).for_each(|i| expected[region(i)].extend(i.to_le_bytes()));
            let starts = (0..5).map(|r| expected[..r].concat().len() as u64).collect();
            let mut regions = Regions::new(named.as_file(), named.path(), starts, 8, memory_bytes);
            (0..1000u64).for_each(|i| {
                let bytes = i.to_le_bytes();
                regions.put(region(i), &bytes[..4]).unwrap();
                regions.put(region(i), &bytes[4..]).unwrap();
            });
            regions.finish().unwrap();
            assert!(std::fs::read(named.path()).unwrap() == expected.concat(), "{memory_bytes} bytes");
        }
    }
}
