//! Ids and payloads of a published index.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use roaring::RoaringBitmap;
use stratann_core::sieve::Sieve;
use stratann_engine::build::PointPaths;
use stratann_engine::manifest::{Manifest, PointFacts};
use stratann_payload::index::{Evaluated, RowFacts, Unindexed, sieve_of};
use stratann_payload::{IdValue, Predicate, Schema};
use stratann_storage::{Error, ErrorKind, Result};

use crate::collections::Hit;
use crate::rows::ExternalId;
use crate::segments::{IdTable, Payloads, missing};

/// Asks for bytes of payloads before they are kept; refuses what is too much.
pub type Spend<'a> = &'a mut dyn FnMut(usize) -> Result<()>;

/// The open ids and payloads of an index. Pages of ids and blocks of payloads are read on demand.
pub struct Points {
    folder: PathBuf,
    rows: u32,
    facts: PointFacts,
    ids: IdTable,
    payloads: Option<Payloads>,
    /// The rows of the last filter: many searches have the same.
    last: Mutex<Option<(Arc<Predicate>, Arc<Matching>)>>,
}

/// The rows of an index that match a predicate.
#[derive(Clone, Debug)]
pub struct Matching {
    /// The rows, by their numbers in the index, deleted ones included.
    pub rows: Sieve,
    /// Conditions for which payloads were read, for want of an index.
    pub unindexed: BTreeSet<Unindexed>,
    /// Payloads that were read.
    pub payloads: u64,
}

impl Points {
    /// Opens those of a version of an index; `None` where it has none.
    ///
    /// # Errors
    /// `Corrupt` for files that are missing, damaged or of another index; `Io`.
    pub fn open(folder: &Path, manifest: &Manifest) -> Result<Option<Points>> {
        let paths = PointPaths::of(folder, manifest).map_err(missing).map_err(of_index)?;
        let Some((paths, facts)) = paths.zip(manifest.points.clone()) else {
            return Ok(None);
        };
        let (ids, payloads) =
            opened(&paths, facts.payloads > 0, manifest.rows).map_err(missing).map_err(of_index)?;
        Ok(Some(Points {
            folder: folder.into(),
            rows: manifest.rows as u32,
            facts,
            ids,
            payloads,
            last: Mutex::default(),
        }))
    }

    /// Memory of the tables and of the rows of a filter, bytes.
    pub fn memory_bytes(&self) -> u64 {
        memory(&self.ids, self.payloads.as_ref()) + u64::from(self.rows) / 8
    }

    /// Whether all ids are numbers, by which the index itself knows its rows.
    pub fn has_numbers(&self) -> bool {
        self.facts.has_numbers()
    }

    /// Rows of the index, deleted ones included.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Indexes of fields.
    pub fn schema(&self) -> Schema {
        self.payloads.as_ref().map(Payloads::schema).unwrap_or_default()
    }

    /// Refuses a filter with conditions that no index answers.
    ///
    /// # Errors
    /// `BadInput` that names these conditions.
    pub fn check_indexed(&self, predicate: &Predicate) -> Result<()> {
        let missing: Vec<String> =
            predicate.unindexed(&self.schema()).iter().map(ToString::to_string).collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(Error::bad_input(format!(
            "no index answers conditions of the filter: {}; build {} again with such indexes (`stratann build … \
             --payload --set FIELD=KIND`), or leave indexed_only out",
            missing.join(", "),
            self.folder.display()
        )))
    }

    /// The rows that match.
    ///
    /// # Errors
    /// `Corrupt` that names the file for a damaged one; `Io`.
    pub fn matching(&self, predicate: &Arc<Predicate>) -> Result<Arc<Matching>> {
        let last = || self.last.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((_, known)) = last().as_ref().filter(|(own, _)| own == predicate) {
            return Ok(known.clone());
        }
        // Other searches do not wait while payloads are read.
        let found = Arc::new(self.evaluated(predicate)?);
        *last() = Some((predicate.clone(), found.clone()));
        Ok(found)
    }

    fn evaluated(&self, predicate: &Predicate) -> Result<Matching> {
        let found = match &self.payloads {
            Some(payloads) => payloads.matching(predicate, self),
            None => Evaluated::without_payloads(self.rows, predicate, self).map(|found| (found, 0)),
        };
        let (found, payloads) = found.map_err(of_index)?;
        let rows = sieve_of(found.rows, &found.sure)
            .ok_or_else(|| self.damaged("an index of payloads has a row beyond those of the index"))?;
        Ok(Matching { rows, unindexed: found.unindexed, payloads })
    }

