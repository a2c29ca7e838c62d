//! Parquet: one column of lists of equal length, decoded page by page.
//!
//! FLOAT stays f32, DOUBLE is narrowed to f32, half precision (FLOAT16) stays f16, 8-bit integers stay u8 or i8, other
//! INT32 become f32, which is exact for the sizes accepted. Pages can only be decoded in order inside a row group. A
//! few decoders are therefore kept at their positions, so that several threads that move forward decode nothing twice;
//! each takes the memory of a page, whatever the size of a row group.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use parquet::basic::{LogicalType, Type};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{DataType, FixedLenByteArray};
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::properties::{ReaderProperties, ReaderPropertiesPtr};
use parquet::file::reader::{FileReader, RowGroupReader};
use parquet::file::serialized_reader::{ReadOptionsBuilder, SerializedFileReader, SerializedRowGroupReader};
use parquet::schema::types::ColumnDescriptor;
use stratann_kernel::DType;
use stratann_storage::{Error, Result};

use super::source::Source;
use super::{Layout, Reader, Shape};

/// Most idle decoders that are kept.
const CURSORS: usize = 8;
/// Components decoded at a time.
const STEP: usize = 1 << 16;

/// Largest f32 up to which whole numbers are exact.
const LARGEST_EXACT: i32 = 1 << 24;

/// The list column that holds the vectors.
pub(super) struct Column {
    metadata: ParquetMetaData,
    properties: ReaderPropertiesPtr,
    /// Identity of the file that `metadata` describes.
    identity: FileIdentity,
    leaf: usize,
    max_def: i16,
    dim: usize,
    dtype: DType,
    /// First row of every row group, and the total number of rows.
    starts: Vec<u64>,
    cursors: Mutex<Vec<Cursor>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
    length: u64,
}

/// A decoder positioned before a row.
struct Cursor {
    group: usize,
    row: u64,
    reader: ColumnReader,
}

fn unreadable(path: &Path, error: &ParquetError) -> Error {
    let message = format!(
        "{}: cannot be read as Parquet: {error}; write it again with snappy, zstd or no compression",
        path.display()
    );
    Error::bad_input(message)
}

/// The library panics on some damaged files; that is bad input too.
fn guarded<T>(path: &Path, work: impl FnOnce() -> Result<T>) -> Result<T> {
    // Broken decoders are dropped: one at work is not among the idle ones.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let message =
            format!("{}: its Parquet pages are damaged; copy it again or write it again", path.display());
        Err(Error::bad_input(message))
    })
}

/// Opens a separate handle, because clones of a handle share its position.
fn handle(path: &Path) -> Result<(File, FileIdentity)> {
    let file = stratann_storage::input::open(path)?;
    let meta = file.metadata().map_err(|e| Error::io("reading", path, &e))?;
    Ok((file, FileIdentity { device: meta.dev(), inode: meta.ino(), length: meta.len() }))
}

/// Opens the list column `wanted`, or the only list column.
pub(super) fn open(path: &Path, wanted: Option<&str>) -> Result<Reader> {
    guarded(path, || open_unguarded(path, wanted))
}

fn open_unguarded(path: &Path, wanted: Option<&str>) -> Result<Reader> {
    Source::open(path)?;
    let (file, identity) = handle(path)?;
    let options = ReadOptionsBuilder::new().with_page_index().build();
    let file = SerializedFileReader::new_with_options(file, options).map_err(|e| unreadable(path, &e))?;
    let metadata = file.metadata().clone();
    let (leaf, dtype) = choose(path, &metadata, wanted)?;
    let mut starts = vec![0u64];
    let mut rows = 0u64;
    for group in metadata.row_groups() {
        rows = rows.saturating_add(u64::try_from(group.num_rows()).unwrap_or(0));
        starts.push(rows);
    }
    let max_def = metadata.file_metadata().schema_descr().column(leaf).max_def_level();
    let properties = Arc::new(ReaderProperties::builder().build());
    let cursors = Mutex::new(Vec::new());
    let mut column = Column { metadata, properties, identity, leaf, max_def, dim: 0, dtype, starts, cursors };
    if rows > 0 {
        column.dim = column.first_length(path)?;
    }
    // A set without rows is refused for its rows, not for its unknown dimension.
    let shape = Shape { rows, dim: column.dim.max(usize::from(rows == 0)), dtype };
    let source = Source::Memory(Arc::new(Vec::new()));
    Ok(Reader { path: path.to_path_buf(), shape, source, layout: Layout::Parquet(Box::new(column)) })
}

