//! `payload-G.index`: which rows of a segment have which values.
//!
//! The file has parts as `stored.rs` describes them, each with a checksum that is compared when it is read, and ends
//! with a directory in JSON. All numbers are little-endian.
//!
//! | part | content |
//! |---|---|
//! | rows | a set of rows: a bitmap in Roaring's portable format |
//! | terms | an `fst` map from each string or word to the code of its rows (`bitmaps.rs`) |
//! | entries | up to 4,096 numbers of a field with their rows, sorted (`numbers.rs`) |
//! | table | first number of each of these parts, with its place and the code of all of its rows |
//! | directory | JSON: rows of the segment; for each field its path, facts, and the places of its parts |
//!
//! *Facts* of a field are eight sets of rows: where it exists, is not empty, has null, has several values, has strings,
//! numbers, booleans, other values. So a condition on a type that a field never has needs no index of that type.
//!
//! In memory are the directory, terms and tables; rows and entries are read when a filter asks for them.

mod answers;
mod bitmaps;
mod build;
mod decide;
mod evaluate;
mod field;
mod numbers;
mod ordered;
mod runs;
mod terms;
#[cfg(test)]
mod tests;
mod unindexed;

use std::collections::BTreeMap;
use std::path::Path as FilePath;

use serde::{Deserialize, Serialize};
use stratann_storage::Result;

pub use build::IndexBuilder;
pub use evaluate::{Evaluated, RowFacts, Unindexed, sieve_of};
pub use ordered::SortField;

use crate::path::Path;
use crate::schema::{IndexKind, Schema};
use crate::stored::PartFile;
use bitmaps::Code;
use field::Field;

/// The magic, whose last byte is the version.
const MAGIC: &[u8; 8] = b"SANNPIX1";

/// What ends the file.
#[derive(Serialize, Deserialize)]
struct Directory {
    rows: u32,
    fields: Vec<FieldEntry>,
}

/// A field in the directory.
#[derive(Serialize, Deserialize)]
struct FieldEntry {
    path: Path,
    facts: Facts,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    terms: BTreeMap<IndexKind, PartEntry>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    numbers: BTreeMap<IndexKind, PartEntry>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bool: Option<Bools>,
}

/// Codes of the sets of rows that each indexed field has.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Facts {
    exists: Code,
    filled: Code,
    null: Code,
    several: Code,
    strings: Code,
    numbers: Code,
    bools: Code,
    others: Code,
}

/// A part that is in memory while the file is open.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct PartEntry {
    place: u64,
    bytes: u64,
}

/// Codes of the rows with true and with false.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Bools {
    yes: Code,
    no: Code,
}

/// The open index of a segment's payloads.
pub struct PayloadIndex {
    file: PartFile,
    rows: u32,
    fields: BTreeMap<Path, Field>,
    memory_bytes: usize,
}

impl PayloadIndex {
    /// Opens an index.
    ///
    /// # Errors
    /// `Corrupt` that names file and part for one that is cut or changed; `BadInput` for a missing file; `Io`.
    pub fn open(path: &FilePath) -> Result<PayloadIndex> {
        let (file, directory) = PartFile::open(path, MAGIC)?;
        let directory: Directory = serde_json::from_slice(&directory)
            .map_err(|e| file.damaged("its directory", &format!("it cannot be read: {e}")))?;
        let mut fields = BTreeMap::new();
        for entry in directory.fields {
            let path = entry.path.clone();
            fields.insert(path, Field::open(&file, entry)?);
        }
        let of_field = |(path, field): (&Path, &Field)| path.to_string().len() + 64 + field.bytes();
        let memory_bytes = size_of::<PayloadIndex>() + fields.iter().map(of_field).sum::<usize>();
        Ok(PayloadIndex { file, rows: directory.rows, fields, memory_bytes })
    }

    /// Rows of the segment.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Memory while it is open, bytes. Rows and entries are read on demand and not kept.
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// Reads of the file since it was opened.
    pub fn reads(&self) -> u64 {
        self.file.reads()
    }

    /// The schema that it was built for.
    pub fn schema(&self) -> Schema {
        let mut schema = Schema::new();
        let kinds = self.fields.iter().flat_map(|(path, field)| field.kinds().map(move |kind| (path, kind)));
        for (path, kind) in kinds {
            // The builder took a schema, which has no more fields than are possible.
            _ = schema.add(path.clone(), kind);
        }
        schema
    }

    /// Reads every part and compares its checksum.
    ///
    /// # Errors
    /// As [`PayloadIndex::open`].
    pub fn verify(&self) -> Result<()> {
        self.fields
            .iter()
            .try_for_each(|(path, field)| field.verify(&self.file, &path.to_string(), self.rows))
    }
}
