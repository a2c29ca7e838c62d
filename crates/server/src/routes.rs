//! The handlers of all paths.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
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
use stratann_engine::serve::{Answer, Question, Server, Unanswered, Versions};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::limits::Limits;
use crate::request::{self, Request, RowShape};
use crate::wire::{Answered, Counters, Failed, FailureKind, Found, Refusal, Reply, Used};

/// Unit of the memory that requests reserve, bytes.
const PIECE_BYTES: usize = 1024;

/// State that all requests share.
pub(crate) struct FrontState {
    pub(crate) versions: Arc<Versions>,
    pub(crate) limits: Limits,
    threads: usize,
    shape: RowShape,
    number: u8,
    memory: Arc<Semaphore>,
    pub(crate) connections: AtomicUsize,
    requests: AtomicU64,
    refused: AtomicU64,
}

impl FrontState {
    pub(crate) fn new(
        versions: Arc<Versions>,
        shape: RowShape,
        limits: Limits,
        threads: usize,
    ) -> FrontState {
        let number = versions.status().server;
        FrontState {
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

    /// Reserves memory for a request. `None` when other requests have it.
    fn reserve(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let pieces = u32::try_from(bytes.div_ceil(PIECE_BYTES)).ok()?;
        Arc::clone(&self.memory).try_acquire_many_owned(pieces).ok()
    }
}

pub(crate) fn router(shared: Arc<FrontState>) -> Router {
    Router::new()
        .route("/v1/search", post(search))
        .route("/v1/health", get(health))
        .route("/v1/status", get(status))
        .fallback(no_such_path)
        .method_not_allowed_fallback(wrong_method)
        .with_state(shared)
}

async fn search(
    State(shared): State<Arc<FrontState>>,
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

/// The reason why a request is not answered.
struct Rejection {
    status: StatusCode,
    error: String,
}

impl Rejection {
    fn bad(error: impl Into<String>) -> Rejection {
        Rejection { status: StatusCode::BAD_REQUEST, error: error.into() }
    }

    fn overloaded() -> Rejection {
        let error = "the server has no memory left for more requests; ask again later".into();
        Rejection { status: StatusCode::SERVICE_UNAVAILABLE, error }
    }

    fn response(self) -> Response {
        json_response(self.status, &Refusal { error: self.error }, None)
    }
}

async fn answer(
    shared: &Arc<FrontState>,
    url_query: &str,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, Rejection> {
    let is_octets = is_octets(headers)?;
    // A body without a declared length counts as one of the largest size.
    let declared = body.size_hint().exact().map_or(shared.limits.body_bytes, |n| n as usize);
    let length = declared.min(shared.limits.body_bytes);
    let charge = if is_octets { length } else { 3 * length };
    let Some(mut memory) = shared.reserve(charge) else {
        return Err(Rejection::overloaded());
    };
    let body = read_body(body, shared.limits.body_bytes, shared.limits.patience).await?;
    let read = if is_octets {
        request::from_octets(body, url_query, &shared.shape, &shared.limits)
    } else if url_query.is_empty() {
        request::from_json(&body, &shared.shape, &shared.limits)
    } else {
        Err("parameters in the URL go with application/octet-stream; put them into the body".into())
    };
    let request = read.map_err(Rejection::bad)?;
    let count = request.rows.len() / shared.shape.row_bytes();
    match shared.reserve(Limits::answer_bytes(count, request.options.k)) {
        Some(more) => memory.merge(more),
        None => return Err(Rejection::overloaded()),
    }
    let reply = ask(shared, &request).await?;
    Ok(finish(&reply, memory))
}

fn is_octets(headers: &HeaderMap) -> Result<bool, Rejection> {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else { return Ok(false) };
    let kind = kind.to_str().unwrap_or("").split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    match kind.as_str() {
        "application/octet-stream" => Ok(true),
        // The default of curl.
        "application/json" | "application/x-www-form-urlencoded" | "" => Ok(false),
        other => Err(Rejection::bad(format!(
            "Content-Type {other:?} is not read; send application/json or application/octet-stream"
        ))),
    }
}

/// Reads a body of up to `limit` bytes. A longer body is read to eight times that and dropped: a client that is still
/// sending would not read the rejection.
async fn read_body(mut body: Body, limit: usize, patience: Duration) -> Result<Vec<u8>, Rejection> {
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
        Err(_) => Err(Rejection {
            status: StatusCode::REQUEST_TIMEOUT,
            error: format!("the body did not come within {} s", patience.as_secs()),
        }),
        Ok(Err(e)) => Err(Rejection::bad(format!("the body broke off: {e}"))),
        Ok(Ok(())) if length > limit => Err(Rejection::bad(format!(
            "the body is longer than {limit} bytes; send fewer queries in one request"
        ))),
        Ok(Ok(())) => Ok(bytes),
    }
}

/// A query of a request. Dropping it before its answer cancels the query: hyper drops the handler of a client that
/// hangs up.
struct Pending {
    server: Weak<Server>,
    number: u64,
    answer: oneshot::Receiver<Result<Answer, Unanswered>>,
    is_answered: bool,
}

impl Pending {
    async fn wait(&mut self) -> Result<Answer, Unanswered> {
        let answer = (&mut self.answer).await;
        self.is_answered = true;
        answer.unwrap_or_else(|_| Err(Unanswered::Failed("the server is stopping; ask another".into())))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(server) = self.server.upgrade().filter(|_| !self.is_answered) {
            server.cancel(self.number);
        }
    }
}

/// Asks all queries of a request at once and waits for all answers.
async fn ask(shared: &Arc<FrontState>, request: &Request) -> Result<Reply, Rejection> {
    let mut waiting = Vec::new();
    let mut used = None;
    // All queries of a request go to one version. A rollout waits until it is dropped, so it is dropped before the
    // answers arrive.
    let server = shared.versions.current();
    for vector in request.rows.chunks_exact(shared.shape.row_bytes()) {
        // Computed for each query: the width depends on the load, which includes the queries of this request.
        let params = server.params(&request.options).map_err(|e| Rejection::bad(e.message))?;
        used.get_or_insert(Used::of(&params));
        let (sender, receiver) = oneshot::channel();
        let question = Question { vector, params, timeout: request.timeout, partial: request.partial };
        let number = server.ask(question, Box::new(move |answer| drop(sender.send(answer))));
        let server = Arc::downgrade(&server);
        waiting.push(Pending { server, number, answer: receiver, is_answered: false });
    }
    drop(server);
    let mut answers = Vec::with_capacity(waiting.len());
    for mut pending in waiting {
        answers.push(answered(pending.wait().await));
    }
    let params = used.ok_or_else(|| Rejection::bad("there are no queries; send at least one"))?;
    Ok(Reply { error: overload(&answers), answers, server: shared.number, params })
}

fn answered(answer: Result<Answer, Unanswered>) -> Answered {
    match answer {
        Ok(answer) => Answered::Found(Found {
            per_query: Counters(answer.stats),
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

/// The error of a request whose queries were all refused as overload.
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

async fn health(State(shared): State<Arc<FrontState>>) -> Response {
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

async fn status(State(shared): State<Arc<FrontState>>) -> Response {
    let mut status = shared.versions.status();
    let own = shared.limits.bytes(shared.threads);
    status.memory.push(("HTTP".into(), own));
    status.ram_budget_bytes = status.ram_budget_bytes.map(|b| b + own);
    let memory = by_component(&status.memory);
    let Ok(mut body) = serde_json::to_value(status) else {
        let error = "the status cannot be written as JSON; please report it".into();
        return Rejection { status: StatusCode::INTERNAL_SERVER_ERROR, error }.response();
    };
    body["memory"] = memory;
    body["http"] = json!({
        "connections": shared.connections.load(Ordering::Relaxed),
        "requests": shared.requests.load(Ordering::Relaxed),
        "refused": shared.refused.load(Ordering::Relaxed),
    });
    json_response(StatusCode::OK, &body, None)
}

/// An account as one number for each component, and their sum, as in the reports of searches.
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
    Rejection { status: StatusCode::NOT_FOUND, error }.response()
}

async fn wrong_method() -> Response {
    let error = "wrong method; POST goes to /v1/search, GET to /v1/health and /v1/status".into();
    Rejection { status: StatusCode::METHOD_NOT_ALLOWED, error }.response()
}

fn json_response<T: Serialize>(
    status: StatusCode,
    body: &T,
    memory: Option<OwnedSemaphorePermit>,
) -> Response {
    let bytes = serde_json::to_vec(body).unwrap_or_default();
    let body = Body::new(ReservedBody { bytes: Some(bytes.into()), _memory: memory });
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// A body that keeps its reserved memory until it is sent.
struct ReservedBody {
    bytes: Option<Bytes>,
    _memory: Option<OwnedSemaphorePermit>,
}

impl HttpBody for ReservedBody {
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

    #[test]
    fn a_server_that_refuses_all_queries_reports_overload_for_the_request() {
        let failed = |why| answered(Err(why));
        let (refused, expired) = (failed(Unanswered::Overloaded), failed(Unanswered::Expired));
        assert_eq!(overload(&[refused.clone(), expired]), None);
        let line = overload(&[refused.clone(), refused.clone()]);
        assert!(line.as_ref().is_some_and(|l| l.contains("again later")));
        let params = Used::of(&Params::flat(1));
        let memory = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let response = finish(&Reply { answers: vec![refused], server: 0, params, error: line }, memory);
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
    }
}
