//! Payloads of a segment, in two files of `stratann-payload` by the rows of the index. A segment without payloads has
//! neither.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use roaring::RoaringBitmap;
use stratann_payload::index::{Evaluated, IndexBuilder, PayloadIndex, RowFacts, SortField};
use stratann_payload::number::NumberKey;
use stratann_payload::rows::{PayloadRows, RowsWriter};
use stratann_payload::{Payload, Predicate, Schema};
use stratann_storage::data_file::{entry as file_entry, open_file};
use stratann_storage::{Error, Progress, Result};

use super::content::Content;
use super::layout::PayloadFiles;

/// File of the payloads.
const ROWS: &str = "payload-1.rows";
/// File of payloads that are copied, in the order in which they are read.
const COPY: &str = "payload.tmp";
/// Rows after which an interruption is noticed.
const ROWS_AT_ONCE: u32 = 1024;

/// Name of the file of an index.
fn index_name(generation: u32) -> String {
    format!("payload-{generation}.index")
}

fn damaged(path: &Path, why: &str) -> Error {
    let path = path.display();
    Error::corrupt(format!("{path} is damaged: {why}; restore the segment, or drop the collection"))
}

/// Least memory of values that are indexed: with less, runs would be many and small.
const INDEXING_BYTES_MIN: u64 = 4 << 20;

/// Which fields are indexed, and in how much memory.
#[derive(Clone, Copy)]
pub(crate) struct Indexing<'a> {
    pub(crate) schema: &'a Schema,
    /// Memory of values, bytes; `None` for no limit.
    pub(crate) bytes_max: Option<u64>,
}

impl Indexing<'_> {
    fn builder(self, path: &Path, rows: u32) -> IndexBuilder {
        IndexBuilder::new(path, self.schema, rows)
            .within(self.bytes_max.map(|all| all.max(INDEXING_BYTES_MIN)))
    }
}

/// Payloads that go into a segment, as compact JSON by the places of their ids.
pub(crate) trait NewPayloads {
    /// Whether there is any.
    fn has_any(&self) -> bool;

    /// The payload of an ordinal.
    ///
    /// # Errors
    /// `Io`.
    fn get(&self, ordinal: u32) -> Result<Option<Cow<'_, [u8]>>>;
}

/// Payloads of the rows of several segments, copied into one file.
pub(super) struct Copied {
    path: PathBuf,
    file: File,
    end: u64,
    /// Place, length and hash of each, by ordinal. Nothing has no length.
    places: Vec<(u64, u32, u64)>,
    count: u64,
}

impl Copied {
    /// An empty copy for so many rows.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn create(folder: &Path, rows: u64) -> Result<Copied> {
        let path = folder.join(COPY);
        let options = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = options.map_err(|e| Error::io("creating", &path, &e))?;
        Ok(Copied { path, file, end: 0, places: vec![(0, 0, 0); rows as usize], count: 0 })
    }

    /// Adds the payload of an ordinal; those of others are left out.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn add(&mut self, ordinal: u32, json: &[u8]) -> Result<()> {
        let Some(place) = self.places.get_mut(ordinal as usize) else { return Ok(()) };
        self.file.write_all_at(json, self.end).map_err(|e| Error::io("writing", &self.path, &e))?;
        *place = (self.end, json.len() as u32, Content::of_payload(json));
        self.end += json.len() as u64;
        self.count += 1;
        Ok(())
    }

    /// Memory of the places, bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        (self.places.capacity() * size_of::<(u64, u32, u64)>()) as u64
    }

    /// Hash of the payload of an ordinal.
    pub(super) fn hash(&self, ordinal: usize) -> Option<u64> {
        self.places.get(ordinal).filter(|place| place.1 > 0).map(|place| place.2)
    }

    /// Removes the file.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn remove(self) -> Result<()> {
        std::fs::remove_file(&self.path).map_err(|e| Error::io("removing", &self.path, &e))
    }
}

impl NewPayloads for Copied {
    fn has_any(&self) -> bool {
        self.count > 0
    }

    fn get(&self, ordinal: u32) -> Result<Option<Cow<'_, [u8]>>> {
        let Some((place, length, _)) = self.places.get(ordinal as usize).filter(|place| place.1 > 0) else {
            return Ok(None);
        };
        let mut json = vec![0; *length as usize];
        self.file.read_exact_at(&mut json, *place).map_err(|e| Error::io("reading", &self.path, &e))?;
        Ok(Some(Cow::Owned(json)))
    }
}

