//! An open segment.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use roaring::RoaringBitmap;
use stratann_core::delta::Shape;
use stratann_core::sieve::Sieve;
use stratann_engine::search::SearchOptions;
use stratann_payload::index::{Evaluated, RowFacts};
use stratann_payload::{IdValue, Predicate};
use stratann_storage::data_file::open_file;
use stratann_storage::durable::sync_folder;
use stratann_storage::{Error, ErrorKind, Progress, Quiet, Result};

use super::content::Content;
use super::ids::{IdTable, Place};
use super::layout::{LARGEST, SegmentEntry};
use super::named::{IndexTables, NamedIndex, damaged, missing};
use super::payloads::{self, Indexing, Payloads};
use super::scanned::ScannedRows;
use crate::rows::ExternalId;

/// Most searches that warm a segment.
const WARMING_QUERIES: u64 = 2000;

/// File of the ids.
pub(super) const IDS: &str = "ids.bin";

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

/// Which vectors the points of a segment have.
#[derive(Clone, Debug)]
pub(crate) struct VectorShapes {
    /// Shape of the vectors of each name.
    pub(crate) shapes: Vec<Shape>,
    /// The names; one that is empty where vectors have none.
    pub(crate) names: Vec<String>,
}

/// What two segments share that differ by the index of their payloads.
pub(crate) struct Core {
    /// The index of each name of vectors that some row has.
    pub(crate) indexes: Vec<Option<NamedIndex>>,
    names: Vec<String>,
    ids: IdTable,
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
        (vectors, memory): (&VectorShapes, &dyn SegmentMemory),
    ) -> Result<Segment> {
        let Tables { mut ids, payloads, indexes, in_memory, bytes, usable, resident } =
            Tables::read(folder, entry, vectors)?;
        let beside = if in_memory > 0 { ids.pages_bytes() } else { usable + ids.pages_bytes() };
        // The rows of a checkpoint are scanned from the disk where there is no room for them.
        let taken = match memory.take(bytes, in_memory + resident, beside - resident) {
            Err(e) if in_memory > 0 && e.kind == ErrorKind::Budget => memory.take(bytes, 0, beside + usable),
            taken => taken,
        }?;
        let mut cache_budget = taken.cache_bytes();
        let is_in_memory = in_memory > 0 && cache_budget >= in_memory;
        let usable = if is_in_memory { 0 } else { usable };
        if is_in_memory {
            cache_budget -= in_memory;
        }
        let all = usable + ids.pages_bytes();
        // A result needs its id. Where not all fits, the pages of ids are read one by one.
        if cache_budget >= all {
            ids.load().map_err(missing)?;
            cache_budget = usable;
        }
        let mut open: Vec<Option<NamedIndex>> = vectors.names.iter().map(|_| None).collect();
        let count = indexes.len().max(1) as u64;
        for own in indexes {
            // Each has its share of what there is.
            let share = u128::from(cache_budget) * u128::from(own.usable) / u128::from(usable.max(1));
            let share = if usable > 0 { share as u64 } else { cache_budget / count };
            if let Some(place) = open.get_mut(own.entry.name) {
                *place = Some(own.open(share, is_in_memory)?);
            }
        }
        let core = Core {
            indexes: open,
            names: vectors.names.clone(),
            ids,
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
        indexing: Indexing<'_>,
        memory: &dyn SegmentMemory,
        progress: &dyn Progress,
    ) -> Result<Option<Segment>> {
        let (Some(files), Some(payloads)) = (&self.entry.payloads, &self.payloads) else { return Ok(None) };
        let (payloads, next) = payloads.reindexed((&self.folder, files), indexing, progress)?;
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
    pub(crate) fn needed_bytes(folder: &Path, entry: &SegmentEntry, vectors: &VectorShapes) -> Result<u64> {
        Ok(Tables::read(folder, entry, vectors)?.bytes)
    }

    /// Bytes that a segment needs at least to be opened where no quota is less.
    ///
    /// # Errors
    /// As [`Segment::open`].
    pub(crate) fn opening_bytes(folder: &Path, entry: &SegmentEntry, vectors: &VectorShapes) -> Result<u64> {
        let Tables { bytes, resident, .. } = Tables::read(folder, entry, vectors)?;
        Ok(bytes + resident)
    }

    /// Memory of a row that is scanned, bytes.
    pub(crate) fn scanned_row_bytes(shape: &Shape) -> u64 {
        ScannedRows::row_bytes(shape)
    }

    /// Whether rows in memory have no codes yet, so that searches compare all of them.
    pub(crate) fn lacks_codes(&self) -> bool {
        self.scanned_rows().any(ScannedRows::lacks_codes)
    }

    /// Makes codes of the rows in memory that have none.
    ///
    /// # Errors
    /// An interruption.
    pub(crate) fn make_codes(&self, progress: &dyn Progress) -> Result<()> {
        self.scanned_rows().try_for_each(|rows| rows.make_codes(progress))
    }

    fn scanned_rows(&self) -> impl Iterator<Item = &ScannedRows> {
        self.indexes.iter().flatten().filter_map(|own| own.scanned.as_ref())
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
    pub(crate) fn folder(&self) -> &Path {
        &self.core.folder
    }

    /// The index of a name of vectors, if some row has one.
    pub(crate) fn index(&self, name: usize) -> Option<&NamedIndex> {
        self.indexes.get(name)?.as_ref()
    }

    /// How many rows have a vector of a name, dead ones included.
    pub(crate) fn rows_with(&self, name: usize) -> u64 {
        self.index(name).map_or(0, NamedIndex::rows)
    }

    /// All rows, as a set of which some can be left out.
    pub(crate) fn all_rows(&self) -> Sieve {
        Sieve::all(self.entry.rows as u32)
    }

    /// Bytes of the caches of its indexes.
    pub(crate) fn cached_bytes(&self) -> u64 {
        self.indexes.iter().flatten().map(|own| own.index.cached_bytes()).sum()
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
        // Without names, rows are those of the index; else they are in the order of ids.
        let unnamed =
            self.indexes.first().and_then(Option::as_ref).filter(|own| own.segment_rows().is_none());
        let ordinal = unnamed.map_or(Ok(u64::from(row)), |own| own.index.id_of(row))?;
        let (id, place) = self.id(ordinal)?;
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

    /// The vectors of a point as they were given, one for each name.
    ///
    /// # Errors
    /// `Corrupt` and `Io`.
    pub(crate) fn vectors(&self, place: Place) -> Result<Vec<Option<Vec<u8>>>> {
        let of = |own: &Option<NamedIndex>| own.as_ref().map_or(Ok(None), |own| own.vector(place));
        self.indexes.iter().map(of).collect()
    }

    /// The vector of a name that is the n-th in the order of ids, as it was given.
    ///
    /// # Errors
    /// `Corrupt` and `Io`.
    pub(crate) fn nth_vector(&self, name: usize, number: u64) -> Result<Vec<u8>> {
        let ordinal = self.index(name).ok_or_else(|| self.lacking())?.ordinal(number);
        let entry = self.ids.entry(ordinal)?;
        self.vector(name, Place { ordinal: ordinal as u32, row: entry.row, seq: entry.seq })
    }

    /// The vector of a name of a row that has one, as it was given.
    ///
    /// # Errors
    /// `Corrupt` and `Io`.
    pub(crate) fn vector(&self, name: usize, place: Place) -> Result<Vec<u8>> {
        let vector = self.index(name).map_or(Ok(None), |index| index.vector(place))?;
        vector.ok_or_else(|| self.lacking())
    }

    fn lacking(&self) -> Error {
        damaged(&self.folder, "it lacks a vector")
    }

    /// Reads into the caches what searches read, up to so many bytes, so that the first queries of a new segment wait
    /// no longer than those of the ones that it replaces. Rows of the segment stand for queries.
    ///
    /// # Errors
    /// `Corrupt` and `Io`; an interruption.
    pub(crate) fn warm(&self, bytes: u64, progress: &dyn Progress) -> Result<()> {
        let most: u64 = self.indexes.iter().flatten().map(|own| own.index.block_cache_bytes()).sum();
        for name in 0..self.indexes.len() {
            let own = self.index(name).map_or(0, |own| own.index.block_cache_bytes());
            let share = u128::from(bytes.min(most)) * u128::from(own) / u128::from(most.max(1));
            self.warm_index(name, share as u64, progress)?;
        }
        Ok(())
    }

    fn warm_index(&self, name: usize, bytes: u64, progress: &dyn Progress) -> Result<()> {
        let Some(own) = self.index(name) else { return Ok(()) };
        let (index, rows) = (&own.index, own.rows());
        let before = index.cached_bytes();
        let queries = WARMING_QUERIES.min(rows);
        let cached = || index.cached_bytes().saturating_sub(before);
        for query in 0..queries {
            // A kind that scans caches nothing.
            let is_scanned = query >= 8 && cached() == 0;
            if index.is_resident() || is_scanned || cached() >= bytes {
                break;
            }
            progress.check_interrupted()?;
            let vector = self.nth_vector(name, query * rows / queries)?;
            index.search(&vector, &SearchOptions::default(), &Quiet)?;
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

    /// Shows every vector of a name to `see` with its row, as it was given.
    ///
    /// # Errors
    /// `Corrupt` and `Io`; an interruption.
    pub(super) fn for_each_vector(
        &self,
        name: usize,
        progress: &dyn Progress,
        see: &mut (dyn FnMut(u32, &[u8]) + Send),
    ) -> Result<()> {
        self.index(name).map_or(Ok(()), |index| index.for_each_vector(&self.ids, progress, see))
    }

    /// Reads all rows, and compares them with what the rows of the collection say of them. Returns how many are left.
    ///
    /// # Errors
    /// `Corrupt` for the first difference, which names the folder; `Io`; an interruption.
    pub(crate) fn verify(&self, left: &Sieve, progress: &dyn Progress) -> Result<u64> {
        let mut hashes = vec![0u64; self.rows() as usize];
        let (mut seen, mut expected) = (0, 0);
        for (name, text) in self.names.iter().enumerate() {
            expected += self.rows_with(name);
            self.for_each_vector(name, progress, &mut |row, vector| {
                if let Some(hash) = hashes.get_mut(row as usize) {
                    *hash = hash.wrapping_add(Content::of_named(text, Content::of_vector(vector)));
                    seen += 1;
                }
            })?;
        }
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
        if seen != expected || ids != self.rows() || all.to_text() != self.entry.content {
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
    indexes: Vec<IndexTables>,
    /// Bytes of the rows of a checkpoint in memory, if there is room for them.
    in_memory: u64,
    /// Bytes that it needs.
    bytes: u64,
    /// Bytes of the indexes that queries read.
    usable: u64,
    /// Bytes of these and of the pages of ids that are in memory whatever the budget, but within a quota.
    resident: u64,
}

impl Tables {
    fn read(folder: &Path, entry: &SegmentEntry, vectors: &VectorShapes) -> Result<Tables> {
        let mut indexes = Vec::new();
        for own in entry.all_indexes() {
            let shape = vectors.shapes.get(own.name).copied();
            let shape =
                shape.ok_or_else(|| damaged(folder, "it has vectors of a name that does not exist"))?;
            indexes.push(IndexTables::read(folder, (&own, shape), entry.level < LARGEST)?);
        }
        open_file(&folder.join(IDS), &entry.ids).map_err(missing)?;
        let ids = IdTable::open(&folder.join(IDS)).map_err(missing)?;
        if ids.rows() != entry.rows {
            return Err(damaged(folder, "its ids are not as many as its rows"));
        }
        let payloads = entry.payloads.as_ref().map(|files| Payloads::open(folder, files, entry.rows));
        let payloads = payloads.transpose().map_err(missing)?;
        let sum = |of: fn(&IndexTables) -> u64| indexes.iter().map(of).sum::<u64>();
        let (in_memory, usable) = (sum(|own| own.in_memory), sum(|own| own.usable));
        // What is read of a checkpoint in memory are vectors of single points.
        let read = if in_memory > 0 { 0 } else { usable };
        let resident = if read <= RESIDENT_BYTES { read + ids.pages_bytes() } else { 0 };
        let of_payloads = payloads.as_ref().map_or(0, Payloads::memory_bytes);
        let bytes = sum(|own| own.bytes) + ids.bytes() + of_payloads;
        Ok(Tables { ids, payloads, indexes, in_memory, bytes, usable, resident })
    }
}

impl RowFacts for Segment {
    fn row_of(&self, id: &IdValue) -> Result<Option<u32>> {
        Ok(self.find(&ExternalId::of_filter(id))?.map(|place| place.row))
    }

    fn rows_with_vector(&self, name: &str) -> Result<RoaringBitmap> {
        let at = self.names.iter().position(|own| own == name);
        let Some(index) = at.and_then(|at| self.index(at)) else { return Ok(RoaringBitmap::new()) };
        Ok(match index.segment_rows() {
            Some(rows) => rows.iter().copied().collect(),
            None => (0..self.entry.rows as u32).collect(),
        })
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

impl Segment {
    /// Whether vectors have names.
    pub(crate) fn has_names(&self) -> bool {
        self.names.iter().any(|name| !name.is_empty())
    }

    /// Whether a row has a vector of this name.
    pub(crate) fn has_vector(&self, row: u32, name: &str) -> bool {
        let at = self.names.iter().position(|own| own == name);
        at.and_then(|at| self.index(at)).is_some_and(|index| index.has(row))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segments::{Making, Point, VectorsMaking, from_points};
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
                Point { id: bytes, seq: 1, vectors: vec![Some(vector)], payload: None }
            })
            .collect();
        let shape = Shape { dim: dim as usize, dtype: DType::U8, metric: Metric::L2 };
        let kind = Some(IndexKind::DiskGraph);
        let making = Making {
            vectors: vec![VectorsMaking { name: String::new(), shape, kind, curves: None }],
            grows_graphs: true,
            number: 1,
            level: 2,
            threads: 1,
            ram_budget: None,
            schema: std::sync::Arc::default(),
        };
        let entry = from_points(&folder, &points, &making, &Quiet).unwrap();
        let vectors = making.shapes();
        let open = || Segment::open(&folder, &entry, (&vectors, &Part(CACHE))).unwrap();
        let cached = Segment::cached_bytes;
        let segment = open();
        segment.warm(0, &Quiet).unwrap();
        assert_eq!(cached(&segment), 0);
        segment.warm(u64::MAX, &Quiet).unwrap();
        let most = segment.index(0).unwrap().index.block_cache_bytes();
        assert!(cached(&segment) >= most / 2, "{} of {most}", cached(&segment));
    }
}
