//! Routing of queries to the servers of a `remote-hnsw` by what they have cached.

use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use stratann_engine::kinds::remote_hnsw::router;
use stratann_engine::{DType, Metric};

use crate::error;

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
    ) -> PyResult<Vec<(Vec<usize>, Vec<u32>)>> {
        let rows = rows.as_slice()?;
        let batches = py.detach(|| self.0.divide(rows, nprobe, each, THREADS));
        Ok(batches.into_iter().map(|batch| (batch.queries, batch.needs)).collect())
    }

    /// The server of queries that need these clusters. `end` follows.
    fn choose(&self, needs: Vec<u32>, queries: usize, answers: Vec<bool>) -> usize {
        self.0.choose(&needs, queries, |server| answers.get(server).copied().unwrap_or(false))
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

    fn by_cache(&self) -> u64 {
        self.0.by_cache()
    }
}
