//! An open segment.

use std::fs::File;
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use roaring::RoaringBitmap;
use stratann_core::delta::Shape;
use stratann_core::sieve::Sieve;
use stratann_engine::index::{CacheBudget, Index, OpenOptions, Reserve};
use stratann_engine::manifest::Manifest;
use stratann_payload::index::{Evaluated, RowFacts};
use stratann_payload::{IdValue, Predicate, Schema};
use stratann_storage::data_file::{FileEntry, open_file};
use stratann_storage::durable::sync_folder;
use stratann_storage::{Error, Progress, Quiet, Result};

use super::content::Content;
use super::ids::{IdTable, Place};
use super::layout::SegmentEntry;
use super::payloads::{self, Payloads};
use super::scanned::ScannedRows;
use crate::rows::ExternalId;

/// Folder of the index of a segment.
pub(super) const INDEX: &str = "index";
/// File of the ids.
pub(super) const IDS: &str = "ids.bin";
/// File of vectors as they were given.
pub(super) const VECTORS: &str = "vectors.bin";

/// Segments with fewer bytes are in memory whatever the budget: a read of each costs a query more than they take.
const RESIDENT_BYTES: u64 = 16 << 20;

/// Folder of a segment in the folder of its collection.
pub(crate) fn folder_of(collection: &Path, number: u64) -> PathBuf {
    collection.join(number.to_string())
}

/// Memory that segments may take.
pub(crate) trait SegmentMemory: Send + Sync {
    /// Takes memory for a segment that is opened: `tables` bytes at least, and as much as there is of `usable` more.
    /// What it returns is given back when it is dropped, and says how much more it got.
    ///
    /// # Errors
    /// When there is no room for the tables.
    fn take(&self, tables: u64, usable: u64) -> Result<Box<dyn TakenMemory>>;
}

/// Memory of an open segment.
pub(crate) trait TakenMemory: Send + Sync {
    /// Bytes for what queries read.
    fn cache_bytes(&self) -> u64;
}

/// An immutable part of a collection.
pub(crate) struct Segment {
    /// What the rows say of it.
    pub(crate) entry: SegmentEntry,
    /// Payloads of its points, where some have one.
    pub(crate) payloads: Option<Payloads>,
    core: Arc<Core>,
    /// Memory of an index of payloads that was made later than the segment.
    _memory: Option<Box<dyn TakenMemory>>,
}

/// What two segments share that differ by the index of their payloads.
pub(crate) struct Core {
    /// The index, in which ids are ordinals.
    pub(crate) index: Index,
    /// The rows in memory, of a checkpoint.
    pub(crate) scanned: Option<ScannedRows>,
    ids: IdTable,
    vectors: Option<File>,
    folder: PathBuf,
    is_obsolete: AtomicBool,
    _memory: Box<dyn TakenMemory>,
}

impl Deref for Segment {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Segment {
    /// Opens a segment.
    ///
    /// # Errors
    /// `Corrupt` for files that are missing, damaged or of another segment; no memory; `Io`.
    pub(crate) fn open(
        folder: &Path,
        entry: &SegmentEntry,
        (shape, memory): (Shape, &dyn SegmentMemory),
    ) -> Result<Segment> {
        let row_bytes = shape.dim * shape.dtype.size();
        let missing = |e: Error| match e.kind {
            stratann_storage::ErrorKind::BadInput => Error::corrupt(e.message),
            _ => e,
        };
        let path = folder.join(INDEX);
        let (_, manifest) = Manifest::read(&path).map_err(missing)?;
        if manifest.build_id.to_string() != entry.build || manifest.rows != entry.rows {
            return Err(damaged(folder, "its index is another one than the collection names"));
        }
        open_file(&folder.join(IDS), &entry.ids).map_err(missing)?;
        let mut ids = IdTable::open(&folder.join(IDS)).map_err(missing)?;
        if ids.rows() != entry.rows {
            return Err(damaged(folder, "its ids are not as many as its rows"));
        }
        let vectors = entry.vectors.as_ref().map(|file| open_vectors(folder, file, entry.rows, row_bytes));
        let payloads = entry.payloads.as_ref().map(|files| Payloads::open(folder, files, entry.rows));
        let payloads = payloads.transpose().map_err(missing)?;
        let of_payloads = payloads.as_ref().map_or(0, Payloads::memory_bytes);
        let in_memory = if entry.level == 0 { ScannedRows::bytes(&shape, entry.rows) } else { 0 };
        let tables = manifest.planned_account(0).total() + ids.bytes() + in_memory + of_payloads;
        // What is read of a checkpoint are vectors of single points.
        let usable = if in_memory > 0 { 0 } else { CacheBudget::usable_bytes(&manifest) };
        let all = usable + ids.pages_bytes();
        // What is in memory whatever the budget is no cache, but has to have room.
        let resident = if usable <= RESIDENT_BYTES { all } else { 0 };
        let taken = memory.take(tables + resident, all - resident)?;
        let mut cache_budget = resident + taken.cache_bytes();
        // A result needs its id. Where not all fits, the pages of ids are read one by one.
        if cache_budget >= all {
            ids.load().map_err(missing)?;
            cache_budget = usable;
        }
        let search_reserve = Reserve::default();
        let options =
            OpenOptions { cache_budget, lends_cache: true, search_reserve, ..OpenOptions::default() };
        let mut index = Index::open(&path, options).map_err(missing)?;
        if usable > 0 && cache_budget >= usable && !index.make_resident(&Quiet)? {
            index.preload(&Quiet)?;
        }
        let scanned = if in_memory > 0 { ScannedRows::load(&index, shape)? } else { None };
        let core = Core {
            index,
            scanned,
            ids,
            vectors: vectors.transpose()?,
            folder: folder.into(),
            is_obsolete: false.into(),
            _memory: taken,
        };
        Ok(Segment { entry: entry.clone(), payloads, core: Arc::new(core), _memory: None })
    }

