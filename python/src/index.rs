//! An open index.

use std::mem::take;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use stratann_core::sieve::Sieve;
use stratann_engine::dataset::check_row;
use stratann_engine::exec::BatchOptions;
use stratann_engine::explain::{explain, explain_filtered};
use stratann_engine::index::{self, CacheBudget, OpenOptions, UpdateOptions};
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{self, Answers, Filter, Filters, Naming, SearchOptions, Together};
use stratann_node::collections::Hit;
use stratann_node::points::{Matching, Points};
use stratann_params::IndexKind;
use stratann_params::open::OpenSettings;
use stratann_params::{Given, Place, Scope, Stage, Surface};
use stratann_storage::budget::{Account, size};
use stratann_storage::{Error, Progress, Quiet, Result};

use crate::collections::{id_object, texts};
use crate::memory::MemoryOpening;
use crate::payloads::PyFilter;
use crate::process::Own;
use crate::stats::Stats;
use crate::{error, memory, parameters, report, work};

/// Largest batch that is answered in the calling thread. Larger ones run in another thread, so that signals are
/// handled.
const SMALL_BATCH: usize = 256;

#[pyclass(frozen, module = "stratann._stratann")]
pub(crate) struct Index {
    open: Own<Mutex<Option<Arc<index::Index>>>>,
    /// Ids and payloads, where it was built with some.
    points: Own<Option<Points>>,
    /// Whether some id is no number.
    #[pyo3(get)]
    has_texts: bool,
    /// Number of rows when it was opened.
    rows: u64,
    #[pyo3(get)]
    dim: usize,
    #[pyo3(get)]
    metric: &'static str,
    #[pyo3(get)]
    dtype: &'static str,
    #[pyo3(get)]
    kind: String,
}

/// Parameters of opening.
pub(crate) struct Opening(Given);

impl<'py> FromPyObject<'_, 'py> for Opening {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Opening> {
        parameters::given(&object.cast::<PyDict>()?.to_owned(), &scope(Stage::Open, &[], Place::Folder), &[])
            .map(Opening)
    }
}

/// Parameters of a search, read from a dict of keywords.
pub(crate) struct How(Arc<Given>);

/// Parameters that calls of equal keywords share.
#[pyclass(frozen)]
pub(crate) struct SearchParameters(Arc<Given>);

#[pymethods]
impl SearchParameters {
    #[new]
    fn new(how: How) -> SearchParameters {
        SearchParameters(how.0)
    }
}

impl<'py> FromPyObject<'_, 'py> for How {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<How> {
        if let Ok(parameters) = object.cast::<SearchParameters>() {
            return Ok(How(parameters.get().0.clone()));
        }
        let scope = scope(Stage::Search, &[], Place::Folder);
        parameters::given(&object.cast::<PyDict>()?.to_owned(), &scope, &[]).map(|given| How(Arc::new(given)))
    }
}

fn scope(stage: Stage, kinds: &[IndexKind], place: Place) -> Scope {
    let stages: &[Stage] = match stage {
        Stage::Open => &[Stage::Open],
        _ => &[Stage::Search],
    };
    Scope { stages, kinds: kinds.to_vec(), place, surface: Surface::Python }
}

impl How {
    fn read(&self, queries: usize, indexes: &[&index::Index]) -> Result<SearchOptions> {
        let kinds: Vec<IndexKind> = indexes.iter().filter_map(|index| index.manifest().kind()).collect();
        let is_in_memory = indexes.iter().any(|index| index.is_in_memory_nodes());
        let place = if is_in_memory { Place::MemoryNodes } else { Place::Folder };
        let scope = scope(Stage::Search, &kinds, place);
        self.0.check(&scope)?;
        let having = self.0.kinds(scope.stages, &scope.kinds)?;
        let kind = having.first().copied().unwrap_or(IndexKind::Flat);
        let options = SearchOptions::read(&self.0, kind)?;
        let threads = options.threads.clamp(1, queries.max(1));
        let few = |index: &&index::Index| index.in_flight_of_few(queries.div_ceil(threads));
        let in_flight = options.in_flight.or_else(|| indexes.first().and_then(few));
        Ok(SearchOptions { threads, in_flight, ..options })
    }
}

