//! The collections of a data folder over HTTP.
//!
//! A request is read, and then handled as a whole on a thread that may block: its change is durable before the reply,
//! also where its client has hung up.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::{MethodRouter, get, on};
use axum::{Extension, Router};
use serde::Serialize;
use serde_json::json;
use stratann_node::collections::Node;
use tokio::sync::Semaphore;

use crate::activity::{Activity, Phase};
use crate::limits::{Limits, RequestMemory};
use crate::problem::Code;
use crate::routes::by_component;
use crate::shared::{Rejection, ReservedBytes, Shared, is_octets, json_response, read_body, response};

mod body;
mod document;
pub(crate) mod filters;
mod handlers;
mod ids;
mod openapi;
mod paths;
mod replies;

use paths::{OWN_PATHS, Operation, Route, routes};

/// Longest wait for a thread that may block.
const CALL_WAIT: Duration = Duration::from_secs(5);
/// A body as JSON takes so many times its length beside itself, while it is read.
const READ_SHARE: u64 = 2;

/// What a front serves of a data folder.
pub struct ServedCollections {
    /// The open data folder.
    pub node: Arc<Node>,
    /// Requests that are handled at once, each on a thread of its own.
    pub calls: usize,
    /// Threads of a search.
    pub threads: usize,
    /// Most results of a query.
    pub max_k: usize,
    /// Limit of all memory of the process, for its status.
    pub ram_budget: Option<u64>,
}

/// State of the requests to collections.
struct Collections {
    shared: Arc<Shared>,
    served: ServedCollections,
    calls: Arc<Semaphore>,
}

/// A request, as its handler gets it.
struct Asked<'a> {
    served: &'a ServedCollections,
    limits: &'a Limits,
    /// Name of the collection; empty in the path of all of them.
    name: &'a str,
    /// Id in the path.
    id: &'a str,
    body: &'a [u8],
    memory: &'a mut RequestMemory,
}