/// Writes the payloads of a segment, whose ordinals have these rows, and syncs them. Returns the files, and the hash of
/// each payload by row as it is read from them.
///
/// # Errors
/// `Io`; an interruption.
pub(super) fn write(
    folder: &Path,
    given: &dyn NewPayloads,
    (rows_by_ordinal, indexing): (&[u32], Indexing<'_>),
    progress: &dyn Progress,
) -> Result<Option<(PayloadFiles, Vec<Option<u64>>)>> {
    let generation = 1;
    let (path, index_path) = (folder.join(ROWS), folder.join(index_name(generation)));
    if !given.has_any() {
        // An earlier attempt may have had some.
        [&path, &index_path].into_iter().for_each(|path| _ = std::fs::remove_file(path));
        return Ok(None);
    }
    write_files((&path, &index_path), given, (rows_by_ordinal, indexing), progress)?;
    let hashes = hashes(&path, rows_by_ordinal.len() as u32)?;
    let files = PayloadFiles { rows: file_entry(&path)?, generation, index: file_entry(&index_path)? };
    Ok(Some((files, hashes)))
}

/// Writes payloads and their index to two files, and syncs both. Ordinals have these rows.
///
/// # Errors
/// `Io`; an interruption.
pub(crate) fn write_files(
    (path, index_path): (&Path, &Path),
    given: &dyn NewPayloads,
    (rows_by_ordinal, indexing): (&[u32], Indexing<'_>),
    progress: &dyn Progress,
) -> Result<()> {
    let rows = rows_by_ordinal.len() as u32;
    let mut ordinals = vec![0; rows_by_ordinal.len()];
    for (row, ordinal) in rows_by_ordinal.iter().zip(0..) {
        if let Some(own) = ordinals.get_mut(*row as usize) {
            *own = ordinal;
        }
    }
    let (mut writer, mut index) = (RowsWriter::create(path, rows)?, indexing.builder(index_path, rows));
    progress.stage("writing payloads", rows.into(), "rows");
    for (row, ordinal) in (0..).zip(ordinals) {
        if row % ROWS_AT_ONCE == 0 {
            progress.check_interrupted()?;
            progress.advance(ROWS_AT_ONCE.min(rows - row).into());
        }
        let Some(json) = given.get(ordinal)? else { continue };
        writer.push_json(row, &json)?;
        if !indexing.schema.is_empty() {
            let payload = Payload::from_stored(&json);
            index.push(row, &payload.map_err(|why| damaged(path, &format!("row {row}: {why}")))?)?;
        }
    }
    writer.finish()?;
    index.finish()?;
    Ok(())
}

/// Hash of each payload by row, as it is read from the file.
fn hashes(path: &Path, rows: u32) -> Result<Vec<Option<u64>>> {
    let mut hashes = vec![None; rows as usize];
    PayloadRows::open(path)?.for_all(|row, json| {
        if let Some(hash) = hashes.get_mut(row as usize) {
            *hash = Some(Content::of_payload(json));
        }
        Ok(())
    })?;
    Ok(hashes)
}

/// The open payloads of a segment.
pub(crate) struct Payloads {
    rows: Arc<PayloadRows>,
    index: PayloadIndex,
}

impl Payloads {
    /// Opens payloads and their index.
    ///
    /// # Errors
    /// `Corrupt` for files that are cut, changed or of another segment; `BadInput` for missing ones; `Io`.
    pub(super) fn open(folder: &Path, files: &PayloadFiles, rows: u64) -> Result<Payloads> {
        let (path, index_path) = (folder.join(ROWS), folder.join(index_name(files.generation)));
        open_file(&path, &files.rows)?;
        open_file(&index_path, &files.index)?;
        Payloads::open_files((&path, &index_path), rows)
    }

    /// Opens two files, of so many rows.
    ///
    /// # Errors
    /// As [`Payloads::open`].
    pub(crate) fn open_files((path, index_path): (&Path, &Path), rows: u64) -> Result<Payloads> {
        let (rows_file, index) = (Arc::new(PayloadRows::open(path)?), PayloadIndex::open(index_path)?);
        let own = Payloads { rows: rows_file, index };
        for (path, found) in [(path, own.rows.rows()), (index_path, own.index.rows())] {
            if u64::from(found) != rows {
                return Err(damaged(path, &format!("it is of {found} rows, and the segment has {rows}")));
            }
        }
        Ok(own)
    }

    /// The same payloads with another index, of the next generation.
    ///
    /// # Errors
    /// As [`Payloads::get`]; an interruption.
    pub(super) fn reindexed(
        &self,
        (folder, files): (&Path, &PayloadFiles),
        indexing: Indexing<'_>,
        progress: &dyn Progress,
    ) -> Result<(Payloads, PayloadFiles)> {
        let generation = files.generation.saturating_add(1);
        let path = folder.join(index_name(generation));
        let mut index = indexing.builder(&path, self.rows.rows());
        progress.stage("indexing payloads", self.rows.count().into(), "payloads");
        let mut count = 0u32;
        self.rows.for_all(|row, json| {
            count += 1;
            if count.is_multiple_of(ROWS_AT_ONCE) {
                progress.check_interrupted()?;
                progress.advance(ROWS_AT_ONCE.into());
            }
            let payload = Payload::from_stored(json);
            index
                .push(row, &payload.map_err(|why| damaged(&folder.join(ROWS), &format!("row {row}: {why}")))?)
        })?;
        index.finish()?;
        let index = PayloadIndex::open(&path)?;
        let files = PayloadFiles { rows: files.rows.clone(), generation, index: file_entry(&path)? };
        Ok((Payloads { rows: self.rows.clone(), index }, files))
    }

    /// Memory while they are open, bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.rows.memory_bytes() + self.index.memory_bytes()) as u64
    }

    /// Bytes of all payloads before compression.
    pub(super) fn raw_bytes(&self) -> u64 {
        self.rows.raw_bytes()
    }

    /// The schema of the index.
    pub(crate) fn schema(&self) -> Schema {
        self.index.schema()
    }

    /// Compact JSON of a row; `None` of one without a payload.
    ///
    /// # Errors
    /// `Corrupt` that names file and block for a damaged one; `Io`.
    pub(crate) fn get(&self, row: u32) -> Result<Option<Vec<u8>>> {
        let mut found = None;
        self.for_rows(&std::iter::once(row).collect(), |_, json| {
            found = Some(json.to_vec());
            Ok(())
        })?;
        Ok(found)
    }

    /// Calls `each` with compact JSON of these rows, ascending; those without a payload are left out.
    ///
    /// # Errors
    /// As [`Payloads::get`], and what `each` returns.
    pub(crate) fn for_rows(
        &self,
        rows: &RoaringBitmap,
        each: impl FnMut(u32, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.rows.for_json(rows, each)
    }

    /// Compact JSON of these rows, by row; those without a payload are left out. They are read together, and `spend` is
    /// asked for the bytes of each.
    ///
    /// # Errors
    /// As [`Payloads::get`], and what `spend` returns.
    pub(crate) fn of_rows(
        &self,
        rows: &RoaringBitmap,
        mut spend: impl FnMut(usize) -> Result<()>,
    ) -> Result<HashMap<u32, Vec<u8>>> {
        let mut read = HashMap::new();
        self.for_rows(rows, |row, json| {
            spend(json.len())?;
            read.insert(row, json.to_vec());
            Ok(())
        })?;
        Ok(read)
    }

    /// Calls `each` with compact JSON of all rows that have a payload, ascending.
    ///
    /// # Errors
    /// As [`Payloads::get`], and what `each` returns.
    pub(super) fn for_all(&self, each: impl FnMut(u32, &[u8]) -> Result<()>) -> Result<()> {
        self.rows.for_all(each)
    }

    /// The rows that match a predicate, dead ones included, and how many payloads were read. All rows are decided.
    ///
    /// # Errors
    /// As [`Payloads::get`], and of the index; what `facts` returns.
    pub(crate) fn matching(&self, predicate: &Predicate, facts: &dyn RowFacts) -> Result<(Evaluated, u64)> {
        let mut evaluated = self.indexed(predicate, facts)?;
        let reads = evaluated.open.len();
        if reads > 0 {
            evaluated.sure = self.decided(evaluated.clone(), predicate)?;
            evaluated.open.clear();
        }
        Ok((evaluated, reads))
    }

    /// What the index says of a predicate.
    ///
    /// # Errors
    /// Of the index; what `facts` returns.
    pub(super) fn indexed(&self, predicate: &Predicate, facts: &dyn RowFacts) -> Result<Evaluated> {
        self.index.evaluate(predicate, facts)
    }

    /// Whether the index keeps the order of a field.
    pub(crate) fn sorts_by(&self, field: &SortField) -> bool {
        self.index.sorts_by(field)
    }

    /// Rows that may come several times in the order of a field.
    ///
    /// # Errors
    /// Of the index.
    pub(crate) fn several(&self, field: &SortField) -> Result<RoaringBitmap> {
        self.index.several(field)
    }

    /// Passes keys and rows in the order of a field, from a key on, until `each` breaks. Equal keys are in no order.
    ///
    /// # Errors
    /// Of the index; what `each` returns.
    pub(crate) fn in_order(
        &self,
        (field, is_descending): (&SortField, bool),
        from: Option<NumberKey>,
        each: impl FnMut(NumberKey, u32) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        self.index.in_order(field, is_descending, from, each)
    }

    /// The sure rows, and the open ones that match by their payloads.
    ///
    /// # Errors
    /// As [`Payloads::get`].
    pub(super) fn decided(&self, evaluated: Evaluated, predicate: &Predicate) -> Result<RoaringBitmap> {
        evaluated.decide(predicate, &self.rows)
    }
}

/// Removes an index that no other one follows from.
pub(super) fn remove_index(folder: &Path, files: &PayloadFiles) {
    // One that stays is removed with the segment.
    let _ = std::fs::remove_file(folder.join(index_name(files.generation)));
}

/// Reads both files, compares the index with its checksum, and returns the hash of each payload by row.
///
/// # Errors
/// As [`Payloads::get`]; `Corrupt` for a file that differs from its checksum.
pub(super) fn verify(folder: &Path, files: &PayloadFiles, rows: u64) -> Result<Vec<Option<u64>>> {
    // What is open in memory says nothing of the files.
    let own = Payloads::open(folder, files, rows)?;
    own.rows.verify()?;
    own.index.verify()?;
    let index_path = folder.join(index_name(files.generation));
    for (path, entry) in [(folder.join(ROWS), &files.rows), (index_path, &files.index)] {
        if file_entry(&path)? != *entry {
            return Err(damaged(&path, "it differs from its checksum"));
        }
    }
    hashes(&folder.join(ROWS), own.rows.rows())
}

#[cfg(test)]
mod tests {
    use stratann_storage::Quiet;

    use super::*;

    #[test]
    fn payloads_are_in_the_order_of_rows() {
        let place = tempfile::tempdir().unwrap();
        let mut copied = Copied::create(place.path(), 4).unwrap();
        copied.add(2, br#"{"a":2}"#).unwrap();
        copied.add(0, br#"{"a":0}"#).unwrap();
        copied.add(u32::MAX, br#"{"a":9}"#).unwrap();
        assert_eq!((copied.hash(1), copied.hash(2)), (None, Some(Content::of_payload(br#"{"a":2}"#))));
        let rows = [3, 2, 0, 1];
        let schema = Schema::new();
        let indexing = Indexing { schema: &schema, bytes_max: Some(0) };
        let written = write(place.path(), &copied, (&rows, indexing), &Quiet).unwrap();
        let (files, hashes) = written.unwrap();
        assert_eq!(hashes, [copied.hash(2), None, None, copied.hash(0)]);
        let own = Payloads::open(place.path(), &files, 4).unwrap();
        assert_eq!(own.get(0).unwrap().as_deref(), Some(&br#"{"a":2}"#[..]));
        assert_eq!(own.get(1).unwrap(), None);
        assert_eq!(verify(place.path(), &files, 4).unwrap(), hashes);
        assert!(Payloads::open(place.path(), &files, 5).is_err());
        let empty = Copied::create(place.path(), 4).unwrap();
        assert!(write(place.path(), &empty, (&rows, indexing), &Quiet).unwrap().is_none());
        assert!(!place.path().join(ROWS).exists());
        copied.remove().unwrap();
    }
}
