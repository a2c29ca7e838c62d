//! What a client needs to send queries where their clusters are cached, of a `remote-hnsw`.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;

use super::{FrontState, Rejection, ReservedBytes, response};
use crate::limits::RequestMemory;
use crate::request;
use crate::wire::{Cached, Clusters, Used};

/// Bytes of a reply for each cluster: its size as text, and a part of the bitmap.
const CLUSTER_BYTES: usize = 12;

/// Bytes that a reply takes for the clusters that are cached.
pub(super) fn cached_bytes(shared: &FrontState) -> u64 {
    shared.versions.current().cluster_count() as u64 / 4 + 64
}

/// The clusters that are cached now; `None` of another kind of index.
pub(super) fn cached(shared: &FrontState, known: u64) -> Option<Cached> {
    shared.versions.current().cached_clusters().map(|own| Cached::of(&own, known))
}

/// The size of each cluster, those that are cached, and how many a query with these parameters needs.
pub(super) async fn clusters(
    State(shared): State<Arc<FrontState>>,
    RawQuery(url_query): RawQuery,
) -> Response {
    let count = shared.versions.current().cluster_count();
    let written = || {
        let read = read_clusters(&shared, url_query.as_deref().unwrap_or(""))?;
        Ok(serde_json::to_vec(&read).unwrap_or_default())
    };
    reserved(&shared, "application/json", CLUSTER_BYTES * count + 512, written).await
}

/// Writes a reply of up to so many bytes, which are reserved.
async fn reserved(
    shared: &FrontState,
    content: &'static str,
    bytes: usize,
    write: impl FnOnce() -> Result<Vec<u8>, Rejection>,
) -> Response {
    let mut memory = RequestMemory::new(&shared.ledger);
    if !memory.grow(bytes as u64) {
        return Rejection::overloaded().response();
    }
    match shared.work(bytes, write).await {
        Ok(bytes) => {
            let body = Bytes::from_owner(ReservedBytes { bytes, _memory: memory });
            let mut response = response(StatusCode::OK, body);
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content));
            response
        }
        Err(refused) => refused.response(),
    }
}

fn read_clusters(shared: &FrontState, url_query: &str) -> Result<Clusters, Rejection> {
    let options = request::options_of(url_query).map_err(Rejection::bad)?;
    let server = shared.versions.current();
    let (Some(map), Some(own)) = (server.cluster_map(), server.cached_clusters()) else {
        return Err(no_clusters());
    };
    let params = server.params(&options).map_err(|e| Rejection::bad(e.message))?;
    let build = format!("{:016x}", map.build);
    let nprobe = Used::of(&params).nprobe.unwrap_or(0);
    Ok(Clusters { build_id: server.build_id(), build, nprobe, bytes: map.bytes, cached: Cached::of(&own, 0) })
}

/// The bytes of the meta-HNSW.
pub(super) async fn meta(State(shared): State<Arc<FrontState>>) -> Response {
    let server = shared.versions.current();
    let meta = server.meta_hnsw();
    let bytes = meta.map_or(0, <[u8]>::len);
    let written = || meta.map(<[u8]>::to_vec).ok_or_else(no_clusters);
    reserved(&shared, "application/octet-stream", bytes, written).await
}

fn no_clusters() -> Rejection {
    let error = "this server's index is no remote-hnsw; ask /v1/search".into();
    Rejection { status: StatusCode::NOT_FOUND, error }
}
