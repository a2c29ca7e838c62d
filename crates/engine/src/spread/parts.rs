//! Writes what a partition leaves: the files that all servers share, the placement, and each server's units.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use stratann_core::PAGE;
use stratann_core::place::Placement;
use stratann_storage::data_file::{FileEntry, Sum, open_file};
use stratann_storage::durable::{hex, write_synced};
use stratann_storage::{Error, Progress, Result, data_file};
use xxhash_rust::xxh3::Xxh3;

use super::source::{CHUNK_BYTES, Source, Targets};
use crate::files;
use crate::manifest::Manifest;
use crate::parallel;
use crate::units::UnitRanges;

/// Bytes that are gathered for a server before they are written.
pub(super) const BUFFER_BYTES: usize = 256 << 10;

/// One server's file of units.
struct Part {
    path: PathBuf,
    file: File,
    hash: Xxh3,
    buffer: Vec<u8>,
    bytes: u64,
}

impl Part {
    fn create(path: PathBuf) -> Result<Part> {
        let file = File::create(&path).map_err(|e| Error::io("creating", &path, &e))?;
        Ok(Part { path, file, hash: Xxh3::new(), buffer: Vec::new(), bytes: 0 })
    }

    fn take(&mut self, piece: &[u8]) -> Result<()> {
        self.hash.update(piece);
        self.bytes += piece.len() as u64;
        self.buffer.extend_from_slice(piece);
        if self.buffer.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        self.file.write_all(&self.buffer).map_err(|e| Error::io("writing", &self.path, &e))?;
        self.buffer.clear();
        Ok(())
    }

    fn finish(mut self) -> Result<FileEntry> {
        self.flush()?;
        self.file.sync_all().map_err(|e| Error::io("writing", &self.path, &e))?;
        Ok(FileEntry { bytes: self.bytes, xxh3: hex(self.hash.digest()) })
    }
}

/// Written files, by server, and number of edges that led to units without a common server.
pub(super) struct Written {
    pub(super) parts: Vec<FileEntry>,
    pub(super) edges: u64,
    pub(super) cut: u64,
}

/// Writes every block to the files of its replicas.
pub(super) fn write(
    source: &Source<'_>,
    placement: &Placement,
    block_bytes: usize,
    path: impl Fn(usize) -> PathBuf,
) -> Result<Written> {
    let parts: Result<Vec<Part>> = (0..placement.servers()).map(|s| Part::create(path(s))).collect();
    let (mut parts, mut edges, mut cut) = (parts?, 0, 0);
    source.stream("writing", |first, targets, bytes| {
        edges += targets.iter().map(|t| t.len() as u64).sum::<u64>();
        cut += edges_cut(placement, first, targets);
        parallel::try_map(parts.iter_mut().enumerate(), |(server, part)| {
            let held = |b: usize| placement.replicas(b as u32) >> server & 1 == 1;
            let blocks = bytes.chunks_exact(block_bytes).enumerate();
            blocks.filter(|(i, _)| held(first + i)).try_for_each(|(_, block)| part.take(block))
        })?;
        Ok(())
    })?;
    let parts = parallel::try_map(parts, Part::finish)?;
    Ok(Written { parts, edges, cut })
}

/// Writes every unit to the files of its replicas, of whole pages: copies the data file of a whole index, which is
/// compared with the manifest meanwhile.
///
/// # Errors
/// A file that is not what the manifest says, an I/O error, an interruption.
pub(super) fn write_ranges(
    (folder, manifest): (&Path, &Manifest),
    ranges: &UnitRanges,
    placement: &Placement,
    path: impl Fn(usize) -> PathBuf,
    progress: &dyn Progress,
) -> Result<Vec<FileEntry>> {
    let (name, entry) = manifest.file(manifest.data_role())?;
    let from = folder.join(name);
    let failed = |e: std::io::Error| Error::io("reading", &from, &e);
    let parts: Result<Vec<Part>> = (0..placement.servers()).map(|s| Part::create(path(s))).collect();
    let (mut parts, mut sum) = (parts?, Sum::default());
    let mut file = open_file(&from, entry)?;
    let (mut chunk, mut pieces) = (vec![0u8; CHUNK_BYTES], Vec::new());
    let (mut at, mut number) = (0u64, 0);
    progress.stage("writing", entry.bytes, "bytes");
    loop {
        progress.check_interrupted()?;
        let count = file.read(&mut chunk).map_err(failed)?;
        if count == 0 {
            break;
        }
        let (bytes, end) = (&chunk[..count], at + count as u64);
        sum.add(bytes);
        pieces.clear();
        while number < ranges.len() {
            let range = ranges.get(number);
            let range_end = range.start + range.bytes;
            let (from, to) = (range.start.max(at), range_end.min(end));
            if from < to {
                pieces.push((placement.replicas(range.unit), (from - at) as usize..(to - at) as usize));
            }
            if range_end > end {
                break;
            }
            number += 1;
        }
        parallel::try_map(parts.iter_mut().enumerate(), |(server, part)| {
            let held = pieces.iter().filter(|(replicas, _)| replicas >> server & 1 == 1);
            held.map(|piece| piece.1.clone()).try_for_each(|piece| part.take(&bytes[piece]))
        })?;
        at = end;
        progress.advance(count as u64);
    }
    if sum.entry() != *entry {
        return Err(damaged(&from));
    }
    parallel::try_map(parts, |mut part| {
        let end = part.bytes.next_multiple_of(PAGE as u64);
        part.take(&[0; PAGE][..(end - part.bytes) as usize])?;
        part.finish()
    })
}

/// A file of the source that is not what its manifest says.
pub(super) fn damaged(file: &Path) -> Error {
    Error::corrupt(format!(
        "{} is damaged: its size or checksum is not what the manifest says; restore it or build the index again",
        file.display()
    ))
}

fn edges_cut(placement: &Placement, first: usize, targets: &Targets) -> u64 {
    let of_block = |(i, targets): (usize, &Vec<u32>)| {
        let holders = placement.replicas((first + i) as u32);
        targets.iter().filter(|&&t| placement.replicas(t) & holders == 0).count() as u64
    };
    parallel::map(targets.iter().enumerate(), of_block).iter().sum()
}

/// Gives a file that does not change a second name; copies it where the file system cannot.
pub(super) fn link(from: &Path, to: &Path) -> Result<()> {
    if std::fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    stratann_storage::input::open(from)?;
    let copied = std::fs::copy(from, to).and_then(|_| File::open(to)).and_then(|f| f.sync_all());
    copied.map_err(|e| Error::io("copying", to, &e))
}

/// Writes the placement.
pub(super) fn write_placement(placement: &Placement, path: &Path) -> Result<FileEntry> {
    let bytes = files::encode_placement(placement);
    write_synced(path, &bytes).map_err(|e| Error::io("writing", path, &e))?;
    data_file::entry(path)
}