/// Returns the component type of a leaf, if it can hold vectors.
fn dtype_of(column: &ColumnDescriptor) -> Option<DType> {
    if column.max_rep_level() != 1 {
        return None;
    }
    match (column.physical_type(), column.logical_type_ref()) {
        (Type::FLOAT | Type::DOUBLE, _) => Some(DType::F32),
        (Type::INT32, Some(LogicalType::Integer(kind))) if kind.bit_width == 8 => {
            Some(if kind.is_signed { DType::I8 } else { DType::U8 })
        }
        (Type::INT32, None | Some(LogicalType::Integer(_))) => Some(DType::F32),
        (Type::FIXED_LEN_BYTE_ARRAY, Some(LogicalType::Float16)) if column.type_length() == 2 => {
            Some(DType::F16)
        }
        _ => None,
    }
}

fn choose(path: &Path, metadata: &ParquetMetaData, wanted: Option<&str>) -> Result<(usize, DType)> {
    let name = path.display();
    let schema = metadata.file_metadata().schema_descr();
    let root = |leaf: usize| schema.get_column_root(leaf).name().to_owned();
    let lists: Vec<(usize, DType)> = (0..schema.num_columns())
        .filter_map(|leaf| dtype_of(&schema.column(leaf)).map(|dtype| (leaf, dtype)))
        .filter(|&(leaf, _)| wanted.is_none_or(|wanted| root(leaf) == wanted))
        .collect();
    match (lists.as_slice(), wanted) {
        (&[one], _) => Ok(one),
        ([], Some(wanted)) => {
            let message = format!(
                "{name} has no column {wanted:?} of lists of float, double, half or int32; convert it or name another"
            );
            Err(Error::bad_input(message))
        }
        ([], None) => {
            let message =
                format!("{name} has no column of lists of float, double, half or int32; convert one");
            Err(Error::bad_input(message))
        }
        (many, _) => {
            let names: Vec<String> = many.iter().map(|&(leaf, _)| root(leaf)).collect();
            let message =
                format!("{name} has several list columns ({}); choose with {name}#COLUMN", names.join(", "));
            Err(Error::bad_input(message))
        }
    }
}

impl Column {
    /// Reads rows `first..first + count`, which the caller has checked to exist.
    pub(super) fn read_rows(&self, path: &Path, first: u64, count: usize, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        out.reserve(count * self.dim * self.dtype.size());
        guarded(path, || {
            let (mut row, end) = (first, first + count as u64);
            while row < end {
                let group = self.starts.partition_point(|&start| start <= row) - 1;
                let until = end.min(self.starts[group + 1]);
                let mut cursor = self.cursor(path, group, row)?;
                self.decode(path, &mut cursor, (until - row) as usize, out)?;
                row = until;
                self.keep(cursor);
            }
            Ok(())
        })
    }

