//! File of queries or of vectors to insert, read part by part as rows of the index's element type.

use std::path::Path;

use half::f16;
use stratann_engine::dataset::{Reader, check_row};
use stratann_engine::manifest::Manifest;
use stratann_engine::{DType, Metric};
use stratann_storage::{Error, Result};

use crate::output::Output;

/// Dimensions, type and metric that an index requires of queries.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub dim: usize,
    pub dtype: DType,
    pub metric: Metric,
}

/// Meaning of the rows of a file, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rows {
    Queries,
    Vectors,
    /// Queries of a collection.
    OfCollection,
    /// Points of a collection.
    Points,
}

impl Rows {
    /// One, and several.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Rows::Queries | Rows::OfCollection => ("query", "queries"),
            Rows::Vectors | Rows::Points => ("vector", "vectors"),
        }
    }

    /// What has the shape that they must have.
    fn owner(self) -> &'static str {
        match self {
            Rows::Queries | Rows::Vectors => "index",
            Rows::OfCollection | Rows::Points => "collection",
        }
    }
}

/// Queries that match an index.
pub struct Queries {
    reader: Reader,
    rows: Rows,
    dtype: DType,
    metric: Metric,
}

impl Queries {
    /// Opens the file and checks it against the index. Converts floats of the other width and notes it.
    pub fn open(path: &Path, manifest: &Manifest, output: Output) -> Result<Queries> {
        Queries::of(path, manifest, Rows::Queries, output)
    }

    /// As [`Queries::open`], for vectors to insert.
    pub fn to_insert(path: &Path, manifest: &Manifest, output: Output) -> Result<Queries> {
        Queries::of(path, manifest, Rows::Vectors, output)
    }

    fn of(path: &Path, manifest: &Manifest, rows: Rows, output: Output) -> Result<Queries> {
        let (Some(dtype), Some(metric)) = (manifest.dtype(), manifest.metric()) else {
            return Err(Error::bad_input("the index is of a newer version; use a newer stratann"));
        };
        Queries::check_shape(path, Wanted { dim: manifest.dim, dtype, metric }, rows, output)
    }

    /// As [`Queries::open`], for known requirements.
    pub fn open_for(path: &Path, wanted: Wanted, output: Output) -> Result<Queries> {
        Queries::check_shape(path, wanted, Rows::Queries, output)
    }

    /// As [`Queries::open`], for a collection.
    pub(crate) fn of_collection(path: &Path, wanted: Wanted, output: Output) -> Result<Queries> {
        Queries::check_shape(path, wanted, Rows::OfCollection, output)
    }

    /// As [`Queries::open`], for points of a collection.
    pub(crate) fn points(path: &Path, wanted: Wanted, output: Output) -> Result<Queries> {
        Queries::check_shape(path, wanted, Rows::Points, output)
    }

    fn check_shape(path: &Path, wanted: Wanted, rows: Rows, output: Output) -> Result<Queries> {
        let reader = Reader::open(path)?;
        let (found, name) = (reader.shape(), path.display());
        let Wanted { dim, dtype, metric } = wanted;
        let (all, owner) = (rows.names().1, rows.owner());
        if found.dim != dim {
            return Err(Error::bad_input(format!(
                "{name} has {} dimensions, the {owner} has {dim}; {} vectors of the same model",
                found.dim,
                if rows.names().0 == "query" { "search with" } else { "insert" }
            )));
        }
        let (have, want) = (found.dtype.name(), dtype.name());
        if found.dtype != dtype && !(found.dtype.is_float() && dtype.is_float()) {
            return Err(Error::bad_input(format!(
                "{name} holds {have}, the {owner} holds {want}; convert the {all} to {want}"
            )));
        }
        if found.dtype != dtype {
            let how = if dtype == DType::F16 { "narrowed" } else { "widened" };
            output.note(&format!(
                "note: the {all} are {have} and are {how} to {want}, the type of the {owner}"
            ));
        }
        Ok(Queries { reader, rows, dtype, metric })
    }

    /// Dimensions, type and metric of the index.
    pub fn wanted(&self) -> Wanted {
        Wanted { dim: self.reader.shape().dim, dtype: self.dtype, metric: self.metric }
    }

    /// Number of queries.
    pub fn count(&self) -> usize {
        self.reader.shape().rows as usize
    }

    /// Bytes of one query in the index's type.
    pub fn row_bytes(&self) -> usize {
        self.reader.shape().dim * self.dtype.size()
    }

    /// Bytes per query of a part that reading takes besides the query itself.
    pub fn conversion_bytes(&self) -> usize {
        if self.reader.shape().dtype == self.dtype { 0 } else { self.reader.shape().row_bytes() }
    }

    /// Replaces `out` with queries `first..first + count`, checked and converted.
    pub fn read(&self, first: usize, count: usize, out: &mut Vec<u8>) -> Result<()> {
        self.reader.read_rows(first as u64, count, out)?;
        self.check(first, out, self.reader.shape().dtype)?;
        match (self.reader.shape().dtype, self.dtype) {
            (DType::F32, DType::F16) => {
                *out = out
                    .chunks_exact(4)
                    .flat_map(|c| f16::from_f32(f32::from_le_bytes([c[0], c[1], c[2], c[3]])).to_le_bytes())
                    .collect();
                self.check_narrowed(first, out)
            }
            (DType::F16, DType::F32) => {
                *out = out
                    .chunks_exact(2)
                    .flat_map(|c| f16::from_le_bytes([c[0], c[1]]).to_f32().to_le_bytes())
                    .collect();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn check(&self, first: usize, rows: &[u8], dtype: DType) -> Result<()> {
        for (i, row) in rows.chunks_exact(self.reader.shape().dim * dtype.size()).enumerate() {
            if let Some(bad) = check_row(dtype, self.metric, row) {
                let message = bad.message(&self.reader, (first + i) as u64);
                return Err(Error::bad_input(format!("{message}; correct the {}", self.rows.names().0)));
            }
        }
        Ok(())
    }

    fn check_narrowed(&self, first: usize, rows: &[u8]) -> Result<()> {
        self.check(first, rows, DType::F16).map_err(|e| {
            Error::bad_input(format!(
                "{} (after narrowing to f16; scale the vectors, or use a {} of f32)",
                e.message,
                self.rows.owner()
            ))
        })
    }
}

impl stratann_capacity::Queries for Queries {
    fn count(&self) -> usize {
        self.count()
    }

    fn row_bytes(&self) -> usize {
        self.row_bytes()
    }

    fn read(&self, first: usize, count: usize, out: &mut Vec<u8>) -> Result<()> {
        self.read(first, count, out)
    }
}
