//! Compares a file with the manifest.

use std::io::Read;

use stratann_storage::data_file::FileEntry;
use stratann_storage::durable::hex;
use stratann_storage::{Result, input};
use xxhash_rust::xxh3::Xxh3;

use crate::findings::{Finding, Verification};

impl Verification<'_> {
    /// Reads a file in pieces, gives them to `each`, and compares length and checksum with the manifest.
    ///
    /// # Errors
    /// An interruption.
    pub(crate) fn file(&mut self, name: &str, entry: &FileEntry, each: &mut dyn FnMut(&[u8])) -> Result<()> {
        let opened = input::open_regular(&self.folder.join(name), 0);
        // No more is read than belongs there.
        let (length, mut file) = match opened.and_then(|file| Ok((file.metadata()?.len(), file))) {
            Ok((length, file)) => (length, file.take(entry.bytes)),
            Err(e) => {
                self.found(name, format!("it cannot be opened: {e}"));
                return Ok(());
            }
        };
        let (mut hash, mut bytes, mut buffer) = (Xxh3::new(), 0u64, vec![0u8; 1 << 20]);
        loop {
            self.progress.check_interrupted()?;
            let have = match fill(&mut file, &mut buffer) {
                Ok(have) => have,
                Err(e) => {
                    let finding = Finding::of(name, format!("reading it failed: {e}"));
                    self.report.found(Finding { offset: Some(bytes), ..finding });
                    return Ok(());
                }
            };
            hash.update(&buffer[..have]);
            each(&buffer[..have]);
            bytes += have as u64;
            self.progress.advance(have as u64);
            if have < buffer.len() {
                break;
            }
        }
        self.report.files += 1;
        self.report.bytes += bytes;
        if length != entry.bytes {
            self.found(name, format!("it has {length} bytes, the manifest says {}", entry.bytes));
        } else if hex(hash.digest()) != entry.xxh3 {
            self.found(name, "its checksum does not match the manifest");
        }
        Ok(())
    }
}

/// Reads until the buffer is full or the file ends. Returns the bytes that were read.
pub(crate) fn fill(file: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut have = 0;
    while have < buffer.len() {
        match file.read(&mut buffer[have..]) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(have)
}
