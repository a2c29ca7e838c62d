//! The open index of one name of vectors in a segment.
//!
//! Where the vectors of points have no names, the index is in the folder `index` of the segment, and the rows of the
//! segment are its rows. With names each has a folder `v<n>`, and a row of the segment is an ordinal: its place in the
//! order of ids. An index has the rows with a vector of its name, by their places among these, and `places.bin` says
//! which they are.
//!
//! | `places.bin` | content, little-endian |
//! |---|---|
//! | for each id of the index | `u32` ordinal, `u32` row of the index |
//! | end | `u64` xxh3 of all before |

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stratann_core::delta::Shape;
use stratann_core::sieve::Sieve;
use stratann_engine::index::{CacheBudget, Index, LeftRows, OpenOptions, Reserve};
use stratann_engine::manifest::Manifest;
use stratann_params::IndexKind;
use stratann_storage::budget::Account;
use stratann_storage::data_file::{FileEntry, entry as file_entry, open_file};
use stratann_storage::durable::write_synced;
use stratann_storage::{Error, ErrorKind, Progress, Quiet, Result, input};
use xxhash_rust::xxh3::xxh3_64;

use super::ids::{IdTable, Place};
use super::layout::IndexEntry;
use super::scanned::ScannedRows;

/// Folder of an index.
const INDEX: &str = "index";
/// File of vectors as they were given.
const VECTORS: &str = "vectors.bin";
/// File of the rows of the segment that an index has.
const PLACES: &str = "places.bin";

/// Where the files of an index are.
#[derive(Clone, Debug)]
pub(super) struct Files {
    /// The folder of the index, its vectors and its places.
    pub(super) folder: PathBuf,
}

impl Files {
    /// Files in the folder of a segment: of a name, or of the only index.
    pub(super) fn of(segment: &Path, name: usize, has_names: bool) -> Files {
        Files { folder: if has_names { segment.join(format!("v{name}")) } else { segment.into() } }
    }

    pub(super) fn index(&self) -> PathBuf {
        self.folder.join(INDEX)
    }

    pub(super) fn vectors(&self) -> PathBuf {
        self.folder.join(VECTORS)
    }

    pub(super) fn places(&self) -> PathBuf {
        self.folder.join(PLACES)
    }
}

/// Which rows of a segment an index has, and where.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Places {
    /// Ordinals by the ids of the index, ascending.
    ordinals: Vec<u32>,
    /// Rows of the index by its ids; none where they are the ids.
    rows: Vec<u32>,
}

impl Places {
    /// Ordinals and rows by the ids of an index.
    pub(super) fn new(ordinals: Vec<u32>, mut rows: Vec<u32>) -> Places {
        if rows.iter().zip(0..).all(|(row, id)| *row == id) {
            rows = Vec::new();
        }
        Places { ordinals, rows }
    }

    /// Memory for so many rows, bytes.
    fn bytes(rows: u64) -> u64 {
        rows * 8
    }

