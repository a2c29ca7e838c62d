//! Builds the index of a segment's payloads.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path as FilePath, PathBuf};

use roaring::RoaringBitmap;
use serde_json::Value;
use stratann_storage::{Error, Result};

use super::numbers::{NumbersBuilder, date_key, term_of};
use super::runs::RunFile;
use super::terms::{Form, TermsBuilder};
use super::{Bools, Directory, Facts, FieldEntry, MAGIC, bitmaps};
use crate::date::micros_of;
use crate::filter::is_filled;
use crate::number::Number;
use crate::path::Path;
use crate::schema::{IndexKind, Schema};
use crate::stored::PartWriter;
use crate::value::Payload;
use crate::words::words;

/// Gathers the values of indexed fields row by row, and writes them as one file.
///
/// Memory: each different string or word of a field once, eight bytes for each value of a row, 24 for a number, unless
/// there is a bound; and sets of rows, and the sorted terms of a field while they are written.
pub struct IndexBuilder {
    path: PathBuf,
    rows: u32,
    next: u32,
    fields: Vec<FieldBuilder>,
    /// Memory from which on values go to a file.
    bytes_max: usize,
    runs: RunFile,
    spilled: u64,
}

struct FieldBuilder {
    path: Path,
    facts: FactRows,
    strings: Vec<(IndexKind, TermsBuilder)>,
    words: Option<TermsBuilder>,
    integers: Option<(TermsBuilder, NumbersBuilder)>,
    floats: Option<NumbersBuilder>,
    dates: Option<NumbersBuilder>,
    bools: Option<[RoaringBitmap; 2]>,
}

/// Rows of each fact.
#[derive(Default)]
struct FactRows {
    exists: RoaringBitmap,
    filled: RoaringBitmap,
    null: RoaringBitmap,
    several: RoaringBitmap,
    strings: RoaringBitmap,
    numbers: RoaringBitmap,
    bools: RoaringBitmap,
    others: RoaringBitmap,
}

impl IndexBuilder {
    /// Begins the index of so many rows, which becomes a file of this path.
    pub fn new(path: &FilePath, schema: &Schema, rows: u32) -> IndexBuilder {
        let fields = schema.fields().map(|(path, kinds)| FieldBuilder::new(path, kinds)).collect();
        let runs = RunFile::new(path.parent().unwrap_or(FilePath::new("")));
        IndexBuilder { path: path.into(), rows, next: 0, fields, bytes_max: usize::MAX, runs, spilled: 0 }
    }

    /// The same with a bound of its memory, bytes: what is gathered beyond it is sorted and goes to a file beside the
    /// index, and is merged in the end. The index is the same.
    pub fn within(self, bytes_max: Option<u64>) -> IndexBuilder {
        let bytes_max = bytes_max.map_or(usize::MAX, |all| usize::try_from(all).unwrap_or(usize::MAX));
        IndexBuilder { bytes_max, ..self }
    }

    /// How often values went to a file.
    pub fn spilled(&self) -> u64 {
        self.spilled
    }

    /// Adds the payload of a row. Rows ascend; those that are left out have no payload.
    ///
    /// # Errors
    /// `BadInput` for a row that does not ascend, or is beyond the segment; `Io`.
    pub fn push(&mut self, row: u32, payload: &Payload) -> Result<()> {
        if row < self.next || row >= self.rows {
            return Err(Error::bad_input(format!(
                "row {row} of a payload index comes after row {}, of {} rows; give rows in their order",
                i64::from(self.next) - 1,
                self.rows
            )));
        }
        self.next = row + 1;
        self.fields.iter_mut().for_each(|field| field.push(row, payload));
        if self.fields.iter().map(FieldBuilder::memory_bytes).sum::<usize>() > self.bytes_max {
            self.spilled += 1;
            self.fields.iter_mut().try_for_each(|field| field.spill(&mut self.runs))?;
        }
        Ok(())
    }

    /// Writes the index and syncs it; returns its length in bytes.
    ///
    /// # Errors
    /// `Io`; `BadInput` for a field whose terms take 4 GiB or more.
    pub fn finish(mut self) -> Result<u64> {
        let path = &self.path;
        let mut file = PartWriter::create(path)?;
        let mut fields = Vec::with_capacity(self.fields.len());
        for field in self.fields {
            fields.push(field.finish(&mut file, &mut self.runs)?);
        }
        let directory = serde_json::to_vec(&Directory { rows: self.rows, fields }).map_err(|e| {
            Error::bad_input(format!("{}: its directory cannot be written: {e}", path.display()))
        })?;
        file.finish(&directory, MAGIC)
    }
}

impl FieldBuilder {
    fn new(path: &Path, kinds: &BTreeSet<IndexKind>) -> FieldBuilder {
        let has = |kind| kinds.contains(&kind);
        let strings = [(IndexKind::Keyword, Form::Plain), (IndexKind::Uuid, Form::Uuid)];
        let strings = strings.into_iter().filter(|(kind, _)| has(*kind));
        FieldBuilder {
            path: path.clone(),
            facts: FactRows::default(),
            strings: strings.map(|(kind, form)| (kind, TermsBuilder::new(form))).collect(),
            words: has(IndexKind::Text).then(|| TermsBuilder::new(Form::Plain)),
            integers: has(IndexKind::Integer)
                .then(|| (TermsBuilder::new(Form::Plain), NumbersBuilder::default())),
            floats: has(IndexKind::Float).then(NumbersBuilder::default),
            dates: has(IndexKind::Datetime).then(NumbersBuilder::default),
            bools: has(IndexKind::Bool).then(Default::default),
        }
    }