impl Index {
    fn of((opened, points): (index::Index, Option<Points>)) -> Index {
        let has_texts = opened.manifest().points.as_ref().is_some_and(|points| !points.has_numbers());
        let view = opened.view();
        let (dim, metric, dtype) = (view.base.dim, view.base.metric.name(), view.base.dtype.name());
        let (rows, kind) = (opened.manifest().rows, opened.manifest().kind.clone());
        let (open, points) = (Own::new(Mutex::new(Some(Arc::new(opened)))), Own::new(points));
        Index { open, points, has_texts, rows, dim, metric, dtype, kind }
    }

    /// The open index. One whose memory nodes have another load by now is opened again.
    pub(crate) fn opened(&self, py: Python<'_>) -> PyResult<Arc<index::Index>> {
        let held = self.open.get(py, "the index")?;
        let open = held.lock().unwrap_or_else(|e| e.into_inner()).clone();
        let open = open.ok_or_else(|| error::input(py, "the index is closed; open it again"))?;
        if open.replaced().is_none() {
            return Ok(open);
        }
        let next = py.detach(|| {
            let next = open.reopened()?;
            open.check_successor(&next).map(|()| Arc::new(next))
        });
        let next = next.map_err(|e| error::to_python(py, &e))?;
        if let Some(held) = &mut *held.lock().unwrap_or_else(|e| e.into_inner()) {
            held.clone_from(&next);
        }
        Ok(next)
    }
}

#[pymethods]
impl Index {
    #[new]
    fn new(py: Python<'_>, path: PathBuf, how: Opening) -> PyResult<Index> {
        let opened = py.detach(|| {
            let (version, manifest) = Manifest::read(&path)?;
            let kinds: Vec<IndexKind> = manifest.kind().into_iter().collect();
            how.0.check(&scope(Stage::Open, &kinds, Place::Folder))?;
            let settings: OpenSettings = how.0.read();
            let (cache, preload) = (CacheBudget::from(settings.cache_budget), settings.preload);
            let mut options = OpenOptions::read(&how.0)?;
            let points = Points::open(&path, &manifest)?;
            options.ram_budget = left_beside(points.as_ref(), options.ram_budget)?;
            options.search_reserve = search::usual_reserve(&manifest, BatchOptions::default(), 1);
            let reserve = &options.search_reserve;
            options.cache_budget = cache.shared_bytes(&manifest, options.ram_budget, reserve);
            // A size that was given is of this index alone.
            options.lends_cache = cache.given().is_none() && options.ram_budget.is_none();
            let mut index = index::Index::open(&path, options)?;
            if index.version() != version {
                return Err(Error::bad_input(format!(
                    "{} got a newer version meanwhile; open it again",
                    path.display()
                )));
            }
            index.make_resident(&Quiet)?;
            if preload {
                index.preload(&Quiet)?;
            }
            Ok((index, points))
        });
        opened.map(Index::of).map_err(|e| error::to_python(py, &e))
    }

    /// Opens what memory nodes hold.
    #[staticmethod]
    fn of_memory(py: Python<'_>, addresses: Vec<String>, how: MemoryOpening) -> PyResult<Index> {
        let opened = py.detach(|| how.open(&addresses));
        opened.map(|own| Index::of((own, None))).map_err(|e| error::to_python(py, &e))
    }

    fn close(&self) {
        if let Some(open) = self.open.here() {
            open.lock().unwrap_or_else(|e| e.into_inner()).take();
        }
    }

    #[getter]
    fn closed(&self) -> bool {
        self.open.here().is_none_or(|open| open.lock().unwrap_or_else(|e| e.into_inner()).is_none())
    }

