//! Builds the index of a segment's payloads.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path as FilePath;

use serde_json::Value;
use stratann_storage::{Error, Result};

use super::numbers::{date_key, term_of};
use super::terms::{Form, TermsBuilder};
use super::{Bools, Directory, Facts, FieldEntry, MAGIC, bitmaps};
use crate::date::micros_of;
use crate::filter::is_filled;
use crate::number::{Number, NumberKey};
use crate::path::Path;
use crate::schema::{IndexKind, Schema};
use crate::stored::PartWriter;
use crate::value::Payload;
use crate::words::words;

/// Gathers the values of indexed fields row by row, and writes them as one file.
///
/// Memory: each different string or word of a field once, eight bytes for each value of a row, 16 for a number.
pub struct IndexBuilder {
    rows: u32,
    next: u32,
    fields: Vec<FieldBuilder>,
}

struct FieldBuilder {
    path: Path,
    facts: FactRows,
    strings: Vec<(IndexKind, TermsBuilder)>,
    words: Option<TermsBuilder>,
    integers: Option<(TermsBuilder, Vec<(NumberKey, u32)>)>,
    floats: Option<Vec<(NumberKey, u32)>>,
    dates: Option<Vec<(NumberKey, u32)>>,
    bools: Option<[Vec<u32>; 2]>,
}

/// Rows of each fact, ascending.
#[derive(Default)]
struct FactRows {
    exists: Vec<u32>,
    filled: Vec<u32>,
    null: Vec<u32>,
    several: Vec<u32>,
    strings: Vec<u32>,
    numbers: Vec<u32>,
    bools: Vec<u32>,
    others: Vec<u32>,
}

impl IndexBuilder {
    /// Begins the index of so many rows.
    pub fn new(schema: &Schema, rows: u32) -> IndexBuilder {
        let fields = schema.fields().map(|(path, kinds)| FieldBuilder::new(path, kinds)).collect();
        IndexBuilder { rows, next: 0, fields }
    }

    /// Adds the payload of a row. Rows ascend; those that are left out have no payload.
    ///
    /// # Errors
    /// `BadInput` for a row that does not ascend, or is beyond the segment.
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
        Ok(())
    }

    /// Writes the index and syncs it; returns its length in bytes.
    ///
    /// # Errors
    /// `Io`; `BadInput` for a field whose terms take 4 GiB or more.
    pub fn finish(self, path: &FilePath) -> Result<u64> {
        let mut file = PartWriter::create(path)?;
        let mut fields = Vec::with_capacity(self.fields.len());
        for field in self.fields {
            fields.push(field.finish(&mut file)?);
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
            integers: has(IndexKind::Integer).then(|| (TermsBuilder::new(Form::Plain), Vec::new())),
            floats: has(IndexKind::Float).then(Vec::new),
            dates: has(IndexKind::Datetime).then(Vec::new),
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
            self.facts.several.push(row);
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
                if let Some((terms, entries)) = &mut self.integers {
                    terms.push_term(term_of(key)[..].into(), row);
                    entries.push((key, row));
                }
                self.floats.iter_mut().for_each(|entries| entries.push((key, row)));
            }
            Value::String(text) => {
                add(&mut self.facts.strings, row);
                self.strings.iter_mut().for_each(|(_, terms)| terms.push(text, row));
                if let Some(terms) = &mut self.words {
                    words(text).for_each(|word| terms.push(&word, row));
                }
                if let Some(dates) = &mut self.dates {
                    dates.extend(micros_of(text).map(|micros| (date_key(micros), row)));
                }
            }
            Value::Array(_) | Value::Object(_) => add(&mut self.facts.others, row),
        }
    }

    fn finish(self, file: &mut PartWriter) -> Result<FieldEntry> {
        let mut set = |rows: &[u32]| bitmaps::write(file, rows);
        let f = &self.facts;
        let facts = Facts {
            exists: set(&f.exists)?,
            filled: set(&f.filled)?,
            null: set(&f.null)?,
            several: set(&f.several)?,
            strings: set(&f.strings)?,
            numbers: set(&f.numbers)?,
            bools: set(&f.bools)?,
            others: set(&f.others)?,
        };
        let bool = match &self.bools {
            Some([no, yes]) => Some(Bools { yes: set(yes)?, no: set(no)? }),
            None => None,
        };
        let (mut terms, mut numbers) = (BTreeMap::new(), BTreeMap::new());
        let words = self.words.map(|words| (IndexKind::Text, words));
        for (kind, builder) in self.strings.into_iter().chain(words) {
            terms.insert(kind, builder.finish(file)?);
        }
        if let Some((values, entries)) = self.integers {
            terms.insert(IndexKind::Integer, values.finish(file)?);
            numbers.insert(IndexKind::Integer, super::numbers::write(file, entries)?);
        }
        for (kind, entries) in [(IndexKind::Float, self.floats), (IndexKind::Datetime, self.dates)] {
            if let Some(entries) = entries {
                numbers.insert(kind, super::numbers::write(file, entries)?);
            }
        }
        Ok(FieldEntry { path: self.path, facts, terms, numbers, bool })
    }
}

/// Adds a row that may be the last one already.
fn add(rows: &mut Vec<u32>, row: u32) {
    if rows.last() != Some(&row) {
        rows.push(row);
    }
}
