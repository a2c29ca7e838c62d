//! A file of payloads: a JSON object, or null, on a line for each vector.

use std::ops::Range;
use std::path::{Path, PathBuf};

use stratann_import::lines::Lines;
use stratann_payload::Payload;
use stratann_payload::value::BYTES_MAX;
use stratann_storage::{Error, Result};

/// Payloads of rows, which are read in the order of the rows.
pub(super) struct PayloadFile {
    path: PathBuf,
    lines: Lines,
    /// Bytes of each line.
    lengths: Vec<u32>,
}

impl PayloadFile {
    /// Opens a file and checks all of its lines.
    ///
    /// # Errors
    /// A file that cannot be read; a line that is no JSON object and not null; another number of lines than of rows.
    pub(super) fn open(path: &Path, rows: usize) -> Result<PayloadFile> {
        let mut lines = Lines::open(path, BYTES_MAX)?;
        let mut lengths = Vec::new();
        while let Some(line) = lines.next_line()? {
            let bytes = line.len() as u32;
            let checked = if is_null(line) { Ok(()) } else { Payload::parse(line).map(drop) };
            checked.map_err(|e| lines.wrong(&e.message))?;
            lengths.push(bytes);
        }
        if lengths.len() != rows {
            return Err(Error::bad_input(format!(
                "{} has {} lines for {rows} vectors; give a JSON object or null for each vector",
                path.display(),
                lengths.len()
            )));
        }
        Ok(PayloadFile { path: path.into(), lines: Lines::open(path, BYTES_MAX)?, lengths })
    }

    /// Bytes of the payload of a row.
    pub(super) fn bytes_of(&self, row: usize) -> usize {
        self.lengths.get(row).map_or(0, |bytes| *bytes as usize)
    }

    /// Payloads of the next rows; `None` for a row without.
    ///
    /// # Errors
    /// A file that became shorter since it was opened.
    pub(super) fn read(&mut self, rows: &Range<usize>) -> Result<Vec<Option<Vec<u8>>>> {
        let mut next = |_| match self.lines.next_line()? {
            Some(line) if is_null(line) => Ok(None),
            Some(line) => Ok(Some(line.to_vec())),
            None => Err(Error::bad_input(format!(
                "{} became shorter while it was read; start again",
                self.path.display()
            ))),
        };
        rows.clone().map(&mut next).collect()
    }
}

fn is_null(line: &[u8]) -> bool {
    line.trim_ascii() == b"null"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_checked_before_they_are_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |text: &str| std::fs::write(file.path(), text).unwrap();
        write("{\"a\": 1}\n null \n{}");
        let mut own = PayloadFile::open(file.path(), 3).unwrap();
        assert_eq!((0..4).map(|row| own.bytes_of(row)).collect::<Vec<_>>(), [8, 6, 2, 0]);
        assert_eq!(own.read(&(0..2)).unwrap(), [Some(b"{\"a\": 1}".to_vec()), None]);
        assert_eq!(own.read(&(2..3)).unwrap(), [Some(b"{}".to_vec())]);
        assert!(own.read(&(3..4)).unwrap_err().message.contains("became shorter"));
        for (text, why) in [
            ("{}\n{}\n", "has 2 lines for 3 vectors"),
            ("{}\n[1]\n{}\n", "line 2: the payload is an array"),
            ("{}\n{}\n{\"a\": NaN}\n", "line 3: the payload is not JSON"),
            ("{}\n\n{}\n", "line 2"),
        ] {
            write(text);
            let error = PayloadFile::open(file.path(), 3).err().unwrap();
            assert!(error.message.contains(why), "{text}: {error}");
        }
    }
}
