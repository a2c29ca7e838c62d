//! Ids of rows: whole numbers, UUIDs and texts.

use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, Field};
use serde_json::Value;
use stratann_payload::IdValue;
use stratann_storage::{Error, Result};

use super::values::{key_of, text_of, whole_of};
use super::{Cell, JSON, extension};

/// Bytes of a UUID.
const UUID_BYTES: i32 = 16;

/// Refuses a column that has no ids.
pub(super) fn check(path: &Path, field: &Field) -> Result<()> {
    let is_id = |of: &DataType| {
        of.is_integer()
            || matches!(of, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
            || *of == DataType::FixedSizeBinary(UUID_BYTES)
    };
    let of = match field.data_type() {
        DataType::Dictionary(_, values) => values,
        other => other,
    };
    match is_id(of) {
        true => Ok(()),
        false => Err(Error::bad_input(format!(
            "{}: the column {:?} of type {of} has no ids; ids are whole numbers, UUIDs or texts: name another column \
             with --ids",
            path.display(),
            field.name()
        ))),
    }
}

/// The id of a row.
pub(super) fn id_of(cell: Cell<'_>, field: &Field, column: &ArrayRef, row: usize) -> Result<IdValue> {
    if let DataType::Dictionary(..) = column.data_type() {
        let own = column.as_any_dictionary();
        let key = key_of(own.keys(), row).ok_or_else(|| missing(cell))?;
        return id_of(cell, field, own.values(), key);
    }
    if column.is_null(row) {
        return Err(missing(cell));
    }
    if let DataType::FixedSizeBinary(_) = column.data_type() {
        let bytes = column.as_fixed_size_binary().value(row);
        let uuid = bytes.try_into().map(IdValue::Uuid);
        return uuid.map_err(|_| cell.wrong("a UUID has 16 bytes; write the column again"));
    }
    if let Some(text) = text_of(column, row) {
        if extension(field) == Some(JSON) {
            let json: Value = serde_json::from_str(text)
                .map_err(|e| cell.wrong(&format!("an id is not JSON: {e}; write a number or a string")))?;
            return IdValue::of_json(&json, "the id").map_err(|e| cell.wrong(&e.message));
        }
        return IdValue::of_text(text)
            .ok_or_else(|| cell.wrong(&format!("the id has {} bytes; ids have 1 to 255", text.len())));
    }
    let number = whole_of(column, row).and_then(|number| u64::try_from(number).ok());
    number
        .map(IdValue::Number)
        .ok_or_else(|| cell.wrong("the id is negative; ids are numbers from 0 to 2^64 - 1, UUIDs or texts"))
}

fn missing(cell: Cell<'_>) -> Error {
    cell.wrong("the id is null; give every row one")
}
