//! Caches of the servers of a `remote-hnsw`, so that queries go where their clusters are.

use std::time::Duration;

use stratann_engine::kinds::remote_hnsw::router::Router;
use stratann_server::wire::{Cached, Clusters};
use ureq::Agent;

use super::{REPLY_BYTES, get, get_raw};
use crate::queries::Wanted;

/// Reply of servers about their caches.
pub(super) enum Fetched {
    /// Router of the servers, which are of a `remote-hnsw`.
    Here(Box<Router>),
    /// Queries to them are not routed.
    OtherKind,
    /// The reasons why none of them gave it in time.
    Failed(String),
}

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
        match fetch_from(agent, (address, addresses.len()), wanted, limit) {
            Ok(Some(own)) => return Fetched::Here(Box::new(own)),
            Ok(None) => return Fetched::OtherKind,
            Err(why) => failed.push(format!("{address}: {why}")),
        }
    }
    Fetched::Failed(failed.join(", "))
}

/// Reply of one server; `None` of an index of another kind.
fn fetch_from(
    agent: &Agent,
    (address, servers): (&str, usize),
    wanted: Wanted,
    limit: Duration,
) -> std::result::Result<Option<Router>, String> {
    let bytes = |path| match get_raw(agent, address, path, (limit, REPLY_BYTES))? {
        (200, body) => Ok(Some(body)),
        (404, _) => Ok(None),
        (status, _) => Err(format!("status {status} of {path}")),
    };
    let Some(clusters) = bytes("/v1/clusters")? else { return Ok(None) };
    let damaged = || "its clusters cannot be read".to_string();
    let clusters: Clusters = serde_json::from_slice(&clusters).map_err(|_| damaged())?;
    let build = u64::from_str_radix(&clusters.build, 16).map_err(|_| damaged())?;
    let Some(meta) = bytes("/v1/meta")? else { return Ok(None) };
    let types = (wanted.dim, wanted.metric, wanted.dtype);
    let own = Router::new((build, clusters.bytes, meta), types, servers);
    own.map(Some).ok_or_else(|| "its meta-HNSW is damaged, or of another version".into())
}

/// Begins a run: asks all servers what they have cached. Returns how many clusters a query with these parameters needs;
/// `None` where no server answers.
pub(super) fn begin(router: &Router, agent: &Agent, addresses: &[String], parameters: &str) -> Option<u32> {
    router.begin();
    let mut nprobe = None;
    for (server, address) in addresses.iter().enumerate() {
        if let Ok((200, found)) = get::<Clusters>(agent, address, &format!("/v1/clusters?{parameters}")) {
            note(router, server, &found.cached);
            nprobe = nprobe.or(Some(found.nprobe));
        }
    }
    nprobe
}

/// The parameter by which a request asks a server what it has cached.
pub(super) fn parameter(router: &Router, server: usize) -> String {
    format!("&cached={:016x}", router.version(server))
}

/// Notes what a server has cached.
pub(super) fn note(router: &Router, server: usize, cached: &Cached) {
    if let Some((version, bitmap)) = cached.read() {
        router.note(server, version, bitmap);
    }
}