    /// The same segment with another index of its payloads, which is written and synced; `None` without payloads.
    ///
    /// # Errors
    /// No memory; `Corrupt` and `Io`; an interruption.
    pub(crate) fn reindexed(
        &self,
        schema: &Schema,
        memory: &dyn SegmentMemory,
        progress: &dyn Progress,
    ) -> Result<Option<Segment>> {
        let (Some(files), Some(payloads)) = (&self.entry.payloads, &self.payloads) else { return Ok(None) };
        let (payloads, next) = payloads.reindexed((&self.folder, files), schema, progress)?;
        sync_folder(&self.folder)?;
        let taken = memory.take(payloads.memory_bytes(), 0)?;
        let bytes = self.entry.bytes.saturating_sub(files.bytes()).saturating_add(next.bytes());
        let entry = SegmentEntry { payloads: Some(next), bytes, ..self.entry.clone() };
        Ok(Some(Segment { entry, payloads: Some(payloads), core: self.core.clone(), _memory: Some(taken) }))
    }

    /// Removes the index of payloads that this one had before another one. Searches that use it go on.
    pub(crate) fn remove_payload_index(&self) {
        let files = self.entry.payloads.iter();
        files.for_each(|files| payloads::remove_index(&self.folder, files));
    }

    /// Rows, dead ones included.
    pub(crate) fn rows(&self) -> u64 {
        self.entry.rows
    }

    /// Its ids.
    pub(super) fn ids(&self) -> &IdTable {
        &self.ids
    }

    /// Where an id is.
    ///
    /// # Errors
    /// `Corrupt` and `Io`.
    pub(crate) fn find(&self, id: &ExternalId) -> Result<Option<Place>> {
        self.ids.find(id)
    }

    /// Id and place of an ordinal.
    ///
    /// # Errors
    /// `Corrupt` and `Io`.
    pub(crate) fn id(&self, ordinal: u64) -> Result<(ExternalId, Place)> {
        let entry = self.ids.entry(ordinal)?;
        let place = Place { ordinal: ordinal as u32, row: entry.row, seq: entry.seq };
        Ok((self.decode(&entry.id)?, place))
    }

    /// The rows of ordinals, which ascend.
    ///
    /// # Errors
    /// `Corrupt` and `Io`.
    pub(crate) fn rows_of(&self, ordinals: &[u32]) -> Result<Vec<u32>> {
        ordinals.iter().map(|ordinal| Ok(self.ids.entry(u64::from(*ordinal))?.row)).collect()
    }

    /// Ids behind one, with their places, in their order.
    ///
    /// # Errors
    /// `Corrupt` and `Io`.
    pub(crate) fn behind(
        &self,
        after: Option<&ExternalId>,
    ) -> Result<impl Iterator<Item = Result<(ExternalId, Place)>> + '_> {
        let first = after.map_or(Ok(0), |after| self.ids.behind(after))?;
        Ok(self.ids.from(first).zip(first..).map(|(entry, ordinal)| {
            let entry = entry?;
            let place = Place { ordinal: ordinal as u32, row: entry.row, seq: entry.seq };
            Ok((self.decode(&entry.id)?, place))
        }))
    }

    fn decode(&self, id: &[u8]) -> Result<ExternalId> {
        ExternalId::decode(id).ok_or_else(|| damaged(&self.folder, "a row has an id that is none"))
    }

    /// The vector of a row, as it was given.
    ///
    /// # Errors
    /// `Corrupt` and `Io`.
    pub(crate) fn vector(&self, place: Place) -> Result<Vec<u8>> {
        match &self.vectors {
            None => self.index.vector_of(place.row),
            Some(file) => {
                let mut vector = vec![0; self.index.row_bytes()];
                let at = u64::from(place.ordinal) * vector.len() as u64;
                let path = self.folder.join(VECTORS);
                file.read_exact_at(&mut vector, at).map_err(|e| Error::io("reading", &path, &e))?;
                Ok(vector)
            }
        }
    }

