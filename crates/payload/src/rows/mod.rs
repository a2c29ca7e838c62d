//! `payload-G.rows`: the payloads of a segment's rows, in blocks that are compressed.
//!
//! The file has parts as `stored.rs` describes them, each with a checksum that is compared when it is read. All numbers
//! are little-endian.
//!
//! | bytes | block, compressed with zstd |
//! |---|---|
//! | 4 | payloads |
//! | 4 each | their rows, ascending |
//! | 4 each | bytes of each |
//! | | the payloads as compact JSON |
//!
//! | bytes | directory |
//! |---|---|
//! | 4 | rows of the segment |
//! | 4 | rows with a payload |
//! | | for each block: |
//! | 8 | place |
//! | 4 | bytes |
//! | 4 | bytes before compression |
//! | 4 | first row |
//!
//! A block has about 4 KiB of payloads, or one that is longer. Rows without a payload are in no block.

#[cfg(test)]
mod tests;
mod write;

use std::path::Path as FilePath;

use roaring::RoaringBitmap;
use stratann_storage::{Error, Result};
use zstd::bulk::Decompressor;

use crate::stored::{PartFile, number, number32};
use crate::value::{self, Payload};
pub use write::RowsWriter;

const MAGIC: &[u8; 8] = b"SANNPRW1";
/// Bytes of payloads after which a block ends.
const BLOCK_BYTES: usize = 4 << 10;
/// Most bytes of a block before compression: one payload more than a full block, with rows of one byte each.
const RAW_BYTES_MAX: usize = value::BYTES_MAX + 64 * BLOCK_BYTES;
/// Bytes of the directory before its blocks.
const HEAD_BYTES: usize = 8;
/// Bytes of a block in the directory.
const ENTRY_BYTES: usize = 20;

/// A block in the directory.
#[derive(Clone, Copy)]
struct Block {
    place: u64,
    bytes: u32,
    raw_bytes: u32,
    first: u32,
}

/// The open payloads of a segment. Blocks are read on demand and not kept.
pub struct PayloadRows {
    file: PartFile,
    rows: u32,
    count: u32,
    blocks: Box<[Block]>,
}

impl PayloadRows {
    /// Opens the payloads of a segment.
    ///
    /// # Errors
    /// `Corrupt` for a file that is none, or is cut or changed; `BadInput` for a missing one; `Io`.
    pub fn open(path: &FilePath) -> Result<PayloadRows> {
        let (file, directory) = PartFile::open(path, MAGIC)?;
        let (rows, count, blocks) =
            read_directory(&directory).ok_or_else(|| file.damaged("its directory", "it cannot be"))?;
        Ok(PayloadRows { file, rows, count, blocks: blocks.into() })
    }

    /// Rows of the segment.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Rows with a payload.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of all payloads before compression, with their rows and lengths.
    pub fn raw_bytes(&self) -> u64 {
        self.blocks.iter().map(|block| u64::from(block.raw_bytes)).sum()
    }

