//! Files that hold vectors alone.

use std::path::{Path, PathBuf};

use half::f16;
use stratann_engine::dataset::{Reader, check_row};
use stratann_kernel::DType;
use stratann_storage::{Error, Result};

use crate::cast::{self, Component};
use crate::file::{Columns, FileRows, PayloadColumns, Rows, Total, Wanted, has_names, rows_at_once};

/// Rows of a file of vectors.
pub(crate) struct ArrayRows {
    path: PathBuf,
    reader: Reader,
    wanted: Wanted,
    row: u64,
    bytes: Vec<u8>,
}

fn open<N: AsRef<str>>(path: &Path, (columns, of_vectors): (&Columns, &[N])) -> Result<Reader> {
    if has_names(of_vectors) {
        return Err(Error::bad_input(format!(
            "{} has vectors alone, and those of the collection have names; write them with `stratann collection \
             upsert --vectors NAME=FILE`, or give Parquet, Arrow or JSON lines",
            path.display()
        )));
    }
    let named = [
        ("--ids", columns.ids.is_some()),
        ("--vectors", !columns.vectors.is_empty()),
        ("--payload", matches!(columns.payload, PayloadColumns::These(_))),
    ];
    if let Some((option, _)) = named.iter().find(|(_, is_named)| *is_named) {
        return Err(Error::bad_input(format!(
            "{} has vectors alone, and no columns; leave {option} out, or give Parquet, Arrow or JSON lines",
            path.display()
        )));
    }
    Reader::open(path)
}

impl ArrayRows {
    /// Opens a file.
    pub(crate) fn open(path: &Path, columns: &Columns, wanted: &[Wanted]) -> Result<ArrayRows> {
        let reader = open(path, (columns, wanted))?;
        let [wanted] = wanted else { return Err(Error::bad_input("no vectors are wanted; name some")) };
        let dim = reader.shape().dim;
        if dim != wanted.dim {
            return Err(Error::bad_input(format!(
                "{} has {dim} dimensions, the collection has {}; import vectors of the same model",
                path.display(),
                wanted.dim
            )));
        }
        Ok(ArrayRows { path: path.into(), reader, wanted: wanted.clone(), row: 0, bytes: Vec::new() })
    }

    /// Components and type of the vectors.
    pub(crate) fn shapes_of(
        path: &Path,
        columns: &Columns,
        names: &[&str],
    ) -> Result<Vec<Option<(usize, DType)>>> {
        open(path, (columns, names)).map(|reader| vec![Some((reader.shape().dim, reader.shape().dtype))])
    }

    fn left(&self) -> u64 {
        self.reader.shape().rows.saturating_sub(self.row)
    }
}

impl FileRows for ArrayRows {
    fn next_rows(&mut self) -> Result<Option<Rows>> {
        let wanted = std::slice::from_ref(&self.wanted);
        let count = self.left().min(rows_at_once(wanted) as u64) as usize;
        if count == 0 {
            return Ok(None);
        }
        let (shape, Wanted { dtype, metric, .. }) = (self.reader.shape(), self.wanted.clone());
        let mut rows = Rows::new(self.row, wanted);
        self.reader.read_rows(self.row, count, &mut self.bytes)?;
        let mut vectors = Vec::with_capacity(count * self.wanted.dim * dtype.size());
        for (row, own) in (self.row..).zip(self.bytes.chunks_exact(shape.row_bytes())) {
            let wrong =
                |why: String| Error::bad_input(format!("row {row} of {}: {why}", self.path.display()));
            let first = vectors.len();
            match shape.dtype == dtype {
                true => vectors.extend(own),
                false => components(shape.dtype, own).enumerate().try_for_each(|(at, component)| {
                    cast::append(dtype, component, &mut vectors)
                        .map_err(|why| wrong(format!("component {at} {why}")))
                })?,
            }
            if let Some(bad) = vectors.get(first..).and_then(|own| check_row(dtype, metric, own)) {
                return Err(wrong(format!("{bad}; correct the vector or leave the row out")));
            }
        }
        rows.count = count;
        if let Some(own) = rows.vectors.first_mut() {
            (own.vectors, own.has) = (vectors, vec![true; count]);
        }
        self.row += count as u64;
        Ok(Some(rows))
    }

    fn skip(&mut self, rows: u64) -> Result<u64> {
        let skipped = rows.min(self.left());
        self.row += skipped;
        Ok(skipped)
    }

    fn total(&self) -> Total {
        Total::Rows(self.reader.shape().rows)
    }

    fn done(&self) -> u64 {
        self.row
    }

    fn names_without(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The components of a row.
fn components(dtype: DType, row: &[u8]) -> Box<dyn Iterator<Item = Component> + '_> {
    let float = |value: f64| Component { value, is_whole: false };
    let whole = |value: f64| Component { value, is_whole: true };
    match dtype {
        DType::F32 => {
            Box::new(row.as_chunks::<4>().0.iter().map(move |c| float(f32::from_le_bytes(*c).into())))
        }
        DType::F16 => {
            Box::new(row.as_chunks::<2>().0.iter().map(move |c| float(f16::from_le_bytes(*c).to_f64())))
        }
        DType::U8 => Box::new(row.iter().map(move |&byte| whole(byte.into()))),
        DType::I8 => Box::new(row.iter().map(move |&byte| whole((byte as i8).into()))),
    }
}
