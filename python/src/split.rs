//! A build that is split into tasks: its leader, and one task.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use pyo3::prelude::*;
use stratann_engine::dataset::Reader;
use stratann_engine::kinds::split;
use stratann_engine::kinds::split::tasks::{Done, Job, Task};
use stratann_storage::{Error, Result};

use crate::build::Options;
use crate::process::Own;
use crate::{error, work};

fn from_json<T: for<'a> serde::Deserialize<'a>>(what: &str, text: &str) -> Result<T> {
    serde_json::from_str(text)
        .map_err(|e| Error::bad_input(format!("{what} of a build is not what it was: {e}")))
}

/// Leader of a split build. It holds the folder's lock until it is closed.
#[pyclass(frozen, module = "stratann._stratann")]
pub(crate) struct Split {
    open: Own<Mutex<Option<split::Split>>>,
}

impl Split {
    /// The open build; `None` in a child of its process.
    fn lock(&self) -> Option<MutexGuard<'_, Option<split::Split>>> {
        self.open.here().map(|open| open.lock().unwrap_or_else(|e| e.into_inner()))
    }

    fn take(&self) -> Option<split::Split> {
        self.lock()?.take()
    }

    /// Calls a function on the open build with the GIL released.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut split::Split) -> Result<T> + Send,
    ) -> PyResult<T> {
        let done = py.detach(|| match self.lock().as_mut().and_then(|open| open.as_mut()) {
            Some(split) => work(split),
            None => Err(closed()),
        });
        done.map_err(|e| error::to_python(py, &e))
    }
}

fn closed() -> Error {
    Error::bad_input("the build is closed, or of the process that this one was forked from")
}

#[pymethods]
impl Split {
    #[new]
    fn new(py: Python<'_>, base: PathBuf, path: PathBuf, options: Options) -> PyResult<Split> {
        let begun = py.detach(|| {
            let base = Reader::open(&base)?;
            let options = options.read()?.for_rows(base.shape());
            split::Split::begin(base, &path, options)
        });
        let split = begun.map_err(|e| error::to_python(py, &e))?;
        Ok(Split { open: Own::new(Mutex::new(Some(split))) })
    }

    /// Returns the partition of the work.
    fn describe(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |split| Ok(split.describe()))
    }

    /// Returns the advice to resume after an error.
    fn hint(&self, py: Python<'_>) -> PyResult<String> {
        let hint = self.with(py, |split| Ok(split.hint()))?;
        Ok(error::in_python(&hint))
    }

    /// Returns the job description for `run_task`, as JSON.
    fn job(&self, py: Python<'_>) -> PyResult<String> {
        let job = self.with(py, |split| Ok(split.job()))?;
        crate::json(py, &job)
    }

    /// Returns the present phase as JSON; None when all are finished.
    fn phase(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let phase = self.with(py, |split| split.phase())?;
        phase.map(|phase| crate::json(py, &phase)).transpose()
    }

    /// Records the results of `run_task` for the tasks of this phase, by name.
    fn complete(&self, py: Python<'_>, done: BTreeMap<String, String>, seconds: f64) -> PyResult<()> {
        self.with(py, |split| {
            let read = |(name, text): (String, String)| Ok((name, from_json::<Done>("a result", &text)?));
            let done = done.into_iter().map(read).collect::<Result<BTreeMap<String, Done>>>()?;
            split.complete(done, seconds)
        })
    }

    /// Publishes the index. Returns the report as JSON.
    fn publish(&self, py: Python<'_>) -> PyResult<String> {
        let published = py.detach(|| self.take().map_or_else(|| Err(closed()), split::Split::publish));
        let report = published.map_err(|e| error::to_python(py, &e))?;
        crate::json(py, &report)
    }

    /// Removes the unfinished build.
    fn abandon(&self) {
        if let Some(split) = self.take() {
            split.abandon();
        }
    }

    /// Releases the folder; finished work stays there.
    fn close(&self) {
        self.take();
    }
}

/// Runs one task of a build. Returns its result as JSON.
#[pyfunction]
pub(crate) fn run_task(
    py: Python<'_>,
    base: PathBuf,
    path: PathBuf,
    options: Options,
    job: &str,
    task: &str,
) -> PyResult<String> {
    let done = work::run(py, None, |progress| {
        let (task, job) = (task.parse::<Task>()?, from_json::<Job>("the job", job)?);
        let base = Reader::open(&base)?;
        let options = options.read()?.for_rows(base.shape());
        stratann_engine::build::run_task(&base, &path, &options, (job, task), progress)
    })?;
    crate::json(py, &done)
}

/// Reads rows, dimensions and element type from the header of a vector file.
#[pyfunction]
pub(crate) fn shape_of(py: Python<'_>, base: PathBuf) -> PyResult<(u64, usize, &'static str)> {
    let reader = py.detach(|| Reader::open(&base)).map_err(|e| error::to_python(py, &e))?;
    let shape = reader.shape();
    Ok((shape.rows, shape.dim, shape.dtype.name()))
}
