//! Makes one segment of several, without their dead rows.

use std::fs::File;
use std::iter::Peekable;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use stratann_core::sieve::Sieve;
use stratann_engine::build::GrowFrom;
use stratann_engine::dataset::Reader;
use stratann_params::IndexKind;
use stratann_storage::budget::{free_disk_bytes, size};
use stratann_storage::{Error, ErrorKind, Progress, Result};

use super::content::Content;
use super::ids::{Entries, Entry};
use super::layout::SegmentEntry;
use super::made::{Built, Making, NewVectors, VectorsMaking, clear};
use super::named::{Files, damaged};
use super::overlay::Overlay;
use super::payloads::Copied;
use super::segment::Segment;
use super::unfinished::Unfinished;

/// Header of a file of vectors: rows and components.
const HEADER_BYTES: u64 = 8;

/// A segment that is merged, and its rows that are left.
pub(crate) struct Source {
    /// The segment.
    pub(crate) segment: Arc<Segment>,
    /// Its rows that were left when the merge began.
    pub(crate) left: Arc<Sieve>,
    /// Newer payloads of its rows then.
    pub(crate) overlay: Overlay,
}

/// A merged segment.
pub(crate) struct Merged {
    /// What the rows will say of it.
    pub(crate) entry: SegmentEntry,
    /// For each source, by row: its ordinal in the new segment; `u32::MAX` for a dead row.
    pub(crate) ordinals: Vec<Vec<u32>>,
    /// Rows whose neighbours in a graph are those of an older one.
    pub(crate) taken_over: u64,
}

/// Merges segments into one. A merge that was begun in this folder, with the same rows, is gone on with.
///
/// # Errors
/// No row that is left; an id that is there twice; damage; a disk that is full or fails; an interruption. What was
/// written stays for the next attempt where time or the disk was what lacked, and is removed otherwise.
pub(crate) fn merge(
    sources: &[&Source],
    folder: &Path,
    making: &Making,
    progress: &dyn Progress,
) -> Result<Merged> {
    let rows: u64 = sources.iter().map(|source| u64::from(source.left.count())).sum();
    let row_bytes: u64 = making.vectors.iter().map(|of| of.rows(1).row_bytes() as u64).sum();
    let of = |source: &&Source| (source.segment.entry.number, source.left.clone());
    let begun = Unfinished { level: making.level, sources: sources.iter().map(of).collect() };
    if Unfinished::read(folder).is_none_or(|found| found != begun) {
        let payloads = sources.iter().filter_map(|source| source.segment.payloads.as_ref());
        let payloads: u64 = payloads.map(|own| 2 * own.raw_bytes()).sum();
        check_room(folder, rows * (2 * row_bytes + 64) + payloads)?;
        clear(folder)?;
        begun.write(folder)?;
    }
    let merged = merge_begun(sources, folder, (making, rows), progress);
    if let Err(e) = &merged
        && !matches!(e.kind, ErrorKind::Interrupted | ErrorKind::Io)
    {
        let _ = std::fs::remove_dir_all(folder);
    }
    merged
}

fn merge_begun(
    sources: &[&Source],
    folder: &Path,
    (making, rows): (&Making, u64),
    progress: &dyn Progress,
) -> Result<Merged> {
    let mut ordinals = ordinals(sources, progress)?;
    let payloads = copy_payloads(sources, &ordinals, (folder, rows), progress)?;
    let rows_of_sources: u64 = ordinals.iter().map(|own| own.len() as u64).sum();
    // Places of rows, those of the graph that grows once more, and of payloads.
    let making = making.beside(8 * rows_of_sources + payloads.memory_bytes());
    let mut built = Built::new(folder, rows, &making);
    let mut hashes = vec![0u64; rows as usize];
    for (name, of) in making.vectors.iter().enumerate() {
        let own = places_of(sources, &ordinals, (name, rows, making.has_names()));
        if own.is_empty() {
            continue;
        }
        let files = Files::of(folder, name, making.has_names());
        std::fs::create_dir_all(&files.folder).map_err(|e| Error::io("creating", &files.folder, &e))?;
        let path = files.folder.join(format!("vectors.tmp.{}", suffix(of)));
        let copied = (&*ordinals, &*own, &mut *hashes);
        copy_vectors(sources, copied, (&path, (name, of)), progress)?;
        let reader = Reader::open(&path)?;
        let grow_from = making.grows_graphs.then(|| grow_from(sources, (&ordinals, &own), name)).flatten();
        let vectors = NewVectors { reader: Some(&reader), ordinals: own, grow_from };
        built.add(name, vectors, &making, progress)?;
        drop(reader);
        std::fs::remove_file(&path).map_err(|e| Error::io("removing", &path, &e))?;
    }
    let before = content_of(sources, &hashes, &payloads)?;
    let taken_over = built.taken_over;
    drop(hashes);
    let entry = built.finish((ids_of(sources), &payloads), (&making, before), progress)?;
    payloads.remove()?;
    Unfinished::remove(folder)?;
    ordinals.iter_mut().for_each(Vec::shrink_to_fit);
    Ok(Merged { entry, ordinals, taken_over })
}

