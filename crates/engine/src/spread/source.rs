//! The index that is to be spread: its manifest, its map, and its blocks as a stream.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use stratann_core::format::block::{self, Block, BlockLayout};
use stratann_core::format::block_map::BlockMap;
use stratann_kernel::coder::Coder;
use stratann_storage::data_file::{open_file, read_file};
use stratann_storage::{Error, Progress, Result};

use crate::files;
use crate::manifest::Manifest;
use crate::parallel;

/// Bytes of blocks that are in memory at a time.
pub(super) const CHUNK_BYTES: usize = 2 << 20;

/// A finished `disk-graph`, read from its folder and never changed.
pub(super) struct Source<'a> {
    pub(super) manifest: Manifest,
    pub(super) coder: Coder,
    /// Nodes of each block.
    pub(super) counts: Vec<u16>,
    map: BlockMap,
    shape: BlockLayout,
    blocks: PathBuf,
    // The file that has the codes: their own, or that of the blocks.
    codes: File,
    codes_path: PathBuf,
    pub(super) progress: &'a dyn Progress,
}

/// The nodes of a block: the first one's id, and how many there are.
pub(super) type Span = (u32, u16);

/// Blocks that the edges of each block of a chunk lead to: one entry for each edge, without those to the block itself.
pub(super) type Targets = Vec<Vec<u32>>;

