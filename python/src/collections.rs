//! A data folder with collections.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList};
use serde_json::json;
use stratann_kernel::{DType, Metric};
use stratann_node::collections::{
    self, Collection, Condition, GivenVectors, Kind, MemoryLimits, Node, Options, OrderBy, Point,
    SearchOptions, Spec, Specs,
};
use stratann_node::rows::{ExternalId, MEMORY_BYTES_MIN};
use stratann_params::IndexKind;
use stratann_payload::Path;
use stratann_payload::index::Unindexed;
use stratann_storage::{Error, ErrorKind, Quiet};

use crate::payloads::{PyChosen, PyFilter, PyUpdate, schema_of};
use crate::process::Own;
use crate::{error, work};

/// Creates the exception of an error of a collection.
fn raised(py: Python<'_>, error: &collections::Error) -> PyErr {
    let message = error.message.as_str();
    let with = |class: &str, number: u64| {
        let made = py
            .import("stratann._errors")
            .and_then(|m| m.getattr(class))
            .and_then(|c| c.call1((message, number)));
        made.map_or_else(|e| e, PyErr::from_value)
    };
    match error.kind {
        Kind::Missing => error::named(py, "MissingError", message),
        Kind::Busy => with("BusyError", error.retry_after_s().unwrap_or(1)),
        Kind::Unknown { seq } => with("UnknownOutcomeError", seq),
        Kind::DiskFull => error::named(py, "DiskError", message),
        Kind::ReadOnly => error::to_python(py, &Error { kind: ErrorKind::Corrupt, message: message.into() }),
        Kind::Other(kind) => error::to_python(py, &Error { kind, message: message.into() }),
    }
}

/// The smallest RAM budget of a data folder, in steps of 8 MiB.
fn least_budget() -> u64 {
    const STEP: u64 = 8 << 20;
    let is_enough =
        |steps: &u64| Options::of_budget(Some(steps * STEP)).rows.memory_bytes >= MEMORY_BYTES_MIN;
    (1..1024).find(is_enough).unwrap_or(1024) * STEP
}

/// An id of the Python half: an int, a str, or the bytes of a UUID.
pub(crate) struct PyId(ExternalId);

impl<'py> FromPyObject<'_, 'py> for PyId {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<PyId> {
        let wrong = |e: Error| error::input(object.py(), &e.message);
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(PyId(ExternalId::Uuid(bytes.as_bytes().try_into()?)));
        }
        if let Ok(text) = object.extract::<String>() {
            return ExternalId::of_string(&text).map(PyId).map_err(wrong);
        }
        Ok(PyId(ExternalId::Number(object.extract()?)))
    }
}

/// The id as the Python half gets it.
pub(crate) fn id_object<'py>(py: Python<'py>, id: &ExternalId) -> PyResult<Bound<'py, PyAny>> {
    Ok(match id {
        ExternalId::Number(number) => number.into_pyobject(py)?.into_any(),
        ExternalId::Uuid(bytes) => PyBytes::new(py, bytes).into_any(),
        ExternalId::Text(text) => text.into_pyobject(py)?.into_any(),
    })
}

pub(crate) fn plain(ids: Vec<PyId>) -> Vec<ExternalId> {
    ids.into_iter().map(|id| id.0).collect()
}

/// Sequence number; points that are new, replaced and given twice; ids that a condition left.
type PyUpserted<'py> = (u64, u64, u64, u64, Vec<Bound<'py, PyAny>>);

/// Points in the order of a field, the place of the next page, sequence number, conditions that read payloads.
type PyOrderedPage<'py> = (Vec<PyPoint<'py>>, Option<String>, u64, Vec<String>);