    /// Returns the idle decoder closest before `row`, or a new one, moved to the row.
    fn cursor(&self, path: &Path, group: usize, row: u64) -> Result<Cursor> {
        let waiting = {
            let mut cursors = self.cursors.lock().unwrap_or_else(PoisonError::into_inner);
            let closest = (0..cursors.len())
                .filter(|&i| cursors[i].group == group && cursors[i].row <= row)
                .max_by_key(|&i| cursors[i].row);
            closest.map(|i| cursors.remove(i))
        };
        let mut cursor = match waiting {
            Some(cursor) => cursor,
            None => self.start(path, group)?,
        };
        let ahead = (row - cursor.row) as usize;
        let skipped = match &mut cursor.reader {
            ColumnReader::FloatColumnReader(r) => r.skip_records(ahead),
            ColumnReader::DoubleColumnReader(r) => r.skip_records(ahead),
            ColumnReader::Int32ColumnReader(r) => r.skip_records(ahead),
            ColumnReader::FixedLenByteArrayColumnReader(r) => r.skip_records(ahead),
            _ => Ok(0),
        };
        if skipped.map_err(|e| unreadable(path, &e))? < ahead {
            return Err(self.ends_early(path, group));
        }
        cursor.row = row;
        Ok(cursor)
    }

    /// Creates a decoder before the first row of a group.
    fn start(&self, path: &Path, group: usize) -> Result<Cursor> {
        let (file, identity) = handle(path)?;
        if identity != self.identity {
            let message = format!("{} was replaced while it was read; start again", path.display());
            return Err(Error::bad_input(message));
        }
        let (meta, index) = (self.metadata.row_group(group), self.metadata.page_index_for_row_group(group));
        let reader = SerializedRowGroupReader::new(Arc::new(file), meta, index, self.properties.clone())
            .and_then(|rows| rows.get_column_reader(self.leaf))
            .map_err(|e| unreadable(path, &e))?;
        Ok(Cursor { group, row: self.starts[group], reader })
    }

    fn keep(&self, cursor: Cursor) {
        let mut cursors = self.cursors.lock().unwrap_or_else(PoisonError::into_inner);
        if cursors.len() == CURSORS {
            cursors.remove(0);
        }
        cursors.push(cursor);
    }

    fn ends_early(&self, path: &Path, group: usize) -> Error {
        let rows = self.starts[group + 1] - self.starts[group];
        let message = format!(
            "{}: row group {group} ends before its {rows} rows (first row {}); write the file again",
            path.display(),
            self.starts[group]
        );
        Error::bad_input(message)
    }

    /// Appends the next `count` rows, all of the cursor's group, to `out`.
    fn decode(&self, path: &Path, cursor: &mut Cursor, count: usize, out: &mut Vec<u8>) -> Result<()> {
        let Cursor { group, row, reader } = cursor;
        let at = At { path, group: *group, row };
        let range = match self.dtype {
            DType::I8 => -128..=127,
            DType::U8 => 0..=255,
            DType::F32 | DType::F16 => -LARGEST_EXACT..=LARGEST_EXACT,
        };
        match reader {
            ColumnReader::FloatColumnReader(r) => self.pull(at, r, count, |values: &[f32]| {
                out.extend_from_slice(bytemuck::cast_slice(values));
                None
            }),
            ColumnReader::DoubleColumnReader(r) => self.pull(at, r, count, |values: &[f64]| {
                out.extend(values.iter().flat_map(|&x| (x as f32).to_le_bytes()));
                None
            }),
            ColumnReader::Int32ColumnReader(r) => self.pull(at, r, count, |values: &[i32]| {
                match self.dtype {
                    DType::F32 => out.extend(values.iter().flat_map(|&x| (x as f32).to_le_bytes())),
                    _ => out.extend(values.iter().map(|&x| x as u8)),
                }
                values.iter().position(|x| !range.contains(x))
            }),
            ColumnReader::FixedLenByteArrayColumnReader(r) => {
                self.pull(at, r, count, |values: &[FixedLenByteArray]| {
                    out.extend(values.iter().flat_map(|x| x.data().iter().take(2)));
                    None
                })
            }
            _ => Err(self.ends_early(path, *group)),
        }
    }

