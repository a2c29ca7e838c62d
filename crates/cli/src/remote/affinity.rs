//! Sends queries of a `remote-hnsw` to the servers that have their clusters cached.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use stratann_core::format::hnsw::{HnswLayout, HnswName};
use stratann_core::plan::remote_hnsw::Chooser;
use stratann_engine::kinds::remote_hnsw::affinity::{Batch, CacheTable, Choice, divide};
use stratann_engine::{DType, Metric};
use stratann_server::wire::{Cached, Clusters};
use ureq::Agent;

use super::{get, get_raw};
use crate::queries::Wanted;

/// A batch that a server was chosen for, until its reply.
pub(crate) struct Routed<'a> {
    affinity: &'a Affinity,
    pub(crate) server: usize,
    needs: &'a [u32],
}

impl Drop for Routed<'_> {
    fn drop(&mut self) {
        self.affinity.table().end(self.server, self.needs);
    }
}

/// What servers say of their caches.
pub(super) enum Fetched {
    /// They are of a `remote-hnsw`.
    Here(Box<Affinity>),
    /// Queries to them are not routed.
    OtherKind,
    /// None of them gave it in time, and why.
    Failed(String),
}

/// Servers of one `remote-hnsw`, and what they have cached.
pub(crate) struct Affinity {
    layout: HnswLayout,
    name: HnswName,
    meta: Vec<u8>,
    types: (Metric, DType),
    table: Mutex<CacheTable>,
    /// Queries that went to a server because of its cache.
    by_cache: AtomicU64,
}

impl Affinity {
    /// Asks the servers for their clusters and the meta-HNSW, one after another until one gives both within `limit`.
    pub(super) fn fetch(
        agent: &Agent,
        addresses: &[String],
        wanted: Wanted,
        limit: Duration,
        answers: impl Fn(usize) -> bool,
    ) -> Fetched {
        let mut failed = Vec::new();
        for (_, address) in addresses.iter().enumerate().filter(|(server, _)| answers(*server)) {
            match Affinity::of(agent, (address, addresses.len()), wanted, limit) {
                Ok(Some(own)) => return Fetched::Here(Box::new(own)),
                Ok(None) => return Fetched::OtherKind,
                Err(why) => failed.push(format!("{address}: {why}")),
            }
        }
        Fetched::Failed(failed.join(", "))
    }

    /// What one server gives; `None` of an index of another kind.
    fn of(
        agent: &Agent,
        (address, servers): (&str, usize),
        wanted: Wanted,
        limit: Duration,
    ) -> std::result::Result<Option<Affinity>, String> {
        let bytes = |path| match get_raw(agent, address, path, limit)? {
            (200, body) => Ok(Some(body)),
            (404, _) => Ok(None),
            (status, _) => Err(format!("status {status} of {path}")),
        };
        let Some(clusters) = bytes("/v1/clusters")? else { return Ok(None) };
        let damaged = || "its clusters cannot be read".to_string();
        let clusters: Clusters = serde_json::from_slice(&clusters).map_err(|_| damaged())?;
        let build = u64::from_str_radix(&clusters.build, 16).map_err(|_| damaged())?;
        let Some(meta) = bytes("/v1/meta")? else { return Ok(None) };
        let layout = HnswLayout {
            vector_bytes: wanted.dim * wanted.dtype.size(),
            norms: wanted.metric == Metric::Cosine,
        };
        let own = Affinity {
            layout,
            name: HnswName::meta(build),
            meta,
            types: (wanted.metric, wanted.dtype),
            table: Mutex::new(CacheTable::new(clusters.bytes, servers)),
            by_cache: AtomicU64::new(0),
        };
        let is_sound = own.chooser().is_some();
        if is_sound { Ok(Some(own)) } else { Err("its meta-HNSW is damaged, or of another version".into()) }
    }

    fn chooser(&self) -> Option<Chooser<'_>> {
        Chooser::open(&self.layout, &self.name, &self.meta)
    }

    fn table(&self) -> MutexGuard<'_, CacheTable> {
        self.table.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Begins a run: asks all servers what they have cached. Returns how many clusters a query with these parameters
    /// needs; `None` where no server answers.
    pub(super) fn begin(&self, agent: &Agent, addresses: &[String], parameters: &str) -> Option<u32> {
        self.table().begin();
        self.by_cache.store(0, Ordering::Relaxed);
        let mut nprobe = None;
        for (server, address) in addresses.iter().enumerate() {
            if let Some(found) = clusters(agent, address, parameters) {
                self.note(server, &found.cached);
                nprobe = nprobe.or(Some(found.nprobe));
            }
        }
        nprobe
    }

    /// Divides queries into batches, so that those that need the same clusters are together.
    pub(crate) fn divide(&self, rows: &[u8], nprobe: u32, each: usize, threads: usize) -> Vec<Batch> {
        let row_bytes = self.layout.vector_bytes.max(1);
        let mut needs = vec![Vec::new(); rows.len() / row_bytes];
        let part = needs.len().div_ceil(threads.max(1)).max(1);
        std::thread::scope(|scope| {
            for (needs, rows) in needs.chunks_mut(part).zip(rows.chunks(part * row_bytes)) {
                scope.spawn(move || {
                    let Some(mut chooser) = self.chooser() else { return };
                    for (own, row) in needs.iter_mut().zip(rows.chunks_exact(row_bytes)) {
                        chooser.choose(self.types, row, nprobe, own);
                    }
                });
            }
        });
        divide(&needs, each, self.servers())
    }

    fn servers(&self) -> usize {
        self.table().servers()
    }

    /// Chooses the server of a batch among those that answer. Its clusters are expected there until the result is
    /// dropped.
    pub(crate) fn choose<'a>(&'a self, batch: &'a Batch, answers: impl Fn(usize) -> bool) -> Routed<'a> {
        let Choice { server, by_cache } = self.table().choose(&batch.needs, batch.queries.len(), answers);
        self.by_cache.fetch_add(if by_cache { batch.queries.len() as u64 } else { 0 }, Ordering::Relaxed);
        Routed { affinity: self, server, needs: &batch.needs }
    }

    /// The parameter by which a request asks a server what it has cached.
    pub(super) fn parameter(&self, server: usize) -> String {
        format!("&cached={:016x}", self.table().version(server))
    }

    /// Notes what a server has cached.
    pub(super) fn note(&self, server: usize, cached: &Cached) {
        if let Some((version, bitmap)) = cached.read() {
            self.table().update(server, version, bitmap);
        }
    }

    /// Queries of this run that went to a server because of its cache.
    pub(crate) fn by_cache(&self) -> u64 {
        self.by_cache.load(Ordering::Relaxed)
    }
}

fn clusters(agent: &Agent, address: &str, parameters: &str) -> Option<Clusters> {
    let (status, found) = get(agent, address, &format!("/v1/clusters?{parameters}")).ok()?;
    (status == 200).then_some(found)
}
