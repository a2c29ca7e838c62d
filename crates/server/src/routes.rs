//! What each path answers.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::{get, post};
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use serde::Serialize;
use serde_json::{Value, json};
use stratann_engine::serve::{Answer, Question, Unanswered, Versions};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::limits::Limits;
use crate::request::{self, Request, Shape};
use crate::wire::{Answered, Counters, Failed, FailureKind, Found, Refusal, Reply, Used};

/// Memory for requests is handed out in pieces of this size.
const PIECE_BYTES: usize = 1024;

/// What all requests share.
pub(crate) struct Shared {
    pub(crate) versions: Arc<Versions>,
    pub(crate) limits: Limits,
    threads: usize,
    shape: Shape,
    number: u8,
    memory: Arc<Semaphore>,
    pub(crate) connections: AtomicUsize,
    requests: AtomicU64,
    refused: AtomicU64,
}

impl Shared {
    pub(crate) fn new(versions: Arc<Versions>, shape: Shape, limits: Limits, threads: usize) -> Shared {
        let number = versions.status().server;
        Shared {
            versions,
            limits,
            threads,
            shape,
            number,
            memory: Arc::new(Semaphore::new(limits.memory_bytes / PIECE_BYTES)),
            connections: AtomicUsize::new(0),
            requests: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Memory for a request, or `None` when other requests have it.
    fn take_memory(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let pieces = u32::try_from(bytes.div_ceil(PIECE_BYTES)).ok()?;
        Arc::clone(&self.memory).try_acquire_many_owned(pieces).ok()
    }
}

pub(crate) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/search", post(search))
        .route("/v1/health", get(health))
        .route("/v1/status", get(status))
        .fallback(no_such_path)
        .method_not_allowed_fallback(wrong_method)
        .with_state(shared)
}

async fn search(
    State(shared): State<Arc<Shared>>,
    RawQuery(url_query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Response {
    shared.requests.fetch_add(1, Ordering::Relaxed);
    match answer(&shared, url_query.as_deref().unwrap_or(""), &headers, body).await {
        Ok(response) => response,
        Err(refused) => {
            shared.refused.fetch_add(1, Ordering::Relaxed);
            refused.response()
        }
    }
}

/// Why a request is not answered.
struct Refused {
    status: StatusCode,
    error: String,
}

impl Refused {
    fn bad(error: impl Into<String>) -> Refused {
        Refused { status: StatusCode::BAD_REQUEST, error: error.into() }
    }

    fn overloaded() -> Refused {
        let error = "the server has no memory left for more requests; ask again later".into();
        Refused { status: StatusCode::SERVICE_UNAVAILABLE, error }
    }

    fn response(self) -> Response {
        json_response(self.status, &Refusal { error: self.error }, None)
    }
}

async fn answer(
    shared: &Arc<Shared>,
    url_query: &str,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, Refused> {
    let is_octets = is_octets(headers)?;
    // A body that does not say its length is taken for the longest.
    let said = body.size_hint().exact().map_or(shared.limits.body_bytes, |n| n as usize);
    let length = said.min(shared.limits.body_bytes);
    let charge = if is_octets { length } else { 3 * length };
    let Some(mut memory) = shared.take_memory(charge) else {
        return Err(Refused::overloaded());
    };
    let body = read_body(body, shared.limits.body_bytes, shared.limits.patience).await?;
    let read = if is_octets {
        request::from_octets(body, url_query, &shared.shape, &shared.limits)
    } else if url_query.is_empty() {
        request::from_json(&body, &shared.shape, &shared.limits)
    } else {
        Err("parameters in the URL go with application/octet-stream; put them into the body".into())
    };
    let request = read.map_err(Refused::bad)?;
    let count = request.rows.len() / shared.shape.row_bytes();
    match shared.take_memory(Limits::answer_bytes(count, request.options.k)) {
        Some(more) => memory.merge(more),
        None => return Err(Refused::overloaded()),
    }
    let reply = ask(shared, &request).await?;
    Ok(finish(&reply, memory))
}

fn is_octets(headers: &HeaderMap) -> Result<bool, Refused> {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else { return Ok(false) };
    let kind = kind.to_str().unwrap_or("").split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    match kind.as_str() {
        "application/octet-stream" => Ok(true),
        // What curl says unless told otherwise.
        "application/json" | "application/x-www-form-urlencoded" | "" => Ok(false),
        other => Err(Refused::bad(format!(
            "Content-Type {other:?} is not read; send application/json or application/octet-stream"
        ))),
    }
}

/// Reads a body of up to `limit` bytes. What is beyond it is read as well, within reason, and dropped: a client that is still
/// sending would not read the refusal.
async fn read_body(mut body: Body, limit: usize, patience: Duration) -> Result<Vec<u8>, Refused> {
    let mut bytes = Vec::with_capacity(body.size_hint().exact().unwrap_or(0).min(limit as u64) as usize);
    let mut length = 0;
    let read = async {
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame?.into_data() else { continue };
            length += data.len();
            if length <= limit {
                bytes.extend_from_slice(&data);
            } else if length > 8 * limit {
                break;
            }
        }
        Ok::<(), axum::Error>(())
    };
    match tokio::time::timeout(patience, read).await {
        Err(_) => Err(Refused {
            status: StatusCode::REQUEST_TIMEOUT,
            error: format!("the body did not come within {} s", patience.as_secs()),
        }),
        Ok(Err(e)) => Err(Refused::bad(format!("the body broke off: {e}"))),
        Ok(Ok(())) if length > limit => Err(Refused::bad(format!(
            "the body is longer than {limit} bytes; send fewer queries in one request"
        ))),
        Ok(Ok(())) => Ok(bytes),
    }
}

/// Asks all queries of a request at once and waits for all answers.
async fn ask(shared: &Arc<Shared>, request: &Request) -> Result<Reply, Refused> {
    let mut waiting = Vec::new();
    let mut used = None;
    // All queries of a request are asked of one version; it is let go of before their answers are waited for.
    let server = shared.versions.current();
    let block_bytes = server.block_bytes();
    let kind = server.kind();
    for vector in request.rows.chunks_exact(shared.shape.row_bytes()) {
        // Anew for each: the width follows the load, and this request is a part of it.
        let params = server.params(&request.options).map_err(|e| Refused::bad(e.message))?;
        used.get_or_insert(Used::of(kind, &params));
        let (sender, receiver) = oneshot::channel();
        let question = Question { vector, params, timeout: request.timeout, partial: request.partial };
        // A client that hung up has dropped the receiver; its answer goes nowhere.
        server.ask(question, Box::new(move |answer| drop(sender.send(answer))));
        waiting.push(receiver);
    }
    drop(server);
    let mut answers = Vec::with_capacity(waiting.len());
    for receiver in waiting {
        let stopping = || Err(Unanswered::Failed("the server is stopping; ask another".into()));
        answers.push(answered(receiver.await.unwrap_or_else(|_| stopping()), block_bytes));
    }
    let params = used.ok_or_else(|| Refused::bad("there are no queries; send at least one"))?;
    Ok(Reply { error: overload(&answers), answers, server: shared.number, params })
}

fn answered(answer: Result<Answer, Unanswered>, block_bytes: usize) -> Answered {
    match answer {
        Ok(answer) => Answered::Found(Found {
            per_query: Counters::of(&answer.stats, block_bytes),
            ids: answer.ids,
            distances: answer.distances,
            partial: answer.is_partial,
            latency_us: answer.latency_us,
        }),
        Err(why) => {
            let kind = match why {
                Unanswered::Overloaded => FailureKind::Overloaded,
                Unanswered::Expired => FailureKind::Expired,
                Unanswered::Unreachable => FailureKind::Unreachable,
                Unanswered::Failed(_) => FailureKind::Failed,
            };
            Answered::Failed(Failed { error: why.to_string(), kind })
        }
    }
}

/// What is said when the server took none of the queries.
fn overload(answers: &[Answered]) -> Option<String> {
    let is_refused = |a: &Answered| matches!(a, Answered::Failed(f) if f.kind == FailureKind::Overloaded);
    match answers.first() {
        Some(Answered::Failed(first)) if answers.iter().all(is_refused) => Some(first.error.clone()),
        _ => None,
    }
}

fn finish(reply: &Reply, memory: OwnedSemaphorePermit) -> Response {
    let status = if reply.error.is_some() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    json_response(status, reply, Some(memory))
}

async fn health(State(shared): State<Arc<Shared>>) -> Response {
    let status = shared.versions.status();
    let missing: Vec<usize> = (0..status.live.len()).filter(|&s| !status.live[s]).collect();
    let code = if status.is_complete { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = json!({
        "healthy": status.is_complete,
        "server": status.server,
        "servers": status.servers,
        "missing": missing,
    });
    json_response(code, &body, None)
}

async fn status(State(shared): State<Arc<Shared>>) -> Response {
    let mut status = shared.versions.status();
    let own = shared.limits.bytes(shared.threads);
    status.memory.push(("HTTP".into(), own));
    status.ram_budget_bytes = status.ram_budget_bytes.map(|b| b + own);
    let memory = by_component(&status.memory);
    let Ok(mut body) = serde_json::to_value(status) else {
        let error = "the status cannot be written as JSON; please report it".into();
        return Refused { status: StatusCode::INTERNAL_SERVER_ERROR, error }.response();
    };
    body["memory"] = memory;
    body["http"] = json!({
        "connections": shared.connections.load(Ordering::Relaxed),
        "requests": shared.requests.load(Ordering::Relaxed),
        "refused": shared.refused.load(Ordering::Relaxed),
    });
    json_response(StatusCode::OK, &body, None)
}

/// An account as one number for each component and their sum, as in the reports of searches.
fn by_component(components: &[(String, u64)]) -> Value {
    let mut all = serde_json::Map::new();
    for (what, bytes) in components {
        all.insert(what.replace(' ', "_") + "_bytes", (*bytes).into());
    }
    all.insert("total_bytes".into(), components.iter().map(|c| c.1).sum::<u64>().into());
    all.into()
}

async fn no_such_path() -> Response {
    let error = "no such path; there are POST /v1/search, GET /v1/health and GET /v1/status".into();
    Refused { status: StatusCode::NOT_FOUND, error }.response()
}

async fn wrong_method() -> Response {
    let error = "wrong method; POST goes to /v1/search, GET to /v1/health and /v1/status".into();
    Refused { status: StatusCode::METHOD_NOT_ALLOWED, error }.response()
}

fn json_response<T: Serialize>(
    status: StatusCode,
    body: &T,
    memory: Option<OwnedSemaphorePermit>,
) -> Response {
    let bytes = serde_json::to_vec(body).unwrap_or_default();
    let body = Body::new(Held { bytes: Some(bytes.into()), _memory: memory });
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// A body that holds its share of the memory until it is sent.
struct Held {
    bytes: Option<Bytes>,
    _memory: Option<OwnedSemaphorePermit>,
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.bytes.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |b| b.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratann_core::query::Params;
    use stratann_engine::kinds::kind::Kind;

    #[test]
    fn a_server_that_takes_nothing_says_so_for_the_request() {
        let failed = |why| answered(Err(why), 4096);
        let (refused, expired) = (failed(Unanswered::Overloaded), failed(Unanswered::Expired));
        assert_eq!(overload(&[refused.clone(), expired]), None);
        let line = overload(&[refused.clone(), refused.clone()]);
        assert!(line.as_ref().is_some_and(|l| l.contains("again later")));
        let params = Used::of(Kind::Flat, &Params::new(1, 1));
        let memory = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let response = finish(&Reply { answers: vec![refused], server: 0, params, error: line }, memory);
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
    }
}
