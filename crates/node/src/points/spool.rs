//! Points that are read from a file, before an index is built of them.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use stratann_engine::build::{PointFiles, PointPaths};
use stratann_engine::dataset::{Reader, bin_suffix};
use stratann_engine::kinds::known::IN_MEMORY_NODES;
use stratann_engine::manifest::PointFacts;
use stratann_kernel::DType;
use stratann_params::IndexKind as KindOfIndex;
use stratann_payload::{IndexKind, Payload, Schema};
use stratann_storage::{Error, Progress, Result};
use xxhash_rust::xxh3::Xxh3;

use super::ids::{Forms, GatheredIds, SortedIds};
use super::open::memory_of;
use super::temporary::{Temporary, Written};
use crate::rows::ExternalId;
use crate::segments::{Entry, IdWriter, Indexing, NewPayloads, write_files};

/// File of payloads, one after another in the order of rows.
const PAYLOADS: &str = ".payload-input.json";
/// File of their ends: a `u64` for each row.
const ENDS: &str = ".payload-input.ends";
/// Names of fields that are counted.
const FIELDS_MAX: usize = 1000;
/// Rows after which an interruption is noticed.
const ROWS_AT_ONCE: usize = 4096;

/// Points that are read, in files beside the index that is built of them. Ids are in memory until all are read.
pub struct Spool {
    files: Temporary,
    origin: String,
    dim: usize,
    row_bytes: usize,
    schema: Schema,
    ram_budget: Option<u64>,
    vectors: Written,
    payloads: Written,
    ends: Written,
    end: u64,
    ids: Option<GatheredIds>,
    rows: u64,
    facts: PointFacts,
    content: Xxh3,
}

/// Points of which an index can be built. The files are removed with this value.
pub struct SpooledPoints {
    /// The vectors.
    pub reader: Reader,
    /// Ids for the engine, a `u64` for each row; `None` where they are the numbers of the rows.
    pub ids: Option<PathBuf>,
    sorted: SortedIds,
    payloads: SpooledPayloads,
    schema: Schema,
    ram_budget: Option<u64>,
    facts: PointFacts,
    content: u64,
    _files: Temporary,
}

/// Payloads by row, in files.
struct SpooledPayloads {
    path: PathBuf,
    json: File,
    ends: File,
    count: u64,
}

/// Refuses a kind of index that keeps no points.
///
/// # Errors
/// `BadInput`.
pub fn check_kind(kind: KindOfIndex) -> Result<()> {
    match kind {
        IN_MEMORY_NODES => Err(Error::bad_input(format!(
            "a {} is for memory nodes, which keep no payloads; choose another kind, or leave payload out",
            kind.name()
        ))),
        _ => Ok(()),
    }
}

impl Spool {
    /// Begins to read points whose vectors have `dim` components of a type from `origin`, for an index in the folder
    /// `out`, which is made where it is not there. Fields of payloads get the indexes of `schema`.
    ///
    /// # Errors
    /// `Io`.
    pub fn create(
        origin: &Path,
        out: &Path,
        (dim, dtype): (usize, DType),
        schema: Schema,
        ram_budget: Option<u64>,
    ) -> Result<Spool> {
        let mut files = Temporary::in_folder(out)?;
        let mut vectors = files.create(&format!(".base-input.{}", bin_suffix(dtype)))?;
        // The number of rows is written at the end.
        vectors.file.write_all(&[0; 8]).map_err(|e| vectors.failed(&e))?;
        let (payloads, ends) = (files.create(PAYLOADS)?, files.create(ENDS)?);
        let names = |kinds: &BTreeSet<IndexKind>| kinds.iter().map(|kind| kind.name().to_string()).collect();
        let indexes = schema.fields().map(|(field, kinds)| (field.to_string(), names(kinds))).collect();
        Ok(Spool {
            files,
            origin: origin.display().to_string(),
            dim,
            row_bytes: dim * dtype.size(),
            schema,
            ram_budget,
            vectors,
            payloads,
            ends,
            end: 0,
            ids: None,
            rows: 0,
            facts: PointFacts { indexes, ..PointFacts::default() },
            content: Xxh3::new(),
        })
    }

    /// Adds rows: an id for each, or none where their numbers are their ids; a vector for each; payloads as JSON, one
    /// for each or none at all.
    ///
    /// # Errors
    /// `BadInput` for a payload that is no JSON object or is too large; a RAM budget without room for the ids; a disk
    /// that is full or fails.
    pub fn push(
        &mut self,
        ids: Option<&[ExternalId]>,
        vectors: &[u8],
        payloads: &[Option<Vec<u8>>],
    ) -> Result<()> {
        let rows = vectors.len() / self.row_bytes.max(1);
        if ids.is_some_and(|ids| ids.len() != rows) {
            let first = self.rows;
            return Err(Error::bad_input(format!("rows from {first} on of {} need an id each", self.origin)));
        }
        self.vectors.file.write_all(vectors).map_err(|e| self.vectors.failed(&e))?;
        for id in ids.unwrap_or_default() {
            let own = self.ids.get_or_insert_default().push(id, self.ram_budget)?;
            self.content.update(own);
        }
        for row in 0..rows {
            if let Some(json) = payloads.get(row).and_then(Option::as_ref) {
                self.put_payload(self.rows + row as u64, json)?;
            }
            self.content.update(&self.end.to_le_bytes());
            self.ends.file.write_all(&self.end.to_le_bytes()).map_err(|e| self.ends.failed(&e))?;
        }
        self.rows += rows as u64;
        Ok(())
    }

