//! Rows of Arrow columns: ids, vectors and payloads.

mod ids;
mod values;
mod vectors;

use std::path::Path;

use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use serde_json::{Map, Value};
use stratann_kernel::DType;
use stratann_payload::Payload;
use stratann_storage::{Error, Result};

use crate::file::{self, Columns, Named, PAYLOAD, Roles, Rows, Wanted};

/// Key of the metadata of a column with the name of its extension type.
pub(crate) const EXTENSION: &str = "ARROW:extension:name";
/// Extension type of texts that are JSON.
pub(crate) const JSON: &str = "arrow.json";
/// Extension type of UUIDs.
pub(crate) const UUID: &str = "arrow.uuid";

/// The extension type of a column.
pub(crate) fn extension(field: &Field) -> Option<&str> {
    field.metadata().get(EXTENSION).map(String::as_str)
}

/// A row of a column, for errors.
#[derive(Clone, Copy)]
struct Cell<'a> {
    path: &'a Path,
    column: &'a str,
    row: u64,
}

impl Cell<'_> {
    /// The error of a value.
    fn wrong(&self, why: &str) -> Error {
        let Cell { path, column, row } = self;
        Error::bad_input(format!("row {row} of {}, column {column:?}: {why}", path.display()))
    }
}

/// The columns of a file that are read.
pub(crate) struct Table {
    schema: Schema,
    roles: Roles,
    /// Names of vectors that have no column.
    pub(crate) names_without: Vec<String>,
    /// Columns of the file that are read, in their order; batches of Parquet have these alone.
    read: Vec<usize>,
}

impl Table {
    /// Chooses columns, with those of vectors of these names, and refuses those that no payload can represent.
    pub(crate) fn of<N: AsRef<str>>(
        path: &Path,
        schema: &Schema,
        (columns, of_vectors): (&Columns, &[N]),
    ) -> Result<Table> {
        let named =
            |field: &std::sync::Arc<Field>| (field.name().clone(), vectors::is_of_numbers(field.data_type()));
        let names: Vec<(String, bool)> = schema.fields().iter().map(named).collect();
        let all: Vec<Named<'_>> =
            names.iter().map(|(name, is_vectors)| Named { name, is_vectors: *is_vectors }).collect();
        let roles = Roles::of(path, &all, (columns, of_vectors))?;
        if roles.vectors.iter().all(Option::is_none) {
            return Err(file::no_vectors(path, &all, of_vectors));
        }
        if let Some(at) = roles.ids {
            ids::check(path, schema.field(at))?;
        }
        for &at in &roles.payload {
            let field = schema.field(at);
            values::check(field).map_err(|why| {
                Error::bad_input(format!(
                    "{}: the column {:?} {why}; convert it, or leave it out by naming the other columns with \
                     --payload, or with --payload none",
                    path.display(),
                    field.name()
                ))
            })?;
        }
        let of_rows = roles.ids.into_iter().chain(roles.vectors.iter().flatten().copied());
        let mut read: Vec<usize> = of_rows.chain(roles.payload.iter().copied()).collect();
        read.sort_unstable();
        read.dedup();
        let without = of_vectors.iter().zip(&roles.vectors).filter(|(_, at)| at.is_none());
        let names_without = without.map(|(name, _)| name.as_ref().to_string()).collect();
        Ok(Table { schema: schema.clone(), roles, names_without, read })
    }

    /// Columns that are read.
    pub(crate) fn read_columns(&self) -> Vec<usize> {
        self.read.clone()
    }