    fn push(&mut self, row: u32, payload: &Payload) {
        let path = self.path.clone();
        let mut count = 0;
        path.reaches(payload.as_map(), &mut |reached| {
            add(&mut self.facts.exists, row);
            if is_filled(reached) {
                add(&mut self.facts.filled, row);
            }
            match reached {
                Value::Array(elements) => {
                    count += elements.len();
                    elements.iter().for_each(|value| self.value(row, value));
                }
                value => {
                    count += usize::from(!value.is_null());
                    self.value(row, value);
                }
            }
            false
        });
        if count > 1 {
            add(&mut self.facts.several, row);
        }
    }

    fn value(&mut self, row: u32, value: &Value) {
        match value {
            Value::Null => add(&mut self.facts.null, row),
            Value::Bool(is_true) => {
                add(&mut self.facts.bools, row);
                if let Some(bools) = &mut self.bools {
                    add(&mut bools[usize::from(*is_true)], row);
                }
            }
            Value::Number(number) => {
                add(&mut self.facts.numbers, row);
                // Numbers of JSON are finite.
                let Some(key) = Number::of_json(number).map(|number| number.key()) else { return };
                if let Some((terms, numbers)) = &mut self.integers {
                    terms.push_term(term_of(key)[..].into(), row);
                    numbers.push(key, row);
                }
                self.floats.iter_mut().for_each(|numbers| numbers.push(key, row));
            }
            Value::String(text) => {
                add(&mut self.facts.strings, row);
                self.strings.iter_mut().for_each(|(_, terms)| terms.push(text, row));
                if let Some(terms) = &mut self.words {
                    words(text).for_each(|word| terms.push(&word, row));
                }
                if let (Some(dates), Some(micros)) = (&mut self.dates, micros_of(text)) {
                    dates.push(date_key(micros), row);
                }
            }
            Value::Array(_) | Value::Object(_) => add(&mut self.facts.others, row),
        }
    }

    fn terms(&self) -> impl Iterator<Item = &TermsBuilder> {
        let strings = self.strings.iter().map(|(_, terms)| terms);
        strings.chain(&self.words).chain(self.integers.iter().map(|(terms, _)| terms))
    }

    fn numbers(&self) -> impl Iterator<Item = &NumbersBuilder> {
        self.integers.iter().map(|(_, numbers)| numbers).chain(&self.floats).chain(&self.dates)
    }

    /// Memory of values that can be spilled, bytes.
    fn memory_bytes(&self) -> usize {
        let terms: usize = self.terms().map(TermsBuilder::memory_bytes).sum();
        terms + self.numbers().map(NumbersBuilder::memory_bytes).sum::<usize>()
    }

    fn spill(&mut self, runs: &mut RunFile) -> Result<()> {
        let strings = self.strings.iter_mut().map(|(_, terms)| terms);
        strings.chain(&mut self.words).try_for_each(|terms| terms.spill(runs))?;
        if let Some((terms, numbers)) = &mut self.integers {
            terms.spill(runs)?;
            numbers.spill(runs)?;
        }
        self.floats.iter_mut().chain(&mut self.dates).try_for_each(|numbers| numbers.spill(runs))
    }

    fn finish(self, file: &mut PartWriter, runs: &mut RunFile) -> Result<FieldEntry> {
        let mut set = |rows| bitmaps::write_bitmap(file, rows);
        let f = self.facts;
        let facts = Facts {
            exists: set(f.exists)?,
            filled: set(f.filled)?,
            null: set(f.null)?,
            several: set(f.several)?,
            strings: set(f.strings)?,
            numbers: set(f.numbers)?,
            bools: set(f.bools)?,
            others: set(f.others)?,
        };
        let bool = match self.bools {
            Some([no, yes]) => Some(Bools { yes: set(yes)?, no: set(no)? }),
            None => None,
        };
        let (mut terms, mut numbers) = (BTreeMap::new(), BTreeMap::new());
        let words = self.words.map(|words| (IndexKind::Text, words));
        for (kind, builder) in self.strings.into_iter().chain(words) {
            terms.insert(kind, builder.finish(file, runs)?);
        }
        if let Some((values, of_integers)) = self.integers {
            terms.insert(IndexKind::Integer, values.finish(file, runs)?);
            numbers.insert(IndexKind::Integer, of_integers.finish(file, runs)?);
        }
        for (kind, builder) in [(IndexKind::Float, self.floats), (IndexKind::Datetime, self.dates)] {
            if let Some(builder) = builder {
                numbers.insert(kind, builder.finish(file, runs)?);
            }
        }
        Ok(FieldEntry { path: self.path, facts, terms, numbers, bool })
    }
}

/// Adds a row that may be the last one already.
fn add(rows: &mut RoaringBitmap, row: u32) {
    // It is refused where it is the last one.
    let _ = rows.try_push(row);
}