/// Status and body of a reply.
type Answer = (StatusCode, Vec<u8>);
/// Handles a request, and may block.
type Handler = fn(&mut Asked<'_>) -> Result<Answer, Rejection>;

/// Returns the paths of a front of collections, each after its method.
pub fn paths() -> Vec<String> {
    let own = routes().into_iter().map(|route| format!("{} {}", route.method, route.path));
    own.chain(OWN_PATHS.iter().map(|(method, path, _)| format!("{method} {path}"))).collect()
}

pub(crate) fn router(shared: Arc<Shared>, served: ServedCollections) -> Router {
    let calls = Arc::new(Semaphore::new(served.calls.max(1)));
    let state = Arc::new(Collections { shared, served, calls });
    let add = |router: Router<_>, route: Route| {
        let handler = route.handler;
        router.route(
            route.path,
            on(route.filter, move |state, activity, path, headers, body| {
                handle(handler, state, activity, path, (headers, body))
            }),
        )
    };
    let health: MethodRouter<Arc<Collections>> = get(health);
    let router = routes().into_iter().fold(Router::new(), add);
    router
        .route("/v1/health", health)
        .route("/v1/status", get(status))
        .route(openapi::PATH, get(openapi))
        .fallback(no_such_path)
        .method_not_allowed_fallback(wrong_method)
        .with_state(state)
}

async fn handle(
    handler: Handler,
    State(state): State<Arc<Collections>>,
    Extension(activity): Extension<Arc<Activity>>,
    path: Result<Path<HashMap<String, String>>, PathRejection>,
    (headers, body): (HeaderMap, Body),
) -> Response {
    state.shared.requests.fetch_add(1, Ordering::Relaxed);
    match answer(&state, handler, &activity, path, (headers, body)).await {
        Ok(response) => response,
        Err(refused) => state.shared.refuse(refused).await,
    }
}

async fn answer(
    state: &Arc<Collections>,
    handler: Handler,
    activity: &Activity,
    path: Result<Path<HashMap<String, String>>, PathRejection>,
    (headers, body): (HeaderMap, Body),
) -> Result<Response, Rejection> {
    let mut memory = RequestMemory::new(&state.shared.ledger);
    activity.begin(Phase::Body);
    let body = read_body(body, &state.shared.limits, &mut memory).await?;
    activity.begin(Phase::Answering);
    if !body.is_empty() && is_octets(&headers)? {
        let error = "vectors of collections are sent as numbers or in base64; send application/json";
        return Err(Rejection::of(Code::WrongType, error));
    }
    let Path(parts) = path.map_err(|_| Rejection::bad("the path is no UTF-8; correct it"))?;
    if !memory.grow(READ_SHARE * body.len() as u64) {
        return Err(Rejection::overloaded());
    }
    let Ok(Ok(permit)) = tokio::time::timeout(CALL_WAIT, Arc::clone(&state.calls).acquire_owned()).await
    else {
        return Err(Rejection::unavailable("all threads for collections are busy; ask again later"));
    };
    let own = Arc::clone(state);
    let work = move || {
        let _permit = permit;
        let part = |name: &str| parts.get(name).map_or("", String::as_str);
        let (served, limits) = (&own.served, &own.shared.limits);
        let (name, id) = (part("collection"), part("id"));
        let answer = handler(&mut Asked { served, limits, name, id, body: &body, memory: &mut memory });
        answer.map(|answer| (answer, memory))
    };
    let failed = |_| Rejection::failed("the request ended unexpectedly; please report it");
    let ((status, mut bytes), mut memory) = tokio::task::spawn_blocking(work).await.map_err(failed)??;
    bytes.shrink_to_fit();
    let length = bytes.len() as u64;
    if length > memory.bytes() && !memory.grow(length - memory.bytes()) {
        return Err(Rejection::overloaded());
    }
    memory.shrink_to(length);
    Ok(response(status, Bytes::from_owner(ReservedBytes { bytes, _memory: memory })))
}

/// The reply of a request that succeeded.
fn ok(body: &impl Serialize) -> Result<Answer, Rejection> {
    let bytes = serde_json::to_vec(body);
    let bytes = bytes.map_err(|e| Rejection::failed(format!("the reply cannot be written as JSON: {e}")))?;
    Ok((StatusCode::OK, bytes))
}

async fn health() -> Response {
    json_response(StatusCode::OK, &json!({ "healthy": true }))
}

/// The OpenAPI document.
async fn openapi() -> Response {
    json_response(StatusCode::OK, &openapi::document())
}

/// Memory and counters. None of them waits for a change that is under way.
async fn status(State(state): State<Arc<Collections>>) -> Response {
    let (shared, served) = (&state.shared, &state.served);
    let front = shared.limits.bytes(shared.threads + served.calls);
    let rows = served.node.counters();
    let of_node = served.node.memory().into_iter();
    let of_node = of_node.map(|own| (Cow::Borrowed(own.part), own.used_bytes.max(own.guaranteed_bytes)));
    let memory: Vec<_> = of_node.chain([("HTTP".into(), front)]).collect();
    let body = json!({
        "pid": std::process::id(),
        "read_only": served.node.why_read_only(),
        "ram_budget_bytes": served.ram_budget,
        "memory": by_component(&memory),
        "rows": {
            "batches": rows.batches,
            "groups": rows.groups,
            "syncs": rows.syncs,
            "written_bytes": rows.written_bytes,
            "reclaimed_bytes": rows.reclaimed_bytes,
            "failed_batches": rows.failed_batches,
        },
        "http": shared.counters(),
        "limits": {
            "body_bytes": shared.limits.body_bytes,
            "reply_bytes": shared.limits.large_bytes,
            "queries": shared.limits.queries,
            "max_k": served.max_k,
        },
    });
    json_response(StatusCode::OK, &body)
}

async fn no_such_path() -> Response {
    let error = format!("no such path; there are {}", paths().join(", "));
    Rejection::new(StatusCode::NOT_FOUND, error).response()
}

async fn wrong_method() -> Response {
    let error = format!("wrong method; there are {}", paths().join(", "));
    Rejection::new(StatusCode::METHOD_NOT_ALLOWED, error).response()
}
