//! Writes the payloads of a segment.

use std::path::Path as FilePath;

use stratann_storage::{Error, Result};
use zstd::bulk::Compressor;

use super::{BLOCK_BYTES, MAGIC};
use crate::stored::PartWriter;
use crate::value::{BYTES_MAX, Payload};

/// Level of zstd, its default.
const LEVEL: i32 = 3;

/// Payloads that are written, row by row.
pub struct RowsWriter {
    file: PartWriter,
    zstd: Compressor<'static>,
    rows: u32,
    /// The row from which on the next one may be.
    next: u32,
    count: u32,
    /// Rows and bytes of the payloads of the block.
    heads: Vec<(u32, u32)>,
    json: Vec<u8>,
    directory: Vec<u8>,
}

impl RowsWriter {
    /// Begins the payloads of so many rows.
    ///
    /// # Errors
    /// `Io`.
    pub fn create(path: &FilePath, rows: u32) -> Result<RowsWriter> {
        let zstd = Compressor::new(LEVEL).map_err(|e| Error::io("creating", path, &e))?;
        let file = PartWriter::create(path)?;
        let (heads, json, directory) = (Vec::new(), Vec::new(), Vec::new());
        Ok(RowsWriter { file, zstd, rows, next: 0, count: 0, heads, json, directory })
    }

    /// Adds the payload of a row. Rows ascend; those that are left out, and empty payloads, take no space.
    ///
    /// # Errors
    /// `BadInput` for a row that does not ascend, or is beyond the segment; `Io`.
    pub fn push(&mut self, row: u32, payload: &Payload) -> Result<()> {
        if payload.is_empty() {
            return self.check(row);
        }
        self.push_json(row, &payload.to_bytes())
    }

    /// As [`RowsWriter::push`], for compact JSON that [`super::PayloadRows::for_all`] gave.
    ///
    /// # Errors
    /// As [`RowsWriter::push`].
    pub fn push_json(&mut self, row: u32, json: &[u8]) -> Result<()> {
        self.check(row)?;
        if json.len() > BYTES_MAX {
            return Err(Error::bad_input(format!(
                "the payload of row {row} has {} bytes, at most {BYTES_MAX} are possible",
                json.len()
            )));
        }
        if !self.json.is_empty() && self.json.len() + json.len() > BLOCK_BYTES {
            self.end_block()?;
        }
        self.heads.push((row, json.len() as u32));
        self.json.extend(json);
        self.count += 1;
        Ok(())
    }

    fn check(&mut self, row: u32) -> Result<()> {
        if row < self.next || row >= self.rows {
            return Err(Error::bad_input(format!(
                "row {row} of a payload file comes after row {}, of {} rows; give rows in their order",
                i64::from(self.next) - 1,
                self.rows
            )));
        }
        self.next = row + 1;
        Ok(())
    }

    fn end_block(&mut self) -> Result<()> {
        let Some((first, _)) = self.heads.first() else { return Ok(()) };
        let mut raw = Vec::with_capacity(4 + 8 * self.heads.len() + self.json.len());
        raw.extend((self.heads.len() as u32).to_le_bytes());
        self.heads.iter().for_each(|(row, _)| raw.extend(row.to_le_bytes()));
        self.heads.iter().for_each(|(_, bytes)| raw.extend(bytes.to_le_bytes()));
        raw.extend(&self.json);
        let bytes =
            self.zstd.compress(&raw).map_err(|e| Error::io("compressing for", self.file.path(), &e))?;
        let place = self.file.part(&bytes)?;
        self.directory.extend(place.to_le_bytes());
        self.directory.extend((bytes.len() as u32).to_le_bytes());
        self.directory.extend((raw.len() as u32).to_le_bytes());
        self.directory.extend(first.to_le_bytes());
        self.heads.clear();
        self.json.clear();
        Ok(())
    }

    /// Writes the directory and syncs the file; returns its length in bytes.
    ///
    /// # Errors
    /// `Io`.
    pub fn finish(mut self) -> Result<u64> {
        self.end_block()?;
        let head = [self.rows, self.count].map(u32::to_le_bytes).concat();
        self.file.finish(&[head, self.directory].concat(), MAGIC)
    }
}