    /// Memory while it is open, bytes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<PayloadRows>() + size_of_val::<[Block]>(&self.blocks)
    }

    /// Reads of the file since it was opened.
    pub fn reads(&self) -> u64 {
        self.file.reads()
    }

    /// The payload of a row; an empty one for a row without.
    ///
    /// # Errors
    /// `Corrupt` that names file and block for a damaged one; `Io`.
    pub fn get(&self, row: u32) -> Result<Payload> {
        let mut found = Payload::new();
        self.for_rows(&[row].into_iter().collect(), |_, payload| {
            found = payload;
            Ok(())
        })?;
        Ok(found)
    }

    /// Calls `each` with the payloads of these rows, ascending; rows without one are left out. Each block is read and
    /// decompressed once.
    ///
    /// # Errors
    /// As [`PayloadRows::get`], and what `each` returns.
    pub fn for_rows(&self, rows: &RoaringBitmap, each: impl FnMut(u32, Payload) -> Result<()>) -> Result<()> {
        let mut each = each;
        self.for_json(rows, |row, json| {
            let payload = Payload::from_stored(json)
                .map_err(|why| self.file.damaged(&format!("the payload of row {row}"), &why))?;
            each(row, payload)
        })
    }

    /// As [`PayloadRows::for_rows`], with compact JSON in place of a payload.
    ///
    /// # Errors
    /// As [`PayloadRows::for_rows`].
    pub fn for_json(
        &self,
        rows: &RoaringBitmap,
        mut each: impl FnMut(u32, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut decompressor: Option<Decompressor<'static>> = None;
        let mut wanted = rows.iter().peekable();
        while let Some(&row) = wanted.peek() {
            let Some(at) = self.blocks.partition_point(|block| block.first <= row).checked_sub(1) else {
                // Before the first block no row has a payload.
                wanted.next();
                continue;
            };
            let end = self.blocks.get(at + 1).map(|next| next.first);
            let raw = self.block(at, &mut decompressor)?;
            let mut payloads = self.payloads(at, &raw)?;
            let mut stored = payloads.next();
            while let Some(row) = wanted.next_if(|row| end.is_none_or(|end| *row < end)) {
                while stored.is_some_and(|(own, _)| own < row) {
                    stored = payloads.next();
                }
                if let Some((_, json)) = stored.filter(|(own, _)| *own == row) {
                    each(row, json)?;
                }
            }
        }
        Ok(())
    }

    /// Calls `each` with compact JSON of all rows that have a payload, ascending. One block is in memory at a time.
    ///
    /// # Errors
    /// As [`PayloadRows::for_rows`].
    pub fn for_all(&self, mut each: impl FnMut(u32, &[u8]) -> Result<()>) -> Result<()> {
        let mut decompressor = None;
        for at in 0..self.blocks.len() {
            let raw = self.block(at, &mut decompressor)?;
            for (row, json) in self.payloads(at, &raw)? {
                each(row, json)?;
            }
        }
        Ok(())
    }

    /// Reads every block, compares its checksum, and parses every payload.
    ///
    /// # Errors
    /// As [`PayloadRows::get`].
    pub fn verify(&self) -> Result<()> {
        let mut count = 0u32;
        self.for_all(|row, json| {
            count += 1;
            let parsed = Payload::from_stored(json);
            parsed.map(|_| ()).map_err(|why| self.file.damaged(&format!("the payload of row {row}"), &why))
        })?;
        if count != self.count {
            return Err(self
                .file
                .damaged("its blocks", &format!("they have {count} payloads, not {}", self.count)));
        }
        Ok(())
    }

    /// A block, decompressed.
    fn block(&self, at: usize, decompressor: &mut Option<Decompressor<'static>>) -> Result<Vec<u8>> {
        let block = self.blocks[at];
        let what = format!("block {at}");
        let bytes = self.file.part_of(block.place, block.bytes.into(), &what)?;
        let zstd = match decompressor {
            Some(zstd) => zstd,
            none => none.insert(Decompressor::new().map_err(|e| Error::io("reading", self.file.path(), &e))?),
        };
        let raw = zstd
            .decompress(&bytes, block.raw_bytes as usize)
            .map_err(|e| self.file.damaged(&what, &format!("it cannot be decompressed: {e}")))?;
        if raw.len() != block.raw_bytes as usize {
            return Err(self.file.damaged(&what, "it has another length"));
        }
        Ok(raw)
    }

    /// Rows and payloads of a block.
    fn payloads<'a>(
        &self,
        at: usize,
        raw: &'a [u8],
    ) -> Result<impl Iterator<Item = (u32, &'a [u8])> + use<'a>> {
        let parts = split(raw, self.rows);
        let parts =
            parts.ok_or_else(|| self.file.damaged(&format!("block {at}"), "its payloads cannot be"))?;
        Ok(parts.into_iter())
    }
}

/// Rows and payloads of a block; `None` for one that does not have what it says.
fn split(raw: &[u8], rows: u32) -> Option<Vec<(u32, &[u8])>> {
    let count = number32(raw, 0)? as usize;
    let head = 4 + count.checked_mul(8)?;
    let mut left = raw.get(head..)?;
    let mut parts: Vec<(u32, &[u8])> = Vec::with_capacity(count);
    for at in 0..count {
        let row = number32(raw, 4 + 4 * at)?;
        let (json, rest) = left.split_at_checked(number32(raw, 4 + 4 * (count + at))? as usize)?;
        if row >= rows || parts.last().is_some_and(|(last, _)| *last >= row) {
            return None;
        }
        parts.push((row, json));
        left = rest;
    }
    left.is_empty().then_some(parts)
}

/// Rows, rows with a payload, and blocks of a directory.
fn read_directory(directory: &[u8]) -> Option<(u32, u32, Vec<Block>)> {
    let (rows, count) = (number32(directory, 0)?, number32(directory, 4)?);
    let entries = directory.get(HEAD_BYTES..)?;
    if entries.len() % ENTRY_BYTES != 0 {
        return None;
    }
    let block = |bytes: &[u8]| {
        Some(Block {
            place: number(bytes, 0)?,
            bytes: number32(bytes, 8)?,
            raw_bytes: number32(bytes, 12)?,
            first: number32(bytes, 16)?,
        })
    };
    let blocks = entries.chunks_exact(ENTRY_BYTES).map(block).collect::<Option<Vec<Block>>>()?;
    let are_possible =
        blocks.iter().all(|block| block.raw_bytes as usize <= RAW_BYTES_MAX && block.first < rows);
    let ascend = blocks.windows(2).all(|pair| pair[0].first < pair[1].first);
    (are_possible && ascend && count <= rows).then_some((rows, count, blocks))
}
