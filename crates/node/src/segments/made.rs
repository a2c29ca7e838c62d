//! Makes segments: builds the index, writes the ids, and syncs everything before anybody names it.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::sync::Arc;

use stratann_core::delta::Shape as VectorShape;
use stratann_engine::build::{BuildOptions, GrowFrom, OptionsByKind, build, choose};
use stratann_engine::curve::Curve;
use stratann_engine::dataset::{Reader, Shape};
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::kinds::known::ON_DISK;
use stratann_engine::manifest::Manifest;
use stratann_params::IndexKind;
use stratann_payload::Schema;
use stratann_storage::data_file::entry as file_entry;
use stratann_storage::durable::sync_folder;
use stratann_storage::input::open_regular;
use stratann_storage::{Error, ErrorKind, Progress, Result};

use super::content::Content;
use super::ids::{Entry, IdWriter};
use super::layout::{IndexEntry, PayloadFiles, SegmentEntry};
use super::named::{Files, Places, damaged};
use super::payloads::{self, Indexing, NewPayloads};
use super::segment::{IDS, Segment};

/// A set of fewer rows is scanned: no other kind answers it with less work.
const SCANNED_ROWS: u64 = 4096;
/// Curves are measured again when there are this many times as many rows as they were measured on.
const CURVES_TIMES: f64 = 1.5;

/// How the index of a name of vectors is made.
#[derive(Clone, Debug)]
pub(crate) struct VectorsMaking {
    /// The name; empty where vectors have none.
    pub(crate) name: String,
    /// Shape of a vector, and how vectors are compared.
    pub(crate) shape: VectorShape,
    /// Kind of the index; `None` to choose.
    pub(crate) kind: Option<IndexKind>,
    /// Curves of the largest segment.
    pub(crate) curves: Option<Curves>,
}

/// How a segment is made.
#[derive(Clone, Debug)]
pub(crate) struct Making {
    /// How the index of each name is made.
    pub(crate) vectors: Vec<VectorsMaking>,
    /// Its number.
    pub(crate) number: u64,
    /// Its level.
    pub(crate) level: u8,
    /// Threads.
    pub(crate) threads: usize,
    /// Memory; `None` for no limit.
    pub(crate) ram_budget: Option<u64>,
    /// Fields whose values are indexed.
    pub(crate) schema: Arc<Schema>,
    /// Whether graphs grow from older ones.
    pub(crate) grows_graphs: bool,
}

/// The vectors of an index that is made, in the order of these ordinals, which ascend.
pub(super) struct NewVectors<'a> {
    /// Without a reader index and vectors are in the folder.
    pub(super) reader: Option<&'a Reader>,
    pub(super) ordinals: Vec<u32>,
    /// An older index that has most of them.
    pub(super) grow_from: Option<GrowFrom>,
}

impl<'a> NewVectors<'a> {
    pub(super) fn new(reader: Option<&'a Reader>, ordinals: Vec<u32>) -> NewVectors<'a> {
        NewVectors { reader, ordinals, grow_from: None }
    }
}

/// Recall curves of a segment. Measuring them takes most of the time of a build of a hundred thousand rows, and rows of
/// one collection are of one source.
#[derive(Clone, Debug)]
pub(crate) struct Curves {
    /// Kind of its index.
    kind: String,
    /// Rows that they were measured on.
    measured_rows: u64,
    curves: Arc<Vec<Curve>>,
}

impl Curves {
    /// The curves of the index of a name in a segment; `None` of one without.
    pub(crate) fn of(segment: &Segment, name: usize) -> Option<Curves> {
        let (index, entry) = (segment.index(name)?, segment.entry.index_of(name)?);
        let curves = &index.index.manifest().curves;
        (!curves.is_empty()).then(|| Curves {
            measured_rows: entry.measured_rows.unwrap_or(entry.rows),
            kind: entry.kind,
            curves: curves.clone().into(),
        })
    }

