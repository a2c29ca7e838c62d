//! `ids.bin`: the external ids of a segment, in their order.
//!
//! The place of an id in that order is its *ordinal*, which is the id by which the index knows the row. So one table
//! says which row an id has, and which id a row has.
//!
//! All numbers are little-endian.
//!
//! - Pages of 4 KiB, or of one entry that is longer. An entry is `u16` bytes of the id, the id as it ends a key, `u64`
//!   sequence number, `u32` row of the index. A page ends with `u64` xxh3 of itself.
//! - The directory: for each page `u64` place, `u32` bytes, `u64` ordinal of its first entry, `u16` bytes of that id,
//!   the id.
//! - The words of a Bloom filter over all ids.
//! - The end: `u64` rows, `u64` place of the directory, `u64` place of the filter, `u64` xxh3 of directory and filter,
//!   `u64` xxh3 of the end so far, 8 bytes `SANNIDS1`.

mod filter;
mod write;

use std::borrow::Cow;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use stratann_storage::input::open_regular;
use stratann_storage::{Error, Result};
use xxhash_rust::xxh3::xxh3_64;

use crate::rows::ExternalId;
use filter::Filter;
pub(crate) use write::IdWriter;

const MAGIC: &[u8; 8] = b"SANNIDS1";
/// Bytes of the end.
const END_BYTES: usize = 48;
/// Bytes of a page, unless one entry has more.
const PAGE_BYTES: usize = 4096;
const SUM_BYTES: usize = 8;
/// Bytes of an entry besides its id.
const ENTRY_BYTES: usize = 2 + 8 + 4;

/// An id of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The id as it ends a key.
    pub(crate) id: Vec<u8>,
    /// Sequence number of the change that wrote the point.
    pub(crate) seq: u64,
    /// Row of the index.
    pub(crate) row: u32,
}

/// Where an id is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its place in the order of ids.
    pub(crate) ordinal: u32,
    /// Row of the index.
    pub(crate) row: u32,
    /// Sequence number of the change that wrote the point.
    pub(crate) seq: u64,
}

/// A page of the file.
#[derive(Clone, Debug)]
struct Page {
    at: u64,
    bytes: u32,
    first: u64,
    id: Vec<u8>,
}

/// The ids of a segment: directory and filter in memory, pages in the file.
pub(crate) struct IdTable {
    path: PathBuf,
    file: File,
    rows: u64,
    pages: Vec<Page>,
    filter: Filter,
    /// All pages in memory, each of which was compared with its checksum.
    loaded: Option<Vec<u8>>,
}

impl IdTable {
    /// Opens a table.
    ///
    /// # Errors
    /// `Corrupt` for a file that is none, or is cut or changed; `Io`.
    pub(crate) fn open(path: &Path) -> Result<IdTable> {
        let file = open_regular(path, 0).map_err(|e| Error::io("opening", path, &e))?;
        let length = file.metadata().map_err(|e| Error::io("opening", path, &e))?.len();
        let read = |at: u64, bytes: u64| read(path, &file, at, bytes);
        let end_at = length.checked_sub(END_BYTES as u64).ok_or_else(|| damaged(path, "it is cut"))?;
        let end = read(end_at, END_BYTES as u64)?;
        let (numbers, magic) = end.split_at(END_BYTES - MAGIC.len());
        if magic != MAGIC {
            return Err(damaged(path, "it does not end as a table of ids of this version"));
        }
        let at = |place: usize| number(numbers, 8 * place).unwrap_or(u64::MAX);
        let (rows, directory_at, filter_at) = (at(0), at(1), at(2));
        if xxh3_64(numbers.get(..32).unwrap_or_default()) != at(4) {
            return Err(damaged(path, "its end differs from its checksum"));
        }
        if directory_at > filter_at || filter_at > end_at {
            return Err(damaged(path, "its parts overlap"));
        }
        let tables = read(directory_at, end_at - directory_at)?;
        if xxh3_64(&tables) != at(3) {
            return Err(damaged(path, "its directory differs from its checksum"));
        }
        let (directory, words) = tables.split_at((filter_at - directory_at) as usize);
        let pages =
            pages(directory, directory_at, rows).ok_or_else(|| damaged(path, "its directory cannot be"))?;
        if words.len() as u64 != 8 * Filter::words_for(rows) {
            return Err(damaged(path, "its filter is of another size"));
        }
        Ok(IdTable { path: path.into(), rows, pages, filter: Filter::from_bytes(words), file, loaded: None })
    }

