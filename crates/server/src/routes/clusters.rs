//! Data for a client that sends queries where they have least to do: where their clusters are cached, of a
//! `remote-hnsw`, or where they enter a partitioned `disk-graph`.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use tokio::sync::Semaphore;

use super::FrontState;
use crate::limits::RequestMemory;
use crate::request;
use crate::shared::{Rejection, ReservedBytes, response};
use crate::wire::{Cached, Clusters, Used};

/// Bytes of a reply for each cluster: its size as text, and a part of the bitmap.
const CLUSTER_BYTES: usize = 12;

/// Bytes that a reply takes for the clusters that are cached.
pub(super) fn cached_bytes(shared: &FrontState) -> u64 {
    shared.versions.current().cluster_count() as u64 / 4 + 64
}

/// The clusters that are cached now; `None` of another kind of index.
pub(super) async fn cached(shared: &Arc<FrontState>, known: u64) -> Option<Cached> {
    let own = shared.clone();
    let read = move || own.versions.current().cached_clusters().map(|cached| Cached::of(&cached, known));
    beside(&shared.long_work, read).await.flatten()
}

/// Runs work on another thread than those that serve connections: it takes the locks of the cache, and time for each
/// cluster. `None` when it panics.
async fn beside<T: Send + 'static>(
    permits: &Semaphore,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let _permit = permits.acquire().await;
    tokio::task::spawn_blocking(work).await.ok()
}

/// The size of each cluster, those that are cached, and how many a query with these parameters needs.
pub(super) async fn clusters(
    State(shared): State<Arc<FrontState>>,
    RawQuery(url_query): RawQuery,
) -> Response {
    let count = shared.versions.current().cluster_count();
    let own = shared.clone();
    let written = move || {
        let read = read_clusters(&own, url_query.as_deref().unwrap_or(""))?;
        Ok(serde_json::to_vec(&read).unwrap_or_default())
    };
    reserved(&shared, "application/json", CLUSTER_BYTES * count + 512, written).await
}

/// Writes a reply of up to so many bytes, which are reserved.
async fn reserved(
    shared: &FrontState,
    content: &'static str,
    bytes: usize,
    write: impl FnOnce() -> Result<Vec<u8>, Rejection> + Send + 'static,
) -> Response {
    let mut memory = RequestMemory::new(&shared.ledger);
    if !memory.grow(bytes as u64) {
        return Rejection::overloaded().response();
    }
    match beside(&shared.long_work, write).await {
        Some(Ok(bytes)) => {
            let body = Bytes::from_owner(ReservedBytes { bytes, _memory: memory });
            let mut response = response(StatusCode::OK, body);
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content));
            response
        }
        Some(Err(refused)) => refused.response(),
        None => Rejection::failed("the reply cannot be made; please report it").response(),
    }
}

fn read_clusters(shared: &FrontState, url_query: &str) -> Result<Clusters, Rejection> {
    let server = shared.versions.current();
    let (Some(map), Some(own)) = (server.cluster_map(), server.cached_clusters()) else {
        return Err(no_clusters());
    };
    let options = request::options_of(url_query, server.kind()).map_err(Rejection::bad)?;
    let params = server.params(&options).map_err(|e| Rejection::bad(e.message))?;
    let build = format!("{:016x}", map.build);
    let nprobe = Used::of(&params).nprobe.unwrap_or(0);
    Ok(Clusters { build_id: server.build_id(), build, nprobe, bytes: map.bytes, cached: Cached::of(&own, 0) })
}

/// The bytes of the meta-HNSW.
pub(super) async fn meta(State(shared): State<Arc<FrontState>>) -> Response {
    let server = shared.versions.current();
    let bytes = server.meta_hnsw().map_or(0, <[u8]>::len);
    let written = move || server.meta_hnsw().map(<[u8]>::to_vec).ok_or_else(no_clusters);
    reserved(&shared, "application/octet-stream", bytes, written).await
}

/// Vectors of nodes of this server at which searches enter.
pub(super) async fn landmarks(State(shared): State<Arc<FrontState>>) -> Response {
    let server = shared.versions.current();
    let bytes = server.landmarks_bytes_max();
    let written = move || match server.landmarks() {
        Ok(rows) if rows.is_empty() => {
            let error = "this server has no part of a disk-graph; ask /v1/search";
            Err(Rejection::new(StatusCode::NOT_FOUND, error))
        }
        Ok(rows) => Ok(rows),
        Err(e) => Err(Rejection::failed(e.message)),
    };
    reserved(&shared, "application/octet-stream", bytes, written).await
}

fn no_clusters() -> Rejection {
    let error = "this server's index is no remote-hnsw; ask /v1/search";
    Rejection::new(StatusCode::NOT_FOUND, error)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn requests_go_on_while_clusters_are_read() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let permits = Semaphore::new(1);
            let (others_go_on, waiting) = mpsc::channel();
            let work = beside(&permits, move || waiting.recv_timeout(Duration::from_secs(20)).is_ok());
            let (done, _) = tokio::join!(work, async { others_go_on.send(()) });
            assert_eq!(done, Some(true));
            assert_eq!(permits.available_permits(), 1);
        });
    }
}