/// A point: id, sequence number of its change, bytes of its vector or of those that it has by name, and its payload as
/// JSON.
type PyPoint<'py> = (Bound<'py, PyAny>, u64, Bound<'py, PyAny>, Option<Vec<u8>>);
/// Vectors of a new collection: name, dimensions, and metric, type and kind. One alone has an empty name.
type PySpec = (String, usize, (String, String, String));
/// Vectors of a collection: name, dimensions, metric, type and kind.
type PyDescribed = (String, usize, &'static str, &'static str, &'static str);
/// Vectors of a name: the name, bytes of those that are there, and which points have one.
type PyVectors<'py> = (String, PyReadonlyArray1<'py, u8>, Option<Vec<bool>>);
/// Sequence number, ids of each query, all distances one after another, payloads as JSON and vectors of all results
/// where they are asked for, and conditions that read payloads.
type PyHits<'py> = (
    u64,
    Bound<'py, PyList>,
    Bound<'py, PyArray1<f32>>,
    Option<Vec<Option<Vec<u8>>>>,
    Option<Vec<Bound<'py, PyArray1<u8>>>>,
    Vec<String>,
);
/// Points of a page, the id behind which the next one begins, sequence number, and conditions that read payloads.
type PyPage<'py> = (Vec<PyPoint<'py>>, Option<Bound<'py, PyAny>>, u64, Vec<String>);

pub(crate) fn texts(unindexed: &[Unindexed]) -> Vec<String> {
    unindexed.iter().map(ToString::to_string).collect()
}

fn point_object<'py>(py: Python<'py>, point: Point, specs: &Specs) -> PyResult<PyPoint<'py>> {
    let id = id_object(py, &point.id)?;
    let mut named = specs.iter().zip(point.vectors).filter_map(|(own, vector)| Some((&own.name, vector?)));
    let vectors = if specs.has_names() {
        let vectors = PyDict::new(py);
        named.try_for_each(|(name, vector)| vectors.set_item(name, vector.into_pyarray(py)))?;
        vectors.into_any()
    } else {
        named.next().map_or_else(Vec::new, |(_, vector)| vector).into_pyarray(py).into_any()
    };
    Ok((id, point.seq, vectors, point.payload))
}

/// A description of a collection as JSON.
fn described(name: &str, specs: &Specs) -> serde_json::Value {
    let of = |spec: &Spec| {
        json!({
            "dim": spec.dim,
            "metric": spec.metric.name(),
            "dtype": spec.dtype.name(),
            "kind": spec.kind.map_or("auto", IndexKind::name),
        })
    };
    let mut all = match specs.only() {
        Ok(spec) => of(spec),
        Err(_) => {
            let each = specs.iter().map(|own| (own.name.clone(), of(&own.spec)));
            json!({ "vectors": each.collect::<serde_json::Map<_, _>>() })
        }
    };
    all["name"] = name.into();
    all
}

/// Reads what vectors are.
fn spec_of(py: Python<'_>, (name, dim, of): PySpec) -> PyResult<(String, Spec)> {
    let (metric, dtype, kind) = (of.0.as_str(), of.1.as_str(), of.2.as_str());
    let unknown = |what: &str, given: &str, names: Vec<&str>| {
        let names = stratann_params::list_of(names.iter().map(|name| format!("{name:?}")));
        error::input(py, &format!("{what} is {given:?}; use {names}"))
    };
    let all_kinds = || ["auto"].into_iter().chain(IndexKind::ALL.map(IndexKind::name)).collect();
    let spec = Spec {
        dim,
        metric: Metric::from_name(metric)
            .ok_or_else(|| unknown("metric", metric, Metric::ALL.map(Metric::name).to_vec()))?,
        dtype: DType::from_name(dtype)
            .ok_or_else(|| unknown("dtype", dtype, DType::ALL.map(DType::name).to_vec()))?,
        kind: match kind {
            "auto" => None,
            name => Some(IndexKind::parse(name).ok_or_else(|| unknown("kind", name, all_kinds()))?),
        },
    };
    Ok((name, spec))
}