    /// Whether an index of this kind with so many rows takes them over.
    fn fit(&self, kind: &str, rows: u64) -> bool {
        kind == self.kind && rows as f64 <= CURVES_TIMES * self.measured_rows as f64
    }
}

impl VectorsMaking {
    /// The curves that an index takes over, if it does.
    fn curves_for(&self, kind: &str, rows: u64) -> Option<&Curves> {
        self.curves.as_ref().filter(|own| own.fit(kind, rows))
    }

    /// So many vectors.
    pub(super) fn rows(&self, rows: u64) -> Shape {
        Shape { rows, dim: self.shape.dim, dtype: self.shape.dtype }
    }
}

impl Making {
    /// Whether vectors have names.
    pub(super) fn has_names(&self) -> bool {
        self.vectors.iter().any(|own| !own.name.is_empty())
    }

    /// Which vectors points have.
    #[cfg(test)]
    pub(super) fn shapes(&self) -> super::segment::VectorShapes {
        super::segment::VectorShapes {
            shapes: self.vectors.iter().map(|own| own.shape).collect(),
            names: self.vectors.iter().map(|own| own.name.clone()).collect(),
        }
    }

    /// Which fields are indexed, in the memory that indexes of vectors had before.
    pub(super) fn indexing(&self) -> Indexing<'_> {
        Indexing { schema: &self.schema, bytes_max: self.ram_budget }
    }

    /// The same with less memory for the build, as so many bytes are taken beside it; half of it is left at least.
    pub(super) fn beside(&self, taken: u64) -> Making {
        let ram_budget = self.ram_budget.map(|all| all - taken.min(all / 2));
        Making { ram_budget, ..self.clone() }
    }
}

/// A point of a segment that is made from memory.
#[derive(Clone, Debug)]
pub(crate) struct Point<'a> {
    /// The id as it ends a key.
    pub(crate) id: Vec<u8>,
    /// Sequence number of the change that wrote it.
    pub(crate) seq: u64,
    /// Its vectors, one for each name.
    pub(crate) vectors: Vec<Option<&'a [u8]>>,
    /// Its payload as compact JSON.
    pub(crate) payload: Option<&'a [u8]>,
}

/// The payloads of points in memory.
struct OfPoints<'a>(&'a [Point<'a>]);

impl NewPayloads for OfPoints<'_> {
    fn has_any(&self) -> bool {
        self.0.iter().any(|point| point.payload.is_some())
    }

    fn get(&self, ordinal: u32) -> Result<Option<Cow<'_, [u8]>>> {
        Ok(self.0.get(ordinal as usize).and_then(|point| point.payload).map(Cow::Borrowed))
    }
}

/// Makes a segment of points, which are in the order of their ids.
///
/// # Errors
/// A disk that is full or fails; memory; an interruption. What was written is removed.
pub(crate) fn from_points(
    folder: &Path,
    points: &[Point<'_>],
    making: &Making,
    progress: &dyn Progress,
) -> Result<SegmentEntry> {
    let mut before = Content::default();
    for point in points {
        let named = making.vectors.iter().zip(&point.vectors);
        let hash = named.filter_map(|(of, vector)| {
            vector.map(|vector| Content::of_named(&of.name, Content::of_vector(vector)))
        });
        let hashes = (hash.fold(0, u64::wrapping_add), point.payload.map(Content::of_payload));
        before.add(&point.id, point.seq, hashes);
    }
    clear(folder)?;
    let make = || {
        let mut built = Built::new(folder, points.len() as u64, making);
        for (name, of) in making.vectors.iter().enumerate() {
            let with_it = points.iter().zip(0u32..);
            let with_it: Vec<(&[u8], u32)> = with_it
                .filter_map(|(point, ordinal)| Some(((*point.vectors.get(name)?)?, ordinal)))
                .collect();
            let vectors: Vec<u8> = with_it.iter().flat_map(|(vector, _)| *vector).copied().collect();
            let ordinals: Vec<u32> = with_it.into_iter().map(|(_, ordinal)| ordinal).collect();
            if !ordinals.is_empty() {
                let reader = Reader::from_memory(of.rows(ordinals.len() as u64), vectors)?;
                built.add(name, NewVectors::new(Some(&reader), ordinals), making, progress)?;
            }
        }
        let ids = points.iter().map(|point| Ok((point.id.clone(), point.seq)));
        built.finish((ids, &OfPoints(points)), (making, before), progress)
    };
    let written = make();
    if written.is_err() {
        let _ = std::fs::remove_dir_all(folder);
    }
    written
}

/// Makes a folder without anything in it.
///
/// # Errors
/// `Io`.
pub(super) fn clear(folder: &Path) -> Result<()> {
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder).map_err(|e| Error::io("creating", folder, &e))
}

