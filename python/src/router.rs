//! Routing of queries to servers: of a `remote-hnsw` by what they have cached, of a partitioned `disk-graph` by where
//! searches enter.

use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use stratann_engine::kinds::disk_graph::landmarks;
use stratann_engine::kinds::remote_hnsw::router;
use stratann_engine::{DType, Metric};

use crate::error;

/// Queries of a request, and what it needs.
type Part = (Vec<usize>, Vec<u32>);

fn is_answering(answers: &[bool]) -> impl Fn(usize) -> bool {
    |server| answers.get(server).copied().unwrap_or(false)
}

/// Threads that find the clusters of queries.
const THREADS: usize = 2;

/// See `stratann_engine`; the Python half asks the servers.
#[pyclass(frozen, module = "stratann._stratann")]
pub(crate) struct Router(router::Router);

#[pymethods]
impl Router {
    /// A router for the clusters of build `build`, of `bytes` each, and vectors of dimension, metric and element type
    /// `shape`.
    #[new]
    fn new(
        py: Python<'_>,
        build: u64,
        bytes: Vec<u32>,
        meta: &[u8],
        shape: (usize, String, String),
        servers: usize,
    ) -> PyResult<Router> {
        let (metric, dtype) = (Metric::from_name(&shape.1), DType::from_name(&shape.2));
        let own = metric.zip(dtype).and_then(|(metric, dtype)| {
            router::Router::new((build, bytes, meta.to_vec()), (shape.0, metric, dtype), servers)
        });
        let why = "the meta-HNSW of the servers is damaged, or of another version";
        own.map(Router).ok_or_else(|| error::named(py, "ServerError", why))
    }

    fn begin(&self) {
        self.0.begin();
    }

    /// The queries of each request, and the clusters that they need.
    fn divide(
        &self,
        py: Python<'_>,
        rows: PyReadonlyArray1<'_, u8>,
        nprobe: u32,
        each: usize,
    ) -> PyResult<Vec<Part>> {
        let rows = rows.as_slice()?;
        let batches = py.detach(|| self.0.divide(rows, nprobe, each, THREADS));
        Ok(batches.into_iter().map(|batch| (batch.queries, batch.needs)).collect())
    }

    /// The server of queries that need these clusters. `end` follows.
    fn choose(&self, needs: Vec<u32>, queries: usize, answers: Vec<bool>) -> usize {
        self.0.choose(&needs, queries, is_answering(&answers))
    }

    fn end(&self, server: usize, needs: Vec<u32>) {
        self.0.end(server, &needs);
    }

    fn version(&self, server: usize) -> u64 {
        self.0.version(server)
    }

    fn note(&self, server: usize, version: u64, bitmap: Option<&[u8]>) {
        self.0.note(server, version, bitmap.map(<[u8]>::to_vec));
    }

    /// The name of a counter of this run, and its value.
    fn counted(&self) -> (&'static str, u64) {
        ("routed_by_cache", self.0.by_cache())
    }
}

/// See `stratann_engine`; the Python half asks the servers. Its methods are those of [`Router`].
#[pyclass(frozen, module = "stratann._stratann")]
pub(crate) struct Landmarks(landmarks::Landmarks);

#[pymethods]
impl Landmarks {
    /// The landmarks of servers, as each gave them; `None` where none has any.
    #[staticmethod]
    fn of(of_servers: Vec<Vec<u8>>, shape: (usize, String, String)) -> Option<Landmarks> {
        let (metric, dtype) = (Metric::from_name(&shape.1)?, DType::from_name(&shape.2)?);
        let count = of_servers.len();
        let of_servers = of_servers.into_iter().enumerate();
        landmarks::Landmarks::new((shape.0, metric, dtype), count, of_servers).map(Landmarks)
    }

    fn begin(&self) {
        self.0.begin();
    }

    /// The queries of each request, and the server where they enter.
    fn divide(
        &self,
        py: Python<'_>,
        rows: PyReadonlyArray1<'_, u8>,
        nprobe: u32,
        each: usize,
    ) -> PyResult<Vec<Part>> {
        let _ = nprobe;
        let rows = rows.as_slice()?;
        let batches = py.detach(|| self.0.divide(rows, each));
        Ok(batches.into_iter().map(|(queries, server)| (queries, vec![server as u32])).collect())
    }

    fn choose(&self, needs: Vec<u32>, queries: usize, answers: Vec<bool>) -> usize {
        let entry = needs.first().map_or(0, |&server| server as usize);
        self.0.choose(entry, queries, is_answering(&answers))
    }

    fn end(&self, server: usize, needs: Vec<u32>) {
        let _ = (server, needs);
    }

    /// The name of a counter of this run, and its value.
    fn counted(&self) -> (&'static str, u64) {
        ("routed_by_entry", self.0.by_entry())
    }
}
