//! Routes the queries of a client to the servers of a `remote-hnsw`: the clusters that a query needs, by the meta-HNSW
//! of the servers, and the table of those that each has cached. Without I/O: the client asks, and notes the replies.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use stratann_core::format::hnsw::{HnswLayout, HnswName};
use stratann_core::kinds::remote_hnsw::Chooser;

use super::affinity::{Batch, CacheTable, Choice, divide};
use crate::{DType, Metric};

/// Servers of one `remote-hnsw`, and what they have cached.
pub struct Router {
    layout: HnswLayout,
    name: HnswName,
    meta: Vec<u8>,
    types: (Metric, DType),
    table: Mutex<CacheTable>,
    /// Queries that went to a server because of its cache.
    by_cache: AtomicU64,
}

/// Needs of a query that are known before it is sent anywhere.
pub struct Needs<'a> {
    chooser: Chooser<'a>,
    types: (Metric, DType),
}

impl Needs<'_> {
    /// Appends the clusters that a query needs, the nearest first.
    pub fn of(&mut self, query: &[u8], nprobe: u32, out: &mut Vec<u32>) {
        self.chooser.choose(self.types, query, nprobe, out);
    }
}

/// The server of a batch, whose clusters are expected there until this is dropped.
pub struct Routed<'a> {
    router: &'a Router,
    /// Number of the server.
    pub server: usize,
    needs: &'a [u32],
}

impl Drop for Routed<'_> {
    fn drop(&mut self) {
        self.router.end(self.server, self.needs);
    }
}

impl Router {
    /// A router for the clusters of `bytes` each of build `build`; `None` where the meta-HNSW is damaged, or that of
    /// another build.
    pub fn new(
        (build, bytes, meta): (u64, Vec<u32>, Vec<u8>),
        (dim, metric, dtype): (usize, Metric, DType),
        servers: usize,
    ) -> Option<Router> {
        let own = Router {
            layout: HnswLayout { vector_bytes: dim * dtype.size(), norms: metric == Metric::Cosine },
            name: HnswName::meta(build),
            meta,
            types: (metric, dtype),
            table: Mutex::new(CacheTable::new(bytes, servers)),
            by_cache: AtomicU64::new(0),
        };
        let is_sound = own.needs().is_some();
        is_sound.then_some(own)
    }

    fn table(&self) -> MutexGuard<'_, CacheTable> {
        self.table.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Finder of the needs of queries, for one thread.
    pub fn needs(&self) -> Option<Needs<'_>> {
        let chooser = Chooser::open(&self.layout, &self.name, &self.meta)?;
        Some(Needs { chooser, types: self.types })
    }

    /// Begins a run: shares and queries are counted from here on.
    pub fn begin(&self) {
        self.table().begin();
        self.by_cache.store(0, Ordering::Relaxed);
    }

    /// Divides queries into batches, so that those that need the same clusters are together.
    pub fn divide(&self, rows: &[u8], nprobe: u32, each: usize, threads: usize) -> Vec<Batch> {
        let row_bytes = self.layout.vector_bytes.max(1);
        let mut needs = vec![Vec::new(); rows.len() / row_bytes];
        let part = needs.len().div_ceil(threads.max(1)).max(1);
        std::thread::scope(|scope| {
            for (needs, rows) in needs.chunks_mut(part).zip(rows.chunks(part * row_bytes)) {
                scope.spawn(move || {
                    let Some(mut found) = self.needs() else { return };
                    for (own, row) in needs.iter_mut().zip(rows.chunks_exact(row_bytes)) {
                        found.of(row, nprobe, own);
                    }
                });
            }
        });
        divide(&needs, each, self.table().servers())
    }

    /// Chooses the server of `queries` queries that need these clusters, each named once, among those that answer.
    pub fn route<'a>(
        &'a self,
        needs: &'a [u32],
        queries: usize,
        answers: impl Fn(usize) -> bool,
    ) -> Routed<'a> {
        Routed { router: self, server: self.choose(needs, queries, answers), needs }
    }

    /// As [`Router::route`], for a caller that calls [`Router::end`] itself.
    pub fn choose(&self, needs: &[u32], queries: usize, answers: impl Fn(usize) -> bool) -> usize {
        let Choice { server, by_cache } = self.table().choose(needs, queries, answers);
        self.by_cache.fetch_add(if by_cache { queries as u64 } else { 0 }, Ordering::Relaxed);
        server
    }

    /// Ends what is expected of a batch: its reply is there, or none will come.
    pub fn end(&self, server: usize, needs: &[u32]) {
        self.table().end(server, needs);
    }

    /// The version of what a server has cached that is known, for the parameter `cached` of a request.
    pub fn version(&self, server: usize) -> u64 {
        self.table().version(server)
    }

    /// Notes what a server has cached; without a bitmap it is what is known.
    pub fn note(&self, server: usize, version: u64, bitmap: Option<Vec<u8>>) {
        self.table().update(server, version, bitmap);
    }

    /// Queries of this run that went to a server because of its cache.
    pub fn by_cache(&self) -> u64 {
        self.by_cache.load(Ordering::Relaxed)
    }
}