    /// Returns the number of the opened manifest, and the manifest as JSON.
    fn manifest(&self, py: Python<'_>) -> PyResult<(u64, String)> {
        let open = self.opened(py)?;
        Ok((open.version(), crate::json(py, open.manifest())?))
    }

    /// Returns harmless problems that were found at opening.
    fn warnings(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.opened(py)?.warnings().to_vec())
    }

    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let mut all = self.opened(py)?.account();
        if let Some(points) = self.points.get(py, "the index")? {
            all.add("ids and payloads", points.memory_bytes());
        }
        account(py, &all)
    }

    /// Answers queries given as bytes. Returns a dict for the Python half.
    fn search<'py>(
        &self,
        py: Python<'py>,
        queries: PyReadonlyArray1<'py, u8>,
        how: How,
        filters: Option<PyFilters<'py>>,
        on_progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let open = self.opened(py)?;
        let bytes = queries.as_slice()?;
        let count = bytes.len() / open.row_bytes();
        let options = how.read(count, &[&*open]).map_err(|e| error::to_python(py, &e))?;
        if let Some(rows) = &filters {
            let named = NamedRows::new(rows)?;
            let search = |open: &index::Index| {
                work::run(py, on_progress.as_ref(), |progress| {
                    check_queries(open, bytes)?;
                    search_filtered(open, bytes, &named, &options, progress)
                })
            };
            let answers = match search(&open) {
                Err(_) if open.replaced().is_some() => search(&*self.opened(py)?)?,
                answers => answers?,
            };
            return answers_dict(py, answers, options);
        }
        let search = |open: &index::Index| {
            if count <= SMALL_BATCH && on_progress.is_none() {
                return py
                    .detach(|| check_queries(open, bytes).and_then(|()| open.search(bytes, &options, &Quiet)))
                    .map_err(|e| error::to_python(py, &e));
            }
            work::run(py, on_progress.as_ref(), |progress| {
                check_queries(open, bytes)?;
                progress.stage("search", count as u64, "queries");
                open.search(bytes, &options, progress)
            })
        };
        let answers = match search(&open) {
            // The memory nodes have another load, which is asked in its place.
            Err(_) if open.replaced().is_some() => search(&*self.opened(py)?)?,
            answers => answers?,
        };
        answers_dict(py, answers, options)
    }

    /// Answers queries given as bytes, which may return rows whose payloads match a filter alone. Returns the dict of
    /// `search`; ids and payloads of all results one after another, where ids are no numbers and where payloads are
    /// asked for; and conditions that read payloads.
    fn search_points<'py>(
        &self,
        py: Python<'py>,
        queries: PyReadonlyArray1<'py, u8>,
        how: How,
        wanted: (Option<PyFilter>, bool),
        on_progress: Option<Py<PyAny>>,
    ) -> PyResult<(Bound<'py, PyDict>, PyPoints<'py>)> {
        let (open, (filter, with_payload)) = (self.opened(py)?, wanted);
        let points = self.points.get(py, "the index")?.as_ref().ok_or_else(|| {
            let path = open.folder().display();
            let why = "has no payloads; build it again with payload=…, as `stratann.build` describes";
            error::input(py, &format!("{path} {why}"))
        })?;
        let bytes = queries.as_slice()?;
        let options = how.read(bytes.len() / open.row_bytes(), &[&*open]);
        let options = options.map_err(|e| error::to_python(py, &e))?;
        let (answers, hits, unindexed) = work::run(py, on_progress.as_ref(), |progress| {
            check_queries(&open, bytes)?;
            let matching = filter.as_ref().map(|filter| matching(points, filter)).transpose()?;
            let rows =
                matching.as_ref().map(|found| open.filter_of_rows(&found.rows, &options)).transpose()?;
            let filters = rows.as_ref().map_or(Filters::None, Filters::Shared);
            let answers = open.search_filtered(bytes, filters, &options, progress)?;
            let queries = 0..answers.counts.len();
            let hits = queries.map(|query| points.hits(answers.results(query), with_payload));
            let hits = hits.collect::<Result<Vec<_>>>()?;
            let unindexed = matching.iter().flat_map(|found| &found.unindexed).cloned();
            Ok((answers, hits, unindexed.collect::<Vec<_>>()))
        })?;
        let hits: Vec<Hit> = hits.into_iter().flatten().collect();
        let ids: Vec<_> = hits.iter().map(|hit| id_object(py, &hit.id)).collect::<PyResult<_>>()?;
        let ids = self.has_texts.then(|| PyList::new(py, ids)).transpose()?;
        let payloads = with_payload.then(|| hits.into_iter().map(|hit| hit.payload).collect());
        Ok((answers_dict(py, answers, options)?, (ids, payloads, texts(&unindexed))))
    }

    /// Inserts vectors given as bytes.
    fn upsert<'py>(
        &self,
        py: Python<'py>,
        ids: PyReadonlyArray1<'py, u64>,
        vectors: PyReadonlyArray1<'py, u8>,
        new_ids: bool,
        how: &Bound<'py, PyDict>,
        on_progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (open, ids, vectors) = (self.opened(py)?, ids.as_slice()?, vectors.as_slice()?);
        let options = UpdateOptions::read(&parameters::checked(how, &[Stage::Update])?, new_ids);
        let made = work::run(py, on_progress.as_ref(), |progress| {
            progress.stage("insert", ids.len() as u64, "vectors");
            memory::made(open.upsert(ids, vectors, &options, progress))
        })?;
        memory::updates_dict(py, made, open.rebuilds())
    }

    /// Deletes ids.
    fn delete<'py>(
        &self,
        py: Python<'py>,
        ids: PyReadonlyArray1<'py, u64>,
        how: &Bound<'py, PyDict>,
        on_progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (open, ids) = (self.opened(py)?, ids.as_slice()?);
        let options = UpdateOptions::read(&parameters::checked(how, &[Stage::Update])?, false);
        let made = work::run(py, on_progress.as_ref(), |progress| {
            progress.stage("delete", ids.len() as u64, "ids");
            memory::made(open.delete(ids, &options, progress))
        })?;
        memory::updates_dict(py, made, open.rebuilds())
    }

    /// Number of vectors. Those in memory nodes are counted, since others change them.
    #[getter]
    fn rows(&self, py: Python<'_>) -> PyResult<u64> {
        // A closed index still has its name and size.
        let Ok(open) = self.opened(py) else { return Ok(self.rows) };
        if !open.is_in_memory_nodes() {
            return Ok(self.rows);
        }
        py.detach(|| open.rows()).map_err(|e| error::to_python(py, &e))
    }

    /// Returns what memory nodes hold as JSON; `None` of an index in a folder.
    fn live_facts(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let open = self.opened(py)?;
        if !open.is_in_memory_nodes() {
            return Ok(None);
        }
        let facts = py.detach(|| open.live_facts()).map_err(|e| error::to_python(py, &e))?;
        crate::json(py, &facts).map(Some)
    }

    /// Verifies what memory nodes hold. Returns the report as JSON; `None` of an index in a folder.
    fn verify_memory(&self, py: Python<'_>, on_progress: Option<Py<PyAny>>) -> PyResult<Option<String>> {
        let open = self.opened(py)?;
        if !open.is_in_memory_nodes() {
            return Ok(None);
        }
        let report = work::run(py, on_progress.as_ref(), |progress| open.verify_memory(progress))?;
        crate::json(py, &report).map(Some)
    }

    /// Traces a query given as bytes. Returns the document of `stratann explain` as JSON.
    fn explain<'py>(
        &self,
        py: Python<'py>,
        query: PyReadonlyArray1<'py, u8>,
        how: How,
        filters: Option<PyFilters<'py>>,
    ) -> PyResult<String> {
        let open = self.opened(py)?;
        let query = query.as_slice()?;
        let numbered = open.manifest().check_numbered(open.folder(), "a trace");
        numbered.map_err(|e| error::to_python(py, &e))?;
        let named = filters.as_ref().map(NamedRows::new).transpose()?;
        let traced = || {
            check_queries(&open, query)?;
            let options = how.read(1, &[&*open])?;
            let Some(named) = named else { return explain(&open, query, &options) };
            match named.filters(&open, &options, &Quiet)?.first() {
                Some(filter) => explain_filtered(&open, query, filter, &options),
                None => explain(&open, query, &options),
            }
        };
        report::trace(py, &traced().map_err(|e| error::to_python(py, &e))?)
    }
}