    /// Writes them, and syncs.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn write(&self, files: &Files) -> Result<FileEntry> {
        let (path, mut bytes) = (files.places(), Vec::with_capacity(8 * self.ordinals.len() + 8));
        for (ordinal, id) in self.ordinals.iter().zip(0u32..) {
            bytes.extend(ordinal.to_le_bytes());
            bytes.extend(self.row_of_id(id).unwrap_or(u32::MAX).to_le_bytes());
        }
        let sum = xxh3_64(&bytes);
        bytes.extend(sum.to_le_bytes());
        write_synced(&path, &bytes).map_err(|e| Error::io("writing", &path, &e))?;
        file_entry(&path)
    }

    fn read(files: &Files, entry: &FileEntry, rows: u64) -> Result<Places> {
        let path = files.places();
        open_file(&path, entry)?;
        let bytes = input::read(&path)?;
        let places = Places::decode(&bytes).filter(|own| own.ordinals.len() as u64 == rows);
        places.ok_or_else(|| {
            Error::corrupt(format!(
                "{} is damaged: it says no rows of its segment; restore the segment, or drop the collection",
                path.display()
            ))
        })
    }

    fn decode(bytes: &[u8]) -> Option<Places> {
        let (content, sum) = bytes.split_last_chunk::<8>()?;
        let (pairs, []) = content.as_chunks::<8>() else { return None };
        if u64::from_le_bytes(*sum) != xxh3_64(content) {
            return None;
        }
        let half = |pair: &[u8; 8], at| pair.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        let ordinals = pairs.iter().map(|pair| half(pair, 0)).collect::<Option<Vec<_>>>()?;
        let rows = pairs.iter().map(|pair| half(pair, 4)).collect::<Option<Vec<_>>>()?;
        let count = rows.len();
        let is_sane =
            ordinals.windows(2).all(|two| two[0] < two[1]) && rows.iter().all(|row| (*row as usize) < count);
        is_sane.then(|| Places::new(ordinals, rows))
    }

    /// The id of the index that an ordinal has.
    fn id_of(&self, ordinal: u32) -> Option<u32> {
        self.ordinals.binary_search(&ordinal).ok().map(|id| id as u32)
    }

    fn row_of_id(&self, id: u32) -> Option<u32> {
        if self.rows.is_empty() { Some(id) } else { self.rows.get(id as usize).copied() }
    }
}

/// What an index has in memory when it is open.
pub(super) struct IndexTables {
    pub(super) entry: IndexEntry,
    pub(super) files: Files,
    pub(super) shape: Shape,
    places: Option<Places>,
    /// Bytes of the rows of a checkpoint in memory, if there is room for them.
    pub(super) in_memory: u64,
    /// Bytes that it needs.
    pub(super) bytes: u64,
    /// Bytes that queries read.
    pub(super) usable: u64,
}

impl IndexTables {
    /// Reads what is needed to open an index. `is_scanned` says that rows may be in memory.
    ///
    /// # Errors
    /// `Corrupt` for files that are missing, damaged or of another index; `Io`.
    pub(super) fn read(
        segment: &Path,
        (entry, shape): (&IndexEntry, Shape),
        is_scanned: bool,
    ) -> Result<IndexTables> {
        let files = Files::of(segment, entry.name, entry.places.is_some());
        let (_, manifest) = Manifest::read(&files.index()).map_err(missing)?;
        if manifest.build_id.to_string() != entry.build || manifest.rows != entry.rows {
            return Err(damaged(segment, "its index is another one than the collection names"));
        }
        let places = entry.places.as_ref().map(|file| Places::read(&files, file, entry.rows));
        let places = places.transpose().map_err(missing)?;
        let is_scanned = is_scanned && manifest.kind == IndexKind::Flat.name();
        let in_memory = if is_scanned { ScannedRows::bytes(&shape, entry.rows) } else { 0 };
        // The program is set aside once, for all segments.
        let index = manifest.planned_account(0).total() - Account::new().total();
        let of_places = if places.is_some() { Places::bytes(entry.rows) } else { 0 };
        let (bytes, usable) = (index + of_places, CacheBudget::usable_bytes(&manifest));
        Ok(IndexTables { entry: entry.clone(), files, shape, places, in_memory, bytes, usable })
    }

