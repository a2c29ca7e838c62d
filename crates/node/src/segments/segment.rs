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
use stratann_engine::search::SearchOptions;
use stratann_payload::index::{Evaluated, RowFacts};
use stratann_payload::{IdValue, Predicate, Schema};
use stratann_storage::budget::Account;
use stratann_storage::data_file::{FileEntry, open_file};
use stratann_storage::durable::sync_folder;
use stratann_storage::{Error, ErrorKind, Progress, Quiet, Result};

use super::content::Content;
use super::ids::{IdTable, Place};
use super::layout::SegmentEntry;
use super::payloads::{self, Payloads};
use super::scanned::ScannedRows;
use crate::rows::ExternalId;

/// Most searches that warm a segment.
const WARMING_QUERIES: u64 = 2000;

/// Folder of the index of a segment.
pub(super) const INDEX: &str = "index";
/// File of the ids.
pub(super) const IDS: &str = "ids.bin";
/// File of vectors as they were given.
pub(super) const VECTORS: &str = "vectors.bin";

/// Segments with fewer bytes are in memory whatever the budget, unless a quota is less: a read of each costs a query
/// more than they take.
const RESIDENT_BYTES: u64 = 16 << 20;

/// Folder of a segment in the folder of its collection.
pub(crate) fn folder_of(collection: &Path, number: u64) -> PathBuf {
    collection.join(number.to_string())
}

/// Memory that segments may take.
pub(crate) trait SegmentMemory: Send + Sync {
    /// Takes memory for a segment that is opened: `tables` bytes at least, `resident` more unless a quota is less, and
    /// as much as there is of `usable` more. What it returns is given back when it is dropped, and says how much it
    /// got beside the tables.
    ///
    /// # Errors
    /// When there is no room for the tables, or only a quota leaves out what is resident.
    fn take(&self, tables: u64, resident: u64, usable: u64) -> Result<Box<dyn TakenMemory>>;
}

/// Memory of an open segment.
pub(crate) trait TakenMemory: Send + Sync {
    /// Bytes for what queries read.
    fn cache_bytes(&self) -> u64;

    /// All bytes.
    fn bytes(&self) -> u64;
}

