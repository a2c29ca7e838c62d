//! Files of Arrow columns: Parquet, and Arrow IPC as a file or as a stream.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::RecordBatch;
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_schema::{ArrowError, SchemaRef};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use stratann_kernel::DType;
use stratann_storage::{Error, Result, input};

use crate::columns::Table;
use crate::file::{BATCH_BYTES, Columns, FileRows, Rows, Total, Wanted, rows_at_once};

/// Rows that are decoded or converted at once. So few, since each may have a payload of a MiB, and a page tells nothing
/// of the lengths of its values before it is decoded.
const DECODED_ROWS: usize = 8;
/// First bytes of an IPC file; a stream has none.
const MAGIC: &[u8; 6] = b"ARROW1";

/// Forms of files of Arrow columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Parquet,
    /// File or stream.
    Ipc,
}

impl Form {
    fn name(self) -> &'static str {
        match self {
            Form::Parquet => "Parquet",
            Form::Ipc => "Arrow IPC",
        }
    }
}

/// Record batches, one after another.
type Batches = Box<dyn Iterator<Item = std::result::Result<RecordBatch, ArrowError>>>;

/// An open file before its columns are chosen.
struct Opened {
    schema: SchemaRef,
    total: Total,
    /// Bytes that were read, of a file whose rows are not counted.
    read: Arc<AtomicU64>,
    source: Source,
}

enum Source {
    Parquet(Box<ParquetRecordBatchReaderBuilder<File>>),
    Ipc(Batches),
}

/// A file that counts the bytes that are read.
struct Counted {
    file: BufReader<File>,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read(bytes)?;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

impl Seek for Counted {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.file.seek(to)
    }
}

/// The error of a file that is damaged, or is none of its form.
fn unreadable(path: &Path, form: Form, why: &dyn std::fmt::Display) -> Error {
    let (path, form) = (path.display(), form.name());
    Error::bad_input(format!("{path}: cannot be read as {form}: {why}; write it again"))
}

/// The libraries panic on some damaged files; that is bad input too.
fn guarded<T>(path: &Path, form: Form, work: impl FnOnce() -> Result<T>) -> Result<T> {
    // What was at work is not used again after a panic: the caller gets an error and ends.
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(unreadable(path, form, &"its content is damaged")))
}

fn open_columns(path: &Path, form: Form) -> Result<Opened> {
    let file = input::open(path)?;
    let length = file.metadata().map_err(|e| Error::io("reading", path, &e))?.len();
    let read = Arc::new(AtomicU64::new(0));
    if form == Form::Parquet {
        let builder =
            ParquetRecordBatchReaderBuilder::try_new(file).map_err(|e| unreadable(path, form, &e))?;
        let rows = u64::try_from(builder.metadata().file_metadata().num_rows()).unwrap_or(0);
        let schema = builder.schema().clone();
        return Ok(Opened {
            schema,
            total: Total::Rows(rows),
            read,
            source: Source::Parquet(Box::new(builder)),
        });
    }
    let mut file = Counted { file: BufReader::with_capacity(1 << 20, file), read: read.clone() };
    let mut first = Vec::new();
    let begun = (&mut file).take(MAGIC.len() as u64).read_to_end(&mut first).and_then(|_| file.rewind());
    begun.map_err(|e| Error::io("reading", path, &e))?;
    let (schema, batches): (SchemaRef, Batches) = if first == MAGIC {
        let reader = FileReader::try_new(file, None).map_err(|e| unreadable(path, form, &e))?;
        (reader.schema(), Box::new(reader))
    } else {
        let reader = StreamReader::try_new(file, None).map_err(|e| unreadable(path, form, &e))?;
        (reader.schema(), Box::new(reader))
    };
    Ok(Opened { schema, total: Total::Bytes(length), read, source: Source::Ipc(batches) })
}

/// Batches before and after the first one is read.
enum Reading {
    /// Parquet leaves out first rows by its offsets, without decoding them.
    Waiting(Box<ParquetRecordBatchReaderBuilder<File>>),
    Begun(Batches),
    /// A reader could not be made.
    Failed,
}

/// Rows of a file of columns.
struct ArrowRows {
    path: PathBuf,
    form: Form,
    table: Table,
    wanted: Vec<Wanted>,
    reading: Reading,
    /// The batch that is read, and how many of its rows were.
    batch: Option<(RecordBatch, usize)>,
    row: u64,
    total: Total,
    read: Arc<AtomicU64>,
}

/// Opens a file.
///
/// # Errors
/// As [`crate::open`].
pub(crate) fn open(
    path: &Path,
    form: Form,
    columns: &Columns,
    wanted: &[Wanted],
) -> Result<Box<dyn FileRows>> {
    guarded(path, form, || {
        let Opened { schema, total, read, source } = open_columns(path, form)?;
        let table = Table::of(path, &schema, (columns, wanted))?;
        let reading = chosen(source, &table);
        let (path, wanted) = (path.to_path_buf(), wanted.to_vec());
        let own = ArrowRows { path, form, table, wanted, reading, batch: None, row: 0, total, read };
        Ok(Box::new(own) as Box<dyn FileRows>)
    })
}