    /// Number of ids.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Memory of directory and filter, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let pages = self.pages.iter().map(|page| (size_of::<Page>() + page.id.capacity()) as u64);
        self.filter.bytes() + pages.sum::<u64>()
    }

    /// Memory that [`IdTable::load`] takes, bytes.
    pub(crate) fn pages_bytes(&self) -> u64 {
        self.pages.last().map_or(0, |last| last.at + u64::from(last.bytes))
    }

    /// Reads all pages into memory.
    ///
    /// # Errors
    /// As [`IdTable::find`].
    pub(crate) fn load(&mut self) -> Result<()> {
        let all = read(&self.path, &self.file, 0, self.pages_bytes())?;
        for page in &self.pages {
            self.check(page, all.get(page.at as usize..).unwrap_or_default())?;
        }
        self.loaded = Some(all);
        Ok(())
    }

    /// Where an id is. Most that are not there are refused without a read.
    ///
    /// # Errors
    /// `Corrupt` for a damaged page; `Io`.
    pub(crate) fn find(&self, id: &ExternalId) -> Result<Option<Place>> {
        let mut wanted = Vec::with_capacity(17);
        id.append(&mut wanted);
        if !self.filter.may_have(&wanted) {
            return Ok(None);
        }
        let Some(at) = self.pages.partition_point(|page| page.id <= wanted).checked_sub(1) else {
            return Ok(None);
        };
        let page = &self.pages[at];
        let bytes = self.page(page)?;
        let found = entries(&bytes).zip(page.first..).find(|((id, _, _), _)| *id >= wanted.as_slice());
        Ok(found.filter(|((id, _, _), _)| *id == wanted).map(|((_, seq, row), ordinal)| Place {
            ordinal: ordinal as u32,
            row,
            seq,
        }))
    }

    /// The entry of an ordinal.
    ///
    /// # Errors
    /// As [`IdTable::find`]; `Corrupt` for an ordinal beyond the last one.
    pub(crate) fn entry(&self, ordinal: u64) -> Result<Entry> {
        let page = self.pages.partition_point(|page| page.first <= ordinal).checked_sub(1);
        let page = page.and_then(|at| self.pages.get(at)).filter(|_| ordinal < self.rows);
        let page = page.ok_or_else(|| damaged(&self.path, &format!("it has no row {ordinal}")))?;
        let bytes = self.page(page)?;
        let entry = entries(&bytes).nth((ordinal - page.first) as usize);
        let (id, seq, row) = entry.ok_or_else(|| damaged(&self.path, "a page has fewer rows"))?;
        Ok(Entry { id: id.to_vec(), seq, row })
    }

    /// All entries from an ordinal on, in their order.
    pub(crate) fn from(&self, ordinal: u64) -> Entries<'_> {
        let page = self.pages.partition_point(|page| page.first <= ordinal).saturating_sub(1);
        Entries { table: self, page, skip: ordinal, entries: Vec::new().into_iter() }
    }

    /// The ordinal of the first id behind this one.
    ///
    /// # Errors
    /// As [`IdTable::find`].
    pub(crate) fn behind(&self, id: &ExternalId) -> Result<u64> {
        let mut wanted = Vec::with_capacity(17);
        id.append(&mut wanted);
        let Some(at) = self.pages.partition_point(|page| page.id <= wanted).checked_sub(1) else {
            return Ok(0);
        };
        let page = &self.pages[at];
        let bytes = self.page(page)?;
        Ok(page.first + entries(&bytes).take_while(|(id, _, _)| *id <= wanted.as_slice()).count() as u64)
    }

    /// The entries of a page.
    fn page(&self, page: &Page) -> Result<Cow<'_, [u8]>> {
        if let Some(all) = &self.loaded {
            let content = page.at as usize..page.at as usize + page.bytes as usize - SUM_BYTES;
            return Ok(all.get(content).unwrap_or_default().into());
        }
        let mut bytes = read(&self.path, &self.file, page.at, u64::from(page.bytes))?;
        self.check(page, &bytes)?;
        bytes.truncate(bytes.len() - SUM_BYTES);
        Ok(bytes.into())
    }

    /// Compares a page with its checksum.
    fn check(&self, page: &Page, bytes: &[u8]) -> Result<()> {
        let bytes = bytes.get(..page.bytes as usize).unwrap_or_default();
        let (content, sum) = bytes.split_at(bytes.len().saturating_sub(SUM_BYTES));
        if number(sum, 0) != Some(xxh3_64(content)) {
            let why = format!("the page at {} differs from its checksum", page.at);
            return Err(damaged(&self.path, &why));
        }
        Ok(())
    }
}

