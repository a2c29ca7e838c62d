//! Rows in the order of a field, for scrolling.

use std::ops::ControlFlow;

use stratann_storage::{Error, Result};

use super::PayloadIndex;
use super::bitmaps::Reader;
use super::numbers::date_key;
use crate::date::micros_of;
use crate::number::{Number, NumberKey};
use crate::path::Path;
use crate::schema::IndexKind;
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
        let own = self.fields.get(&field.path);
        let numbers = own.and_then(|own| match field.is_date {
            true => own.dates.as_ref(),
            false => own.floats.as_ref().or(own.integers.as_ref()),
        });
        let Some(numbers) = numbers else {
            let kind = if field.is_date { "a datetime" } else { "an integer or float" };
            return Err(Error::bad_input(format!(
                "the field {} cannot be sorted without {kind} index; create one",
                field.path
            )));
        };
        let reader = Reader { file: &self.file, rows: self.rows };
        numbers.in_order(&reader, is_descending, from, each, &format!("field {}", field.path))
    }
}