/// Answers queries given as bytes from several indexes. Returns a dict for the Python half.
#[pyfunction]
pub(crate) fn search_together<'py>(
    py: Python<'py>,
    indexes: Vec<PyRef<'py, Index>>,
    queries: PyReadonlyArray1<'py, u8>,
    how: How,
    filters: Option<PyFilters<'py>>,
    partial: bool,
    on_progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let open: Vec<Arc<index::Index>> =
        indexes.iter().map(|index| index.opened(py)).collect::<PyResult<_>>()?;
    let together = Together::new(open.iter().map(|index| &**index)).map_err(|e| error::to_python(py, &e))?;
    let Some(first) = open.first() else { return Err(error::input(py, "no index is given")) };
    let bytes = queries.as_slice()?;
    let count = bytes.len() / first.row_bytes();
    let all: Vec<&index::Index> = open.iter().map(|index| &**index).collect();
    let mut each =
        all.iter().map(|index| index.manifest().check_numbered(index.folder(), "a search of several"));
    each.try_for_each(|numbered| numbered.map_err(|e| error::to_python(py, &e)))?;
    let options = how.read(count * open.len(), &all).map_err(|e| error::to_python(py, &e))?;
    let named = filters.as_ref().map(NamedRows::new).transpose()?;
    let answers = work::run(py, on_progress.as_ref(), |progress| {
        check_queries(first, bytes)?;
        // Each index has a part of the rows that are named.
        let own = |index: &&index::Index| {
            named.as_ref().map_or(Ok(Vec::new()), |named| named.filters(index, &options, progress))
        };
        let own: Vec<Vec<Filter>> = all.iter().map(own).collect::<Result<_>>()?;
        let of_index = own.iter().map(|own| named.as_ref().map_or(Filters::None, |named| named.of(own)));
        let filters: Vec<Filters<'_>> = of_index.collect();
        progress.stage("search", (count * open.len()) as u64, "queries");
        together.search_filtered(bytes, &filters, &options, partial, progress)
    })?;
    answers_dict(py, answers, options)
}