/// Ordinals of the rows of a merged segment that have a vector of a name, ascending.
fn places_of(
    sources: &[&Source],
    ordinals: &[Vec<u32>],
    (name, rows, has_names): (usize, u64, bool),
) -> Vec<u32> {
    if !has_names {
        return (0..rows as u32).collect();
    }
    let mut own = Vec::new();
    for (source, ordinals) in sources.iter().zip(ordinals) {
        let index = source.segment.index(name);
        let with_it = index.and_then(|index| index.segment_rows()).unwrap_or_default();
        own.extend(with_it.iter().map(|row| of_row(ordinals, *row)).filter(|ordinal| *ordinal != u32::MAX));
    }
    own.sort_unstable();
    own
}

/// The largest graph of a name among the sources, which that of the merged segment can grow from; `own` are the
/// ordinals that have a vector of the name.
fn grow_from(sources: &[&Source], (ordinals, own): (&[Vec<u32>], &[u32]), name: usize) -> Option<GrowFrom> {
    let graphs = sources.iter().zip(ordinals).filter_map(|(source, ordinals)| {
        let index = source.segment.index(name)?;
        let is_graph = index.index.manifest().kind() == Some(IndexKind::DiskGraph);
        is_graph.then_some((index, ordinals))
    });
    let (index, ordinals) = graphs.max_by_key(|(index, _)| index.rows())?;
    let place = |row: &u32| {
        let ordinal = of_row(ordinals, *row);
        own.binary_search(&ordinal).map_or(u32::MAX, |place| place as u32)
    };
    let rows: Vec<u32> = index.rows_of_segment().iter().map(place).collect();
    Some(GrowFrom { graph: index.index.clone(), rows: Arc::new(rows) })
}

/// What the points of all sources are, by the hashes of their vectors and payloads in the order of their ids.
pub(super) fn content_of(sources: &[&Source], hashes: &[u64], payloads: &Copied) -> Result<Content> {
    let mut content = Content::default();
    for ((next, hash), at) in MergedIds::of(sources).zip(hashes).zip(0..) {
        let (_, entry) = next?;
        content.add(&entry.id, entry.seq, (*hash, payloads.hash(at)));
    }
    Ok(content)
}

/// Ids and sequence numbers of all sources, in their order.
pub(super) fn ids_of<'a>(sources: &'a [&'a Source]) -> impl Iterator<Item = Result<(Vec<u8>, u64)>> + 'a {
    MergedIds::of(sources).map(|next| next.map(|(_, entry)| (entry.id, entry.seq)))
}

/// # Errors
/// `Io` where so many bytes are not free.
pub(super) fn check_room(folder: &Path, needed: u64) -> Result<()> {
    let parent = folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(folder);
    match free_disk_bytes(parent).filter(|free| *free < needed) {
        Some(free) => Err(Error::io(
            "merging segments in",
            parent,
            &std::io::Error::new(
                std::io::ErrorKind::StorageFull,
                format!("{} are free, {} are needed", size(free), size(needed)),
            ),
        )),
        None => Ok(()),
    }
}

fn suffix(of: &VectorsMaking) -> &'static str {
    match of.shape.dtype {
        stratann_kernel::DType::F32 => "fbin",
        stratann_kernel::DType::F16 => "f16bin",
        stratann_kernel::DType::U8 => "u8bin",
        stratann_kernel::DType::I8 => "i8bin",
    }
}

/// The ordinal of each row in the merged segment.
pub(super) fn ordinals(sources: &[&Source], progress: &dyn Progress) -> Result<Vec<Vec<u32>>> {
    let all = |source: &&Source| vec![u32::MAX; source.segment.rows() as usize];
    let mut ordinals: Vec<Vec<u32>> = sources.iter().map(all).collect();
    let mut last: Vec<u8> = Vec::new();
    for (next, ordinal) in MergedIds::of(sources).zip(0u32..) {
        let (source, entry) = next?;
        if ordinal > 0 && entry.id == last {
            let folder = sources[source].segment.folder();
            return Err(damaged(folder, "an id in it is in another segment, too"));
        }
        if ordinal % 4096 == 0 {
            progress.check_interrupted()?;
        }
        if let Some(own) = ordinals[source].get_mut(entry.row as usize) {
            *own = ordinal;
        }
        last = entry.id;
    }
    Ok(ordinals)
}