/// The vectors of a change, as the collection takes them.
fn given<'a>(vectors: &'a [PyVectors<'_>]) -> PyResult<Vec<GivenVectors<'a>>> {
    let of = |(name, vectors, has): &'a PyVectors<'_>| {
        Ok(GivenVectors { name, vectors: vectors.as_slice()?, has: has.as_deref() })
    };
    vectors.iter().map(of).collect()
}

/// An open data folder.
#[pyclass(frozen, module = "stratann._stratann")]
pub(crate) struct DataFolder {
    open: Own<Mutex<Option<Arc<Node>>>>,
}

impl DataFolder {
    fn node(&self, py: Python<'_>) -> PyResult<Arc<Node>> {
        let held = self.open.get(py, "the client")?;
        let open = held.lock().unwrap_or_else(|e| e.into_inner()).clone();
        open.ok_or_else(|| error::input(py, "the client is closed; open it again"))
    }

    /// Runs a call with the GIL released.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Node) -> collections::Result<T> + Send,
    ) -> PyResult<T> {
        let node = self.node(py)?;
        py.detach(|| call(&node)).map_err(|e| raised(py, &e))
    }

    fn call_collection<T: Send>(
        &self,
        py: Python<'_>,
        name: &str,
        call: impl FnOnce(&Collection) -> collections::Result<T> + Send,
    ) -> PyResult<T> {
        self.call(py, |node| call(&node.collection(name)?))
    }
}

#[pymethods]
impl DataFolder {
    #[new]
    fn new(py: Python<'_>, path: PathBuf, ram_budget: Option<u64>) -> PyResult<DataFolder> {
        let opened = py.detach(|| Node::open(&path, &Options::of_budget(ram_budget), &Quiet));
        let node = opened.map_err(|mut e| {
            if e.kind == Kind::Other(ErrorKind::Budget) && ram_budget.is_some() {
                e.message += &format!("; give ram_budget=\"{}MiB\"", least_budget() >> 20);
            }
            raised(py, &e)
        })?;
        Ok(DataFolder { open: Own::new(Mutex::new(Some(Arc::new(node)))) })
    }

    fn close(&self, py: Python<'_>) {
        let node = self.open.here().and_then(|open| open.lock().unwrap_or_else(|e| e.into_inner()).take());
        // Closing waits for threads.
        py.detach(|| drop(node));
    }

    #[getter]
    fn closed(&self) -> bool {
        self.open.here().is_none_or(|open| open.lock().unwrap_or_else(|e| e.into_inner()).is_none())
    }

