//! Writes what a partition leaves: the files that all servers share, the placement, and each server's blocks.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use stratann_core::place::Placement;
use xxhash_rust::xxh3::Xxh3;

use super::source::{Source, Targets};
use crate::durable::{hex, write_synced};
use crate::files::FileEntry;
use crate::manifest::BlockShape;
use crate::{Error, Result, files};

/// Bytes that are gathered for a server before they are written.
pub(super) const BUFFER_BYTES: usize = 256 << 10;
/// Files that every server needs whole.
pub(super) fn shared(blocks: &BlockShape) -> [&'static str; 4] {
    let codes = if blocks.code_bytes > 0 { files::HEAD_CODES } else { files::CODES };
    [codes, files::CODEBOOK, files::MAP, files::HEAD]
}

/// One server's file of blocks.
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

    fn take(&mut self, block: &[u8]) -> Result<()> {
        self.hash.update(block);
        self.bytes += block.len() as u64;
        self.buffer.extend_from_slice(block);
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

/// What was written, by server, and how many edges led to blocks without a common server.
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
        parts.par_iter_mut().enumerate().try_for_each(|(server, part)| {
            let held = |b: usize| placement.replicas(b as u32) >> server & 1 == 1;
            let blocks = bytes.chunks_exact(block_bytes).enumerate();
            blocks.filter(|(i, _)| held(first + i)).try_for_each(|(_, block)| part.take(block))
        })
    })?;
    let parts = parts.into_par_iter().map(Part::finish).collect::<Result<_>>()?;
    Ok(Written { parts, edges, cut })
}

fn edges_cut(placement: &Placement, first: usize, targets: &Targets) -> u64 {
    let of_block = |(i, targets): (usize, &Vec<u32>)| {
        let holders = placement.replicas((first + i) as u32);
        targets.iter().filter(|&&t| placement.replicas(t) & holders == 0).count() as u64
    };
    targets.par_iter().enumerate().map(of_block).sum()
}

/// Gives a file that does not change a second name; copies it where the file system cannot.
pub(super) fn link(from: &Path, to: &Path) -> Result<()> {
    if std::fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    let copied = std::fs::copy(from, to).and_then(|_| File::open(to)).and_then(|f| f.sync_all());
    copied.map_err(|e| Error::io("copying", to, &e))
}

/// Writes the placement.
pub(super) fn write_placement(placement: &Placement, path: &Path) -> Result<FileEntry> {
    let bytes = files::encode_placement(placement);
    write_synced(path, &bytes).map_err(|e| Error::io("writing", path, &e))?;
    files::entry(path)
}
