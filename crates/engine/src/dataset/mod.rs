//! Vector files as streams: read in blocks of rows, in their stored type, never whole.
//!
//! | suffix | layout | components |
//! |---|---|---|
//! | `.fbin .f16bin .u8bin .i8bin` | u32 rows, u32 dim, rows (big-ann-benchmarks) | f32, f16, u8, i8 |
//! | `.fvecs .bvecs` | i32 dim before every row (TEXMEX) | f32, u8 |
//! | `.npy` | NumPy format 1, 2 or 3, two dimensions, in C or Fortran order | f32 (also f64), f16, of either byte order; u8, i8 |
//! | `.parquet` (feature `parquet`) | a list column, or `FILE.parquet#COLUMN` | f32 (also f64, i32), f16, u8, i8 |
//! | `.hdf5 .h5` | a two-dimensional dataset, or `FILE.hdf5#NAME` | f32 (also f64, whole numbers), f16, u8, i8 |
//!
//! All numbers are little-endian. Other files of a set: [`ids`] (one u64 per row) and [`truth`] (true
//! neighbours). [`validate`] finds rows without valid distances.

mod bin;
mod hdf5;
pub mod ids;
mod npy;
#[cfg(feature = "parquet")]
mod parquet;
mod source;
pub mod truth;
pub mod validate;
mod vecs;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use stratann_kernel::DType;
use stratann_kernel::distance::MAX_DIM;
use stratann_storage::input::split_column;
use stratann_storage::{Error, Result};

use source::Source;

pub use bin::write_bin;
pub use bin::{HEADER as BIN_HEADER, suffix_of as bin_suffix};
pub(crate) use ids::load_ids;
pub use ids::{IdLists, read_all_ids, read_id_lists, read_ids};
pub use source::SharedBytes;
pub use truth::GroundTruth;
pub use validate::{BadRow, Scan, check_row, scan};
pub(crate) use validate::{no_good_row, refuse_row, scan_rows};

/// Rows, dimensions and type of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of vectors.
    pub rows: u64,
    /// Components of a vector.
    pub dim: usize,
    /// Type of a component.
    pub dtype: DType,
}

impl Shape {
    /// Bytes of one row.
    pub const fn row_bytes(&self) -> usize {
        self.dim * self.dtype.size()
    }

    /// Refuses shapes that cannot be indexed; `what` names the source.
    fn check(&self, what: &Path) -> Result<()> {
        let name = what.display();
        if self.rows == 0 {
            return Err(Error::bad_input(format!("{name} has 0 rows; give at least one vector")));
        }
        if self.dim == 0 {
            return Err(Error::bad_input(format!("{name} has vectors of 0 dimensions; give at least one")));
        }
        if self.dim > MAX_DIM {
            let message = format!("{name} has {} dimensions; at most {MAX_DIM} are possible", self.dim);
            return Err(Error::bad_input(message));
        }
        Ok(())
    }
}

/// Layout of rows in the source.
enum Layout {
    /// Contiguous rows from an offset on.
    Plain { start: u64 },
    /// An array whose components are converted or gathered.
    Converted(npy::Array),
    /// Rows that each follow their dimension as i32.
    Prefixed,
    /// Rows of a dataset whose numbers are converted, or in chunks.
    Hdf5(Box<hdf5::Rows>),
    #[cfg(feature = "parquet")]
    Parquet(Box<parquet::Column>),
}

/// One set of vectors, in a file or in memory. Any thread can read any block of rows.
pub struct Reader {
    path: PathBuf,
    shape: Shape,
    source: Source,
    layout: Layout,
}

impl Reader {
    /// Opens a vector file; its suffix determines the format.
    ///
    /// # Errors
    ///
    /// `BadInput` for an unknown suffix, a header that does not match the length of the file to the byte, no rows, no
    /// dimensions or more than 65,536. `Io` for errors of the operating system.
    pub fn open(path: &Path) -> Result<Reader> {
        let (file, column) = split_column(path);
        let suffix = suffix(&file);
        if column.is_some() && !matches!(suffix.as_str(), "parquet" | "hdf5" | "h5") {
            let message = format!(
                "{}: only a .parquet file has columns to choose from, and an .hdf5 file datasets",
                path.display()
            );
            return Err(Error::bad_input(message));
        }
        let reader = match suffix.as_str() {
            "fbin" | "f16bin" | "u8bin" | "i8bin" => bin::open(&file, bin::dtype(&suffix))?,
            "fvecs" => vecs::open(&file, DType::F32)?,
            "bvecs" => vecs::open(&file, DType::U8)?,
            "npy" => npy::open(&file)?,
            "parquet" => open_parquet(&file, column.as_deref())?,
            "hdf5" | "h5" => hdf5::open(&file, column.as_deref())?,
            "ivecs" | "ibin" => {
                let message =
                    format!("{} holds ground truth, not vectors; give a vector file", path.display());
                return Err(Error::bad_input(message));
            }
            _ if file.is_dir() => {
                let message = format!("{} is a folder, not a file of vectors; name a file", path.display());
                return Err(Error::bad_input(message));
            }
            _ => {
                if std::fs::metadata(&file).is_ok_and(|facts| !facts.is_file()) {
                    // It says what it is: the suffix is not what is wrong.
                    stratann_storage::input::open(&file)?;
                }
                let message = format!(
                    "{}: unknown vector format {suffix:?}; use .fbin .f16bin .u8bin .i8bin .fvecs .bvecs .npy .hdf5 or \
                     .parquet",
                    path.display()
                );
                return Err(Error::bad_input(message));
            }
        };
        reader.shape.check(path)?;
        Ok(reader)
    }