/// Writes the vectors of a name of all sources in the order of their ids, and adds them to the sum of each ordinal.
/// `own` are the ordinals that have one.
fn copy_vectors(
    sources: &[&Source],
    (ordinals, own, hashes): (&[Vec<u32>], &[u32], &mut [u64]),
    (path, (name, of)): (&Path, (usize, &VectorsMaking)),
    progress: &dyn Progress,
) -> Result<()> {
    let (rows, row_bytes) = (own.len() as u64, of.rows(1).row_bytes() as u64);
    let failed = |e: std::io::Error| Error::io("writing", path, &e);
    let file = File::create(path).map_err(failed)?;
    let header = [(rows as u32).to_le_bytes(), (of.shape.dim as u32).to_le_bytes()].concat();
    file.write_all_at(&header, 0).map_err(failed)?;
    let is_all = own.len() == hashes.len();
    progress.stage("copying vectors", rows, "rows");
    for (source, ordinals) in sources.iter().zip(ordinals) {
        let (mut written, mut count) = (Ok(()), 0);
        source.segment.for_each_vector(name, progress, &mut |row, vector| {
            let ordinal = of_row(ordinals, row);
            let Some(sum) = hashes.get_mut(ordinal as usize) else { return };
            *sum = sum.wrapping_add(Content::of_named(&of.name, Content::of_vector(vector)));
            let place = if is_all { Some(ordinal as usize) } else { own.binary_search(&ordinal).ok() };
            if let (Ok(()), Some(place)) = (&written, place) {
                written = file.write_all_at(vector, HEADER_BYTES + place as u64 * row_bytes);
                count += 1;
            }
        })?;
        written.map_err(failed)?;
        progress.advance(count);
    }
    Ok(())
}

/// The place of a row among those of a merged segment; none that exists for a dead one.
fn of_row(ordinals: &[u32], row: u32) -> u32 {
    ordinals.get(row as usize).copied().unwrap_or(u32::MAX)
}

/// Copies the payloads of all sources. Each of their blocks is read once.
pub(super) fn copy_payloads(
    sources: &[&Source],
    ordinals: &[Vec<u32>],
    (folder, rows): (&Path, u64),
    progress: &dyn Progress,
) -> Result<Copied> {
    let mut copied = Copied::create(folder, rows)?;
    for (source, ordinals) in sources.iter().zip(ordinals) {
        let Some(payloads) = &source.segment.payloads else { continue };
        payloads.for_all(|row, json| {
            if row % 1024 == 0 {
                progress.check_interrupted()?;
            }
            match source.overlay.get(row) {
                Some(_) => Ok(()),
                None => copied.add(of_row(ordinals, row), json),
            }
        })?;
    }
    for (source, ordinals) in sources.iter().zip(ordinals) {
        for (row, newer) in source.overlay.iter() {
            newer.payload.iter().try_for_each(|json| copied.add(of_row(ordinals, row), json))?;
        }
    }
    Ok(copied)
}

/// Ids of all sources that are left, in their order, each with its source.
struct MergedIds<'a> {
    streams: Vec<(Peekable<Entries<'a>>, &'a Source)>,
}

impl<'a> MergedIds<'a> {
    fn of(sources: &'a [&'a Source]) -> MergedIds<'a> {
        let stream = |source: &&'a Source| (source.segment.ids().from(0).peekable(), *source);
        MergedIds { streams: sources.iter().map(stream).collect() }
    }
}

impl Iterator for MergedIds<'_> {
    type Item = Result<(usize, Entry)>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut least: Option<(usize, Vec<u8>)> = None;
        for (at, (stream, source)) in self.streams.iter_mut().enumerate() {
            let is_dead =
                |entry: &Result<Entry>| entry.as_ref().is_ok_and(|entry| !source.left.has(entry.row));
            while stream.next_if(is_dead).is_some() {}
            match stream.peek() {
                Some(Ok(entry)) if least.as_ref().is_none_or(|(_, id)| entry.id < *id) => {
                    least = Some((at, entry.id.clone()));
                }
                Some(Err(_)) => return stream.next().map(|failed| failed.map(|entry| (at, entry))),
                _ => {}
            }
        }
        let (at, _) = least?;
        let (stream, source) = self.streams.get_mut(at)?;
        let next = stream.next()?;
        Some(next.map(|entry| {
            let seq = source.overlay.get(entry.row).map_or(entry.seq, |newer| newer.seq);
            (at, Entry { seq, ..entry })
        }))
    }
}
