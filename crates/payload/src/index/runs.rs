//! What is gathered beyond the memory of a builder: sorted runs in a file without a name, which are merged in the end.
//!
//! | bytes | record of a run |
//! |---|---|
//! | 4 | bytes of the key |
//! | 4 | number of rows |
//! | | the key |
//! | 4 each | rows, ascending |
//!
//! Keys of a run ascend, and all rows of a run are before those of the next one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use stratann_storage::{Error, Result};

/// Bytes of a run that are written or read at once.
const BUFFER_BYTES: usize = 64 << 10;
/// Name of the file, while it has one.
const NAME: &str = "payload-runs.tmp";

/// Where a run is.
#[derive(Clone, Copy)]
pub(super) struct Run {
    place: u64,
    bytes: u64,
}

/// The file of all runs of an index that is built.
pub(super) struct RunFile {
    folder: PathBuf,
    file: Option<File>,
    end: u64,
}

/// A run that is written.
pub(super) struct RunWriter<'a> {
    runs: &'a mut RunFile,
    place: u64,
    buffer: Vec<u8>,
}

impl RunFile {
    /// A file in a folder, which is made when there is something to write.
    pub(super) fn new(folder: &Path) -> RunFile {
        RunFile { folder: folder.into(), file: None, end: 0 }
    }

    /// Begins a run.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn begin(&mut self) -> Result<RunWriter<'_>> {
        if self.file.is_none() {
            let path = self.folder.join(NAME);
            let options = File::options().read(true).write(true).create(true).truncate(true).open(&path);
            let file = options.map_err(|e| Error::io("creating", &path, &e))?;
            // It goes with the process, however that ends.
            std::fs::remove_file(&path).map_err(|e| Error::io("removing", &path, &e))?;
            self.file = Some(file);
        }
        Ok(RunWriter { place: self.end, buffer: Vec::with_capacity(BUFFER_BYTES), runs: self })
    }

    fn failed(&self, doing: &str, e: &io::Error) -> Error {
        Error::io(doing, &self.folder.join(NAME), e)
    }

    /// Passes the records of runs in the order of keys, those of equal keys in the order of runs.
    ///
    /// # Errors
    /// `Io`; what `each` returns.
    pub(super) fn merge(
        &self,
        runs: &[Run],
        mut each: impl FnMut(&[u8], &[u32]) -> Result<()>,
    ) -> Result<()> {
        let mut readers: Vec<RunReader<'_>> = runs.iter().map(|run| RunReader::new(self, *run)).collect();
        let mut heads = BinaryHeap::with_capacity(readers.len());
        for (number, reader) in readers.iter_mut().enumerate() {
            heads.extend(reader.next()?.map(|key| Reverse((key, number))));
        }
        while let Some(Reverse((key, number))) = heads.pop() {
            let Some(reader) = readers.get_mut(number) else { continue };
            each(&key, &reader.rows)?;
            heads.extend(reader.next()?.map(|key| Reverse((key, number))));
        }
        Ok(())
    }
}

impl RunWriter<'_> {
    /// Adds a record, whose key is beyond those before it.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn add(&mut self, key: &[u8], rows: &[u32]) -> Result<()> {
        self.write(&(key.len() as u32).to_le_bytes())?;
        self.write(&(rows.len() as u32).to_le_bytes())?;
        self.write(key)?;
        rows.iter().try_for_each(|row| self.write(&row.to_le_bytes()))
    }

    /// Ends the run.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn finish(mut self) -> Result<Run> {
        self.flush()?;
        Ok(Run { place: self.place, bytes: self.runs.end - self.place })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if self.buffer.len() + bytes.len() > BUFFER_BYTES {
            self.flush()?;
        }
        self.buffer.extend(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let Some(file) = &self.runs.file else { return Ok(()) };
        file.write_all_at(&self.buffer, self.runs.end).map_err(|e| self.runs.failed("writing", &e))?;
        self.runs.end += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

/// A run that is read from its beginning to its end.
struct RunReader<'a> {
    runs: &'a RunFile,
    at: u64,
    end: u64,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were taken.
    taken: usize,
    /// Rows of the last record.
    rows: Vec<u32>,
}

