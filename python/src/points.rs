//! Builds of points: ids of any form and payloads stay with the index.

use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use stratann_engine::build::{self, BuildOptions};
use stratann_engine::dataset::Reader;
use stratann_import::spool::FilePoints;
use stratann_import::{Columns, PayloadColumns};
use stratann_node::points::{Spool, SpooledPoints, check_kind};
use stratann_node::rows::ExternalId;
use stratann_payload::Schema;
use stratann_storage::{Progress, Result};

use crate::build::Options;
use crate::collections::{PyId, plain};
use crate::payloads::schema_of;
use crate::vectors::Vectors;
use crate::{error, work};

/// What errors call an array of vectors.
const ARRAY: &str = "base";
/// Rows that are copied at once.
const ROWS_AT_ONCE: usize = 4096;

/// Points as the Python half passes them: a tuple of four, or of three.
pub(crate) enum PyPoints<'py> {
    /// A file: its path, its columns of ids and of vectors, and those of payloads; `None` for all.
    File(PathBuf, Option<String>, Option<String>, Option<Vec<String>>),
    /// Vectors, with an id and a payload as JSON for each row.
    Rows(Vectors<'py>, Option<Vec<PyId>>, Option<Vec<Option<PyBackedBytes>>>),
}

impl<'py> FromPyObject<'_, 'py> for PyPoints<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<PyPoints<'py>> {
        // Each by itself, so that the error of a wrong id stays as it is.
        if object.len()? == 4 {
            let (path, ids, vectors, payload) = object.extract()?;
            return Ok(PyPoints::File(path, ids, vectors, payload));
        }
        let (vectors, ids, payloads) = object.extract()?;
        Ok(PyPoints::Rows(vectors, ids, payloads))
    }
}

/// Points that are not read yet.
enum Source {
    File(PathBuf, Columns),
    Rows(Reader, Option<Vec<ExternalId>>, Vec<Option<PyBackedBytes>>),
}

impl PyPoints<'_> {
    fn open(self, py: Python<'_>) -> PyResult<Source> {
        Ok(match self {
            PyPoints::File(path, ids, vectors, payload) => {
                let vectors = vectors.map(|column| (String::new(), column)).into_iter().collect();
                let payload = match payload {
                    None => PayloadColumns::All,
                    Some(names) if names.is_empty() => PayloadColumns::Nothing,
                    Some(names) => PayloadColumns::These(names),
                };
                Source::File(path, Columns { ids, vectors, payload })
            }
            PyPoints::Rows(vectors, ids, payloads) => {
                let reader = vectors.open(py)?;
                check_count(py, &reader, ("ids", "an id"), ids.as_ref().map(Vec::len))?;
                check_count(py, &reader, ("payloads", "a dict or None"), payloads.as_ref().map(Vec::len))?;
                Source::Rows(reader, ids.map(plain), payloads.unwrap_or_default())
            }
        })
    }
}

/// Refuses another number of ids or payloads than of rows.
fn check_count(
    py: Python<'_>,
    reader: &Reader,
    (what, one): (&str, &str),
    given: Option<usize>,
) -> PyResult<()> {
    let rows = reader.shape().rows;
    match given {
        Some(given) if given as u64 != rows => Err(error::input(
            py,
            &format!("there are {rows} rows and {given} {what}; pass {one} for each row"),
        )),
        _ => Ok(()),
    }
}

impl Source {
    /// Copies the points into files beside the index.
    fn spool(
        &self,
        index: &Path,
        schema: Schema,
        common: &BuildOptions,
        progress: &dyn Progress,
    ) -> Result<SpooledPoints> {
        let (ram_budget, metric) = (common.ram_budget, common.metric);
        match self {
            Source::File(file, columns) => {
                FilePoints { file, columns, index, metric, schema, ram_budget }.spool(progress)
            }
            Source::Rows(reader, ids, payloads) => {
                let shape = reader.shape();
                let shape = (shape.dim, shape.dtype);
                let spool = Spool::create(Path::new(ARRAY), index, shape, schema, ram_budget)?;
                copied(spool, reader, (ids.as_deref(), payloads), progress)
            }
        }
    }
}

/// Copies rows with their ids and payloads, of which there are as many or none.
fn copied(
    mut spool: Spool,
    reader: &Reader,
    (ids, payloads): (Option<&[ExternalId]>, &[Option<PyBackedBytes>]),
    progress: &dyn Progress,
) -> Result<SpooledPoints> {
    let rows = reader.shape().rows;
    progress.stage("reading base", rows, "rows");
    let (mut bytes, mut first) = (Vec::new(), 0);
    while first < rows {
        progress.check_interrupted()?;
        let count = (rows - first).min(ROWS_AT_ONCE as u64) as usize;
        reader.read_rows(first, count, &mut bytes)?;
        let own = first as usize..first as usize + count;
        let given = payloads.get(own.clone()).unwrap_or_default();
        let given: Vec<Option<Vec<u8>>> =
            given.iter().map(|own| own.as_deref().map(<[u8]>::to_vec)).collect();
        spool.push(ids.map(|ids| ids.get(own).unwrap_or_default()), &bytes, &given)?;
        first += count as u64;
        progress.advance(count as u64);
    }
    spool.finish()
}

/// Builds an index that keeps ids and payloads. Returns the report as JSON.
#[pyfunction]
pub(crate) fn build_points<'py>(
    py: Python<'py>,
    points: PyPoints<'py>,
    schema: Vec<(String, Vec<String>)>,
    path: PathBuf,
    options: Options,
    on_progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let source = points.open(py)?;
    let report = work::run(py, on_progress.as_ref(), |progress| {
        let schema = schema_of(&schema)?;
        let common = options.common()?;
        check_kind(common.kind())?;
        build::check_folder(&path, common.force)?;
        let points = source.spool(&path, schema, &common, progress)?;
        let common = BuildOptions { ids: points.ids.clone(), ..common };
        let options = options.for_base(common, &points.reader, progress)?;
        progress.note(&build::plan(&points.reader, &options)?.describe());
        build::build_points((&points.reader, &points), &path, &options, progress)
    })?;
    crate::json(py, &report)
}