/// Filters of the Python half: whether they name rows that may not be returned, whether each query has its own, whether
/// some are masks, and the ids.
pub(crate) type PyFilters<'py> = (bool, bool, bool, Vec<PyReadonlyArray1<'py, u64>>);

/// The rows that filters name.
pub(crate) struct NamedRows<'a> {
    naming: Naming,
    pub(crate) is_each: bool,
    has_mask: bool,
    ids: Vec<&'a [u64]>,
}

impl<'a> NamedRows<'a> {
    pub(crate) fn new((is_without, is_each, has_mask, ids): &'a PyFilters<'_>) -> PyResult<NamedRows<'a>> {
        let ids = ids.iter().map(|ids| Ok(ids.as_slice()?)).collect::<PyResult<_>>()?;
        let naming = if *is_without { Naming::Without } else { Naming::Only };
        Ok(NamedRows { naming, is_each: *is_each, has_mask: *has_mask, ids })
    }

    /// The rows of a set of so many, whose ids are their numbers.
    pub(crate) fn sieves(&self, rows: u64) -> Result<Vec<Sieve>> {
        self.ids.iter().map(|ids| self.naming.rows(ids, rows)).collect()
    }

    /// The filters of an index.
    fn filters(
        &self,
        open: &index::Index,
        options: &SearchOptions,
        progress: &dyn Progress,
    ) -> Result<Vec<Filter>> {
        if self.has_mask && !open.has_row_numbers(progress)? {
            return Err(Error::bad_input(
                "a mask is for an index whose ids are the numbers of its rows; give the ids of rows instead",
            ));
        }
        open.filters(&self.ids, self.naming, options, progress)
    }

    /// Those of an index, for all queries or for each.
    fn of<'f>(&self, filters: &'f [Filter]) -> Filters<'f> {
        match filters.first() {
            Some(shared) if !self.is_each => Filters::Shared(shared),
            _ => Filters::Each(filters),
        }
    }
}