impl RunReader<'_> {
    fn new(runs: &RunFile, run: Run) -> RunReader<'_> {
        let (at, end) = (run.place, run.place + run.bytes);
        RunReader { runs, at, end, buffer: Vec::new(), taken: 0, rows: Vec::new() }
    }

    /// The key of the next record; its rows are in `rows`.
    fn next(&mut self) -> Result<Option<Vec<u8>>> {
        if self.at == self.end && self.taken == self.buffer.len() {
            return Ok(None);
        }
        let (key_bytes, rows) = (self.number()?, self.number()?);
        let mut key = vec![0; key_bytes as usize];
        self.read(&mut key)?;
        self.rows.clear();
        for _ in 0..rows {
            let row = self.number()?;
            self.rows.push(row);
        }
        Ok(Some(key))
    }

    fn number(&mut self) -> Result<u32> {
        let mut bytes = [0; 4];
        self.read(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Fills all of `to`.
    fn read(&mut self, mut to: &mut [u8]) -> Result<()> {
        while !to.is_empty() {
            if self.taken == self.buffer.len() {
                self.fill()?;
            }
            let count = to.len().min(self.buffer.len() - self.taken);
            let (now, later) = to.split_at_mut(count);
            now.copy_from_slice(&self.buffer[self.taken..][..count]);
            self.taken += count;
            to = later;
        }
        Ok(())
    }

    fn fill(&mut self) -> Result<()> {
        let cut = || self.runs.failed("reading", &io::ErrorKind::UnexpectedEof.into());
        let (Some(file), true) = (&self.runs.file, self.at < self.end) else { return Err(cut()) };
        self.buffer.resize((self.end - self.at).min(BUFFER_BYTES as u64) as usize, 0);
        file.read_exact_at(&mut self.buffer, self.at).map_err(|e| self.runs.failed("reading", &e))?;
        self.at += self.buffer.len() as u64;
        self.taken = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_all_runs_come_in_the_order_of_keys_and_runs() {
        let place = tempfile::tempdir().unwrap();
        let mut file = RunFile::new(place.path());
        let long = vec![b'l'; 3 * BUFFER_BYTES];
        let all: [&[(&[u8], &[u32])]; 3] = [
            &[(b"a", &[1, 2]), (b"c", &[1]), (&long, &[2])],
            &[],
            &[(b"", &[7]), (b"a", &[5]), (b"b", &[6, 7]), (&long, &[8])],
        ];
        let mut runs = Vec::new();
        for run in all {
            let mut writer = file.begin().unwrap();
            run.iter().for_each(|(key, rows)| writer.add(key, rows).unwrap());
            runs.push(writer.finish().unwrap());
        }
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0, "the file has no name");
        let mut found: Vec<(Vec<u8>, Vec<u32>)> = Vec::new();
        let each = |key: &[u8], rows: &[u32]| {
            found.push((key.into(), rows.into()));
            Ok(())
        };
        file.merge(&runs, each).unwrap();
        let expected: [(&[u8], &[u32]); 7] = [
            (b"", &[7]),
            (b"a", &[1, 2]),
            (b"a", &[5]),
            (b"b", &[6, 7]),
            (b"c", &[1]),
            (&long, &[2]),
            (&long, &[8]),
        ];
        let expected: Vec<_> = expected.iter().map(|(key, rows)| (key.to_vec(), rows.to_vec())).collect();
        assert_eq!(found, expected);
        let beyond = Run { place: 0, bytes: file.end + 1 };
        let read = file.merge(&[beyond], |_, _| Ok(()));
        assert!(read.unwrap_err().message.contains(NAME));
    }
}