    /// Opens the index with so many bytes for what queries read, and with its rows in memory where they have room.
    ///
    /// # Errors
    /// As [`IndexTables::read`]; no memory.
    pub(super) fn open(self, cache_budget: u64, is_in_memory: bool) -> Result<NamedIndex> {
        let IndexTables { entry, files, shape, places, usable, .. } = self;
        let row_bytes = shape.dim * shape.dtype.size();
        let vectors = entry.vectors.as_ref().map(|file| open_vectors(&files, file, entry.rows, row_bytes));
        let search_reserve = Reserve::default();
        let options =
            OpenOptions { cache_budget, lends_cache: true, search_reserve, ..OpenOptions::default() };
        let mut index = Index::open(&files.index(), options).map_err(missing)?;
        let usable = if is_in_memory { 0 } else { usable };
        if usable > 0 && cache_budget >= usable && !index.make_resident(&Quiet)? {
            index.preload(&Quiet)?;
        }
        let scanned = if is_in_memory { ScannedRows::load(&index, shape)? } else { None };
        let index = Arc::new(index);
        Ok(NamedIndex { index, scanned, vectors: vectors.transpose()?, places, files, rows: entry.rows })
    }
}

/// The open index of a name.
pub(crate) struct NamedIndex {
    /// The index, in which ids are ordinals; with names they are places among the ordinals that it has.
    pub(crate) index: Arc<Index>,
    /// The rows in memory, of a checkpoint.
    pub(crate) scanned: Option<ScannedRows>,
    vectors: Option<File>,
    places: Option<Places>,
    files: Files,
    rows: u64,
}

impl NamedIndex {
    /// How many rows it has.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// The ordinal of an id of the index.
    pub(crate) fn ordinal(&self, id: u64) -> u64 {
        let known = self.places.as_ref().map(|places| places.ordinals.get(id as usize).copied());
        known.map_or(id, |ordinal| ordinal.map_or(u64::MAX, u64::from))
    }

    /// The rows of the segment that have a vector; `None` where all have one.
    pub(crate) fn segment_rows(&self) -> Option<&[u32]> {
        self.places.as_ref().map(|places| &places.ordinals[..])
    }

    /// The row of the segment of each row of the index.
    pub(super) fn rows_of_segment(&self) -> Vec<u32> {
        let Some(places) = &self.places else { return (0..self.rows as u32).collect() };
        let mut rows = vec![u32::MAX; places.ordinals.len()];
        for (ordinal, id) in places.ordinals.iter().zip(0u32..) {
            let row = places.row_of_id(id).and_then(|row| rows.get_mut(row as usize));
            row.into_iter().for_each(|row| *row = *ordinal);
        }
        rows
    }

    /// Whether a row of the segment has a vector.
    pub(crate) fn has(&self, row: u32) -> bool {
        self.places.as_ref().is_none_or(|places| places.id_of(row).is_some())
    }

    /// The rows of the index among some of the segment, ascending.
    pub(crate) fn rows_among(&self, rows: &[u32]) -> Vec<u32> {
        let Some(places) = &self.places else { return rows.to_vec() };
        let own = rows.iter().filter_map(|row| places.row_of_id(places.id_of(*row)?));
        let mut own: Vec<u32> = own.collect();
        own.sort_unstable();
        own
    }

    /// The rows of the index that are left of those of the segment; `None` where they are the same.
    pub(crate) fn left_of(&self, left: &Sieve) -> Option<LeftRows> {
        let places = self.places.as_ref()?;
        let pairs = places.ordinals.iter().zip(0u32..);
        let gone =
            pairs.filter(|(ordinal, _)| !left.has(**ordinal)).filter_map(|(_, id)| places.row_of_id(id));
        let mut gone: Vec<u32> = gone.collect();
        gone.sort_unstable();
        Some(LeftRows::new(self.index.all_rows().without(&gone)))
    }

    /// The vector of a point, as it was given; `None` for one without.
    ///
    /// # Errors
    /// `Corrupt` and `Io`.
    pub(crate) fn vector(&self, place: Place) -> Result<Option<Vec<u8>>> {
        let (id, row) = match &self.places {
            None => (place.ordinal, place.row),
            Some(places) => {
                let Some(id) = places.id_of(place.ordinal) else { return Ok(None) };
                (id, places.row_of_id(id).unwrap_or(u32::MAX))
            }
        };
        match &self.vectors {
            None => self.index.vector_of(row).map(Some),
            Some(file) => self.read_vector(file, id).map(Some),
        }
    }

