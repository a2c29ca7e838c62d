//! Rows in the order of a field, for scrolling.

use std::ops::ControlFlow;

use roaring::RoaringBitmap;
use stratann_storage::{Error, Result};

use super::PayloadIndex;
use super::bitmaps::Reader;
use super::numbers::{Numbers, date_key};
use crate::date::micros_of;
use crate::number::{Number, NumberKey};
use crate::path::Path;
use crate::schema::{IndexKind, Schema};
use crate::value::Payload;

/// A field by which points are sorted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortField {
    path: Path,
    /// By dates, otherwise by numbers.
    is_date: bool,
}

impl SortField {
    /// Sorts by the numbers (`integer`, `float`) or the dates (`datetime`) of a field.
    ///
    /// # Errors
    /// `BadInput` for another index.
    pub fn new(path: Path, kind: IndexKind) -> Result<SortField> {
        match kind {
            IndexKind::Integer | IndexKind::Float => Ok(SortField { path, is_date: false }),
            IndexKind::Datetime => Ok(SortField { path, is_date: true }),
            other => Err(Error::bad_input(format!(
                "the field {path} cannot be sorted by its {} index; create an integer, float or datetime index",
                other.name()
            ))),
        }
    }

    /// How a schema has a field sorted: by its numbers, or else by its dates; `None` without an index that keeps an
    /// order.
    pub fn of_schema(schema: &Schema, path: &Path) -> Option<SortField> {
        let (_, kinds) = schema.fields().find(|(own, _)| *own == path)?;
        let sorted = [IndexKind::Float, IndexKind::Integer, IndexKind::Datetime];
        let kind = sorted.into_iter().find(|kind| kinds.contains(kind))?;
        SortField::new(path.clone(), kind).ok()
    }

    /// The field.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is sorted by dates, otherwise by numbers.
    pub fn is_date(&self) -> bool {
        self.is_date
    }

    /// The key at which a payload comes where each comes once: its least, or its greatest in a descending order.
    pub fn first_key(&self, payload: &Payload, is_descending: bool) -> Option<NumberKey> {
        let keys = self.keys(payload);
        if is_descending { keys.last() } else { keys.first() }.copied()
    }

    /// The keys by which a payload is sorted, ascending: one for each number or date of the field. Points without one
    /// are not in the order.
    pub fn keys(&self, payload: &Payload) -> Vec<NumberKey> {
        let mut keys = Vec::new();
        self.path.any(payload.as_map(), &mut |value| {
            if self.is_date {
                keys.extend(value.as_str().and_then(micros_of).map(date_key));
            } else {
                keys.extend(value.as_number().and_then(Number::of_json).map(|number| number.key()));
            }
            false
        });
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

impl PayloadIndex {
    /// Calls `each` with keys and rows in the order of a field, until it breaks. Equal keys are in the order of rows,
    /// and with `is_descending` all is reversed. A row with several values comes several times. With `from` the order
    /// begins at this key.
    ///
    /// # Errors
    /// `BadInput` for a field without such an index; `Corrupt` for a damaged part; `Io`; what `each` returns.
    pub fn in_order(
        &self,
        field: &SortField,
        is_descending: bool,
        from: Option<NumberKey>,
        each: impl FnMut(NumberKey, u32) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let Some(numbers) = self.sorted(field) else {
            let kind = if field.is_date { "a datetime" } else { "an integer or float" };
            return Err(Error::bad_input(format!(
                "the field {} cannot be sorted without {kind} index; create one",
                field.path
            )));
        };
        let reader = Reader { file: &self.file, rows: self.rows };
        numbers.in_order(&reader, is_descending, from, each, &format!("field {}", field.path))
    }
    /// Whether it can sort by a field.
    pub fn sorts_by(&self, field: &SortField) -> bool {
        self.sorted(field).is_some()
    }

    /// Rows that have several values in a field, of any type: in its order they may come several times.
    ///
    /// # Errors
    /// `Corrupt` for a damaged part; `Io`.
    pub fn several(&self, field: &SortField) -> Result<RoaringBitmap> {
        let Some(own) = self.fields.get(&field.path) else { return Ok(RoaringBitmap::new()) };
        let reader = Reader { file: &self.file, rows: self.rows };
        reader.read(own.facts.several, &format!("field {}", field.path))
    }

    fn sorted(&self, field: &SortField) -> Option<&Numbers> {
        let own = self.fields.get(&field.path)?;
        match field.is_date {
            true => own.dates.as_ref(),
            false => own.floats.as_ref().or(own.integers.as_ref()),
        }
    }
}
