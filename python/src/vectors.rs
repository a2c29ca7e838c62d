//! Arrays and vector files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use numpy::{IntoPyArray, PyArray1, PyUntypedArrayMethods};
use pyo3::prelude::*;
use stratann_engine::DType;
use stratann_engine::dataset::{self, Reader, Shape};
use stratann_storage::Error;
use stratann_storage::output::OutputPath;

use crate::error;

/// Bytes of a NumPy array, which is kept alive.
struct ArrayBytes {
    _owner: Py<PyArray1<u8>>,
    start: *const u8,
    len: usize,
}

// SAFETY: the bytes are only read, and the array that owns them outlives the pointer. That no other thread
// writes to the array meanwhile is asked of the caller, as by every extension that releases the GIL.
unsafe impl Send for ArrayBytes {}
// SAFETY: as above.
unsafe impl Sync for ArrayBytes {}

impl AsRef<[u8]> for ArrayBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `of` took start and len from a contiguous array that `_owner` keeps alive and unmoved.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

/// Vectors from Python: a file, or an array of bytes with its shape and element type.
#[derive(FromPyObject)]
pub(crate) enum Vectors<'py> {
    Array(Bound<'py, PyArray1<u8>>, u64, usize, String),
    File(PathBuf),
}

impl Vectors<'_> {
    /// Opens the vectors without a copy.
    pub(crate) fn open(&self, py: Python<'_>) -> PyResult<Reader> {
        match self {
            Vectors::File(path) => Reader::open(path).map_err(|e| error::to_python(py, &e)),
            Vectors::Array(array, rows, dim, dtype) => {
                let shape = Shape { rows: *rows, dim: *dim, dtype: dtype_named(py, dtype)? };
                let bytes = array_bytes(py, array)?;
                Reader::from_shared(shape, Arc::new(bytes)).map_err(|e| error::to_python(py, &e))
            }
        }
    }
}

fn array_bytes(py: Python<'_>, array: &Bound<'_, PyArray1<u8>>) -> PyResult<ArrayBytes> {
    if !array.is_c_contiguous() {
        return Err(error::input(py, "the array is not contiguous; pass numpy.ascontiguousarray(array)"));
    }
    let start = numpy::PyArrayMethods::data(array).cast_const();
    Ok(ArrayBytes { len: array.len(), start, _owner: array.clone().unbind() })
}

fn dtype_named(py: Python<'_>, name: &str) -> PyResult<DType> {
    DType::from_name(name).ok_or_else(|| error::input(py, &format!("unknown element type {name:?}")))
}

/// Reads a whole vector file: bytes, rows, dimensions and element type.
#[pyfunction]
pub(crate) fn read_vectors(
    py: Python<'_>,
    path: PathBuf,
) -> PyResult<(Bound<'_, PyArray1<u8>>, u64, usize, &'static str)> {
    let read = py.detach(|| {
        let reader = Reader::open(&path)?;
        let mut bytes = Vec::new();
        reader.read_rows(0, usize::try_from(reader.shape().rows).unwrap_or(usize::MAX), &mut bytes)?;
        Ok::<_, Error>((bytes, reader.shape()))
    });
    let (bytes, shape) = read.map_err(|e| error::to_python(py, &e))?;
    Ok((bytes.into_pyarray(py), shape.rows, shape.dim, shape.dtype.name()))
}

/// Writes an array as `.fbin`, `.f16bin`, `.u8bin` or `.i8bin`.
#[pyfunction]
pub(crate) fn write_vectors(
    py: Python<'_>,
    path: PathBuf,
    array: Bound<'_, PyArray1<u8>>,
    rows: u64,
    dim: usize,
    dtype: &str,
    force: bool,
) -> PyResult<()> {
    let shape = Shape { rows, dim, dtype: dtype_named(py, dtype)? };
    let bytes = array_bytes(py, &array)?;
    let written = py.detach(|| write(&path, shape, &bytes, force));
    written.map_err(|e| error::to_python(py, &e))
}

fn write(path: &Path, shape: Shape, bytes: &ArrayBytes, force: bool) -> Result<(), Error> {
    let output = OutputPath::check(path, force, &[])?;
    dataset::write_bin(&output, shape, [Ok(bytes.as_ref())])
}
