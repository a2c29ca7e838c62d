//! Builds and exact neighbours.

use std::path::PathBuf;

use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use stratann_engine as engine;
use stratann_engine::build::{BuildOptions, OptionsByKind, metric_of};
use stratann_engine::dataset::Reader;
use stratann_engine::groundtruth::Only;
use stratann_engine::kinds::known::ON_DISK;
use stratann_params::build::CommonOptions;
use stratann_params::measure::TruthSettings;
use stratann_params::{Given, IndexKind, Place, Scope, Stage, Surface, list_of};
use stratann_storage::{Error, Progress, Result};

use crate::index::{NamedRows, PyFilters};
use crate::vectors::Vectors;
use crate::{error, parameters, work};

/// Options of a build, as the table of parameters has them.
pub(crate) struct Options {
    kind: String,
    given: Given,
}

impl<'py> FromPyObject<'_, 'py> for Options {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Options> {
        let options = object.cast::<PyDict>()?;
        let kind: String = options.get_item("kind")?.map_or(Ok("auto".into()), |kind| kind.extract())?;
        let scope = scope(IndexKind::parse(&kind));
        let given = parameters::given(&options, &scope, &["kind"])?;
        Ok(Options { kind, given })
    }
}

fn scope(kind: Option<IndexKind>) -> Scope {
    Scope {
        stages: &[Stage::Build],
        kinds: kind.into_iter().collect(),
        place: Place::Folder,
        surface: Surface::Python,
    }
}

impl Options {
    /// Returns the options of a build whose kind is given.
    pub(crate) fn read(&self) -> Result<BuildOptions> {
        let kind = IndexKind::parse(&self.kind).ok_or_else(|| {
            let known = ["auto"]
                .into_iter()
                .chain(IndexKind::ALL.map(IndexKind::name))
                .map(|name| format!("{name:?}"));
            Error::bad_input(format!("kind is {:?}; use {}", self.kind, list_of(known)))
        })?;
        self.given.check(&scope(Some(kind)))?;
        let own = OptionsByKind::read(&self.given).of(kind);
        BuildOptions::read(&self.given, own)
    }

    /// Whether the kind is chosen by the vectors.
    fn is_auto(&self) -> bool {
        self.kind == "auto"
    }

    /// Returns the options that do not depend on the vectors. Those of a kind that is chosen by them are not among
    /// them.
    pub(crate) fn common(&self) -> Result<BuildOptions> {
        if !self.is_auto() {
            return self.read();
        }
        self.given.check(&scope(None))?;
        BuildOptions::read(&self.given, IndexKind::Flat)
    }

    /// Returns the options of a build of `base`, which begin as those of [`Options::common`]. The kind `"auto"` is
    /// chosen by its vectors, and noted.
    pub(crate) fn for_base(
        &self,
        common: BuildOptions,
        base: &Reader,
        progress: &dyn Progress,
    ) -> Result<BuildOptions> {
        if !self.is_auto() {
            return Ok(common.for_rows(base.shape()));
        }
        let among = self.given.kinds(scope(None).stages, &ON_DISK)?;
        let by_kind = OptionsByKind::read(&self.given);
        let choice = engine::build::choose(base, &among, &by_kind, &common, progress)?;
        progress.note(&format!("kind=\"auto\": {}: {}", choice.kind.name(), choice.why));
        Ok(BuildOptions { kind: by_kind.of(choice.kind), ..common }.for_rows(base.shape()))
    }
}

/// Builds an index. Returns the report as JSON.
#[pyfunction]
pub(crate) fn build<'py>(
    py: Python<'py>,
    base: Vectors<'py>,
    path: PathBuf,
    options: Options,
    on_progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let base = base.open(py)?;
    let report = work::run(py, on_progress.as_ref(), |progress| {
        let options = options.for_base(options.common()?, &base, progress)?;
        progress.note(&engine::build::plan(&base, &options)?.describe());
        engine::build::build(&base, &path, &options, progress)
    })?;
    crate::json(py, &report)
}

type Neighbours<'py> = (usize, Bound<'py, PyArray1<u32>>, Bound<'py, PyArray1<f32>>);

/// Computes exact neighbours: results per query, row numbers, distances.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // One for each argument of the Python function.
pub(crate) fn groundtruth<'py>(
    py: Python<'py>,
    base: Vectors<'py>,
    queries: Vectors<'py>,
    how: &Bound<'py, PyDict>,
    filters: Option<PyFilters<'py>>,
    on_progress: Option<Py<PyAny>>,
) -> PyResult<Neighbours<'py>> {
    let given = parameters::checked(how, &[Stage::Truth])?;
    let (settings, common): (TruthSettings, CommonOptions) = (given.read(), given.read());
    let (base, queries) = (base.open(py)?, queries.open(py)?);
    let named = filters.as_ref().map(NamedRows::new).transpose()?;
    let truth = work::run(py, on_progress.as_ref(), |progress| {
        let sieves = named.as_ref().map(|named| named.sieves(base.shape().rows)).transpose()?;
        let only = match (&named, sieves.as_deref()) {
            (Some(named), Some([shared])) if !named.is_each => Only::Shared(shared),
            (_, Some(each)) => Only::Each(each),
            (_, None) => Only::All,
        };
        let (metric, budget) = (metric_of(common.metric), settings.ram_budget.unwrap_or(u64::MAX));
        let exact = || {
            engine::groundtruth::exact_with(
                &base,
                &queries,
                (metric, settings.k),
                budget,
                engine::groundtruth::Rows { on_bad_row: common.on_bad_row, only },
                progress,
            )
        };
        work::in_pool(common.threads.unwrap_or(0), exact)
    })?;
    Ok((truth.k, truth.ids.into_pyarray(py), truth.distances.into_pyarray(py)))
}

/// Parses a size such as `2GiB`.
#[pyfunction]
pub(crate) fn parse_size(py: Python<'_>, text: &str) -> PyResult<u64> {
    stratann_params::parse_size(text).map_err(|e| error::input(py, &e))
}
