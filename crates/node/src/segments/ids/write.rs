//! Writes a table of ids.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use stratann_storage::{Error, Result};
use xxhash_rust::xxh3::xxh3_64;

use super::filter::Filter;
use super::{ENTRY_BYTES, Entry, MAGIC, PAGE_BYTES, SUM_BYTES};

/// A table that is written, in the order of its ids.
pub(crate) struct IdWriter {
    path: PathBuf,
    file: BufWriter<File>,
    page: Vec<u8>,
    /// Bytes of pages that are written.
    at: u64,
    rows: u64,
    /// Ordinal and id of the first entry of the page.
    first: (u64, Vec<u8>),
    last: Vec<u8>,
    directory: Vec<u8>,
    filter: Filter,
}

impl IdWriter {
    /// Begins a file for so many ids.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn create(path: &Path, ids: u64) -> Result<IdWriter> {
        let file = File::create(path).map_err(|e| Error::io("creating", path, &e))?;
        Ok(IdWriter {
            path: path.into(),
            file: BufWriter::new(file),
            page: Vec::with_capacity(PAGE_BYTES),
            at: 0,
            rows: 0,
            first: Default::default(),
            last: Vec::new(),
            directory: Vec::new(),
            filter: Filter::empty(ids),
        })
    }

    /// Appends an entry, whose id comes after the last one.
    ///
    /// # Errors
    /// `Io`; `Corrupt` for an id that does not come after the last one.
    pub(crate) fn push(&mut self, entry: &Entry) -> Result<()> {
        if self.rows > 0 && entry.id <= self.last {
            let path = self.path.display();
            return Err(Error::corrupt(format!(
                "{path}: its ids would be out of order; nothing is published"
            )));
        }
        if self.page.len() + ENTRY_BYTES + entry.id.len() + SUM_BYTES > PAGE_BYTES {
            self.end_page()?;
        }
        if self.page.is_empty() {
            self.first = (self.rows, entry.id.clone());
        }
        self.page.extend((entry.id.len() as u16).to_le_bytes());
        self.page.extend(&entry.id);
        self.page.extend(entry.seq.to_le_bytes());
        self.page.extend(entry.row.to_le_bytes());
        self.filter.insert(&entry.id);
        self.last.clone_from(&entry.id);
        self.rows += 1;
        Ok(())
    }

    fn end_page(&mut self) -> Result<()> {
        if self.page.is_empty() {
            return Ok(());
        }
        let sum = xxh3_64(&self.page);
        self.page.extend(sum.to_le_bytes());
        self.file.write_all(&self.page).map_err(|e| Error::io("writing", &self.path, &e))?;
        self.directory.extend(self.at.to_le_bytes());
        self.directory.extend((self.page.len() as u32).to_le_bytes());
        self.directory.extend(self.first.0.to_le_bytes());
        self.directory.extend((self.first.1.len() as u16).to_le_bytes());
        self.directory.extend(&self.first.1);
        self.at += self.page.len() as u64;
        self.page.clear();
        Ok(())
    }

    /// Ends the file and syncs it.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.end_page()?;
        let words = self.filter.to_bytes();
        let tables = [&self.directory[..], &words].concat();
        let filter_at = self.at + self.directory.len() as u64;
        let numbers = [self.rows, self.at, filter_at, xxh3_64(&tables)].map(u64::to_le_bytes).concat();
        let sum = xxh3_64(&numbers).to_le_bytes();
        let failed = |e: &std::io::Error| Error::io("writing", &self.path, e);
        for bytes in [&tables[..], &numbers, &sum, MAGIC] {
            self.file.write_all(bytes).map_err(|e| failed(&e))?;
        }
        let file = self.file.into_inner().map_err(|e| failed(e.error()))?;
        file.sync_all().map_err(|e| Error::io("syncing", &self.path, &e))
    }
}