/// Chooses the columns of a table.
fn chosen(source: Source, table: &Table) -> Reading {
    let builder = match source {
        Source::Ipc(batches) => return Reading::Begun(batches),
        Source::Parquet(builder) => builder,
    };
    let mask = ProjectionMask::roots(builder.parquet_schema(), table.read_columns());
    Reading::Waiting(Box::new(builder.with_projection(mask).with_batch_size(DECODED_ROWS)))
}

impl Reading {
    /// The batches behind the first rows, which are left out if reading has not begun.
    fn batches(&mut self, path: &Path, first: u64) -> Result<&mut Batches> {
        if let Reading::Waiting(_) = self {
            let Reading::Waiting(builder) = std::mem::replace(self, Reading::Failed) else {
                return Err(unreadable(path, Form::Parquet, &"it was not opened"));
            };
            let first = usize::try_from(first).unwrap_or(usize::MAX);
            let reader = builder.with_offset(first).build();
            *self = Reading::Begun(Box::new(reader.map_err(|e| unreadable(path, Form::Parquet, &e))?));
        }
        match self {
            Reading::Begun(batches) => Ok(batches),
            _ => Err(unreadable(path, Form::Parquet, &"it could not be read before")),
        }
    }
}

/// Components of the first vector of each name, and the type of a collection that holds them; `None` for a name of
/// which there is none.
///
/// # Errors
/// As [`crate::shapes_of`].
pub(crate) fn shapes_of(
    path: &Path,
    form: Form,
    columns: &Columns,
    names: &[&str],
) -> Result<Vec<Option<(usize, DType)>>> {
    guarded(path, form, || {
        let Opened { schema, source, .. } = open_columns(path, form)?;
        let table = Table::of(path, &schema, (columns, names))?;
        let mut shapes = vec![None; names.len()];
        for batch in chosen(source, &table).batches(path, 0)? {
            let batch = batch.map_err(|e| unreadable(path, form, &e))?;
            for (shape, found) in shapes.iter_mut().zip(table.shapes(path, &batch)?) {
                *shape = shape.or(found);
            }
            if shapes.iter().all(Option::is_some) {
                break;
            }
        }
        Ok(shapes)
    })
}

impl ArrowRows {
    /// Makes the next rows those of a batch; false at the end.
    fn fill(&mut self) -> Result<bool> {
        loop {
            if self.batch.as_ref().is_some_and(|(batch, at)| *at < batch.num_rows()) {
                return Ok(true);
            }
            match self.reading.batches(&self.path, self.row)?.next() {
                None => return Ok(false),
                Some(Ok(batch)) => self.batch = Some((batch, 0)),
                Some(Err(e)) => return Err(unreadable(&self.path, self.form, &e)),
            }
        }
    }

    /// The next rows, until they have as many bytes as a batch may have.
    fn take(&mut self) -> Result<Option<Rows>> {
        let (mut rows, most) = (Rows::new(self.row, &self.wanted), rows_at_once(&self.wanted));
        while rows.count < most && rows.bytes() < BATCH_BYTES && self.fill()? {
            let Some((batch, at)) = &mut self.batch else { break };
            let count = DECODED_ROWS.min(batch.num_rows() - *at).min(most - rows.count);
            let part = batch.slice(*at, count);
            *at += count;
            self.table.append(&self.path, &part, &self.wanted, &mut rows)?;
            self.row += count as u64;
        }
        Ok((rows.count > 0).then_some(rows))
    }

    fn leave_out(&mut self, rows: u64) -> Result<u64> {
        if let (Reading::Waiting(_), Total::Rows(all)) = (&self.reading, self.total) {
            let skipped = rows.min(all.saturating_sub(self.row));
            self.row += skipped;
            return Ok(skipped);
        }
        let mut left = rows;
        while left > 0 && self.fill()? {
            let Some((batch, at)) = &mut self.batch else { break };
            let count = (batch.num_rows() - *at).min(usize::try_from(left).unwrap_or(usize::MAX));
            *at += count;
            left -= count as u64;
            self.row += count as u64;
        }
        Ok(rows - left)
    }
}

impl FileRows for ArrowRows {
    fn next_rows(&mut self) -> Result<Option<Rows>> {
        let (path, form) = (self.path.clone(), self.form);
        guarded(&path, form, || self.take())
    }

    fn skip(&mut self, rows: u64) -> Result<u64> {
        let (path, form) = (self.path.clone(), self.form);
        guarded(&path, form, || self.leave_out(rows))
    }

    fn total(&self) -> Total {
        self.total
    }

    fn done(&self) -> u64 {
        match self.total {
            Total::Rows(_) => self.row,
            Total::Bytes(bytes) => self.read.load(Ordering::Relaxed).min(bytes),
        }
    }

    fn names_without(&self) -> Vec<String> {
        self.table.names_without.clone()
    }
}