    /// Why nothing can be written, if the storage engine is damaged.
    fn read_only(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.node(py)?.why_read_only().map(String::from))
    }

    /// Makes a collection with these vectors. Limits are its memory quota and its minimum, in bytes.
    fn create(
        &self,
        py: Python<'_>,
        name: &str,
        vectors: Vec<PySpec>,
        limits: (Option<u64>, u64),
    ) -> PyResult<()> {
        let all = vectors.into_iter().map(|own| spec_of(py, own)).collect::<PyResult<Vec<_>>>()?;
        let limits = MemoryLimits { quota_bytes: limits.0, minimum_bytes: limits.1 };
        self.call(py, |node| node.create_limited(name, Specs::named(all)?, limits).map(drop))
    }

    /// Changes memory limits of a collection: `None` leaves one as it is, a quota of `(None,)` is none.
    fn set_limits(
        &self,
        py: Python<'_>,
        name: &str,
        quota: Option<(Option<u64>,)>,
        minimum: Option<u64>,
    ) -> PyResult<()> {
        let change = |own: &mut MemoryLimits| {
            own.quota_bytes = quota.map_or(own.quota_bytes, |quota| quota.0);
            own.minimum_bytes = minimum.unwrap_or(own.minimum_bytes);
        };
        self.call(py, |node| node.change_limits(name, change).map(drop))
    }

    /// Returns a list of all collections as JSON.
    fn collections(&self, py: Python<'_>) -> PyResult<String> {
        let all = self.call(py, Node::collections)?;
        let each = all.iter().map(|info| match &info.specs {
            Ok(specs) => described(&info.name, specs),
            Err(e) => json!({ "name": info.name, "error": e.message }),
        });
        crate::json(py, &each.collect::<Vec<_>>())
    }

    /// Drops a collection. Returns why some of it is removed later, if it is.
    fn drop(&self, py: Python<'_>, name: &str) -> PyResult<Option<String>> {
        let dropped = self.call(py, |node| node.drop_collection(name))?;
        Ok(dropped.unfinished.map(|e| e.message))
    }

    /// Returns name, dimensions, metric, element type and kind of the vectors of a collection. One without a name has
    /// an empty one.
    fn describe(&self, py: Python<'_>, name: &str) -> PyResult<Vec<PyDescribed>> {
        let specs = self.call_collection(py, name, |collection| Ok(collection.specs().clone()))?;
        let of = |own: &collections::NamedSpec| {
            let (spec, kind) = (own.spec, own.spec.kind.map_or("auto", IndexKind::name));
            (own.name.clone(), spec.dim, spec.metric.name(), spec.dtype.name(), kind)
        };
        Ok(specs.iter().map(of).collect())
    }

    /// Returns what a collection is made of as JSON.
    fn info(&self, py: Python<'_>, name: &str) -> PyResult<String> {
        let (specs, facts, schema) = self.call_collection(py, name, |collection| {
            Ok((collection.specs().clone(), collection.facts()?, collection.schema()?))
        })?;
        let segments = facts.segments.iter().map(|segment| {
            let mut own = json!({
                "number": segment.number,
                "rows": segment.rows,
                "dead": segment.dead,
                "bytes": segment.bytes,
            });
            let indexes = segment.indexes.iter().map(|index| {
                json!({ "vector_name": index.vector_name, "kind": index.kind.name(), "rows": index.rows })
            });
            match segment.kind {
                Some(kind) => own["kind"] = kind.name().into(),
                None => own["indexes"] = indexes.collect(),
            }
            own
        });
        let mut all = described(name, &specs);
        all["points"] = facts.points.into();
        all["seq"] = facts.seq.into();
        all["delta_points"] = facts.delta_points.into();
        all["delta_bytes"] = facts.delta_bytes.into();
        all["segments"] = segments.collect();
        all["indexes_built"] = facts.indexes_built.into();
        all["payloads_folded"] = facts.payloads_folded.into();
        all["rows_taken_over"] = facts.rows_taken_over.into();
        all["trouble_code"] = facts.trouble.as_ref().map(|e| e.kind.code()).into();
        all["trouble"] = facts.trouble.map(|e| e.message).into();
        all["schema"] = json!(schema);
        all["jobs"] = facts.jobs.into();
        let progress = facts.progress.iter().map(|own| {
            json!({
                "kind": own.kind,
                "stage": own.stage,
                "done": own.done,
                "total": own.total,
                "unit": own.unit,
                "elapsed_ms": own.elapsed_ms,
            })
        });
        all["progress"] = progress.collect();
        all["memory_bytes"] = facts.memory_bytes.into();
        all["memory_quota_bytes"] = facts.limits.quota_bytes.into();
        all["memory_minimum_bytes"] = facts.limits.minimum_bytes.into();
        crate::json(py, &all)
    }

    /// Writes points, with a payload as JSON or nothing for each: those of ids without a point, or those that no change
    /// behind a number wrote, or all. Returns the sequence number, how many were new, replaced and repeated, and the
    /// ids that were left as they were.
    fn upsert<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        ids: Vec<PyId>,
        vectors: Vec<PyVectors<'py>>,
        payloads: Option<Vec<Option<PyBackedBytes>>>,
        only: (bool, Option<u64>),
    ) -> PyResult<PyUpserted<'py>> {
        let (ids, given) = (plain(ids), given(&vectors)?);
        let payloads: Vec<Option<&[u8]>> = payloads.iter().flatten().map(|own| own.as_deref()).collect();
        let condition = match only {
            (true, _) => Condition::IfAbsent,
            (false, Some(seq)) => Condition::IfNotNewer(seq),
            (false, None) => Condition::Always,
        };
        let done = self.call_collection(py, name, |collection| {
            collection.upsert_named(&ids, &given, &payloads, condition)
        })?;
        let skipped = done.skipped.iter().map(|id| id_object(py, id)).collect::<PyResult<_>>()?;
        Ok((done.seq, done.new, done.replaced, done.repeated, skipped))
    }

    /// Changes vectors of points that are there. Returns the sequence number, and how many points were written again.
    fn update_vectors<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        ids: Vec<PyId>,
        vectors: Vec<PyVectors<'py>>,
    ) -> PyResult<(u64, u64)> {
        let (ids, given) = (plain(ids), given(&vectors)?);
        let done = self.call_collection(py, name, |collection| collection.update_vectors(&ids, &given))?;
        Ok((done.seq, done.changed))
    }

    /// Deletes points. Returns the sequence number, and how many are gone and were unknown.
    fn delete(&self, py: Python<'_>, name: &str, ids: Vec<PyId>) -> PyResult<(u64, u64, u64)> {
        let ids = plain(ids);
        let done = self.call_collection(py, name, |collection| collection.delete(&ids))?;
        Ok((done.seq, done.deleted, done.unknown))
    }

    /// Deletes points that match. Returns the sequence number, how many are gone and were changed meanwhile, and
    /// conditions that read payloads.
    fn delete_matching(
        &self,
        py: Python<'_>,
        name: &str,
        filter: PyFilter,
    ) -> PyResult<(u64, u64, u64, Vec<String>)> {
        let done = self.call_collection(py, name, |collection| {
            collection.delete_matching(&filter.compile(collection)?)
        })?;
        Ok((done.seq, done.deleted, done.changed, texts(&done.unindexed)))
    }

    /// Changes payloads. Returns the sequence number, and how many points have another payload, have the payload as it
    /// was, and were unknown.
    fn change_payload(
        &self,
        py: Python<'_>,
        name: &str,
        chosen: PyChosen,
        update: PyUpdate,
    ) -> PyResult<(u64, u64, u64, u64)> {
        let done = self.call_collection(py, name, |collection| chosen.change(collection, &update))?;
        Ok((done.seq, done.changed, done.unchanged, done.unknown))
    }

    /// Sets which fields of payloads are indexed: pairs of a path and its kinds of indexes.
    fn set_schema(&self, py: Python<'_>, name: &str, fields: Vec<(String, Vec<String>)>) -> PyResult<()> {
        self.call_collection(py, name, |collection| collection.set_schema(&schema_of(&fields)?))
    }

    /// Returns which fields of payloads are indexed as JSON.
    fn schema(&self, py: Python<'_>, name: &str) -> PyResult<String> {
        crate::json(py, &self.call_collection(py, name, Collection::schema)?)
    }

    /// Returns the nearest points of each query. `how` has the results of a query, the recall, the threads and the name
    /// of the vectors; `with_` says whether payloads and vectors are returned.
    fn search<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        queries: PyReadonlyArray1<'py, u8>,
        how: (usize, f64, usize, Option<String>),
        filter: Option<PyFilter>,
        with_: (bool, bool),
    ) -> PyResult<PyHits<'py>> {
        let (queries, (k, recall, threads, vector_name)) = (queries.as_slice()?, how);
        let (with_payload, with_vectors) = with_;
        let mut found = self.call_collection(py, name, |collection| {
            let options = SearchOptions {
                k,
                recall,
                threads,
                filter: filter.as_ref().map(|filter| filter.compile(collection)).transpose()?,
                with_payload,
                with_vectors,
                vector_name: vector_name.clone(),
                ..SearchOptions::default()
            };
            collection.search_with(queries, &options)
        })?;
        let of_query = |hits: &Vec<collections::Hit>| {
            let ids: Vec<_> = hits.iter().map(|hit| id_object(py, &hit.id)).collect::<PyResult<_>>()?;
            PyList::new(py, ids)
        };
        let ids: Vec<_> = found.hits.iter().map(of_query).collect::<PyResult<_>>()?;
        let distances: Vec<f32> = found.hits.iter().flatten().map(|hit| hit.distance).collect();
        let payloads = found.hits.iter_mut().flatten().map(|hit| hit.payload.take());
        let payloads = with_payload.then(|| payloads.collect());
        let vectors = found.hits.iter_mut().flatten().filter_map(|hit| hit.vector.take());
        let vectors = with_vectors.then(|| vectors.map(|bytes| bytes.into_pyarray(py)).collect());
        let distances = distances.into_pyarray(py);
        Ok((found.seq, PyList::new(py, ids)?, distances, payloads, vectors, texts(&found.unindexed)))
    }

    /// Returns points by their ids; `None` for an id without one.
    fn get<'py>(&self, py: Python<'py>, name: &str, ids: Vec<PyId>) -> PyResult<Vec<Option<PyPoint<'py>>>> {
        let ids = plain(ids);
        let (points, specs) = self.call_collection(py, name, |collection| {
            Ok((collection.get(&ids)?, collection.specs().clone()))
        })?;
        let object = |point: Option<Point>| point.map(|point| point_object(py, point, &specs)).transpose();
        points.into_iter().map(object).collect()
    }

    /// Number of points, or of those that match; how many at least and at most; and conditions that read payloads.
    fn count(
        &self,
        py: Python<'_>,
        name: &str,
        filter: Option<PyFilter>,
        exact: bool,
    ) -> PyResult<([u64; 3], Vec<String>)> {
        self.call_collection(py, name, |collection| match &filter {
            Some(filter) if exact => {
                let counted = collection.count_matching(&filter.compile(collection)?)?;
                Ok(([counted.points; 3], texts(&counted.unindexed)))
            }
            Some(filter) => {
                let about = collection.estimate_matching(&filter.compile(collection)?)?;
                Ok(([about.points, about.least, about.most], texts(&about.unindexed)))
            }
            None => Ok(([collection.count()?; 3], Vec::new())),
        })
    }

    /// Returns points behind an id, or those of them that match.
    fn scroll<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        after: Option<PyId>,
        limit: usize,
        filter: Option<PyFilter>,
    ) -> PyResult<PyPage<'py>> {
        let after = after.map(|id| id.0);
        let (page, specs) = self.call_collection(py, name, |collection| {
            let page = match &filter {
                Some(filter) => {
                    collection.scroll_matching(after.as_ref(), limit, &filter.compile(collection)?)
                }
                None => collection.scroll(after.as_ref(), limit),
            };
            Ok((page?, collection.specs().clone()))
        })?;
        let points = page.points.into_iter().map(|point| point_object(py, point, &specs));
        let points = points.collect::<PyResult<_>>()?;
        let next = page.next.as_ref().map(|id| id_object(py, id)).transpose()?;
        Ok((points, next, page.seq, texts(&page.unindexed)))
    }

    /// Returns points in the order of a field, or those of them that match: behind a place that a page before names.
    fn scroll_ordered<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        order: (String, bool),
        after: Option<String>,
        limit: usize,
        filter: Option<PyFilter>,
    ) -> PyResult<PyOrderedPage<'py>> {
        let (page, specs) = self.call_collection(py, name, |collection| {
            let by = OrderBy { field: Path::parse(&order.0)?, descending: order.1 };
            let filter = filter.as_ref().map(|filter| filter.compile(collection)).transpose()?;
            let page = collection.scroll_ordered(&by, after.as_deref(), limit, filter.as_ref())?;
            Ok((page, collection.specs().clone()))
        })?;
        let points = page.points.into_iter().map(|point| point_object(py, point, &specs));
        let points = points.collect::<PyResult<_>>()?;
        Ok((points, page.next, page.seq, texts(&page.unindexed)))
    }

    /// Asks for one segment of all points, which is made in the background.
    fn compact_later(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.call_collection(py, name, Collection::compact_later)
    }

    /// Makes one segment of all points.
    fn compact(&self, py: Python<'_>, name: &str, on_progress: Option<Py<PyAny>>) -> PyResult<()> {
        let node = self.node(py)?;
        let collection = node.collection(name).map_err(|e| raised(py, &e))?;
        // The errors of all crates have no kind of their own for those of a collection.
        let mut failed = None;
        let done = work::run(py, on_progress.as_ref(), |progress| {
            collection.compact(progress).map_err(|e| {
                let plain = match e.kind {
                    Kind::Other(ErrorKind::Interrupted) => Error {
                        kind: ErrorKind::Interrupted,
                        message: "all points are there; call compact again to make one segment".into(),
                    },
                    Kind::Other(kind) => Error { kind, message: e.message.clone() },
                    _ => Error { kind: ErrorKind::Io, message: e.message.clone() },
                };
                failed = Some(e);
                plain
            })
        });
        match failed {
            Some(e) if !matches!(e.kind, Kind::Other(_)) => Err(raised(py, &e)),
            _ => done,
        }
    }

    /// Compares all rows of a collection. Returns the sequence number and the points.
    fn verify(&self, py: Python<'_>, name: &str) -> PyResult<(u64, u64)> {
        let found = self.call(py, |node| node.verify(name))?;
        Ok((found.seq, found.points))
    }
}