    /// Wraps vectors in memory: `shape.rows × shape.dim` components, row-major, little-endian.
    pub fn from_memory(shape: Shape, bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Result<Reader> {
        Reader::from_shared(shape, std::sync::Arc::new(bytes))
    }

    /// As [`from_memory`](Self::from_memory), for shared bytes, without a copy.
    pub fn from_shared(shape: Shape, bytes: SharedBytes) -> Result<Reader> {
        let path = PathBuf::from("<memory>");
        shape.check(&path)?;
        let source = Source::Memory(bytes);
        check_length(&path, shape, 0, source.len())?;
        Ok(Reader { path, shape, source, layout: Layout::Plain { start: 0 } })
    }

    /// Rows, dimensions and type.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The file's path, or `<memory>`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces `out` with rows `first..first + count`, row-major little-endian bytes.
    pub fn read_rows(&self, first: u64, count: usize, out: &mut Vec<u8>) -> Result<()> {
        if first.checked_add(count as u64).is_none_or(|end| end > self.shape.rows) {
            let rows = self.shape.rows;
            let message = format!(
                "{}: rows {first}.. ({count} of them) lie outside 0..{rows}; ask for fewer",
                self.path.display()
            );
            return Err(Error::bad_input(message));
        }
        let width = self.shape.row_bytes();
        match &self.layout {
            Layout::Plain { start } => {
                // Not cleared: zeroing a buffer that is overwritten at once costs a pass over memory.
                out.resize(count * width, 0);
                self.source.read_at(&self.path, start + first * width as u64, out)
            }
            Layout::Converted(array) => {
                array.read_rows((&self.path, &self.source), self.shape, (first, count), out)
            }
            Layout::Prefixed => {
                out.resize(count * (width + 4), 0);
                self.source.read_at(&self.path, first * (width as u64 + 4), out)?;
                vecs::drop_prefixes(&self.path, self.shape.dim, width, first, out)
            }
            Layout::Hdf5(rows) => rows.read_rows((&self.path, &self.source), self.shape, (first, count), out),
            #[cfg(feature = "parquet")]
            Layout::Parquet(column) => column.read_rows(&self.path, first, count, out),
        }
    }
}

impl Reader {
    /// Passes each of `rows` (ascending) in turn. Rows that are close together share one read, gaps included, which is
    /// cheaper than a read per row.
    pub(crate) fn for_each(&self, rows: &[u32], mut take: impl FnMut(&[u8])) -> Result<()> {
        const SPAN_BYTES: usize = 256 << 10;
        const GAP: u32 = 64;
        let row_bytes = self.shape.row_bytes();
        let span = (SPAN_BYTES / row_bytes).max(1) as u32;
        let mut buffer = Vec::new();
        let mut at = 0;
        while at < rows.len() {
            let first = rows[at];
            let mut end = at + 1;
            while end < rows.len() && rows[end] - first < span && rows[end] - rows[end - 1] <= GAP {
                end += 1;
            }
            self.read_rows(u64::from(first), (rows[end - 1] - first + 1) as usize, &mut buffer)?;
            for &row in &rows[at..end] {
                let offset = (row - first) as usize * row_bytes;
                take(&buffer[offset..offset + row_bytes]);
            }
            at = end;
        }
        Ok(())
    }
}

#[cfg(feature = "parquet")]
fn open_parquet(path: &Path, column: Option<&str>) -> Result<Reader> {
    parquet::open(path, column)
}

#[cfg(not(feature = "parquet"))]
fn open_parquet(path: &Path, _: Option<&str>) -> Result<Reader> {
    let message = format!(
        "{}: this build does not read Parquet; build with the feature parquet or convert to .npy",
        path.display()
    );
    Err(Error::bad_input(message))
}

/// Returns the suffix in lower case, without its dot; empty without a suffix.
fn suffix(path: &Path) -> String {
    path.extension().map(|s| s.to_string_lossy().to_ascii_lowercase()).unwrap_or_default()
}

/// Compares the length of a shape (after a header of `start` bytes) with the actual length.
fn check_length(path: &Path, shape: Shape, start: u64, actual: u64) -> Result<()> {
    let width = shape.row_bytes() as u64;
    let expected = u128::from(start) + u128::from(shape.rows) * u128::from(width);
    if expected == u128::from(actual) {
        return Ok(());
    }
    let (name, rows, dim, dtype) = (path.display(), shape.rows, shape.dim, shape.dtype.name());
    let promise =
        format!("its header says {rows} rows of {dim} {dtype}, {expected} bytes, but it has {actual}");
    if expected < u128::from(actual) {
        return Err(Error::bad_input(format!(
            "{name} is too long: {promise}; check the header or cut the file"
        )));
    }
    let last = match actual.saturating_sub(start).checked_div(width).unwrap_or(0) {
        0 => "no row is complete".to_owned(),
        complete => format!("the last complete row is {}", complete - 1),
    };
    Err(Error::bad_input(format!("{name} is truncated: {promise} ({last}); copy it again")))
}