impl<'a> Source<'a> {
    /// Reads what is small, and compares all files but the blocks with the manifest: blocks are checked one by one as
    /// they stream by.
    pub(super) fn open(
        folder: &Path,
        manifest: Manifest,
        shape: BlockLayout,
        progress: &'a dyn Progress,
    ) -> Result<Source<'a>> {
        let path = |role: &str| -> Result<PathBuf> { Ok(folder.join(manifest.file(role)?.0)) };
        let read = |role: &str| -> Result<Vec<u8>> {
            let (name, entry) = manifest.file(role)?;
            read_file(folder, name, entry)
        };
        let carried = shape.code_bytes > 0;
        let role = if carried { files::BLOCKS } else { files::CODES };
        let (blocks, codes_path) = (path(files::BLOCKS)?, path(role)?);
        let coder = files::decode_coder(&read(files::CODEBOOK)?)
            .filter(|coder| coder.dim() == manifest.dim)
            .ok_or_else(|| path(files::CODEBOOK).map_or_else(|e| e, |p| files::senseless(&p)))?;
        let bytes = read(files::MAP)?;
        let map = files::decode_map(&bytes)
            .filter(|m| u64::from(m.nodes()) == manifest.rows && m.blocks() == manifest.blocks.count)
            .ok_or_else(|| path(files::MAP).map_or_else(|e| e, |p| files::senseless(&p)))?;
        let counts = bytes.chunks_exact(2).map(|c| u16::from_le_bytes([c[0], c[1]])).collect();
        let codes = open_file(&codes_path, manifest.file(role)?.1)?;
        let fits = match carried {
            true => shape.code_bytes == coder.code_bytes(),
            false => {
                let wanted = manifest.rows * coder.code_bytes() as u64;
                manifest.file(files::CODES)?.1.bytes == wanted
            }
        };
        if !fits {
            return Err(files::senseless(&codes_path));
        }
        Ok(Source { manifest, coder, counts, map, shape, blocks, codes, codes_path, progress })
    }

    /// Number of blocks.
    pub(super) fn len(&self) -> usize {
        self.counts.len()
    }

    /// The nodes of every block, in order.
    pub(super) fn spans(&self) -> impl Iterator<Item = Span> + '_ {
        self.counts.iter().scan(0u32, |next, &count| {
            let first = *next;
            *next += u32::from(count);
            Some((first, count))
        })
    }

    /// Reads all blocks once, in order. `visit` gets the number of a chunk's first block, the targets of the chunk's
    /// edges, and its bytes.
    ///
    /// # Errors
    /// A damaged block, an I/O error, an interruption, and those of `visit`.
    pub(super) fn stream(
        &self,
        stage: &str,
        mut visit: impl FnMut(usize, &Targets, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let failed = |e: std::io::Error| Error::io("reading", &self.blocks, &e);
        let size = self.shape.block_bytes;
        let per_chunk = (CHUNK_BYTES / size).clamp(1, self.len().max(1));
        let mut file = open_file(&self.blocks, self.manifest.file(files::BLOCKS)?.1)?;
        let mut bytes = vec![0u8; per_chunk * size];
        let mut targets: Targets = vec![Vec::new(); per_chunk];
        self.progress.stage(stage, self.len() as u64, "blocks");
        for first in (0..self.len()).step_by(per_chunk) {
            self.progress.check_interrupted()?;
            let count = per_chunk.min(self.len() - first);
            let bytes = &mut bytes[..count * size];
            targets.truncate(count);
            file.read_exact(bytes).map_err(failed)?;
            let blocks = bytes.chunks_exact(size).zip(&mut targets).enumerate();
            parallel::try_map_with(blocks, Vec::new, |list, (i, (bytes, targets))| {
                self.targets((first + i) as u32, bytes, list, targets)
            })?;
            visit(first, &targets, bytes)?;
            self.progress.advance(count as u64);
        }
        Ok(())
    }

    pub(super) fn damaged(&self, number: u32) -> Error {
        let offset = u64::from(number) * self.shape.block_bytes as u64;
        Error::corrupt(format!(
            "block {number} (offset {offset}) of {} is damaged; run `stratann verify`, then restore the file or \
             build the index \
             again",
            self.blocks.display()
        ))
    }

    fn targets(&self, number: u32, bytes: &[u8], list: &mut Vec<u32>, out: &mut Vec<u32>) -> Result<()> {
        let damaged = || self.damaged(number);
        block::verify(&self.shape, number, bytes).map_err(|_| damaged())?;
        let block = Block::open(&self.shape, bytes).map_err(|_| damaged())?;
        out.clear();
        for slot in 0..block.count() {
            list.clear();
            block.neighbours(slot, list).ok_or_else(damaged)?;
            if list.iter().any(|&id| id >= self.map.nodes()) {
                return Err(damaged());
            }
            out.extend(list.iter().map(|&id| self.map.block_of(id)).filter(|&b| b != number));
        }
        Ok(())
    }

    /// Means of the decoded codes of blocks, in the codes' rotated space: `spans.len()` × dim. The spans ascend.
    pub(super) fn means(&self, spans: &[Span], out: &mut [f32]) -> Result<()> {
        let (size, dim) = (self.coder.code_bytes(), self.coder.dim());
        // Neighbours in the file are read together.
        const TOGETHER: usize = 64;
        parallel::try_map_with(
            spans.chunks(TOGETHER).zip(out.chunks_mut(TOGETHER * dim)),
            || (Vec::new(), vec![0f32; dim]),
            |(codes, row), (spans, out)| {
                let is_run = spans.windows(2).all(|w| w[0].0 + u32::from(w[0].1) == w[1].0);
                let step = if is_run { spans.len() } else { 1 };
                for (spans, out) in spans.chunks(step).zip(out.chunks_mut(step * dim)) {
                    self.read_codes(spans, codes)?;
                    let mut rest = &codes[..];
                    for (span, out) in spans.iter().zip(out.chunks_exact_mut(dim)) {
                        let (own, others) = rest.split_at(usize::from(span.1) * size);
                        rest = others;
                        mean(&self.coder, own, row, out);
                    }
                }
                Ok(())
            },
        )?;
        Ok(())
    }

    /// The codes of the nodes of blocks that follow one another.
    fn read_codes(&self, spans: &[Span], out: &mut Vec<u8>) -> Result<()> {
        let failed = |e: std::io::Error| Error::io("reading", &self.codes_path, &e);
        let size = self.coder.code_bytes();
        if self.shape.code_bytes == 0 {
            let nodes: usize = spans.iter().map(|s| usize::from(s.1)).sum();
            out.resize(nodes * size, 0u8);
            return self.codes.read_exact_at(out, u64::from(spans[0].0) * size as u64).map_err(failed);
        }
        out.clear();
        let (mut bytes, mut ids) = (vec![0u8; self.shape.block_bytes], Vec::new());
        for &(first, count) in spans {
            let number = self.map.block_of(first);
            self.codes
                .read_exact_at(&mut bytes, u64::from(number) * self.shape.block_bytes as u64)
                .map_err(failed)?;
            let own = block::verify(&self.shape, number, &bytes)
                .and_then(|()| Block::open(&self.shape, &bytes))
                .ok()
                .filter(|block| block.first_id() == first && block.count() == usize::from(count))
                .and_then(|block| block.own_codes(&mut ids));
            out.extend_from_slice(own.ok_or_else(|| self.damaged(number))?);
        }
        Ok(())
    }

    /// As [`Source::means`] for every block, a chunk at a time; `visit` gets the number of a chunk's first block and
    /// its means.
    pub(super) fn for_each_mean(
        &self,
        stage: &str,
        mut visit: impl FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<()> {
        let dim = self.coder.dim();
        let per_chunk = means_per_chunk(dim);
        self.progress.stage(stage, self.len() as u64, "blocks");
        let (mut spans, mut means) = (Vec::with_capacity(per_chunk), vec![0f32; per_chunk * dim]);
        let mut all = self.spans();
        for first in (0..self.len()).step_by(per_chunk) {
            self.progress.check_interrupted()?;
            spans.clear();
            spans.extend(all.by_ref().take(per_chunk));
            let means = &mut means[..spans.len() * dim];
            self.means(&spans, means)?;
            visit(first, means)?;
            self.progress.advance(spans.len() as u64);
        }
        Ok(())
    }

    /// The means of `count` blocks, evenly spread.
    pub(super) fn sample(&self, count: usize) -> Result<Vec<f32>> {
        let count = count.min(self.len());
        let is_drawn = |b: usize| (b + 1) * count / self.len() > b * count / self.len();
        let spans: Vec<Span> = self.spans().enumerate().filter(|(b, _)| is_drawn(*b)).map(|s| s.1).collect();
        let mut out = vec![0f32; spans.len() * self.coder.dim()];
        self.means(&spans, &mut out)?;
        Ok(out)
    }
}

/// Blocks whose means are in memory at a time.
pub(super) fn means_per_chunk(dim: usize) -> usize {
    ((1 << 20) / dim).clamp(64, 1 << 14)
}

/// The mean of what `codes` stand for.
fn mean(coder: &Coder, codes: &[u8], row: &mut [f32], out: &mut [f32]) {
    out.fill(0.0);
    let codes = codes.chunks_exact(coder.code_bytes());
    let share = 1.0 / codes.len().max(1) as f32;
    for code in codes {
        coder.decode_rotated(code, row);
        out.iter_mut().zip(row.iter()).for_each(|(o, &x)| *o += x * share);
    }
}