    fn put_payload(&mut self, row: u64, json: &[u8]) -> Result<()> {
        let payload = Payload::parse(json)
            .map_err(|e| Error::bad_input(format!("row {row} of {}: {}", self.origin, e.message)))?;
        if payload.is_empty() {
            return Ok(());
        }
        let fields = &mut self.facts.fields;
        for name in payload.as_map().keys() {
            if let Some(rows) = fields.get_mut(name) {
                *rows += 1;
            } else if fields.len() < FIELDS_MAX {
                fields.insert(name.clone(), 1);
            } else {
                self.facts.has_more_fields = true;
            }
        }
        let json = payload.to_bytes();
        self.content.update(&json);
        self.payloads.file.write_all(&json).map_err(|e| self.payloads.failed(&e))?;
        self.end += json.len() as u64;
        self.facts.payloads += 1;
        Ok(())
    }

    /// Ends reading: sorts the ids.
    ///
    /// # Errors
    /// `BadInput` for no rows, more than an index can have, and an id that two rows have; a disk that is full or fails.
    pub fn finish(mut self) -> Result<SpooledPoints> {
        let rows = u32::try_from(self.rows).map_err(|_| {
            Error::bad_input(format!("{} has more rows than an index can have; divide it", self.origin))
        })?;
        let path = self.vectors.path.clone();
        let head = [rows, self.dim as u32].map(u32::to_le_bytes).concat();
        let file = self.vectors.finish()?;
        file.write_all_at(&head, 0).map_err(|e| Error::io("writing", &path, &e))?;
        let forms = self.ids.as_ref().map(|ids| ids.forms);
        let (sorted, ids) = match self.ids.take() {
            Some(ids) => ids.write(&self.origin, &mut self.files)?,
            None => (SortedIds::RowNumbers, None),
        };
        let Forms { numbers, uuids, strings } =
            forms.unwrap_or(Forms { numbers: self.rows, ..Forms::default() });
        let payloads = SpooledPayloads {
            path: self.payloads.path.clone(),
            json: self.payloads.finish()?,
            ends: self.ends.finish()?,
            count: self.facts.payloads,
        };
        let schema = serde_json::to_vec(&self.schema).unwrap_or_default();
        self.content.update(&schema);
        Ok(SpooledPoints {
            reader: Reader::open(&path)?,
            ids,
            sorted,
            payloads,
            schema: self.schema,
            ram_budget: self.ram_budget,
            facts: PointFacts { numbers, uuids, strings, ..self.facts },
            content: self.content.digest(),
            _files: self.files,
        })
    }
}

impl NewPayloads for SpooledPayloads {
    fn has_any(&self) -> bool {
        self.count > 0
    }

    fn get(&self, row: u32) -> Result<Option<Cow<'_, [u8]>>> {
        let failed = |e: std::io::Error| Error::io("reading", &self.path, &e);
        let end = |row: u32| {
            let mut end = [0; 8];
            let read = self.ends.read_exact_at(&mut end, 8 * u64::from(row));
            read.map(|()| u64::from_le_bytes(end))
        };
        let start = row.checked_sub(1).map_or(Ok(0), end).map_err(failed)?;
        let bytes = end(row).map_err(failed)?.saturating_sub(start);
        if bytes == 0 {
            return Ok(None);
        }
        let mut json = vec![0; bytes as usize];
        self.json.read_exact_at(&mut json, start).map_err(failed)?;
        Ok(Some(Cow::Owned(json)))
    }
}

impl PointFiles for SpooledPoints {
    fn content(&self) -> u64 {
        self.content
    }

    fn write(&self, rows: &[u32], to: &PointPaths, progress: &dyn Progress) -> Result<PointFacts> {
        let count = rows.len() as u64;
        progress.stage("writing ids", count, "ids");
        let mut writer = IdWriter::create(&to.ids, count)?;
        let mut by_row = vec![0u32; rows.len()];
        for (at, (entry, number)) in self.sorted.read(count as u32)?.zip(rows).enumerate() {
            if at % ROWS_AT_ONCE == 0 {
                progress.check_interrupted()?;
                progress.advance(ROWS_AT_ONCE.min(rows.len() - at) as u64);
            }
            let (row, id) = entry?;
            if let Some(own) = by_row.get_mut(row as usize) {
                *own = *number;
            }
            writer.push(&Entry { id, seq: row.into(), row: *number })?;
        }
        writer.finish()?;
        if self.payloads.has_any() {
            let paths = (&*to.payloads, &*to.payload_index);
            // What the build of the index took is free by now, but for some tables of rows.
            let indexing = Indexing { schema: &self.schema, bytes_max: self.ram_budget.map(|all| all / 2) };
            write_files(paths, &self.payloads, (&by_row, indexing), progress)?;
        }
        Ok(PointFacts { memory_bytes: memory_of(to, self.payloads.has_any(), count)?, ..self.facts.clone() })
    }
}
