//! Points as a Parquet file, which an import reads back bit for bit.
//!
//! | column | type |
//! |---|---|
//! | `id` | `uint64` where all ids are numbers; texts where none is; else texts of JSON (`arrow.json`): `7`, `"7"` |
//! | `vector`; one for each name of vectors | `fixed_size_list` of `float`, `halffloat`, `uint8` or `int8` |
//! | `payload` | texts of JSON (`arrow.json`), null for a point without |
//!
//! A point without a vector of a name has null in its column.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::builder::{NullBufferBuilder, StringBuilder, UInt64Builder};
use arrow_array::types::{Float16Type, Float32Type, Int8Type, UInt8Type};
use arrow_array::{ArrayRef, FixedSizeListArray, PrimitiveArray, RecordBatch};
use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef};
use half::f16;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use stratann_kernel::DType;
use stratann_payload::IdValue;
use stratann_storage::{Error, Result};

use crate::columns::{EXTENSION, JSON};
use crate::file::{PAYLOAD, column_of};

/// Bytes of a row group, about.
const GROUP_BYTES: usize = 16 << 20;

/// Kinds of ids that points have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdKinds {
    /// Numbers alone.
    Numbers,
    /// UUIDs and strings.
    Texts,
    /// Numbers and others.
    Mixed,
}

/// Some points, one after another.
#[derive(Debug, Default)]
pub struct Points<'a> {
    /// Their ids.
    pub ids: Vec<IdValue>,
    /// Their vectors in each column, little-endian; `None` for a point without.
    pub vectors: Vec<Vec<Option<&'a [u8]>>>,
    /// Their payloads as JSON.
    pub payloads: Vec<Option<&'a [u8]>>,
}

/// A column of vectors.
#[derive(Clone, Debug)]
pub struct VectorShape {
    /// Name of the vectors; empty where the one vector of each point has none.
    pub name: String,
    /// Components of a vector.
    pub dim: usize,
    /// Type of a component.
    pub dtype: DType,
}

/// A column of vectors as it is written.
struct Column {
    item: FieldRef,
    dim: i32,
    dtype: DType,
}

/// Writes points into a Parquet file.
pub struct ParquetWriter<W: Write + Send> {
    path: PathBuf,
    writer: ArrowWriter<W>,
    schema: SchemaRef,
    vectors: Vec<Column>,
    ids: IdKinds,
}