/// Indexes of a segment that is made, and what was read back from them.
pub(super) struct Built<'a> {
    folder: &'a Path,
    rows: u64,
    indexes: Vec<IndexEntry>,
    /// Rows of the segment by ordinal: those of its index, or ordinals where vectors have names.
    of_rows: Vec<u32>,
    /// Sum of the vectors of each ordinal.
    hashes: Vec<u64>,
    /// Bytes of all files so far.
    bytes: u64,
    /// Rows whose neighbours are those of older graphs.
    pub(super) taken_over: u64,
}

impl<'a> Built<'a> {
    /// No index yet, of a segment with so many rows.
    pub(super) fn new(folder: &'a Path, rows: u64, making: &Making) -> Built<'a> {
        let of_rows = if making.has_names() { (0..rows as u32).collect() } else { Vec::new() };
        Built {
            folder,
            rows,
            indexes: Vec::new(),
            of_rows,
            hashes: vec![0; rows as usize],
            bytes: 0,
            taken_over: 0,
        }
    }

    /// Builds the index of a name.
    ///
    /// # Errors
    /// A disk that is full or fails; memory; damage; an interruption.
    pub(super) fn add(
        &mut self,
        name: usize,
        NewVectors { reader, ordinals, grow_from }: NewVectors<'_>,
        making: &Making,
        progress: &dyn Progress,
    ) -> Result<()> {
        let Some(of) = making.vectors.get(name) else { return Ok(()) };
        let (files, has_names) = (Files::of(self.folder, name, making.has_names()), making.has_names());
        std::fs::create_dir_all(&files.folder).map_err(|e| Error::io("creating", &files.folder, &e))?;
        let path = files.index();
        // An earlier attempt may have ended behind the index.
        if let Some(reader) = reader.filter(|_| Manifest::read(&path).is_err()) {
            self.taken_over += build_index(reader, (&path, grow_from), (making, of), progress)?;
        }
        let index = Index::open(&path, OpenOptions { head_budget: Some(0), ..OpenOptions::default() })?;
        let rows = reader.map_or(index.manifest().rows, |reader| reader.shape().rows);
        let vectors = || match reader {
            Some(reader) => write_vectors(&files.vectors(), reader),
            None => hashes_of(&files.vectors(), (rows, index.row_bytes())),
        };
        let vectors = (!index.keeps_vectors()).then(vectors).transpose()?;
        let read = RowsByOrdinal::of(&index, self.folder, progress)?;
        let hashes = vectors.as_ref().unwrap_or(&read.hashes);
        if hashes.len() != ordinals.len() {
            return Err(damaged(self.folder, "its index has other rows; nothing is published"));
        }
        for (ordinal, hash) in ordinals.iter().zip(hashes) {
            if let Some(sum) = self.hashes.get_mut(*ordinal as usize) {
                *sum = sum.wrapping_add(Content::of_named(&of.name, *hash));
            }
        }
        let vectors = vectors.as_ref().map(|_| file_entry(&files.vectors())).transpose()?;
        let places = if has_names {
            Some(Places::new(ordinals, read.rows).write(&files)?)
        } else {
            self.of_rows = read.rows;
            None
        };
        [&*path, &*files.folder].into_iter().try_for_each(sync_folder)?;
        let manifest = index.manifest();
        self.bytes += manifest.files.values().map(|file| file.bytes).sum::<u64>();
        self.bytes += vectors.iter().chain(&places).map(|file| file.bytes).sum::<u64>();
        self.indexes.push(IndexEntry {
            name,
            kind: manifest.kind.clone(),
            build: manifest.build_id.to_string(),
            rows,
            vectors,
            places,
            measured_rows: of.curves_for(&manifest.kind, rows).map(|own| own.measured_rows),
        });
        Ok(())
    }

    /// Writes ids and payloads. `ids` are those of all rows, in their order, and `before` is the content that they must
    /// have.
    ///
    /// # Errors
    /// As [`Built::add`]; `Corrupt` for points that are others than those that went in.
    pub(super) fn finish(
        self,
        (ids, payloads): (impl Iterator<Item = Result<(Vec<u8>, u64)>>, &dyn NewPayloads),
        (making, before): (&Making, Content),
        progress: &dyn Progress,
    ) -> Result<SegmentEntry> {
        let Built { folder, rows, indexes, of_rows, hashes, bytes, .. } = self;
        let payloads = payloads::write(folder, payloads, (&of_rows, making.indexing()), progress)?;
        let (payloads, payload_hashes) = payloads.unzip();
        let payload_hashes = payload_hashes.unwrap_or_default();
        let mut writer = IdWriter::create(&folder.join(IDS), rows)?;
        let mut after = Content::default();
        let mut written = 0;
        for (entry, (row, hash)) in ids.zip(of_rows.iter().zip(&hashes)) {
            let (id, seq) = entry?;
            after.add(&id, seq, (*hash, payload_hashes.get(*row as usize).copied().flatten()));
            writer.push(&Entry { id, seq, row: *row })?;
            written += 1;
        }
        writer.finish()?;
        if written != rows || after != before {
            return Err(damaged(
                folder,
                "the points in it are others than those that went into it; nothing is published",
            ));
        }
        let parent = folder.parent().unwrap_or(folder);
        [folder, parent].into_iter().try_for_each(sync_folder)?;
        let ids = file_entry(&folder.join(IDS))?;
        let bytes = bytes + ids.bytes + payloads.as_ref().map_or(0, PayloadFiles::bytes);
        let mut entry = SegmentEntry {
            number: making.number,
            level: making.level,
            kind: String::new(),
            build: String::new(),
            rows,
            ids,
            vectors: None,
            payloads,
            content: after.to_text(),
            bytes,
            measured_rows: None,
            indexes,
        };
        if !making.has_names()
            && let Some(only) = entry.indexes.pop()
        {
            let IndexEntry { kind, build, vectors, measured_rows, .. } = only;
            entry = SegmentEntry { kind, build, vectors, measured_rows, ..entry };
        }
        Ok(entry)
    }
}

/// Builds the index, or goes on with a build that was begun. Returns of how many rows the neighbours are those of an
/// older graph.
fn build_index(
    reader: &Reader,
    (path, grow_from): (&Path, Option<GrowFrom>),
    (making, of): (&Making, &VectorsMaking),
    progress: &dyn Progress,
) -> Result<u64> {
    let options = build_options(reader, (making, of), progress)?;
    let options = BuildOptions { grow_from, ..options };
    let resumed = build(reader, path, &BuildOptions { resume: true, ..options.clone() }, progress);
    let report = match resumed {
        // It was begun with other options, or by another version.
        Err(e) if e.kind == ErrorKind::BadInput => {
            clear(path)?;
            build(reader, path, &options, progress)
        }
        resumed => resumed,
    };
    Ok(report?.facts.get("taken_over").and_then(|rows| rows.as_u64()).unwrap_or(0))
}

/// The options of a build, and its kind.
fn build_options(
    reader: &Reader,
    (making, of): (&Making, &VectorsMaking),
    progress: &dyn Progress,
) -> Result<BuildOptions> {
    let common = BuildOptions {
        threads: making.threads,
        ram_budget: making.ram_budget,
        ..BuildOptions::new(IndexKind::Flat, of.shape.metric)
    };
    let by_kind = OptionsByKind::default();
    let kind = match of.kind {
        _ if reader.shape().rows < SCANNED_ROWS => IndexKind::Flat,
        Some(kind) => kind,
        None => choose(reader, &ON_DISK, &by_kind, &common, progress)?.kind,
    };
    let known = of.curves_for(kind.name(), reader.shape().rows);
    let common = match known {
        Some(own) => BuildOptions { calibration_queries: 0, curves: Some(own.curves.clone()), ..common },
        None => common,
    };
    Ok(BuildOptions { kind: by_kind.of(kind), ..common }.for_rows(reader.shape()))
}

/// Row of the index and hash of the vector, by ordinal.
struct RowsByOrdinal {
    rows: Vec<u32>,
    hashes: Vec<u64>,
}

impl RowsByOrdinal {
    fn of(index: &Index, folder: &Path, progress: &dyn Progress) -> Result<RowsByOrdinal> {
        let count = index.manifest().rows as usize;
        let mut all = RowsByOrdinal { rows: vec![u32::MAX; count], hashes: vec![0; count] };
        index.for_each_row(progress, &mut |row| {
            let at = row.id as usize;
            if let (Some(own), Some(hash)) = (all.rows.get_mut(at), all.hashes.get_mut(at)) {
                (*own, *hash) = (row.number, Content::of_vector(row.vector));
            }
        })?;
        match all.rows.contains(&u32::MAX) {
            true => Err(damaged(folder, "its index lacks a row; nothing is published")),
            false => Ok(all),
        }
    }
}

/// Hash of each vector of a file that [`write_vectors`] wrote.
fn hashes_of(path: &Path, (rows, row_bytes): (u64, usize)) -> Result<Vec<u64>> {
    let failed = |e: std::io::Error| Error::io("reading", path, &e);
    let mut file = BufReader::new(open_regular(path, 0).map_err(failed)?);
    let mut vector = vec![0; row_bytes];
    let mut hashes = Vec::with_capacity(rows as usize);
    for _ in 0..rows {
        file.read_exact(&mut vector).map_err(failed)?;
        hashes.push(Content::of_vector(&vector));
    }
    Ok(hashes)
}

/// Writes the vectors as they were given, and syncs them. Returns the hash of each.
fn write_vectors(path: &Path, reader: &Reader) -> Result<Vec<u64>> {
    const AT_ONCE: usize = 1024;
    let failed = |e: &std::io::Error| Error::io("writing", path, e);
    let mut file = BufWriter::new(File::create(path).map_err(|e| failed(&e))?);
    let (rows, row_bytes) = (reader.shape().rows, reader.shape().row_bytes());
    let mut hashes = Vec::with_capacity(rows as usize);
    let mut bytes = Vec::new();
    for first in (0..rows).step_by(AT_ONCE) {
        bytes.clear();
        reader.read_rows(first, AT_ONCE.min((rows - first) as usize), &mut bytes)?;
        hashes.extend(bytes.chunks_exact(row_bytes).map(Content::of_vector));
        file.write_all(&bytes).map_err(|e| failed(&e))?;
    }
    let file = file.into_inner().map_err(|e| failed(e.error()))?;
    file.sync_all().map_err(|e| failed(&e))?;
    Ok(hashes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_taken_over_by_the_same_kind_with_about_as_many_rows() {
        let curves = Curves { kind: "disk-graph".into(), measured_rows: 1000, curves: Arc::default() };
        assert!(curves.fit("disk-graph", 10) && curves.fit("disk-graph", 1500));
        assert!(!curves.fit("disk-graph", 1501) && !curves.fit("hybrid-ivf", 10));
    }
}
