//! Lines of a text file, one at a time.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use stratann_storage::{Error, Result, input};

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 256 << 10;

/// Lines of a file, of a limited length each.
pub struct Lines {
    path: PathBuf,
    reader: BufReader<File>,
    bytes_max: usize,
    line: Vec<u8>,
    number: u64,
    bytes: u64,
}

impl Lines {
    /// Opens a file, whose lines have at most so many bytes.
    ///
    /// # Errors
    /// A file that cannot be opened, or is no regular file.
    pub fn open(path: &Path, bytes_max: usize) -> Result<Lines> {
        let reader = BufReader::with_capacity(BUFFER_BYTES, input::open(path)?);
        Ok(Lines { path: path.into(), reader, bytes_max, line: Vec::new(), number: 0, bytes: 0 })
    }

    /// The next line without its end; `None` at the end of the file.
    ///
    /// # Errors
    /// `BadInput` for a line that is too long, which is named; `Io`.
    pub fn next_line(&mut self) -> Result<Option<&[u8]>> {
        self.line.clear();
        let most = self.bytes_max as u64 + 2;
        let mut reader = (&mut self.reader).take(most);
        let read = reader.read_until(b'\n', &mut self.line);
        let read = read.map_err(|e| Error::io("reading", &self.path, &e))?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        self.bytes += read as u64;
        let own = self.line.strip_suffix(b"\n").map_or(self.line.len(), <[u8]>::len);
        let own = self.line[..own].strip_suffix(b"\r").map_or(own, <[u8]>::len);
        if own > self.bytes_max {
            let most = self.bytes_max;
            return Err(self.wrong(&format!("it has more than {most} bytes; write a shorter one")));
        }
        Ok(self.line.get(..own))
    }

    /// Number of the last line, from 1 on; 0 before the first one.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Bytes of the lines so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The error of the last line.
    pub fn wrong(&self, why: &str) -> Error {
        Error::bad_input(format!("{}, line {}: {why}", self.path.display(), self.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_numbers_and_limits() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "one\r\n\nthree\nfour!").unwrap();
        let mut lines = Lines::open(file.path(), 5).unwrap();
        let mut all = Vec::new();
        while let Some(line) = lines.next_line().unwrap() {
            all.push(String::from_utf8(line.to_vec()).unwrap());
        }
        assert_eq!(
            (all, lines.number(), lines.bytes()),
            (vec!["one".into(), String::new(), "three".into(), "four!".into()], 4, 17)
        );
        let mut lines = Lines::open(file.path(), 4).unwrap();
        for _ in 0..2 {
            lines.next_line().unwrap();
        }
        let error = lines.next_line().unwrap_err();
        assert!(error.message.contains("line 3: it has more than 4 bytes"), "{error}");
    }
}
