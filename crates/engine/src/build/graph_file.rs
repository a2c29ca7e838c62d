//! The graph between two stages of a build: one record of `degree + 1` u32 per node (length, then rows of the neighbours, closest first), in
//! the order of cells.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Nodes that were partitioned together: positions `start..end` of the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Cell {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// Writes records one after another.
pub(crate) struct GraphWriter {
    path: PathBuf,
    file: BufWriter<File>,
    degree: usize,
    record: Vec<u32>,
}

impl GraphWriter {
    pub(crate) fn create(path: &Path, degree: usize) -> Result<GraphWriter> {
        let file = File::create(path).map_err(|e| Error::io("creating", path, &e))?;
        Ok(GraphWriter {
            path: path.into(),
            file: BufWriter::with_capacity(1 << 18, file),
            degree,
            record: Vec::new(),
        })
    }

    /// Appends the record of the next node. Ids beyond the degree are left out.
    pub(crate) fn write(&mut self, rows: impl Iterator<Item = u32>) -> Result<()> {
        self.record.clear();
        self.record.push(0);
        self.record.extend(rows.take(self.degree));
        self.record[0] = self.record.len() as u32 - 1;
        self.record.resize(self.degree + 1, 0);
        self.file
            .write_all(bytemuck::cast_slice(&self.record))
            .map_err(|e| Error::io("writing", &self.path, &e))
    }

    pub(crate) fn finish(self) -> Result<()> {
        let written = self.file.into_inner().map_err(|e| e.into_error()).and_then(|f| f.sync_all());
        written.map_err(|e| Error::io("writing", &self.path, &e))
    }
}

/// Reads ranges of records.
pub(crate) struct GraphReader {
    path: PathBuf,
    file: File,
    degree: usize,
}

impl GraphReader {
    pub(crate) fn open(path: &Path, degree: usize) -> Result<GraphReader> {
        let file = File::open(path).map_err(|e| Error::io("opening", path, &e))?;
        Ok(GraphReader { path: path.into(), file, degree })
    }

    /// The records of positions `start..end`.
    pub(crate) fn read(&self, start: u32, end: u32) -> Result<Records> {
        let words = self.degree + 1;
        let mut data = vec![0u32; (end - start) as usize * words];
        self.file
            .read_exact_at(bytemuck::cast_slice_mut(&mut data), u64::from(start) * words as u64 * 4)
            .map_err(|e| Error::io("reading", &self.path, &e))?;
        Ok(Records { words, data })
    }
}

/// Records in memory, numbered from 0.
pub(crate) struct Records {
    words: usize,
    data: Vec<u32>,
}

impl Records {
    pub(crate) fn list(&self, at: usize) -> &[u32] {
        let record = &self.data[at * self.words..(at + 1) * self.words];
        &record[1..1 + (record[0] as usize).min(self.words - 1)]
    }
}