/// Entries of a table, one after another.
pub(crate) struct Entries<'a> {
    table: &'a IdTable,
    page: usize,
    /// Ordinal before which entries are left out.
    skip: u64,
    entries: std::vec::IntoIter<Entry>,
}

impl Iterator for Entries<'_> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        loop {
            if let Some(entry) = self.entries.next() {
                return Some(Ok(entry));
            }
            let page = self.table.pages.get(self.page)?;
            self.page += 1;
            let bytes = match self.table.page(page) {
                Ok(bytes) => bytes,
                Err(e) => {
                    self.page = usize::MAX;
                    return Some(Err(e));
                }
            };
            let skipped = self.skip.saturating_sub(page.first) as usize;
            let left = entries(&bytes).skip(skipped);
            let left = left.map(|(id, seq, row)| Entry { id: id.to_vec(), seq, row });
            self.entries = left.collect::<Vec<_>>().into_iter();
        }
    }
}

/// Id, sequence number and row of each entry of a page.
fn entries(mut page: &[u8]) -> impl Iterator<Item = (&[u8], u64, u32)> {
    std::iter::from_fn(move || {
        let (length, rest) = page.split_first_chunk::<2>()?;
        let (id, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        let (seq, rest) = rest.split_first_chunk::<8>()?;
        let (row, rest) = rest.split_first_chunk::<4>()?;
        page = rest;
        Some((id, u64::from_le_bytes(*seq), u32::from_le_bytes(*row)))
    })
}

/// The pages that a directory names; `None` for one that does not name all rows, in order, before `end`.
fn pages(mut directory: &[u8], end: u64, rows: u64) -> Option<Vec<Page>> {
    let mut pages: Vec<Page> = Vec::new();
    while !directory.is_empty() {
        let (at, rest) = directory.split_first_chunk::<8>()?;
        let (bytes, rest) = rest.split_first_chunk::<4>()?;
        let (first, rest) = rest.split_first_chunk::<8>()?;
        let (length, rest) = rest.split_first_chunk::<2>()?;
        let (id, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        directory = rest;
        let page = Page {
            at: u64::from_le_bytes(*at),
            bytes: u32::from_le_bytes(*bytes),
            first: u64::from_le_bytes(*first),
            id: id.to_vec(),
        };
        let (behind, is_first) = match pages.last() {
            Some(last) => (last.at + u64::from(last.bytes), page.first > last.first && page.id > last.id),
            None => (0, page.first == 0),
        };
        let fits = page.at == behind && page.at.checked_add(page.bytes.into())? <= end;
        if !fits || !is_first || page.first >= rows || (page.bytes as usize) < SUM_BYTES {
            return None;
        }
        pages.push(page);
    }
    (pages.is_empty() == (rows == 0)).then_some(pages)
}

fn read(path: &Path, file: &File, at: u64, bytes: u64) -> Result<Vec<u8>> {
    let mut read = vec![0; bytes as usize];
    file.read_exact_at(&mut read, at).map_err(|e| match e.kind() {
        std::io::ErrorKind::UnexpectedEof => damaged(path, "it is cut"),
        _ => Error::io("reading", path, &e),
    })?;
    Ok(read)
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

fn damaged(path: &Path, why: &str) -> Error {
    Error::corrupt(format!("{} is damaged: {why}; restore the file, or drop the collection", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_of(bytes: &[u8]) -> ExternalId {
        ExternalId::decode(bytes).unwrap()
    }

    fn written(folder: &Path, ids: &[ExternalId]) -> PathBuf {
        let path = folder.join("ids.bin");
        let mut writer = IdWriter::create(&path, ids.len() as u64).unwrap();
        for (at, id) in ids.iter().enumerate() {
            let mut bytes = Vec::new();
            id.append(&mut bytes);
            writer.push(&Entry { id: bytes, seq: 1000 + at as u64, row: 7 * at as u32 }).unwrap();
        }
        writer.finish().unwrap();
        path
    }

    fn many() -> Vec<ExternalId> {
        let numbers = (0..1000).map(|number| ExternalId::Number(3 * number));
        let uuids = (0..200u8).map(|byte| ExternalId::Uuid([byte; 16]));
        let texts =
            (0..300).map(|number| ExternalId::Text(format!("{number:03}{}", "x".repeat(number % 252))));
        numbers.chain(uuids).chain(texts).collect()
    }

    #[test]
    fn ids_are_found_by_id_and_by_ordinal() {
        let place = tempfile::tempdir().unwrap();
        let ids = many();
        let table = IdTable::open(&written(place.path(), &ids)).unwrap();
        assert_eq!(table.rows(), 1500);
        for (at, id) in ids.iter().enumerate() {
            let place = Place { ordinal: at as u32, row: 7 * at as u32, seq: 1000 + at as u64 };
            assert_eq!(table.find(id).unwrap(), Some(place));
            let entry = table.entry(at as u64).unwrap();
            assert_eq!((id_of(&entry.id), entry.seq, entry.row), (id.clone(), place.seq, place.row));
            assert_eq!(table.behind(id).unwrap(), at as u64 + 1);
        }
        let mut loaded = IdTable::open(&table.path).unwrap();
        loaded.load().unwrap();
        for (at, id) in ids.iter().enumerate() {
            assert_eq!(loaded.find(id).unwrap(), table.find(id).unwrap());
            assert_eq!(loaded.entry(at as u64).unwrap(), table.entry(at as u64).unwrap());
        }
        for id in [ExternalId::Number(1), ExternalId::Number(u64::MAX), ExternalId::Text("zz".into())] {
            assert_eq!(table.find(&id).unwrap(), None);
        }
        assert_eq!(table.behind(&ExternalId::Number(1)).unwrap(), 1);
        assert_eq!(table.behind(&ExternalId::Text("zz".into())).unwrap(), 1500);
        assert!(table.entry(1500).is_err());
        for from in [0, 1, 500, 999, 1000, 1499, 1500] {
            let found: Vec<_> = table.from(from).map(|entry| id_of(&entry.unwrap().id)).collect();
            assert_eq!(found, ids[from as usize..]);
        }
    }

    #[test]
    fn a_file_that_is_cut_or_flipped_is_never_read_wrongly() {
        let place = tempfile::tempdir().unwrap();
        let ids = many();
        let path = written(place.path(), &ids);
        let whole = std::fs::read(&path).unwrap();
        for at in (0..whole.len()).step_by(97).chain(whole.len() - 60..whole.len()) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            std::fs::write(&path, &bytes).unwrap();
            let Ok(table) = IdTable::open(&path) else { continue };
            for (ordinal, id) in ids.iter().enumerate().step_by(50) {
                if let Ok(found) = table.find(id) {
                    assert_eq!(found.map(|place| place.ordinal), Some(ordinal as u32));
                }
            }
            let read: Result<Vec<_>> = table.from(0).collect();
            assert!(read.is_err(), "byte {at}");
            assert!(IdTable::open(&path).unwrap().load().is_err(), "byte {at}");
            std::fs::write(&path, &whole[..at]).unwrap();
            assert!(IdTable::open(&path).is_err(), "cut at {at}");
        }
    }
}
