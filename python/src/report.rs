//! Reports of the commands `tune`, `verify`, `delete` and `explain`, as JSON.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde::Serialize;
use stratann_core::query::QueryStats;
use stratann_engine::dataset::GroundTruth;
use stratann_engine::deletes;
use stratann_engine::groundtruth::{CheckedTruth, Found, Owner};
use stratann_engine::index::{self, OpenOptions};
use stratann_engine::recall::known::Known;
use stratann_engine::recall::tune::TuneOptions;
use stratann_engine::trace::Trace;
use stratann_params::Stage;
use stratann_storage::{Error, Progress, Result};

use crate::{error, parameters, work};

/// Ground truth from Python: a file, or ids with or without distances, k of each query.
#[derive(FromPyObject)]
pub(crate) enum Truth<'py> {
    Arrays(usize, PyReadonlyArray1<'py, u32>, PyReadonlyArray1<'py, f32>),
    File(PathBuf),
}

impl Truth<'_> {
    /// Returns the ground truth and its name in messages.
    fn read(&self) -> Result<(GroundTruth, PathBuf)> {
        let wrong = |e: numpy::AsSliceError| Error::bad_input(format!("truth: {e}"));
        match self {
            Truth::File(path) => Ok((GroundTruth::read(path)?, path.clone())),
            Truth::Arrays(k, ids, distances) => {
                let ids = ids.as_slice().map_err(wrong)?.to_vec();
                let distances = distances.as_slice().map_err(wrong)?.to_vec();
                Ok((GroundTruth { k: *k, ids, distances }, PathBuf::from("truth")))
            }
        }
    }
}

/// Measures the recall curves of the index at `path` with queries and their ground truth, or with its own rows. Returns
/// the report as JSON.
#[pyfunction]
pub(crate) fn tune<'py>(
    py: Python<'py>,
    path: PathBuf,
    queries: Option<PyReadonlyArray1<'py, u8>>,
    truth: Option<Truth<'py>>,
    how: &Bound<'py, PyDict>,
    ram_budget: Option<u64>,
    on_progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let queries = queries.map(|q| q.as_slice().map(<[u8]>::to_vec)).transpose()?;
    let given = truth.map(|t| t.read()).transpose();
    let given = given.map_err(|e| error::to_python(py, &e))?;
    let given_options = parameters::checked(how, &[Stage::Tune])?;
    let options = TuneOptions { ram_budget, ..TuneOptions::read(&given_options) };
    let tuned = work::run(py, on_progress.as_ref(), |progress| {
        let known = match (queries, given) {
            (Some(queries), Some((truth, name))) => {
                Some(known(&path, queries, truth, &name, &options, progress)?)
            }
            _ => None,
        };
        stratann_engine::recall::tune::tune(&path, known, &options, progress)
    })?;
    crate::json(py, &tuned)
}

/// Compares the ground truth with the index.
fn known(
    path: &Path,
    queries: Vec<u8>,
    truth: GroundTruth,
    name: &Path,
    options: &TuneOptions,
    progress: &dyn Progress,
) -> Result<Known> {
    let open = OpenOptions { ram_budget: options.ram_budget, ..OpenOptions::default() };
    let index = index::Index::open(path, open)?;
    let count = queries.len() / index.row_bytes();
    if truth.queries() != count {
        return Err(Error::bad_input(format!(
            "{} is for {} queries, there are {count}; compute it again",
            name.display(),
            truth.queries()
        )));
    }
    let known = Known {
        truth_k: truth.k,
        truth: truth.ids.iter().map(|&id| u64::from(id)).collect(),
        queries,
        ..Known::default()
    };
    index.check_truth(truth, name, &known.queries, options.threads, progress)?;
    Ok(known)
}

/// Computes recall@k of results, after a comparison of the ground truth with them.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // One for each array, and what these are of.
pub(crate) fn recall<'py>(
    py: Python<'py>,
    index: &crate::index::Index,
    queries: PyReadonlyArray1<'py, u8>,
    ids: PyReadonlyArray1<'py, u64>,
    distances: PyReadonlyArray1<'py, f32>,
    counts: PyReadonlyArray1<'py, u32>,
    k: usize,
    truth: Truth<'py>,
) -> PyResult<f64> {
    let open = index.opened(py)?;
    let (queries, ids, distances) = (queries.as_slice()?, ids.as_slice()?, distances.as_slice()?);
    let counts = counts.as_slice()?;
    let computed = || {
        let (truth, name) = truth.read()?;
        let count = queries.len() / open.row_bytes();
        // A filter may leave all queries with fewer than k.
        let needed = k.min(counts.iter().max().map_or(k, |&most| most as usize));
        if truth.queries() != count || truth.k < needed {
            return Err(Error::bad_input(format!(
                "{} has {} neighbours of {} queries, {needed} of {count} are needed; compute it again",
                name.display(),
                truth.k,
                truth.queries()
            )));
        }
        let mut checked = CheckedTruth::new(truth, &name, Owner::of(open.manifest())?)?;
        checked.compare(&Found { first: 0, queries, k, ids, distances })?;
        open.confirm_truth(&checked, &stratann_storage::Quiet)?;
        let (found, wanted) = stratann_engine::search::hits((ids, counts), k, checked.truth(), 0);
        Ok(if wanted == 0 { 0.0 } else { found as f64 / wanted as f64 })
    };
    computed().map_err(|e| error::to_python(py, &e))
}

/// Reads the whole index at `path`. Returns what is wrong as JSON.
#[pyfunction]
pub(crate) fn verify(py: Python<'_>, path: PathBuf, on_progress: Option<Py<PyAny>>) -> PyResult<String> {
    let report = work::run(py, on_progress.as_ref(), |progress| {
        work::in_pool(0, || stratann_engine::verify::verify(&path, progress))
    })?;
    crate::json(py, &report)
}

/// Deletes rows of the index at `path`; with `undo` it takes the last delete back. Returns the report of `stratann
/// delete` as JSON.
#[pyfunction]
pub(crate) fn delete(
    py: Python<'_>,
    path: PathBuf,
    ids: PyReadonlyArray1<'_, u64>,
    how: (bool, Option<u64>),
    on_progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let (ids, (undo, ram_budget)) = (ids.as_slice()?, how);
    let ids = ids.to_vec();
    let deleted = work::run(py, on_progress.as_ref(), |progress| match undo {
        true => deletes::undo(&path),
        false => deletes::delete(&path, &ids, ram_budget, progress),
    })?;
    crate::json(py, &deleted)
}

/// The document of `stratann explain`.
#[derive(Serialize)]
struct Document<'a> {
    query: usize,
    #[serde(flatten)]
    trace: &'a Trace,
    counters: BTreeMap<&'static str, u64>,
}

/// Returns the trace of one query, with its counters, as JSON.
pub(crate) fn trace(py: Python<'_>, trace: &Trace) -> PyResult<String> {
    let counters = QueryStats::NAMES.iter().copied().zip(trace.stats.values()).collect();
    crate::json(py, &Document { query: 0, trace, counters })
}