    /// The vector of an ordinal, as it was given.
    ///
    /// # Errors
    /// `Corrupt` and `Io`.
    pub(crate) fn vector_at(&self, ordinal: u64) -> Result<Vec<u8>> {
        let entry = self.ids.entry(ordinal)?;
        self.vector(Place { ordinal: ordinal as u32, row: entry.row, seq: entry.seq })
    }

    /// The payload of a row as compact JSON; `None` of a point without.
    ///
    /// # Errors
    /// `Corrupt` and `Io`.
    pub(crate) fn payload(&self, row: u32) -> Result<Option<Vec<u8>>> {
        self.payloads.as_ref().map_or(Ok(None), |payloads| payloads.get(row))
    }

    /// The rows that match a predicate, dead ones included, and how many payloads were read. All rows are decided.
    ///
    /// # Errors
    /// `Corrupt` and `Io`.
    pub(crate) fn matching(&self, predicate: &Predicate) -> Result<(Evaluated, u64)> {
        match &self.payloads {
            Some(payloads) => payloads.matching(predicate, self),
            None => Ok((Evaluated::without_payloads(self.entry.rows as u32, predicate, self)?, 0)),
        }
    }

    /// Shows the vector of every row to `see`, as it was given.
    ///
    /// # Errors
    /// `Corrupt` and `Io`; an interruption.
    pub(super) fn for_each_vector(
        &self,
        progress: &dyn Progress,
        see: &mut (dyn FnMut(u32, &[u8]) + Send),
    ) -> Result<()> {
        if self.vectors.is_none() {
            return self.index.for_each_row(progress, &mut |row| see(row.number, row.vector));
        }
        for (entry, ordinal) in self.ids.from(0).zip(0..) {
            if ordinal % 1024 == 0 {
                progress.check_interrupted()?;
            }
            let entry = entry?;
            let place = Place { ordinal, row: entry.row, seq: entry.seq };
            see(entry.row, &self.vector(place)?);
        }
        Ok(())
    }

    /// Reads all rows, and compares them with what the rows of the collection say of them. Returns how many are left.
    ///
    /// # Errors
    /// `Corrupt` for the first difference, which names the folder; `Io`; an interruption.
    pub(crate) fn verify(&self, left: &Sieve, progress: &dyn Progress) -> Result<u64> {
        let mut hashes = vec![0; self.rows() as usize];
        let mut seen = 0;
        self.for_each_vector(progress, &mut |row, vector| {
            if let Some(hash) = hashes.get_mut(row as usize) {
                *hash = Content::of_vector(vector);
                seen += 1;
            }
        })?;
        let files = self.entry.payloads.as_ref();
        let payloads = files.map(|files| payloads::verify(&self.folder, files, self.rows())).transpose()?;
        let payloads = payloads.unwrap_or_default();
        let (mut all, mut rows_left) = (Content::default(), 0);
        let mut ids = 0;
        // Those in memory say nothing of the file.
        let table = IdTable::open(&self.folder.join(IDS))?;
        for entry in table.from(0) {
            let entry = entry?;
            self.decode(&entry.id)?;
            let hash = hashes.get(entry.row as usize).copied();
            let hash = hash.ok_or_else(|| damaged(&self.folder, "an id has a row that does not exist"))?;
            all.add(&entry.id, entry.seq, (hash, payloads.get(entry.row as usize).copied().flatten()));
            rows_left += u64::from(left.has(entry.row));
            ids += 1;
            if ids % 4096 == 0 {
                progress.check_interrupted()?;
            }
        }
        if seen != self.rows() || ids != self.rows() || all.to_text() != self.entry.content {
            return Err(damaged(&self.folder, "its points are others than those that it was made of"));
        }
        Ok(rows_left)
    }

    /// Has its folder removed once nobody uses it.
    pub(crate) fn set_obsolete(&self) {
        self.is_obsolete.store(true, Ordering::Release);
    }
}

impl RowFacts for Segment {
    fn row_of(&self, id: &IdValue) -> Result<Option<u32>> {
        Ok(self.find(&ExternalId::of_filter(id))?.map(|place| place.row))
    }

    fn rows_with_vector(&self, name: &str) -> Result<RoaringBitmap> {
        // The one vector of a point has no name.
        let mut rows = RoaringBitmap::new();
        if name.is_empty() {
            rows.insert_range(0..self.entry.rows as u32);
        }
        Ok(rows)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.is_obsolete.load(Ordering::Acquire) {
            // What stays is removed when the collection is opened the next time.
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

fn open_vectors(folder: &Path, entry: &FileEntry, rows: u64, row_bytes: usize) -> Result<File> {
    let path = folder.join(VECTORS);
    let file = open_file(&path, entry)?;
    if entry.bytes != rows * row_bytes as u64 {
        return Err(damaged(folder, "it has vectors of another shape"));
    }
    Ok(file)
}

pub(super) fn damaged(folder: &Path, why: &str) -> Error {
    let folder = folder.display();
    Error::corrupt(format!("segment {folder} is damaged: {why}; restore it, or drop the collection"))
}