impl<W: Write + Send> ParquetWriter<W> {
    /// Begins a file. `path` names it in errors.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(to: W, path: &Path, vectors: &[VectorShape], ids: IdKinds) -> Result<ParquetWriter<W>> {
        let json = || HashMap::from([(EXTENSION.to_string(), JSON.to_string())]);
        let id = match ids {
            IdKinds::Numbers => Field::new("id", DataType::UInt64, false),
            IdKinds::Texts => Field::new("id", DataType::Utf8, false),
            IdKinds::Mixed => Field::new("id", DataType::Utf8, false).with_metadata(json()),
        };
        let (mut fields, mut columns) = (vec![id], Vec::new());
        for VectorShape { name, dim, dtype } in vectors {
            let dim = i32::try_from(*dim);
            let dim = dim.map_err(|e| Error::bad_input(format!("too many dimensions: {e}; use fewer")))?;
            let item = Arc::new(Field::new("element", type_of(*dtype), false));
            let of = DataType::FixedSizeList(item.clone(), dim);
            fields.push(Field::new(column_of(name), of, !name.is_empty()));
            columns.push(Column { item, dim, dtype: *dtype });
        }
        fields.push(Field::new(PAYLOAD, DataType::Utf8, true).with_metadata(json()));
        let schema = Arc::new(Schema::new(fields));
        let level = ZstdLevel::try_new(3).map_err(|e| unwritable(path, &e))?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(level))
            .set_max_row_group_bytes(Some(GROUP_BYTES))
            .build();
        let writer = ArrowWriter::try_new(to, schema.clone(), Some(properties));
        let writer = writer.map_err(|e| unwritable(path, &e))?;
        Ok(ParquetWriter { path: path.into(), writer, schema, vectors: columns, ids })
    }

    /// Appends points.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn write(&mut self, points: &Points<'_>) -> Result<()> {
        let mut payloads = StringBuilder::new();
        for payload in &points.payloads {
            payloads.append_option(payload.map(String::from_utf8_lossy));
        }
        let mut columns = vec![self.ids_of(&points.ids)];
        for (column, own) in self.vectors.iter().zip(&points.vectors) {
            columns.push(column.of(own).map_err(|e| unwritable(&self.path, &e))?);
        }
        columns.push(Arc::new(payloads.finish()));
        let batch = RecordBatch::try_new(self.schema.clone(), columns).map_err(ParquetError::from);
        batch.and_then(|batch| self.writer.write(&batch)).map_err(|e| unwritable(&self.path, &e))
    }

    fn ids_of(&self, ids: &[IdValue]) -> ArrayRef {
        if self.ids == IdKinds::Numbers {
            let mut numbers = UInt64Builder::with_capacity(ids.len());
            for id in ids {
                numbers.append_option(if let IdValue::Number(number) = id { Some(*number) } else { None });
            }
            return Arc::new(numbers.finish());
        }
        let mut texts = StringBuilder::new();
        for id in ids {
            let json = id.to_json();
            match (self.ids, json.as_str()) {
                (IdKinds::Texts, Some(text)) => texts.append_value(text),
                _ => texts.append_value(json.to_string()),
            }
        }
        Arc::new(texts.finish())
    }

    /// Ends the file; returns what it was written to.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(self) -> Result<W> {
        self.writer.into_inner().map_err(|e| unwritable(&self.path, &e))
    }
}

impl Column {
    /// Vectors of points as a column.
    fn of(&self, vectors: &[Option<&[u8]>]) -> Result<ArrayRef, ParquetError> {
        let row_bytes = self.dim as usize * self.dtype.size();
        let mut bytes = Vec::with_capacity(vectors.len() * row_bytes);
        let mut nulls = NullBufferBuilder::new(vectors.len());
        for (vector, end) in vectors.iter().zip(1..) {
            nulls.append(vector.is_some());
            bytes.extend(vector.unwrap_or_default());
            // A list of fixed size has components where it is null, too.
            bytes.resize(end * row_bytes, 0);
        }
        let components = components_of(self.dtype, &bytes);
        let lists = FixedSizeListArray::try_new(self.item.clone(), self.dim, components, nulls.finish())?;
        Ok(Arc::new(lists))
    }
}

fn unwritable(path: &Path, e: &ParquetError) -> Error {
    Error::io("writing", path, &std::io::Error::other(e.to_string()))
}

fn type_of(dtype: DType) -> DataType {
    match dtype {
        DType::F32 => DataType::Float32,
        DType::F16 => DataType::Float16,
        DType::U8 => DataType::UInt8,
        DType::I8 => DataType::Int8,
    }
}

/// Components of vectors as a column of numbers.
fn components_of(dtype: DType, bytes: &[u8]) -> ArrayRef {
    match dtype {
        DType::F32 => {
            let values = bytes.as_chunks::<4>().0.iter().map(|c| f32::from_le_bytes(*c));
            Arc::new(PrimitiveArray::<Float32Type>::from_iter_values(values))
        }
        DType::F16 => {
            let values = bytes.as_chunks::<2>().0.iter().map(|c| f16::from_le_bytes(*c));
            Arc::new(PrimitiveArray::<Float16Type>::from_iter_values(values))
        }
        DType::U8 => Arc::new(PrimitiveArray::<UInt8Type>::from_iter_values(bytes.iter().copied())),
        DType::I8 => {
            Arc::new(PrimitiveArray::<Int8Type>::from_iter_values(bytes.iter().map(|&byte| byte as i8)))
        }
    }
}