    fn read_vector(&self, file: &File, id: u32) -> Result<Vec<u8>> {
        let mut vector = vec![0; self.index.row_bytes()];
        let at = u64::from(id) * vector.len() as u64;
        file.read_exact_at(&mut vector, at).map_err(|e| Error::io("reading", &self.files.vectors(), &e))?;
        Ok(vector)
    }

    /// Shows the vector of every row that has one to `see`, with the row of the segment, as it was given.
    ///
    /// # Errors
    /// `Corrupt` and `Io`; an interruption.
    pub(super) fn for_each_vector(
        &self,
        ids: &IdTable,
        progress: &dyn Progress,
        see: &mut (dyn FnMut(u32, &[u8]) + Send),
    ) -> Result<()> {
        let ordinal = |id: u64| u32::try_from(self.ordinal(id)).unwrap_or(u32::MAX);
        let Some(file) = &self.vectors else {
            let has_names = self.places.is_some();
            return self.index.for_each_row(progress, &mut |row| {
                see(if has_names { ordinal(row.id) } else { row.number }, row.vector);
            });
        };
        let mut entries = ids.from(0);
        for id in 0..self.rows as u32 {
            if id % 1024 == 0 {
                progress.check_interrupted()?;
            }
            let row = match &self.places {
                Some(_) => ordinal(id.into()),
                None => entries.next().transpose()?.map_or(u32::MAX, |entry| entry.row),
            };
            see(row, &self.read_vector(file, id)?);
        }
        Ok(())
    }
}

fn open_vectors(files: &Files, entry: &FileEntry, rows: u64, row_bytes: usize) -> Result<File> {
    let path = files.vectors();
    let file = open_file(&path, entry)?;
    if entry.bytes != rows * row_bytes as u64 {
        return Err(damaged(&files.folder, "it has vectors of another shape"));
    }
    Ok(file)
}

/// The error of a damaged segment.
pub(super) fn damaged(folder: &Path, why: &str) -> Error {
    let folder = folder.display();
    Error::corrupt(format!("segment {folder} is damaged: {why}; restore it, or drop the collection"))
}

/// A file that is missing is damage.
pub(crate) fn missing(e: Error) -> Error {
    match e.kind {
        ErrorKind::BadInput => Error::corrupt(e.message),
        _ => e,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_whole_or_not_at_all() {
        let place = tempfile::tempdir().unwrap();
        let files = Files::of(place.path(), 3, true);
        std::fs::create_dir_all(&files.folder).unwrap();
        for (ordinals, rows) in [(vec![0, 3, 9], vec![2, 0, 1]), (vec![0, 1], vec![0, 1]), (vec![], vec![])] {
            let places = Places::new(ordinals.clone(), rows.clone());
            assert_eq!(places.rows.is_empty(), rows.is_sorted());
            let entry = places.write(&files).unwrap();
            assert_eq!(Places::read(&files, &entry, rows.len() as u64).unwrap(), places);
            assert!(Places::read(&files, &entry, 1).is_err());
            let found: Vec<_> =
                ordinals.iter().filter_map(|at| places.row_of_id(places.id_of(*at)?)).collect();
            assert_eq!((found, places.id_of(7)), (rows, None));
            let bytes = input::read(&files.places()).unwrap();
            for at in 0..bytes.len() {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1;
                assert_eq!(Places::decode(&flipped), None);
                assert_eq!(Places::decode(&bytes[..at]), None);
            }
        }
        let entry = |pairs: &[u32]| {
            let content: Vec<u8> = pairs.iter().flat_map(|at| at.to_le_bytes()).collect();
            Places::decode(&[&content[..], &xxh3_64(&content).to_le_bytes()].concat())
        };
        assert!(entry(&[0, 0, 1, 1]).is_some() && entry(&[1, 0, 1, 1]).is_none() && entry(&[0, 5]).is_none());
    }
}
