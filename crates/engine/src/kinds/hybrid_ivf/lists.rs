//! Reads lists one at a time, past any search.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use stratann_core::PAGE;
use stratann_core::format::directory::Pages;
use stratann_core::format::inverted_list::{ListCodes, Record};
use stratann_storage::tier::Buffer;
use stratann_storage::{Error, Result};

use super::tables::ListTables;

/// Lists as they lie on disk, one at a time. All are read into the same buffer: with one each the allocator would be
/// left with holes between what is kept of them.
pub(crate) struct ListReader<'a> {
    tables: &'a ListTables,
    file: &'a File,
    path: &'a Path,
    buffer: Buffer,
}

impl<'a> ListReader<'a> {
    pub(crate) fn new(tables: &'a ListTables, file: &'a File, path: &'a Path) -> ListReader<'a> {
        ListReader { tables, file, path, buffer: Buffer::new(tables.pages_max() * PAGE) }
    }

    pub(crate) fn tables(&self) -> &'a ListTables {
        self.tables
    }

    fn read(&mut self, offset: u64, length: usize) -> Result<&[u8]> {
        let at = self.tables.locate(offset, length as u64).ok_or_else(|| {
            Error::bad_input(format!(
                "{} does not have the {length} bytes that are at offset {offset} of all lists: another server \
                 holds them",
                self.path.display()
            ))
        })?;
        let pages = Pages::of(at, length as u64);
        let bytes = pages.count as usize * PAGE;
        self.buffer.show(bytes);
        if self.buffer.bytes().len() < bytes {
            self.buffer = Buffer::new(bytes.next_power_of_two());
            self.buffer.show(bytes);
        }
        self.file
            .read_exact_at(self.buffer.bytes_mut(), u64::from(pages.first) * PAGE as u64)
            .map_err(|e| Error::io("reading", self.path, &e))?;
        Ok(&self.buffer.bytes()[pages.skip as usize..][..length])
    }

    /// The list codes of a list.
    ///
    /// # Errors
    /// Codes that cannot be read, or are damaged.
    pub(crate) fn codes(&mut self, list: u32) -> Result<&[u8]> {
        let (tables, path) = (self.tables, self.path);
        let offset = tables.directory.codes[list as usize];
        let bytes =
            self.read(offset, tables.shape.list_codes_bytes(tables.directory.members(list) as usize))?;
        if ListCodes::verify(&tables.shape, list, bytes).is_none() {
            return Err(Error::corrupt(format!(
                "inverted list {list} (offset {offset}) of {} is damaged; restore the file or build the index again",
                path.display()
            )));
        }
        Ok(bytes)
    }

    /// The record of a member; `None` when there is no such member, or the record cannot be read or is damaged.
    pub(crate) fn record(&mut self, id: u32) -> Option<&[u8]> {
        let tables = self.tables;
        tables.directory.ids.last().filter(|&&end| id < end)?;
        let offset = tables.directory.record_at(&tables.shape, id);
        let bytes = self.read(offset, tables.shape.record_bytes()).ok()?;
        Record::verify(&tables.shape, id, bytes).map(|_| bytes)
    }

    /// The records of a list.
    ///
    /// # Errors
    /// Records that cannot be read, or are damaged.
    pub(crate) fn records(&mut self, list: u32) -> Result<&[u8]> {
        let (tables, path) = (self.tables, self.path);
        let (directory, shape) = (&tables.directory, &tables.shape);
        let (offset, first) = (directory.records[list as usize], directory.ids[list as usize]);
        let bytes = self.read(offset, directory.members(list) as usize * shape.record_bytes())?;
        for (bytes, id) in bytes.chunks_exact(shape.record_bytes()).zip(first..) {
            if Record::verify(shape, id, bytes).is_none() {
                return Err(Error::corrupt(format!(
                    "the records of inverted list {list} (offset {offset}) of {} are damaged; run `stratann verify`, \
                     then restore the file or build the index again",
                    path.display()
                )));
            }
        }
        Ok(bytes)
    }
}