/// An immutable part of a collection.
pub(crate) struct Segment {
    /// What the rows say of it.
    pub(crate) entry: SegmentEntry,
    /// Payloads of its points, where some have one.
    pub(crate) payloads: Option<Payloads>,
    core: Arc<Core>,
    /// Memory of an index of payloads that was made later than the segment.
    of_payloads: Option<Box<dyn TakenMemory>>,
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
    memory: Box<dyn TakenMemory>,
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
        let Tables { mut ids, payloads, in_memory, bytes, mut usable, resident } =
            Tables::read(folder, entry, &shape)?;
        let vectors = entry.vectors.as_ref().map(|file| open_vectors(folder, file, entry.rows, row_bytes));
        let beside = if in_memory > 0 { ids.pages_bytes() } else { usable + ids.pages_bytes() };
        // The rows of a checkpoint are scanned from the disk where there is no room for them.
        let taken = match memory.take(bytes, in_memory + resident, beside - resident) {
            Err(e) if in_memory > 0 && e.kind == ErrorKind::Budget => memory.take(bytes, 0, beside + usable),
            taken => taken,
        }?;
        let mut cache_budget = taken.cache_bytes();
        let is_in_memory = in_memory > 0 && cache_budget >= in_memory;
        if is_in_memory {
            (cache_budget, usable) = (cache_budget - in_memory, 0);
        }
        let all = usable + ids.pages_bytes();
        // A result needs its id. Where not all fits, the pages of ids are read one by one.
        if cache_budget >= all {
            ids.load().map_err(missing)?;
            cache_budget = usable;
        }
        let path = folder.join(INDEX);
        let search_reserve = Reserve::default();
        let options =
            OpenOptions { cache_budget, lends_cache: true, search_reserve, ..OpenOptions::default() };
        let mut index = Index::open(&path, options).map_err(missing)?;
        if usable > 0 && cache_budget >= usable && !index.make_resident(&Quiet)? {
            index.preload(&Quiet)?;
        }
        let scanned = if is_in_memory { ScannedRows::load(&index, shape)? } else { None };
        let core = Core {
            index,
            scanned,
            ids,
            vectors: vectors.transpose()?,
            folder: folder.into(),
            is_obsolete: false.into(),
            memory: taken,
        };
        Ok(Segment { entry: entry.clone(), payloads, core: Arc::new(core), of_payloads: None })
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
        let taken = memory.take(payloads.memory_bytes(), 0, 0)?;
        let bytes = self.entry.bytes.saturating_sub(files.bytes()).saturating_add(next.bytes());
        let entry = SegmentEntry { payloads: Some(next), bytes, ..self.entry.clone() };
        Ok(Some(Segment {
            entry,
            payloads: Some(payloads),
            core: self.core.clone(),
            of_payloads: Some(taken),
        }))
    }

    /// Removes the index of payloads that this one had before another one. Searches that use it go on.
    pub(crate) fn remove_payload_index(&self) {
        let files = self.entry.payloads.iter();
        files.for_each(|files| payloads::remove_index(&self.folder, files));
    }

    /// Bytes that a segment needs at least to be opened.
    ///
    /// # Errors
    /// As [`Segment::open`].
    pub(crate) fn needed_bytes(folder: &Path, entry: &SegmentEntry, shape: &Shape) -> Result<u64> {
        Ok(Tables::read(folder, entry, shape)?.bytes)
    }

    /// Bytes that a segment needs at least to be opened where no quota is less.
    ///
    /// # Errors
    /// As [`Segment::open`].
    pub(crate) fn opening_bytes(folder: &Path, entry: &SegmentEntry, shape: &Shape) -> Result<u64> {
        let Tables { bytes, resident, .. } = Tables::read(folder, entry, shape)?;
        Ok(bytes + resident)
    }

    /// Memory that it has.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory.bytes() + self.of_payloads.as_ref().map_or(0, |own| own.bytes())
    }

    /// Rows, dead ones included.
    pub(crate) fn rows(&self) -> u64 {
        self.entry.rows
    }

    /// Its folder.
    pub(super) fn folder(&self) -> &Path {
        &self.core.folder
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

    /// Id and place of a row.
    ///
    /// # Errors
    /// `Corrupt` and `Io`.
    pub(crate) fn id_of_row(&self, row: u32) -> Result<(ExternalId, Place)> {
        let (id, place) = self.id(self.index.id_of(row)?)?;
        match place.row == row {
            true => Ok((id, place)),
            false => Err(damaged(&self.folder, "its index and its ids name different rows")),
        }
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

    /// Reads into the cache what searches read, up to so many bytes, so that the first queries of a new segment wait no
    /// longer than those of the ones that it replaces. Rows of the segment stand for queries.
    ///
    /// # Errors
    /// `Corrupt` and `Io`; an interruption.
    pub(crate) fn warm(&self, bytes: u64, progress: &dyn Progress) -> Result<()> {
        let before = self.index.cached_bytes();
        let wanted = bytes.min(self.index.block_cache_bytes());
        let queries = WARMING_QUERIES.min(self.rows());
        let cached = || self.index.cached_bytes().saturating_sub(before);
        for query in 0..queries {
            // A kind that scans caches nothing.
            let is_scanned = query >= 8 && cached() == 0;
            if self.index.is_resident() || is_scanned || cached() >= wanted {
                break;
            }
            progress.check_interrupted()?;
            let vector = self.vector_at(query * self.rows() / queries)?;
            self.index.search(&vector, &SearchOptions::default(), &Quiet)?;
        }
        Ok(())
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

    /// What the index of payloads says of a predicate; no payload is read.
    ///
    /// # Errors
    /// `Corrupt` and `Io`.
    pub(crate) fn indexed(&self, predicate: &Predicate) -> Result<Evaluated> {
        match &self.payloads {
            Some(payloads) => payloads.indexed(predicate, self),
            None => Evaluated::without_payloads(self.entry.rows as u32, predicate, self),
        }
    }

    /// The sure rows, and the open ones that match by their payloads.
    ///
    /// # Errors
    /// `Corrupt` and `Io`.
    pub(crate) fn decided(&self, evaluated: Evaluated, predicate: &Predicate) -> Result<RoaringBitmap> {
        match &self.payloads {
            Some(payloads) => payloads.decided(evaluated, predicate),
            None => Ok(evaluated.sure),
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

/// What a segment has in memory when it is open.
struct Tables {
    ids: IdTable,
    payloads: Option<Payloads>,
    /// Bytes of the rows of a checkpoint in memory, if there is room for them.
    in_memory: u64,
    /// Bytes that it needs.
    bytes: u64,
    /// Bytes of the index that queries read.
    usable: u64,
    /// Bytes of these and of the pages of ids that are in memory whatever the budget, but within a quota.
    resident: u64,
}

impl Tables {
    fn read(folder: &Path, entry: &SegmentEntry, shape: &Shape) -> Result<Tables> {
        let (_, manifest) = Manifest::read(&folder.join(INDEX)).map_err(missing)?;
        if manifest.build_id.to_string() != entry.build || manifest.rows != entry.rows {
            return Err(damaged(folder, "its index is another one than the collection names"));
        }
        open_file(&folder.join(IDS), &entry.ids).map_err(missing)?;
        let ids = IdTable::open(&folder.join(IDS)).map_err(missing)?;
        if ids.rows() != entry.rows {
            return Err(damaged(folder, "its ids are not as many as its rows"));
        }
        let payloads = entry.payloads.as_ref().map(|files| Payloads::open(folder, files, entry.rows));
        let payloads = payloads.transpose().map_err(missing)?;
        let in_memory = if entry.level == 0 { ScannedRows::bytes(shape, entry.rows) } else { 0 };
        let usable = CacheBudget::usable_bytes(&manifest);
        // What is read of a checkpoint in memory are vectors of single points.
        let read = if in_memory > 0 { 0 } else { usable };
        let resident = if read <= RESIDENT_BYTES { read + ids.pages_bytes() } else { 0 };
        // The program is set aside once, for all segments.
        let index = manifest.planned_account(0).total() - Account::new().total();
        let of_payloads = payloads.as_ref().map_or(0, Payloads::memory_bytes);
        let bytes = index + ids.bytes() + of_payloads;
        Ok(Tables { ids, payloads, in_memory, bytes, usable, resident })
    }
}

/// A file that is missing is damage.
fn missing(e: Error) -> Error {
    match e.kind {
        ErrorKind::BadInput => Error::corrupt(e.message),
        _ => e,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segments::{Making, Point, from_points};
    use stratann_kernel::{DType, Metric};
    use stratann_params::IndexKind;

    /// Memory of which the cache gets a part alone.
    struct Part(u64);

    impl SegmentMemory for Part {
        fn take(&self, _: u64, _: u64, usable: u64) -> Result<Box<dyn TakenMemory>> {
            Ok(Box::new(Part(self.0.min(usable))))
        }
    }

    impl TakenMemory for Part {
        fn cache_bytes(&self) -> u64 {
            self.0
        }

        fn bytes(&self) -> u64 {
            self.0
        }
    }

    #[test]
    fn a_new_segment_has_as_much_in_its_cache_as_others_had() {
        const CACHE: u64 = 10 << 20;
        let (place, dim) = (tempfile::tempdir().unwrap(), 1024);
        let folder = place.path().join("1");
        let vectors: Vec<Vec<u8>> = (0..18_000u32)
            .map(|row| (0..dim).map(|at| (row.wrapping_mul(at + 7) >> 3) as u8).collect())
            .collect();
        let points: Vec<Point<'_>> = vectors
            .iter()
            .zip(0u64..)
            .map(|(vector, id)| {
                let mut bytes = Vec::new();
                ExternalId::Number(id).append(&mut bytes);
                Point { id: bytes, seq: 1, vector, payload: None }
            })
            .collect();
        let making = Making {
            dim: dim as usize,
            metric: Metric::L2,
            dtype: DType::U8,
            kind: Some(IndexKind::DiskGraph),
            number: 1,
            level: 2,
            threads: 1,
            ram_budget: None,
            schema: std::sync::Arc::default(),
            curves: None,
        };
        let entry = from_points(&folder, &points, &making, &Quiet).unwrap();
        let shape = Shape { dim: dim as usize, dtype: DType::U8, metric: Metric::L2 };
        let open = || Segment::open(&folder, &entry, (shape, &Part(CACHE))).unwrap();
        let cached = |segment: &Segment| segment.index.cached_bytes();
        let segment = open();
        segment.warm(0, &Quiet).unwrap();
        assert_eq!(cached(&segment), 0);
        segment.warm(u64::MAX, &Quiet).unwrap();
        let most = segment.index.block_cache_bytes();
        assert!(cached(&segment) >= most / 2, "{} of {most}", cached(&segment));
    }
}