    /// Results of a query as points, nearest first: ids by which the index knows rows, and their distances.
    ///
    /// # Errors
    /// As [`Points::matching`].
    pub fn hits(&self, results: impl Iterator<Item = (u64, f32)>, with_payload: bool) -> Result<Vec<Hit>> {
        let mut spend = |_: usize| Ok(());
        self.hits_within(results, if with_payload { Some(&mut spend) } else { None })
    }

    /// As [`Points::hits`], with payloads where there is a `spend`, which is asked for the bytes of each.
    ///
    /// # Errors
    /// As [`Points::matching`], and what `spend` returns.
    pub fn hits_within(
        &self,
        results: impl Iterator<Item = (u64, f32)>,
        spend: Option<Spend<'_>>,
    ) -> Result<Vec<Hit>> {
        let (mut hits, mut rows) = (Vec::new(), Vec::new());
        for (known, distance) in results {
            let (id, row) = self.point(known, spend.is_some()).map_err(of_index)?;
            rows.push(row);
            hits.push(Hit { id, distance, payload: None, vector: None });
        }
        if let (Some(payloads), Some(spend)) = (&self.payloads, spend) {
            let mut read = payloads.of_rows(&rows.iter().copied().collect(), spend).map_err(of_index)?;
            hits.iter_mut().zip(&rows).for_each(|(hit, row)| hit.payload = read.remove(row));
        }
        Ok(hits)
    }

    /// The point that the index knows by a number: its id, and its row where that is wanted.
    fn point(&self, known: u64, with_row: bool) -> Result<(ExternalId, u32)> {
        if self.facts.has_numbers() {
            let id = ExternalId::Number(known);
            let row = match with_row {
                true => self.ids.find(&id)?.map(|place| place.row).ok_or_else(|| {
                    self.damaged(&format!("its table of ids lacks the id {known} of one of its rows"))
                })?,
                false => 0,
            };
            return Ok((id, row));
        }
        let entry = self.ids.entry(known)?;
        let id = ExternalId::decode(&entry.id);
        Ok((id.ok_or_else(|| self.damaged("its table of ids has one that is none"))?, entry.row))
    }

    fn damaged(&self, why: &str) -> Error {
        let folder = self.folder.display();
        Error::corrupt(format!("{folder} is damaged: {why}; restore its files or build the index again"))
    }
}

impl RowFacts for Points {
    fn row_of(&self, id: &IdValue) -> Result<Option<u32>> {
        Ok(self.ids.find(&ExternalId::of_filter(id))?.map(|place| place.row))
    }

    fn rows_with_vector(&self, name: &str) -> Result<RoaringBitmap> {
        // Vectors have no names.
        Ok(if name.is_empty() { (0..self.rows).collect() } else { RoaringBitmap::new() })
    }
}

fn opened(paths: &PointPaths, has_payloads: bool, rows: u64) -> Result<(IdTable, Option<Payloads>)> {
    let ids = IdTable::open(&paths.ids)?;
    if ids.rows() != rows {
        return Err(Error::corrupt(format!(
            "{} is damaged: it has {} ids, and the index {rows} rows; restore the file",
            paths.ids.display(),
            ids.rows()
        )));
    }
    let files = (&*paths.payloads, &*paths.payload_index);
    let payloads = has_payloads.then(|| Payloads::open_files(files, rows)).transpose()?;
    Ok((ids, payloads))
}

fn memory(ids: &IdTable, payloads: Option<&Payloads>) -> u64 {
    ids.bytes() + payloads.map_or(0, Payloads::memory_bytes)
}

/// Memory of files of points while they are open, bytes.
///
/// # Errors
/// As [`Points::open`].
pub(super) fn memory_of(paths: &PointPaths, has_payloads: bool, rows: u64) -> Result<u64> {
    let (ids, payloads) = opened(paths, has_payloads, rows)?;
    Ok(memory(&ids, payloads.as_ref()))
}

/// An error of files that segments have, too, with the remedy of an index.
fn of_index(e: Error) -> Error {
    if e.kind != ErrorKind::Corrupt {
        return e;
    }
    let what = e.message.split("; restore").next().unwrap_or_default();
    Error { message: format!("{what}; restore the file or build the index again"), ..e }
}