/// Answers queries given as bytes, which may return the rows of filters alone.
fn search_filtered(
    open: &index::Index,
    queries: &[u8],
    named: &NamedRows<'_>,
    options: &SearchOptions,
    progress: &dyn Progress,
) -> Result<Answers> {
    let filters = named.filters(open, options, progress)?;
    open.search_filtered(queries, named.of(&filters), options, progress)
}

/// Ids and payloads of all results, and conditions that read payloads.
type PyPoints<'py> = (Option<Bound<'py, PyList>>, Option<Vec<Option<Vec<u8>>>>, Vec<String>);

/// The rows of an index that match a filter.
fn matching(points: &Points, filter: &PyFilter) -> Result<Arc<Matching>> {
    let (predicate, is_indexed_only) = filter.predicate()?;
    if is_indexed_only {
        points.check_indexed(&predicate)?;
    }
    points.matching(&predicate)
}

/// What ids and payloads leave of a RAM budget.
fn left_beside(points: Option<&Points>, ram_budget: Option<u64>) -> Result<Option<u64>> {
    let (Some(points), Some(budget)) = (points, ram_budget) else { return Ok(ram_budget) };
    let taken = points.memory_bytes();
    budget.checked_sub(taken).map(Some).ok_or_else(|| {
        Error::budget(format!("ids and payloads of this index take {}; give a larger budget", size(taken)))
    })
}

/// Refuses queries without valid distances.
fn check_queries(index: &index::Index, queries: &[u8]) -> Result<()> {
    let view = index.view();
    for (number, row) in queries.chunks_exact(index.row_bytes()).enumerate() {
        if let Some(bad) = check_row(view.base.dtype, view.base.metric, row) {
            return Err(Error::bad_input(format!("query {number}: {bad}; correct it or leave it out")));
        }
    }
    Ok(())
}

pub(crate) fn account<'py>(py: Python<'py>, account: &Account) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (what, bytes) in &account.components {
        dict.set_item(what, bytes)?;
    }
    dict.set_item("total", account.total())?;
    Ok(dict)
}

fn answers_dict<'py>(
    py: Python<'py>,
    mut answers: Answers,
    options: SearchOptions,
) -> PyResult<Bound<'py, PyDict>> {
    let latency_us: Vec<f64> = answers.latency_ns.iter().map(|&ns| ns as f64 / 1000.0).collect();
    let dict = PyDict::new(py);
    dict.set_item("k", answers.k)?;
    dict.set_item("ids", take(&mut answers.ids).into_pyarray(py))?;
    dict.set_item("distances", take(&mut answers.distances).into_pyarray(py))?;
    dict.set_item("counts", take(&mut answers.counts).into_pyarray(py))?;
    dict.set_item("latency_us", PyArray1::from_vec(py, latency_us))?;
    dict.set_item("short", answers.short)?;
    dict.set_item("failed", take(&mut answers.failed))?;
    dict.set_item("stats", Stats::new(answers, options))?;
    Ok(dict)
}
