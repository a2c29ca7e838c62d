//! Graph files between two stages of a build, one per cell: one record of `degree + 1` u32 per node (length, then rows
//! of the neighbours, closest first), in the order of the cell's rows.

use std::io::Read;
use std::path::{Path, PathBuf};

use stratann_storage::output::AtomicFile;
use stratann_storage::{Error, Result, input};

/// Nodes of a cell: positions `start..end` of the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Cell {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// Name of a cell's file.
pub(crate) fn name(cell: usize) -> String {
    format!("graph-{cell}.tmp")
}

/// Writes records one after another.
pub(crate) struct GraphWriter {
    file: AtomicFile,
    degree: usize,
    record: Vec<u32>,
}

impl GraphWriter {
    pub(crate) fn create(path: &Path, degree: usize) -> Result<GraphWriter> {
        Ok(GraphWriter { file: AtomicFile::create(path)?, degree, record: Vec::new() })
    }

    /// Appends the record of the next node. Ids beyond the degree are left out.
    pub(crate) fn write(&mut self, rows: impl Iterator<Item = u32>) -> Result<()> {
        self.record.clear();
        self.record.push(0);
        self.record.extend(rows.take(self.degree));
        self.record[0] = self.record.len() as u32 - 1;
        self.record.resize(self.degree + 1, 0);
        self.file.write(bytemuck::cast_slice(&self.record))
    }

    pub(crate) fn finish(self) -> Result<()> {
        self.file.commit()
    }
}

/// Reads the records of cells.
pub(crate) struct GraphReader {
    folder: PathBuf,
    degree: usize,
}

impl GraphReader {
    pub(crate) fn new(folder: &Path, degree: usize) -> GraphReader {
        GraphReader { folder: folder.into(), degree }
    }

    /// Reads the records of the cell with this number, whose length is that of `range`.
    pub(crate) fn read(&self, cell: usize, range: &Cell) -> Result<Records> {
        let path = self.folder.join(name(cell));
        let words = self.degree + 1;
        let mut data = vec![0u32; (range.end - range.start) as usize * words];
        let read = input::open(&path)?.read_exact(bytemuck::cast_slice_mut(&mut data));
        read.map_err(|e| Error::io("reading", &path, &e))?;
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
