//! Points as a Parquet file, which an import reads back bit for bit.
//!
//! | column | type |
//! |---|---|
//! | `id` | `uint64` where all ids are numbers; texts where none is; else texts of JSON (`arrow.json`): `7`, `"7"` |
//! | `vector` | `fixed_size_list` of `float`, `halffloat`, `uint8` or `int8` |
//! | `payload` | texts of JSON (`arrow.json`), null for a point without |

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::builder::{StringBuilder, UInt64Builder};
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
use crate::file::PAYLOAD;

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
    /// Their vectors, little-endian.
    pub vectors: Vec<u8>,
    /// Their payloads as JSON.
    pub payloads: Vec<Option<&'a [u8]>>,
}

/// Writes points into a Parquet file.
pub struct ParquetWriter<W: Write + Send> {
    path: PathBuf,
    writer: ArrowWriter<W>,
    schema: SchemaRef,
    item: FieldRef,
    ids: IdKinds,
    dim: i32,
    dtype: DType,
}

impl<W: Write + Send> ParquetWriter<W> {
    /// Begins a file. `path` names it in errors.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(to: W, path: &Path, (dim, dtype): (usize, DType), ids: IdKinds) -> Result<ParquetWriter<W>> {
        let dim =
            i32::try_from(dim).map_err(|_| Error::bad_input(format!("{dim} dimensions are too many")))?;
        let json = || HashMap::from([(EXTENSION.to_string(), JSON.to_string())]);
        let item = Arc::new(Field::new("element", type_of(dtype), false));
        let id = match ids {
            IdKinds::Numbers => Field::new("id", DataType::UInt64, false),
            IdKinds::Texts => Field::new("id", DataType::Utf8, false),
            IdKinds::Mixed => Field::new("id", DataType::Utf8, false).with_metadata(json()),
        };
        let schema = Arc::new(Schema::new(vec![
            id,
            Field::new("vector", DataType::FixedSizeList(item.clone(), dim), false),
            Field::new(PAYLOAD, DataType::Utf8, true).with_metadata(json()),
        ]));
        let level = ZstdLevel::try_new(3).map_err(|e| unwritable(path, &e))?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(level))
            .set_max_row_group_bytes(Some(GROUP_BYTES))
            .build();
        let writer = ArrowWriter::try_new(to, schema.clone(), Some(properties));
        let writer = writer.map_err(|e| unwritable(path, &e))?;
        Ok(ParquetWriter { path: path.into(), writer, schema, item, ids, dim, dtype })
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
        let components = components_of(self.dtype, &points.vectors);
        let vectors = FixedSizeListArray::try_new(self.item.clone(), self.dim, components, None);
        let columns: Vec<ArrayRef> = vec![
            self.ids_of(&points.ids),
            Arc::new(vectors.map_err(|e| unwritable(&self.path, &ParquetError::from(e)))?),
            Arc::new(payloads.finish()),
        ];
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