    /// Decodes rows in steps; `put` receives components, and returns which of them it cannot convert.
    fn pull<T: DataType>(
        &self,
        at: At<'_>,
        reader: &mut ColumnReaderImpl<T>,
        count: usize,
        mut put: impl FnMut(&[T::T]) -> Option<usize>,
    ) -> Result<()> {
        let At { path, group, row } = at;
        let (mut defs, mut reps, mut values) = (Vec::new(), Vec::new(), Vec::new());
        let end = *row + count as u64;
        while *row < end {
            defs.clear();
            reps.clear();
            values.clear();
            let step = (STEP / self.dim).clamp(1, (end - *row) as usize);
            let read = reader.read_records(step, Some(&mut defs), Some(&mut reps), &mut values);
            let (rows, _, _) = read.map_err(|e| unreadable(path, &e))?;
            if rows == 0 {
                return Err(self.ends_early(path, group));
            }
            self.check_levels(path, *row, &defs, &reps)?;
            if values.len() != rows * self.dim {
                return Err(self.ends_early(path, group));
            }
            if let Some(place) = put(&values) {
                let message = format!(
                    "row {} of {}: component {} does not fit {}; convert the column",
                    *row + (place / self.dim) as u64,
                    path.display(),
                    place % self.dim,
                    self.dtype.name()
                );
                return Err(Error::bad_input(message));
            }
            *row += rows as u64;
        }
        Ok(())
    }

    /// Checks that every component is present, and that every row has `dim` of them.
    fn check_levels(&self, path: &Path, first: u64, defs: &[i16], reps: &[i16]) -> Result<()> {
        let whole = defs.iter().all(|&def| def == self.max_def);
        let even = reps.iter().enumerate().all(|(i, &rep)| (rep == 0) == (i % self.dim == 0));
        if whole && even && reps.len().is_multiple_of(self.dim) {
            return Ok(());
        }
        let name = path.display();
        let (mut row, mut start) = (first, 0);
        while start < reps.len() {
            let length = 1 + reps[start + 1..].iter().take_while(|&&rep| rep > 0).count();
            let null = defs[start..start + length].iter().position(|&def| def < self.max_def);
            let message = match null {
                Some(_) if length == 1 => {
                    format!("row {row} of {name} is null, empty or holds a null; every row needs a vector")
                }
                Some(i) => {
                    format!("row {row} of {name}: component {i} is null; every component needs a value")
                }
                None if length != self.dim => {
                    let dim = self.dim;
                    format!("row {row} of {name} has {length} dimensions, row 0 has {dim}; all must agree")
                }
                None => {
                    (row, start) = (row + 1, start + length);
                    continue;
                }
            };
            return Err(Error::bad_input(message));
        }
        Ok(())
    }

    /// Components of row 0.
    fn first_length(&self, path: &Path) -> Result<usize> {
        let group = self.starts.partition_point(|&start| start == 0) - 1;
        let mut cursor = self.start(path, group)?;
        let (mut defs, mut reps) = (Vec::new(), Vec::new());
        let (d, r) = (Some(&mut defs), Some(&mut reps));
        let read = match &mut cursor.reader {
            ColumnReader::FloatColumnReader(reader) => reader.read_records(1, d, r, &mut Vec::new()),
            ColumnReader::DoubleColumnReader(reader) => reader.read_records(1, d, r, &mut Vec::new()),
            ColumnReader::Int32ColumnReader(reader) => reader.read_records(1, d, r, &mut Vec::new()),
            ColumnReader::FixedLenByteArrayColumnReader(reader) => {
                reader.read_records(1, d, r, &mut Vec::new())
            }
            _ => Ok((0, 0, 0)),
        };
        let (rows, _, _) = read.map_err(|e| unreadable(path, &e))?;
        if rows == 0 || defs.is_empty() {
            return Err(self.ends_early(path, group));
        }
        if defs.iter().any(|&def| def != self.max_def) {
            let name = path.display();
            let message = format!("row 0 of {name} is null, empty or holds a null; every row needs a vector");
            return Err(Error::bad_input(message));
        }
        Ok(defs.len())
    }
}

/// Position of a decoder: its next row.
struct At<'a> {
    path: &'a Path,
    group: usize,
    row: &'a mut u64,
}