    /// A column of a batch, which has all columns or those that are read.
    fn column<'a>(
        &'a self,
        path: &Path,
        batch: &'a RecordBatch,
        at: usize,
    ) -> Result<(&'a Field, &'a ArrayRef)> {
        let field = self.schema.field(at);
        let place = match batch.num_columns() == self.schema.fields().len() {
            true => Some(at),
            false => self.read.iter().position(|read| *read == at),
        };
        let column = place.and_then(|place| batch.columns().get(place));
        let column = column.filter(|column| column.data_type() == field.data_type());
        column.map(|column| (field, column)).ok_or_else(|| {
            let (path, name) = (path.display(), field.name());
            Error::bad_input(format!("{path}: a batch lacks the column {name:?}; write the file again"))
        })
    }

    /// Components of the first vector of each name in a batch, and the type of a collection that holds them; `None` for
    /// a name of which there is none.
    pub(crate) fn shapes(&self, path: &Path, batch: &RecordBatch) -> Result<Vec<Option<(usize, DType)>>> {
        let shape = |at: &Option<usize>| {
            let Some(at) = *at else { return Ok(None) };
            let (field, column) = self.column(path, batch, at)?;
            vectors::shape(Cell { path, column: field.name(), row: 0 }, column)
        };
        self.roles.vectors.iter().map(shape).collect()
    }

    /// Appends the rows of a batch.
    pub(crate) fn append(
        &self,
        path: &Path,
        batch: &RecordBatch,
        wanted: &[Wanted],
        rows: &mut Rows,
    ) -> Result<()> {
        let (first, count) = (rows.first + rows.count as u64, batch.num_rows());
        if let Some(at) = self.roles.ids {
            let (field, column) = self.column(path, batch, at)?;
            let cell = |row: usize| Cell { path, column: field.name(), row: first + row as u64 };
            let ids = rows.ids.get_or_insert_default();
            for row in 0..count {
                ids.push(ids::id_of(cell(row), field, column, row)?);
            }
        }
        let may_lack = file::has_names(wanted);
        for ((at, wanted), own) in self.roles.vectors.iter().zip(wanted).zip(&mut rows.vectors) {
            let Some(at) = *at else {
                own.has.resize(own.has.len() + count, false);
                continue;
            };
            let (field, column) = self.column(path, batch, at)?;
            let cell = |row: usize| Cell { path, column: field.name(), row: first + row as u64 };
            vectors::append(cell, column, (wanted, may_lack), own)?;
        }
        rows.payloads.extend(self.payloads(path, batch, first)?);
        rows.count += count;
        Ok(())
    }

    fn payloads(&self, path: &Path, batch: &RecordBatch, first: u64) -> Result<Vec<Option<Vec<u8>>>> {
        if self.roles.payload.is_empty() {
            return Ok(Vec::new());
        }
        let columns: Vec<(&Field, &ArrayRef)> =
            self.roles.payload.iter().map(|at| self.column(path, batch, *at)).collect::<Result<_>>()?;
        (0..batch.num_rows()).map(|row| payload_of(path, &columns, (row, first + row as u64))).collect()
    }
}

/// The payload of a row: a field for each column, and the fields of the column that is the payload itself.
fn payload_of(
    path: &Path,
    columns: &[(&Field, &ArrayRef)],
    (row, number): (usize, u64),
) -> Result<Option<Vec<u8>>> {
    let mut map = Map::new();
    for (field, column) in columns {
        let cell = Cell { path, column: field.name(), row: number };
        let value = values::value_of(field, column, row).map_err(|why| cell.wrong(&why))?;
        if !is_payload_itself(field) {
            insert(&mut map, field.name(), value).map_err(|why| cell.wrong(&why))?;
            continue;
        }
        match value {
            Value::Object(own) => {
                for (name, value) in own {
                    insert(&mut map, &name, value).map_err(|why| cell.wrong(&why))?;
                }
            }
            Value::Null => {}
            other => {
                let why = format!("the payload is {other}; give a JSON object");
                return Err(cell.wrong(&why));
            }
        }
    }
    if map.is_empty() {
        return Ok(None);
    }
    let payload = Payload::from_value(Value::Object(map))
        .map_err(|e| Error::bad_input(format!("row {number} of {}: {}", path.display(), e.message)))?;
    Ok(Some(payload.to_bytes()))
}

/// Whether the objects of a column are payloads, not a field of them.
fn is_payload_itself(field: &Field) -> bool {
    let is_object = match field.data_type() {
        DataType::Struct(_) | DataType::Map(..) => true,
        _ => extension(field) == Some(JSON),
    };
    field.name() == PAYLOAD && is_object
}

/// Adds a field to a payload.
///
/// # Errors
/// Why, when it is there already.
fn insert(map: &mut Map<String, Value>, name: &str, value: Value) -> Result<(), String> {
    match map.insert(name.to_string(), value) {
        None => Ok(()),
        Some(_) => Err(format!(
            "the field {name:?} is in two columns, by its name and in {PAYLOAD:?}; name the columns with --payload"
        )),
    }
}
